//! `attach-device` and `detach-device`: virtual devices that a running domain gets and gives back.

use crate::cli::{AttachDevice, DetachDevice};
use crate::control::{Client, choose};
use crate::output;
use crate::progress::{Position, Step};
use anyhow::{Result, bail};
use sluice_abi::channel::Command;
use sluice_abi::config::{Virtio, VirtioKind};
use std::time::{Duration, Instant};

/// How often it is looked whether a guest has let go of a device.
const TICK: Duration = Duration::from_millis(200);

/// Gives a domain a device that another serves.
pub fn attach(arguments: &AttachDevice) -> Result<()> {
    let kind = match (arguments.kind.as_str(), arguments.mac) {
        ("net", Some(mac)) => VirtioKind::Net { mac: mac.0, pairs: arguments.queues.unwrap_or(1) },
        ("net", None) => bail!("a network card needs an address: --mac 52:54:00:00:00:0a"),
        (_, Some(_)) => bail!("only a network card has a station address: leave --mac out"),
        (_, None) if arguments.queues.is_some() => {
            bail!("only a network card's queues are chosen here: leave --queues out")
        }
        ("rng", None) => VirtioKind::Entropy,
        (_, None) => VirtioKind::Block,
    };
    let mut client = Client::connect(&choose(arguments.instance.as_ref())?)?;
    let (guest, server) = (client.domain(&arguments.domain)?, client.domain(&arguments.by)?);
    if guest == server {
        bail!("a guest cannot serve its own virtual device: --by names the domain that has the hardware");
    }
    let device = Virtio {
        name: arguments.device.to_string(),
        kind,
        by: server.0,
        source: arguments.source.clone(),
        identity: None,
        region: 0,
    };
    client.command(Command::Attach(guest, device))?;
    output::print(format!("{}: has {}, served by {}\n", arguments.domain, arguments.device, arguments.by))
}

/// Asks a domain for a device and waits until it has let go of it.
pub fn detach(arguments: &DetachDevice) -> Result<()> {
    let DetachDevice { domain, device, wait, force, .. } = arguments;
    let mut client = Client::connect(&choose(arguments.instance.as_ref())?)?;
    let guest = client.domain(domain)?;
    client.command(Command::Detach { domain: guest, device: device.to_string(), force: *force })?;
    let (name, began) = (format!("{domain}.{device}"), Instant::now());
    let step = Step::begin(format!("waiting until {domain} lets go of {device}"));
    while client.report()?.links.iter().any(|link| link.name == name) {
        if began.elapsed() >= *wait {
            bail!(
                "{domain} still has {device} after {} s: a program may use it, or the guest does not listen\n  \
                 help: it goes when the guest lets go of it; --force takes it at once, with what is not written yet",
                wait.as_secs()
            );
        }
        step.at(Position::Note(format!("{} s", began.elapsed().as_secs())));
        std::thread::sleep(TICK);
    }
    step.done();
    output::print(format!("{domain}: has {device} no more\n"))
}
