//! Device table entries: what a requester may reach (48882, 2.2.2.1, "Device Table Entry Format").
//!
//! Only what Sluice ever writes can be expressed: every entry is valid (V=1, TV=1), so that a requester that nobody
//! placed is blocked and not passed through. All else stays 0: system management and port I/O requests are refused
//! (SysMgt, IoCtl), so are INIT, ExtINT, NMI and LINT messages of legacy controllers; the exclusion range does not
//! apply (Ex), the device has no IOTLB of its own (I), table walks look into caches (SD), faults are logged (SE, SA).

use crate::SpaceTag;
use sluice_memory::Hpa;

/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 32;
/// Bytes of a table that has an entry for every requester.
pub const TABLE_BYTES: u64 = ENTRY_BYTES << 16;

const VALID: u64 = 1 << 0;
const TRANSLATION_VALID: u64 = 1 << 1;
const MODE_SHIFT: u32 = 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

const INTERRUPTS_VALID: u64 = 1 << 0;
/// Binary logarithm of the number of entries: 256, one per vector.
const INTERRUPT_ENTRIES: u64 = 8 << 1;
/// The format wants tables on 128 bytes.
const INTERRUPT_TABLE: u64 = 0x000f_ffff_ffff_ff80;
/// IntCtl: fixed and arbitrated interrupts are looked up. 0 there refuses them.
const INTERRUPTS_REMAPPED: u64 = 2 << 60;

/// What a requester reaches in memory: the first two words of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing.
    Blocked,
    /// What a space's tables say.
    Space {
        /// The space's number.
        tag: SpaceTag,
        /// Its table of the highest level.
        root: Hpa,
        /// Its levels, 1-6.
        levels: u8,
    },
}

impl Memory {
    /// As the unit reads it. The two words are written one after the other: see [`super::table`].
    pub const fn encode(self) -> [u64; 2] {
        match self {
            // Mode 0 has no tables; what is left are the rights, and there are none.
            Self::Blocked => [VALID | TRANSLATION_VALID, 0],
            Self::Space { tag, root, levels } => [
                VALID
                    | TRANSLATION_VALID
                    | ((levels & 7) as u64) << MODE_SHIFT
                    | root.as_u64() & ADDRESS
                    | READ
                    | WRITE,
                tag.0 as u64,
            ],
        }
    }

    /// What the words mean, if [`Memory::encode`] made them.
    pub fn decode(words: [u64; 2]) -> Option<Self> {
        let tag = SpaceTag(words[1] as u16);
        let levels = (words[0] >> MODE_SHIFT & 7) as u8;
        let space = Self::Space { tag, root: Hpa::new(words[0] & ADDRESS), levels };
        // A space that is being left has its tag still in the second word.
        match words[0] == Self::Blocked.encode()[0] {
            true => Some(Self::Blocked),
            false => (space.encode() == words && (1..=6).contains(&levels)).then_some(space),
        }
    }
}

/// What becomes of a requester's interrupts: the third word of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// They pass as they are: all that can be done where interrupts are not remapped.
    Unchecked,
    /// All are refused.
    Blocked,
    /// They are looked up in the table there, which is a multiple of 128 and has 256 entries.
    Table(Hpa),
}

impl Interrupts {
    /// As the unit reads it.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Unchecked => 0,
            Self::Blocked => INTERRUPTS_VALID,
            Self::Table(at) => {
                INTERRUPTS_VALID | INTERRUPT_ENTRIES | at.as_u64() & INTERRUPT_TABLE | INTERRUPTS_REMAPPED
            }
        }
    }

    /// What the word means, if [`Interrupts::encode`] made it.
    pub fn decode(word: u64) -> Option<Self> {
        [Self::Unchecked, Self::Blocked, Self::Table(Hpa::new(word & INTERRUPT_TABLE))]
            .into_iter()
            .find(|made| made.encode() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A field of a 256-bit entry, by the bit numbers of the manual.
    fn field(words: [u64; 4], high: u32, low: u32) -> u64 {
        assert_eq!(high / 64, low / 64);
        words[(low / 64) as usize] >> (low % 64) & (u64::MAX >> (63 - (high - low)))
    }

    fn entry(memory: Memory, interrupts: Interrupts) -> [u64; 4] {
        let [first, second] = memory.encode();
        [first, second, interrupts.encode(), 0]
    }

    #[test]
    fn blocked_is_valid_without_rights() {
        let words = entry(Memory::Blocked, Interrupts::Blocked);
        assert_eq!(field(words, 0, 0), 1, "V");
        assert_eq!(field(words, 1, 1), 1, "TV");
        assert_eq!(field(words, 11, 9), 0, "Mode");
        assert_eq!(field(words, 62, 61), 0, "IW, IR");
        assert_eq!(field(words, 128, 128), 1, "IV");
        assert_eq!(field(words, 189, 188), 0, "IntCtl: abort");
    }

    proptest! {
        #[test]
        fn fields_are_where_the_manual_has_them(
            tag: u16, root in 0u64..1 << 40, levels in 1u8..=6, table in 0u64..1 << 45
        ) {
            let (root, table) = (Hpa::new(root << 12), Hpa::new(table << 7));
            let memory = Memory::Space { tag: SpaceTag(tag), root, levels };
            let words = entry(memory, Interrupts::Table(table));
            prop_assert_eq!(field(words, 1, 0), 3);
            prop_assert_eq!(field(words, 8, 2), 0, "reserved, HAD");
            prop_assert_eq!(field(words, 11, 9), u64::from(levels));
            prop_assert_eq!(field(words, 51, 12) << 12, root.as_u64());
            prop_assert_eq!(field(words, 60, 52), 0, "PPR, GPRP, GIoV, GV, GLX, GCR3 root");
            prop_assert_eq!(field(words, 63, 61), 3, "IR, IW");
            prop_assert_eq!(field(words, 79, 64), u64::from(tag));
            prop_assert_eq!(field(words, 127, 80), 0, "GCR3 root, I, SE, SA, IoCtl, Cache, SD, Ex, SysMgt");
            prop_assert_eq!(field(words, 132, 129), 8, "IntTabLen");
            prop_assert_eq!(field(words, 133, 133), 0, "IG: unmapped interrupts are logged");
            prop_assert_eq!(field(words, 179, 134) << 6, table.as_u64());
            prop_assert_eq!(field(words, 187, 180), 0, "INITPass, EIntPass, NMIPass");
            prop_assert_eq!(field(words, 189, 188), 2, "IntCtl: remapped");
            prop_assert_eq!(field(words, 191, 190), 0, "Lint0Pass, Lint1Pass");
            prop_assert_eq!(words[3], 0);
            prop_assert_eq!(Memory::decode([words[0], words[1]]), Some(memory));
            prop_assert_eq!(Interrupts::decode(words[2]), Some(Interrupts::Table(table)));
        }

        #[test]
        fn nothing_else_is_understood(first: u64, second: u64, third: u64, bit in 0u32..64) {
            for words in [[first, second], [1 << bit, 0], [3 | 1 << bit, 0]] {
                if let Some(memory) = Memory::decode(words) {
                    prop_assert_eq!(memory.encode()[0], words[0]);
                }
            }
            for word in [third, 1 << bit, Interrupts::Blocked.encode() | 1 << bit] {
                if let Some(interrupts) = Interrupts::decode(word) {
                    prop_assert_eq!(interrupts.encode(), word);
                }
            }
        }
    }
}
