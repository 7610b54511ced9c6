//! What a message there and back costs when all guests of a network exchange some at once, in pairs: each pair as many as any other.
//!
//! What is counted goes from the first one's first message to the last one's last. Instructions are those of the whole machine; rounds of an engine that
//! found nothing are told apart, since how many there are is the emulator's doing.

use super::many::{By, Served, Started, machine, rows};
use super::{Bench, Measured};
use crate::bench::record::{Aim, Record};
use crate::bench::split::{Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, plugin, run_watched, scratch};
use crate::observer::{Observer, Steer};
use crate::outcome::{Finding, Guest, Outcome};
use crate::printable::GuestText;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::BTreeSet;

/// Names of what [`measure`] can do.
pub const PART: &str = "talking";

/// Trips of each pair, and how many the load makes before those (daemons/sluice-load/src/line.rs).
const TRIPS: usize = 500;
const WARM: usize = 50;

/// Guests that all talk, who serves them, and how much they exchange.
pub struct Talk {
    /// An even number.
    pub guests: usize,
    /// An engine or a driver domain.
    pub by: By,
    /// Trips of each pair.
    pub trips: usize,
}

const fn talk(guests: usize, by: By) -> Talk {
    Talk { guests, by, trips: TRIPS }
}

/// A driver domain's bus has slots for 28 devices.
const CASES: [Talk; 9] = [
    talk(2, By::Engine),
    talk(4, By::Engine),
    talk(8, By::Engine),
    talk(16, By::Engine),
    talk(32, By::Engine),
    talk(2, By::Domain),
    talk(4, By::Domain),
    talk(8, By::Domain),
    talk(16, By::Domain),
];

impl Talk {
    fn name(&self) -> String {
        if self.is_by_engine() { self.guests.to_string() } else { format!("domain{}", self.guests) }
    }

    fn is_by_engine(&self) -> bool {
        !self.by.is_domain()
    }

    /// How its rows begin.
    pub fn prefix(&self) -> String {
        let system = if self.is_by_engine() { "vif.virtio" } else { "base.driver_domain" };
        format!("{system}.{}", self.guests)
    }

    /// Domains before the first guest.
    fn first(&self) -> usize {
        usize::from(!self.is_by_engine())
    }

    /// Those who begin a trip are the even ones.
    fn cmdline(&self, nth: usize) -> String {
        let job = if nth.is_multiple_of(2) {
            format!("exchange,at=10.9.0.{},to=10.9.0.{},trips={}", nth + 1, nth + 2, self.trips)
        } else {
            format!("listen,at=10.9.0.{},mib=0", nth + 1)
        };
        format!("console=ttyS0 quiet sluice.job=load:{job}")
    }

    /// Runs it to its end.
    pub fn run(&self, bench: &Bench, what: &str, clock: Clock, qemu_args: Vec<String>) -> Result<Outcome> {
        let guests: Vec<Started> =
            (0..self.guests).map(|nth| Started { cmdline: self.cmdline(nth), is_paused: false }).collect();
        let text = machine(bench, self.by, &guests)?;
        let mut watch = Watch { talk: self, ready: 0, left: self.guests };
        let name = format!("vif-{what}-{}", self.name());
        let (_, outcome) = run_watched(&name, &text, clock, qemu_args, &mut watch)?;
        let ended = outcome.guests.iter().filter(|guest| said(guest, "exchanged").count() > 0).count();
        ensure!(ended == self.guests / 2, "{ended} pairs exchanged all: {}", outcome.problems.join("\n"));
        Ok(outcome)
    }
}

/// What a guest reported under a key.
pub fn said<'a>(guest: &'a Guest, key: &'a str) -> impl Iterator<Item = &'a GuestText> {
    guest.findings.iter().flatten().filter(move |pair| pair.0 == key).map(|pair| &pair.1)
}

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    bench.pieces(record, PART, CASES, Talk::name, |record, talk| one(bench, record, talk));
    figures(record);
}

/// Instructions of an engine's round that finds nothing, at most: it looks at every guest's queue.
fn looks(guests: usize) -> usize {
    600 + 150 * guests
}

fn one(bench: &Bench, record: &mut Record, talk: &Talk) -> Result<()> {
    let (third, apart) = if talk.is_by_engine() {
        (Third::Apart, format!(",apart=2,looks={},told=on", looks(talk.guests)))
    } else {
        (Third::Nothing, String::new())
    };
    let reader = Reader::start(&scratch()?, Split::new(third))?;
    let plugin = format!("{}{apart}", plugin::exits(&bench.plugin, &[]));
    let ran = talk.run(bench, PART, Clock::Mixed, reader.arguments(false, Some(&plugin)));
    let split = reader.finish();
    let (outcome, split) = (ran?, split?);
    record.kernels(&outcome.kernels);
    let servers: BTreeSet<u64> = if talk.is_by_engine() {
        BTreeSet::new()
    } else {
        [super::sluice::server(&outcome, &split, "driver")?].into()
    };
    let measured = Measured { guests: outcome.guests, split, servers, report: outcome.report };
    let part = measured.split.part(1).context("no guest set the marks of its messages")?;
    let pairs = talk.guests / 2;
    let all = part.marking.get(&(pairs as u32)).copied().unwrap_or(0);
    let together = all as f64 / part.marking.values().sum::<u64>().max(1) as f64;
    let about = format!(
        "{} guests, all of which talk, in pairs; {:.0} % of it while all were at it",
        talk.guests,
        together * 100.0
    );
    let prefix = format!("{}.talking", talk.prefix());
    let server = if talk.is_by_engine() { "engine" } else { "driver" };
    let trips = (pairs * talk.trips) as f64;
    let served = Served { prefix: prefix.clone(), server, beside: None, about };
    rows(record, &served, "rtt", ["instructions/trip", "exits/trip"], trips, (part, &measured));
    doorbells(record, talk, &measured);
    if let [working, vain] = *part.apart {
        let note = format!(
            "{vain} instructions of the engine's rounds that found nothing, beside {working} of others; {}",
            served.about
        );
        record.row(format!("{prefix}.rtt.vain.instructions"), vain as f64 / trips, "instructions/trip", note);
        let note = format!("without the engine's rounds that found nothing; {}", served.about);
        let rest = (part.total() - vain) as f64 / trips;
        record.row(format!("{prefix}.rtt.working.instructions"), rest, "instructions/trip", note);
    }
    Ok(())
}

/// How often drivers had to tell of frames, which is an exit each time.
fn doorbells(record: &mut Record, talk: &Talk, measured: &Measured) {
    let Some(report) = &measured.report else { return };
    let told: u64 = report.links.iter().map(|link| link.kicks).sum();
    // What is reported begins with the boot, and trips before it is measured are among it.
    let trips = talk.guests / 2 * (talk.trips + WARM);
    let note = format!(
        "{told} doorbells / {trips} trips, those before the measured ones included; from the boot of the guests on"
    );
    let id = format!("{}.talking.rtt.doorbells", talk.prefix());
    record.row(id, told as f64 / trips as f64, "doorbells/trip", note);
}

/// How much dearer it is with more pairs, and beside the driver domain.
fn figures(record: &mut Record) {
    let of = |record: &Record, guests: usize, by: By, what: &str| {
        record.value(&format!("{}.talking.rtt.{what}", talk(guests, by).prefix()))
    };
    for (what, infix, about) in [
        ("instructions", "", ""),
        ("working.instructions", "working.", ", without the engine's rounds that found nothing"),
    ] {
        if let [Some(few), Some(many)] = [2, 32].map(|guests| of(record, guests, By::Engine, what)) {
            let note = format!(
                "instructions of the whole machine{about}, with 16 pairs that talk at once to those with one"
            );
            let id = format!("vif.talking.rtt.{infix}ratio_of_32_to_2");
            record.aimed(id, many / few, "ratio", Some(Aim::AtMost(1.2)), note);
        }
        for guests in [2, 4, 8, 16] {
            let (ours, theirs) =
                (of(record, guests, By::Engine, what), of(record, guests, By::Domain, "instructions"));
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                let note = format!(
                    "instructions of the whole machine, the engine's{about} to the driver domain's; all guests talk, in pairs"
                );
                let id = format!("vif.{guests}.talking.rtt.{infix}ratio_to_driver_domain");
                record.aimed(id, ours / theirs, "ratio", Some(Aim::AtMost(0.4)), note);
            }
        }
    }
}

/// Tells all to begin when all are ready, and ends the driver domain when they have ended.
struct Watch<'a> {
    talk: &'a Talk,
    ready: usize,
    left: usize,
}

impl Watch<'_> {
    fn domain(&self, nth: usize) -> DomainId {
        DomainId((self.talk.first() + nth) as u16)
    }
}

impl Observer for Watch<'_> {
    fn finding(&mut self, _: usize, finding: &Finding) {
        self.ready += usize::from(finding.iter().any(|(key, _)| key == "ready"));
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.ready == self.talk.guests / 2 {
            self.ready = 0;
            for nth in (0..self.talk.guests).step_by(2) {
                steer.send(Command::ConsoleInput(self.domain(nth), b"\n".to_vec()));
            }
        }
    }

    fn state(&mut self, domain: usize, state: DomainState, _: &GuestText, steer: &mut Steer) {
        let ended = matches!(state, DomainState::PoweredOff | DomainState::Destroyed | DomainState::Crashed);
        if domain < self.talk.first() || !ended {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.talk.is_by_engine() {
            steer.send(Command::Stop(DomainId(0)));
        }
    }
}
