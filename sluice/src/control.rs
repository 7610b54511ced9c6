//! The control socket of a running instance: `run` serves it, the other commands connect to it.
//!
//! Both sides speak the messages of the management channel ([`sluice_abi::channel`]). The server
//! greets a client with the names and states of the domains, passes every event on, and gives each
//! client's requests sequence numbers of its own.

use crate::workspace::instances;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use sluice_abi::channel::{Command, CommandError, Decoder, Event, Request, encode};
use sluice_abi::report::{DomainState, Report};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// A client that does not read for this long is dropped.
const CLIENT_STALL: Duration = Duration::from_millis(500);

/// The directory and sockets of an instance; removed when it ends.
pub struct Instance {
    directory: PathBuf,
}

impl Instance {
    /// Claims a name; a number is added if one like it runs already.
    pub fn claim(wish: &str) -> Result<Self> {
        for number in 1.. {
            let name = if number == 1 { wish.to_owned() } else { format!("{wish}-{number}") };
            let directory = instances().join(&name);
            if UnixStream::connect(directory.join("control")).is_ok() {
                continue;
            }
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("could not create {}", directory.display()))?;
            return Ok(Self { directory });
        }
        bail!("no free name for the instance");
    }

    /// A file in its directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Listens on a socket in its directory.
    pub fn listen(&self, file: &str) -> Result<UnixListener> {
        let path = self.path(file);
        UnixListener::bind(&path).with_context(|| format!("could not listen on {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Reads messages until the other side closes or `take` returns false.
pub fn read_messages<T: DeserializeOwned>(mut stream: impl Read, mut take: impl FnMut(T) -> bool) {
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    loop {
        let Ok(got @ 1..) = stream.read(&mut buffer) else { return };
        for byte in &buffer[..got] {
            if let Some(message) = decoder.push(*byte)
                && !take(message)
            {
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
    /// Names and last known states of the domains.
    pub domains: Vec<(String, DomainState)>,
}

/// Names of the instances that answer.
pub fn running() -> Vec<String> {
    let entries = std::fs::read_dir(instances()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| UnixStream::connect(entry.path().join("control")).is_ok())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The instance that is meant: the named one, or the only one.
pub fn choose(name: Option<&str>) -> Result<String> {
    let running = running();
    match (name, running.as_slice()) {
        (Some(name), _) if running.iter().any(|other| other == name) => Ok(name.to_owned()),
        (Some(name), _) => bail!("no instance '{name}' runs; running: {}", running.join(", ")),
        (None, [only]) => Ok(only.clone()),
        (None, []) => bail!("no instance runs; start one with: cargo sluice run FILE"),
        (None, many) => bail!("several instances run ({}); choose with --instance", many.join(", ")),
    }
}

impl Client {
    /// Connects to an instance by name.
    pub fn connect(instance: &str) -> Result<Self> {
        Self::open(&instances().join(instance).join("control"))
    }

    fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("no answer at {}", path.display()))?;
        let mut client = Self {
            stream,
            decoder: Decoder::default(),
            backlog: std::collections::VecDeque::new(),
            next: 1,
            domains: Vec::new(),
        };
        let deadline = Instant::now() + PATIENCE;
        while client.domains.is_empty() {
            let greeting = client.next_event(deadline)?;
            client.note(&greeting);
        }
        Ok(client)
    }

    /// Index of a domain by name.
    pub fn domain(&self, name: &str) -> Result<u16> {
        let known: Vec<&str> = self.domains.iter().map(|(name, _)| name.as_str()).collect();
        let index = known.iter().position(|known| *known == name);
        let index = index.with_context(|| format!("no domain '{name}'; there are: {}", known.join(", ")))?;
        Ok(u16::try_from(index)?)
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
        self.stream.write_all(&bytes).context("the instance has ended")?;
        Ok(seq)
    }

    /// A second handle for sending from another thread.
    pub fn sender(&self) -> Result<UnixStream> {
        self.stream.try_clone().context("could not use the socket twice")
    }

    /// The next event, until a deadline.
    pub fn next_event(&mut self, deadline: Instant) -> Result<Event> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(event) = self.backlog.pop_front() {
                self.note(&event);
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer from the hypervisor");
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the instance has ended"),
                Ok(got) => {
                    self.backlog.extend(buffer[..got].iter().filter_map(|byte| self.decoder.push(*byte)))
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("lost the instance"),
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Hello { domains, .. } => {
                self.domains = domains.iter().map(|name| (name.clone(), DomainState::Created)).collect();
            }
            Event::State { domain, state, .. } => {
                if let Some(known) = self.domains.get_mut(usize::from(*domain)) {
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
    }
}
