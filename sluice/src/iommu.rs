//! What stands between devices and memory, for people and as JSON: units, groups, spaces, faults.

use crate::table::{Table, grouped};
use serde_json::{Map, Value, json};
use sluice_abi::report::{Count, FaultReport, GroupReport, IommuReport, Report, SpaceReport};
use std::fmt::Write;

/// In a few lines, for the end of a run: nothing on a machine without.
pub fn summary(report: &Report) -> String {
    let mut text = String::new();
    for unit in &report.iommu.units {
        let interrupts = if unit.remaps_interrupts { "remapped" } else { "not remapped" };
        let flushes: u64 = unit.flushes.iter().map(|count| count.value).sum();
        let _ = writeln!(
            text,
            "\n  IOMMU {} at {:#x}: interrupts {interrupts}, {} flushes",
            unit.kind,
            unit.base,
            grouped(flushes)
        );
    }
    for domain in &report.domains {
        if let Some(space) = &domain.space {
            let _ = writeln!(text, "  {}: {}", domain.name, space_text(space));
        }
    }
    text + &faults(&report.iommu)
}

/// All of it, for `cargo sluice devices`.
pub fn details(report: &Report) -> String {
    if report.iommu.units.is_empty() {
        return "  no IOMMU: a device that masters the bus reaches all memory\n".to_owned();
    }
    let mut text = summary(report);
    let mut groups = Table::new(&["functions of a group", "devices", "owner"]);
    for group in &report.iommu.groups {
        groups.row(vec![
            group.functions.join(" "),
            if group.devices.is_empty() { "-".to_owned() } else { group.devices.join(" ") },
            group.domain.clone().unwrap_or_else(|| "blocked".to_owned()),
        ]);
    }
    let _ = write!(text, "\n{}", groups.render());
    let mut flushes = Table::new(&["forgotten", "because", "times"]);
    for count in report.iommu.units.iter().flat_map(|unit| &unit.flushes) {
        let (kind, cause) = count.name.split_once('.').unwrap_or((&count.name, ""));
        flushes.row(vec![kind.to_owned(), cause.to_owned(), grouped(count.value)]);
    }
    let _ = write!(text, "\n{}", flushes.render());
    text
}

fn space_text(space: &SpaceReport) -> String {
    let sizes = space.pages.iter().zip(["4 KiB", "2 MiB", "1 GiB"]).filter(|(count, _)| **count > 0);
    let pages: Vec<String> = sizes.map(|(count, size)| format!("{} of {size}", grouped(*count))).collect();
    format!("I/O space {}, {} MiB in pages: {}", space.tag, space.bytes >> 20, pages.join(", "))
}

/// A refused request in words: "00:03.0 (nic0 of alice) may not write 0x1000".
pub fn fault_text(fault: &FaultReport) -> String {
    let verb = if fault.write { "write" } else { "read" };
    let device = fault.device.as_deref().unwrap_or("not configured");
    let domain = fault.domain.as_deref().unwrap_or("nobody");
    format!(
        "{} ({device} of {domain}) may not {verb} {:#x} ({}, code {:#x}), {} times",
        fault.requester,
        fault.address,
        fault.kind,
        fault.code,
        grouped(fault.count)
    )
}

fn faults(report: &IommuReport) -> String {
    let mut text = String::new();
    for fault in &report.faults {
        let _ = writeln!(text, "  refused: {}", fault_text(fault));
    }
    if report.other_faults > 0 {
        let _ = writeln!(text, "  refused: {} others", grouped(report.other_faults));
    }
    text
}

/// As in docs/json.md.
pub fn json(report: &IommuReport) -> Value {
    let mut flushes: Map<String, Value> = Map::new();
    for Count { name, value } in report.units.iter().flat_map(|unit| &unit.flushes) {
        let sum = flushes.get(name).and_then(Value::as_u64).unwrap_or(0) + value;
        flushes.insert(name.clone(), json!(sum));
    }
    let units: Vec<Value> = report
        .units
        .iter()
        .map(|unit| json!({ "kind": unit.kind, "base": unit.base, "remaps_interrupts": unit.remaps_interrupts }))
        .collect();
    let group = |group: &GroupReport| json!({ "functions": group.functions, "devices": group.devices, "domain": group.domain });
    let fault = |fault: &FaultReport| {
        json!({
            "requester": fault.requester,
            "device": fault.device,
            "domain": fault.domain,
            "address": fault.address,
            "write": fault.write,
            "kind": fault.kind,
            "code": fault.code,
            "count": fault.count,
        })
    };
    json!({
        "units": units,
        "flushes": flushes,
        "groups": report.groups.iter().map(group).collect::<Vec<_>>(),
        "faults": report.faults.iter().map(fault).collect::<Vec<_>>(),
        "faults_total": total(report),
    })
}

/// All refused requests.
pub fn total(report: &IommuReport) -> u64 {
    report.faults.iter().map(|fault| fault.count).sum::<u64>() + report.other_faults
}

/// A domain's space, as in docs/json.md.
pub fn space_json(space: Option<&SpaceReport>) -> Value {
    space.map_or(Value::Null, |space| {
        json!({ "tag": space.tag, "bytes": space.bytes, "pages": {
            "4KiB": space.pages[0], "2MiB": space.pages[1], "1GiB": space.pages[2],
        } })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(domain: Option<&str>, count: u64) -> FaultReport {
        FaultReport {
            requester: "00:03.0".into(),
            device: Some("nic0".into()),
            domain: domain.map(str::to_owned),
            address: 0x1000,
            write: true,
            kind: "page".into(),
            code: 5,
            count,
        }
    }

    #[test]
    fn faults_say_who_and_where() {
        assert_eq!(
            fault_text(&fault(Some("alice"), 1200)),
            "00:03.0 (nic0 of alice) may not write 0x1000 (page, code 0x5), 1,200 times"
        );
    }

    #[test]
    fn flushes_of_all_units_add_up() {
        let unit = |value| sluice_abi::report::UnitReport {
            flushes: vec![Count { name: "space.whole".into(), value }],
            ..Default::default()
        };
        let report = IommuReport {
            units: vec![unit(2), unit(3)],
            faults: vec![fault(None, 4)],
            other_faults: 1,
            ..IommuReport::default()
        };
        assert_eq!(json(&report)["flushes"]["space.whole"], 5);
        assert_eq!(json(&report)["faults_total"], 5);
    }
}
