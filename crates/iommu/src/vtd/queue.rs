//! Invalidation descriptors (D51397, 6.5.2), 128 bits wide.
//!
//! Descriptors may be executed out of order but for what a wait descriptor orders; one with a status write, at the end
//! of a batch, tells that all before it is done and, with draining, that requests translated before have ended.

use crate::{Invalidation, RequesterId, SpaceTag};
use sluice_memory::{Hpa, Iova};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of the shortest queue, size field 0.
pub const QUEUE_BYTES: u64 = 4096;

const CONTEXT: u64 = 1;
const IOTLB: u64 = 2;
const INTERRUPT: u64 = 4;
const WAIT: u64 = 5;

const GLOBAL: u64 = 1 << 4;
const BY_SPACE: u64 = 2 << 4;
/// By device, for context entries; by page, for translations.
const BY_OBJECT: u64 = 3 << 4;

const DRAIN_WRITES: u64 = 1 << 6;
const DRAIN_READS: u64 = 1 << 7;
const TAG_SHIFT: u32 = 16;
const REQUESTER_SHIFT: u32 = 32;

const BY_INDEX: u64 = 1 << 4;
const INDEX_SHIFT: u32 = 32;

const STATUS_WRITE: u64 = 1 << 5;
const STATUS_SHIFT: u32 = 32;

/// What a unit can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest order of pages that one descriptor can name (CAP.MAMV); `None` without page-selective invalidation.
    pub largest_order: Option<u8>,
    /// It drains reads on request (CAP.DRD).
    pub drains_reads: bool,
    /// It drains writes on request (CAP.DWD).
    pub drains_writes: bool,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Forget all context entries, and root entries.
    AllContexts,
    /// Forget the context entry of one requester, which was in that space.
    Context {
        /// Whose.
        requester: RequesterId,
        /// The tag that the entry had. 0 for one that was not present.
        tag: SpaceTag,
    },
    /// Forget translations, and page-table entries that led to them.
    Translations(Invalidation, Limits),
    /// Forget all interrupt remapping entries.
    AllInterrupts,
    /// Forget the entry of one index.
    Interrupt(u16),
    /// Write a status word when everything before is done.
    Wait {
        /// Where to, a multiple of 4.
        status: Hpa,
        /// What.
        data: u32,
    },
}

impl Descriptor {
    /// The descriptor that forgets at least this: where the unit cannot be told of so many pages at once, the space.
    pub fn translations(what: Invalidation, limits: Limits) -> Self {
        let what = match what {
            Invalidation::Pages { space, order, .. }
                if limits.largest_order.is_none_or(|largest| order > largest) =>
            {
                Invalidation::Space(space)
            }
            what => what,
        };
        Self::Translations(what, limits)
    }

    /// Low and high half.
    pub fn encode(self) -> [u64; 2] {
        match self {
            Self::AllContexts => [CONTEXT | GLOBAL, 0],
            Self::Context { requester, tag } => [
                CONTEXT
                    | BY_OBJECT
                    | u64::from(tag.0) << TAG_SHIFT
                    | u64::from(requester.0) << REQUESTER_SHIFT,
                0,
            ],
            Self::Translations(what, limits) => {
                let reads = if limits.drains_reads { DRAIN_READS } else { 0 };
                let writes = if limits.drains_writes { DRAIN_WRITES } else { 0 };
                let (how, high) = match what {
                    Invalidation::Everything => (GLOBAL, 0),
                    Invalidation::Space(tag) => (BY_SPACE | u64::from(tag.0) << TAG_SHIFT, 0),
                    Invalidation::Pages { space, at, order } => {
                        // The hint is clear: tables on the way are forgotten, too.
                        (BY_OBJECT | u64::from(space.0) << TAG_SHIFT, page(at, order))
                    }
                };
                [IOTLB | reads | writes | how, high]
            }
            Self::AllInterrupts => [INTERRUPT, 0],
            Self::Interrupt(index) => [INTERRUPT | BY_INDEX | u64::from(index) << INDEX_SHIFT, 0],
            Self::Wait { status, data } => {
                [WAIT | STATUS_WRITE | u64::from(data) << STATUS_SHIFT, status.as_u64() & !3]
            }
        }
    }

    /// Its bytes as they are in memory.
    pub fn bytes(self) -> [u8; DESCRIPTOR_BYTES as usize] {
        let [low, high] = self.encode();
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }
}

/// Address and address mask. Bits below the mask's size are ignored by the unit; they are cleared for clarity.
fn page(at: Iova, order: u8) -> u64 {
    let order = order.min(51);
    at.align_down(1 << (12 + order)).as_u64() | u64::from(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { largest_order: Some(18), drains_reads: true, drains_writes: true };

    /// Bits `high` to `low` of a descriptor, as the manual counts them.
    fn bits(descriptor: Descriptor, high: u32, low: u32) -> u64 {
        let all = u128::from_le_bytes(descriptor.bytes());
        (all >> low & ((1 << (high - low + 1)) - 1)) as u64
    }

    proptest! {
        /// Each field where its figure has it (6-5 to 6-15), and every other bit zero.
        #[test]
        fn fields(tag: u16, requester: u16, page in 0u64..1 << 40, order in 0u8..=18, index: u16, data: u32) {
            let space = SpaceTag(tag);
            let check = |descriptor: Descriptor, fields: &[(u32, u32, u64)]| {
                let mut expected = 0u128;
                for (high, low, value) in fields {
                    assert_eq!(bits(descriptor, *high, *low), *value, "{high}:{low} of {descriptor:?}");
                    expected |= u128::from(*value) << low;
                }
                assert_eq!(u128::from_le_bytes(descriptor.bytes()), expected, "{descriptor:?}");
            };
            let tag = u64::from(tag);
            check(Descriptor::AllContexts, &[(3, 0, 1), (5, 4, 1)]);
            let context = Descriptor::Context { requester: RequesterId(requester), tag: space };
            check(context, &[(3, 0, 1), (5, 4, 3), (31, 16, tag), (47, 32, requester.into())]);
            let drained = (7, 6, 3);
            check(Descriptor::translations(Invalidation::Everything, LIMITS), &[(3, 0, 2), (5, 4, 1), drained]);
            let all = Descriptor::translations(Invalidation::Space(space), LIMITS);
            check(all, &[(3, 0, 2), (5, 4, 2), drained, (31, 16, tag)]);
            let page = page >> order << order;
            let pages = Invalidation::Pages { space, at: Iova::new(page << 12), order };
            check(
                Descriptor::translations(pages, LIMITS),
                &[(3, 0, 2), (5, 4, 3), drained, (31, 16, tag), (69, 64, order.into()), (70, 70, 0), (127, 76, page)],
            );
            check(Descriptor::AllInterrupts, &[(3, 0, 4), (4, 4, 0)]);
            check(Descriptor::Interrupt(index), &[(3, 0, 4), (4, 4, 1), (31, 27, 0), (47, 32, index.into())]);
            let status = Hpa::new(page << 12 | 0x124);
            let wait = Descriptor::Wait { status, data };
            check(wait, &[(3, 0, 5), (6, 4, 2), (63, 32, data.into()), (127, 66, status.as_u64() >> 2)]);
        }
    }

    #[test]
    fn what_cannot_be_named_by_page_is_forgotten_by_space() {
        let pages = |order| Invalidation::Pages { space: SpaceTag(5), at: Iova::new(0), order };
        let kind = |order, largest_order| {
            let limits = Limits { largest_order, ..LIMITS };
            bits(Descriptor::translations(pages(order), limits), 5, 4)
        };
        assert_eq!([kind(18, Some(18)), kind(19, Some(18)), kind(0, None)], [3, 2, 2]);
        let plain = Limits { drains_reads: false, drains_writes: false, ..LIMITS };
        assert_eq!(bits(Descriptor::translations(pages(0), plain), 7, 6), 0);
    }
}
