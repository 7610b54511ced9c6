//! Where the instructions of an engine go on a packet's way, stage by stage, with one, eight and 32 interfaces: one guest and the wire, the others have their
//! interfaces up and wait.
//!
//! The counter says how often each instruction of the hypervisor was executed between two marks, and the image's debug information whose it is: the
//! innermost function of ours that was put in there. So a stage is what files of ours do ([`STAGES`]), whoever called them; what an engine does that finds
//! nothing to do is among it.
//!
//! Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", the tables of its egress and ingress paths.

use super::vif::{ENGINE, ONE, configuration};
use super::{Bench, Load, Measured};
use crate::bench::record::Record;
use crate::bench::split::Split;
use crate::bench::{Clock, plugin, quoted, run_watched, scratch};
use crate::image;
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command as Order;
use sluice_abi::report::DomainState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of what [`measure`] can do.
pub const PART: &str = "stages";

/// Interfaces, each a guest's.
const COUNTS: [usize; 3] = [1, 8, 32];
/// Memory of a guest that waits, in MiB.
const WAITING_MIB: u64 = 96;

/// Stages by where their code is, from the workspace's folder on: the first that fits.
const STAGES: [(&str, &[&str]); 7] = [
    // Taking messages out of guests' queues, and putting them there: the source's message receive and send.
    ("queues", &["crates/virtio/", "crates/vif/src/chain", "crates/vif/src/lane", "crates/vif/src/port"]),
    // Heads, sums, segments, and what is put together of them.
    (
        "frames",
        &[
            "crates/vif/src/frame",
            "crates/vif/src/outgoing",
            "crates/vif/src/scratch",
            "crates/vif/src/stream",
            "crates/vif/src/offload",
            "crates/nic/src/offload",
        ],
    ),
    // Who has a frame: the source's demultiplexing.
    (
        "switch",
        &[
            "crates/vif/src/egress",
            "crates/vif/src/ingress",
            "crates/vif/src/directory",
            "crates/vif/src/filter",
            "crates/switch/",
        ],
    ),
    // The source's packet transmission and reception.
    (
        "card",
        &[
            "crates/uplink/",
            "crates/nic/",
            "crates/vif/src/wire",
            "crates/vif/src/card",
            "hypervisor/src/devices/vif/wire",
            "hypervisor/src/devices/hardware",
        ],
    ),
    // The source's signal.
    (
        "signals",
        &[
            "crates/vif/src/rung",
            "crates/vif/src/identifiers",
            "hypervisor/src/devices/vif/front",
            "hypervisor/src/devices/vif/interface",
            "hypervisor/src/devices/virtio/",
        ],
    ),
    // Guests' memory.
    (
        "memory",
        &[
            "crates/memory/",
            "hypervisor/src/mm/",
            "hypervisor/src/domain/mod",
            "hypervisor/src/devices/ram",
            "hypervisor/src/devices/vif/reach",
        ],
    ),
    // Whose turn it is, and looking for work.
    ("rounds", &["crates/vif/", "hypervisor/src/devices/vif/"]),
];
/// All else of the hypervisor: exits of the guest, and interrupts.
const REST: &str = "rest";
/// What copies and clears memory is nobody's own.
const COPIES: [&str; 4] = ["memcpy", "memset", "memmove", "memcmp"];

/// Instructions of each place between two marks.
type Places = BTreeMap<u64, u64>;

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    bench.pieces(record, PART, COUNTS, usize::to_string, |record, guests| one(bench, record, *guests));
}

fn one(bench: &Bench, record: &mut Record, guests: usize) -> Result<()> {
    let log = scratch()?.join(format!("vif-stages-{guests}.count"));
    let library = format!("{},places=on", bench.plugin.display());
    let range = ("within".to_owned(), plugin::IMAGE.0, plugin::IMAGE.1);
    let library = plugin::with_functions(Path::new(&library), &[range]);
    let mut watch = Watch { guests, waiting: BTreeSet::new(), is_up: false, started: false };
    let (_, outcome) = run_watched(
        &format!("vif-stages-{guests}"),
        &machine(bench, guests),
        Clock::Mixed,
        plugin::arguments(Path::new(&library), &log),
        &mut watch,
    )?;
    let is_over = outcome.guests.first().is_some_and(|guest| guest.state == DomainState::PoweredOff);
    ensure!(is_over, "the guest with the load did not end well: {}", outcome.problems.join("\n"));
    record.kernels(&outcome.kernels);
    let text =
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    std::fs::remove_file(&log)?;
    let spans = spans(&text);
    // Each part lies between two marks.
    ensure!(spans.len() == 4, "{} marks were set, and not 4", spans.len());
    let stages = stages(&image::hypervisor(&[])?, &spans)?;
    let measured =
        Measured { guests: outcome.guests, split: Split::default(), servers: BTreeSet::new(), report: None };
    for (name, span) in [("rx", &spans[1]), ("tx", &spans[3])] {
        let packets = super::rows::moved(name, &measured)?.operations as f64;
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (address, times) in span {
            *sums.entry(stages.get(address).copied().unwrap_or(REST)).or_default() += times;
        }
        let about =
            format!("{packets} {}; {guests} interfaces, of which one is used", Load::Net.operations());
        for stage in STAGES.iter().map(|stage| stage.0).chain(["copies", REST]) {
            let sum = sums.get(stage).copied().unwrap_or(0);
            let id = format!("vif.stages.{name}.{guests}.{stage}.instructions_per_packet");
            record.row(
                id,
                sum as f64 / packets,
                "instructions/packet",
                format!("{sum} instructions / {about}"),
            );
        }
        let all: u64 = sums.values().sum();
        let id = format!("vif.stages.{name}.{guests}.total.instructions_per_packet");
        record.row(
            id,
            all as f64 / packets,
            "instructions/packet",
            format!("{all} instructions of the hypervisor, engine included / {about}"),
        );
    }
    Ok(())
}

/// Places that were executed up to each mark, from the mark before on.
fn spans(text: &str) -> Vec<Places> {
    let (mut all, mut current) = (Vec::new(), Places::new());
    for line in text.lines() {
        if let Some((address, times)) = line.strip_prefix("count at ").and_then(|rest| rest.split_once(' ')) {
            if let (Ok(address), Ok(times)) = (u64::from_str_radix(address, 16), times.parse()) {
                current.insert(address, times);
            }
        } else if line.starts_with("count mark ") {
            all.push(std::mem::take(&mut current));
        }
    }
    all
}

/// What stage each place is of, by the debug information of an image. Those of none are left out.
fn stages(elf: &Path, spans: &[Places]) -> Result<BTreeMap<u64, &'static str>> {
    let places: BTreeSet<u64> = spans.iter().flat_map(Places::keys).copied().collect();
    let mut child = Command::new("addr2line")
        .args(["-a", "-i", "-f", "-C", "-e"])
        .arg(elf)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("there is no addr2line (Debian's binutils)")?;
    let mut asked = child.stdin.take().context("addr2line is not to be asked")?;
    let lines: String = places.iter().map(|place| format!("{place:x}\n")).collect();
    let asking = std::thread::spawn(move || asked.write_all(lines.as_bytes()));
    let answered = child.wait_with_output().context("addr2line did not answer")?;
    asking.join().ok().context("addr2line was not asked")?.context("addr2line did not listen")?;
    ensure!(answered.status.success(), "addr2line failed");
    let folder = format!("{}/", root().display());
    Ok(attribute(&String::from_utf8_lossy(&answered.stdout), &folder))
}

/// Answers: an address, and pairs of a function and where it is, from the innermost one on.
fn attribute(text: &str, folder: &str) -> BTreeMap<u64, &'static str> {
    let mut stages = BTreeMap::new();
    let (mut address, mut function) = (None, None);
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("0x") {
            (address, function) = (u64::from_str_radix(number, 16).ok(), None);
            continue;
        }
        let Some(place) = address else { continue };
        let Some(name) = function.take() else {
            function = Some(line);
            continue;
        };
        let stage = if name.rsplit("::").next().is_some_and(|last| COPIES.contains(&last)) {
            Some("copies")
        } else {
            stage_of(line, folder)
        };
        if let Some(stage) = stage {
            stages.insert(place, stage);
            address = None;
        }
    }
    stages
}

/// The stage that a file of ours is of.
fn stage_of(file: &str, folder: &str) -> Option<&'static str> {
    let own = file.strip_prefix(folder)?;
    let fits = |stage: &&(&str, &[&str])| stage.1.iter().any(|part| own.starts_with(part));
    Some(STAGES.iter().find(fits).map_or(REST, |stage| stage.0))
}

/// The machine of the load, with guests that wait.
fn machine(bench: &Bench, guests: usize) -> String {
    let memory = 1024 + guests as u64 * (WAITING_MIB + 8);
    let mut text = configuration(bench, Load::Net, &ENGINE, &ONE, memory, true);
    let [kernel, initrd] = [&bench.unpacked, &bench.initrd].map(|path| quoted(path));
    for number in 1..guests {
        let _ = write!(
            text,
            "[domain.guest{number}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{WAITING_MIB}MiB\"\ncpus = [0]\n\
             cmdline = \"console=ttyS0 quiet sluice.job=load:wait,at=10.9.0.{}\"\n\
             devices = [{{ {}, mac = \"52:54:00:00:01:{number:02x}\" }}]\n",
            number + 1,
            ENGINE.device(),
        );
    }
    text
}

/// Starts the first guest when all others wait, and ends these when it has ended.
struct Watch {
    guests: usize,
    waiting: BTreeSet<usize>,
    is_up: bool,
    started: bool,
}

impl Observer for Watch {
    fn hello(&mut self, _: &[String]) {
        self.is_up = true;
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        if finding.iter().any(|(key, _)| key == "waiting") {
            self.waiting.insert(domain);
        }
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.is_up && !self.started && self.waiting.len() + 1 == self.guests {
            self.started = true;
            steer.send(Order::Start(DomainId(0)));
        }
    }

    fn state(
        &mut self,
        domain: usize,
        state: DomainState,
        _: &crate::printable::GuestText,
        steer: &mut Steer,
    ) {
        if domain == 0 && state == DomainState::PoweredOff {
            (1..self.guests as u16).for_each(|guest| steer.send(Order::Destroy(DomainId(guest))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart_by_marks() {
        let text = "count at 10 3\ncount mark 1 2\nnoise\ncount at 10 1\ncount at 1f 2\ncount mark 5 2\ncount at 10 1\n";
        assert_eq!(spans(text), [Places::from([(0x10, 3)]), Places::from([(0x10, 1), (0x1f, 2)])]);
    }

    #[test]
    fn a_place_is_of_the_innermost_file_of_ours() {
        let text = "0x10\ncore::option\n/usr/lib/option.rs:7\nlongest\n/w/crates/vif/src/outgoing.rs:96\nhand_over\n/w/crates/vif/src/egress.rs:240\n\
                    0x20\ncompiler_builtins::mem::memcpy\n/usr/lib/mem.rs:1\n0x30\nrun\n/w/hypervisor/src/svm.rs:3\n0x40\nx\n??:0\n\
                    0x50\nserve\n/w/crates/vif/src/engine.rs:5\n";
        let found = attribute(text, "/w/");
        let expected = [(0x10, "frames"), (0x20, "copies"), (0x30, REST), (0x50, "rounds")];
        assert_eq!(found, BTreeMap::from(expected));
    }
}
