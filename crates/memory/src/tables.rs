//! Page tables as trees of 512-entry tables: one algorithm for every format that looks so.
//!
//! Key types: [`Tables`], [`Format`]. [`NestedTables`] are those of processors ([`LongMode`]); the IOMMUs' formats are in
//! `sluice_iommu`. What formats have in common: tables of one page, 9 address bits a level, entries of 8 bytes,
//! 0 for nothing.

use crate::{Hpa, PAGE_SIZE, PhysicalMemory};
use bitflags::bitflags;
use core::fmt::Debug;

bitflags! {
    /// What may be done to a page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Read it. For a processor, nothing is mapped without it.
        const READ = 1;
        /// Write it.
        const WRITE = 2;
        /// Run code in it; means nothing to a device.
        const EXECUTE = 4;
        /// It is not memory: no caching.
        const UNCACHED = 8;
    }
}

/// Why a change of the tables failed. What was done before the failure stays done: translations must be flushed
/// unless the error is `BadRange`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Not whole pages, or beyond what the tables can express.
    BadRange,
    /// No memory for a table.
    OutOfMemory,
}

/// Where tables come from.
pub trait TableFrames: PhysicalMemory {
    /// A cleared frame.
    fn allocate_table(&mut self) -> Option<Hpa>;
    /// Takes a frame back. Whoever uses the tables may still walk it until translations are flushed: where they are
    /// in use, the frame must not be used again before that.
    fn free_table(&mut self, frame: Hpa);
}

/// An entry, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing is mapped.
    Absent,
    /// A page of the level's size begins there.
    Leaf(Hpa, Access),
    /// The table of the next lower level is there.
    Table(Hpa),
}

/// How the entries of a tree are written.
pub trait Format: Copy + Debug {
    /// Levels of the tree, 1-6. The lowest, whose entries are small pages, is 1; the root is at this level.
    fn levels(self) -> u32;
    /// The highest level at which a page can be mapped, 1 (4 KiB) to 3 (1 GiB).
    fn largest_leaf(self) -> u32;
    /// The entry of a page at `level`, whose address is a multiple of the level's size. 0 where `access` allows nothing.
    fn leaf(self, hpa: Hpa, access: Access, level: u32) -> u64;
    /// The entry at `level` of a table of the level below.
    fn table(self, table: Hpa, level: u32) -> u64;
    /// What an entry at `level` means, if `leaf` or `table` made it.
    fn decode(self, entry: u64, level: u32) -> Entry;
}

/// Nested page tables, in AMD's long-mode format.
///
/// Source: APM vol 2, 5.3 (long-mode paging) and 15.25.5 (nested tables: every access is a user
/// access, so that each entry has U/S set).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongMode;

impl LongMode {
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 1 << 1;
    const USER: u64 = 1 << 2;
    const WRITE_THROUGH: u64 = 1 << 3;
    const CACHE_DISABLE: u64 = 1 << 4;
    const LARGE: u64 = 1 << 7;
    const NO_EXECUTE: u64 = 1 << 63;
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

impl Format for LongMode {
    fn levels(self) -> u32 {
        4
    }

    fn largest_leaf(self) -> u32 {
        3
    }

    fn leaf(self, hpa: Hpa, access: Access, level: u32) -> u64 {
        if !access.contains(Access::READ) {
            return 0;
        }
        let mut entry = hpa.as_u64() | Self::PRESENT | Self::USER;
        if access.contains(Access::WRITE) {
            entry |= Self::WRITABLE;
        }
        if !access.contains(Access::EXECUTE) {
            entry |= Self::NO_EXECUTE;
        }
        if access.contains(Access::UNCACHED) {
            entry |= Self::CACHE_DISABLE | Self::WRITE_THROUGH;
        }
        if level > 1 { entry | Self::LARGE } else { entry }
    }

    fn table(self, table: Hpa, _: u32) -> u64 {
        table.as_u64() | Self::PRESENT | Self::WRITABLE | Self::USER
    }

    fn decode(self, entry: u64, level: u32) -> Entry {
        if entry & Self::PRESENT == 0 {
            return Entry::Absent;
        }
        if level > 1 && entry & Self::LARGE == 0 {
            return Entry::Table(Hpa::new(entry & Self::ADDRESS));
        }
        let mut access = Access::READ;
        access.set(Access::WRITE, entry & Self::WRITABLE != 0);
        access.set(Access::EXECUTE, entry & Self::NO_EXECUTE == 0);
        access.set(Access::UNCACHED, entry & Self::CACHE_DISABLE != 0);
        Entry::Leaf(Hpa::new(entry & Self::ADDRESS & !(span(level) - 1)), access)
    }
}

/// The nested page tables of one guest, by guest-physical address.
pub type NestedTables = Tables<LongMode>;

/// Bytes that one entry covers at a level (1 is the lowest).
const fn span(level: u32) -> u64 {
    1 << (12 + 9 * (level - 1))
}

fn slot(table: Hpa, at: u64, level: u32) -> Hpa {
    Hpa::new(table.as_u64() + (at / span(level) % 512) * 8)
}

/// What to do with the pages of a range.
#[derive(Clone, Copy)]
enum Change {
    Map { offset: u64, access: Access },
    Unmap,
    Protect(Access),
}

/// A tree of tables. Input addresses are numbers here: what space they are of, the owner knows.
#[derive(Debug)]
pub struct Tables<F: Format> {
    format: F,
    root: Hpa,
}

impl NestedTables {
    /// Empty tables.
    pub fn new(frames: &mut impl TableFrames) -> Option<Self> {
        Self::with_format(LongMode, frames)
    }
}

impl<F: Format> Tables<F> {
    /// Empty tables of a format.
    pub fn with_format(format: F, frames: &mut impl TableFrames) -> Option<Self> {
        Some(Self { format, root: frames.allocate_table()? })
    }

    /// The table of the highest level.
    pub fn root(&self) -> Hpa {
        self.root
    }

    /// Maps a range, with the largest pages that fit; replaces what was there.
    /// Returns whether something was mapped before, so that translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(
        &mut self,
        frames: &mut impl TableFrames,
        at: impl Into<u64>,
        hpa: Hpa,
        len: u64,
        access: Access,
    ) -> Result<bool, MapError> {
        let at = at.into();
        // Higher bits of an entry are not address bits.
        if !hpa.is_aligned(PAGE_SIZE) || hpa.checked_add(len).is_none_or(|end| end.as_u64() > 1 << 52) {
            return Err(MapError::BadRange);
        }
        self.change(frames, at, len, Change::Map { offset: hpa.as_u64().wrapping_sub(at), access })
    }

    /// Unmaps a range. Returns whether translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`]; splitting a large page takes memory.
    pub fn unmap(
        &mut self,
        frames: &mut impl TableFrames,
        at: impl Into<u64>,
        len: u64,
    ) -> Result<bool, MapError> {
        self.change(frames, at.into(), len, Change::Unmap)
    }

    /// Changes the rights of what is mapped in a range. Returns whether translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`]; splitting a large page takes memory.
    pub fn protect(
        &mut self,
        frames: &mut impl TableFrames,
        at: impl Into<u64>,
        len: u64,
        access: Access,
    ) -> Result<bool, MapError> {
        self.change(frames, at.into(), len, Change::Protect(access))
    }

    /// Where an address leads, what may be done there, and how large its page is.
    pub fn lookup(&self, memory: &impl PhysicalMemory, at: impl Into<u64>) -> Option<(Hpa, Access, u64)> {
        let at = at.into();
        let mut table = self.root;
        for level in (1..=self.format.levels()).rev() {
            match self.format.decode(memory.read_u64(slot(table, at, level)), level) {
                Entry::Absent => return None,
                Entry::Leaf(hpa, access) => {
                    return Some((Hpa::new(hpa.as_u64() + at % span(level)), access, span(level)));
                }
                Entry::Table(next) => table = next,
            }
        }
        None
    }

    /// Shows every mapped page: its address, where it is, its bytes and rights.
    pub fn visit(&self, memory: &impl PhysicalMemory, show: &mut impl FnMut(u64, Hpa, u64, Access)) {
        visit_tree(memory, self.format, self.root, 0, self.format.levels(), show);
    }

    /// Gives all tables back.
    pub fn release(self, frames: &mut impl TableFrames) {
        free_tree(frames, self.format, self.root, self.format.levels());
    }

    fn change(
        &self,
        frames: &mut impl TableFrames,
        start: u64,
        len: u64,
        change: Change,
    ) -> Result<bool, MapError> {
        let end = start.checked_add(len).ok_or(MapError::BadRange)?;
        let top = self.format.levels();
        // Six levels are more than 64 bits.
        let limit = 1u64.checked_shl(12 + 9 * top).unwrap_or(u64::MAX);
        if !start.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) || end > limit {
            return Err(MapError::BadRange);
        }
        if len == PAGE_SIZE {
            // Nothing above its own entry is changed for a page where there are tables, as there nearly always are.
            let from = self.descend(frames, start);
            return change_one(frames, self.format, from, start, end, change).map(|(_, replaced)| replaced);
        }
        let mut at = start;
        let mut flush = false;
        while at < end {
            let from = (self.root, self.format.levels());
            let (done, replaced) = change_one(frames, self.format, from, at, end, change)?;
            flush |= replaced;
            at += done;
        }
        Ok(flush)
    }

    /// The lowest table on the way to an address, and its level.
    fn descend(&self, memory: &impl PhysicalMemory, at: u64) -> (Hpa, u32) {
        let (mut table, mut level) = (self.root, self.format.levels());
        while level > 1
            && let Entry::Table(next) = self.format.decode(memory.read_u64(slot(table, at, level)), level)
        {
            (table, level) = (next, level - 1);
        }
        (table, level)
    }
}

/// Changes one entry, as high as it can be in a table of a level, or below. Returns the bytes it covers and whether it was present.
fn change_one<F: Format>(
    frames: &mut impl TableFrames,
    format: F,
    (mut table, mut level): (Hpa, u32),
    at: u64,
    end: u64,
    change: Change,
) -> Result<(u64, bool), MapError> {
    loop {
        let place = slot(table, at, level);
        let entry = format.decode(frames.read_u64(place), level);
        let size = span(level);
        let whole = at.is_multiple_of(size) && end - at >= size;
        match (change, entry) {
            (Change::Map { offset, access }, _)
                if whole
                    && level <= format.largest_leaf()
                    && at.wrapping_add(offset).is_multiple_of(size) =>
            {
                let hpa = Hpa::new(at.wrapping_add(offset));
                frames.write_u64(place, format.leaf(hpa, access, level));
                if let Entry::Table(below) = entry {
                    free_tree(frames, format, below, level - 1);
                }
                return Ok((size, entry != Entry::Absent));
            }
            (Change::Unmap | Change::Protect(_), Entry::Absent) => {
                // Nothing here: go on after this entry.
                return Ok(((size - at % size).min(end - at), false));
            }
            (Change::Unmap, _) if whole => {
                frames.write_u64(place, 0);
                if let Entry::Table(below) = entry {
                    free_tree(frames, format, below, level - 1);
                }
                return Ok((size, true));
            }
            (Change::Protect(access), Entry::Leaf(hpa, _)) if whole => {
                frames.write_u64(place, format.leaf(hpa, access, level));
                return Ok((size, true));
            }
            _ => {}
        }
        table = match entry {
            Entry::Table(next) => next,
            Entry::Absent | Entry::Leaf(..) => split(frames, format, place, entry, level)?,
        };
        level -= 1;
    }
}

/// Puts a table where nothing or a large page is, with the same mapping.
fn split<F: Format>(
    frames: &mut impl TableFrames,
    format: F,
    place: Hpa,
    entry: Entry,
    level: u32,
) -> Result<Hpa, MapError> {
    let table = frames.allocate_table().ok_or(MapError::OutOfMemory)?;
    if let Entry::Leaf(hpa, access) = entry {
        for index in 0..512 {
            let part = Hpa::new(hpa.as_u64() + index * span(level - 1));
            let part = format.leaf(part, access, level - 1);
            frames.write_u64(Hpa::new(table.as_u64() + index * 8), part);
        }
    }
    frames.write_u64(place, format.table(table, level));
    Ok(table)
}

fn visit_tree<F: Format>(
    memory: &impl PhysicalMemory,
    format: F,
    table: Hpa,
    base: u64,
    level: u32,
    show: &mut impl FnMut(u64, Hpa, u64, Access),
) {
    for index in 0..512u64 {
        // Six levels are more than 64 bits: most of the sixth level's entries mean nothing.
        let at = base.wrapping_add(index.wrapping_mul(span(level)));
        match format.decode(memory.read_u64(Hpa::new(table.as_u64() + index * 8)), level) {
            Entry::Absent => {}
            Entry::Leaf(hpa, access) => show(at, hpa, span(level), access),
            Entry::Table(next) => visit_tree(memory, format, next, at, level - 1, show),
        }
    }
}

fn free_tree<F: Format>(frames: &mut impl TableFrames, format: F, table: Hpa, level: u32) {
    if level > 1 {
        for index in 0..512 {
            let entry = frames.read_u64(Hpa::new(table.as_u64() + index * 8));
            if let Entry::Table(below) = format.decode(entry, level) {
                free_tree(frames, format, below, level - 1);
            }
        }
    }
    frames.free_table(table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpa, HUGE_PAGE, LARGE_PAGE};
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::vec::Vec;
    use core::cell::RefCell;
    use proptest::prelude::*;

    /// Table frames only: words by address, and which frames are in use.
    struct Frames {
        words: RefCell<BTreeMap<u64, u64>>,
        used: BTreeSet<u64>,
        next: u64,
        left: usize,
    }

    impl Frames {
        fn new() -> Self {
            Self { words: RefCell::default(), used: BTreeSet::new(), next: 0x10_0000, left: usize::MAX }
        }

        fn check(&self, at: Hpa) -> u64 {
            assert!(
                at.is_aligned(8) && self.used.contains(&(at.as_u64() & !0xfff)),
                "{at:?} is no table in use"
            );
            at.as_u64()
        }
    }

    impl PhysicalMemory for Frames {
        fn read(&self, _: Hpa, _: &mut [u8]) {
            unreachable!("tables are read by the word");
        }
        fn write(&self, _: Hpa, _: &[u8]) {
            unreachable!("tables are written by the word");
        }
        fn fill(&self, _: Hpa, _: u64, _: u8) {
            unreachable!("tables come cleared");
        }
        fn read_u64(&self, at: Hpa) -> u64 {
            self.words.borrow().get(&self.check(at)).copied().unwrap_or(0)
        }
        fn write_u64(&self, at: Hpa, value: u64) {
            self.words.borrow_mut().insert(self.check(at), value);
        }
    }

    impl TableFrames for Frames {
        fn allocate_table(&mut self) -> Option<Hpa> {
            self.left = self.left.checked_sub(1)?;
            self.next += 0x1000;
            self.used.insert(self.next);
            Some(Hpa::new(self.next))
        }
        fn free_table(&mut self, frame: Hpa) {
            assert!(self.used.remove(&frame.as_u64()), "{frame:?} freed twice");
            self.words.borrow_mut().retain(|at, _| at & !0xfff != frame.as_u64());
        }
    }

    /// What the processor would do with an address: rights are the AND of all levels (APM vol 2, 5.6), bits 51:12
    /// are the address, bit 7 ends the walk at the second and third level, and a nested access is a user access.
    fn processor(frames: &Frames, root: Hpa, gpa: u64) -> Option<(u64, bool, bool)> {
        let field = |entry: u64, low: u32| entry >> low << (low + 12) >> 12;
        let word = |table: u64, index: u64| frames.read_u64(Hpa::new(table + 8 * (index & 0x1ff)));
        let (mut write, mut execute) = (true, true);
        let mut rights = |entry: u64| {
            write &= entry & 2 != 0;
            execute &= entry >> 63 == 0;
            entry & 5 == 5
        };
        let pml4e = word(root.as_u64(), gpa >> 39);
        if !rights(pml4e) {
            return None;
        }
        assert_eq!(pml4e & 0x80, 0, "bit 7 of a PML4E is reserved");
        let pdpe = word(field(pml4e, 12), gpa >> 30);
        if !rights(pdpe) {
            return None;
        }
        if pdpe & 0x80 != 0 {
            assert_eq!(pdpe & 0x3fff_e000, 0, "reserved bits of a 1 GiB page");
            return Some((field(pdpe, 30) | gpa & 0x3fff_ffff, write, execute));
        }
        let pde = word(field(pdpe, 12), gpa >> 21);
        if !rights(pde) {
            return None;
        }
        if pde & 0x80 != 0 {
            assert_eq!(pde & 0x1f_e000, 0, "reserved bits of a 2 MiB page");
            return Some((field(pde, 21) | gpa & 0x1f_ffff, write, execute));
        }
        let pte = word(field(pde, 12), gpa >> 12);
        rights(pte).then(|| (field(pte, 12) | gpa & 0xfff, write, execute))
    }

    const RWX: Access = Access::READ.union(Access::WRITE).union(Access::EXECUTE);

    #[test]
    fn the_largest_pages_that_fit_and_all_tables_back() {
        let mut frames = Frames::new();
        let mut tables = NestedTables::new(&mut frames).unwrap();
        let (gpa, hpa) = (HUGE_PAGE - LARGE_PAGE - PAGE_SIZE, 5 * HUGE_PAGE - LARGE_PAGE - PAGE_SIZE);
        let len = HUGE_PAGE + 2 * LARGE_PAGE + 2 * PAGE_SIZE;
        assert_eq!(tables.map(&mut frames, Gpa::new(gpa), Hpa::new(hpa), len, RWX), Ok(false));
        let size = |at: u64| tables.lookup(&frames, Gpa::new(at)).unwrap().2;
        assert_eq!(size(gpa), PAGE_SIZE);
        assert_eq!(size(gpa + PAGE_SIZE), LARGE_PAGE);
        assert_eq!(size(HUGE_PAGE), HUGE_PAGE);
        assert_eq!(size(2 * HUGE_PAGE), LARGE_PAGE);
        assert_eq!(size(gpa + len - 1), PAGE_SIZE);
        // One page out of the middle of a huge page: its neighbours stay, as they were.
        assert_eq!(tables.unmap(&mut frames, Gpa::new(HUGE_PAGE + 0x5000), PAGE_SIZE), Ok(true));
        assert_eq!(processor(&frames, tables.root(), HUGE_PAGE + 0x5000), None);
        for neighbour in [HUGE_PAGE + 0x4fff, HUGE_PAGE + 0x6000, 2 * HUGE_PAGE - 1] {
            assert_eq!(
                processor(&frames, tables.root(), neighbour),
                Some((neighbour + 4 * HUGE_PAGE, true, true))
            );
        }
        tables.release(&mut frames);
        assert!(frames.used.is_empty());
    }

    #[test]
    fn devices_are_uncached_and_bad_ranges_are_refused() {
        let mut frames = Frames::new();
        let mut tables = NestedTables::new(&mut frames).unwrap();
        let device = Access::READ | Access::WRITE | Access::UNCACHED;
        tables.map(&mut frames, Gpa::new(0xfee0_0000), Hpa::new(0xfee0_0000), LARGE_PAGE, device).unwrap();
        let (_, access, size) = tables.lookup(&frames, Gpa::new(0xfee0_1234)).unwrap();
        assert_eq!((access, size), (device, LARGE_PAGE));
        let mut map =
            |gpa: u64, hpa: u64, len: u64| tables.map(&mut frames, Gpa::new(gpa), Hpa::new(hpa), len, RWX);
        let bad = Err(MapError::BadRange);
        assert_eq!(map(1, 0, PAGE_SIZE), bad);
        assert_eq!(map(0, 1, PAGE_SIZE), bad);
        assert_eq!(map(0, 0, 1), bad);
        assert_eq!(map(1 << 48, 0, PAGE_SIZE), bad);
        assert_eq!(map((1 << 48) - PAGE_SIZE, 0, 2 * PAGE_SIZE), bad);
        assert_eq!(map(0, 1 << 52, PAGE_SIZE), bad, "would set bits above the address field");
        assert_eq!(map(0, 0u64.wrapping_sub(PAGE_SIZE), PAGE_SIZE), bad);
    }

    #[test]
    fn running_out_of_tables_leaks_none() {
        for left in 1..6 {
            let mut frames = Frames::new();
            frames.left = left;
            let mut tables = NestedTables::new(&mut frames).unwrap();
            let done = tables
                .map(&mut frames, Gpa::new(0), Hpa::new(0), HUGE_PAGE, RWX)
                .and_then(|_| tables.unmap(&mut frames, Gpa::new(0x5000), PAGE_SIZE));
            assert_eq!(done.is_ok(), left >= 4);
            tables.release(&mut frames);
            assert!(frames.used.is_empty());
        }
    }

    proptest! {
        /// Against a map of pages near two huge-page borders; the walk is an independent reading of the manual.
        #[test]
        fn agrees_with_a_page_model(
            steps in prop::collection::vec((0u8..4, 0u64..1100, prop::sample::select(&[1u64, 3, 512, 513, 1024][..]), 0u64..3, 0u8..16), 1..25)
        ) {
            let mut frames = Frames::new();
            let mut tables = NestedTables::new(&mut frames).unwrap();
            let mut model: BTreeMap<u64, (u64, Access)> = BTreeMap::new();
            let base = HUGE_PAGE / PAGE_SIZE - 600;
            for (kind, page, pages, to, bits) in steps {
                // Some ranges aligned, so that large pages come about.
                let first = if bits & 8 != 0 { (base + page) & !511 } else { base + page };
                let range = first..first + pages;
                let (gpa, len) = (Gpa::new(first * PAGE_SIZE), pages * PAGE_SIZE);
                let access = Access::READ | Access::from_bits_truncate(bits & 6);
                let before = range.clone().filter(|page| model.contains_key(page)).count();
                let flush = match kind {
                    0 | 1 => {
                        let target = first + to * 0x4_0000 + u64::from(to == 2);
                        model.extend(range.map(|page| (page, (page - first + target, access))));
                        tables.map(&mut frames, gpa, Hpa::new(target * PAGE_SIZE), len, access)
                    }
                    2 => {
                        range.for_each(|page| { model.remove(&page); });
                        tables.unmap(&mut frames, gpa, len)
                    }
                    _ => {
                        range.for_each(|page| { model.entry(page).and_modify(|old| old.1 = access); });
                        tables.protect(&mut frames, gpa, len, access)
                    }
                };
                // A flush too many is allowed (an empty table was there), one too few is not.
                prop_assert!(flush.unwrap() || before == 0);
                let probes: Vec<u64> = (base - 520..base + 2200).step_by(7).chain([first, first + pages - 1, first + pages]).collect();
                for page in probes {
                    let at = page * PAGE_SIZE + 0x123;
                    let expected = model.get(&page).map(|&(to, access)| {
                        (to * PAGE_SIZE + 0x123, access.contains(Access::WRITE), access.contains(Access::EXECUTE))
                    });
                    prop_assert_eq!(processor(&frames, tables.root(), at), expected);
                    let found = tables.lookup(&frames, Gpa::new(at)).map(|(hpa, access, _)| {
                        (hpa.as_u64(), access.contains(Access::WRITE), access.contains(Access::EXECUTE))
                    });
                    prop_assert_eq!(found, expected);
                }
            }
            tables.release(&mut frames);
            prop_assert!(frames.used.is_empty());
        }
    }
}
