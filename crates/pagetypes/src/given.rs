//! Where frames are that were given back.

use alloc::vec::Vec;
use core::ops::Range;

/// Places that are looked at together.
pub const BLOCK: usize = 512;

/// How many frames of each block of an account were given back: a search for one looks at these numbers, and at the frames of few blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Given(Vec<u16>);

impl Given {
    /// None of so many frames. `None`: there is no memory.
    pub fn new(frames: usize) -> Option<Self> {
        let blocks = frames.div_ceil(BLOCK);
        let mut counts = Vec::new();
        counts.try_reserve_exact(blocks).ok()?;
        counts.resize(blocks, 0);
        Some(Self(counts))
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// The frame at a place was given back, and was not before.
    pub fn add(&mut self, place: usize) {
        self.0.get_mut(place / BLOCK).into_iter().for_each(|count| *count += 1);
    }

    /// The frame at a place is there again.
    pub fn remove(&mut self, place: usize) {
        self.0.get_mut(place / BLOCK).into_iter().for_each(|count| *count -= 1);
    }

    /// The rest of the first block, from a place on, in which there are some.
    pub fn block(&self, from: usize) -> Option<Range<usize>> {
        let first = from / BLOCK;
        let block = first + self.0.get(first..)?.iter().position(|count| *count > 0)?;
        Some(from.max(block * BLOCK)..(block + 1) * BLOCK)
    }
}
