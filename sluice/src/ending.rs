//! Domains are asked to power off by themselves, as by their power button, until they have. One that serves others is asked when those
//! are off: they write to their disks to the end.

use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::{DomainState, Report};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A guest that has not ended is asked again: while it boots it does not listen yet.
const AGAIN: Duration = Duration::from_secs(5);

/// Who takes longer may not listen at all.
const LONG: Duration = Duration::from_secs(10);

/// Asks domains to power off.
pub struct Ending {
    began: Instant,
    /// When each was asked first, and last.
    asked: BTreeMap<DomainId, [Instant; 2]>,
    serves: Vec<Serves>,
    said: bool,
}

/// A domain, and one that it serves.
pub type Serves = (DomainId, DomainId);

/// Who serves whom now: devices come and go while the machine runs.
pub fn serves(report: &Report) -> Vec<Serves> {
    let id = |name: &str| report.domains.iter().position(|domain| domain.name == name).and_then(DomainId::at);
    report.links.iter().filter_map(|link| Some((id(&link.server)?, id(&link.guest)?))).collect()
}

/// Something of it may still run, or will.
const fn is_awake(state: DomainState) -> bool {
    matches!(state, DomainState::Running | DomainState::Paused | DomainState::Restarting)
}

impl Ending {
    /// Begins; nobody has been asked yet.
    pub fn begin(serves: Vec<Serves>) -> Self {
        Self { began: Instant::now(), asked: BTreeMap::new(), serves, said: false }
    }

    /// How long it has taken so far.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// What must be sent now, for domains by index and state; nothing more when none of them runs. One that is paused could not
    /// listen, and goes on first.
    pub fn commands(&mut self, domains: &[(DomainId, DomainState)]) -> Vec<Command> {
        let mut commands = Vec::new();
        for (index, state) in domains.iter().filter(|(_, state)| is_awake(*state)) {
            let is_recent = self.asked.get(index).is_some_and(|[_, last]| last.elapsed() < AGAIN);
            if is_recent || self.is_needed(*index, domains) {
                continue;
            }
            let now = Instant::now();
            self.asked.entry(*index).or_insert([now; 2])[1] = now;
            if *state == DomainState::Paused {
                commands.push(Command::Resume(*index));
            }
            commands.push(Command::Stop(*index));
        }
        commands
    }

    /// It serves one of these that still runs.
    fn is_needed(&self, server: DomainId, domains: &[(DomainId, DomainState)]) -> bool {
        let clients = self.serves.iter().filter(|(by, _)| *by == server).map(|(_, client)| client);
        let mut states = clients.filter_map(|client| domains.iter().find(|(id, _)| id == client));
        states.any(|(id, state)| *id != server && is_awake(*state))
    }

    /// It has been asked.
    pub fn has_asked(&self, domain: DomainId) -> bool {
        self.asked.contains_key(&domain)
    }

    /// It was asked long ago. One that serves others is asked later than they are.
    pub fn is_late(&self, domain: DomainId) -> bool {
        self.asked.get(&domain).is_some_and(|[first, _]| first.elapsed() >= LONG)
    }

    /// None of these runs.
    pub fn is_over(domains: &[(DomainId, DomainState)]) -> bool {
        !domains.iter().any(|(_, state)| is_awake(*state))
    }

    /// Once: what to say of those that still run and are [late](Self::is_late).
    pub fn complaint(&mut self, late: &[&str]) -> Option<String> {
        if self.said || late.is_empty() {
            return None;
        }
        self.said = true;
        let (names, verb) = (late.join(", "), if late.len() == 1 { "does" } else { "do" });
        Some(format!(
            "{names} {verb} not react to the power button after {} s; a guest needs a driver for it (Linux: the module button)",
            LONG.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DomainState::{Created, Paused, PoweredOff, Restarting, Running};

    #[test]
    fn those_that_run_are_asked_and_asked_again() {
        let mut ending = Ending::begin(Vec::new());
        let domains = [
            (DomainId(0), Running),
            (DomainId(1), PoweredOff),
            (DomainId(2), Paused),
            (DomainId(3), Created),
            (DomainId(4), Restarting),
        ];
        assert!(!Ending::is_over(&domains));
        let asked = [
            Command::Stop(DomainId(0)),
            Command::Resume(DomainId(2)),
            Command::Stop(DomainId(2)),
            Command::Stop(DomainId(4)),
        ];
        assert_eq!(ending.commands(&domains), asked);
        assert_eq!(ending.commands(&domains), []);
        ending.asked.values_mut().for_each(|[_, last]| *last = last.checked_sub(AGAIN).unwrap());
        assert_eq!(ending.commands(&domains), asked);
        assert!(Ending::is_over(&domains[1..2]) && Ending::is_over(&domains[3..4]));
        assert!(!Ending::is_over(&domains[4..]), "it would be started again");
    }

    #[test]
    fn one_that_serves_others_is_asked_when_they_are_off() {
        let (driver, web, files) = (DomainId(0), DomainId(1), DomainId(2));
        let mut ending = Ending::begin(vec![(driver, web), (driver, files)]);
        let mut domains = [(driver, Running), (web, Running), (files, Paused)];
        let asked = [Command::Stop(web), Command::Resume(files), Command::Stop(files)];
        assert_eq!(ending.commands(&domains), asked);
        assert!(ending.has_asked(web) && !ending.has_asked(driver));
        domains[1].1 = PoweredOff;
        assert_eq!(ending.commands(&domains), []);
        domains[2].1 = PoweredOff;
        assert_eq!(ending.commands(&domains), [Command::Stop(driver)], "at once");
        // Who is meant alone is asked, whoever it serves.
        let mut ending = Ending::begin(vec![(driver, web)]);
        assert_eq!(ending.commands(&domains[..1]), [Command::Stop(driver)]);
    }

    #[test]
    fn one_that_does_not_react_is_named_once() {
        let (driver, web) = (DomainId(0), DomainId(1));
        let mut ending = Ending::begin(vec![(driver, web)]);
        let mut domains = [(driver, Running), (web, Running)];
        ending.commands(&domains);
        assert!(!ending.is_late(web) && !ending.is_late(driver));
        ending.asked.values_mut().for_each(|[first, _]| *first = first.checked_sub(LONG).unwrap());
        assert!(ending.is_late(web) && !ending.is_late(driver), "it was not asked");
        domains[1].1 = PoweredOff;
        ending.commands(&domains);
        assert!(!ending.is_late(driver), "it was asked just now");
        assert_eq!(ending.complaint(&[]), None);
        assert!(ending.complaint(&["alice"]).unwrap().starts_with("alice does not react"));
        assert_eq!(ending.complaint(&["alice"]), None);
    }
}
