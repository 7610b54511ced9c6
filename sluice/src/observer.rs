//! Who watches a run, and may steer it: progress for people, steps of a scenario, measurements.

use crate::control::Instance;
use crate::info::Info;
use crate::name::Name;
use crate::outcome::Finding;
use crate::printable::GuestText;
use crate::qmp::Act;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;

/// Sends commands from within an [`Observer`].
#[derive(Default)]
pub struct Steer {
    commands: Vec<Command>,
    acts: Vec<Act>,
}

impl Steer {
    /// Sends a command; its answer is not waited for.
    pub fn send(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// Does something at the machine, if it has a screen.
    pub fn act(&mut self, act: Act) {
        self.acts.push(act);
    }

    /// What is to be sent, and done.
    pub fn take(self) -> (Vec<Command>, Vec<Act>) {
        (self.commands, self.acts)
    }
}

/// Watches a run.
pub trait Observer {
    /// The run has this name.
    fn named(&mut self, _instance: &Name) {}
    /// All is built; the machine starts.
    fn starting(&mut self) {}
    /// The hypervisor is up and has these domains.
    fn hello(&mut self, _domains: &[String]) {}
    /// A domain changed its state.
    fn state(&mut self, _domain: usize, _state: DomainState, _reason: &GuestText, _steer: &mut Steer) {}
    /// A domain's console has another line.
    fn line(&mut self, _domain: usize, _line: &GuestText, _steer: &mut Steer) {}
    /// A domain reported something.
    fn finding(&mut self, _domain: usize, _finding: &Finding) {}
    /// Something around the run is not as it should be; it goes on.
    fn warning(&mut self, _text: &str) {}
    /// Some time has passed.
    fn tick(&mut self, _steer: &mut Steer) {}
}

/// Passes everything on, and notes what guests say of their addresses.
pub struct Watch<'a> {
    observer: &'a mut dyn Observer,
    instance: &'a Instance,
    info: Info,
}

impl<'a> Watch<'a> {
    /// Around an observer, for an instance of which so much is known.
    pub fn new(observer: &'a mut dyn Observer, instance: &'a Instance, info: Info) -> Self {
        Self { observer, instance, info }
    }
}

impl Observer for Watch<'_> {
    fn hello(&mut self, domains: &[String]) {
        self.observer.hello(domains);
    }

    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.observer.state(domain, state, reason, steer);
    }

    fn line(&mut self, domain: usize, line: &GuestText, steer: &mut Steer) {
        self.observer.line(domain, line, steer);
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        self.observer.finding(domain, finding);
        let address = finding.iter().find(|(key, _)| *key == "address").map(|(_, value)| value);
        if let (Some(address), Some(known)) = (address, self.info.domains.get_mut(domain)) {
            known.address = Some(address.raw().to_owned());
            self.instance.publish(&self.info);
        }
    }

    fn warning(&mut self, text: &str) {
        self.observer.warning(text);
    }

    fn tick(&mut self, steer: &mut Steer) {
        self.observer.tick(steer);
    }
}
