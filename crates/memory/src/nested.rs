//! Nested page tables, in AMD's long-mode format.
//!
//! Source: APM vol 2, 5.3 (long-mode paging) and 15.25.5 (nested tables: every access is a user
//! access, so that each entry has U/S set).

use crate::{Gpa, HUGE_PAGE, Hpa, LARGE_PAGE, PAGE_SIZE, PhysicalMemory};
use bitflags::bitflags;

bitflags! {
    /// What a guest may do to a page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Read it. Without it nothing is mapped.
        const READ = 1;
        /// Write it.
        const WRITE = 2;
        /// Run code in it.
        const EXECUTE = 4;
        /// It is not memory: no caching.
        const UNCACHED = 8;
    }
}

/// Why a change of the tables failed. What was done before the failure stays done: translations must be flushed
/// unless the error is `BadRange`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Not whole pages, or beyond 48 bits.
    BadRange,
    /// No memory for a table.
    OutOfMemory,
}

/// Where tables come from.
pub trait TableFrames: PhysicalMemory {
    /// A cleared frame.
    fn allocate_table(&mut self) -> Option<Hpa>;
    /// Takes a frame back. A processor that runs the guest may still walk it until translations are flushed: while
    /// the guest can run, the frame must not be used again before that.
    fn free_table(&mut self, frame: Hpa);
}

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const LEVELS: u32 = 4;

/// Bytes that one entry covers at a level (1 is the lowest).
const fn span(level: u32) -> u64 {
    1 << (12 + 9 * (level - 1))
}

fn slot(table: Hpa, gpa: u64, level: u32) -> Hpa {
    Hpa::new(table.as_u64() + (gpa / span(level) % 512) * 8)
}

fn leaf(hpa: u64, access: Access, level: u32) -> u64 {
    if !access.contains(Access::READ) {
        return 0;
    }
    let mut entry = hpa | PRESENT | USER;
    if access.contains(Access::WRITE) {
        entry |= WRITABLE;
    }
    if !access.contains(Access::EXECUTE) {
        entry |= NO_EXECUTE;
    }
    if access.contains(Access::UNCACHED) {
        entry |= CACHE_DISABLE | WRITE_THROUGH;
    }
    if level > 1 { entry | LARGE } else { entry }
}

fn access_of(entry: u64) -> Access {
    let mut access = Access::READ;
    access.set(Access::WRITE, entry & WRITABLE != 0);
    access.set(Access::EXECUTE, entry & NO_EXECUTE == 0);
    access.set(Access::UNCACHED, entry & CACHE_DISABLE != 0);
    access
}

fn is_leaf(entry: u64, level: u32) -> bool {
    level == 1 || entry & LARGE != 0
}

/// What to do with the pages of a range.
#[derive(Clone, Copy)]
enum Change {
    Map { offset: u64, access: Access },
    Unmap,
    Protect(Access),
}

/// The nested page tables of one guest.
#[derive(Debug)]
pub struct NestedTables {
    root: Hpa,
}

impl NestedTables {
    /// Empty tables.
    pub fn new(frames: &mut impl TableFrames) -> Option<Self> {
        Some(Self { root: frames.allocate_table()? })
    }

    /// What goes into `nCR3`.
    pub fn root(&self) -> Hpa {
        self.root
    }

    /// Maps a range, with the largest pages that fit; replaces what was there.
    /// Returns whether something was mapped before, so that translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map<F: TableFrames>(
        &mut self,
        frames: &mut F,
        gpa: Gpa,
        hpa: Hpa,
        len: u64,
        access: Access,
    ) -> Result<bool, MapError> {
        // Higher bits of an entry are not address bits.
        if !hpa.is_aligned(PAGE_SIZE) || hpa.checked_add(len).is_none_or(|end| end.as_u64() > 1 << 52) {
            return Err(MapError::BadRange);
        }
        let offset = hpa.as_u64().wrapping_sub(gpa.as_u64());
        self.change(frames, gpa, len, Change::Map { offset, access })
    }

    /// Unmaps a range. Returns whether translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`]; splitting a large page takes memory.
    pub fn unmap<F: TableFrames>(&mut self, frames: &mut F, gpa: Gpa, len: u64) -> Result<bool, MapError> {
        self.change(frames, gpa, len, Change::Unmap)
    }

    /// Changes the rights of what is mapped in a range. Returns whether translations must be flushed.
    ///
    /// # Errors
    /// See [`MapError`]; splitting a large page takes memory.
    pub fn protect<F: TableFrames>(
        &mut self,
        frames: &mut F,
        gpa: Gpa,
        len: u64,
        access: Access,
    ) -> Result<bool, MapError> {
        self.change(frames, gpa, len, Change::Protect(access))
    }

    /// Where a guest-physical address is, what may be done there, and how large its page is.
    pub fn lookup(&self, memory: &impl PhysicalMemory, gpa: Gpa) -> Option<(Hpa, Access, u64)> {
        let mut table = self.root;
        for level in (1..=LEVELS).rev() {
            let entry = memory.read_u64(slot(table, gpa.as_u64(), level));
            if entry & PRESENT == 0 {
                return None;
            }
            if is_leaf(entry, level) {
                let offset = gpa.as_u64() % span(level);
                let hpa = Hpa::new((entry & ADDRESS & !(span(level) - 1)) + offset);
                return Some((hpa, access_of(entry), span(level)));
            }
            table = Hpa::new(entry & ADDRESS);
        }
        None
    }

    /// Shows every mapped page: where the guest sees it, where it is, its bytes and rights.
    pub fn visit(&self, memory: &impl PhysicalMemory, show: &mut impl FnMut(Gpa, Hpa, u64, Access)) {
        visit_tree(memory, self.root, 0, LEVELS, show);
    }

    /// Gives all tables back.
    pub fn release(self, frames: &mut impl TableFrames) {
        free_tree(frames, self.root, LEVELS);
    }

    fn change<F: TableFrames>(
        &self,
        frames: &mut F,
        gpa: Gpa,
        len: u64,
        change: Change,
    ) -> Result<bool, MapError> {
        let start = gpa.as_u64();
        let end = start.checked_add(len).ok_or(MapError::BadRange)?;
        if !gpa.is_aligned(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) || end > span(LEVELS + 1) {
            return Err(MapError::BadRange);
        }
        let mut at = start;
        let mut flush = false;
        while at < end {
            let (done, replaced) = change_one(frames, self.root, at, end, change)?;
            flush |= replaced;
            at += done;
        }
        Ok(flush)
    }
}

/// Changes one entry, as high as it can be. Returns the bytes it covers and whether it was present.
fn change_one<F: TableFrames>(
    frames: &mut F,
    root: Hpa,
    at: u64,
    end: u64,
    change: Change,
) -> Result<(u64, bool), MapError> {
    let mut table = root;
    let mut level = LEVELS;
    loop {
        let place = slot(table, at, level);
        let entry = frames.read_u64(place);
        let size = span(level);
        let whole = at.is_multiple_of(size) && end - at >= size;
        let present = entry & PRESENT != 0;
        let large_enough = level == 1 || size == LARGE_PAGE || size == HUGE_PAGE;
        match change {
            Change::Map { offset, access }
                if whole && large_enough && at.wrapping_add(offset).is_multiple_of(size) =>
            {
                frames.write_u64(place, leaf(at.wrapping_add(offset), access, level));
                if present && !is_leaf(entry, level) {
                    free_tree(frames, Hpa::new(entry & ADDRESS), level - 1);
                }
                return Ok((size, present));
            }
            Change::Unmap | Change::Protect(_) if !present => {
                // Nothing here: go on after this entry.
                return Ok((size - at % size, false)).map(|(bytes, flush)| (bytes.min(end - at), flush));
            }
            Change::Unmap if whole => {
                frames.write_u64(place, 0);
                if !is_leaf(entry, level) {
                    free_tree(frames, Hpa::new(entry & ADDRESS), level - 1);
                }
                return Ok((size, true));
            }
            Change::Protect(access) if whole && is_leaf(entry, level) => {
                frames.write_u64(place, leaf(entry & ADDRESS & !(size - 1), access, level));
                return Ok((size, true));
            }
            _ => {}
        }
        if !present || is_leaf(entry, level) {
            table = split(frames, place, entry, level)?;
        } else {
            table = Hpa::new(entry & ADDRESS);
        }
        level -= 1;
    }
}

/// Puts a table where nothing or a large page is, with the same mapping.
fn split<F: TableFrames>(frames: &mut F, place: Hpa, entry: u64, level: u32) -> Result<Hpa, MapError> {
    let table = frames.allocate_table().ok_or(MapError::OutOfMemory)?;
    if entry & PRESENT != 0 {
        let base = entry & ADDRESS & !(span(level) - 1);
        for index in 0..512 {
            let part = leaf(base + index * span(level - 1), access_of(entry), level - 1);
            frames.write_u64(Hpa::new(table.as_u64() + index * 8), part);
        }
    }
    frames.write_u64(place, table.as_u64() | PRESENT | WRITABLE | USER);
    Ok(table)
}

fn visit_tree(
    memory: &impl PhysicalMemory,
    table: Hpa,
    base: u64,
    level: u32,
    show: &mut impl FnMut(Gpa, Hpa, u64, Access),
) {
    for index in 0..512 {
        let entry = memory.read_u64(Hpa::new(table.as_u64() + index * 8));
        let gpa = base + index * span(level);
        if entry & PRESENT == 0 {
            continue;
        }
        if is_leaf(entry, level) {
            let hpa = Hpa::new(entry & ADDRESS & !(span(level) - 1));
            show(Gpa::new(gpa), hpa, span(level), access_of(entry));
        } else {
            visit_tree(memory, Hpa::new(entry & ADDRESS), gpa, level - 1, show);
        }
    }
}

fn free_tree<F: TableFrames>(frames: &mut F, table: Hpa, level: u32) {
    if level > 1 {
        for index in 0..512 {
            let entry = frames.read_u64(Hpa::new(table.as_u64() + index * 8));
            if entry & PRESENT != 0 && !is_leaf(entry, level) {
                free_tree(frames, Hpa::new(entry & ADDRESS), level - 1);
            }
        }
    }
    frames.free_table(table);
}

#[cfg(test)]
mod tests {
    use super::*;
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
