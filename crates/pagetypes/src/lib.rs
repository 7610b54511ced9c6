//! What a paravirtual domain uses each of its frames as.
//!
//! Such a domain's page tables are walked by the hardware as they are. They must therefore be right before the hardware
//! sees them: no page table, no descriptor table and no frame of the hypervisor's may ever be writable, for the guest's
//! software or for its devices. A frame has one [`Kind`] at a time and a count of those who use it as that
//! ([`Types`]); it changes its kind only while nobody uses it, as [`Kind::change`] says.
//!
//! Whose a frame is, the hypervisor's table of frames says; nothing here repeats it. This crate knows what the owner does with what is
//! its own, and refuses every frame that is not.
//!
//! The hardware is behind [`Machine`]. Callers hold one lock per domain: two operations on the same [`Types`] do not overlap, but
//! processors and devices go on meanwhile, with every translation that they once had and were not told to forget.
//!
//! Source: "PiBooster: Performance Accelerations in Page Table Management for Paravirtual VMs", 2.1.2 (page types and their validation),
//! 3.3 (validation for software apart from validation for devices; the semi-writable page) and 4.2 (batches). Its kinds are those of Xen.
//!
//! Deviations: semi-writable is no bit taken from a count, as in 4.1 of the source, but a property of a frame that outlives its changes of kind: a page
//! table that is freed becomes semi-writable again and not writable. A table that refers to a table of its own level (a linear page table)
//! is refused, and so is a large page.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod balloon;
mod descriptor;
mod entry;
mod given;
mod kind;
mod machine;
mod types;
mod verify;

pub use descriptor::Descriptor;
pub use entry::Entry;
pub use kind::{Change, Devices, Kind};
pub use machine::Machine;
pub use types::{Counts, Mfn, Old, Refused, Types};
pub use verify::Contradiction;

/// Entries of a page table, and descriptors of a page.
pub const ENTRIES: usize = 512;
/// Entries that are read at once: a cache line.
pub const LINE: usize = 8;
/// Entries of a top-level table that are the hypervisor's.
pub const HOLE: core::ops::Range<usize> = 256..272;
