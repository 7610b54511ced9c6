//! What came of a run: the judgement, what the guests found, and the JSON document.
//!
//! `docs/json.md` describes the document; [`SCHEMA`] changes when a field changes its meaning.

use crate::config::{Setup, format_mac, human_size};
use crate::printable::GuestText;
use serde_json::{Map, Value, json};
use sluice_abi::report::{
    Count, DeviceReport, DomainReport, DomainState, LinkReport, NetworkReport, Report, ShareReport,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the JSON document.
pub const SCHEMA: u32 = 1;

/// The exit statuses of the host command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Every guest did what it should and powered off by itself.
    Ok = 0,
    /// Something around the run went wrong: files, packages, QEMU. Usage errors are 2 (clap's).
    Trouble = 1,
    /// The configuration is wrong.
    Configuration = 3,
    /// A guest crashed, was destroyed, or reported a failure.
    Guest = 4,
    /// The hypervisor failed.
    Hypervisor = 5,
    /// The time was over.
    TimeOut = 6,
}

impl Status {
    /// The status with this number.
    pub fn of_code(code: i32) -> Option<Self> {
        let all =
            [Self::Ok, Self::Trouble, Self::Configuration, Self::Guest, Self::Hypervisor, Self::TimeOut];
        all.into_iter().find(|status| *status as i32 == code)
    }

    /// A word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Trouble => "trouble",
            Self::Configuration => "bad-configuration",
            Self::Guest => "guest-failure",
            Self::Hypervisor => "hypervisor-failure",
            Self::TimeOut => "time-out",
        }
    }
}

/// The most findings of a guest's life that are kept.
pub const MOST_FINDINGS: usize = 1000;

/// The most keys of one finding that are kept.
const MOST_KEYS: usize = 64;

/// One `SLUICE-RESULT` line of a guest: its keys and values, in order.
pub type Finding = Vec<(GuestText, GuestText)>;

/// Reads a console line; the marker may follow other output on the line.
pub fn parse_finding(line: &str) -> Option<Finding> {
    let (_, rest) = line.split_once("SLUICE-RESULT ")?;
    let pairs = rest.split_whitespace().filter_map(|word| word.split_once('='));
    Some(pairs.take(MOST_KEYS).map(|(key, value)| (key.into(), value.into())).collect())
}

/// The console line is the last one of a Linux kernel that stops for good (`kernel/panic.c`). A kernel with a driver for the port
/// of panics has ended its guest before.
pub fn has_stopped(line: &str) -> bool {
    line.contains("---[ end Kernel panic - not syncing")
}

/// What is known of one guest at the end.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Its last state.
    pub state: DomainState,
    /// It has been started.
    pub started: bool,
    /// Why it ended, if not by itself.
    pub reason: GuestText,
    /// Its console said that its kernel stopped.
    pub has_stopped: bool,
    /// What it reported: the first [`MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// How many findings more there were.
    pub findings_dropped: u64,
}

impl Guest {
    /// Keeps a finding and returns it, unless there are too many.
    pub fn keep(&mut self, finding: Finding) -> Option<&Finding> {
        if self.findings.len() >= MOST_FINDINGS {
            self.findings_dropped += 1;
            return None;
        }
        self.findings.push(finding);
        self.findings.last()
    }

    /// Forgets what its last life said: it begins a new one.
    pub fn begin_life(&mut self) {
        self.has_stopped = false;
        self.findings.clear();
        self.findings_dropped = 0;
    }

    /// The last value it reported for a key.
    pub fn value(&self, key: &str) -> Option<&GuestText> {
        let mut all = self.findings.iter().flatten().filter(|(known, _)| known == key);
        all.next_back().map(|(_, value)| value)
    }

    /// The sum of all numbers it reported for a key.
    pub fn sum(&self, key: &str) -> Option<u64> {
        let mut found = self.findings.iter().flatten().filter(|(known, _)| known == key).peekable();
        found.peek()?;
        Some(found.filter_map(|(_, value)| value.raw().parse::<u64>().ok()).sum())
    }

    /// "ok" if all verdicts under a key were, "bad" if one was not.
    pub fn verdict(&self, key: &str) -> Option<&'static str> {
        let mut found = self.findings.iter().flatten().filter(|(known, _)| known == key).peekable();
        found.peek()?;
        Some(if found.all(|(_, value)| value == "ok") { "ok" } else { "bad" })
    }

    /// Why this guest did not do what it should, if so.
    pub fn failure(&self) -> Option<String> {
        let name = &self.name;
        let because = if self.reason.raw().is_empty() { String::new() } else { format!(": {}", self.reason) };
        match self.state {
            _ if self.has_stopped => {
                return Some(format!("{name}: its console says that its kernel panicked{because}"));
            }
            DomainState::PoweredOff => {}
            // It waited to be started until the machine was switched off.
            DomainState::Destroyed if !self.started => return None,
            other => return Some(format!("{name} {}{because}", state_phrase(other))),
        }
        if self.findings_dropped > 0 {
            return Some(format!(
                "{name} reported more than {MOST_FINDINGS} results; the others are not kept"
            ));
        }
        if self.verdict("done") == Some("bad") {
            return Some(format!("{name} reported a failure; see its console"));
        }
        for key in ["download_sha256", "upload_sha256"] {
            if self.verdict(key) == Some("bad") {
                return Some(format!("{name} found a wrong hash ({key})"));
            }
        }
        None
    }

    /// Frames it sent and received by its own count.
    pub fn packets(&self) -> Option<(u64, u64)> {
        let number = |key| self.value(key)?.raw().parse().ok();
        Some((number("tx_packets")?, number("rx_packets")?))
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The judgement.
    pub status: Status,
    /// What went wrong, one sentence each; words of guests in it are escaped.
    pub problems: Vec<String>,
    /// Where the consoles and the hypervisor's log are.
    pub consoles: std::path::PathBuf,
    /// The guests, in the order of the configuration.
    pub guests: Vec<Guest>,
    /// The last report of the hypervisor.
    pub report: Option<Report>,
    /// How long the run took.
    pub wall: Duration,
    /// Kernels by name: release and package version.
    pub kernels: Vec<(String, String, String)>,
    /// QEMU's version and arguments, for the record.
    pub machine: BTreeMap<&'static str, String>,
}

const fn state_phrase(state: DomainState) -> &'static str {
    match state {
        DomainState::Created => "was never started",
        DomainState::Running => "was still running",
        DomainState::Paused => "was still paused",
        DomainState::PoweredOff => "powered off",
        DomainState::Destroyed => "was destroyed",
        DomainState::Crashed => "crashed",
        DomainState::Restarting => "waited to be started again",
    }
}

impl Outcome {
    /// The JSON document.
    pub fn json(&self, setup: &Setup) -> Value {
        let empty = Report::default();
        let report = self.report.as_ref().unwrap_or(&empty);
        let mut domains = Map::new();
        for (guest, domain) in self.guests.iter().zip(&setup.domains) {
            let counted = report.domains.iter().find(|counted| counted.name == guest.name);
            domains.insert(guest.name.clone(), guest_json(guest, counted, domain));
        }
        let devices: Map<String, Value> =
            report.devices.iter().map(|device| (device.name.clone(), self.device_json(device))).collect();
        let kernels: Map<String, Value> = self
            .kernels
            .iter()
            .map(|(name, release, version)| (name.clone(), json!({ "release": release, "package": version })))
            .collect();
        json!({
            "schema": SCHEMA,
            "outcome": { "status": self.status as i32, "word": self.status.word(), "problems": self.problems },
            "wall_seconds": self.wall.as_secs_f64(),
            "machine": self.machine,
            "kernels": kernels,
            "hypervisor": {
                "uptime_ns": report.uptime_ns,
                "cpus": report.cpus,
                "tsc_khz": report.tsc_khz,
                "free_memory": report.free_memory,
            },
            "domains": domains,
            "devices": devices,
            "links": links_json(&report.links),
            "networks": networks_json(&report.networks),
            "iommu": crate::iommu::json(&report.iommu),
        })
    }

    fn device_json(&self, device: &DeviceReport) -> Value {
        let shares: Map<String, Value> = device
            .shares
            .iter()
            .map(|share| (share.domain.clone(), share_json(share, self.packets(share))))
            .collect();
        json!({
            "model": device.model,
            "holder": device.holder,
            "handoffs": device.handoffs,
            "forced": device.forced,
            "interrupts": device.interrupts,
            "shares": shares,
        })
    }

    /// Frames of a share: by the guest's own count, else by the hypervisor's.
    pub fn packets(&self, share: &ShareReport) -> u64 {
        let own = self.guests.iter().find(|guest| guest.name == share.domain).and_then(Guest::packets);
        own.map_or(share.tx_packets + share.rx_packets, |(sent, received)| sent + received)
    }
}

/// The virtual devices that domains serve for others, by name.
pub fn links_json(links: &[LinkReport]) -> Value {
    let one = |link: &LinkReport| {
        json!({
            "type": link.kind,
            "guest": link.guest,
            "server": link.server,
            "offered": link.offered,
            "status": link.status,
            "window": link.window,
            "lent": link.lent,
            "background": link.background,
            "kicks": link.kicks,
            "used": link.used,
            "vif": counts(&link.vif),
            "copied": link.copied,
            "refused": link.refused,
        })
    };
    Value::Object(links.iter().map(|link| (link.name.clone(), one(link))).collect())
}

/// The networks that engines serve, by name.
pub fn networks_json(networks: &[NetworkReport]) -> Value {
    let one = |network: &NetworkReport| json!({ "cores": network.cores, "counts": counts(&network.counts) });
    Value::Object(networks.iter().map(|network| (network.name.clone(), one(network))).collect())
}

fn counts(list: &[Count]) -> Value {
    Value::Object(list.iter().map(|count| (count.name.clone(), json!(count.value))).collect())
}

fn guest_json(guest: &Guest, counted: Option<&DomainReport>, domain: &crate::config::Domain) -> Value {
    let empty = DomainReport::default();
    let counted = counted.unwrap_or(&empty);
    let findings: Vec<Value> = guest
        .findings
        .iter()
        .map(|finding| {
            Value::Object(
                finding.iter().map(|(key, value)| (key.raw().to_owned(), json!(value.raw()))).collect(),
            )
        })
        .collect();
    let shares: Vec<Value> = domain
        .shares
        .iter()
        .map(|share| {
            json!({
                "device": share.device.get_ref(),
                "mode": share.mode.word(),
                "mac": share.mac.as_ref().map(|mac| format_mac(*mac.get_ref())),
            })
        })
        .chain(domain.virtio.iter().map(|device| {
            json!({
                "device": &**device.name.get_ref(),
                "mode": crate::config::virtio::MODE,
                "mac": device.mac.as_ref().map(|mac| format_mac(*mac.get_ref())),
            })
        }))
        .chain(domain.vifs.iter().map(|vif| {
            json!({
                "device": &**vif.name.get_ref(),
                "mode": crate::config::vif::MODE,
                "mac": format_mac(*vif.mac.get_ref()),
            })
        }))
        .collect();
    json!({
        "state": guest.state.word(),
        "reason": guest.reason.raw(),
        "failure": guest.failure(),
        "restarts": counted.restarts,
        "memory": human_size(*domain.memory.get_ref()),
        "vcpus": domain.vcpus.get_ref(),
        "devices": shares,
        "run_ns": counted.run_ns,
        "exits_total": counted.exits.iter().map(|count| count.value).sum::<u64>(),
        "exits": counts(&counted.exits),
        "refused": counts(&counted.refused),
        "paravirtual": counts(&counted.paravirtual),
        "interrupts": counted.interrupts,
        "io_space": crate::iommu::space_json(counted.space.as_ref()),
        "downloaded_bytes": guest.sum("download_bytes"),
        "download_sha256": guest.verdict("download_sha256"),
        "uploaded_bytes": guest.sum("upload_bytes"),
        "upload_sha256": guest.verdict("upload_sha256"),
        "results": findings,
        "results_dropped": guest.findings_dropped,
    })
}

fn share_json(share: &ShareReport, packets: u64) -> Value {
    json!({
        "mode": share.mode,
        "hooked_elements": share.hooked_elements,
        "hooked_instructions": share.hooked_instructions,
        "hooked_by_register": counts(&share.hooked_by_register),
        "hooked_per_packet": per_packet(share.hooked_instructions, packets),
        "forwarded_elements": share.forwarded_elements,
        "packets": packets,
        "tx_packets": share.tx_packets,
        "tx_dropped": share.tx_dropped,
        "rx_packets": share.rx_packets,
        "rx_dropped": share.rx_dropped,
        "forged": share.forged,
        "commands": share.commands,
        "sectors_read": share.sectors_read,
        "sectors_written": share.sectors_written,
        "refused": share.refused,
        "waits": share.waits,
        "wait_ns": share.wait_ns,
        "held_ns": share.held_ns,
    })
}

/// A ratio, where there is one.
pub fn per_packet(count: u64, packets: u64) -> Option<f64> {
    (packets > 0).then(|| count as f64 / packets as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(lines: &[&str]) -> Guest {
        Guest {
            name: "alice".into(),
            state: DomainState::PoweredOff,
            findings: lines.iter().filter_map(|line| parse_finding(line)).collect(),
            ..Guest::default()
        }
    }

    #[test]
    fn findings_add_up_over_rounds() {
        let guest = guest(&[
            "[    2.1] SLUICE-RESULT download_bytes=100 download_sha256=ok",
            "noise",
            "SLUICE-RESULT download_bytes=50 download_sha256=ok",
            "SLUICE-RESULT done=ok",
        ]);
        assert_eq!(guest.sum("download_bytes"), Some(150));
        assert_eq!(guest.verdict("download_sha256"), Some("ok"));
        assert_eq!(guest.sum("upload_bytes"), None);
        assert_eq!(guest.failure(), None);
    }

    #[test]
    fn a_guest_that_reports_without_end_has_not_done_its_job() {
        let mut guest = guest(&["SLUICE-RESULT done=ok"]);
        for _ in 1..MOST_FINDINGS {
            assert!(guest.keep(parse_finding("SLUICE-RESULT a=b").unwrap()).is_some());
        }
        assert_eq!(guest.failure(), None);
        assert!(guest.keep(parse_finding("SLUICE-RESULT a=b").unwrap()).is_none());
        assert_eq!(guest.findings.len(), MOST_FINDINGS);
        assert!(guest.failure().unwrap().contains("more than 1000 results"));
        guest.begin_life();
        assert_eq!(guest.failure(), None, "a new life");
        let many = format!("SLUICE-RESULT {}", "k=v ".repeat(1000));
        assert_eq!(parse_finding(&many).unwrap().len(), MOST_KEYS);
    }

    #[test]
    fn one_bad_hash_fails_a_guest() {
        let bad = guest(&["SLUICE-RESULT upload_sha256=bad", "SLUICE-RESULT upload_sha256=ok"]);
        assert!(bad.failure().unwrap().contains("wrong hash"));
    }

    #[test]
    fn a_guest_must_power_off_by_itself() {
        let mut guest = guest(&[]);
        guest.state = DomainState::Crashed;
        guest.reason = "triple fault".into();
        assert_eq!(guest.failure().unwrap(), "alice crashed: triple fault");
    }

    #[test]
    fn what_a_console_says_of_a_panic_counts() {
        let mut guest = guest(&["SLUICE-RESULT done=ok"]);
        let line = "[    1.5] ---[ end Kernel panic - not syncing: sysrq triggered crash ]---";
        guest.has_stopped = has_stopped(line);
        assert!(guest.failure().unwrap().contains("its kernel panicked"));
        guest.begin_life();
        assert_eq!(guest.failure(), None);
    }
}
