//! What the IOMMUs have in common: who asks, for which space, what is to be forgotten, what went wrong.

use core::fmt;
use sluice_memory::{Iova, PAGE_SIZE};

/// Bus, device and function number of whoever makes a request on the bus: bits 15:8, 7:3, 2:0 (PCI Express 4.0, 2.2.6.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequesterId(pub u16);

impl RequesterId {
    /// From its parts; bits of `device` above 5 and of `function` above 3 are cut off.
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        Self((bus as u16) << 8 | ((device & 31) as u16) << 3 | (function & 7) as u16)
    }

    /// Its bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Device and function, bits 7:0.
    pub const fn devfn(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Display for RequesterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x}:{:02x}.{}", self.bus(), self.devfn() >> 3, self.devfn() & 7)
    }
}

impl fmt::Debug for RequesterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The number by which an IOMMU tells translations of different I/O spaces apart ("domain ID" in both manuals). 0 is
/// never used: VT-d keeps it to itself in caching mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceTag(pub u16);

/// Translations that must be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Those of `1 << order` pages from `at`, a multiple of as many, in one space, tables on the way included.
    Pages {
        /// Whose.
        space: SpaceTag,
        /// First page.
        at: Iova,
        /// Binary logarithm of the number of pages, 0-51.
        order: u8,
    },
    /// All of one space.
    Space(SpaceTag),
    /// All.
    Everything,
}

impl Invalidation {
    /// The smallest aligned power of two of pages that covers a range of whole pages.
    pub fn covering(space: SpaceTag, at: Iova, len: u64) -> Self {
        let last = at.as_u64().saturating_add(len.max(1) - 1);
        let differing = 64 - (at.as_u64() ^ last).leading_zeros();
        let order = differing.saturating_sub(PAGE_SIZE.trailing_zeros());
        match 1u64.checked_shl(order + PAGE_SIZE.trailing_zeros()) {
            Some(bytes) => Self::Pages { space, at: at.align_down(bytes), order: order as u8 },
            None => Self::Space(space),
        }
    }
}

/// How an interrupt reaches the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A message, or an edge.
    Edge,
    /// A level of an I/O APIC's input.
    Level,
}

/// Where an interrupt that a device or an I/O APIC may raise goes: to one processor, fixed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Identifier of the processor's local APIC; above 254 only in x2APIC mode.
    pub apic_id: u32,
    /// 16-255.
    pub vector: u8,
    /// How it is triggered.
    pub trigger: Trigger,
}

/// What a unit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who asked.
    pub requester: RequesterId,
    /// What for: an I/O address, or an interrupt's index where `kind` says so.
    pub address: u64,
    /// It was a write. Interrupts are.
    pub write: bool,
    /// What was wrong.
    pub kind: FaultKind,
    /// The manual's own number for it: event code and flags, or fault reason.
    pub code: u16,
}

/// What was wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing is mapped there, or not for this kind of access.
    Page,
    /// The requester may reach nothing: it is blocked, or unknown.
    Blocked,
    /// An interrupt that nobody arranged.
    Interrupt,
    /// A table is not what the unit expects: a mistake of the hypervisor.
    Table,
    /// Anything else: a hardware error, a command that the unit refused, events lost.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Covered, aligned, and not twice as large as it could be.
        #[test]
        fn the_smallest_cover(first in 0u64..1 << 40, pages in 1u64..1 << 30) {
            let range = first * PAGE_SIZE..(first + pages) * PAGE_SIZE;
            let cover = Invalidation::covering(SpaceTag(7), Iova::new(range.start), range.end - range.start);
            let Invalidation::Pages { space: SpaceTag(7), at, order } = cover else { panic!("{cover:?}") };
            let (start, bytes) = (at.as_u64(), PAGE_SIZE << order);
            prop_assert!(start <= range.start && start + bytes >= range.end);
            prop_assert_eq!(start % bytes, 0);
            if order > 0 {
                // Neither half would do.
                prop_assert!(range.start < start + bytes / 2 && range.end > start + bytes / 2);
            }
        }
    }

    #[test]
    fn a_cover_of_everything_is_the_space() {
        let all = Invalidation::covering(SpaceTag(1), Iova::new(0), u64::MAX);
        assert_eq!(all, Invalidation::Space(SpaceTag(1)));
    }
}
