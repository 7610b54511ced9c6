//! Ends of the daemon and of the driver domain, again and again, while guests write and read a disk and send to each other. Every block is
//! checked: one that was acknowledged and is lost or altered counts, and so does a guest that does not go on.
//!
//! Time is the host's here, in an emulator on a busy machine: how long guests waited says what a stall consists of, not how long it is on
//! a processor.

use super::sluice::{StopDriver, configuration};
use super::{ALL, Bench, note};
use crate::bench::record::{Aim, Record};
use crate::bench::{Clock, run_watched};
use crate::observer::{Observer, Steer};
use crate::outcome::{Finding, Outcome};
use crate::printable::GuestText;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::time::{Duration, Instant};

/// What is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The daemon, by a line on its domain's console (its job has `kill=typed`).
    Daemon,
    /// The driver domain.
    Domain,
}

/// How often.
pub const TIMES: u32 = 20;
/// How long guests work between.
const PAUSE: Duration = Duration::from_secs(3);
/// The domains: who is ended, who writes and reads, who takes, who sends.
const DRIVER: DomainId = DomainId(0);
const DISK: DomainId = DomainId(1);
const TALKER: DomainId = DomainId(3);
/// Guests that report that they are under way: the disk and both ends of the line.
const WORKERS: usize = 3;

impl Victim {
    /// As rows have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Domain => "domain",
        }
    }

    /// What is done to it.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Daemon => "kill -9 of the daemon, which init starts again",
            Self::Domain => "the driver domain destroyed and started again",
        }
    }

    /// Ends it. The driver domain is the first of the machine.
    pub fn end(self) -> Command {
        match self {
            Self::Daemon => Command::ConsoleInput(DRIVER, b"\n".to_vec()),
            Self::Domain => Command::Restart(DRIVER),
        }
    }
}

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    let wanted = |victim: &Victim| bench.parts.wants("restarts", Some(victim.name()));
    for victim in [Victim::Daemon, Victim::Domain].into_iter().filter(wanted) {
        let what = format!("restarts of the {}", victim.name());
        bench.parts.say(&what);
        let result = one(bench, record, victim);
        note(record, &what, result);
    }
}

fn one(bench: &Bench, record: &mut Record, victim: Victim) -> Result<()> {
    let job = |job: &str| format!("console=ttyS0 quiet sluice.job=load:{job}");
    let guests = [
        ("blk", job("soak-disk")),
        ("net", job("soak-listen,at=10.9.0.1")),
        ("net", job("soak-talk,at=10.9.0.2,to=10.9.0.1")),
    ];
    let text = configuration(bench, &bench.image(ALL.kernel)?, &guests, ALL, 1, ",kill=typed");
    let text = text.replacen("memory = \"1GiB\"", "memory = \"1280MiB\"\ncpus = 2", 1);
    // QEMU's network answers for everybody: while the bridge has forgotten who is where, it would end the guests' connection.
    let text = text.replacen("net = \"user\"", "net = \"none\"", 1);
    let mut ends = Ends::new(victim, guests.len());
    let (_, outcome) = run_watched(
        &format!("driver-restarts-{}", victim.name()),
        &text,
        Clock::Host,
        Vec::new(),
        &mut ends,
    )?;
    rows(record, victim, ends.done, &outcome)
}

fn rows(record: &mut Record, victim: Victim, tried: u32, outcome: &Outcome) -> Result<()> {
    ensure!(tried > 0, "the guests never worked: {}", outcome.problems.join("\n"));
    let id = |what: &str| format!("restart.{}.{what}", victim.name());
    let guests = &outcome.guests[1..];
    let sum = |key: &str| guests.iter().filter_map(|guest| guest.sum(key)).sum::<u64>();
    let failed = guests.iter().filter(|guest| guest.verdict("done") != Some("ok")).count() as u64;
    record.row(id("tried"), f64::from(tried), "times", victim.about());
    let note = format!(
        "blocks of 4 KiB that were not as they must be, of {} on the disk and {} on the line, and guests that did not go on",
        guests[0].sum("steps").unwrap_or(0) * 128,
        guests[1].sum("steps").unwrap_or(0)
    );
    record.aimed(id("lost"), (sum("wrong") + failed) as f64, "blocks", Some(Aim::AtMost(0.0)), note);
    for (guest, what) in [(&guests[0], "disk"), (&guests[1], "line")] {
        let number = |key: &str| {
            guest.sum(key).with_context(|| format!("the guest with the {what} did not report {key}"))
        };
        let about = "host's time in the emulator; steps over 250 ms";
        let count = number("stalls")?;
        let mean = number("stalled_ms")? as f64 / count.max(1) as f64;
        record.row(id(&format!("{what}.stall")), mean, "ms", format!("mean of {count} stalls; {about}"));
        record.row(id(&format!("{what}.longest_stall")), number("longest_ms")? as f64, "ms", about);
    }
    Ok(())
}

/// Ends the victim when guests work and who serves them does.
struct Ends {
    victim: Victim,
    stop: StopDriver,
    /// Guests that work.
    working: usize,
    /// Since when all is as it should be.
    since: Option<Instant>,
    done: u32,
    told: bool,
}

impl Ends {
    fn new(victim: Victim, guests: usize) -> Self {
        Self { victim, stop: StopDriver::new(guests), working: 0, since: None, done: 0, told: false }
    }
}

impl Observer for Ends {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        let says = |key: &str| finding.iter().any(|pair| pair.0 == key);
        self.working += usize::from(says("soaking"));
        let serves = domain == 0 && (says("serving") || says("kill"));
        if serves || says("soaking") {
            self.since = (self.working >= WORKERS).then(Instant::now);
        }
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.told || self.since.is_none_or(|since| since.elapsed() < PAUSE) {
            return;
        }
        self.since = None;
        if self.done == TIMES {
            self.told = true;
            for guest in [DISK, TALKER] {
                steer.send(Command::ConsoleInput(guest, b"\n".to_vec()));
            }
            return;
        }
        self.done += 1;
        steer.send(self.victim.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    fn tick(ends: &mut Ends) -> Vec<Command> {
        let mut steer = Steer::default();
        ends.tick(&mut steer);
        steer.take().0
    }

    #[test]
    fn the_driver_domain_is_ended_when_it_serves_guests_that_work_and_the_guests_are_told_at_last() {
        let mut ends = Ends::new(Victim::Domain, 3);
        let say = |ends: &mut Ends, domain, text: &str| {
            ends.finding(domain, &parse_finding(&format!("SLUICE-RESULT {text}")).unwrap())
        };
        say(&mut ends, 0, "serving=ok");
        (1..=3).for_each(|guest| say(&mut ends, guest, "soaking=disk"));
        for _ in 0..TIMES {
            assert!(tick(&mut ends).is_empty(), "too early");
            ends.since = ends.since.map(|since| since.checked_sub(PAUSE).unwrap());
            assert_eq!(tick(&mut ends), [Command::Restart(DRIVER)]);
            assert!(tick(&mut ends).is_empty(), "it does not serve yet");
            say(&mut ends, 0, "serving=ok");
        }
        ends.since = ends.since.map(|since| since.checked_sub(PAUSE).unwrap());
        let told = [DISK, TALKER].map(|guest| Command::ConsoleInput(guest, b"\n".to_vec()));
        assert_eq!(tick(&mut ends), told);
    }
}
