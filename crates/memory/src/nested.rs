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

/// Why a change of the tables failed. What was done before the failure stays done.
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
    /// Takes a frame back.
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
        if !hpa.is_aligned(PAGE_SIZE) || hpa.checked_add(len).is_none() {
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

    /// Gives all tables back.
    pub fn release(self, frames: &mut impl TableFrames) {
        free_tree(frames, self.root, LEVELS);
    }

    fn change<F: TableFrames>(&self, frames: &mut F, gpa: Gpa, len: u64, change: Change) -> Result<bool, MapError> {
        let start = gpa.as_u64();
        let end = start.checked_add(len).ok_or(MapError::BadRange)?;
        if !gpa.is_aligned(PAGE_SIZE) || len % PAGE_SIZE != 0 || end > span(LEVELS + 1) {
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
