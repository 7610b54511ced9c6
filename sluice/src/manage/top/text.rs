//! A look as plain text, and the cells that the screen shows as well.

use super::sample::{DeviceSample, DomainSample, Sample, ShareSample};
use crate::outcome::state_word;
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
        state_word(domain.state).to_owned(),
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
        "{} ({}): held by {}, {} handoffs/s, {} interrupts/s",
        device.name,
        device.model,
        device.holder.as_deref().unwrap_or("nobody"),
        grouped(device.handoffs_per_second),
        grouped(device.interrupts_per_second),
    )
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
        format!("{:.0} %", share.held_percent),
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
