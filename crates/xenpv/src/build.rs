//! Memory as a kernel finds it when it starts, and what the hypervisor keeps in it.
//!
//! A domain's frames are one run. The first of them are the guest's, in the order of its own page numbers; the last are the hypervisor's
//! ([`Layout::hidden`]): the table from machine frames to page numbers, the page of reserved descriptors, the gate's code and its words, and
//! the page tables that show these, but for `struct shared_info`, which the guest may write.
//!
//! Source: xen.h ("start of day"), elfnote.h; the order of pages is that of Xen's tools.

use crate::abi::{GDT, INVALID_PFN, M2P, PAGE, RESERVED_DESCRIPTORS, RESERVED_GDT_PAGE, shared_info};
use crate::host::Host;
use crate::processor::{Area, MAX_PROCESSORS};
use core::fmt;
use core::ops::Range;
use sluice_gate::word;
use sluice_pagetypes::{ENTRIES, Entry, Mfn};

/// Page numbers per gigabyte: what one table of the lowest level covers of the table from frames to page numbers.
const PER_LEAF: u64 = 512 * 512;
/// Bytes that one table of the lowest level shows.
const PER_TABLE: u64 = ENTRIES as u64 * PAGE;
/// What Linux may use behind its page tables before it has its own: half a mebibyte; and where that ends, four.
const SLACK: u64 = 512 << 10;
const ALIGN: u64 = 4 << 20;

/// Memory while a domain is built. It is all zeros.
pub trait Memory {
    /// Writes bytes of consecutive frames.
    fn write(&mut self, frame: Mfn, offset: u64, bytes: &[u8]);
}

/// Why a kernel cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// It is no 64-bit ELF file for x86, or ends too early.
    Format,
    /// It has no notes of Xen's.
    NotParavirtual,
    /// It is to be at addresses that this layout does not have.
    Unsupported,
    /// It does not fit with its ramdisk and its tables.
    TooLarge,
    /// The command line has 1,024 bytes or more.
    CommandLine,
}

impl fmt::Display for BuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Format => "it is no 64-bit ELF file for x86-64, or it ends too early",
            Self::NotParavirtual => "it has no ELF notes of Xen's: it cannot run as a paravirtual guest",
            Self::Unsupported => "its ELF notes want a layout of memory that is not supported",
            Self::TooLarge => {
                "it does not fit the domain's memory with its ramdisk and page tables: give it more memory"
            }
            Self::CommandLine => "its command line is too long: a paravirtual guest takes 1,023 bytes",
        })
    }
}

/// A kernel file, taken apart. Nothing in it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image<'a> {
    file: &'a [u8],
    /// Virtual address of the first instruction.
    pub entry: u64,
    /// Virtual address of the guest's page 0.
    pub base: u64,
    /// Virtual address of the list from page numbers to frames.
    pub list: u64,
    /// Guest-physical address of the first byte after it.
    pub end: u64,
}

mod note {
    pub const ENTRY: u32 = 1;
    pub const VIRT_BASE: u32 = 3;
    pub const INIT_P2M: u32 = 15;
    pub const MOD_START_PFN: u32 = 16;
}

/// A loadable segment: what is in the file, where it goes, its bytes in memory.
struct Segment<'a> {
    bytes: &'a [u8],
    at: u64,
    len: u64,
}

impl<'a> Image<'a> {
    /// Takes an ELF file apart.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(file: &'a [u8]) -> Result<Self, BuildError> {
        let format = BuildError::Format;
        // 64-bit, little-endian; an executable for x86-64.
        if !file.starts_with(b"\x7fELF\x02\x01") || number(file, 18, 2) != Some(62) {
            return Err(format);
        }
        let mut image = Self { file, entry: 0, base: 0, list: 0, end: 0 };
        let mut module_by_page = false;
        for header in headers(file).ok_or(format)? {
            let kind = number(header, 0, 4).ok_or(format)?;
            let bytes = contents(file, header).ok_or(format)?;
            match kind {
                1 => {
                    let at = number(header, 24, 8).ok_or(format)?;
                    let len = number(header, 40, 8).ok_or(format)?.max(bytes.len() as u64);
                    let end = at.checked_add(len).filter(|end| *end < 1 << 40).ok_or(BuildError::TooLarge)?;
                    image.end = image.end.max(end);
                }
                4 => notes(bytes, |kind, value| match kind {
                    note::ENTRY => image.entry = value,
                    note::VIRT_BASE => image.base = value,
                    note::INIT_P2M => image.list = value,
                    note::MOD_START_PFN => module_by_page = value != 0,
                    _ => {}
                }),
                _ => {}
            }
        }
        if image.entry == 0 || image.base == 0 {
            return Err(BuildError::NotParavirtual);
        }
        // The kernel's own half of addresses; the list elsewhere, in a part of its own.
        let own = image.base >> 39 == u64::MAX >> 39 && image.base.is_multiple_of(1 << 30);
        let apart = image.list >> 47 == 0 && image.list.is_multiple_of(1 << 39) && image.list != 0;
        if own && apart && module_by_page { Ok(image) } else { Err(BuildError::Unsupported) }
    }

    fn segments(&self) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        let file = self.file;
        let loadable = headers(file).into_iter().flatten().filter(|header| number(header, 0, 4) == Some(1));
        loadable.filter_map(move |header| {
            let bytes = contents(file, header)?;
            let len = number(header, 40, 8)?.max(bytes.len() as u64);
            Some(Segment { bytes, at: number(header, 24, 8)?, len })
        })
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..len)?.copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(word))
}

fn headers(file: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let start = usize::try_from(number(file, 32, 8)?).ok()?;
    let (size, count) = (number(file, 54, 2)? as usize, number(file, 56, 2)? as usize);
    let table = file.get(start..start.checked_add(size.checked_mul(count)?)?)?;
    (size >= 56).then(|| table.chunks_exact(size))
}

fn contents<'a>(file: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    let start = usize::try_from(number(header, 8, 8)?).ok()?;
    let len = usize::try_from(number(header, 32, 8)?).ok()?;
    file.get(start..start.checked_add(len)?)
}

/// Gives the numbers of Xen's notes.
fn notes(bytes: &[u8], mut each: impl FnMut(u32, u64)) {
    let mut at = 0usize;
    while let (Some(name), Some(len), Some(kind)) =
        (number(bytes, at, 4), number(bytes, at + 4, 4), number(bytes, at + 8, 4))
    {
        let (name, len) = (name as usize, len as usize);
        let value = at + 12 + name.next_multiple_of(4);
        let is_xen = bytes.get(at + 12..at + 12 + name) == Some(b"Xen\0");
        if let Some(word) = number(bytes, value, len.min(8)).filter(|_| is_xen) {
            each(kind as u32, word);
        }
        at = value + len.next_multiple_of(4);
    }
}

/// Where the frames of a domain are and what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    first: u64,
    frames: u64,
    pages: u64,
    processors: u32,
}

/// What a domain was built as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The guest's pages.
    pub pages: u64,
    /// Root of the kernel's page tables.
    pub root: Mfn,
    /// Virtual address of the kernel's first instruction.
    pub entry: u64,
    /// Virtual address of `struct start_info`.
    pub start_info: u64,
    /// Virtual address of the first stack.
    pub stack: u64,
    /// `struct shared_info`.
    pub shared_info: Mfn,
    /// The console's ring.
    pub console: Mfn,
    /// Processors.
    pub(crate) processors: u32,
    pub(crate) reserved_gdt: Mfn,
    gdt_tables: Mfn,
    /// Those of the first processor; the others' follow.
    gate_words: Mfn,
    hole: [(usize, Mfn); 2],
    m2p: Mfn,
    first: u64,
    frames: u64,
}

impl Layout {
    /// That of a domain of `frames` frames from `first` on and so many processors, 1 to [`MAX_PROCESSORS`]. `None`: the frames are too few, or the
    /// processors too many.
    pub fn new(first: Mfn, frames: u64, processors: u32) -> Option<Self> {
        if !(1..=MAX_PROCESSORS).contains(&processors) {
            return None;
        }
        let mut layout = Self { first: first.0, frames, pages: 0, processors };
        layout.pages = frames.checked_sub(1 + layout.hypervisors())?;
        Some(layout)
    }

    /// The first frame.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Frames, with those of the hypervisor's.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The frames of the hypervisor's, which the guest must not name.
    pub fn hidden(&self) -> Range<u64> {
        // The frame before them is struct shared_info.
        let start = self.first + self.pages + 1;
        start..self.first + self.frames
    }

    /// Pages of the table from frames to page numbers that concern the domain, by their place in it.
    fn m2p_pages(&self) -> Range<u64> {
        self.first / 512..(self.first + self.frames).div_ceil(512)
    }

    /// Tables of the lowest level that show them.
    fn m2p_leaves(&self) -> Range<u64> {
        self.first / PER_LEAF..(self.first + self.frames).div_ceil(PER_LEAF)
    }

    fn hypervisors(&self) -> u64 {
        let count = |range: Range<u64>| range.end - range.start;
        // Reserved descriptors, the gate's code and words; tables of three levels for both parts of the hole.
        2 + u64::from(self.processors)
            + 2
            + self.gdt_leaves()
            + 2
            + count(self.m2p_leaves())
            + count(self.m2p_pages())
    }

    /// Tables of the lowest level that show descriptors and the gate to all processors.
    fn gdt_leaves(&self) -> u64 {
        (u64::from(self.processors) * Area::STRIDE).div_ceil(PER_TABLE)
    }

    /// Builds memory: the kernel, what it is told (its command line, and whether it is the initial domain's), its page tables, and what is the hypervisor's.
    ///
    /// # Errors
    /// Says why it cannot be started.
    pub fn build(
        &self,
        memory: &mut impl Memory,
        image: &Image<'_>,
        (cmdline, initial): (&str, bool),
        ramdisk: &[u8],
        wall_clock: &[u8],
    ) -> Result<Built, BuildError> {
        let kernel = image.end.div_ceil(PAGE);
        let (store, console, root) = (kernel + 1, kernel + 2, kernel + 3);
        // Tables of the lowest level for what they map, themselves included.
        let mut leaves = 0;
        let end = loop {
            let end = ((root + 3 + leaves + 1) * PAGE + SLACK).next_multiple_of(ALIGN) / PAGE;
            if end.div_ceil(512) == leaves {
                break end;
            }
            leaves = end.div_ceil(512);
        };
        let tables = 3 + leaves;
        let stack = root + tables;
        // One page of the list has 512 page numbers; its tables come after it.
        let list = self.pages.div_ceil(512);
        let list_leaves = list.div_ceil(512);
        let module = end + list + 2 + list_leaves;
        let module_pages = (ramdisk.len() as u64).div_ceil(PAGE);
        let used = module.checked_add(module_pages).ok_or(BuildError::TooLarge)?;
        // The tables of the second level are one each.
        if used + 1024 > self.pages || leaves > 512 || list_leaves > 512 {
            return Err(BuildError::TooLarge);
        }
        // Nothing is written before it is known to fit.
        let mut built = self.hole(memory);
        for segment in image.segments() {
            memory.write(Mfn(self.first), segment.at, segment.bytes);
            debug_assert!(segment.at + segment.len <= image.end);
        }
        memory.write(self.frame(module), 0, ramdisk);
        let mut put = |table: u64, index: u64, to: u64, flags: Entry| {
            let entry = Entry::new(self.frame(to), flags | Entry::PRESENT | Entry::USER);
            memory.write(self.frame(table), index * 8, &entry.bits().to_le_bytes());
        };
        let (upper, middle) = (root + 1, root + 2);
        put(root, image.base >> 39 & 511, upper, Entry::WRITE);
        put(upper, image.base >> 30 & 511, middle, Entry::WRITE);
        for leaf in 0..leaves {
            put(middle, leaf, middle + 1 + leaf, Entry::WRITE);
        }
        for page in 0..end {
            let is_table = (root..stack).contains(&page);
            let rights = if is_table { Entry::empty() } else { Entry::WRITE };
            put(middle + 1 + page / 512, page % 512, page, rights);
        }
        let (upper, middle) = (end + list, end + list + 1);
        put(root, image.list >> 39 & 511, upper, Entry::WRITE);
        put(upper, 0, middle, Entry::WRITE);
        for leaf in 0..list_leaves {
            put(middle, leaf, middle + 1 + leaf, Entry::WRITE);
        }
        for page in 0..list {
            put(middle + 1 + page / 512, page % 512, end + page, Entry::WRITE);
        }
        for page in 0..self.pages {
            memory.write(self.frame(end), page * 8, &(self.first + page).to_le_bytes());
        }
        let info = StartInfo {
            pages: self.pages,
            shared_info: built.shared_info.0 * PAGE,
            store: self.frame(store).0,
            console: self.frame(console).0,
            tables: image.base + root * PAGE,
            table_count: tables,
            list: image.list,
            module,
            module_len: ramdisk.len() as u64,
            first_list_page: end,
            list_pages: module - end,
            initial,
        };
        let bytes = info.bytes(cmdline).ok_or(BuildError::CommandLine)?;
        memory.write(self.frame(kernel), 0, &bytes);
        memory.write(built.shared_info, shared_info::WALL_CLOCK as u64, wall_clock);
        built.root = self.frame(root);
        built.console = self.frame(console);
        built.entry = image.entry;
        built.start_info = image.base + kernel * PAGE;
        built.stack = image.base + (stack + 1) * PAGE;
        Ok(built)
    }

    /// The frame of a page of the guest's.
    fn frame(&self, page: u64) -> Mfn {
        Mfn(self.first + page)
    }

    /// Builds what is the hypervisor's.
    fn hole(&self, memory: &mut impl Memory) -> Built {
        let mut next = self.hidden().start;
        let mut take = |count: u64| {
            next += count;
            Mfn(next - count)
        };
        let (descriptors, gate, gate_words) = (take(1), take(1), take(self.processors.into()));
        let (upper, middle) = (take(1), take(1));
        let (gdt_upper, gdt_middle, gdt_tables) = (take(1), take(1), take(self.gdt_leaves()));
        let leaves = self.m2p_leaves();
        let first_leaf = take(leaves.end - leaves.start);
        let pages = self.m2p_pages();
        let m2p = take(pages.end - pages.start);
        debug_assert!(next == self.hidden().end);
        let mut put = |table: Mfn, index: u64, to: Mfn, flags: Entry| {
            let entry = Entry::new(to, flags | Entry::PRESENT);
            memory.write(table, index * 8, &entry.bits().to_le_bytes());
        };
        let (way, no_execute) = (Entry::USER | Entry::WRITE, Entry::from_bits_retain(1 << 63));
        let page = |address: u64, shift: u32| address >> shift & 511;
        // The room for the table is 256 GiB: one table of the second level shows 512 GiB of frames' numbers.
        put(upper, page(M2P, 30) + leaves.start / 512, middle, way);
        for (leaf, number) in leaves.clone().zip(first_leaf.0..) {
            put(middle, leaf % 512, Mfn(number), way);
        }
        for (at, number) in pages.zip(m2p.0..) {
            let leaf = Mfn(first_leaf.0 + at / 512 - leaves.start);
            put(leaf, at % 512, Mfn(number), Entry::USER | no_execute);
        }
        put(gdt_upper, page(GDT, 30), gdt_middle, way);
        for leaf in 0..self.gdt_leaves() {
            put(gdt_middle, page(GDT, 21) + leaf, Mfn(gdt_tables.0 + leaf), way);
        }
        for (index, descriptor) in RESERVED_DESCRIPTORS {
            memory.write(descriptors, index as u64 * 8, &descriptor.to_le_bytes());
        }
        memory.write(gate, 0, sluice_gate::code());
        let built = Built {
            pages: self.pages,
            root: Mfn(0),
            entry: 0,
            start_info: 0,
            stack: 0,
            shared_info: Mfn(self.first + self.pages),
            console: Mfn(0),
            processors: self.processors,
            reserved_gdt: descriptors,
            gdt_tables,
            gate_words,
            hole: [(page(M2P, 39) as usize, upper), (page(GDT, 39) as usize, gdt_upper)],
            m2p,
            first: self.first,
            frames: self.frames,
        };
        (0..self.processors).for_each(|processor| built.processor(memory, processor, gate));
        let start = self.m2p_pages().start * 512;
        for number in start..self.m2p_pages().end * 512 {
            let page = number.checked_sub(self.first).filter(|page| *page < self.pages);
            let value = page.unwrap_or(INVALID_PFN);
            memory.write(m2p, (number - start) * 8, &value.to_le_bytes());
        }
        built
    }
}

impl Built {
    /// Builds what the hypervisor has for a processor, all of whose gates are the same code.
    fn processor(&self, memory: &mut impl Memory, processor: u32, gate: Mfn) {
        let (area, words) = (Area::of(processor), self.gate_words(processor));
        let no_execute = Entry::from_bits_retain(1 << 63);
        // The gate is no user's: the processor is at privilege level 0 when it comes there.
        let pages = [
            (area.gdt() + RESERVED_GDT_PAGE as u64 * PAGE, self.reserved_gdt, no_execute),
            (area.gate(), gate, Entry::empty()),
            (area.gate_words(), words, Entry::WRITE | no_execute),
            (area.info(), self.shared_info, Entry::WRITE | no_execute),
        ];
        for (address, frame, flags) in pages {
            let (table, index) = self.entry_of(address);
            let entry = Entry::new(frame, flags | Entry::PRESENT);
            memory.write(table, index as u64 * 8, &entry.bits().to_le_bytes());
        }
        let at = area.gate() + sluice_gate::fault();
        // A gate of privilege level 0 for interrupts, by the first of the stacks that the task's state has (APM vol 2, 4.8.4).
        let fault = u128::from(
            at & 0xffff | u64::from(sluice_gate::GATE_CODE) << 16 | 0x8e01 << 32 | (at >> 16 & 0xffff) << 48,
        ) | u128::from(at >> 32) << 64;
        memory.write(words, (word::IDT + 14 * 16) as u64, &fault.to_le_bytes());
        let stack = area.gate_words() + word::STACK as u64;
        memory.write(words, word::IST as u64, &stack.to_le_bytes());
    }

    /// The gate's words of a processor.
    pub(crate) fn gate_words(&self, processor: u32) -> Mfn {
        Mfn(self.gate_words.0 + u64::from(processor))
    }

    /// Where the entry of an address is at which the hypervisor has something for a processor.
    fn entry_of(&self, address: u64) -> (Mfn, usize) {
        let page = (address - GDT / PER_TABLE * PER_TABLE) / PAGE;
        (Mfn(self.gdt_tables.0 + page / ENTRIES as u64), page as usize % ENTRIES)
    }

    /// The hypervisor's entries of a table of the highest level: place, value.
    pub fn hole(&self) -> [(usize, u64); 2] {
        self.hole.map(|(index, table)| {
            (index, Entry::new(table, Entry::PRESENT | Entry::WRITE | Entry::USER).bits())
        })
    }

    /// The last frame that the guest may look up.
    pub fn last_frame(&self) -> Mfn {
        Mfn(self.first + self.frames - 1)
    }

    /// Shows a frame as a page of a descriptor table that begins there, or none. Nobody can write it there.
    pub(crate) fn show_descriptors(&self, host: &mut impl Host, table: u64, page: usize, frame: Option<Mfn>) {
        let read_only = Entry::from_bits_retain(1 << 63) | Entry::PRESENT;
        let entry = frame.map_or(0, |frame| Entry::new(frame, read_only).bits());
        let (table, index) = self.entry_of(table + page as u64 * PAGE);
        host.write(table, index * 8, &entry.to_le_bytes());
    }

    /// Has a processor's gate find the guest's `struct vcpu_info` in this frame.
    pub(crate) fn show_info(&self, host: &mut impl Host, area: Area, frame: Mfn) {
        let data = Entry::from_bits_retain(1 << 63) | Entry::PRESENT | Entry::WRITE;
        let (table, index) = self.entry_of(area.info());
        host.write(table, index * 8, &Entry::new(frame, data).bits().to_le_bytes());
    }

    /// Says which page number the guest gives to a frame of its own.
    pub(crate) fn set_m2p(&self, host: &mut impl Host, frame: Mfn, page: u64) {
        // The table begins with the page that has the domain's first frame.
        let index = frame.0 - self.first / 512 * 512;
        host.write(Mfn(self.m2p.0 + index / 512), (index % 512) as usize * 8, &page.to_le_bytes());
    }
}

/// `struct start_info`.
struct StartInfo {
    pages: u64,
    shared_info: u64,
    store: u64,
    console: u64,
    tables: u64,
    table_count: u64,
    list: u64,
    module: u64,
    module_len: u64,
    first_list_page: u64,
    list_pages: u64,
    /// It is the initial domain's.
    initial: bool,
}

impl StartInfo {
    /// SIF_MOD_START_PFN, SIF_VIRT_P2M_4TOOLS.
    const FLAGS: u64 = 1 << 3 | 1 << 4;
    /// SIF_PRIVILEGED, SIF_INITDOMAIN.
    const INITIAL: u64 = 1 << 0 | 1 << 1;
    /// Its bytes.
    const SIZE: usize = 1168;
    /// `struct dom0_vga_console_info`: XEN_VGATYPE_TEXT_MODE_3 of no rows and columns, since there is no screen.
    const SCREEN: [u8; 16] = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// Bytes of `cmd_line`.
    const COMMAND_LINE: usize = 1024;

    fn bytes(&self, cmdline: &str) -> Option<[u8; Self::SIZE + Self::SCREEN.len()]> {
        let mut bytes = [0; Self::SIZE + Self::SCREEN.len()];
        let mut put = |at: usize, value: u64| {
            if let Some(room) = bytes.get_mut(at..at + 8) {
                room.copy_from_slice(&value.to_le_bytes());
            }
        };
        put(32, self.pages);
        put(40, self.shared_info);
        put(48, Self::FLAGS | if self.initial { Self::INITIAL } else { 0 });
        put(56, self.store);
        // No channel to a store: the guest knows that there is none.
        put(64, 0);
        if self.initial {
            // Where it is said what a screen shows, and how many bytes say so.
            put(72, Self::SIZE as u64 | (Self::SCREEN.len() as u64) << 32);
        } else {
            put(72, self.console);
            put(80, u64::from(crate::events::CONSOLE));
        }
        put(88, self.tables);
        put(96, self.table_count);
        put(104, self.list);
        put(112, if self.module_len == 0 { 0 } else { self.module });
        put(120, self.module_len);
        put(128 + Self::COMMAND_LINE, self.first_list_page);
        put(136 + Self::COMMAND_LINE, self.list_pages);
        bytes.get_mut(Self::SIZE..)?.copy_from_slice(&Self::SCREEN);
        bytes.get_mut(..16)?.copy_from_slice(b"xen-3.0-x86_64\0\0");
        let room = bytes.get_mut(128..128 + Self::COMMAND_LINE - 1)?;
        room.get_mut(..cmdline.len())?.copy_from_slice(cmdline.as_bytes());
        Some(bytes)
    }
}
