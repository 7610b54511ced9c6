//! What a paravirtual domain's processor has in place of a virtual platform.

use super::Domain;
use crate::svm::vmcb::Segment;
use crate::sync::{Rank, SpinLock};
use sluice_memory::PAGE_SIZE;

/// What a processor of a paravirtual domain needs around the domain's interface ([`Domain::interface`]).
pub struct Paravirtual {
    /// Its registers: the general ones are where the processor's are put at an exit, the others are as of the last one.
    pub registers: sluice_xenpv::Registers,
    /// When it wants to be woken, in nanoseconds since start, as of its last exit.
    pub deadline: Option<u64>,
    /// Code and stack segments of its programs and of the kernel, as they were loaded last.
    pub segments: [Segments; 2],
}

/// What a paravirtual domain is asked by any of its processors, and what its page tables are looked at with.
pub struct Interface {
    /// The interface.
    pub guest: SpinLock<sluice_xenpv::Guest>,
    /// The domain's memory.
    pub memory: Memory,
}

impl Interface {
    /// That of a domain that was built.
    pub fn new(guest: sluice_xenpv::Guest, memory: Memory) -> Self {
        Self { guest: SpinLock::new(Rank::Interface, guest), memory }
    }
}

/// A domain's memory, and what the hypervisor has in its page tables.
#[derive(Clone, Copy)]
pub struct Memory {
    /// The domain's frames, which are one run: the first one, and how many.
    pub run: (u64, u64),
    /// Entries of the hypervisor's in page tables of the highest level.
    pub hole: [(usize, u64); 2],
    /// There are devices that reach some of it.
    pub is_lent: bool,
}

impl Memory {
    /// That of a domain.
    pub fn new(domain: &Domain, hole: [(usize, u64); 2]) -> Self {
        let run = match domain.extents() {
            [extent] => (extent.hpa.as_u64() / PAGE_SIZE, extent.len / PAGE_SIZE),
            // None of it is the domain's.
            _ => (0, 0),
        };
        Self { run, hole, is_lent: domain.device_space().is_some() }
    }
}

/// Segments that were found for selectors. The guest changes its descriptors by hypercalls only.
#[derive(Clone, Copy, Default)]
pub struct Segments {
    /// [`sluice_xenpv::Guest::descriptor_changes`] when they were found. 0: none were.
    pub changes: u64,
    /// CS.
    pub code: Segment,
    /// SS.
    pub stack: Segment,
}
