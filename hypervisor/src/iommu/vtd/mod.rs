//! VT-d units: found in DMAR, taken over from firmware, driven behind [`Unit`].
//!
//! Legacy mode: a root table, a context table for each bus that a function was attached on, second-level page tables. What
//! is not in them faults, and the fault is recorded. Neighbours: `sluice_iommu::vtd` has all formats; `registers` and
//! `queue` here reach a unit, `tables` writes what it reads, `takeover` switches it on.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification, D51397, revision 4.1.
//!
//! What QEMU 7.2 does not enforce or report, so that no test there can show it:
//! - Interrupts in compatibility format pass, although CFIS is clear.
//! - The requester of an I/O APIC's interrupt is not verified; that of a function's is.
//! - Interrupts that are refused are dropped without a fault record; so is a write to a page that was read before and is
//!   cached as read-only.
//! - Draining, write-buffer flushing, protected memory regions and caches that are not coherent do not exist there;
//!   invalidations are done when the tail is written. There is one fault record.
//! - Device-selective context invalidation does not look at the tag.
//!
//! Deviations: no scalable mode, no pass-through, no device TLBs. Units of other PCI segments block everything.

mod queue;
mod registers;
mod tables;
mod takeover;

use super::unit::{Unit, Units};
use crate::firmware::acpi;
use crate::sync::{Rank, SpinLock};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};
use queue::Queue;
use registers::Registers;
use sluice_iommu::vtd::context::ContextEntry;
use sluice_iommu::vtd::dmar::{Dmar, UnitEntry};
use sluice_iommu::vtd::interrupt::{self, Destinations};
use sluice_iommu::vtd::page::SecondLevel;
use sluice_iommu::vtd::queue::Descriptor;
use sluice_iommu::vtd::registers::{self as register, Capabilities, FaultStatus};
use sluice_iommu::vtd::{fault, registers::first_record};
use sluice_iommu::{Fault, FaultKind, Interrupt, Invalidation, PageFormat, RequesterId, SpaceTag};
use sluice_memory::Hpa;
use tables::Tables;

/// Finds and starts all units that DMAR lists. After the clock; before interrupts are routed.
pub fn start() -> Units {
    let Some(table) = acpi::find(b"DMAR") else { return Units::new() };
    let dmar = Arc::new(Dmar::parse(table, buses_behind));
    if dmar.skipped > 0 {
        log::warn!("DMAR: {} structures or scopes make no sense here: ignored", dmar.skipped);
    }
    let units = (0..dmar.units.len()).filter_map(|index| Vtd::start(&dmar, index));
    units.map(|unit| Box::new(unit) as Box<dyn Unit>).collect()
}

/// The buses behind a function, if it is a bridge (PCI-to-PCI Bridge Architecture 1.2, 3.2).
fn buses_behind(at: RequesterId) -> Option<RangeInclusive<u8>> {
    const HEADER_TYPE: u8 = 0x0c;
    const BUS_NUMBERS: u8 = 0x18;
    const BRIDGE: u32 = 1;
    let read = |offset| acpi::config_read(at.bus(), at.devfn() >> 3, at.devfn() & 7, offset);
    // Where no function is, this reads as ones: no bridge.
    if read(HEADER_TYPE) >> 16 & 0x7f != BRIDGE {
        return None;
    }
    let [_, secondary, subordinate, _] = read(BUS_NUMBERS).to_le_bytes();
    (secondary != 0).then_some(secondary..=subordinate)
}

/// A running unit.
struct Vtd {
    dmar: Arc<Dmar>,
    index: usize,
    capabilities: Capabilities,
    format: SecondLevel,
    /// How interrupts' destinations are written; `None` if interrupts are not remapped.
    destinations: Option<Destinations>,
    inner: SpinLock<Inner>,
}

/// What only one processor at a time uses.
struct Inner {
    registers: Registers,
    queue: Queue,
    tables: Tables,
}

impl Vtd {
    fn start(dmar: &Arc<Dmar>, index: usize) -> Option<Self> {
        let entry = dmar.units.get(index)?;
        let (registers, capabilities) = Registers::map(entry.base);
        // Without these it would be of no use; no unit that remaps interrupts is without a queue.
        let Some(format) = capabilities.format().filter(|_| capabilities.has_queue()) else {
            log::error!(
                "VT-d at {}: cannot be used ({capabilities:x?}); its devices are NOT protected",
                entry.base
            );
            return None;
        };
        let mut inner = Inner { registers, queue: Queue::new(), tables: Tables::new(capabilities) };
        let remapping = dmar.remaps_interrupts && capabilities.remaps_interrupts();
        let destinations = remapping.then(|| takeover::destinations(capabilities));
        takeover::take_over(&mut inner, capabilities, destinations);
        let dmar = dmar.clone();
        Some(Self {
            dmar,
            index,
            capabilities,
            format,
            destinations,
            inner: SpinLock::new(Rank::Unit, inner),
        })
    }

    fn entry(&self) -> Option<&UnitEntry> {
        self.dmar.units.get(self.index)
    }

    /// Entries that were absent are remembered, or not written yet: a new one must be told of.
    fn tells_of_new(&self) -> bool {
        self.capabilities.caches_absent() || self.capabilities.buffers_writes()
    }

    /// Takes one record, if something is recorded in it.
    fn take_record(&self, index: u64) -> Option<Fault> {
        let inner = self.inner.lock();
        let at = self.capabilities.records() + index * fault::RECORD_BYTES;
        let halves = [inner.registers.read64(at), inner.registers.read64(at + 8)];
        let fault = fault::decode(halves)?;
        inner.registers.write64(at + 8, fault::RECORDED);
        Some(fault)
    }
}

impl Inner {
    fn run(&mut self, descriptors: impl IntoIterator<Item = Descriptor>) {
        self.queue.run(&self.registers, descriptors);
    }
}

impl Unit for Vtd {
    fn kind(&self) -> &'static str {
        "VT-d"
    }

    fn base(&self) -> Hpa {
        self.entry().map_or(Hpa::new(0), |entry| entry.base)
    }

    fn serves(&self, requester: RequesterId) -> bool {
        self.dmar.unit_of(0, requester) == Some(self.index)
    }

    fn format(&self) -> PageFormat {
        PageFormat::Vtd(self.format)
    }

    fn tags(&self) -> u32 {
        self.capabilities.tags()
    }

    fn reads_memory_only(&self) -> bool {
        !self.capabilities.is_coherent()
    }

    fn caches_absent(&self) -> bool {
        self.tells_of_new()
    }

    fn remaps_interrupts(&self) -> bool {
        self.destinations.is_some()
    }

    fn attach(&self, requester: RequesterId, space: Option<(SpaceTag, Hpa)>) -> Option<SpaceTag> {
        let new = space.map(|(tag, root)| ContextEntry { tag, root, levels: self.format.levels });
        let limits = self.capabilities.limits();
        let mut inner = self.inner.lock();
        let old = inner.tables.clear_context(requester);
        // A translation may be filled in by a context entry that is still remembered: that goes first. Translations may
        // be remembered by requester, too, so that those of the old space must go in any case (6.5.2.1).
        let mut forget = |tag| {
            inner.run([Descriptor::Context { requester, tag }]);
            inner.run([Descriptor::translations(Invalidation::Space(tag), limits)]);
        };
        let left = old.map(|old| old.tag);
        left.into_iter().for_each(&mut forget);
        let Some(new) = new else { return left };
        inner.tables.set_context(requester, new);
        if self.tells_of_new() {
            // What is not present is remembered under tag 0.
            inner.run([Descriptor::Context { requester, tag: SpaceTag(0) }]);
            inner.run([Descriptor::translations(Invalidation::Space(SpaceTag(0)), limits)]);
        }
        left
    }

    fn invalidate(&self, what: &[Invalidation]) {
        let limits = self.capabilities.limits();
        self.inner.lock().run(what.iter().map(|what| Descriptor::translations(*what, limits)));
    }

    fn allow_interrupt(&self, requester: RequesterId, interrupt: Interrupt) {
        let Some(destinations) = self.destinations else { return };
        assert!(destinations.reach(interrupt.apic_id), "VT-d: local APIC {:#x}", interrupt.apic_id);
        let entry = interrupt::entry(requester, interrupt, destinations);
        let mut inner = self.inner.lock();
        let was_present = inner.tables.clear_interrupt(interrupt.vector);
        if was_present {
            inner.run([Descriptor::Interrupt(interrupt.vector.into())]);
        }
        inner.tables.set_interrupt(interrupt.vector, entry);
        if self.tells_of_new() {
            inner.run([Descriptor::Interrupt(interrupt.vector.into())]);
        }
    }

    fn forbid_interrupt(&self, requester: RequesterId, vector: u8) {
        let mut inner = self.inner.lock();
        if inner.tables.interrupt_of(vector) == Some(requester) {
            inner.tables.clear_interrupt(vector);
            inner.run([Descriptor::Interrupt(vector.into())]);
        }
    }

    fn message(&self, interrupt: Interrupt) -> (u32, u32) {
        interrupt::message(interrupt.vector)
    }

    fn redirection(&self, interrupt: Interrupt) -> u64 {
        interrupt::redirection(interrupt)
    }

    fn io_apic(&self, id: u8) -> Option<RequesterId> {
        let known = self.entry()?.io_apics.iter().find(|(known, _)| *known == id);
        known.map(|(_, requester)| *requester)
    }

    fn unity(&self, requester: RequesterId) -> Vec<Range<u64>> {
        self.dmar.unity(0, requester).collect()
    }

    fn set_fault_interrupt(&self, interrupt: Interrupt) {
        let (address, upper, data) = interrupt::own_message(interrupt);
        let registers = &self.inner.lock().registers;
        registers.write32(register::FEDATA, data);
        registers.write32(register::FEADDR, address);
        registers.write32(register::FEUADDR, upper);
        // What is pending already is raised now.
        registers.write32(register::FECTL, 0);
    }

    fn take_faults(&self, take: &mut dyn FnMut(Fault)) {
        let bits = self.inner.lock().registers.read32(register::FSTS);
        let status = FaultStatus::from_bits_retain(bits);
        if !status.intersects(FaultStatus::PENDING | FaultStatus::OVERFLOW) {
            return;
        }
        let count = self.capabilities.record_count();
        let first = first_record(bits);
        // The lock is not held while somebody looks at a fault.
        (0..count).filter_map(|n| self.take_record((first + n) % count)).for_each(&mut *take);
        // Looked at again, since it may have come meanwhile: while it is set nothing is recorded and no interrupt raised.
        let bits = self.inner.lock().registers.read32(register::FSTS);
        if FaultStatus::from_bits_retain(bits).contains(FaultStatus::OVERFLOW) {
            self.inner.lock().registers.write32(register::FSTS, FaultStatus::OVERFLOW.bits());
            take(Fault {
                requester: RequesterId(0),
                address: 0,
                write: false,
                kind: FaultKind::Other,
                code: fault::LOST,
            });
        }
    }
}
