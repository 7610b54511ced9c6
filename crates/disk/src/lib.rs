//! What the models of shared disks have in common: a guest's range of sectors.
#![no_std]
#![forbid(unsafe_code)]

mod slice;

pub use slice::{OutOfSlice, Slice};
