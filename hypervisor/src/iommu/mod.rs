//! IOMMUs: every device in its place, from the first moment on.
//!
//! [`start`] runs before anything else touches a device. From then on a function reaches nothing and interrupts nobody,
//! until a domain that owns it attaches it to its own space. Neighbours: `amdvi` and `vtd` drive the units behind
//! [`Unit`]; `domain::memory` shows a domain's memory to them; `device` says who owns what.
//!
//! Key types: [`Unit`], [`DmaEndpoint`] (a function's unit, requester and group), [`Cause`].

mod amdvi;
pub mod cost;
mod endpoint;
mod faults;
mod flushes;
mod report;
pub mod selftest;
mod unit;
mod view;
mod vtd;

pub use endpoint::{Busy, DmaEndpoint, Owner, endpoint_of};
pub use faults::service;
pub use flushes::Cause;
pub use report::report;
pub use unit::Unit;
pub use view::{DeviceView, Devices};

use crate::cpu::{self, idt, vector};
use crate::sync::Once;
use alloc::boxed::Box;
use alloc::vec::Vec;
use flushes::Flushes;
use sluice_iommu::{Interrupt, Invalidation, RequesterId, SpaceTag, Trigger};
use sluice_memory::Hpa;

/// A unit and what is counted of it.
pub struct Counted {
    unit: Box<dyn Unit>,
    flushes: Flushes,
}

static UNITS: Once<Vec<Counted>> = Once::new();

/// All units.
pub fn units() -> &'static [Counted] {
    UNITS.get().map_or(&[], Vec::as_slice)
}

/// Finds and starts all units: from here on every device is blocked. Once, on the boot processor, before interrupts
/// are routed; no device masters the bus yet.
pub fn start() {
    let mut found = amdvi::start();
    found.extend(vtd::start());
    let units = UNITS.call_once(|| {
        let counted = |unit| Counted { unit, flushes: Flushes::default() };
        found.into_iter().map(counted).collect()
    });
    if units.is_empty() {
        log::info!("no IOMMU");
        return;
    }
    idt::set_handler(vector::FAULT, faults::interrupt);
    let interrupt = Interrupt { apic_id: cpu::this().apic_id, vector: vector::FAULT, trigger: Trigger::Edge };
    for Counted { unit, .. } in units {
        unit.set_fault_interrupt(interrupt);
        log::info!(
            "{} at {}: {:?}, {} spaces, interrupts {}; all devices blocked",
            unit.kind(),
            unit.base(),
            unit.format(),
            unit.tags(),
            if unit.remaps_interrupts() { "remapped" } else { "NOT remapped" },
        );
    }
    endpoint::survey();
}

/// How an I/O APIC's input must be redirected so that it raises `interrupt`; `None` where interrupts are not remapped.
pub fn redirection(io_apic: u8, interrupt: Interrupt) -> Option<u64> {
    let remapping = units().iter().filter(|counted| counted.unit.remaps_interrupts());
    remapping.into_iter().find_map(|Counted { unit, .. }| {
        let requester = unit.io_apic(io_apic)?;
        unit.allow_interrupt(requester, interrupt);
        Some(unit.redirection(interrupt))
    })
}

impl Counted {
    /// The unit itself, for what is not counted.
    pub fn unit(&self) -> &dyn Unit {
        &*self.unit
    }

    /// See [`Unit::attach`].
    fn attach(&self, requester: RequesterId, space: Option<(SpaceTag, Hpa)>) {
        let cause = if space.is_some() { Cause::Attach } else { Cause::Detach };
        self.flushes.count_device(cause);
        if let Some(left) = self.unit.attach(requester, space) {
            self.flushes.count(Invalidation::Space(left), cause);
        }
    }

    /// See [`Unit::invalidate`].
    pub fn invalidate(&self, what: &[Invalidation], cause: Cause) {
        what.iter().for_each(|what| self.flushes.count(*what, cause));
        self.unit.invalidate(what);
    }

    /// See [`Unit::allow_interrupt`].
    fn allow_interrupt(&self, requester: RequesterId, interrupt: Interrupt) -> (u32, u32) {
        self.flushes.count_interrupt(Cause::Attach);
        self.unit.allow_interrupt(requester, interrupt);
        self.unit.message(interrupt)
    }

    /// See [`Unit::forbid_interrupt`].
    fn forbid_interrupt(&self, requester: RequesterId, vector: u8) {
        self.flushes.count_interrupt(Cause::Detach);
        self.unit.forbid_interrupt(requester, vector);
    }
}
