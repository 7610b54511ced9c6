//! Which guest accesses exit, as data: one trap table per domain.
//!
//! A trap is a declaration. [`ports::PortTable`] says for every port, reads and writes apart,
//! whether an access is direct, goes to a handler, or is refused; the I/O permission map is derived
//! from it. [`pages::PageTable`] says the same of guest-physical ranges; the nested page tables'
//! permissions are derived from it. Nothing else decides what exits.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod pages;
pub mod ports;

use bitflags::bitflags;

bitflags! {
    /// Directions of an access, as the guest sees it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Direction: u8 {
        /// The guest reads.
        const READ = 1;
        /// The guest writes.
        const WRITE = 2;
    }
}
