//! Which translations may still be cached although the tables no longer hold them.

use alloc::vec::Vec;
use core::ops::Range;
use sluice_iommu::{Invalidation, SpaceTag};
use sluice_memory::Iova;

/// Most ranges that are kept apart. Beyond them everything counts as stale: one command for a whole space costs less
/// than many for parts of it.
pub const RANGES: usize = 8;

/// Addresses whose old translations must be forgotten. They accumulate until a [`crate::Space::settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    ranges: Vec<Range<u64>>,
    all: bool,
}

impl Stale {
    pub(crate) const fn new() -> Self {
        Self { ranges: Vec::new(), all: false }
    }

    /// Nothing is stale.
    pub fn is_empty(&self) -> bool {
        !self.all && self.ranges.is_empty()
    }

    /// The ranges, in any order, none touching another; `None` if everything is stale.
    pub fn ranges(&self) -> Option<&[Range<u64>]> {
        (!self.all).then_some(&self.ranges)
    }

    /// What an IOMMU must be told to forget it, where `space` is the number of the space.
    pub fn invalidations(&self, space: SpaceTag) -> impl Iterator<Item = Invalidation> {
        let pages = move |range: &Range<u64>| {
            Invalidation::covering(space, Iova::new(range.start), range.end - range.start)
        };
        self.all.then_some(Invalidation::Space(space)).into_iter().chain(self.ranges.iter().map(pages))
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if self.all || range.is_empty() {
            return;
        }
        let mut merged = range;
        // Whatever touches the range becomes part of it; that may make it touch more.
        while let Some(index) =
            self.ranges.iter().position(|other| other.start <= merged.end && merged.start <= other.end)
        {
            let other = self.ranges.swap_remove(index);
            merged = merged.start.min(other.start)..merged.end.max(other.end);
        }
        if self.ranges.len() == RANGES {
            self.add_all();
        } else {
            self.ranges.push(merged);
        }
    }

    pub(crate) fn add_all(&mut self) {
        self.ranges.clear();
        self.all = true;
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.all = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranges_than_are_kept_make_everything_stale() {
        let apart = |number: usize| number as u64 * 0x2000..number as u64 * 0x2000 + 0x1000;
        let mut stale = Stale::new();
        (0..RANGES).for_each(|number| stale.add(apart(number)));
        assert_eq!(stale.ranges().map(<[_]>::len), Some(RANGES));
        stale.add(apart(RANGES));
        assert_eq!(stale.ranges(), None);
        let told: Vec<Invalidation> = stale.invalidations(SpaceTag(3)).collect();
        assert_eq!(told, [Invalidation::Space(SpaceTag(3))]);
    }
}
