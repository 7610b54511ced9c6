//! Intel VT-d in legacy mode: what its units read and write.
//!
//! - [`dmar`]: which units there are, and which functions are behind each.
//! - [`registers`]: the register map, what a unit can do, the rules of its command register.
//! - [`context`]: root and context entries, from a requester to its tables.
//! - [`page`]: those tables.
//! - [`interrupt`]: entries of the interrupt remapping table, and the requests that name them.
//! - [`queue`]: invalidation descriptors.
//! - [`fault`]: fault records.
//! - `model` (feature `model`): a unit that caches whatever it ever could; tests hold real descriptors against it.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification, D51397, revision 4.1. Sections are
//! those of that revision; "second-stage" there is "second-level" in older ones and here.
//!
//! Deviations: no scalable mode, no device TLBs (translation requests are blocked), no posted interrupts, and no
//! advanced fault log, which no known unit has.

pub mod context;
pub mod dmar;
pub mod fault;
pub mod interrupt;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod page;
pub mod queue;
pub mod registers;

#[cfg(test)]
mod tests;
