//! What IOMMUs read and write, as data: page tables, device and interrupt tables, commands, faults, and the ACPI tables
//! that tell which units there are. No register is touched here; the hypervisor's drivers do that.
//!
//! - [`amdvi`]: AMD I/O Virtualization Technology (IOMMU) Specification 48882, revision 3.07 or later.
//! - [`vtd`]: Intel Virtualization Technology for Directed I/O Specification D51397, revision 3.3 or later.
//! - [`PageFormat`]: the page tables of both, for [`sluice_memory::Tables`].
//! - [`group`]: functions that cannot be kept apart.
//! - [`Containment`]: whether a guest may drive a function itself.
//! - [`RequesterId`], [`Invalidation`], [`Fault`]: what the two have in common.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod amdvi;
mod common;
mod containment;
mod format;
pub mod group;
pub mod vtd;

pub use common::{Fault, FaultKind, Interrupt, Invalidation, RequesterId, SpaceTag, Trigger};
pub use containment::{Containment, Uncontained};
pub use format::PageFormat;
