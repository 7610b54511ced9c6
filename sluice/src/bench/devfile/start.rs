//! A guest that starts when the domain before it serves its files.

use crate::bench::driver::StopDriver;
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;

/// Starts domain 1 when domain 0 serves its files, and stops that when the guest has ended.
pub struct StartGuest {
    stop: StopDriver,
    serves: bool,
}

impl StartGuest {
    /// Nothing is served yet.
    pub fn new() -> Self {
        Self { stop: StopDriver::new(1), serves: false }
    }
}

impl Observer for StartGuest {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
        // It ended before it served anything.
        if domain == 0 && state.is_ended() {
            steer.send(Command::Shutdown);
        }
    }

    fn finding(&mut self, _domain: usize, finding: &Finding) {
        self.serves |= finding.iter().any(|(key, _)| key == "serving");
    }

    fn tick(&mut self, steer: &mut Steer) {
        if std::mem::take(&mut self.serves) {
            steer.send(Command::Start(DomainId(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_starts_once_when_it_is_served() {
        let mut starts = StartGuest::new();
        let sent = |starts: &mut StartGuest| {
            let mut steer = Steer::default();
            starts.tick(&mut steer);
            steer.take().0
        };
        assert!(sent(&mut starts).is_empty());
        starts.finding(0, &crate::outcome::parse_finding("SLUICE-RESULT serving=ok").unwrap());
        assert_eq!(sent(&mut starts), [Command::Start(DomainId(1))]);
        assert!(sent(&mut starts).is_empty());
    }
}
