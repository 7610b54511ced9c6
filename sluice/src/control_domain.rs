//! `control`: in a control domain, what `run` is on the host: it has the management channel, and the other commands connect to it.

use crate::broker::{Broker, Input, Known, MOST_INPUTS, keep_tail, read_events, serve_clients};
use crate::console::BoundedFile;
use crate::control::Instance;
use crate::info::Info;
use crate::logs::Logs;
use crate::name::Name;
use crate::output;
use crate::printable::Printable;
use anyhow::{Context, Result, bail};
use sluice_abi::channel::{Event, VERSION};
use sluice_abi::report::DomainState;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::sync_channel;

/// Where the stock driver shows the stream, by its name.
pub const STREAM: &str = "/dev/virtio-ports/sluice";
/// The name of the instance.
const INSTANCE: &str = "machine";

/// A domain of the machine.
struct Domain {
    name: Name,
    state: DomainState,
    reason: String,
    tail: Vec<u8>,
    file: BoundedFile,
}

/// Answers commands until the hypervisor is gone.
pub fn serve(stream: &Path) -> Result<()> {
    let writer = open(stream)?;
    let reader = writer.try_clone().context("could not use the stream twice")?;
    let instance = Instance::claim(&INSTANCE.parse().context("a name")?)?;
    let logs = Logs::of_instance(instance.name())?;
    let info = Info { pid: std::process::id(), consoles: logs.directory().to_owned(), domains: Vec::new() };
    instance.publish(&info);
    let (sender, inputs) = sync_channel(MOST_INPUTS);
    read_events(reader, sender.clone());
    let mut broker = Broker::new(Some(Box::new(writer)));
    let mut domains: Vec<Domain> = Vec::new();
    let mut listens = false;
    for input in inputs {
        match input {
            Input::Closed => bail!("the hypervisor has closed {}", stream.display()),
            Input::Joined(id, stream) => broker.welcome(id, stream, domains.iter().map(Domain::known)),
            Input::Left(id) => broker.forget(id),
            Input::Asked(id, request) => broker.pass_on(id, request),
            Input::Event(event) => {
                note(&mut domains, &event, &logs)?;
                // A client that comes before the greeting would not know the domains.
                if !listens && matches!(event, Event::Hello { .. }) {
                    listens = true;
                    serve_clients(&instance, sender.clone())?;
                    output::note("commands are answered");
                }
                broker.spread(&event);
            }
        }
    }
    Ok(())
}

fn open(stream: &Path) -> Result<File> {
    File::options().read(true).write(true).open(stream).map_err(|error| {
        let path = stream.display();
        match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "there is no {path}: is this a control domain (control = true), and the module virtio_console loaded?"
            ),
            ErrorKind::ResourceBusy => anyhow::anyhow!("{path} is in use: another 'sluice control' runs"),
            _ => anyhow::Error::new(error).context(format!("could not open {path}")),
        }
    })
}

/// What the hypervisor says, for clients that come later.
fn note(domains: &mut Vec<Domain>, event: &Event, logs: &Logs) -> Result<()> {
    match event {
        Event::Hello { version, .. } if *version != VERSION => {
            bail!(
                "the hypervisor speaks version {version} of the management channel, and this program {VERSION}"
            )
        }
        Event::Hello { domains: names, .. } => {
            for (index, name) in names.iter().enumerate() {
                if domains.get(index).is_some_and(|known| *known.name == **name) {
                    continue;
                }
                let new = Domain::new(name, logs)?;
                if index < domains.len() { domains[index] = new } else { domains.push(new) }
            }
        }
        Event::State { domain, state, reason } => {
            if let Some(known) = domains.get_mut(domain.index()) {
                (known.state, known.reason) = (*state, reason.clone());
            }
        }
        Event::Console { domain, bytes } => {
            if let Some(known) = domains.get_mut(domain.index()) {
                keep_tail(&mut known.tail, bytes);
                // What is lost here is a log; the guest is none the worse.
                let _ = known.file.write(bytes);
            }
        }
        Event::Reply { .. } | Event::Report { .. } | Event::Finished => {}
    }
    Ok(())
}

impl Domain {
    fn new(name: &str, logs: &Logs) -> Result<Self> {
        let name: Name = name.parse().with_context(|| format!("{} is no name", Printable(name)))?;
        let file = logs.console(&name)?;
        Ok(Self { name, state: DomainState::Created, reason: String::new(), tail: Vec::new(), file })
    }

    fn known(&self) -> Known {
        let (state, reason, tail) = (self.state, self.reason.clone(), self.tail.clone());
        Known { name: self.name.to_string(), state, reason, tail }
    }
}
