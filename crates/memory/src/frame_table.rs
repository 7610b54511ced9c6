//! What every frame of memory is used for, and how many maps show it.
//!
//! Key types: [`FrameTable`], [`FrameUse`] (what a frame is used for, and whose it is), [`FrameError`]. The table says of
//! each frame what [`crate::FrameAllocator`] does not know once it has handed it out. A frame changes its use only as
//! [`FrameUse::may_become`] says, and only while no map shows it. A map pins the frames that it shows: it gets
//! only frames of the use that it names.
//!
//! An entry takes 8 bytes: 2 MiB per GiB of memory. The table is in sections, one for each run of memory, so that holes
//! between them cost nothing. All operations take ranges; a range is checked as a whole before anything is changed.

use crate::{Hpa, PAGE_SIZE};
use alloc::vec::Vec;

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameUse {
    /// The image, the boot module, the firmware's tables, what was taken before there was a table: for good.
    Reserved,
    /// Nothing.
    Free,
    /// The hypervisor's own: heap, stacks, its page tables, what the hardware keeps of a virtual processor.
    Hypervisor,
    /// A table that the hardware walks: of nested pages, or an IOMMU's.
    Table,
    /// Buffers that a device reaches for the hypervisor's own driver.
    Buffer,
    /// Memory of the guest with this index.
    Guest(u16),
    /// What that guest sees in place of a device's registers. It can read it; the hypervisor writes it.
    Mirror(u16),
    /// What that driver domain sees where a guest that it serves has issued nothing. It means nothing.
    Sink(u16),
    /// What devices of a driver domain hold for that guest, and its processors do not see.
    Region(u16),
}

impl FrameUse {
    /// Whether a frame that no map shows can change from this use to that one.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // When the allocator is given its memory, at start.
            (Self::Reserved, Self::Free) => true,
            (
                Self::Free,
                Self::Hypervisor
                | Self::Table
                | Self::Buffer
                | Self::Guest(_)
                | Self::Mirror(_)
                | Self::Sink(_)
                | Self::Region(_),
            ) => true,
            (
                Self::Hypervisor
                | Self::Table
                | Self::Buffer
                | Self::Guest(_)
                | Self::Mirror(_)
                | Self::Sink(_)
                | Self::Region(_),
                Self::Free,
            ) => true,
            // In particular, what has had one owner gets to the next by way of the allocator only.
            _ => false,
        }
    }
}

/// Why the table does not agree. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Not whole pages, or not all memory.
    NotMemory,
    /// The frame at this address is used for something else.
    Mismatch(Hpa, FrameUse),
    /// No frame changes from the one use to the other.
    Forbidden(FrameUse, FrameUse),
    /// So many maps show the frame at this address: too many to change its use, or to show it once more.
    Pinned(Hpa, u32),
    /// No map shows the frame at this address.
    NotPinned(Hpa),
}

/// What the table says of a frame. All zeros: [`FrameUse::Reserved`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct FrameEntry(u64);

const _: () = assert!(size_of::<FrameEntry>() == 8);

impl FrameEntry {
    /// Bits 7:0 are the use, bits 31:16 the index of the domain, bits 63:32 the pins.
    const PIN: u64 = 1 << 32;

    const fn new(used_as: FrameUse) -> Self {
        let (kind, domain) = match used_as {
            FrameUse::Reserved => (0, 0),
            FrameUse::Free => (1, 0),
            FrameUse::Hypervisor => (2, 0),
            FrameUse::Table => (3, 0),
            FrameUse::Buffer => (4, 0),
            FrameUse::Guest(domain) => (5, domain),
            FrameUse::Mirror(domain) => (6, domain),
            FrameUse::Sink(domain) => (7, domain),
            FrameUse::Region(domain) => (8, domain),
        };
        Self(kind | (domain as u64) << 16)
    }

    const fn used_as(self) -> FrameUse {
        let domain = (self.0 >> 16) as u16;
        match self.0 & 0xff {
            1 => FrameUse::Free,
            2 => FrameUse::Hypervisor,
            3 => FrameUse::Table,
            4 => FrameUse::Buffer,
            5 => FrameUse::Guest(domain),
            6 => FrameUse::Mirror(domain),
            7 => FrameUse::Sink(domain),
            8 => FrameUse::Region(domain),
            _ => FrameUse::Reserved,
        }
    }

    /// The entry without its pins.
    const fn unpinned(self) -> u64 {
        self.0 & (Self::PIN - 1)
    }

    const fn pins(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Entries of consecutive frames.
#[derive(Debug)]
struct Section {
    /// Number of the first frame.
    first: u64,
    entries: &'static mut [FrameEntry],
}

impl Section {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

/// The use of every frame of memory.
#[derive(Debug, Default)]
pub struct FrameTable {
    /// In rising order; none overlap.
    sections: Vec<Section>,
}

impl FrameTable {
    /// Knows of no memory.
    pub const fn new() -> Self {
        Self { sections: Vec::new() }
    }

    /// Whether it knows of no memory yet.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    /// Adds the frames from `start` on, one for each of these entries: all of them become [`FrameUse::Reserved`].
    ///
    /// # Errors
    /// [`FrameError::NotMemory`]: `start` is no whole page, or some of the frames are there already.
    pub fn add(&mut self, start: Hpa, entries: &'static mut [FrameEntry]) -> Result<(), FrameError> {
        let len = (entries.len() as u64).checked_mul(PAGE_SIZE).ok_or(FrameError::NotMemory)?;
        let (first, end) = frames(start, len).ok_or(FrameError::NotMemory)?;
        let at = self.sections.partition_point(|section| section.first < first);
        let after = |next: &Section| end <= next.first;
        let before = |previous: &Section| previous.end() <= first;
        let fits = self.sections.get(at).is_none_or(after)
            && at.checked_sub(1).and_then(|at| self.sections.get(at)).is_none_or(before);
        if !fits {
            return Err(FrameError::NotMemory);
        }
        entries.fill(FrameEntry::default());
        self.sections.insert(at, Section { first, entries });
        Ok(())
    }

    /// Whether any byte of a range is memory, as opposed to registers of devices, which have no entries.
    pub fn meets(&self, start: Hpa, len: u64) -> bool {
        let (first, last) =
            (start.as_u64() / PAGE_SIZE, start.as_u64().saturating_add(len).div_ceil(PAGE_SIZE));
        self.sections.iter().any(|section| section.first < last && first < section.end())
    }

    /// Gives frames another use.
    ///
    /// # Errors
    /// See [`FrameError`]: every frame must be used as `from` and shown by no map.
    pub fn change(&mut self, start: Hpa, len: u64, from: FrameUse, to: FrameUse) -> Result<(), FrameError> {
        if !from.may_become(to) {
            return Err(FrameError::Forbidden(from, to));
        }
        let entries = self.range(start, len)?;
        let old = FrameEntry::new(from);
        if let Some((at, entry)) = find(start, entries, |entry| entry != old) {
            let same = entry.unpinned() == old.0;
            return Err(if same {
                FrameError::Pinned(at, entry.pins())
            } else {
                FrameError::Mismatch(at, entry.used_as())
            });
        }
        entries.fill(FrameEntry::new(to));
        Ok(())
    }

    /// Checks that all frames of a range are used so.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn check(&self, start: Hpa, len: u64, used_as: FrameUse) -> Result<(), FrameError> {
        let (section, range) = self.place(start, len).ok_or(FrameError::NotMemory)?;
        let entries = self.sections.get(section).and_then(|section| section.entries.get(range));
        is_all(start, entries.unwrap_or_default(), used_as)
    }

    /// A map is about to show these frames, which are used so: until [`FrameTable::unpin`] nothing else becomes of them.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn pin(&mut self, start: Hpa, len: u64, used_as: FrameUse) -> Result<(), FrameError> {
        let entries = self.range(start, len)?;
        is_all(start, entries, used_as)?;
        if let Some((at, entry)) = find(start, entries, |entry| entry.pins() == u32::MAX) {
            return Err(FrameError::Pinned(at, entry.pins()));
        }
        entries.iter_mut().for_each(|entry| entry.0 += FrameEntry::PIN);
        Ok(())
    }

    /// A map shows these frames no more, and nobody reaches them through it.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn unpin(&mut self, start: Hpa, len: u64) -> Result<(), FrameError> {
        let entries = self.range(start, len)?;
        if let Some((at, _)) = find(start, entries, |entry| entry.pins() == 0) {
            return Err(FrameError::NotPinned(at));
        }
        entries.iter_mut().for_each(|entry| entry.0 -= FrameEntry::PIN);
        Ok(())
    }

    /// Frames that are used so.
    pub fn count(&self, used_as: FrameUse) -> u64 {
        let entry = FrameEntry::new(used_as).0;
        let entries = self.sections.iter().flat_map(|section| section.entries.iter());
        entries.filter(|known| known.unpinned() == entry).count() as u64
    }

    /// The section of a range, and where in it.
    fn place(&self, start: Hpa, len: u64) -> Option<(usize, core::ops::Range<usize>)> {
        let (first, end) = frames(start, len)?;
        let index = self.sections.partition_point(|section| section.first <= first).checked_sub(1)?;
        let section = self.sections.get(index)?;
        (end <= section.end())
            .then_some((index, (first - section.first) as usize..(end - section.first) as usize))
    }

    fn range(&mut self, start: Hpa, len: u64) -> Result<&mut [FrameEntry], FrameError> {
        let (index, range) = self.place(start, len).ok_or(FrameError::NotMemory)?;
        let entries = self.sections.get_mut(index).and_then(|section| section.entries.get_mut(range));
        entries.ok_or(FrameError::NotMemory)
    }
}

/// Numbers of the first frame of a range and of the first one after it; `None` unless it is whole pages.
fn frames(start: Hpa, len: u64) -> Option<(u64, u64)> {
    let end = start.checked_add(len)?;
    (start.is_aligned(PAGE_SIZE) && end.is_aligned(PAGE_SIZE))
        .then_some((start.as_u64() / PAGE_SIZE, end.as_u64() / PAGE_SIZE))
}

/// The first entry of which that is true, and where its frame is.
fn find(start: Hpa, entries: &[FrameEntry], is: impl Fn(FrameEntry) -> bool) -> Option<(Hpa, FrameEntry)> {
    let index = entries.iter().position(|entry| is(*entry))?;
    Some((Hpa::new(start.as_u64() + index as u64 * PAGE_SIZE), *entries.get(index)?))
}

fn is_all(start: Hpa, entries: &[FrameEntry], used_as: FrameUse) -> Result<(), FrameError> {
    let wanted = FrameEntry::new(used_as).0;
    match find(start, entries, |entry| entry.unpinned() != wanted) {
        Some((at, entry)) => Err(FrameError::Mismatch(at, entry.used_as())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::FrameUse::{Buffer, Free, Guest, Hypervisor, Mirror, Reserved, Sink, Table};
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec;
    use proptest::prelude::*;

    const USES: [FrameUse; 11] = [
        Reserved,
        Free,
        Hypervisor,
        Table,
        Buffer,
        Guest(0),
        Guest(u16::MAX),
        Mirror(0),
        Mirror(u16::MAX),
        Sink(0),
        Sink(u16::MAX),
    ];

    fn at(frame: u64) -> Hpa {
        Hpa::new(frame * PAGE_SIZE)
    }

    /// Frames 16 to 31 and 48 to 63.
    fn table() -> FrameTable {
        let mut table = FrameTable::new();
        for first in [48, 16] {
            table.add(at(first), Box::leak(vec![FrameEntry(!0); 16].into_boxed_slice())).unwrap();
        }
        table
    }

    /// A frame that is used so.
    fn bring(table: &mut FrameTable, used_as: FrameUse) {
        if used_as != Reserved {
            table.change(at(16), PAGE_SIZE, Reserved, Free).unwrap();
        }
        if !matches!(used_as, Reserved | Free) {
            table.change(at(16), PAGE_SIZE, Free, used_as).unwrap();
        }
    }

    /// What may follow what, said a second time.
    fn follows(from: FrameUse, to: FrameUse) -> bool {
        let allocated = |frame| !matches!(frame, Reserved | Free);
        (from, to) == (Reserved, Free) || from == Free && allocated(to) || allocated(from) && to == Free
    }

    #[test]
    fn uses_follow_one_another_as_the_table_of_transitions_says() {
        for (from, to) in USES.iter().flat_map(|from| USES.map(|to| (*from, to))) {
            let mut table = table();
            bring(&mut table, from);
            table.pin(at(16), PAGE_SIZE, from).unwrap();
            let pinned = table.change(at(16), PAGE_SIZE, from, to);
            table.unpin(at(16), PAGE_SIZE).unwrap();
            let alone = table.change(at(16), PAGE_SIZE, from, to);
            let (expected, left) = if follows(from, to) {
                ((Err(FrameError::Pinned(at(16), 1)), Ok(())), to)
            } else {
                let never = Err(FrameError::Forbidden(from, to));
                ((never, never), from)
            };
            assert_eq!((pinned, alone), expected, "{from:?} to {to:?}");
            table.check(at(16), PAGE_SIZE, left).unwrap();
            for other in USES.iter().filter(|other| **other != left) {
                let error = Err(FrameError::Mismatch(at(16), left));
                assert_eq!(table.check(at(16), PAGE_SIZE, *other), error);
                assert_eq!(table.pin(at(16), PAGE_SIZE, *other), error);
            }
        }
    }

    #[test]
    fn what_is_not_memory_has_no_entries() {
        let mut table = table();
        for (first, frames, any) in [
            (0, 16, false),
            (15, 2, true),
            (31, 2, true),
            (32, 16, false),
            (20, 40, true),
            (64, 1 << 50, false),
        ] {
            assert_eq!(table.meets(at(first), frames * PAGE_SIZE), any, "{first} {frames}");
            assert_eq!(table.check(at(first), frames * PAGE_SIZE, Reserved), Err(FrameError::NotMemory));
            assert_eq!(table.pin(at(first), frames * PAGE_SIZE, Reserved), Err(FrameError::NotMemory));
        }
        assert!(table.meets(Hpa::new(16 * PAGE_SIZE - 1), 2));
        assert_eq!(
            table.check(Hpa::new(16 * PAGE_SIZE + 8), PAGE_SIZE, Reserved),
            Err(FrameError::NotMemory)
        );
        assert_eq!(table.check(Hpa::new(!0xfff), 2 * PAGE_SIZE, Reserved), Err(FrameError::NotMemory));
        for (first, frames) in [(20, 2), (8, 9), (31, 1), (8, 40), (63, 2)] {
            let entries = Box::leak(vec![FrameEntry::default(); frames].into_boxed_slice());
            assert_eq!(table.add(at(first), entries), Err(FrameError::NotMemory));
        }
    }

    #[test]
    fn pins_do_not_overflow() {
        let mut table = table();
        table.sections[0].entries[1] = FrameEntry(FrameEntry::new(Guest(7)).0 | u64::from(u32::MAX) << 32);
        let full = Err(FrameError::Pinned(at(17), u32::MAX));
        assert_eq!(table.pin(at(17), PAGE_SIZE, Guest(7)), full);
        table.check(at(17), PAGE_SIZE, Guest(7)).unwrap();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Change(FrameUse, FrameUse),
        Pin(FrameUse),
        Unpin,
    }

    fn step() -> impl Strategy<Value = Step> {
        let used_as = || prop::sample::select(&[Free, Hypervisor, Guest(1), Guest(2)][..]);
        prop_oneof![
            2 => (used_as(), used_as()).prop_map(|(from, to)| Step::Change(from, to)),
            2 => used_as().prop_map(Step::Pin),
            1 => Just(Step::Unpin),
        ]
    }

    proptest! {
        /// Against one value per frame: an operation on a range is one on each of its frames, or none.
        #[test]
        fn agrees_with_a_model(steps in prop::collection::vec((12u64..34, 1u64..12, step()), 1..100)) {
            let mut table = table();
            table.change(at(16), 16 * PAGE_SIZE, Reserved, Free).unwrap();
            let mut model = [(Free, 0u32); 16];
            for (first, frames, step) in steps {
                let (start, len) = (at(first), frames * PAGE_SIZE);
                let range = first.checked_sub(16).map(|first| first as usize..(first + frames) as usize);
                let part = range.and_then(|range| model.get_mut(range));
                let is_memory = part.is_some();
                let part = part.unwrap_or_default();
                let (done, possible) = match step {
                    Step::Change(from, to) => (
                        table.change(start, len, from, to),
                        follows(from, to) && part.iter().all(|frame| *frame == (from, 0)),
                    ),
                    Step::Pin(used_as) => {
                        (table.pin(start, len, used_as), part.iter().all(|frame| frame.0 == used_as))
                    }
                    Step::Unpin => (table.unpin(start, len), part.iter().all(|frame| frame.1 > 0)),
                };
                prop_assert_eq!(done.is_ok(), is_memory && possible, "{:?}", done);
                if done.is_ok() {
                    part.iter_mut().for_each(|frame| match step {
                        Step::Change(_, to) => frame.0 = to,
                        Step::Pin(_) => frame.1 += 1,
                        Step::Unpin => frame.1 -= 1,
                    });
                }
                for (index, (used_as, pins)) in model.iter().enumerate() {
                    let entry = table.sections[0].entries[index];
                    prop_assert_eq!((entry.used_as(), entry.pins()), (*used_as, *pins));
                }
                let guests = model.iter().filter(|frame| frame.0 == Guest(1)).count() as u64;
                prop_assert_eq!(table.count(Guest(1)), guests);
            }
        }
    }
}
