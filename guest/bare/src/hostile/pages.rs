//! Whole pages of memory that a device reads and writes.

use crate::dma::memory::{get, put};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Fills whole pages.
pub fn fill(at: u64, pages: u64, value: u32) {
    (at..at + pages * PAGE).step_by(4).for_each(|at| put(at, value));
}

/// Whether all of some pages has that value.
pub fn holds(at: u64, pages: u64, value: u32) -> bool {
    (at..at + pages * PAGE).step_by(4).all(|at| get(at) == value)
}
