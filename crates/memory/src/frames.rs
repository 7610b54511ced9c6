//! Which host-physical memory is free: a set of extents, coalesced.
//!
//! Guests take a few large extents, tables single frames. So that the latter do not break the
//! former up, single frames come from the smallest extent and large ones from the top of the largest.

use crate::{Hpa, PAGE_SIZE};
use alloc::collections::BTreeMap;

/// Why memory cannot be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// A part of it is free already.
    AlreadyFree,
    /// Not whole pages, or past the end of the address space.
    Misaligned,
}

/// Free memory.
#[derive(Debug, Default)]
pub struct FrameAllocator {
    /// Start to length; no two extents touch.
    free: BTreeMap<u64, u64>,
}

impl FrameAllocator {
    /// Nothing is free.
    pub const fn new() -> Self {
        Self { free: BTreeMap::new() }
    }

    /// Makes memory available, rounded inward to whole pages.
    ///
    /// # Errors
    /// A part of it is free already.
    pub fn add(&mut self, start: Hpa, len: u64) -> Result<(), FreeError> {
        let end = start.checked_add(len).ok_or(FreeError::Misaligned)?.align_down(PAGE_SIZE);
        let start = start.align_up(PAGE_SIZE).ok_or(FreeError::Misaligned)?;
        if start >= end {
            return Ok(());
        }
        self.free(start, end.as_u64() - start.as_u64())
    }

    /// Takes `len` bytes (whole pages) at a multiple of `align`, a power of two of at least a page.
    pub fn allocate(&mut self, len: u64, align: u64) -> Option<Hpa> {
        self.allocate_below(len, align, u64::MAX)
    }

    /// As [`FrameAllocator::allocate`], all of it below `limit`: for what must have an address that a device
    /// or a guest can name.
    pub fn allocate_below(&mut self, len: u64, align: u64, limit: u64) -> Option<Hpa> {
        if len == 0 || !len.is_multiple_of(PAGE_SIZE) || !align.is_power_of_two() {
            return None;
        }
        let align = align.max(PAGE_SIZE);
        let fits = |(start, size): (&u64, &u64)| {
            let (start, end) = (*start, start.checked_add(*size)?.min(limit));
            // The highest place in the extent, or for single frames the lowest.
            let low = start.checked_add(align - 1)? & !(align - 1);
            let high = end.checked_sub(len)? & !(align - 1);
            (low <= high && low >= start).then_some((start, *size, if len == PAGE_SIZE { low } else { high }))
        };
        let candidates = self.free.iter().filter_map(fits);
        let (start, size, at) = if len == PAGE_SIZE {
            candidates.min_by_key(|(_, size, _)| *size)?
        } else {
            candidates.max_by_key(|(_, size, _)| *size)?
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let (end, taken) = (start + size, at + len);
        if end > taken {
            self.free.insert(taken, end - taken);
        }
        Some(Hpa::new(at))
    }

    /// Gives memory back.
    ///
    /// # Errors
    /// A part of it is free already; nothing was changed.
    pub fn free(&mut self, start: Hpa, len: u64) -> Result<(), FreeError> {
        let (mut start, bytes) = (start.as_u64(), len);
        if start % PAGE_SIZE != 0 || bytes % PAGE_SIZE != 0 {
            return Err(FreeError::Misaligned);
        }
        let mut end = start.checked_add(bytes).ok_or(FreeError::Misaligned)?;
        if bytes == 0 {
            return Ok(());
        }
        let before = self.free.range(..end).next_back().map(|(at, size)| (*at, at + size));
        if before.is_some_and(|(_, stop)| stop > start) {
            return Err(FreeError::AlreadyFree);
        }
        if let Some((at, stop)) = before
            && stop == start
        {
            self.free.remove(&at);
            start = at;
        }
        if let Some(size) = self.free.remove(&end) {
            end += size;
        }
        self.free.insert(start, end - start);
        Ok(())
    }

    /// What is free: start and length of each extent, in rising order.
    pub fn extents(&self) -> impl Iterator<Item = (Hpa, u64)> {
        self.free.iter().map(|(start, len)| (Hpa::new(*start), *len))
    }

    /// Bytes free in all.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn large_requests_are_not_broken_by_small_ones() {
        let mut frames = FrameAllocator::new();
        frames.add(Hpa::new(0x1000), 0x8000).unwrap();
        frames.add(Hpa::new(1 << 21), 1 << 22).unwrap();
        for _ in 0..8 {
            assert!(frames.allocate(PAGE_SIZE, PAGE_SIZE).unwrap().as_u64() < 1 << 21);
        }
        assert!(frames.allocate(1 << 22, 1 << 21).is_some());
    }

    #[test]
    fn a_limit_holds_within_an_extent_and_across_extents() {
        let mut frames = FrameAllocator::new();
        frames.add(Hpa::new(0x1000), 0xf000).unwrap();
        frames.add(Hpa::new(0x10_0000), 0x10_0000).unwrap();
        assert_eq!(frames.allocate_below(0x2000, 0x1000, 0x8000), Some(Hpa::new(0x6000)));
        assert_eq!(frames.allocate_below(0x6000, 0x1000, 0x7000), None);
        assert_eq!(frames.allocate_below(0x1000, 0x1000, 0x1000), None);
        assert_eq!(frames.free_bytes(), 0x10_d000);
    }

    #[test]
    fn a_double_free_is_an_error_and_changes_nothing() {
        let mut frames = FrameAllocator::new();
        frames.add(Hpa::new(0), 0x4000).unwrap();
        assert_eq!(frames.free(Hpa::new(0x3000), 0x2000), Err(FreeError::AlreadyFree));
        assert_eq!(frames.free_bytes(), 0x4000);
    }

    proptest! {
        /// Against one bool per page.
        #[test]
        fn agrees_with_a_bitmap(steps in prop::collection::vec((any::<bool>(), 1u64..9, 0u32..4, any::<prop::sample::Index>()), 1..200)) {
            let mut frames = FrameAllocator::new();
            frames.add(Hpa::new(PAGE_SIZE), 63 * PAGE_SIZE).unwrap();
            let mut free = [true; 64];
            free[0] = false;
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, pages, align, pick) in steps {
                if take || held.is_empty() {
                    if let Some(at) = frames.allocate(pages * PAGE_SIZE, PAGE_SIZE << align) {
                        prop_assert!(at.is_aligned(PAGE_SIZE << align));
                        let first = at.as_u64() / PAGE_SIZE;
                        for page in first..first + pages {
                            prop_assert!(free[page as usize]);
                            free[page as usize] = false;
                        }
                        held.push((first, pages));
                    } else {
                        let step = 1usize << align;
                        let possible = (0..64).step_by(step)
                            .any(|at| at + pages as usize <= 64 && free[at..at + pages as usize].iter().all(|f| *f));
                        prop_assert!(!possible);
                    }
                } else {
                    let (first, pages) = held.swap_remove(pick.index(held.len()));
                    frames.free(Hpa::new(first * PAGE_SIZE), pages * PAGE_SIZE).unwrap();
                    for page in first..first + pages {
                        free[page as usize] = true;
                    }
                }
                prop_assert_eq!(frames.free_bytes() / PAGE_SIZE, free.iter().filter(|f| **f).count() as u64);
            }
        }
    }
}
