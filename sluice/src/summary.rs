//! What a run came to, as tables for people.

use crate::config::human_size;
use crate::iommu;
use crate::outcome::{Guest, Outcome, Status, per_packet};
use crate::table::{Table, duration, grouped};
use sluice_abi::report::{Count, DomainReport, Report, ShareReport};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Reasons shown per run; the JSON document has all.
const REASONS_SHOWN: usize = 14;

/// The end of a run, for people.
pub fn summary(outcome: &Outcome) -> String {
    let mut text = String::new();
    let empty = Report::default();
    let report = outcome.report.as_ref().unwrap_or(&empty);
    text += &guests(outcome, report);
    text += &by_name("exits by reason", &report.domains, |domain| &domain.exits);
    text += &by_name("paravirtual", &report.domains, |domain| &domain.paravirtual);
    text += &devices(outcome, report);
    text += &iommu::summary(report);
    text += &refusals(report);
    for (name, release, version) in &outcome.kernels {
        // What a guest installed itself is known by its file only.
        let package = if version.is_empty() { String::new() } else { format!(", Debian package {version}") };
        let _ = writeln!(text, "\nkernel {name}: Linux {release}{package}");
    }
    let verdict = match outcome.status {
        Status::Ok => "ok: every guest did its job and powered off; the hypervisor saw no fault",
        other => other.word(),
    };
    let _ = writeln!(text, "\n{verdict} ({:.1} s)", outcome.wall.as_secs_f64());
    for problem in &outcome.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text
}

fn transfer(guest: &Guest, bytes: &str, hash: &str) -> String {
    match (guest.sum(bytes), guest.verdict(hash)) {
        (Some(bytes), Some(verdict)) => format!("{}, sha256 {verdict}", human_size(bytes)),
        _ => "-".to_owned(),
    }
}

fn guests(outcome: &Outcome, report: &Report) -> String {
    let mut table =
        Table::new(&["guest", "state", "init at", "downloaded", "uploaded", "packets", "exits", "ran for"]);
    for guest in &outcome.guests {
        let counted = report.domains.iter().find(|domain| domain.name == guest.name);
        let total = counted.map_or(0, |domain| domain.exits.iter().map(|count| count.value).sum());
        table.row(vec![
            guest.name.clone(),
            guest.state.word().to_owned(),
            guest.value("init").map_or("-".to_owned(), |seconds| format!("{seconds} s")),
            transfer(guest, "download_bytes", "download_sha256"),
            transfer(guest, "upload_bytes", "upload_sha256"),
            guest.packets().map_or("-".to_owned(), |(sent, received)| grouped(sent + received)),
            grouped(total),
            counted.map_or("-".to_owned(), |domain| duration(domain.run_ns)),
        ]);
    }
    format!("\n{}", table.render())
}

/// The commonest of the domains' counts, and the sum of the others; of those domains that have any.
fn by_name(heading: &str, domains: &[DomainReport], counts: fn(&DomainReport) -> &Vec<Count>) -> String {
    let domains: Vec<&DomainReport> =
        domains.iter().filter(|domain| counts(domain).iter().any(|count| count.value != 0)).collect();
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for count in domains.iter().flat_map(|domain| counts(domain)) {
        *totals.entry(&count.name).or_default() += count.value;
    }
    if totals.is_empty() {
        return String::new();
    }
    let mut reasons: Vec<(&str, u64)> = totals.into_iter().collect();
    reasons.sort_by_key(|(_, total)| std::cmp::Reverse(*total));
    let mut headings = vec![heading];
    headings.extend(domains.iter().map(|domain| domain.name.as_str()));
    let mut table = Table::new(&headings);
    for (reason, _) in reasons.iter().take(REASONS_SHOWN) {
        let mut row = vec![(*reason).to_owned()];
        row.extend(domains.iter().map(|domain| grouped(value_of(counts(domain), reason))));
        table.row(row);
    }
    let rest = &reasons[reasons.len().min(REASONS_SHOWN)..];
    if !rest.is_empty() {
        let mut row = vec![format!("({} more)", rest.len())];
        row.extend(
            domains
                .iter()
                .map(|domain| grouped(rest.iter().map(|(reason, _)| value_of(counts(domain), reason)).sum())),
        );
        table.row(row);
    }
    format!("\n{}", table.render())
}

fn value_of(counts: &[Count], name: &str) -> u64 {
    counts.iter().filter(|count| count.name == name).map(|count| count.value).sum()
}

fn devices(outcome: &Outcome, report: &Report) -> String {
    let mut text = String::new();
    for device in &report.devices {
        let _ = writeln!(
            text,
            "\n  device {} ({}): {} handoffs, {} forced, {} interrupts",
            device.name,
            device.model,
            grouped(device.handoffs),
            grouped(device.forced),
            grouped(device.interrupts)
        );
        if device.shares.iter().any(|share| share.commands > 0) {
            text += &disk(&device.shares);
            continue;
        }
        let mut table = Table::new(&[
            "shared by",
            "mode",
            "hooked",
            "per packet",
            "elements",
            "forwarded",
            "waits",
            "waited",
            "held",
            "refused",
        ]);
        for share in &device.shares {
            let packets = outcome.packets(share);
            table.row(vec![
                share.domain.clone(),
                share.mode.clone(),
                grouped(share.hooked_instructions),
                per_packet(share.hooked_instructions, packets)
                    .map_or("-".into(), |ratio| format!("{ratio:.2}")),
                grouped(share.hooked_elements),
                grouped(share.forwarded_elements),
                grouped(share.waits),
                duration(share.wait_ns),
                duration(share.held_ns),
                grouped(share.refused),
            ]);
        }
        text += &table.render();
    }
    text
}

/// Who shares a disk.
fn disk(shares: &[ShareReport]) -> String {
    let mut table = Table::new(&[
        "shared by",
        "mode",
        "hooked",
        "per command",
        "commands",
        "sectors read",
        "sectors written",
        "refused",
    ]);
    for share in shares {
        table.row(vec![
            share.domain.clone(),
            share.mode.clone(),
            grouped(share.hooked_instructions),
            per_packet(share.hooked_instructions, share.commands)
                .map_or("-".into(), |ratio| format!("{ratio:.2}")),
            grouped(share.commands),
            grouped(share.sectors_read),
            grouped(share.sectors_written),
            grouped(share.refused),
        ]);
    }
    table.render()
}

fn refusals(report: &Report) -> String {
    let mut text = String::new();
    for domain in &report.domains {
        let list: Vec<String> =
            domain.refused.iter().map(|count| format!("{} {}", grouped(count.value), count.name)).collect();
        if !list.is_empty() {
            let _ = writeln!(text, "\n  refused to {}: {}", domain.name, list.join(", "));
        }
    }
    text
}
