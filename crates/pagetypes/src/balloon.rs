//! Frames that the guest gives back, and gets again.
//!
//! A frame that is given back stays the domain's and goes to nobody else ([`Counts::given_back`]): nothing new can be made of it, for the
//! guest's software or for its devices, until it is taken again. Then it is memory, and all zeros.
//!
//! Mappings that the guest left are counted as before and stay until it takes them away, as with Xen: Linux's driver stops the kernel if a frame is
//! not taken. They are harmless because the memory that they show is nobody else's.

use crate::{Kind, Machine, Mfn, Refused, Types};

impl Types {
    /// How many frames are given back now.
    pub fn given_back(&self) -> u64 {
        self.given.count()
    }

    /// Takes frames from the guest, in their order up to the first that is refused: one that is not its own, that is given back already, or that is more than
    /// memory: a page table, descriptors, semi-writable. When this returns no device reaches them, and no processor translates by a use of them that had
    /// ended. Returns how many it took; these are the first ones still, in any order.
    pub fn give_back(
        &mut self,
        machine: &mut impl Machine,
        frames: &mut [Mfn],
    ) -> (usize, Result<(), Refused>) {
        let (mut done, mut shown, mut is_stale) = (0, 0, false);
        let mut result = Ok(());
        for at in 0..frames.len() {
            let Some(frame) = frames.get(at).copied() else { break };
            let Ok(was) = self.give_one(frame).map_err(|refused| result = Err(refused)) else { break };
            if was.for_devices {
                frames.swap(shown, at);
                shown += 1;
            }
            is_stale |= was.remembered;
            done += 1;
        }
        if is_stale {
            self.forget(machine);
        }
        match frames.get(..shown) {
            Some(shown) if !shown.is_empty() => machine.hide(shown),
            _ => {}
        }
        (done, result)
    }

    fn give_one(&mut self, frame: Mfn) -> Result<Was, Refused> {
        let epoch = self.epoch;
        let state = self.present(frame)?;
        let counts = &mut state.counts;
        if counts.semi || counts.uses > 0 && counts.kind != Kind::Writable {
            return Err(Refused::InUse(frame, counts.kind));
        }
        let was = Was { for_devices: counts.is_for_devices(), remembered: state.released == epoch };
        (counts.kind, counts.given_back) = (Kind::Writable, true);
        self.index(frame).into_iter().for_each(|index| self.given.add(index));
        Ok(was)
    }

    /// Gives the guest frames again that it had given back, as memory that is all zeros: the lowest, which are before `limit`, if there is one. Fills `frames`
    /// from its beginning, and returns how many there were.
    pub fn take_again(
        &mut self,
        machine: &mut impl Machine,
        frames: &mut [Mfn],
        limit: Option<Mfn>,
    ) -> usize {
        let (mut done, mut from) = (0, 0);
        while let Some(slot) = frames.get_mut(done) {
            let Some(index) = self.next_given(from) else { break };
            let Some(frame) = self.frame(index).filter(|frame| limit.is_none_or(|limit| *frame < limit))
            else {
                break;
            };
            // No device reaches it yet.
            machine.clear(frame);
            if let Ok(state) = self.own(frame) {
                state.counts.given_back = false;
            }
            self.given.remove(index);
            *slot = frame;
            (done, from) = (done + 1, index + 1);
        }
        match frames.get(..done) {
            Some(taken) if !taken.is_empty() => machine.show(taken),
            _ => {}
        }
        done
    }

    /// Place of the first frame from `start` on that is given back.
    fn next_given(&self, start: usize) -> Option<usize> {
        let mut rest = start;
        while let Some(places) = self.given.block(rest) {
            rest = places.end;
            if let Some(found) = { places }.find(|index| self.is_given(*index)) {
                return Some(found);
            }
        }
        None
    }
}

/// What a frame was that was given back.
struct Was {
    /// Devices reached it.
    for_devices: bool,
    /// Processors may translate by its last use.
    remembered: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::BLOCK;
    use crate::{Entry, LINE, Old};
    use alloc::collections::{BTreeMap, BTreeSet};

    /// Memory, and which frames devices reach.
    struct Memory {
        words: BTreeMap<(Mfn, usize), u64>,
        shown: BTreeSet<Mfn>,
        forgotten: u32,
        hides: u32,
    }

    impl Machine for Memory {
        fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
            core::array::from_fn(|at| self.words.get(&(frame, line * LINE + at)).copied().unwrap_or(0))
        }
        fn replace(&mut self, frame: Mfn, index: usize, _: u64, new: u64) -> Result<(), u64> {
            self.words.insert((frame, index), new);
            Ok(())
        }
        fn clear(&mut self, frame: Mfn) {
            assert!(!self.shown.contains(&frame), "a device may write {frame} meanwhile");
            self.words.retain(|(at, _), _| *at != frame);
        }
        fn fill_hole(&mut self, _: Mfn) {}
        fn forget(&mut self) {
            self.forgotten += 1;
        }
        fn hide(&mut self, frames: &[Mfn]) {
            self.hides += 1;
            frames.iter().for_each(|frame| assert!(self.shown.remove(frame)));
        }
        fn show(&mut self, frames: &[Mfn]) {
            frames.iter().for_each(|frame| assert!(self.shown.insert(*frame)));
        }
    }

    const FIRST: u64 = 100;

    fn world(frames: u64) -> (Types, Memory) {
        let shown = (FIRST..FIRST + frames).map(Mfn).collect();
        let memory = Memory { words: BTreeMap::new(), shown, forgotten: 0, hides: 0 };
        (Types::new(Mfn(FIRST), frames as usize).unwrap(), memory)
    }

    fn at(index: u64) -> Mfn {
        Mfn(FIRST + index)
    }

    fn map(frame: Mfn, flags: Entry) -> u64 {
        Entry::new(frame, Entry::PRESENT | flags).bits()
    }

    #[test]
    fn nothing_new_is_made_of_a_frame_that_is_given_back() {
        let (mut types, mut memory) = world(8);
        types.pin(&mut memory, at(0), Kind::L1).unwrap();
        assert_eq!(types.give_back(&mut memory, &mut [at(3)]), (1, Ok(())));
        let gone = Err(Refused::GivenBack(at(3)));
        for flags in [Entry::empty(), Entry::WRITE] {
            let mapped = types.update(&mut memory, at(0), 1, map(at(3), flags), Old::Lost);
            assert_eq!(mapped.map(drop), gone);
        }
        for kind in [Kind::L1, Kind::L2, Kind::L3, Kind::L4] {
            assert_eq!(types.pin(&mut memory, at(3), kind), gone);
        }
        assert_eq!(types.hold_root(&mut memory, at(3)), gone);
        assert_eq!(types.hold_descriptors(&mut memory, at(3)), gone);
        assert_eq!(types.hold_writable(&mut memory, at(3)), gone);
        assert_eq!(types.update(&mut memory, at(3), 0, 7, Old::Lost).map(drop), gone);
        assert_eq!(types.write_descriptor(&mut memory, at(3), 0, 0), gone);
        for semi in [false, true] {
            assert_eq!(types.set_semi(&mut memory, &mut [at(2), at(3)], semi), gone);
        }
        assert_eq!(types.give_back(&mut memory, &mut [at(3)]), (0, gone));
        assert!(!types.owns(at(3)) && !memory.shown.contains(&at(3)));
        // A table that refers to it was none before.
        memory.words.insert((at(4), 9), map(at(3), Entry::empty()));
        assert_eq!(types.pin(&mut memory, at(4), Kind::L1), gone);
        assert_eq!(types.given_back(), 1);
    }

    #[test]
    fn it_comes_back_as_zeros_that_devices_reach() {
        let (mut types, mut memory) = world(4);
        // It was a page table.
        types.pin(&mut memory, at(2), Kind::L1).unwrap();
        types.unpin(&mut memory, at(2)).unwrap();
        memory.words.insert((at(2), 5), 77);
        types.give_back(&mut memory, &mut [at(2)]).1.unwrap();
        assert!(memory.forgotten > 0, "processors walked it a moment ago");
        let mut frames = [Mfn(0); 4];
        assert_eq!(types.take_again(&mut memory, &mut frames, None), 1);
        assert_eq!((frames[0], memory.line(at(2), 0), types.given_back()), (at(2), [0; LINE], 0));
        let counts = types.counts(at(2)).unwrap();
        assert!(counts.kind == Kind::Writable && !counts.given_back && memory.shown.contains(&at(2)));
        assert!(types.owns(at(2)));
        assert_eq!(types.take_again(&mut memory, &mut frames, None), 0, "there are no more");
    }

    #[test]
    fn what_is_more_than_memory_is_not_taken_and_what_is_before_it_is() {
        let (mut types, mut memory) = world(8);
        types.reserve(at(7)).unwrap();
        memory.shown.remove(&at(7));
        types.pin(&mut memory, at(0), Kind::L1).unwrap();
        types.hold_descriptors(&mut memory, at(1)).unwrap();
        types.set_semi(&mut memory, &mut [at(2)], true).unwrap();
        let refusals = [
            (at(0), Refused::InUse(at(0), Kind::L1)),
            (at(1), Refused::InUse(at(1), Kind::Descriptors)),
            (at(2), Refused::InUse(at(2), Kind::Writable)),
            (at(7), Refused::NotOwn(at(7))),
            (at(8), Refused::NotOwn(at(8))),
            (Mfn(FIRST - 1), Refused::NotOwn(Mfn(FIRST - 1))),
        ];
        for (frame, refused) in refusals {
            let before = types.clone();
            assert_eq!(types.give_back(&mut memory, &mut [frame, at(5)]), (0, Err(refused)));
            assert_eq!(types, before);
        }
        // Twice in one list, after another one; devices lose both at one stroke.
        let hides = memory.hides;
        let mut list = [at(4), at(5), at(4), at(6)];
        assert_eq!(types.give_back(&mut memory, &mut list), (2, Err(Refused::GivenBack(at(4)))));
        assert_eq!((types.given_back(), memory.hides - hides), (2, 1));
        assert!(types.owns(at(6)));
    }

    #[test]
    fn a_mapping_that_was_left_stays_as_it_is_and_can_go() {
        let (mut types, mut memory) = world(8);
        memory.words.insert((at(0), 1), map(at(3), Entry::WRITE));
        memory.words.insert((at(0), 2), map(at(3), Entry::empty()));
        types.pin(&mut memory, at(0), Kind::L1).unwrap();
        types.give_back(&mut memory, &mut [at(3)]).1.unwrap();
        let gone = Err(Refused::GivenBack(at(3)));
        // Neither becomes the other.
        for (index, flags) in [(1, Entry::empty()), (2, Entry::WRITE)] {
            let changed = types.update(&mut memory, at(0), index, map(at(3), flags), Old::Lost);
            assert_eq!(changed.map(drop), gone);
        }
        assert_eq!(types.verify(&memory, [].into_iter()), Ok(1));
        types.update(&mut memory, at(0), 1, 0, Old::Lost).unwrap();
        let counts = types.counts(at(3)).unwrap();
        assert_eq!((counts.uses, counts.references), (0, 1));
        types.take_again(&mut memory, &mut [Mfn(0)], None);
        types.update(&mut memory, at(0), 2, 0, Old::Lost).unwrap();
        assert_eq!(types.verify(&memory, [].into_iter()), Ok(1));
        types.pin(&mut memory, at(3), Kind::L1).unwrap();
    }

    #[test]
    fn the_lowest_come_first_and_none_at_the_limit() {
        let frames = 3 * BLOCK as u64;
        let (mut types, mut memory) = world(frames);
        for index in [frames - 1, 5, 2 * BLOCK as u64, BLOCK as u64 - 1] {
            types.give_back(&mut memory, &mut [at(index)]).1.unwrap();
        }
        let mut taken = [Mfn(0); 8];
        assert_eq!(types.take_again(&mut memory, &mut taken, Some(at(5))), 0);
        assert_eq!(types.take_again(&mut memory, &mut taken, Some(at(6))), 1);
        assert_eq!(taken[0], at(5));
        assert_eq!(types.take_again(&mut memory, &mut taken, None), 3);
        assert_eq!(taken[..3], [at(BLOCK as u64 - 1), at(2 * BLOCK as u64), at(frames - 1)]);
        assert_eq!((types.given_back(), memory.shown.len() as u64), (0, frames));
    }
}
