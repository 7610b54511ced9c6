//! The steps of a scenario, taken while its run goes on.

use super::format::{Scenario, Step};
use crate::config::vif::{parse_address, parse_rate};
use crate::config::{Setup, parse_mac};
use crate::name::Name;
use crate::observer::{Observer, Steer};
use crate::outcome::has_stopped;
use crate::printable::GuestText;
use crate::qemu;
use crate::qmp::Act;
use anyhow::{Context, Result, bail};
use regex_lite::Regex;
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::config::{Face, MODERATION, Vif, Virtio, VirtioKind};
use sluice_abi::report::DomainState;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a step does.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Asks the hypervisor.
    Order(Command),
    /// Acts at the machine.
    Act(Act),
}

/// The file of a picture that a step takes.
pub fn picture(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("screen-{name}.ppm"))
}

/// Takes the steps of a scenario.
pub struct Script<'s> {
    steps: &'s [Step],
    patterns: Vec<Option<Regex>>,
    /// By step: the line has come that it waits for.
    seen: Vec<bool>,
    actions: Vec<Vec<Action>>,
    names: Vec<String>,
    /// By domain: its kernel is expected to go wrong.
    may_stop: Vec<bool>,
    states: Vec<DomainState>,
    next: usize,
    /// When the condition of the next step was met.
    due: Option<Instant>,
    up: bool,
}

impl<'s> Script<'s> {
    /// The steps of a scenario on the domains of a setup.
    pub fn new(setup: &Setup, scenario: &'s Scenario, directory: &Path) -> Result<Self> {
        let names: Vec<String> =
            setup.domains.iter().map(|domain| domain.name.get_ref().to_string()).collect();
        let devices: Vec<String> =
            setup.devices.iter().map(|device| device.name.get_ref().to_string()).collect();
        let mut actions = Vec::new();
        let mut patterns = Vec::new();
        for step in &scenario.step {
            let orders = step.actions.iter().map(|action| order(action, &names, &devices, directory));
            actions.push(orders.collect::<Result<_>>()?);
            patterns.push(step.console.as_deref().map(Regex::new).transpose()?);
        }
        let states = vec![DomainState::Created; names.len()];
        let may_stop = names.iter().map(|name| {
            let wanted = scenario.expect.these.domain.get(name);
            wanted.is_some_and(|wanted| !wanted.kernel_faults.is_empty())
        });
        let may_stop = may_stop.collect();
        Ok(Self {
            steps: &scenario.step,
            seen: vec![false; patterns.len()],
            patterns,
            actions,
            names,
            may_stop,
            states,
            next: 0,
            due: None,
            up: false,
        })
    }

    /// The pictures of the screen that the steps take.
    pub fn screens(&self) -> impl Iterator<Item = &str> {
        let actions = self.steps.iter().flat_map(|step| &step.actions);
        let pictures = actions.filter_map(|action| action.strip_prefix("screen "));
        pictures.filter_map(|picture| picture.split(' ').next())
    }

    /// What is wrong if steps are left at the end of the run.
    pub fn left(&self) -> Option<String> {
        let step = self.steps.get(self.next)?;
        Some(format!("step {} was never due: {:?}", self.next + 1, step.actions))
    }

    fn is_about(&self, step: &Step, domain: usize) -> bool {
        step.domain.is_none() || step.domain.as_ref() == self.names.get(domain)
    }

    fn proceed(&mut self, steer: &mut Steer) {
        while let (Some(step), Some(due)) = (self.steps.get(self.next), self.due) {
            if due.elapsed().as_secs_f64() < step.after {
                return;
            }
            for action in std::mem::take(&mut self.actions[self.next]) {
                match action {
                    Action::Order(command) => steer.send(command),
                    Action::Act(act) => steer.act(act),
                }
            }
            self.next += 1;
            self.due = None;
            self.look();
        }
    }

    /// A step without a condition is due at once; one that waits for a state, or for a line that may come earlier, may be due already.
    fn look(&mut self) {
        let Some(step) = self.steps.get(self.next) else { return };
        let met = match (&step.console, &step.state) {
            (Some(_), _) => self.seen[self.next],
            (None, None) => self.up,
            (None, Some(wanted)) => {
                let mut states = self.states.iter().enumerate();
                states.any(|(domain, state)| self.is_about(step, domain) && state.word() == wanted)
            }
        };
        if met && self.due.is_none() {
            self.due = Some(Instant::now());
        }
    }
}

impl Observer for Script<'_> {
    fn hello(&mut self, _domains: &[String]) {
        self.up = true;
        self.look();
    }

    fn state(&mut self, domain: usize, state: DomainState, _reason: &GuestText, steer: &mut Steer) {
        if let Some(known) = self.states.get_mut(domain) {
            *known = state;
        }
        self.look();
        self.proceed(steer);
    }

    fn line(&mut self, domain: usize, line: &GuestText, steer: &mut Steer) {
        if has_stopped(line.raw()) && !self.may_stop.get(domain).copied().unwrap_or(false) {
            // It would stand still until the time is over; what it said fails the scenario.
            DomainId::at(domain).into_iter().for_each(|domain| steer.send(Command::Destroy(domain)));
        }
        for (index, step) in self.steps.iter().enumerate().skip(self.next) {
            let waits = index == self.next || step.earlier;
            if let Some(pattern) = &self.patterns[index]
                && waits
                && self.is_about(step, domain)
                && pattern.is_match(line.raw())
            {
                self.seen[index] = true;
            }
        }
        self.look();
        self.proceed(steer);
    }

    fn tick(&mut self, steer: &mut Steer) {
        self.proceed(steer);
    }
}

/// "destroy alice" as an action.
fn order(text: &str, names: &[String], devices: &[String], directory: &Path) -> Result<Action> {
    let mut words = text.splitn(3, ' ');
    let verb = words.next().unwrap_or_default();
    match verb {
        "shutdown" => return Ok(Action::Order(Command::Shutdown)),
        "verify" => return Ok(Action::Order(Command::Verify)),
        _ => {}
    }
    let name = words.next().with_context(|| format!("'{text}' does not say what"))?;
    match verb {
        "key" => return Ok(Action::Act(Act::Key(name.to_owned()))),
        "screen" => {
            let name: Name = name.parse()?;
            let card = words.next().map(|card| {
                let index = devices.iter().position(|known| known == card);
                index.map(qemu::device_id).with_context(|| format!("no device '{card}'"))
            });
            let file = picture(directory, &name);
            return Ok(Action::Act(Act::Screen { file, card: card.transpose()? }));
        }
        _ => {}
    }
    let index = names.iter().position(|known| known == name);
    let domain = index.and_then(DomainId::at).with_context(|| format!("no domain '{name}'"))?;
    Ok(Action::Order(match verb {
        "start" => Command::Start(domain),
        "stop" => Command::Stop(domain),
        "pause" => Command::Pause(domain),
        "resume" => Command::Resume(domain),
        "focus" => Command::Focus(domain),
        "destroy" => Command::Destroy(domain),
        "restart" => Command::Restart(domain),
        "attach" => {
            let device = words.next().and_then(|device| device_of(device, names));
            let device = device
                .with_context(|| format!("'{text}' does not say: NAME blk|rng|file|MAC SERVER SOURCE"))?;
            Command::Attach(domain, device)
        }
        "plug" => {
            let vif = words
                .next()
                .and_then(vif_of)
                .with_context(|| format!("'{text}' does not say: NAME MAC NETWORK"))?;
            Command::AttachVif { domain, network: vif.0, vif: vif.1 }
        }
        "limit" => {
            let limit = words.next().and_then(|words| words.split_once(' '));
            let (device, rate) = limit.with_context(|| format!("'{text}' does not say: NAME RATE"))?;
            let limit = Some(parse_rate(rate).with_context(|| format!("'{rate}' is no rate"))?);
            Command::SetVif {
                domain,
                device: device.to_owned(),
                share: 1,
                limit,
                vlan: None,
                addresses: None,
                moderation: MODERATION,
            }
        }
        "speak" => {
            let wanted = words.next().and_then(|words| words.split_once(' '));
            let (device, address) = wanted.with_context(|| format!("'{text}' does not say: NAME ADDRESS"))?;
            let address = parse_address(address).with_context(|| format!("'{address}' is no IP address"))?;
            Command::SetVif {
                domain,
                device: device.to_owned(),
                share: 1,
                limit: None,
                vlan: None,
                addresses: Some(vec![address]),
                moderation: MODERATION,
            }
        }
        "detach" | "take" => {
            let device = words.next().with_context(|| format!("'{text}' does not say which device"))?;
            Command::Detach { domain, device: device.to_owned(), force: verb == "take" }
        }
        "type" => Command::ConsoleInput(domain, format!("{}\n", words.next().unwrap_or("")).into_bytes()),
        other => {
            bail!(
                "a step can start, stop, pause, resume, focus, destroy, restart, attach, plug, limit, speak, detach, take, type, verify, shutdown, key or screen, \
                 not '{other}'"
            )
        }
    }))
}

/// "data blk driver /dev/sda" as a device, or the same with another kind, or a station address, instead of "blk".
fn device_of(text: &str, names: &[String]) -> Option<Virtio> {
    let mut words = text.split(' ');
    let (name, kind, server, source) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let kind = match kind {
        "blk" => VirtioKind::Block,
        "rng" => VirtioKind::Entropy,
        "file" => VirtioKind::DeviceFile,
        mac => VirtioKind::Net { mac: parse_mac(mac)?, pairs: 1 },
    };
    let by = u16::try_from(names.iter().position(|known| known == server)?).ok()?;
    Some(Virtio { name: name.to_owned(), kind, by, source: source.to_owned(), identity: None, region: 0 })
}

/// "lan 52:54:00:00:00:0c NETWORK [FACE]" as an interface, and the name of its network.
fn vif_of(text: &str) -> Option<(String, Vif)> {
    let mut words = text.split(' ');
    let (name, mac, network) =
        (words.next()?.to_owned(), parse_mac(words.next()?)?, words.next()?.to_owned());
    Some((
        network,
        Vif {
            name,
            network: 0,
            mac,
            share: 1,
            limit: None,
            vlan: None,
            mtu: 1500,
            addresses: Vec::new(),
            moderation: MODERATION,
            face: words.next().map_or(Some(Face::default()), Face::of)?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_from_when_its_step_is_next_or_earlier_if_the_step_says_so() {
        let step = |domain: &str, console: &str, earlier| Step {
            domain: Some(domain.to_owned()),
            console: Some(console.to_owned()),
            earlier,
            state: None,
            after: 0.0,
            actions: Vec::new(),
        };
        let steps = [
            step("alice", "using=0", false),
            step("bob", "using=0", true),
            step("alice", "using=1", false),
            step("alice", "using=2", true),
        ];
        let pattern = |step: &Step| step.console.as_deref().map(|console| Regex::new(console).unwrap());
        let mut script = Script {
            steps: &steps,
            patterns: steps.iter().map(pattern).collect(),
            seen: vec![false; steps.len()],
            actions: steps.iter().map(|_| Vec::new()).collect(),
            names: vec!["alice".to_owned(), "bob".to_owned()],
            may_stop: vec![false; 2],
            states: vec![DomainState::Running; 2],
            next: 0,
            due: None,
            up: true,
        };
        let lines = [
            (1, "using=0", 0, "what is to come earlier is not yet next"),
            (0, "using=1", 0, "nor is this, which may not"),
            (0, "using=0", 2, "the second step's line has come already"),
            (1, "using=1", 2, "this is another's line"),
            (0, "using=2", 2, "and this is early"),
            (0, "using=1", 4, "all have come"),
        ];
        for (domain, line, next, why) in lines {
            script.line(domain, &GuestText::from(line), &mut Steer::default());
            assert_eq!(script.next, next, "{why}");
        }
        assert_eq!(script.left(), None);
    }

    #[test]
    fn actions_are_commands() {
        let names = ["alice".to_owned(), "bob".to_owned()];
        let order = |text| order(text, &names, &["nic0".to_owned(), "gpu".to_owned()], Path::new("run"));
        assert_eq!(order("destroy bob").unwrap(), Action::Order(Command::Destroy(DomainId(1))));
        let typed = Command::ConsoleInput(DomainId(0), b"echo hi\n".to_vec());
        assert_eq!(order("type alice echo hi").unwrap(), Action::Order(typed));
        assert_eq!(order("key f1").unwrap(), Action::Act(Act::Key("f1".to_owned())));
        let file = PathBuf::from("run/screen-end.ppm");
        let of = |card| Action::Act(Act::Screen { file: file.clone(), card });
        assert_eq!(order("screen end").unwrap(), of(None));
        assert_eq!(order("screen end gpu").unwrap(), of(Some("dev1".to_owned())));
        let disk = Virtio {
            name: "data".to_owned(),
            kind: VirtioKind::Block,
            by: 1,
            source: "/dev/sda".to_owned(),
            identity: None,
            region: 0,
        };
        assert_eq!(
            order("attach alice data blk bob /dev/sda").unwrap(),
            Action::Order(Command::Attach(DomainId(0), disk))
        );
        let vif = Vif {
            name: "lan".to_owned(),
            network: 0,
            mac: [0x52, 0x54, 0, 0, 0, 0x0c],
            share: 1,
            limit: None,
            vlan: None,
            mtu: 1500,
            addresses: Vec::new(),
            moderation: MODERATION,
            face: Face::Virtio,
        };
        let plug = Command::AttachVif { domain: DomainId(0), network: "net".to_owned(), vif };
        assert_eq!(order("plug alice lan 52:54:00:00:00:0c net").unwrap(), Action::Order(plug));
        let limit = Command::SetVif {
            domain: DomainId(1),
            device: "lan".to_owned(),
            share: 1,
            limit: Some(50_000_000),
            vlan: None,
            addresses: None,
            moderation: MODERATION,
        };
        assert_eq!(order("limit bob lan 50Mbit").unwrap(), Action::Order(limit));
        let speak = Command::SetVif {
            domain: DomainId(1),
            device: "lan".to_owned(),
            share: 1,
            limit: None,
            vlan: None,
            addresses: Some(vec![[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]]),
            moderation: MODERATION,
        };
        assert_eq!(order("speak bob lan 10.0.0.2").unwrap(), Action::Order(speak));
        let take = Command::Detach { domain: DomainId(0), device: "data".to_owned(), force: true };
        assert_eq!(order("take alice data").unwrap(), Action::Order(take));
        for wrong in [
            "attach alice data blk carol /dev/sda",
            "attach alice data tap bob br0",
            "detach alice",
            "plug alice lan net",
            "limit bob lan",
            "limit bob lan 50",
            "destroy carol",
            "kick bob",
            "screen",
            "screen ../x",
            "screen end sound",
        ] {
            assert!(order(wrong).is_err(), "{wrong}");
        }
    }
}
