//! The kernel's memory and page tables, as it finds them.

use crate::interface::{SELF, call, hypercall};

const DECREASE_RESERVATION: u64 = 1;
const POPULATE_PHYSMAP: u64 = 6;

/// Where its page 0 is mapped.
pub const BASE: u64 = 0xffff_ffff_8000_0000;
/// The table from frames to page numbers.
pub const M2P: u64 = 0xffff_8000_0000_0000;
/// Where the hypervisor has descriptors, and behind them the entry points of SYSCALL.
pub const GDT: u64 = 0xffff_8080_0000_0000;

/// Bits of an entry.
pub const PRESENT: u64 = 1;
/// See [`PRESENT`].
pub const WRITE: u64 = 2;
/// See [`PRESENT`].
pub const USER: u64 = 4;
/// See [`PRESENT`].
pub const UNCACHED: u64 = 1 << 4;
/// See [`PRESENT`].
pub const LARGE: u64 = 1 << 7;

/// What `struct start_info` says.
pub struct Machine {
    /// Where it says so.
    pub start_info: u64,
    /// It is the initial domain's: there are devices, and no ring of the console's.
    pub is_initial: bool,
    /// Pages of the kernel's.
    pub pages: u64,
    /// Frame of the console's ring.
    pub console: u64,
    /// Its event channel.
    pub console_port: u32,
    /// First page of its page tables, the root.
    pub tables: u64,
    /// How many there are.
    pub table_count: u64,
    list: u64,
    /// Address of the command line.
    command_line: u64,
}

impl Machine {
    /// Reads it.
    pub fn read(info: u64) -> Self {
        let word = |at: u64| unsafe { ((info + at) as *const u64).read_volatile() };
        Self {
            start_info: info,
            is_initial: word(48) & 2 != 0,
            pages: word(32),
            console: word(72),
            console_port: word(80) as u32,
            tables: (word(88) - BASE) / 4096,
            table_count: word(96),
            list: word(104),
            command_line: info + 128,
        }
    }

    /// The number behind `key=` on the command line.
    pub fn number(&self, key: &str) -> Option<u64> {
        let line = unsafe { core::slice::from_raw_parts(self.command_line as *const u8, 1024) };
        let end = line.iter().position(|byte| *byte == 0)?;
        let text = core::str::from_utf8(&line[..end]).ok()?;
        text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
    }

    /// Where a page is mapped.
    pub fn address(&self, page: u64) -> u64 {
        BASE + page * 4096
    }

    /// The frame of a page.
    pub fn frame(&self, page: u64) -> u64 {
        unsafe { ((self.list + page * 8) as *const u64).read_volatile() }
    }

    /// The page of a frame, as the hypervisor's table says.
    pub fn page_of(&self, frame: u64) -> u64 {
        unsafe { ((M2P + frame * 8) as *const u64).read_volatile() }
    }

    /// The frame of the root of its page tables.
    pub fn root(&self) -> u64 {
        self.frame(self.tables)
    }

    /// Whether a frame is one of its page tables, as it was started.
    pub fn is_table(&self, frame: u64) -> bool {
        let page = self.page_of(frame);
        page < self.pages && (self.tables..self.tables + self.table_count).contains(&page)
    }

    /// Whether a frame is its own.
    pub fn is_own(&self, frame: u64) -> bool {
        let first = self.frame(0);
        (first..first + self.pages).contains(&frame)
    }

    /// An entry of one of its page tables, which it can read where they are mapped.
    pub fn entry(&self, table: u64, index: u64) -> u64 {
        unsafe { ((self.address(self.page_of(table)) + index * 8) as *const u64).read_volatile() }
    }

    /// The table of a level for an address: 4 is the root's, 1 the lowest.
    pub fn table(&self, address: u64, level: u32) -> u64 {
        let mut table = self.root();
        for above in (level..4).rev() {
            table = self.entry(table, address >> (12 + 9 * above) & 511) >> 12 & 0xff_ffff_ffff;
        }
        table
    }

    /// The place in memory of the lowest entry of an address.
    pub fn leaf(&self, address: u64) -> (u64, u64) {
        (self.table(address, 1), address >> 12 & 511)
    }
}

/// HYPERVISOR_update_va_mapping.
pub fn map(address: u64, entry: u64, flush: bool) -> i64 {
    hypercall(call::UPDATE_VA_MAPPING, [address, entry, if flush { 2 } else { 0 }, 0])
}

/// HYPERVISOR_mmu_update of one word.
pub fn update(at: u64, value: u64) -> i64 {
    let request = [at, value];
    hypercall(call::MMU_UPDATE, [request.as_ptr() as u64, 1, 0, SELF])
}

/// HYPERVISOR_mmuext_op of one operation.
pub fn operate(cmd: u64, first: u64, second: u64) -> i64 {
    let operation = [cmd, first, second];
    hypercall(call::MMUEXT_OP, [operation.as_ptr() as u64, 1, 0, SELF])
}

/// HYPERVISOR_memory_op on a list of frames or pages, which is read and written.
fn reserve(operation: u64, list: &mut [u64], order_and_bits: u64, domain: u64) -> i64 {
    let reservation = [list.as_mut_ptr() as u64, list.len() as u64, order_and_bits, domain];
    hypercall(call::MEMORY_OP, [operation, reservation.as_ptr() as u64, 0, 0])
}

/// XENMEM_decrease_reservation: how many of the frames are given back.
pub fn give_back(frames: &[u64]) -> i64 {
    let mut list = [0; 8];
    list[..frames.len()].copy_from_slice(frames);
    reserve(DECREASE_RESERVATION, &mut list[..frames.len()], 0, SELF)
}

/// XENMEM_populate_physmap of one frame for a page, in a domain and of an order.
pub fn take_of(page: u64, order_and_bits: u64, domain: u64) -> Option<u64> {
    let mut list = [page];
    let answer = reserve(POPULATE_PHYSMAP, &mut list, order_and_bits, domain);
    (answer == 1).then(|| unsafe { (&raw const list[0]).read_volatile() })
}

/// The frame that it gets for a page.
pub fn take_again(page: u64) -> Option<u64> {
    take_of(page, 0, SELF)
}
