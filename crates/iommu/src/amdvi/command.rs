//! Commands (48882, 2.4, "Commands").
//!
//! Deviation: device IOTLBs, page requests and guest translations have commands, too; they are never used.

use crate::{Invalidation, RequesterId, SpaceTag};
use sluice_memory::{Hpa, Iova};

/// Bytes of a command.
pub const BYTES: u64 = 16;

/// Something that a unit is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Store a value, once all commands before this are done: what they made invalid is in no use any more.
    CompletionWait {
        /// Where: a multiple of 8.
        at: Hpa,
        /// What.
        value: u64,
    },
    /// Forget a device table entry.
    ForgetDevice(RequesterId),
    /// Forget the translations of `1 << order` pages from `at`, a multiple of as many, and the tables on the way.
    ForgetPages {
        /// Of this space.
        space: SpaceTag,
        /// First page.
        at: Iova,
        /// Binary logarithm of the number of pages.
        order: u8,
    },
    /// Forget all translations of a space, and the tables.
    ForgetSpace(SpaceTag),
    /// Forget a requester's interrupt table entries.
    ForgetInterrupts(RequesterId),
    /// Forget everything. Only where [`super::register::Features::INVALIDATE_ALL`] is.
    ForgetAll,
}

impl From<Invalidation> for Command {
    fn from(what: Invalidation) -> Self {
        match what {
            Invalidation::Pages { space, at, order } => Self::ForgetPages { space, at, order },
            Invalidation::Space(space) => Self::ForgetSpace(space),
            Invalidation::Everything => Self::ForgetAll,
        }
    }
}

const OPCODE_SHIFT: u32 = 60;
const STORE: u64 = 1 << 0;
const TAG_SHIFT: u32 = 32;
/// S: the size is where the address has its lowest 0.
const SIZE: u64 = 1 << 0;
/// PDE: the tables that led to the pages are forgotten, too.
const DIRECTORIES: u64 = 1 << 1;
/// The address that means all of a space, with [`SIZE`].
const ALL_PAGES: u64 = 0x7fff_ffff_ffff_f000;
/// Larger ranges have their lowest 0 where bits are only copies of bit 51.
const LARGEST_ORDER: u8 = 40;

impl Command {
    /// As the unit reads it.
    pub const fn encode(self) -> [u64; 2] {
        let (opcode, first, second) = match self {
            Self::CompletionWait { at, value } => (1, at.as_u64() & 0x000f_ffff_ffff_fff8 | STORE, value),
            Self::ForgetDevice(requester) => (2, requester.0 as u64, 0),
            Self::ForgetPages { space, at, order } => (3, (space.0 as u64) << TAG_SHIFT, pages(at, order)),
            Self::ForgetSpace(space) => (3, (space.0 as u64) << TAG_SHIFT, ALL_PAGES | SIZE | DIRECTORIES),
            Self::ForgetInterrupts(requester) => (5, requester.0 as u64, 0),
            Self::ForgetAll => (8, 0, 0),
        };
        [opcode << OPCODE_SHIFT | first, second]
    }

    /// As it lies in the command buffer.
    pub fn bytes(self) -> [u8; BYTES as usize] {
        let [first, second] = self.encode();
        (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
    }
}

/// Address word for a range (48882, table "Example Page Size Encodings"): the lowest 0 from bit 12 up is the upper half of
/// the range.
const fn pages(at: Iova, order: u8) -> u64 {
    match order {
        0 => at.align_down(1 << 12).as_u64() | DIRECTORIES,
        1..=LARGEST_ORDER => {
            let bytes = 1u64 << (order + 12);
            let ones = (bytes / 2 - 1) & !0xfff;
            at.align_down(bytes).as_u64() | ones | SIZE | DIRECTORIES
        }
        _ => ALL_PAGES | SIZE | DIRECTORIES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amdvi::model::{Decoded, decode};
    use proptest::prelude::*;

    #[test]
    fn examples_of_the_manual() {
        let word = |at: u64, order| {
            let command = Command::ForgetPages { space: SpaceTag(0xabcd), at: Iova::new(at), order }.encode();
            assert_eq!(command[0], 0x3000_abcd_0000_0000);
            command[1]
        };
        assert_eq!(word(0x1234_5000, 0), 0x1234_5002);
        assert_eq!(word(0x1234_4000, 1), 0x1234_4003, "8 KiB: bit 12 is 0");
        assert_eq!(word(0x1234_4000, 2), 0x1234_5003, "16 KiB: 01");
        assert_eq!(word(0x1220_0000, 9), 0x122f_f003, "2 MiB");
        assert_eq!(word(0x4000_0000, 18), 0x5fff_f003, "1 GiB");
        assert_eq!(word(0, 51), 0x7fff_ffff_ffff_f003);
        assert_eq!(word(0, 41), 0x7fff_ffff_ffff_f003);
    }

    proptest! {
        /// The model's decoder is written from the manual, and refuses reserved bits.
        #[test]
        fn the_unit_reads_what_was_meant(page in 0u64..1 << 52, order in 0u8..52, id: u16, word in 0u64..1 << 49, value: u64) {
            let requester = RequesterId(id);
            let space = SpaceTag(id);
            prop_assert_eq!(decode(&Command::ForgetDevice(requester).bytes()), Decoded::Device(requester));
            prop_assert_eq!(decode(&Command::ForgetInterrupts(requester).bytes()), Decoded::Interrupts(requester));
            prop_assert_eq!(decode(&Command::ForgetAll.bytes()), Decoded::All);
            let wait = Command::CompletionWait { at: Hpa::new(word << 3), value };
            prop_assert_eq!(decode(&wait.bytes()), Decoded::Store(Hpa::new(word << 3), value));

            let bytes = 1u128 << (order + 12);
            let at = u128::from(page << 12) & !(bytes - 1);
            let command = Command::ForgetPages { space, at: Iova::new(at as u64), order };
            let Decoded::Pages { space: decoded, first, last, directories } = decode(&command.bytes()) else { panic!() };
            prop_assert_eq!((decoded, directories), (space, true));
            let (end, decoded_end) = (at + bytes - 1, u128::from(last));
            prop_assert!(u128::from(first) <= at && end <= decoded_end, "all of it is forgotten");
            if order < 40 {
                prop_assert_eq!((u128::from(first), decoded_end), (at, end), "and nothing else");
            }
            let Decoded::Pages { first, last, .. } = decode(&Command::ForgetSpace(space).bytes()) else { panic!() };
            prop_assert_eq!((first, last), (0, u64::MAX));
        }
    }
}
