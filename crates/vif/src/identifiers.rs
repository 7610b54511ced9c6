//! The identifiers by which engines say whose drivers they signal.

use crate::VifSet;

/// Identifiers, of which each VIF has one for each direction. Of too few, VIFs share them: who passes signals on cannot tell these from each other, and
/// signals all of them.
///
/// Source: Raj and Schwan, 2.2 (a bit of a register for each) and 4.1 (what sharing costs); messages name a VIF each, so that nobody shares unless
/// that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// Bits of the register for a direction; 0: as many as VIFs.
    bits: u8,
}

impl Identifiers {
    /// Bits of a register for each direction, 1-64. `None`: nobody shares any.
    pub fn new(bits: Option<u8>) -> Self {
        Self { bits: bits.unwrap_or(0) % 64 }
    }

    /// Those that are signalled with these for nothing, of all that could be.
    pub fn redundant(self, signalled: VifSet, all: VifSet) -> VifSet {
        if self.bits == 0 || signalled.is_empty() {
            return VifSet::default();
        }
        let mut set =
            signalled.iter().fold(0u64, |set, vif| set | 1 << (vif.index() % usize::from(self.bits)));
        // The register's bits, as often as there are VIFs behind them.
        let mut width = u32::from(self.bits);
        while width < 64 {
            set |= set << width;
            width *= 2;
        }
        VifSet(set & all.0 & !signalled.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VifId;
    use std::vec::Vec;

    #[test]
    fn who_shares_an_identifier_is_signalled_for_nothing() {
        let set = |of: &[u8]| {
            let mut set = VifSet::default();
            of.iter().for_each(|id| set.insert(VifId(*id)));
            set
        };
        let all = set(&[0, 1, 2, 3, 5, 8, 63]);
        for (bits, signalled, redundant) in [
            (None, &[1, 5][..], &[][..]),
            (Some(64), &[1, 5], &[]),
            (Some(1), &[5], &[0, 1, 2, 3, 8, 63]),
            (Some(2), &[5], &[1, 3, 63]),
            (Some(3), &[2, 0], &[3, 5, 8, 63]),
            (Some(8), &[0], &[8]),
            (Some(40), &[1, 2, 3], &[]),
            (Some(1), &[], &[]),
        ] {
            let found = Identifiers::new(bits).redundant(set(signalled), all);
            assert_eq!(found, set(redundant), "{bits:?} {signalled:?}");
        }
    }

    /// As it is meant, for every width.
    #[test]
    fn a_bit_is_for_every_vif_whose_number_is_as_much_modulo_the_width() {
        for bits in 1..64u8 {
            for signalled in 0..64u8 {
                let mut one = VifSet::default();
                one.insert(VifId(signalled));
                let found = Identifiers::new(Some(bits)).redundant(one, VifSet(u64::MAX));
                let shares = |other: &u8| other % bits == signalled % bits && *other != signalled;
                let wanted: Vec<usize> = (0..64).filter(shares).map(usize::from).collect();
                assert_eq!(found.iter().map(VifId::index).collect::<Vec<_>>(), wanted, "{bits} bits");
            }
        }
    }
}
