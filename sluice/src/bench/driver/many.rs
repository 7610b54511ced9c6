//! What it costs two guests that others are on their network, too; and that all share identifiers by which they are signalled.
//!
//! Two exchange messages, the others have their interfaces up and wait. Instructions are those of the whole machine, one after the other in any order: what a
//! trip costs, not how long it takes.

use super::rows::{moved, parts, sums};
use super::{Bench, Load, Measured};
use crate::bench::record::{Aim, Record};
use crate::bench::split::{Part, Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, note, plugin, quoted, run_watched, scratch};

use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Names of what [`measure`] can do.
pub const PART: &str = "many";

/// Bytes of a guest's memory.
const MEMORY: usize = 96 << 20;

/// Guests, and bits of the identifiers by which they are signalled, if they share them.
struct Case {
    guests: usize,
    bits: Option<u8>,
}

impl Case {
    fn name(&self) -> String {
        self.bits.map_or_else(|| self.guests.to_string(), |bits| format!("bits{bits}"))
    }

    /// How its rows begin.
    fn prefix(&self) -> String {
        self.bits
            .map_or_else(|| format!("vif.virtio.{}", self.guests), |bits| format!("vif.signal_bits.{bits}"))
    }
}

/// Those that share are as many as the source's register has bits.
const CASES: [Case; 7] = [
    Case { guests: 2, bits: None },
    Case { guests: 8, bits: None },
    Case { guests: 32, bits: None },
    Case { guests: 8, bits: Some(1) },
    Case { guests: 8, bits: Some(2) },
    Case { guests: 8, bits: Some(4) },
    Case { guests: 8, bits: Some(8) },
];

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    for case in CASES.iter().filter(|case| bench.parts.wants(PART, Some(&case.name()))) {
        let what = format!("{PART}, {}", case.name());
        bench.parts.say(&what);
        let result = one(bench, record, case);
        note(record, &what, result);
    }
    figures(record);
}

fn one(bench: &Bench, record: &mut Record, case: &Case) -> Result<()> {
    let reader = Reader::start(&scratch()?, Split::new(Third::Apart))?;
    let plugin = format!("{},apart=2", plugin::exits(&bench.plugin, &[]));
    let mut watch = Watch { waiting: 0, wanted: case.guests - 2, is_up: false, started: false };
    let ran = run_watched(
        &format!("vif-many-{}", case.name()),
        &configuration(bench, case),
        Clock::Mixed,
        reader.arguments(false, Some(&plugin)),
        &mut watch,
    );
    let split = reader.finish();
    let ((_, outcome), split) = (ran?, split?);
    record.kernels(&outcome.kernels);
    let ended = |guest: usize| outcome.guests.get(guest).map(|guest| guest.state);
    let both = [0, 1].map(ended) == [Some(DomainState::PoweredOff); 2];
    ensure!(both, "the two that talk did not end well: {}", outcome.problems.join("\n"));
    let report = outcome.report.as_ref().context("the hypervisor made no report")?;
    let network = report.networks.first().context("there is no network")?;
    let count =
        |name: &str| network.counts.iter().find(|count| count.name == name).map_or(0, |count| count.value);
    let (signals, redundant) = (count("signals"), count("redundant_signals"));
    let measured = Measured { guests: outcome.guests, split, servers: BTreeSet::new() };
    if case.bits.is_some() {
        let note = format!(
            "{redundant} signals for another / {signals} that were meant, {} guests, from their boot on",
            case.guests
        );
        let id = format!("{}.redundant_signals", case.prefix());
        record.row(id, redundant as f64 / signals.max(1) as f64, "signals/signal", note);
    }
    let trips = moved("trips", &measured)?.operations as f64;
    let part = measured.split.part(1).context("no guest set the marks of its messages")?;
    rows(record, case, "rtt", ["instructions/trip", "exits/trip"], trips, (part, &measured));
    let (name, mark, reported) = parts(Load::Inter)[0];
    let bytes = moved(reported, &measured)?.bytes as f64;
    let part = measured.split.part(mark).with_context(|| format!("no guest set the marks of {name}"))?;
    rows(record, case, "tcp", ["instructions/KB", "exits/KB"], bytes / 1024.0, (part, &measured));
    Ok(())
}

fn rows(
    record: &mut Record,
    case: &Case,
    what: &str,
    units: [&'static str; 2],
    count: f64,
    (part, measured): (&Part, &Measured),
) {
    let (guests, exits, _) = sums(part, measured);
    let engine = part.beside + part.apart.iter().sum::<u64>();
    let prefix = format!("{}.{what}", case.prefix());
    let about = format!("of {} guests two talk to each other", case.guests);
    for (whose, instructions) in
        [("guests", guests), ("engine", engine), ("hypervisor", part.hypervisor), ("total", part.total())]
    {
        let id = if whose == "total" {
            format!("{prefix}.instructions")
        } else {
            format!("{prefix}.{whose}.instructions")
        };
        let note = format!("{instructions} instructions / {count:.0}; {about}");
        record.row(id, instructions as f64 / count, units[0], note);
    }
    record.row(format!("{prefix}.exits"), exits as f64 / count, units[1], format!("of all guests; {about}"));
}

/// How much dearer it is with others.
fn figures(record: &mut Record) {
    for what in ["rtt", "tcp"] {
        let of = |guests: usize| record.value(&format!("vif.virtio.{guests}.{what}.instructions"));
        if let [Some(few), Some(many)] = [of(2), of(32)] {
            let note = "instructions of the whole machine with 32 guests, of which 30 are idle, to those with two alone";
            record.aimed(
                format!("vif.{what}.ratio_of_32_to_2"),
                many / few,
                "ratio",
                Some(Aim::AtMost(1.2)),
                note,
            );
        }
    }
}

fn configuration(bench: &Bench, case: &Case) -> String {
    let [kernel, initrd] = [&bench.unpacked, &bench.initrd].map(|path| quoted(path));
    let memory = 512 + case.guests * ((MEMORY >> 20) + 8);
    let bits = case.bits.map_or(String::new(), |bits| format!("signal_bits = {bits}\n"));
    let mut text =
        format!("[machine]\nmemory = \"{memory}MiB\"\ncpus = 2\n[network.lan]\ncores = [1]\n{bits}");
    for nth in 0..case.guests {
        let job = match nth {
            0 => "load:talk,at=10.9.0.2,to=10.9.0.1,mib=4".to_owned(),
            1 => "load:listen,at=10.9.0.1,mib=4".to_owned(),
            _ => format!("load:wait,at=10.9.0.{}", nth + 1),
        };
        let (marks, paused) = (["", "sluice.marks=1 "][usize::from(nth == 0)], nth < 2);
        let _ = write!(
            text,
            "[domain.guest{nth}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncpus = [0]\n\
             paused = {paused}\ncmdline = \"console=ttyS0 quiet {marks}sluice.job={job}\"\n\
             devices = [{{ mode = \"vif\", network = \"lan\", mac = \"52:54:00:00:0a:{nth:02x}\" }}]\n",
            MEMORY >> 20,
        );
    }
    text
}

/// Starts the two when all others wait, and ends these when the two have ended.
struct Watch {
    waiting: usize,
    wanted: usize,
    /// The hypervisor takes commands.
    is_up: bool,
    started: bool,
}

impl Observer for Watch {
    fn hello(&mut self, _: &[String]) {
        self.is_up = true;
    }

    fn finding(&mut self, _: usize, finding: &Finding) {
        self.waiting += usize::from(finding.iter().any(|(key, _)| key == "waiting"));
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.is_up && !self.started && self.waiting == self.wanted {
            self.started = true;
            // Who listens is there first.
            [1, 0].into_iter().for_each(|nth| steer.send(Command::Start(DomainId(nth))));
        }
    }

    fn state(&mut self, domain: usize, state: DomainState, _: &GuestText, steer: &mut Steer) {
        if domain == 0 && state == DomainState::PoweredOff {
            (0..self.wanted).for_each(|nth| steer.send(Command::Destroy(DomainId(nth as u16 + 2))));
        }
    }
}
