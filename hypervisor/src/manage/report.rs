//! Reports: what the counters say now.

use crate::cpu::{self, Role};
use crate::devices;
use crate::domain::counters::{Exit, Refusal, named};
use crate::domain::{Domain, EndReason};
use crate::iommu;
use crate::mm;
use crate::x86::tsc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sluice_abi::DomainId;
use sluice_abi::report::{Count, DomainReport, DomainState, Report};

/// The whole machine at TSC `now`, at which its domains were reported.
pub fn all(now: u64, domains: impl Iterator<Item = DomainReport>) -> Report {
    let domains: Vec<DomainReport> = domains.collect();
    // Read on its own: as part of the structure it would hold the allocator's lock until all of it is there.
    let free_memory = mm::free_bytes();
    let name = |id: DomainId| domains.get(id.index()).map(|domain| domain.name.clone());
    Report {
        iommu: iommu::report(name, devices::name_of),
        uptime_ns: tsc::uptime_ns_at(now),
        cpus: cpu::in_role(Role::Guests).count() as u16,
        tsc_khz: tsc::khz(),
        free_memory,
        devices: devices::reports(),
        links: devices::links(),
        networks: devices::vif::reports(),
        domains,
    }
}

/// One domain at TSC `now`.
pub fn domain(domain: &Domain, restarts: u32, now: u64) -> DomainReport {
    let mut exits = [0; Exit::NAMES.len()];
    let mut refusals = [0; Refusal::NAMES.len()];
    let mut paravirtual = [0; sluice_xenpv::COUNTS];
    let (mut interrupts, mut ticks) = (0, 0);
    for vcpu in &domain.vcpus {
        vcpu.exits.add_to(&mut exits);
        vcpu.refusals.add_to(&mut refusals);
        interrupts += vcpu.interrupts.load(Ordering::Relaxed);
        ticks += vcpu.ran(now);
    }
    domain.asked.add_to(&mut paravirtual);
    let mut refused = named(Refusal::NAMES, &refusals);
    let dropped = domain.console_dropped();
    if dropped != 0 {
        refused.push(Count { name: "console_bytes".into(), value: dropped });
    }
    let state = domain.state();
    let reason =
        if state == DomainState::PoweredOff { "" } else { domain.end_reason().map_or("", EndReason::text) };
    DomainReport {
        name: domain.name().into(),
        state,
        end_reason: reason.into(),
        restarts,
        run_ns: tsc::ns_from_ticks(ticks),
        exits: named(Exit::NAMES, &exits),
        refused,
        interrupts,
        space: domain.space_report(),
        paravirtual: named(&sluice_xenpv::Counters::default().named().map(|(name, _)| name), &paravirtual),
    }
}
