//! Grant spaces: which pages one domain (the granter) lets another (its peer) reach, by reference.
//!
//! Key types: [`Space`] (the table, and what each call does to it), [`Grant`], [`Peer`] (how the pages are shown), [`status`] (the word
//! by which the peer says that it uses a page now). Issuing and revoking are the granter's alone: no call waits for the peer. [`table`] is the
//! older way, for comparison.
//!
//! The table is a tree of page tables that no hardware walks, by reference in place of an address: an operation costs the same however many
//! references there are, and parts that were never used take no memory.
//!
//! Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O Virtualization", 3.1.
//!
//! Deviations: the status is a word of its own, in the peer's memory, and says whether the page is granted too. Devices reach pages through an IOMMU
//! (3.4.2), so that a peer is told no machine addresses unless there is none ([`status`]).
#![no_std]
#![forbid(unsafe_code)]

mod space;
pub mod status;
pub mod table;

pub use space::{Batch, Error, Grant, Operation, Peer, Space, Steps};

/// Most references of one space: 64 GiB of pages.
pub const MAX_SIZE: u32 = 1 << 24;
/// Most references that one call moves.
pub const MAX_BATCH: u64 = 512;
