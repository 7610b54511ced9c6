//! Signals that go by way of a controller domain: which of them it owes.
//!
//! Key types: [`Owed`], [`Doorbell`] (what the controller has said). Neither trusts the controller: a signal is passed on if it is owed, and once. So
//! it can send nobody anything that an engine has not, and what it has taken and kept for itself is known.
//!
//! Source: Raj and Schwan, 2.2 and 4.1; the layout is [`sluice_hypercall::signals`]'s.

use crate::{QUEUES, RECEIVE, SEND, VifId, VifSet};
use sluice_hypercall::signals::{SIGNALS_DOORBELL_SENT, SIGNALS_GROUP, SIGNALS_GROUP_SHIFT, SIGNALS_GROUPS};

/// Signals that a controller has been told of, or is about to be, and has not passed on yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owed([VifSet; QUEUES as usize]);

impl Owed {
    /// Drivers are to be signalled. Returns those of which the controller does not know: one that it owes a signal sees by it what has happened
    /// meanwhile, too.
    pub fn owe(&mut self, queue: u16, vifs: VifSet) -> VifSet {
        let owed = self.of(queue);
        let news = VifSet(vifs.0 & !owed.0);
        owed.0 |= news.0;
        news
    }

    /// The controller passes signals on. Returns those that it owed.
    pub fn pass(&mut self, queue: u16, vifs: VifSet) -> VifSet {
        let owed = self.of(queue);
        let passed = VifSet(vifs.0 & owed.0);
        owed.0 &= !passed.0;
        passed
    }

    /// There is such a VIF no more.
    pub fn forget(&mut self, vif: VifId) {
        self.0.iter_mut().for_each(|owed| owed.remove(vif));
    }

    /// The controller is gone, and owes nothing any more. Returns the queues and what it owed of each.
    pub fn settle(&mut self) -> [(u16, VifSet); QUEUES as usize] {
        let [received, sent] = core::mem::take(&mut self.0);
        [(RECEIVE, received), (SEND, sent)]
    }

    fn of(&mut self, queue: u16) -> &mut VifSet {
        &mut self.0[usize::from(queue == SEND)]
    }
}

/// What a controller says: signals that are to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// [`RECEIVE`] or [`SEND`].
    pub queue: u16,
    /// For these.
    pub vifs: VifSet,
}

impl Doorbell {
    /// What is written to the port. `None`: it is no such thing.
    pub fn parse(word: u32) -> Option<Self> {
        let queue = if word & SIGNALS_DOORBELL_SENT == 0 { RECEIVE } else { SEND };
        let group = (word & !SIGNALS_DOORBELL_SENT) >> SIGNALS_GROUP_SHIFT;
        let bits = u64::from(word & ((1 << SIGNALS_GROUP) - 1));
        (group < SIGNALS_GROUPS).then(|| Self { queue, vifs: VifSet(bits << (group * SIGNALS_GROUP)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_doorbell_names_vifs_of_one_group_and_one_direction() {
        let read = |word| Doorbell::parse(word).map(|doorbell| (doorbell.queue, doorbell.vifs.0));
        assert_eq!(read(0), Some((RECEIVE, 0)));
        assert_eq!(read(0x0000_8001), Some((RECEIVE, 0x8001)));
        assert_eq!(read(0x8003_ffff), Some((SEND, 0xffff << 48)));
        for garbage in [0x0004_0001, 0x8004_0000, 0x0100_0001, 0x4000_0001, u32::MAX] {
            assert_eq!(read(garbage), None, "{garbage:#x}");
        }
        // Each VIF by one word in either direction, and no two by the same.
        let words = (0..4u32).flat_map(|group| (0..16).map(move |bit| group << 16 | 1 << bit));
        let named: HashSet<u64> = words.filter_map(|word| Some(read(word)?.1)).collect();
        assert_eq!(named.len(), 64);
    }

    #[test]
    fn only_what_is_owed_is_passed_on_and_once() {
        let mut owed = Owed::default();
        assert_eq!(owed.pass(RECEIVE, VifSet(u64::MAX)), VifSet(0), "nothing is owed");
        assert_eq!(owed.owe(RECEIVE, VifSet(0b011)), VifSet(0b011));
        assert_eq!(owed.owe(RECEIVE, VifSet(0b110)), VifSet(0b100), "of the other it knows");
        assert_eq!(owed.pass(SEND, VifSet(0b111)), VifSet(0), "in the other direction nothing is");
        assert_eq!(owed.pass(RECEIVE, VifSet(!0b001)), VifSet(0b110));
        assert_eq!(owed.pass(RECEIVE, VifSet(0b110)), VifSet(0), "twice");
        assert_eq!(owed.owe(SEND, VifSet(0b1001)), VifSet(0b1001));
        owed.forget(VifId(3));
        assert_eq!(owed.settle(), [(RECEIVE, VifSet(0b001)), (SEND, VifSet(0b1))]);
        assert_eq!(owed.settle(), [(RECEIVE, VifSet(0)), (SEND, VifSet(0))]);
    }

    /// Two engines, the controller and guests, each at one of its steps. An engine publishes, then has the signal owed, sets the bit if that is news, and
    /// sends the message. The controller, when it is interrupted, takes the word and rings for each bit. What a guest has seen is what was published
    /// when it was signalled last.
    #[derive(Clone, PartialEq, Eq, Hash, Default)]
    struct Model {
        owed: Owed,
        word: u64,
        message: bool,
        engines: [EngineAt; 2],
        controller: Controller,
        is_gone: bool,
        published: [u8; 2],
        seen: [u8; 2],
    }

    /// The VIF that it signals, its news, and frames that it brings yet.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    struct EngineAt {
        at: u8,
        news: u64,
        left: u8,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    enum Controller {
        #[default]
        Waits,
        Interrupted,
        Rings(u64),
    }

    impl Model {
        fn signal(&mut self, vifs: VifSet) {
            vifs.iter().for_each(|vif| self.seen[vif.index()] = self.published[vif.index()]);
        }

        /// The next step of an engine; `None`: it has none.
        fn engine(&self, nth: usize) -> Option<Self> {
            let mut next = self.clone();
            let engine = &mut next.engines[nth];
            let vifs = VifSet(1 << ((usize::from(engine.left) + nth) % 2));
            match engine.at {
                0 if engine.left == 0 => return None,
                0 => vifs.iter().for_each(|vif| next.published[vif.index()] += 1),
                1 if next.is_gone => next.signal(vifs),
                1 => engine.news = next.owed.owe(RECEIVE, vifs).0,
                2 => next.word |= engine.news,
                _ => next.message |= engine.news != 0,
            }
            let engine = &mut next.engines[nth];
            engine.at = (engine.at + 1) % 4;
            if engine.at == 0 {
                (engine.news, engine.left) = (0, engine.left - 1);
            }
            Some(next)
        }

        fn controller(&self) -> Option<Self> {
            let mut next = self.clone();
            next.controller = match self.controller {
                Controller::Waits if self.message => {
                    next.message = false;
                    Controller::Interrupted
                }
                Controller::Interrupted => Controller::Rings(core::mem::take(&mut next.word)),
                Controller::Rings(bits) if bits != 0 => {
                    let lowest = bits & bits.wrapping_neg();
                    let passed = next.owed.pass(RECEIVE, VifSet(lowest));
                    next.signal(passed);
                    Controller::Rings(bits & !lowest)
                }
                Controller::Rings(_) => Controller::Waits,
                Controller::Waits => return None,
            };
            Some(next)
        }

        /// It ends, wherever it is.
        fn ends(&self) -> Self {
            let mut next = self.clone();
            next.is_gone = true;
            for (_, vifs) in next.owed.settle() {
                next.signal(vifs);
            }
            next
        }
    }

    #[test]
    fn no_signal_is_lost_however_engines_and_a_controller_that_may_end_take_turns() {
        let engine = EngineAt { left: 2, ..EngineAt::default() };
        let first = Model { engines: [engine; 2], ..Model::default() };
        let (mut known, mut left) = (HashSet::from([first.clone()]), std::vec![first]);
        let mut ends = 0;
        while let Some(model) = left.pop() {
            let mut next: std::vec::Vec<Model> = (0..2).filter_map(|nth| model.engine(nth)).collect();
            if !model.is_gone {
                next.extend(model.controller());
            }
            if next.is_empty() {
                ends += 1;
                assert!(model.seen == model.published, "a driver was not signalled of what came last");
            }
            if !model.is_gone {
                next.push(model.ends());
            }
            left.extend(next.into_iter().filter(|next| known.insert(next.clone())));
        }
        assert!(ends > 10 && known.len() > 1000, "{ends} ends of {} states", known.len());
    }
}
