//! What reports say of IOMMUs.

use super::{Counted, Owner, endpoint, faults, units};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_abi::report::{FaultReport, GroupReport, IommuReport, UnitReport};
use sluice_iommu::RequesterId;

/// All of it. `name` gives the names of domains, `device` those of configured devices.
pub fn report(
    name: impl Fn(DomainId) -> Option<String>,
    device: impl Fn(RequesterId) -> Option<String>,
) -> IommuReport {
    faults::take();
    let unit = |Counted { unit, flushes }: &Counted| UnitReport {
        kind: unit.kind().into(),
        base: unit.base().as_u64(),
        remaps_interrupts: unit.remaps_interrupts(),
        flushes: flushes.report(),
    };
    let (kinds, others) = faults::all();
    let fault = |fault: &faults::Attributed| FaultReport {
        requester: fault.last.requester.to_string(),
        device: device(fault.last.requester),
        domain: fault.owner.and_then(Owner::domain).and_then(&name),
        address: fault.last.address,
        write: fault.last.write,
        kind: format!("{:?}", fault.last.kind).to_lowercase(),
        code: fault.last.code,
        count: fault.count,
    };
    IommuReport {
        units: units().iter().map(unit).collect(),
        groups: groups(&name, &device),
        faults: kinds.iter().map(fault).collect(),
        other_faults: others,
    }
}

fn groups(
    name: &impl Fn(DomainId) -> Option<String>,
    device: &impl Fn(RequesterId) -> Option<String>,
) -> Vec<GroupReport> {
    let Some(survey) = endpoint::survey_result() else { return Vec::new() };
    let owners = survey.owners.lock().clone();
    let members = |group: usize| {
        let nodes = survey.nodes.iter().zip(&survey.groups).filter(move |(_, of)| **of == group);
        nodes.map(|(node, _)| (node.id.to_string(), device(node.id))).collect::<Vec<_>>()
    };
    let of = |group: usize| GroupReport {
        functions: members(group).iter().map(|(id, _)| id.clone()).collect(),
        devices: members(group).into_iter().filter_map(|(_, device)| device).collect(),
        domain: owners.get(group).copied().flatten().and_then(|(owner, _)| owner.domain()).and_then(name),
    };
    (0..survey.nodes.len()).filter(|group| survey.groups.get(*group) == Some(group)).map(of).collect()
}
