//! What data of a passed-through device costs while processes come and go beside it: with a cache of page-table pages, without, and without the processes.
//!
//! The emulated machine has one processor, which the processes take time of: what is received per second would tell of the guest's scheduler, and QEMU's wire is
//! as fast as the machine it runs on. So the guest does the same work three times (daemons/sluice-processes): data, processes, and both at once. What both cost
//! beyond the processes alone is what the data cost while they came and went, and its inverse is the throughput per instruction. How often the IOMMU was told to forget pages, and how
//! often it had to walk its tables, comes from QEMU's log.
//!
//! Source: PiBooster, 5.3.3: netperf and a disk's speed beside the load, with no detectable difference.

use super::super::marks::{Entries, Mark, marks};
use super::super::record::{Aim, Record};
use super::{INVALIDATION, events_at_marks};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// What QEMU's AMD-Vi logs when it has walked its tables for a page, since it did not remember it.
pub const WALK: &str = "amdvi_cache_update";
/// Rounds of the load, and the marks of each.
pub const ROUNDS: usize = 3;
pub const MARKS: usize = 4;
/// Data of one part, and processes.
pub const MIB: usize = 4;
pub const PROCESSES: usize = 150;

/// Where the data comes from: the part, the configuration of the machine and its guest, and the place, as the guest calls it.
pub struct Kind {
    /// As parts and rows are called.
    pub name: &'static str,
    /// Of the machine.
    pub machine: &'static str,
    /// Of the guest.
    pub domain: &'static str,
    /// A disk; the network's depends on the run.
    pub place: Option<&'static str>,
}

/// A network card and a disk, behind the same unit.
pub const KINDS: [Kind; 2] = [
    Kind {
        name: "net",
        machine: "iommu = \"amd\"\n[device.nic0]\npci = \"8086:100e\"\nqemu = \"e1000\"\nnet = \"user\"\n",
        domain: "devices = [{ use = \"nic0\", mode = \"passthrough\" }]\n",
        place: None,
    },
    Kind {
        name: "disk",
        machine: "iommu = \"amd\"\nqemu_args = [\"-drive\", \"if=none,id=disk0,file=null-co://,file.size=67108864,file.read-zeroes=on,format=raw,snapshot=on\"]\n\
                  [device.disk0]\npci = \"1b36:0010\"\nqemu = \"nvme,serial=sluice,drive=disk0\"\n",
        domain: "devices = [{ use = \"disk0\", mode = \"passthrough\" }]\n",
        place: Some("/dev/nvme0n1"),
    },
];

/// Starts a server that sends as many bytes as it is asked for by eight bytes; its port. It ends with the process.
pub fn server() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("could not listen")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(port)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let zeroes = vec![0; 64 << 10];
    let mut length = [0; 8];
    loop {
        stream.read_exact(&mut length)?;
        let mut left = usize::try_from(u64::from_le_bytes(length)).unwrap_or(0);
        while left > 0 {
            let count = left.min(zeroes.len());
            stream.write_all(&zeroes[..count])?;
            left -= count;
        }
    }
}

/// What was counted in a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    instructions: f64,
    invalidations: f64,
    walks: f64,
}

/// Three parts of a round: data, processes, both.
type Round = [Count; MARKS - 1];

/// The first mark of each round, of each time that the load ran which set so many marks.
pub fn runs(marks: usize) -> Result<Vec<[usize; ROUNDS]>> {
    let whole = ROUNDS * MARKS;
    ensure!(marks > 0 && marks.is_multiple_of(whole), "the guest set {marks} marks");
    Ok((0..marks).step_by(whole).map(|first| std::array::from_fn(|round| first + round * MARKS)).collect())
}

/// The rounds of each time that the load ran.
fn rounds(text: &str) -> Result<Vec<[Round; ROUNDS]>> {
    let counted = marks(text, Entries::Vmruns);
    let (forgotten, walked) = (events_at_marks(text, INVALIDATION), events_at_marks(text, WALK));
    let part = |at: usize| {
        let passed = |mark: fn(&Mark) -> u64| (mark(&counted[at + 1]) - mark(&counted[at])) as f64;
        let count = |counts: &[f64]| counts[at + 1] - counts[at];
        Count {
            instructions: passed(|mark| mark.instructions),
            invalidations: count(&forgotten),
            walks: count(&walked),
        }
    };
    let round = |at: usize| [part(at), part(at + 1), part(at + 2)];
    Ok(runs(counted.len())?.into_iter().map(|run| run.map(round)).collect())
}

/// Least, median and most: in the first round processes alone may pay for what the cache gets yet, which then is missing from what data is charged.
pub fn spread(numbers: &[f64]) -> (f64, f64, f64) {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    (at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

/// Rows of a kind: the first time that the load ran was without the cache, the second with it.
pub fn rows(record: &mut Record, kind: &str, text: &str) -> Result<()> {
    let runs = rounds(text)?;
    ensure!(runs.len() == 2, "the load ran {} times", runs.len());
    for (how, rounds) in ["nocache", "cache"].into_iter().zip(runs) {
        let kib = (MIB << 10) as f64;
        let per_kib = |cost: fn(&Round) -> f64| {
            let costs: Vec<f64> = rounds.iter().map(|round| cost(round) / kib).collect();
            spread(&costs)
        };
        let quiet = per_kib(|round| round[0].instructions);
        let storm = per_kib(|round| round[2].instructions - round[1].instructions);
        for (when, (least, median, most), about) in [
            ("quiet", quiet, "the data alone"),
            ("storm", storm, "the data and processes at once, less as many processes alone"),
        ] {
            let note = format!(
                "{about}; {MIB} MiB and {PROCESSES} processes, {least:.0} to {most:.0} in {ROUNDS} rounds"
            );
            record.row(format!("pv.{kind}.{when}.{how}.instructions_per_kib"), median, "instructions", note);
        }
        let mib = MIB as f64;
        type Of = fn(&Count) -> f64;
        let events: [(&str, &str, Of); 2] = [
            ("invalidations", "commands to forget pages", |count| count.invalidations),
            ("walks", "pages that the unit did not remember", |count| count.walks),
        ];
        for (event, about, of) in events {
            for (when, part) in [("quiet", 0), ("storm", 2)] {
                let counts: Vec<f64> = rounds.iter().map(|round| of(&round[part]) / mib).collect();
                let (least, median, most) = spread(&counts);
                let note = format!("{about} per MiB of data, {least:.0} to {most:.0} in {ROUNDS} rounds");
                record.row(
                    format!("pv.{kind}.{when}.{how}.iotlb.{event}_per_mib"),
                    median,
                    event_unit(event),
                    note,
                );
            }
        }
        let name = if how == "cache" { String::new() } else { format!(".{how}") };
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|round| round[0].instructions / (round[2].instructions - round[1].instructions))
            .collect();
        let (least, median, most) = spread(&ratios);
        let aim = (how == "cache" && kind == "net").then_some(Aim::AtLeast(0.97));
        let note = format!(
            "data per instruction while processes come and go to that without, {least:.3} to {most:.3} in {ROUNDS} rounds; {how}"
        );
        record.aimed(format!("pv.{kind}.fork_storm_ratio{name}"), median, "ratio", aim, note);
    }
    Ok(())
}

fn event_unit(event: &str) -> &'static str {
    if event == "walks" { "walks" } else { "invalidations" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of the load, whose data costs `data` alone and `both` with processes, which cost 1000 and as many invalidations as are said.
    fn run(start: u64, data: u64, both: u64, forgotten: usize) -> String {
        let mut text = String::new();
        let mut now = start;
        for _ in 0..ROUNDS {
            text += &format!("count mark {now} 1 1 1\n{WALK} a\n");
            now += data;
            text += &format!("count mark {now} 1 1 1\n");
            now += 1000;
            text += &format!("count mark {now} 1 1 1\n");
            now += both;
            text += &format!("{INVALIDATION} a\n").repeat(forgotten);
            text += &format!("count mark {now} 1 1 1\n");
            now += 77;
        }
        text
    }

    #[test]
    fn the_data_is_charged_with_what_both_cost_beyond_the_processes() {
        let data = (MIB << 10) as u64 * 10;
        let text = run(5, data, 2 * data + 1000, 8) + &run(1 << 30, data, data + 1000, 0);
        let mut record = Record::new("paravirtual-storm");
        rows(&mut record, "net", &text).unwrap();
        let value = |id: &str| record.value(id).unwrap();
        assert_eq!(value("pv.net.quiet.nocache.instructions_per_kib"), 10.0);
        assert_eq!(value("pv.net.storm.nocache.instructions_per_kib"), 20.0);
        assert_eq!(value("pv.net.fork_storm_ratio.nocache"), 0.5);
        assert_eq!(value("pv.net.fork_storm_ratio"), 1.0);
        assert_eq!(value("pv.net.storm.nocache.iotlb.invalidations_per_mib"), 2.0);
        assert_eq!(value("pv.net.storm.cache.iotlb.invalidations_per_mib"), 0.0);
        assert_eq!(value("pv.net.quiet.cache.iotlb.walks_per_mib"), 0.25);
    }

    #[test]
    fn a_load_that_stopped_has_no_rows() {
        let mut record = Record::new("paravirtual-storm");
        let once = run(5, 10, 1010, 0);
        assert!(rows(&mut record, "net", &once).is_err(), "it ran once");
        assert!(rows(&mut record, "net", &once[..once.len() / 2]).is_err());
        assert!(rows(&mut record, "net", "").is_err());
    }

    #[test]
    fn the_server_sends_what_it_is_asked_for() {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server().unwrap())).unwrap();
        let mut bytes = Vec::new();
        for length in [5_u64, 100_000] {
            stream.write_all(&length.to_le_bytes()).unwrap();
            bytes.resize(length as usize, 1);
            stream.read_exact(&mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
