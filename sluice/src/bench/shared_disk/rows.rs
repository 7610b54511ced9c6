//! Rows from counts.

use super::{Counted, Disk, System, Way};
use crate::bench::plot::{self, Panel};
use crate::bench::record::{Aim, Record};
use crate::bench::tally::Phase;
use crate::bench::transfer;
use crate::outcome::Guest;
use anyhow::{Result, ensure};

/// Workloads: their names in rows, the marks that the program sets around them, and how it calls them. `read` and `write` are 4 KiB at random places,
/// 32 requests at once, the others 1 MiB in order, four at once.
const WORKLOADS: [(&str, Phase, &str); 4] = [
    ("read", Phase::Interactive, "read_4k"),
    ("write", Phase::Small, "write_4k"),
    ("read_1m", Phase::Up, "read_1m"),
    ("write_1m", Phase::Down, "write_1m"),
];

/// Data per instruction of the machine, ours and another system's: rows' beginnings, the other's name, what it should come to, and what is to be known.
pub type Ratio = (&'static str, &'static str, &'static str, Option<Aim>, &'static str);

/// Of an IDE disk.
pub const IDE: [Ratio; 5] = [
    ("ide.vpio", "native", "ide.native", Some(Aim::AtLeast(0.9)), BOUND),
    ("ide.vpio", "kvm", "peer.kvm.ide", Some(Aim::AtLeast(1.0)), ""),
    ("ide.vpio.shared", "native", "ide.native", Some(Aim::AtLeast(0.9)), BOUND),
    ("ide.vpio.shared", "kvm", "peer.kvm.ide", Some(Aim::AtLeast(1.0)), ALONE),
    ("ide.vpio.shared", "sole", "ide.vpio", None, ""),
];
/// Of an NVMe disk.
pub const NVME: [Ratio; 9] = [
    ("nvme.passthrough", "native", "nvme.native", None, ""),
    ("nvme.vpio", "passthrough", "nvme.passthrough", Some(Aim::AtLeast(0.9)), ""),
    ("nvme.vpio", "native", "nvme.native", None, ""),
    ("nvme.vpio", "kvm", "peer.kvm.nvme", Some(Aim::AtLeast(1.0)), ""),
    ("nvme.vpio", "kvm_virtio", "peer.kvm.virtio", Some(Aim::AtLeast(1.0)), ""),
    ("nvme.vpio.shared", "passthrough", "nvme.passthrough", Some(Aim::AtLeast(0.9)), SOLE),
    ("nvme.vpio.shared", "kvm", "peer.kvm.nvme", Some(Aim::AtLeast(1.0)), SOLE),
    ("nvme.vpio.shared", "kvm_virtio", "peer.kvm.virtio", Some(Aim::AtLeast(1.0)), SOLE),
    ("nvme.vpio.shared", "sole", "nvme.vpio", None, ""),
];
const SOLE: &str = ", which one guest has alone";
const BOUND: &str = "; the aim is that of passthrough, which cannot do better than this";
const ALONE: &str = ", which one guest has alone: two of KVM's did not get to their end in this emulator";

/// What guests moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    bytes: u64,
    requests: u64,
}

/// What all guests moved in a workload, each of which reported it once.
fn moved(guests: &[Guest], name: &str, count: usize) -> Result<Moved> {
    let (mut sum, mut reports) = (Moved::default(), 0);
    for finding in guests.iter().flat_map(|guest| &guest.findings) {
        let value = |key: &str| finding.iter().find(|pair| pair.0 == key).map(|pair| pair.1.raw());
        if value("at") == Some(name) {
            let number = |key: &str| value(key).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            sum.bytes += number("bytes");
            sum.requests += number("operations");
            reports += 1;
        }
    }
    ensure!(reports == count, "{reports} of {count} guests reported how much they moved in {name}");
    ensure!(sum.bytes > 0 && sum.requests > 0, "nothing was moved in {name}");
    Ok(sum)
}

/// Rows of a system.
pub fn counts(record: &mut Record, disk: &Disk, system: &System, counted: &Counted) -> Result<()> {
    for (name, phase, reported) in WORKLOADS {
        let moved = moved(&counted.guests, reported, system.guests)?;
        let counts = counted.tally.phase(phase);
        ensure!(counts.instructions() > 0, "no guest set the marks of {name}");
        let requests = moved.requests as f64;
        let mut about = format!("{}, {requests} requests", system.about);
        if system.guests > 1 {
            let overlap = 100.0 * counted.tally.overlap(phase);
            about += &format!("; both were at it for {overlap:.0} percent of the time that either was");
        }
        let mut row = |what: &str, value: f64, unit, note: String| {
            record.row(id(system.prefix, name, what), value, unit, format!("{note}; {about}"));
        };
        if system.way != Way::Native {
            let (all, own) = (counts.all_exits(), counts.device_exits(&transfer::regions(&counted.guests)?));
            let registers = disk.registers;
            let note = format!("{} exits of the guest, all causes", all.count);
            row("exits_per_request", all.count as f64 / requests, "exits/request", note);
            let note = format!("{} exits by accesses to {registers}", own.count);
            row(
                &format!("{}_exits_per_request", disk.name),
                own.count as f64 / requests,
                "exits/request",
                note,
            );
            let note = format!(
                "{} instructions between an exit of the guest and the next entry, {} of them after accesses to {registers}",
                all.instructions, own.instructions
            );
            row("handling_per_request", all.instructions as f64 / requests, "instructions/request", note);
        }
        let kb = moved.bytes as f64 / 1024.0;
        let note =
            format!("{} instructions of the whole machine / {kb:.0} KB of data", counts.instructions());
        row("instructions_per_kb", counts.instructions() as f64 / kb, "instructions/KB", note);
    }
    Ok(())
}

fn id(prefix: &str, name: &str, what: &str) -> String {
    format!("{prefix}.{name}.{what}")
}

/// Ratios of a workload, with their aims, of those that were measured.
fn ratios(record: &mut Record, disk: &Disk, name: &str) {
    for &(prefix, other, peer, aim, more) in disk.ratios {
        let per_kb = [peer, prefix].map(|prefix| record.value(&id(prefix, name, "instructions_per_kb")));
        if let [Some(theirs), Some(ours)] = per_kb {
            let note = format!("data per instruction of the machine, {prefix} to {peer}{more}");
            let ratio_id = id(prefix, name, &format!("ratio_to_{other}"));
            record.aimed(ratio_id, theirs / ours, "ratio", aim, note);
        }
    }
}

/// Ratios, and the picture.
pub fn figures(disk: &Disk, record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for (name, ..) in WORKLOADS {
        ratios(record, disk, name);
        for (what, title) in [
            ("instructions_per_kb", "instructions of the machine per KB"),
            ("handling_per_request", "instructions of exit handling per request"),
            ("exits_per_request", "exits per request"),
        ] {
            let bar = |system: &System| {
                Some((system.part.replace('-', " "), record.value(&id(system.prefix, name, what))?))
            };
            let bars: Vec<_> = disk.systems.iter().filter_map(bar).collect();
            if !bars.is_empty() {
                panels.push(Panel { title: format!("{name}, {title}"), bars });
            }
        }
    }
    plot::write(disk.name, disk.title, &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::shared_disk;
    use crate::outcome::parse_finding;

    #[test]
    fn what_guests_moved_is_added_if_all_of_them_say_so() {
        let lines = [
            "guest0: SLUICE-RESULT at=read_4k bytes=8388608 operations=2048",
            "guest1: SLUICE-RESULT at=read_4k bytes=4096 operations=1",
            "guest0: SLUICE-RESULT at=write_4k bytes=0 operations=0",
        ];
        let guests = [transfer::guest(lines.iter().filter_map(|line| parse_finding(line)).collect())];
        assert_eq!(moved(&guests, "read_4k", 2).unwrap(), Moved { bytes: 8_392_704, requests: 2049 });
        assert!(moved(&guests, "read_4k", 1).is_err() && moved(&guests, "read_1m", 1).is_err());
        assert!(moved(&guests, "write_4k", 1).is_err(), "nothing can be divided by it");
    }

    #[test]
    fn a_ratio_is_data_per_instruction() {
        let mut record = Record::new("ide-test");
        record.row("ide.vpio.read.instructions_per_kb", 200.0, "instructions/KB", "");
        record.row("peer.kvm.ide.read.instructions_per_kb", 500.0, "instructions/KB", "");
        ratios(&mut record, &shared_disk::IDE, "read");
        assert_eq!(record.value("ide.vpio.read.ratio_to_kvm"), Some(2.5));
        assert_eq!(record.value("ide.vpio.read.ratio_to_native"), None, "which was not measured");
    }
}
