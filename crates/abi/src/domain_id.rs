//! Which domain.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A domain, by its place in [`Config::domains`](crate::config::Config::domains). What comes over the channel may name none: a list
/// of domains is asked with `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DomainId(pub u16);

impl DomainId {
    /// The domain at a place; `None` beyond what a number can say.
    pub fn at(index: usize) -> Option<Self> {
        u16::try_from(index).ok().map(Self)
    }

    /// Its place.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Some domains of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainSet(u64);

const _: () = assert!(crate::config::MAX_DOMAINS <= 64);

impl DomainSet {
    /// None.
    pub const fn new() -> Self {
        Self(0)
    }

    /// The same without `id`.
    #[must_use]
    pub const fn without(self, id: DomainId) -> Self {
        Self(self.0 & !Self::bit(id))
    }

    /// The same, and `id`.
    #[must_use]
    pub const fn with(self, id: DomainId) -> Self {
        Self(self.0 | Self::bit(id))
    }

    /// Whether `id` is one of them.
    pub const fn contains(self, id: DomainId) -> bool {
        self.0 & Self::bit(id) != 0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = DomainId> {
        (0..64).map(DomainId).filter(move |id| self.contains(*id))
    }

    const fn bit(id: DomainId) -> u64 {
        if id.0 < 64 { 1 << id.0 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_added() {
        let set = DomainSet::default().with(DomainId(0)).with(DomainId(63));
        let has: [bool; 5] = [0, 1, 63, 64, 127].map(|id| set.contains(DomainId(id)));
        assert_eq!(has, [true, false, true, false, false]);
        assert!(set.iter().eq([0, 63].map(DomainId)));
        assert!(DomainSet::new().is_empty() && !set.is_empty());
        assert_eq!(set.without(DomainId(63)).without(DomainId(7)), DomainSet::new().with(DomainId(0)));
    }
}
