//! Between a management channel and the commands that use it: every client gets every event, and the answers to its own requests.

use crate::control::{Instance, Peer, read_messages};
use anyhow::Result;
use sluice_abi::DomainId;
use sluice_abi::channel::{Command, Event, Request, VERSION, encode};
use sluice_abi::report::DomainState;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;

/// Messages that wait to be looked at; whoever sends more waits too, the machine as well.
pub const MOST_INPUTS: usize = 256;
/// How much of a console a client gets that connects late.
const CONSOLE_TAIL: usize = 4096;

/// What arrives.
pub enum Input {
    /// From the hypervisor.
    Event(Event),
    /// The hypervisor is gone.
    Closed,
    /// A client has come.
    Joined(u64, UnixStream),
    /// A client has gone.
    Left(u64),
    /// A client wants something.
    Asked(u64, Request),
}

/// Reads the hypervisor's events in the background, to their end.
pub fn read_events(stream: impl Read + Send + 'static, sender: SyncSender<Input>) {
    std::thread::spawn(move || {
        read_messages(stream, |event| sender.send(Input::Event(event)).is_ok());
        let _ = sender.send(Input::Closed);
    });
}

/// Reads the clients' requests in the background.
///
/// # Errors
/// The socket cannot be made.
pub fn serve_clients(instance: &Instance, sender: SyncSender<Input>) -> Result<()> {
    let listener = instance.listen_for_commands()?;
    std::thread::spawn(move || {
        for (id, stream) in (1..).zip(listener.incoming().flatten()) {
            let (Ok(reader), sender) = (stream.try_clone(), sender.clone()) else { continue };
            if sender.send(Input::Joined(id, stream)).is_err() {
                return;
            }
            std::thread::spawn(move || {
                read_messages(reader, |request| sender.send(Input::Asked(id, request)).is_ok());
                let _ = sender.send(Input::Left(id));
            });
        }
    });
    Ok(())
}

/// What a client is told of a domain when it comes.
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: DomainState,
    /// Why it ended, in the hypervisor's words.
    pub reason: String,
    /// The end of its console.
    pub tail: Vec<u8>,
}

/// Keeps the end of a console.
pub fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    let surplus = tail.len().saturating_sub(CONSOLE_TAIL);
    tail.drain(..surplus);
}

/// The clients, and their requests that are under way.
pub struct Broker {
    channel: Option<Box<dyn Write>>,
    clients: HashMap<u64, Peer>,
    /// Our number to the client and its number.
    asked: HashMap<u32, (u64, u32)>,
    next: u32,
}

impl Broker {
    /// Before anybody came. Without a channel, requests go nowhere.
    pub fn new(channel: Option<Box<dyn Write>>) -> Self {
        Self { channel, clients: HashMap::new(), asked: HashMap::new(), next: 1 }
    }

    /// Asks the hypervisor for something.
    pub fn command(&mut self, command: Command) {
        let seq = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        if let (Some(channel), Ok(bytes)) = (&mut self.channel, encode(&Request { seq, command })) {
            // A machine that is gone, or hangs, is noticed elsewhere.
            let _ = channel.write_all(&bytes);
        }
    }

    /// A client has come.
    pub fn welcome(&mut self, id: u64, stream: UnixStream, known: impl Iterator<Item = Known>) {
        let mut client = Peer::new(stream);
        let known: Vec<Known> = known.collect();
        let domains = known.iter().map(|domain| domain.name.clone()).collect();
        let mut fine = client.send(&Event::Hello { version: VERSION, domains });
        for (domain, known) in (0..).map(DomainId).zip(known) {
            // In this order: who waits for the end of a console gets what it said before.
            fine &= client.send(&Event::Console { domain, bytes: known.tail });
            fine &= client.send(&Event::State { domain, state: known.state, reason: known.reason });
        }
        if fine {
            self.clients.insert(id, client);
        }
    }

    /// A client has gone.
    pub fn forget(&mut self, id: u64) {
        self.clients.remove(&id);
    }

    /// A client wants something.
    pub fn pass_on(&mut self, id: u64, request: Request) {
        self.asked.insert(self.next, (id, request.seq));
        self.command(request.command);
    }

    /// Sends what the hypervisor says to whom it concerns: an answer to who asked, anything else to all.
    pub fn spread(&mut self, event: &Event) {
        match event {
            Event::Reply { seq, result } => self.answer(*seq, |seq| Event::Reply { seq, result: *result }),
            Event::Report { seq: seq @ 1.., report } => {
                self.answer(*seq, |seq| Event::Report { seq, report: report.clone() });
            }
            _ => self.clients.retain(|_, client| client.send(event)),
        }
    }

    fn answer(&mut self, seq: u32, event: impl FnOnce(u32) -> Event) {
        let Some((id, theirs)) = self.asked.remove(&seq) else { return };
        if let Some(client) = self.clients.get_mut(&id)
            && !client.send(&event(theirs))
        {
            self.clients.remove(&id);
        }
    }
}
