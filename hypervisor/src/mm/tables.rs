//! The hypervisor's page tables (AMD APM vol. 2, 5.3): built once, then only added to.
//!
//! A mapping that exists is never changed or removed, so no processor ever has to forget a translation.

use super::{PAGE, frames, layout};
use crate::handover::{BootInfo, Region};
use crate::sync::{Rank, SpinLock};
use crate::x86;
use arrayvec::ArrayVec;
use bitflags::bitflags;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_memory::{FrameUse, Hpa};

bitflags! {
    /// Bits of a page-table entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Bits: u64 {
        const PRESENT = 1 << 0;
        const WRITE = 1 << 1;
        const PWT = 1 << 3;
        const PCD = 1 << 4;
        const ACCESSED = 1 << 5;
        const DIRTY = 1 << 6;
        const LARGE = 1 << 7;
        const GLOBAL = 1 << 8;
        const NO_EXECUTE = 1 << 63;
    }
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const FOUR_GIB: u64 = 1 << 32;

/// Rights of a mapping. There is none that both writes and executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    Execute,
    Read,
    Write,
    Device,
}

impl Rights {
    fn bits(self) -> Bits {
        // Accessed and dirty are set beforehand: the processor then never writes the entry.
        let base = Bits::PRESENT | Bits::GLOBAL | Bits::ACCESSED | Bits::DIRTY;
        match self {
            Rights::Execute => base,
            Rights::Read => base | Bits::NO_EXECUTE,
            Rights::Write => base | Bits::WRITE | Bits::NO_EXECUTE,
            // PAT entry 3: uncacheable, whatever the MTRRs say.
            Rights::Device => base | Bits::WRITE | Bits::NO_EXECUTE | Bits::PCD | Bits::PWT,
        }
    }
}

/// Physical address of the root table, and the right to change the tables.
static TABLES: SpinLock<()> = SpinLock::new(Rank::Tables, ());
static ROOT: AtomicU64 = AtomicU64::new(0);
/// Root for starting processors: below 4 GiB, because they load it in 32-bit mode.
static TRAMPOLINE_ROOT: AtomicU64 = AtomicU64::new(0);
static GIGABYTE_PAGES: AtomicU64 = AtomicU64::new(0);

/// Physical address of the root table, for CR3.
pub fn root() -> u64 {
    ROOT.load(Ordering::Acquire)
}

fn entry(table: u64, index: u64) -> *mut u64 {
    layout::direct(table + (index & 511) * 8).cast()
}

fn read(table: u64, index: u64) -> u64 {
    // SAFETY: `table` is a page-table frame, mapped by the direct map (boot or final), and the index is masked.
    // Volatile, because the processor reads and other processors write these words.
    unsafe { entry(table, index).read_volatile() }
}

fn write(table: u64, index: u64, value: u64) {
    // SAFETY: as for `read`; the caller holds `TABLES` or is alone.
    unsafe { entry(table, index).write_volatile(value) };
}

fn new_table() -> Option<u64> {
    let table = frames::allocate(FrameUse::Hypervisor, PAGE, PAGE)?.as_u64();
    // SAFETY: a fresh frame below 4 GiB at first and in mapped memory later, reached through the direct map.
    unsafe { layout::direct(table).write_bytes(0, PAGE as usize) };
    Some(table)
}

/// Maps `[address, address + bytes)` to physical memory from `physical` with the largest pages that fit. Pages that
/// are mapped already stay as they are. `None` when memory for tables runs out.
fn map(address: u64, physical: u64, bytes: u64, rights: Rights) -> Option<()> {
    let mut done = 0;
    while done < bytes {
        let (va, pa, left) = (address + done, physical + done, bytes - done);
        done += map_one(root(), va, pa, left, rights)?;
    }
    Some(())
}

/// Maps one page at `va`, as large as alignment, `left` and what is there allow; returns the bytes covered.
fn map_one(root: u64, va: u64, pa: u64, left: u64, rights: Rights) -> Option<u64> {
    let mut table = root;
    for level in (0..4).rev() {
        let shift = 12 + 9 * level;
        let size = 1u64 << shift;
        let index = va >> shift;
        let old = read(table, index);
        if old & Bits::PRESENT.bits() == 0 {
            let possible = match level {
                0 | 1 => true,
                2 => GIGABYTE_PAGES.load(Ordering::Relaxed) != 0,
                _ => false,
            };
            if possible && (va | pa) & (size - 1) == 0 && left >= size {
                let large = if level > 0 { Bits::LARGE.bits() } else { 0 };
                write(table, index, pa | rights.bits().bits() | large);
                return Some(size);
            }
            let next = new_table()?;
            // Rights are decided by the leaf alone.
            write(table, index, next | (Bits::PRESENT | Bits::WRITE | Bits::ACCESSED).bits());
            table = next;
        } else if level == 0 || old & Bits::LARGE.bits() != 0 {
            return Some(size - (va & (size - 1)));
        } else {
            table = old & ADDRESS;
        }
    }
    None
}

/// Maps ordinary memory for reading and writing; used for stacks.
pub(super) fn map_data(address: u64, physical: u64, bytes: u64) -> Option<()> {
    let _lock = TABLES.lock();
    map(address, physical, bytes, Rights::Write)
}

/// Makes device registers reachable, uncached, and returns their address. Rounds to whole pages. Memory that is
/// mapped already (RAM, anything below 4 GiB) keeps its mapping. Panics when memory for tables runs out.
pub fn map_mmio(physical: Hpa, bytes: u64) -> *mut u8 {
    let start = physical.as_u64() & !(PAGE - 1);
    let end = (physical.as_u64() + bytes + PAGE - 1) & !(PAGE - 1);
    if end > FOUR_GIB {
        let _lock = TABLES.lock();
        map(layout::DIRECT_MAP + start, start, end - start, Rights::Device).expect("memory for page tables");
    }
    layout::direct(physical.as_u64())
}

/// Builds the final tables and switches to them.
pub(super) fn init(info: &BootInfo) {
    GIGABYTE_PAGES.store(u64::from(x86::cpuid_checked(0x8000_0001, 0).edx >> 26 & 1), Ordering::Relaxed);
    ROOT.store(new_table().expect("memory for page tables"), Ordering::Release);
    TRAMPOLINE_ROOT.store(new_table().expect("memory for page tables"), Ordering::Release);
    for (range, rights) in
        [(layout::text(), Rights::Execute), (layout::rodata(), Rights::Read), (layout::data(), Rights::Write)]
    {
        map(range.start, range.start - layout::IMAGE_BASE, range.end - range.start, rights)
            .expect("memory for page tables");
    }
    map_direct(info).expect("memory for page tables");
    // SAFETY: the new tables map the image at the same addresses with the rights its segments need, the boot stack
    // (in .bss), and the direct map that everything else is reached through.
    unsafe { x86::write_cr3(root()) };
    x86::control::flush_translations();
}

/// Makes the root on which processors start: the kernel half of the final tables, and one page below 1 MiB mapped
/// at its physical address, for execution only. Call after everything that adds to the root table itself.
pub fn trampoline_root(page: Hpa) -> Option<u64> {
    let _lock = TABLES.lock();
    let copy = TRAMPOLINE_ROOT.load(Ordering::Acquire);
    for index in 256..512 {
        write(copy, index, read(root(), index));
    }
    map_one(copy, page.as_u64(), page.as_u64(), PAGE, Rights::Execute)?;
    Some(copy)
}

/// Fills the direct map: memory cached, everything else below 4 GiB uncached, text and constants read-only.
fn map_direct(info: &BootInfo) -> Option<()> {
    let read_only = layout::read_only_physical();
    let mut edges = ArrayVec::<u64, 320>::new();
    edges.extend([0, FOUR_GIB, read_only.start, read_only.end]);
    for region in info.memory.iter().filter(|r| r.kind.is_memory()) {
        let pages = region.pages();
        edges.extend([pages.start, pages.end]);
    }
    edges.sort_unstable();
    for pair in edges.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let is_memory =
            info.memory.iter().filter(|r| r.kind.is_memory()).map(Region::pages).any(|r| r.contains(&start));
        let rights = if read_only.contains(&start) {
            Rights::Read
        } else if is_memory {
            Rights::Write
        } else if start < FOUR_GIB {
            Rights::Device
        } else {
            continue;
        };
        map(layout::DIRECT_MAP + start, start, end - start, rights)?;
    }
    Some(())
}

/// A page of the live tables.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// Where it is mapped.
    pub address: u64,
    /// What it maps.
    pub physical: u64,
    /// Bytes.
    pub bytes: u64,
    /// Writes are allowed.
    pub writable: bool,
    /// Execution is allowed.
    pub executable: bool,
}

/// Calls `visit` for every page that the processor's current tables (CR3) map.
pub fn walk_live(mut visit: impl FnMut(Leaf)) {
    walk(x86::read_cr3() & ADDRESS, 3, 0, true, true, &mut visit);
}

fn walk(table: u64, level: u32, base: u64, writable: bool, executable: bool, visit: &mut impl FnMut(Leaf)) {
    let shift = 12 + 9 * level;
    for index in 0..512u64 {
        let value = read(table, index);
        let bits = Bits::from_bits_truncate(value);
        if !bits.contains(Bits::PRESENT) {
            continue;
        }
        let mut address = base | index << shift;
        if level == 3 && index >= 256 {
            address |= 0xffff << 48;
        }
        let writable = writable && bits.contains(Bits::WRITE);
        let executable = executable && !bits.contains(Bits::NO_EXECUTE);
        if level == 0 || bits.contains(Bits::LARGE) {
            let bytes = 1 << shift;
            visit(Leaf { address, physical: value & ADDRESS & !(bytes - 1), bytes, writable, executable });
        } else {
            walk(value & ADDRESS, level - 1, address, writable, executable, visit);
        }
    }
}

/// Whether the current tables map `address`.
pub fn is_mapped(address: u64) -> bool {
    let mut table = x86::read_cr3() & ADDRESS;
    for level in (0..4).rev() {
        let value = read(table, address >> (12 + 9 * level));
        if value & Bits::PRESENT.bits() == 0 {
            return false;
        }
        if level > 0 && value & Bits::LARGE.bits() != 0 {
            return true;
        }
        table = value & ADDRESS;
    }
    true
}
