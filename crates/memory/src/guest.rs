//! Guest memory: the only way from a guest-physical address to memory.
//!
//! Every address that a guest names is an allegation. It becomes memory here, by being inside one
//! of the guest's extents, or not at all. No reference into guest memory is ever made: data are
//! copied, so that a guest that changes them meanwhile confuses only itself.

use crate::{Gpa, Hpa, PhysicalMemory};
use arrayvec::ArrayVec;

/// Most extents of a guest.
const EXTENTS: usize = 8;

/// The range is not wholly inside the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// Why an extent cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// It overlaps another one, or the end of an address space.
    Overlap,
    /// There are eight already.
    TooMany,
}

/// A contiguous piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where the guest sees it.
    pub gpa: Gpa,
    /// Where it is.
    pub hpa: Hpa,
    /// Bytes.
    pub len: u64,
}

impl Extent {
    /// Whether a byte of host memory is in it.
    pub fn contains(&self, hpa: Hpa) -> bool {
        hpa.as_u64().checked_sub(self.hpa.as_u64()).is_some_and(|offset| offset < self.len)
    }
}

/// An aligned word of a guest's memory, found by [`GuestMemory::word`]. It is where it was as long as the guest's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordPlace(Hpa);

impl WordPlace {
    /// Reads it in one access.
    #[inline]
    pub fn read(self, memory: &impl PhysicalMemory) -> u64 {
        memory.read_u64(self.0)
    }
}

/// The memory of one guest.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    extents: ArrayVec<Extent, EXTENTS>,
}

impl GuestMemory {
    /// No memory.
    pub const fn new() -> Self {
        Self { extents: ArrayVec::new_const() }
    }

    /// Adds an extent.
    ///
    /// # Errors
    /// See [`AddError`]; nothing was changed.
    pub fn add(&mut self, gpa: Gpa, hpa: Hpa, len: u64) -> Result<(), AddError> {
        let end = gpa.checked_add(len).ok_or(AddError::Overlap)?;
        hpa.checked_add(len).ok_or(AddError::Overlap)?;
        let overlaps = |extent: &Extent| gpa.as_u64() < extent.gpa.as_u64() + extent.len && extent.gpa < end;
        if self.extents.iter().any(overlaps) {
            return Err(AddError::Overlap);
        }
        self.extents.try_push(Extent { gpa, hpa, len }).map_err(|_| AddError::TooMany)
    }

    /// All extents.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Where `gpa` is, and how many bytes follow it in the same extent.
    #[inline]
    fn locate(&self, gpa: Gpa) -> Option<(Hpa, u64)> {
        self.extents.iter().find_map(|extent| {
            let offset = gpa.as_u64().checked_sub(extent.gpa.as_u64())?;
            (offset < extent.len).then(|| (Hpa::new(extent.hpa.as_u64() + offset), extent.len - offset))
        })
    }

    /// Where a range is that lies within one extent, as nearly all do; `None` if it goes on past the end of one.
    ///
    /// # Errors
    /// It does not begin in memory of this guest.
    #[inline]
    fn within(&self, gpa: Gpa, len: u64) -> Result<Option<Hpa>, OutOfRange> {
        match self.locate(gpa) {
            Some((hpa, left)) => Ok((len <= left).then_some(hpa)),
            None if len == 0 => Ok(None),
            None => Err(OutOfRange),
        }
    }

    /// Where a range is that lies within one extent, and so in one piece; `None` for any other.
    #[inline]
    pub fn in_one_piece(&self, gpa: Gpa, len: u64) -> Option<Hpa> {
        self.within(gpa, len).ok().flatten()
    }

    /// The pieces of host memory that make up a range of guest memory, in order.
    ///
    /// # Errors
    /// A part of the range is not memory of this guest.
    pub fn translate(&self, gpa: Gpa, len: u64) -> Result<Pieces<'_>, OutOfRange> {
        let pieces = Pieces { memory: self, next: gpa, left: len };
        let mut check = pieces.clone();
        let covered: u64 = check.by_ref().map(|(_, bytes)| bytes).sum();
        if covered == len { Ok(pieces) } else { Err(OutOfRange) }
    }

    /// Copies out of guest memory.
    ///
    /// # Errors
    /// A part of the range is not memory of this guest; nothing was copied.
    #[inline]
    pub fn read(&self, memory: &impl PhysicalMemory, gpa: Gpa, buffer: &mut [u8]) -> Result<(), OutOfRange> {
        if let Some(hpa) = self.within(gpa, buffer.len() as u64)? {
            memory.read(hpa, buffer);
            return Ok(());
        }
        self.read_pieces(memory, gpa, buffer)
    }

    /// Reads what goes on past the end of an extent.
    #[cold]
    fn read_pieces(
        &self,
        memory: &impl PhysicalMemory,
        gpa: Gpa,
        buffer: &mut [u8],
    ) -> Result<(), OutOfRange> {
        let mut rest = buffer;
        for (hpa, bytes) in self.translate(gpa, rest.len() as u64)? {
            let (part, after) = rest.split_at_mut_checked(bytes as usize).ok_or(OutOfRange)?;
            memory.read(hpa, part);
            rest = after;
        }
        Ok(())
    }

    /// Copies into guest memory.
    ///
    /// # Errors
    /// A part of the range is not memory of this guest; nothing was copied.
    #[inline]
    pub fn write(&self, memory: &impl PhysicalMemory, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        if let Some(hpa) = self.within(gpa, bytes.len() as u64)? {
            memory.write(hpa, bytes);
            return Ok(());
        }
        self.write_pieces(memory, gpa, bytes)
    }

    /// Writes what goes on past the end of an extent.
    #[cold]
    fn write_pieces(&self, memory: &impl PhysicalMemory, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        let mut rest = bytes;
        for (hpa, bytes) in self.translate(gpa, rest.len() as u64)? {
            let (part, after) = rest.split_at_checked(bytes as usize).ok_or(OutOfRange)?;
            memory.write(hpa, part);
            rest = after;
        }
        Ok(())
    }

    /// Copies into the memory of another guest, or elsewhere in this one's.
    ///
    /// # Errors
    /// A part of a range is not memory of its guest; nothing was copied.
    #[inline]
    pub fn copy(
        &self,
        memory: &impl PhysicalMemory,
        from: Gpa,
        (other, to): (&Self, Gpa),
        len: u64,
    ) -> Result<(), OutOfRange> {
        if let (Some(from), Some(to)) = (self.within(from, len)?, other.within(to, len)?) {
            memory.copy(from, to, len);
            return Ok(());
        }
        self.copy_pieces(memory, from, (other, to), len)
    }

    /// Copies what goes on past the end of an extent, on either side.
    #[cold]
    fn copy_pieces(
        &self,
        memory: &impl PhysicalMemory,
        from: Gpa,
        (other, to): (&Self, Gpa),
        len: u64,
    ) -> Result<(), OutOfRange> {
        let (mut sources, mut targets) = (self.translate(from, len)?, other.translate(to, len)?);
        let (mut source, mut target) = (sources.next(), targets.next());
        while let (Some((from, readable)), Some((to, writable))) = (source, target) {
            let part = readable.min(writable);
            memory.copy(from, to, part);
            let rest =
                |at: Hpa, left: u64| (left > part).then(|| (Hpa::new(at.as_u64() + part), left - part));
            source = rest(from, readable).or_else(|| sources.next());
            target = rest(to, writable).or_else(|| targets.next());
        }
        Ok(())
    }

    /// Reads an aligned quarter of a word in one access.
    ///
    /// # Errors
    /// It is not memory of this guest, or not aligned.
    #[inline]
    pub fn read_u16(&self, memory: &impl PhysicalMemory, gpa: Gpa) -> Result<u16, OutOfRange> {
        match self.locate(gpa) {
            Some((hpa, left)) if left >= 2 && gpa.is_aligned(2) => Ok(memory.read_u16(hpa)),
            _ => Err(OutOfRange),
        }
    }

    /// Writes an aligned quarter of a word in one access.
    ///
    /// # Errors
    /// It is not memory of this guest, or not aligned.
    #[inline]
    pub fn write_u16(&self, memory: &impl PhysicalMemory, gpa: Gpa, value: u16) -> Result<(), OutOfRange> {
        match self.locate(gpa) {
            Some((hpa, left)) if left >= 2 && gpa.is_aligned(2) => {
                memory.write_u16(hpa, value);
                Ok(())
            }
            _ => Err(OutOfRange),
        }
    }

    /// Reads an aligned word in one access.
    ///
    /// # Errors
    /// It is not memory of this guest, or not aligned.
    #[inline]
    pub fn read_u64(&self, memory: &impl PhysicalMemory, gpa: Gpa) -> Result<u64, OutOfRange> {
        self.word(gpa).map(|word| word.read(memory))
    }

    /// Where an aligned word is.
    ///
    /// # Errors
    /// It is not memory of this guest, or not aligned.
    #[inline]
    pub fn word(&self, gpa: Gpa) -> Result<WordPlace, OutOfRange> {
        match self.locate(gpa) {
            Some((hpa, left)) if left >= 8 && gpa.is_aligned(8) => Ok(WordPlace(hpa)),
            _ => Err(OutOfRange),
        }
    }
}

/// The pieces of a range; see [`GuestMemory::translate`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    memory: &'a GuestMemory,
    next: Gpa,
    left: u64,
}

impl Iterator for Pieces<'_> {
    type Item = (Hpa, u64);

    fn next(&mut self) -> Option<(Hpa, u64)> {
        if self.left == 0 {
            return None;
        }
        let (hpa, available) = self.memory.locate(self.next)?;
        let bytes = available.min(self.left);
        self.next = Gpa::new(self.next.as_u64().wrapping_add(bytes));
        self.left -= bytes;
        Some((hpa, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemory {
        let mut memory = GuestMemory::new();
        memory.add(Gpa::new(0), Hpa::new(0x10_0000), 0x1000).unwrap();
        memory.add(Gpa::new(0x1000), Hpa::new(0x30_0000), 0x1000).unwrap();
        memory.add(Gpa::new(0x4000), Hpa::new(0x50_0000), 0x1000).unwrap();
        memory
    }

    #[test]
    fn a_range_may_span_adjacent_extents() {
        let pieces: alloc::vec::Vec<_> = memory().translate(Gpa::new(0xff0), 0x20).unwrap().collect();
        assert_eq!(pieces, [(Hpa::new(0x10_0ff0), 0x10), (Hpa::new(0x30_0000), 0x10)]);
    }

    #[test]
    fn holes_ends_and_wraps_are_refused() {
        for (gpa, len) in
            [(0x1ff8, 0x10), (0x2000, 1), (0x4fff, 2), (u64::MAX, 2), (0, u64::MAX), (0x3fff, 2)]
        {
            assert!(memory().translate(Gpa::new(gpa), len).is_err(), "{gpa:#x}+{len:#x}");
        }
        assert!(memory().translate(Gpa::new(0x2000), 0).is_ok());
    }

    /// 16 MiB, by physical address.
    struct Ram(core::cell::RefCell<alloc::vec::Vec<u8>>);

    impl PhysicalMemory for Ram {
        fn read(&self, at: Hpa, buffer: &mut [u8]) {
            let at = at.as_u64() as usize;
            buffer.copy_from_slice(&self.0.borrow()[at..at + buffer.len()]);
        }
        fn write(&self, at: Hpa, bytes: &[u8]) {
            let at = at.as_u64() as usize;
            self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
        fn fill(&self, _: Hpa, _: u64, _: u8) {}
        fn read_u64(&self, _: Hpa) -> u64 {
            0
        }
        fn write_u64(&self, _: Hpa, _: u64) {}
    }

    #[test]
    fn a_copy_spans_extents_on_both_sides() {
        let ram = Ram(core::cell::RefCell::new(alloc::vec![0; 16 << 20]));
        let mut other = GuestMemory::new();
        other.add(Gpa::new(0), Hpa::new(0x70_0000), 0x800).unwrap();
        other.add(Gpa::new(0x800), Hpa::new(0x90_0000), 0x800).unwrap();
        let bytes: alloc::vec::Vec<u8> = (0..0x700).map(|n| (n % 251) as u8).collect();
        memory().write(&ram, Gpa::new(0xd00), &bytes).unwrap();
        memory().copy(&ram, Gpa::new(0xd00), (&other, Gpa::new(0x400)), 0x700).unwrap();
        let mut copied = alloc::vec![0; 0x700];
        other.read(&ram, Gpa::new(0x400), &mut copied).unwrap();
        assert_eq!(copied, bytes);
        assert_eq!(memory().copy(&ram, Gpa::new(0x1d00), (&other, Gpa::new(0)), 0x700), Err(OutOfRange));
        assert_eq!(memory().copy(&ram, Gpa::new(0xd00), (&other, Gpa::new(0xf00)), 0x700), Err(OutOfRange));
        assert_eq!(memory().write_u16(&ram, Gpa::new(1), 0), Err(OutOfRange), "not aligned");
        memory().write_u16(&ram, Gpa::new(0x1ffe), 0x1234).unwrap();
        assert_eq!(memory().read_u16(&ram, Gpa::new(0x1ffe)), Ok(0x1234));
        assert_eq!(memory().read_u16(&ram, Gpa::new(0x2000)), Err(OutOfRange));
    }

    #[test]
    fn extents_do_not_overlap() {
        assert_eq!(memory().add(Gpa::new(0x4800), Hpa::new(0), 0x1000), Err(AddError::Overlap));
        assert_eq!(memory().add(Gpa::new(u64::MAX), Hpa::new(0), 2), Err(AddError::Overlap));
    }
}
