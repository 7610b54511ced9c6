//! Whether guests are entered with the flushes that they need, worked out beside the processor: a flush that is missing shows
//! here also where an emulator forgets all translations at each entry.
//!
//! A processor may hold translations of an address space identifier from any time since they were last flushed. So an
//! identifier may be entered without a flush only for the virtual processor that used it last, with tables of which nothing
//! was taken away since, or if nobody has used it since the last flush. How identifiers are handed out ([`Asids`](crate::Asids)) is
//! not looked at, only what is entered.
//!
//! Source: APM vol. 2, 15.16 (TLB control).

use alloc::collections::BTreeMap;

/// What an entry orders to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// What belongs to the identifier that is entered.
    Own,
}

/// Whose translations an identifier stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The nested tables, by a number that changes whenever something is taken away from them, and that no others ever have.
    pub tables: u64,
    /// The virtual processor: others of the domain have page tables of their own.
    pub vcpu: u32,
    /// How often it was reset: a reset leaves nothing of the guest's own page tables in use.
    pub resets: u32,
}

/// An entry would use translations of somebody else, or old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Whose may still be there.
    pub held: Holder,
}

/// What one physical processor may hold.
#[derive(Clone, Debug, Default)]
pub struct Translations {
    /// Who used an identifier last, of those used since everything was flushed.
    held: BTreeMap<u32, Holder>,
}

impl Translations {
    /// Nothing.
    pub const fn new() -> Self {
        Self { held: BTreeMap::new() }
    }

    /// Enters `identifier` for `holder`.
    ///
    /// # Errors
    /// The flush that it orders is not enough.
    pub fn enter(&mut self, identifier: u32, holder: Holder, flush: Flush) -> Result<(), Stale> {
        if flush == Flush::All {
            self.held.clear();
        }
        match self.held.insert(identifier, holder) {
            Some(held) if held != holder && flush == Flush::None => Err(Stale { held }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ALICE: Holder = Holder { tables: 1, vcpu: 0, resets: 0 };

    #[test]
    fn a_revoked_page_a_sibling_a_reset_and_a_new_domain_need_a_flush() {
        let others =
            [Holder { tables: 2, ..ALICE }, Holder { vcpu: 1, ..ALICE }, Holder { resets: 1, ..ALICE }];
        for other in others {
            for flush in [Flush::All, Flush::Own] {
                let mut processor = Translations::new();
                assert_eq!(processor.enter(1, ALICE, Flush::None), Ok(()));
                assert_eq!(processor.enter(1, ALICE, Flush::None), Ok(()));
                assert_eq!(processor.clone().enter(1, other, Flush::None), Err(Stale { held: ALICE }));
                assert_eq!(processor.enter(1, other, flush), Ok(()));
                assert_eq!(processor.enter(1, ALICE, Flush::None), Err(Stale { held: other }));
            }
        }
    }

    #[test]
    fn a_flush_of_one_identifier_leaves_the_others() {
        let mut processor = Translations::new();
        let bob = Holder { tables: 2, ..ALICE };
        assert_eq!(processor.enter(1, ALICE, Flush::None), Ok(()));
        assert_eq!(processor.enter(2, bob, Flush::Own), Ok(()));
        assert!(processor.clone().enter(1, bob, Flush::None).is_err());
        assert_eq!(processor.enter(2, bob, Flush::All), Ok(()));
        assert_eq!(processor.enter(1, bob, Flush::None), Ok(()));
    }

    proptest! {
        /// Against a translation buffer that keeps every translation until it is flushed.
        #[test]
        fn agrees_with_a_buffer_that_forgets_nothing(
            entries in proptest::collection::vec((0u32..4, 0u64..3, 0u32..2, 0u8..6), 1..100)
        ) {
            let mut processor = Translations::new();
            let mut buffer: Vec<(u32, Holder)> = Vec::new();
            for (identifier, tables, vcpu, flush) in entries {
                let holder = Holder { tables, vcpu, resets: 0 };
                let flush = match flush {
                    0 => Flush::All,
                    1 => Flush::Own,
                    _ => Flush::None,
                };
                match flush {
                    Flush::All => buffer.clear(),
                    Flush::Own => buffer.retain(|(of, _)| *of != identifier),
                    Flush::None => {}
                }
                let stale = buffer.iter().any(|(of, whose)| *of == identifier && *whose != holder);
                prop_assert_eq!(processor.enter(identifier, holder, flush).is_err(), stale);
                if stale {
                    // The hypervisor stops here.
                    return Ok(());
                }
                buffer.push((identifier, holder));
            }
        }
    }
}
