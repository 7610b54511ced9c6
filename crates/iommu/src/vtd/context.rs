//! Root and context entries: from a requester to its page tables (D51397, 9.1 and 9.3).
//!
//! The root table has an entry for each of the 256 buses, each context table one for each of a bus's 256 functions.
//! Entries have 16 bytes. What is zero is not present: requests fault.

use crate::{RequesterId, SpaceTag};
use sluice_memory::Hpa;

const PRESENT: u64 = 1;
const ADDRESS: u64 = !0xfff;
/// Translation type 00: untranslated requests go through second-level tables, all others are blocked.
const TRANSLATE: u64 = 0 << 2;
const WIDTH: u64 = 7;
const TAG_SHIFT: u32 = 8;

/// Bytes of the root table and of a context table.
pub const TABLE_BYTES: u64 = 4096;
/// Bytes of an entry of either.
pub const ENTRY_BYTES: u64 = 16;

/// Where in the root table the entry of the requester's bus is.
pub const fn root_offset(requester: RequesterId) -> u64 {
    requester.bus() as u64 * ENTRY_BYTES
}

/// Where in its bus's context table the requester's entry is.
pub const fn context_offset(requester: RequesterId) -> u64 {
    requester.devfn() as u64 * ENTRY_BYTES
}

/// The low half of the root entry of a bus with a context table; the high half is zero.
pub const fn root_entry(table: Hpa) -> u64 {
    table.as_u64() & ADDRESS | PRESENT
}

/// The context table of a root entry's low half.
pub const fn context_table(entry: u64) -> Option<Hpa> {
    if entry & PRESENT == 0 { None } else { Some(Hpa::new(entry & ADDRESS)) }
}

/// What a requester reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextEntry {
    /// Name of the space.
    pub tag: SpaceTag,
    /// Its table of the highest level.
    pub root: Hpa,
    /// Levels of its tables, 2-5.
    pub levels: u8,
}

impl ContextEntry {
    /// Low and high half. The low one makes it present, and is to be written last and cleared first.
    pub fn encode(self) -> [u64; 2] {
        let width = u64::from(self.levels).wrapping_sub(2) & WIDTH;
        [self.root.as_u64() & ADDRESS | TRANSLATE | PRESENT, u64::from(self.tag.0) << TAG_SHIFT | width]
    }

    /// What is present, if [`ContextEntry::encode`] made it.
    pub fn decode([low, high]: [u64; 2]) -> Option<Self> {
        (low & PRESENT != 0).then_some(Self {
            tag: SpaceTag((high >> TAG_SHIFT) as u16),
            root: Hpa::new(low & ADDRESS),
            levels: (high & WIDTH) as u8 + 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The fields are where the manual has them (figures 9-1 and 9-3), and nothing else is set.
        #[test]
        fn fields_and_round_trip(tag: u16, page in 0u64..1 << 40, levels in 2u8..=5, requester: u16) {
            let root = Hpa::new(page << 12);
            let entry = ContextEntry { tag: SpaceTag(tag), root, levels };
            let [low, high] = entry.encode();
            prop_assert_eq!((low & 1, low >> 1 & 0x7ff, low >> 12), (1, 0, page));
            prop_assert_eq!((high & 7, high >> 3 & 0x1f, high >> 8), (u64::from(levels) - 2, 0, u64::from(tag)));
            prop_assert_eq!(ContextEntry::decode([low, high]), Some(entry));
            prop_assert_eq!(ContextEntry::decode([low & !1, high]), None);
            prop_assert_eq!(context_table(root_entry(root)), Some(root));
            let id = RequesterId(requester);
            prop_assert_eq!(root_offset(id) << 4 | context_offset(id) >> 4, u64::from(requester));
        }
    }

    #[test]
    fn cleared_tables_block() {
        assert_eq!(context_table(0), None);
        assert_eq!(ContextEntry::decode([0, 0]), None);
    }
}
