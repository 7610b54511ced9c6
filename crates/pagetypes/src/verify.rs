//! A count from nothing, beside the one that is kept.

use crate::{ENTRIES, Entry, HOLE, Kind, LINE, Machine, Mfn, Types};
use alloc::vec::Vec;
use core::fmt;

/// What must not be, and would let a guest write what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// An entry, by its place in this table, refers to what it must not.
    Entry(Mfn, usize),
    /// A frame has other counts (uses, references) than those that entries, pins and holds come to.
    Counts(Mfn, [u32; 2], [u32; 2]),
    /// There is no memory to count in.
    NoMemory,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(table, index) => write!(out, "entry {index} of {table} refers to what it must not"),
            Self::Counts(frame, kept, counted) => {
                write!(out, "{frame} has uses and references {kept:?}, and there are {counted:?}")
            }
            Self::NoMemory => out.write_str("there is no memory to count in"),
        }
    }
}

impl Types {
    /// Looks at every entry of every table in use, and compares what they come to, with pins and with `holds` (frames that are held, each as often as it is),
    /// with what is kept: then no table, no descriptor and no frame of the hypervisor's can be written by way of them. For tests: it takes a look at all tables.
    /// Returns how many tables there were; 0 while some are being forgotten or validated in pieces.
    ///
    /// # Errors
    /// Says what must not be.
    pub fn verify(
        &self,
        machine: &impl Machine,
        holds: impl Iterator<Item = Mfn>,
    ) -> Result<usize, Contradiction> {
        if self.is_unsettled() {
            return Ok(0);
        }
        let mut counted: Vec<[u32; 2]> = Vec::new();
        let len = self.frames().count();
        counted.try_reserve_exact(len).map_err(|_| Contradiction::NoMemory)?;
        counted.resize(len, [0; 2]);
        let mut count = |frame: Mfn, uses: u32| {
            let place = self.index(frame).and_then(|index| counted.get_mut(index));
            place.into_iter().for_each(|[used, referred]| (*used, *referred) = (*used + uses, *referred + 1));
        };
        holds.for_each(|frame| count(frame, 1));
        let mut tables = 0;
        for (frame, counts) in self.frames() {
            if counts.pinned {
                count(frame, 1);
            }
            if counts.kind.is_table() && counts.uses > 0 {
                self.visit(machine, frame, counts.kind, &mut count)?;
                tables += 1;
            }
        }
        for ((frame, counts), found) in self.frames().zip(counted) {
            let kept = [counts.uses, counts.references];
            if kept != found {
                return Err(Contradiction::Counts(frame, kept, found));
            }
        }
        Ok(tables)
    }

    /// Counts what a table's entries refer to: a use, or a reference only.
    fn visit(
        &self,
        machine: &impl Machine,
        table: Mfn,
        kind: Kind,
        count: &mut impl FnMut(Mfn, u32),
    ) -> Result<(), Contradiction> {
        for line in 0..ENTRIES / LINE {
            for (index, word) in (line * LINE..).zip(machine.line(table, line)) {
                let entry = Entry::from_bits_retain(word);
                if !entry.contains(Entry::PRESENT) || kind == Kind::L4 && HOLE.contains(&index) {
                    continue;
                }
                let target = entry.frame();
                let known = self.counts(target);
                let wanted = kind.below().or(entry.is_writable().then_some(Kind::Writable));
                let is_large = kind != Kind::L1 && entry.contains(Entry::LARGE);
                let is_right = match (known, wanted) {
                    (Some(known), Some(wanted)) => known.kind == wanted,
                    (Some(known), None) => known.kind != Kind::Hypervisor,
                    (None, _) => kind == Kind::L1 && self.is_register(target),
                };
                if is_large || !is_right {
                    return Err(Contradiction::Entry(table, index));
                }
                count(target, u32::from(wanted.is_some()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Old;
    use alloc::collections::BTreeMap;

    /// Memory, and nothing else.
    #[derive(Default)]
    struct Memory(BTreeMap<(Mfn, usize), u64>);

    impl Machine for Memory {
        fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
            core::array::from_fn(|at| self.0.get(&(frame, line * LINE + at)).copied().unwrap_or(0))
        }
        fn replace(&mut self, frame: Mfn, index: usize, _: u64, new: u64) -> Result<(), u64> {
            self.0.insert((frame, index), new);
            Ok(())
        }
        fn clear(&mut self, frame: Mfn) {
            self.0.retain(|(at, _), _| *at != frame);
        }
        fn fill_hole(&mut self, _: Mfn) {}
        fn forget(&mut self) {}
        fn hide(&mut self, _: &[Mfn]) {}
        fn show(&mut self, _: &[Mfn]) {}
    }

    fn entry(to: u64, more: Entry) -> u64 {
        Entry::new(Mfn(to), Entry::PRESENT | Entry::USER | more).bits()
    }

    /// Tables 16 to 19, from the root on, that show page 30 for writing and page 31 for reading; 40 is the hypervisor's.
    fn tree() -> (Types, Memory) {
        let mut memory = Memory::default();
        for (table, to) in [(16, 17), (17, 18), (18, 19), (19, 30)] {
            memory.0.insert((Mfn(table), 3), entry(to, Entry::WRITE));
        }
        memory.0.insert((Mfn(19), 4), entry(31, Entry::empty()));
        let mut types = Types::new(Mfn(16), 32).unwrap();
        types.reserve(Mfn(40)).unwrap();
        types.pin(&mut memory, Mfn(16), Kind::L4).unwrap();
        types.hold_root(&mut memory, Mfn(16)).unwrap();
        (types, memory)
    }

    #[test]
    fn what_is_kept_is_what_is_counted() {
        let (mut types, mut memory) = tree();
        let root = || [Mfn(16)].into_iter();
        assert_eq!(types.verify(&memory, root()), Ok(4));
        types.update(&mut memory, Mfn(19), 5, entry(30, Entry::WRITE), Old::Lost).unwrap();
        types.update(&mut memory, Mfn(19), 4, 0, Old::Lost).unwrap();
        assert_eq!(types.verify(&memory, root()), Ok(4));
        // One hold too many, and one too few.
        let holds = [Mfn(16), Mfn(30)].into_iter();
        assert_eq!(types.verify(&memory, holds), Err(Contradiction::Counts(Mfn(30), [2, 2], [3, 3])));
        assert_eq!(
            types.verify(&memory, [].into_iter()),
            Err(Contradiction::Counts(Mfn(16), [2, 2], [1, 1]))
        );
    }

    #[test]
    fn an_entry_that_must_not_be_is_found() {
        for (table, word) in [
            // A table that can be written, the hypervisor's memory, what is not the domain's, a large page, the wrong level.
            (19, entry(18, Entry::WRITE)),
            (19, entry(40, Entry::empty())),
            (19, entry(99, Entry::empty())),
            (18, entry(19, Entry::LARGE)),
            (17, entry(19, Entry::WRITE)),
        ] {
            let (types, mut memory) = tree();
            memory.0.insert((Mfn(table), 9), word);
            let found = types.verify(&memory, [Mfn(16)].into_iter());
            assert_eq!(found, Err(Contradiction::Entry(Mfn(table), 9)));
        }
        let (types, mut memory) = tree();
        memory.0.insert((Mfn(19), 9), entry(31, Entry::WRITE));
        let found = types.verify(&memory, [Mfn(16)].into_iter());
        assert_eq!(found, Err(Contradiction::Counts(Mfn(31), [0, 1], [1, 2])));
    }
}
