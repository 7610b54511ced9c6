//! Ends of the daemon and of the driver domain, again and again, while guests use its device files: a camera and random numbers that they read, an input
//! device that they wait for, and a sound card that they play to. A guest opens its file anew each time; one that is told of an end by another error than it may be, or misses
//! one, or finds no node again, is lost.

use super::configuration;
use crate::bench::driver::{StopDriver, TIMES, Victim};
use crate::bench::record::{Aim, Record};
use crate::bench::{Clock, run_watched};
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use anyhow::{Result, ensure};
use sluice_abi::report::DomainState;
use std::time::{Duration, Instant};

/// How long guests work between.
const PAUSE: Duration = Duration::from_secs(2);

/// What each guest uses: its device file, and the rest of its job.
const USES: [(&str, &str); 4] = [
    ("/dev/video0", "on=video0"),
    ("/dev/entropy", "on=entropy"),
    ("/dev/input/event1", "on=input:event1,how=waits"),
    ("/dev/snd/pcmC0D0p", "on=snd:pcmC0D0p,how=plays"),
];

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    for victim in [Victim::Daemon, Victim::Domain] {
        let guests = USES.map(|(file, uses)| {
            (vec![file], format!("console=ttyS0 quiet sluice.job=files:random=0,endure={TIMES},{uses}"))
        });
        let text = configuration("files=entropy+vivid+snd-aloop,keys=1,quiet_keys=yes,kill=typed", &guests)?;
        let mut ends = Ends::new(victim);
        let name = format!("devfile-restarts-{}", victim.name());
        let (_, outcome) = run_watched(&name, &text, Clock::Host, Vec::new(), &mut ends)?;
        ensure!(ends.done > 0, "the guests never used their files: {}", outcome.problems.join("\n"));
        let lost = |guest: &crate::outcome::Guest| {
            let endured = guest.sum("endured").unwrap_or(0);
            u64::from(TIMES).saturating_sub(endured) + u64::from(guest.verdict("done") != Some("ok"))
        };
        let lost: u64 = outcome.guests[1..].iter().map(lost).sum();
        let id = |what: &str| format!("devfile.restart.{}.{what}", victim.name());
        record.row(id("tried"), f64::from(ends.done), "times", victim.about());
        let note = "ends that a guest was not told of, or after which its node did not come back: a camera, random numbers, an input device, a sound card";
        record.aimed(id("lost"), lost as f64, "times", Some(Aim::AtMost(0.0)), note);
    }
    Ok(())
}

/// Ends the victim when each guest uses its file again.
struct Ends {
    victim: Victim,
    stop: StopDriver,
    /// After how many ends each guest has its file open.
    using: [Option<u32>; USES.len()],
    /// Guests that have ended, of which nothing is waited for.
    ended: [bool; USES.len()],
    /// Since when all have.
    since: Option<Instant>,
    done: u32,
}

impl Ends {
    fn new(victim: Victim) -> Self {
        let stop = StopDriver::new(USES.len());
        Self { victim, stop, using: [None; _], ended: [false; _], since: None, done: 0 }
    }
}

impl Ends {
    /// Whether all guests that are left use their files.
    fn look(&mut self) {
        let ready = |(using, ended): (&Option<u32>, &bool)| *ended || *using == Some(self.done);
        let all = self.using.iter().zip(&self.ended).all(ready) && self.ended.contains(&false);
        self.since = all.then(|| self.since.unwrap_or_else(Instant::now));
    }
}

impl Observer for Ends {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
        if let Some(ended) = domain.checked_sub(1).and_then(|guest| self.ended.get_mut(guest)) {
            *ended = state.is_ended();
        }
        self.look();
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        let Some(pair) = finding.iter().find(|pair| pair.0 == "using") else { return };
        if let Some(using) = domain.checked_sub(1).and_then(|guest| self.using.get_mut(guest)) {
            *using = pair.1.raw().parse().ok();
        }
        self.look();
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.done < TIMES && self.since.is_some_and(|since| since.elapsed() >= PAUSE) {
            self.since = None;
            self.done += 1;
            steer.send(self.victim.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn the_victim_is_ended_when_all_guests_use_their_files_again() {
        let mut ends = Ends::new(Victim::Domain);
        for time in 0..TIMES {
            for guest in 1..=USES.len() {
                assert_eq!(ends.since, None, "not all do");
                ends.finding(guest, &parse_finding(&format!("SLUICE-RESULT using={time}")).unwrap());
            }
            ends.since = ends.since.map(|since| since.checked_sub(PAUSE).unwrap());
            let mut steer = Steer::default();
            ends.tick(&mut steer);
            ends.tick(&mut steer);
            assert_eq!(steer.take().0, [Victim::Domain.end()]);
        }
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let mut ends = Ends::new(Victim::Daemon);
        let using = parse_finding("SLUICE-RESULT using=0").unwrap();
        ends.finding(1, &using);
        ends.finding(2, &using);
        assert_eq!(ends.since, None);
        ends.finding(4, &using);
        assert_eq!(ends.since, None);
        ends.state(3, DomainState::Crashed, &GuestText::default(), &mut Steer::default());
        assert!(ends.since.is_some());
    }
}
