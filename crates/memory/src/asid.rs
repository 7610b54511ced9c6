//! Address space identifiers of one physical processor: handed out one after the other, and all at once again after a flush.
//!
//! Key types: [`Asids`] belongs to a processor, [`Asid`] is what a virtual processor holds of it. Translations are tagged with
//! the identifier that they were made under, so an identifier that passes to another holder must be flushed in between. Within a
//! generation each identifier is handed out once. When they have run out, a new generation begins: its first entry flushes
//! everything, and whoever holds an identifier of an older generation gets another before it is entered. So there may be more
//! virtual processors than identifiers. A holder whose translations are to be forgotten gives its identifier up, and the next one
//! has none.
//!
//! Source: APM vol. 2, 15.15 (NASID, VMCB's ASID) and 15.16 (TLB control).

/// The lowest identifier of a guest; 0 is the host's.
const FIRST: u32 = 1;

/// What a virtual processor holds: an identifier that is its own until the generation ends. The default holds none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    identifier: u32,
    generation: u64,
}

/// What an entry with a new identifier takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The identifier, at least 1.
    pub identifier: u32,
    /// The entry must flush the translations of all identifiers.
    pub flush: bool,
}

/// The identifiers of one physical processor.
#[derive(Clone, Debug)]
pub struct Asids {
    /// At least 1: a default [`Asid`] is of none.
    generation: u64,
    next: u32,
    count: u32,
}

impl Asids {
    /// Those below `count`, as the processor counts them, with the host's. Nothing is known of what the processor holds: the first
    /// entry flushes. `None` if there is none for a guest.
    pub const fn new(count: u32) -> Option<Self> {
        if count > FIRST { Some(Self { generation: 1, next: count, count }) } else { None }
    }

    /// Sees to it that `held` is an identifier which nobody else holds on this processor. Returns what the next entry takes if it
    /// is another than before. If that entry does not come about although it was to flush, call [`Self::expire`].
    #[inline]
    pub fn renew(&mut self, held: &mut Asid) -> Option<Assigned> {
        if held.generation == self.generation { None } else { Some(self.assign(held)) }
    }

    #[cold]
    fn assign(&mut self, held: &mut Asid) -> Assigned {
        let flush = self.next >= self.count;
        if flush {
            self.generation += 1;
            self.next = FIRST;
        }
        *held = Asid { identifier: self.next, generation: self.generation };
        self.next += 1;
        Assigned { identifier: held.identifier, flush }
    }

    /// Ends the generation: nothing that was handed out may be entered any more, and the next entry flushes.
    pub fn expire(&mut self) {
        self.generation += 1;
        self.next = self.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_first_entry_of_a_generation_flushes_and_no_other() {
        let mut asids = Asids::new(4).unwrap();
        let assigned: Vec<_> = (0..8)
            .map(|_| asids.renew(&mut Asid::default()).map(|new| (new.identifier, new.flush)))
            .collect();
        let generation = [Some((1, true)), Some((2, false)), Some((3, false))];
        assert_eq!(assigned, [&generation[..], &generation[..], &generation[..2]].concat());
    }

    #[test]
    fn a_holder_keeps_its_identifier_until_the_generation_ends() {
        let mut asids = Asids::new(3).unwrap();
        let (mut alice, mut bob, mut carol) = (Asid::default(), Asid::default(), Asid::default());
        assert_eq!(asids.renew(&mut alice), Some(Assigned { identifier: 1, flush: true }));
        assert_eq!(asids.renew(&mut bob), Some(Assigned { identifier: 2, flush: false }));
        assert_eq!((asids.renew(&mut alice), asids.renew(&mut bob)), (None, None));
        assert_eq!(asids.renew(&mut carol), Some(Assigned { identifier: 1, flush: true }));
        assert_eq!(asids.renew(&mut alice), Some(Assigned { identifier: 2, flush: false }));
        assert_eq!(asids.renew(&mut carol), None);
    }

    #[test]
    fn a_flush_that_did_not_come_about_is_ordered_again() {
        let mut asids = Asids::new(16).unwrap();
        let (mut alice, mut bob) = (Asid::default(), Asid::default());
        assert_eq!(asids.renew(&mut alice), Some(Assigned { identifier: 1, flush: true }));
        asids.expire();
        assert_eq!(asids.renew(&mut bob), Some(Assigned { identifier: 1, flush: true }));
        assert_eq!(asids.renew(&mut alice), Some(Assigned { identifier: 2, flush: false }));
    }

    #[test]
    fn a_processor_without_identifiers_for_guests_has_no_allocator() {
        assert!(Asids::new(0).is_none() && Asids::new(1).is_none());
        let mut one = Asids::new(2).unwrap();
        for _ in 0..3 {
            assert_eq!(one.renew(&mut Asid::default()), Some(Assigned { identifier: 1, flush: true }));
        }
    }

    proptest! {
        /// Against a translation buffer that keeps every translation until it is flushed: none is found by another holder, nor by
        /// one that has given its identifier up since.
        #[test]
        fn no_holder_finds_translations_of_another(
            count in 2u32..8,
            steps in proptest::collection::vec((0usize..12, 0u8..8), 1..200)
        ) {
            let mut asids = Asids::new(count).unwrap();
            // Of each holder: what it holds, what its next entry takes, and how often it gave up.
            let mut holders = vec![(Asid::default(), 0u32, 0u32); 12];
            let mut buffer: Vec<(u32, usize, u32)> = (0..count).map(|old| (old, usize::MAX, 0)).collect();
            for (who, what) in steps {
                let (held, identifier, lives) = &mut holders[who];
                if what == 0 {
                    *held = Asid::default();
                    *lives += 1;
                }
                let assigned = asids.renew(held);
                if let Some(assigned) = assigned {
                    *identifier = assigned.identifier;
                }
                let flush = assigned.is_some_and(|assigned| assigned.flush);
                if what == 1 {
                    // Its slice is over before it enters.
                    if flush {
                        asids.expire();
                    }
                    continue;
                }
                if flush {
                    buffer.clear();
                }
                prop_assert!((1..count).contains(identifier));
                let foreign = |(of, whose, life): &(u32, usize, u32)| of == identifier && (*whose, *life) != (who, *lives);
                prop_assert!(!buffer.iter().any(foreign));
                buffer.push((*identifier, who, *lives));
            }
        }
    }
}
