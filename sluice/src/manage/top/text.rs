//! A look as plain text, and the cells that the screen shows as well.

use super::sample::{DeviceSample, DomainSample, Sample, ShareSample};
use crate::table::{Table, duration, grouped};

/// Headings of the table of domains.
pub const DOMAINS: [&str; 7] = ["guest", "state", "cpu", "exits/s", "interrupts/s", "most exits", "refused"];

/// Headings of a device's table.
pub const SHARES: [&str; 7] = ["shared by", "mode", "hooked/s", "tx/s", "rx/s", "waits/s", "held"];

/// The line above all.
pub fn head(sample: &Sample) -> String {
    let Sample { instance, cpus, free_memory, .. } = sample;
    format!(
        "{instance}: up {}, {cpus} processors, {} MiB free",
        duration(sample.uptime_ns),
        free_memory >> 20
    )
}

/// A row of the table of domains.
pub fn domain(domain: &DomainSample) -> Vec<String> {
    vec![
        domain.name.clone(),
        domain.state.word().to_owned(),
        format!("{:.0} %", domain.cpu_percent),
        grouped(domain.exits_per_second),
        grouped(domain.interrupts_per_second),
        domain.most_exits.clone().unwrap_or_else(|| "-".to_owned()),
        grouped(domain.refused),
    ]
}

/// What of a device is the same for all who share it.
pub fn device(device: &DeviceSample) -> String {
    format!(
        "{} ({}): {}, {} handoffs/s, {} interrupts/s",
        device.name,
        device.model,
        users(device),
        grouped(device.handoffs_per_second),
        grouped(device.interrupts_per_second),
    )
}

/// Who uses a device now: the guest that holds it, or all that share it at the same time.
fn users(device: &DeviceSample) -> String {
    let names: Vec<&str> = device.shares.iter().map(|share| share.domain.as_str()).collect();
    match &device.holder {
        Some(holder) => format!("held by {holder}"),
        None if names.is_empty() => "used by nobody".to_owned(),
        None if device.shares.iter().any(|share| share.held_percent.is_some()) => "held by nobody".to_owned(),
        None => format!("shared by {}", names.join(", ")),
    }
}

/// A row of a device's table.
pub fn share(share: &ShareSample) -> Vec<String> {
    vec![
        share.domain.clone(),
        share.mode.clone(),
        grouped(share.hooked_per_second),
        grouped(share.tx_per_second),
        grouped(share.rx_per_second),
        grouped(share.waits_per_second),
        share.held_percent.map_or_else(|| "-".to_owned(), |held| format!("{held:.0} %")),
    ]
}

/// All of it.
pub fn plain(sample: &Sample) -> String {
    let table = |headings: &[&str], rows: Vec<Vec<String>>| {
        let mut table = Table::new(headings);
        rows.into_iter().for_each(|row| table.row(row));
        table.render()
    };
    let mut text = head(sample) + "\n\n" + &table(&DOMAINS, sample.domains.iter().map(domain).collect());
    for sampled in &sample.devices {
        text += &format!("\n  {}\n", device(sampled));
        text += &table(&SHARES, sampled.shares.iter().map(share).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_abi::report::{DeviceReport, DomainReport, Report, ShareReport};

    fn device(holder: Option<&str>, held: &[(&str, u64)]) -> DeviceReport {
        let share = |(domain, held_ns): &(&str, u64)| ShareReport {
            domain: (*domain).to_owned(),
            held_ns: *held_ns,
            ..ShareReport::default()
        };
        DeviceReport {
            name: "nic0".to_owned(),
            model: "e1000".to_owned(),
            holder: holder.map(str::to_owned),
            shares: held.iter().map(share).collect(),
            ..DeviceReport::default()
        }
    }

    #[test]
    fn who_uses_a_device_is_said_with_and_without_turns() {
        let users = |device: DeviceReport| {
            let report = Report { devices: vec![device], ..Report::default() };
            users(&Sample::between("test", None, &report).devices[0])
        };
        assert_eq!(users(device(None, &[("alice", 0), ("bob", 0)])), "shared by alice, bob");
        assert_eq!(users(device(None, &[("alice", 5), ("bob", 0)])), "held by nobody");
        assert_eq!(users(device(Some("bob"), &[("alice", 0), ("bob", 0)])), "held by bob");
        assert_eq!(users(device(None, &[])), "used by nobody");
    }

    #[test]
    fn shares_of_time_are_those_of_what_has_passed() {
        let report = |uptime_ns, run_ns, held_ns| Report {
            uptime_ns,
            domains: vec![DomainReport { name: "alice".to_owned(), run_ns, ..DomainReport::default() }],
            devices: vec![device(Some("alice"), &[("alice", held_ns)])],
            ..Report::default()
        };
        let (before, now) =
            (report(1_000_000_000, 1, 1), report(3_000_000_000, 2_000_000_001, 1_000_000_001));
        let text = plain(&Sample::between("test", Some(&before), &now));
        assert!(text.contains(" 100 % ") && text.contains(" 50 %"), "{text}");
    }
}
