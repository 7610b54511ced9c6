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
