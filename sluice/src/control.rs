//! The control socket of a running instance: `run` serves it, the other commands connect to it.
//!
//! Both sides speak the messages of the management channel ([`sluice_abi::channel`]). The server
//! greets a client with the names and states of the domains, passes every event on, and gives each
//! client's requests sequence numbers of its own.

use crate::claim::{Claim, Member, runtime_directory};
use crate::info::Info;
use crate::name::Name;
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use sluice_abi::DomainId;
use sluice_abi::channel::{Command, CommandError, Decoder, Event, Request, encode};
use sluice_abi::report::{DomainState, Report};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// A client that does not read for this long is dropped.
const CLIENT_STALL: Duration = Duration::from_millis(500);

/// The longest path of a socket in bytes: `sun_path` has 108, and a NUL ends it (unix(7)).
const LONGEST_SOCKET_PATH: usize = 107;

/// The name and the sockets of an instance of this process; removed when it ends.
pub struct Instance {
    claim: Claim,
}

impl Instance {
    /// Claims a name; a number is added if one like it runs already.
    pub fn claim(wish: &Name) -> Result<Self> {
        let claim = Claim::take(&runtime_directory()?, wish)?;
        let socket = claim.path(Member::Control);
        let length = socket.as_os_str().len().max(claim.path(Member::Channel).as_os_str().len());
        if length > LONGEST_SOCKET_PATH {
            bail!(
                "{} has {length} bytes, and the path of a socket can have {LONGEST_SOCKET_PATH}\n\
                 help: choose a shorter --name, or let XDG_RUNTIME_DIR or TMPDIR name a directory with a shorter path",
                socket.display()
            );
        }
        std::fs::write(claim.path(Member::Checkout), root().as_os_str().as_bytes())
            .context("could not note the checkout")?;
        Ok(Self { claim })
    }

    /// Says what the instance is. That nobody can read it is no reason to end.
    pub fn publish(&self, info: &Info) {
        let (fresh, path) = (self.claim.path(Member::NewInfo), self.claim.path(Member::Info));
        let written = serde_json::to_vec(info).is_ok_and(|text| std::fs::write(&fresh, text).is_ok());
        if written {
            let _ = std::fs::rename(fresh, path);
        }
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        self.claim.name()
    }

    /// The path of its socket for the hypervisor.
    pub fn channel(&self) -> PathBuf {
        self.claim.path(Member::Channel)
    }

    /// The path of the socket of QEMU's monitor.
    pub fn monitor(&self) -> PathBuf {
        self.claim.path(Member::Monitor)
    }

    /// Listens for the hypervisor.
    pub fn listen_for_hypervisor(&self) -> Result<UnixListener> {
        self.listen(Member::Channel)
    }

    /// Listens for commands.
    pub fn listen_for_commands(&self) -> Result<UnixListener> {
        self.listen(Member::Control)
    }

    fn listen(&self, socket: Member) -> Result<UnixListener> {
        let path = self.claim.path(socket);
        UnixListener::bind(&path).with_context(|| format!("could not listen on {}", path.display()))
    }
}

/// Reads messages until the other side closes or `take` returns false.
pub fn read_messages<T: DeserializeOwned>(mut stream: impl Read, mut take: impl FnMut(T) -> bool) {
    let mut decoder = Decoder::default();
    let mut buffer = [0; 32 * 1024];
    loop {
        let Ok(got @ 1..) = stream.read(&mut buffer) else { return };
        let mut rest = &buffer[..got];
        while !rest.is_empty() {
            let (taken, message) = decoder.take(rest);
            rest = &rest[taken..];
            if message.is_some_and(|message| !take(message)) {
                return;
            }
        }
    }
}

/// The server's side of a client.
pub struct Peer {
    stream: UnixStream,
}

impl Peer {
    /// Wraps an accepted connection.
    pub fn new(stream: UnixStream) -> Self {
        let _ = stream.set_write_timeout(Some(CLIENT_STALL));
        Self { stream }
    }

    /// Sends; false if the client is gone or does not read.
    pub fn send(&mut self, event: &Event) -> bool {
        encode(event).is_ok_and(|bytes| self.stream.write_all(&bytes).is_ok())
    }
}

/// A connection to a running instance.
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    backlog: std::collections::VecDeque<Event>,
    next: u32,
    ended: bool,
    /// How many states were told.
    heard: usize,
    /// Names and last known states of the domains.
    pub domains: Vec<(String, DomainState)>,
}

/// An instance that answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Running {
    /// Its name.
    pub name: Name,
    /// The checkout whose `cargo sluice run` it is.
    pub checkout: PathBuf,
    socket: PathBuf,
}

impl Running {
    /// What it says of itself; nothing if it is of another version.
    pub fn info(&self) -> Info {
        let path = self.socket.with_file_name(Member::Info.file());
        std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// It answers still.
    pub fn is_running(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// It runs from this checkout.
    pub fn is_here(&self) -> bool {
        self.checkout == root()
    }
}

/// The instances of this user that answer, of all checkouts.
pub fn running() -> Result<Vec<Running>> {
    let base = runtime_directory()?;
    let entries = std::fs::read_dir(&base).with_context(|| format!("could not read {}", base.display()))?;
    let look = |entry: std::fs::DirEntry| {
        let name: Name = entry.file_name().to_str()?.parse().ok()?;
        let socket = entry.path().join(Member::Control.file());
        UnixStream::connect(&socket).ok()?;
        let checkout = std::fs::read(entry.path().join(Member::Checkout.file())).ok()?;
        Some(Running { name, checkout: PathBuf::from(OsString::from_vec(checkout)), socket })
    };
    let mut found: Vec<Running> = entries.flatten().filter_map(look).collect();
    found.sort();
    Ok(found)
}

/// The instance that is meant: the named one, or the only one of this checkout.
pub fn choose(name: Option<&Name>) -> Result<Running> {
    pick(running()?, name)
}

fn pick(mut running: Vec<Running>, name: Option<&Name>) -> Result<Running> {
    let list = |running: &[Running]| running.iter().map(|one| &*one.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = name {
        return match running.iter().position(|one| one.name == *name) {
            Some(index) => Ok(running.swap_remove(index)),
            None => bail!("no instance '{name}' runs; running: {}", list(&running)),
        };
    }
    let (mut here, elsewhere): (Vec<_>, Vec<_>) = running.into_iter().partition(Running::is_here);
    match (here.len(), elsewhere.as_slice()) {
        (1, _) => Ok(here.remove(0)),
        (0, []) => bail!("no instance runs; start one with: cargo sluice run FILE"),
        (0, others) => bail!(
            "no instance of this checkout runs; of others: {} (cargo sluice ps); choose with --instance",
            list(others)
        ),
        _ => bail!("several instances run ({}); choose with --instance", list(&here)),
    }
}

impl Client {
    /// Connects to an instance.
    pub fn connect(instance: &Running) -> Result<Self> {
        let stream = UnixStream::connect(&instance.socket)
            .with_context(|| format!("'{}' does not answer", instance.name))?;
        let mut client = Self {
            stream,
            decoder: Decoder::default(),
            backlog: std::collections::VecDeque::new(),
            next: 1,
            ended: false,
            heard: 0,
            domains: Vec::new(),
        };
        // It is greeted with the names of the domains, then with the state of each.
        let deadline = Instant::now() + PATIENCE;
        while client.domains.is_empty() || client.heard < client.domains.len() {
            if !client.read_events(deadline)? {
                bail!("'{}' does not answer", instance.name);
            }
        }
        Ok(client)
    }

    /// Index of a domain by name.
    pub fn domain(&self, name: &str) -> Result<DomainId> {
        let known: Vec<&str> = self.domains.iter().map(|(name, _)| name.as_str()).collect();
        let index = known.iter().position(|known| *known == name);
        let index = index.with_context(|| format!("no domain '{name}'; there are: {}", known.join(", ")))?;
        DomainId::at(index).context("too many domains")
    }

    /// Sends a command and waits for its answer.
    pub fn command(&mut self, command: Command) -> Result<()> {
        let seq = self.request(command)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Event::Reply { seq: answered, result } = self.next_event(deadline)?
                && answered == seq
            {
                return result.map_err(|error| anyhow::anyhow!(explain(error)));
            }
        }
    }

    /// Asks for the counters.
    pub fn report(&mut self) -> Result<Report> {
        let seq = self.request(Command::Report)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Event::Report { seq: answered, report } = self.next_event(deadline)?
                && answered == seq
            {
                return Ok(report);
            }
        }
    }

    /// Sends a command; its sequence number comes back with the answer.
    pub fn request(&mut self, command: Command) -> Result<u32> {
        let seq = self.next;
        self.next += 1;
        let bytes = encode(&Request { seq, command }).context("encoding")?;
        let sent = self.stream.write_all(&bytes);
        self.ended |= sent.is_err();
        sent.context("the instance has ended")?;
        Ok(seq)
    }

    /// The instance is gone.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// A second handle for sending from another thread.
    pub fn sender(&self) -> Result<UnixStream> {
        self.stream.try_clone().context("could not use the socket twice")
    }

    /// The next event, until a deadline.
    pub fn next_event(&mut self, deadline: Instant) -> Result<Event> {
        self.poll_event(deadline)?.context("no answer from the hypervisor")
    }

    /// The next event, or none when the deadline is over.
    pub fn poll_event(&mut self, deadline: Instant) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.backlog.pop_front() {
                return Ok(Some(event));
            }
            if !self.read_events(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Takes in what has arrived, and waits for it; false when the deadline is over.
    fn read_events(&mut self, deadline: Instant) -> Result<bool> {
        let mut buffer = [0; 4096];
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                bail!("the instance has ended")
            }
            Ok(got) => {
                for byte in &buffer[..got] {
                    if let Some(event) = self.decoder.push(*byte) {
                        self.note(&event);
                        self.backlog.push_back(event);
                    }
                }
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error).context("lost the instance"),
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Hello { domains, .. } => {
                self.heard = 0;
                self.domains = domains.iter().map(|name| (name.clone(), DomainState::Created)).collect();
            }
            Event::State { domain, state, .. } => {
                self.heard += 1;
                if let Some(known) = self.domains.get_mut(domain.index()) {
                    known.1 = *state;
                }
            }
            _ => {}
        }
    }
}

/// Why a command was refused, in words.
pub const fn explain(error: CommandError) -> &'static str {
    match error {
        CommandError::NoSuchDomain => "there is no such domain",
        CommandError::WrongState => "the domain's state does not allow it (see: cargo sluice ps)",
        CommandError::OutOfMemory => "there is not enough memory to build the domain again",
        CommandError::BadKernel => "the domain's kernel could not be loaded again",
        CommandError::DeviceBusy => "a device of the domain could not be given to it",
        CommandError::NotAllowed => {
            "a control domain may not do that, or a domain that is made while the machine runs may not have that (docs/control-domain.md)"
        }
        CommandError::BadConfiguration => {
            "the hypervisor does not take this configuration: is it of another version?"
        }
        CommandError::NoSuchDevice => {
            "the domain has no virtual device of this name, or the machine was not started with a device of this name, and this selection (see: cargo sluice devices)"
        }
        CommandError::NoDeviceFile => {
            "the domain has no device file, and so nothing that the person at the machine could mean for it"
        }
        CommandError::NameTaken => {
            "there is a domain of this name, or the domain has a virtual device of it: choose another"
        }
        CommandError::NothingLent => {
            "the domain lends no memory, without which a virtual device does not work: it needs grants = \"all\" in its configuration"
        }
        CommandError::NoSlot => {
            "there is no free slot on the bus of the domain, or of the one that is to serve the device"
        }
        CommandError::TooManyDomains => "there are as many domains as there can be",
        CommandError::NoSuchNetwork => {
            "the machine was not started with a network of this name, or no processor serves it (see: cargo sluice vif ls)"
        }
        CommandError::AddressTaken => {
            "another interface of the network has this address, or it has as many as there can be"
        }
        CommandError::FrameTooLong => {
            "the network carries no frames that long: give the interface a smaller --mtu, or the network a greater one when the machine starts"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, here: bool) -> Running {
        let checkout = if here { root() } else { PathBuf::from("/elsewhere") };
        Running { name: name.parse().unwrap(), checkout, socket: PathBuf::new() }
    }

    #[test]
    fn commands_mean_the_instance_of_this_checkout() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let both = vec![instance("a", false), instance("b", true)];
        assert_eq!(pick(both.clone(), None).unwrap().name, name("b"));
        assert_eq!(
            pick(both.clone(), Some(&name("a"))).unwrap().name,
            name("a"),
            "named, it may be anybody's"
        );
        assert!(pick(both, Some(&name("c"))).unwrap_err().to_string().contains("running: a, b"));
        let error = pick(vec![instance("a", false)], None).unwrap_err().to_string();
        assert!(error.contains("no instance of this checkout runs; of others: a"), "{error}");
        let error = pick(vec![instance("a", true), instance("b", true), instance("c", false)], None);
        assert!(error.unwrap_err().to_string().contains("several instances run (a, b)"));
        assert!(pick(Vec::new(), None).is_err());
    }
}
