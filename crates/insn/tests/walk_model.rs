//! Page walks against a model that knows each rule by itself: which bits are reserved, what a page allows, which bits an
//! access sets. Source: APM vol 2, 5.2-5.6; where the two differ, one of them read it wrong.

use proptest::prelude::*;
use sluice_insn::walk::{Access, Kind, WalkError};
use sluice_insn::{PageFault, PagingState, Tables, touch};
use sluice_memory::Gpa;
use std::cell::RefCell;
use std::collections::BTreeMap;

const WP: u64 = 1 << 16;
const PAE: u64 = 1 << 5;
const LA57: u64 = 1 << 12;
const SMEP: u64 = 1 << 20;
const SMAP: u64 = 1 << 21;
const LMA: u64 = 1 << 10;
const NXE: u64 = 1 << 11;

/// One of the modes with entries of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pae,
    Four,
    Five,
}

impl Mode {
    fn levels(self) -> usize {
        match self {
            Self::Pae => 3,
            Self::Four => 4,
            Self::Five => 5,
        }
    }
}

/// What is walked: the entries from the root to the page, as many as are needed.
#[derive(Clone, Debug)]
struct Case {
    mode: Mode,
    entries: [u64; 5],
    cr0: u64,
    cr4: u64,
    nxe: bool,
    physical_bits: u32,
    access: Access,
}

impl Case {
    fn is_page(&self, level: usize) -> bool {
        let large = self.entry(level) & 0x80 != 0;
        level == 1 || large && (level == 2 || level == 3 && self.mode != Mode::Pae)
    }

    /// Entry of a level, 1 for the tables of the smallest pages.
    fn entry(&self, level: usize) -> u64 {
        self.entries[self.mode.levels() - level]
    }

    /// Whether a bit of an entry must be zero.
    fn is_reserved(&self, level: usize, bit: u32) -> bool {
        let long = self.mode != Mode::Pae;
        let pointers = level == 3 && !long;
        match bit {
            // No execute, where that is switched on; the pointers of legacy mode do not have it.
            63 => !self.nxe || pointers,
            // Software's, in long mode.
            52..63 => !long,
            _ if (self.physical_bits..52).contains(&bit) => true,
            // The address of a page has no bits below its size; the lowest is the page attribute table's.
            13..21 => level == 2 && self.is_page(2) || level == 3 && self.is_page(3),
            21..30 => level == 3 && self.is_page(3),
            8 => level > 3 || pointers,
            7 => level > 3 || pointers,
            5 | 6 | 1 | 2 => pointers,
            _ => false,
        }
    }

    /// The error code of the page fault, or the bits set in each entry.
    fn expected(&self) -> Result<Vec<(usize, u64)>, u32> {
        let Access { kind, user, ac } = self.access;
        let fetch_bit = kind == Kind::Execute && (self.nxe || self.cr4 & SMEP != 0);
        let code = u32::from(kind == Kind::Write) * 2 + u32::from(user) * 4 + u32::from(fetch_bit) * 16;
        let mut path = Vec::new();
        for level in (1..=self.mode.levels()).rev() {
            if self.entry(level) & 1 == 0 {
                return Err(code);
            }
            if (0..64).any(|bit| self.entry(level) >> bit & 1 != 0 && self.is_reserved(level, bit)) {
                return Err(code | 1 | 8);
            }
            path.push(level);
            if self.is_page(level) {
                break;
            }
        }
        let with_rights: Vec<usize> =
            path.iter().copied().filter(|level| !(self.mode == Mode::Pae && *level == 3)).collect();
        let all = |bit: u64| with_rights.iter().all(|level| self.entry(*level) & bit != 0);
        let users = all(4);
        let never_executed = with_rights.iter().any(|level| self.entry(*level) >> 63 != 0);
        let forbidden = [
            user && !users,
            kind == Kind::Write && !all(2) && (user || self.cr0 & WP != 0),
            kind == Kind::Execute && never_executed,
            kind == Kind::Execute && !user && users && self.cr4 & SMEP != 0,
            kind != Kind::Execute && !user && users && self.cr4 & SMAP != 0 && !ac,
        ];
        if forbidden.contains(&true) {
            return Err(code | 1);
        }
        let page = path.last().copied().unwrap_or(1);
        let set = |level| 0x20 | if level == page && kind == Kind::Write { 0x40 } else { 0 };
        Ok(with_rights.iter().map(|level| (*level, set(*level))).collect())
    }
}

struct Memory(RefCell<BTreeMap<u64, u64>>);

impl Tables for Memory {
    fn read(&self, at: Gpa) -> Option<u64> {
        self.0.borrow().get(&at.as_u64()).copied()
    }

    fn replace(&self, at: Gpa, old: u64, new: u64) -> bool {
        assert_eq!(self.0.borrow_mut().insert(at.as_u64(), new), Some(old));
        true
    }
}

/// Mostly what is allowed, and a few bits of anything.
fn entry() -> impl Strategy<Value = u64> {
    let flags = prop_oneof![4 => Just(7u64), 1 => Just(3), 1 => Just(5), 1 => Just(1), 1 => 0..8u64];
    let large = prop_oneof![3 => Just(0u64), 1 => Just(0x80u64)];
    let odd = prop_oneof![
        6 => Just(0u64),
        2 => (0..64u32).prop_map(|bit| 1 << bit),
        1 => Just(1 << 63),
        1 => Just(0x60),
    ];
    (flags, large, odd).prop_map(|(flags, large, odd)| flags | large | odd)
}

fn case() -> impl Strategy<Value = Case> {
    let mode = prop_oneof![Just(Mode::Pae), Just(Mode::Four), Just(Mode::Five)];
    let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Execute)];
    let control = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let access = (kind, any::<bool>(), any::<bool>());
    let bits = prop_oneof![Just(36u32), Just(40), Just(48), Just(52)];
    (mode, prop::array::uniform5(entry()), control, access, bits).prop_map(
        |(mode, mut entries, (wp, smep, smap, nxe), (kind, user, ac), physical_bits)| {
            // The roots of legacy mode have no rights; with rights they are not valid.
            if mode == Mode::Pae && entries[4] & 0x40 == 0 {
                entries[0] &= !0x1e6;
            }
            for entry in &mut entries {
                // The tables are where the test has them: no address bits but those that are reserved.
                if *entry & 0x80 == 0 {
                    *entry &= !((1 << physical_bits) - (1 << 12));
                }
            }
            let cr0 = 1 << 31 | 1 | if wp { WP } else { 0 };
            let la57 = if mode == Mode::Five { LA57 } else { 0 };
            let cr4 = PAE | la57 | if smep { SMEP } else { 0 } | if smap { SMAP } else { 0 };
            Case { mode, entries, cr0, cr4, nxe, physical_bits, access: Access { kind, user, ac } }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_keeps_every_rule(case in case()) {
        // Address zero by tables at 0x1000, 0x2000, ...: each entry is the first of its table.
        let levels = case.mode.levels();
        let at = |level: usize| 0x1000 * (levels - level + 1) as u64;
        let words: BTreeMap<u64, u64> = (1..=levels)
            .map(|level| {
                let next = if case.is_page(level) { 0 } else { at(level) + 0x1000 };
                (at(level), case.entry(level) | next)
            })
            .collect();
        let before = words.clone();
        let memory = Memory(RefCell::new(words));
        let efer = if case.mode == Mode::Pae { 0 } else { LMA } | if case.nxe { NXE } else { 0 };
        let state = PagingState { cr0: case.cr0, cr3: 0x1000, cr4: case.cr4, efer, physical_bits: case.physical_bits };
        let found = touch(&state, 0, case.access, &memory);
        let after = memory.0.into_inner();

        let mut expected = before.clone();
        match case.expected() {
            Ok(set) => {
                prop_assert!(found.is_ok(), "{found:?}");
                for (level, bits) in set {
                    *expected.get_mut(&at(level)).unwrap() |= bits;
                }
            }
            Err(error_code) => {
                let fault = PageFault { address: 0, error_code };
                prop_assert_eq!(found, Err(WalkError::Page(fault)));
            }
        }
        prop_assert_eq!(after, expected);
    }
}
