//! A model's tracker beside a software card: the same accesses to both, and what the tracker says must be
//! so of the card.
//!
//! Key types: [`Beside`], the pair; [`Card`], what it asks of a software card. After each access: the states
//! that registers alone decide are the card's; every transfer that the card made was one that the model
//! announced or that a state of work allows, within the memory that the model's [`DmaTarget`] names or that
//! descriptors there name; a tracker at rest stands beside a card that is. Used by the tests of this folder and
//! by the fuzz targets of the models.

use sluice_model::check::Memory;
use sluice_model::{
    Descriptor, DeviceEvent, DmaTarget, HookSet, Model, Questions, RegisterId, Seen, Start, Tracker,
    Transfer, hook_set, named,
};
use sluice_nic::dma::{Dma, DmaError};
use std::collections::BTreeMap;

/// What the card may reach now.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    memory: Memory,
    /// Descriptors in it name more; receive buffers have at least these bytes.
    ring: Option<(&'static Descriptor, u64)>,
}

/// Memory at every address - what was written, else zeros - that judges each transfer as it is made.
#[derive(Clone, Debug, Default)]
pub struct Bus {
    /// Pages that were written, by number.
    pages: BTreeMap<u64, Vec<u8>>,
    allowed: Vec<Allowed>,
    /// The buffer that the descriptor read last names.
    named: Option<Memory>,
    /// Transfers made so far.
    made: usize,
}

impl Bus {
    /// What a driver puts into memory.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        for (at, from, len) in pieces(address, bytes.len()) {
            let page = self.pages.entry(at >> 12).or_insert_with(|| vec![0; PAGE]);
            let into = (at as usize) % PAGE;
            page[into..into + len].copy_from_slice(&bytes[from..from + len]);
        }
        // Received frames pile up.
        if self.pages.len() > 256 {
            self.pages.clear();
        }
    }

    /// A transfer is within what is allowed; of a ring, whole descriptors. Returns what they look like.
    fn judge(&mut self, address: u64, len: usize, write: bool) -> Option<(&'static Descriptor, u64)> {
        self.made += 1;
        let within: Vec<&Allowed> =
            self.allowed.iter().filter(|allowed| allowed.memory.holds(address, len as u64)).collect();
        let named = self.named.is_some_and(|named| named.holds(address, len as u64));
        let way = if write { "to" } else { "from" };
        assert!(named || !within.is_empty(), "{len} bytes {way} {address:x}, not {:x?}", self.allowed);
        within.into_iter().find_map(|allowed| {
            let (descriptor, _) = allowed.ring?;
            let whole = address.wrapping_sub(allowed.memory.address).is_multiple_of(descriptor.bytes.into());
            (whole && len == descriptor.bytes as usize).then_some(allowed.ring)?
        })
    }
}

const PAGE: usize = 4096;

/// A range, page by page: address, bytes before it, bytes. Addresses wrap.
fn pieces(address: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = address.wrapping_add(done as u64);
        let piece = (len - done).min(PAGE - at as usize % PAGE);
        done += piece;
        (piece > 0).then_some((at, done - piece, piece))
    })
}

impl Dma for Bus {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let ring = self.judge(address, buffer.len(), false);
        for (at, from, len) in pieces(address, buffer.len()) {
            let into = (at as usize) % PAGE;
            match self.pages.get(&(at >> 12)) {
                Some(page) => buffer[from..from + len].copy_from_slice(&page[into..into + len]),
                None => buffer[from..from + len].fill(0),
            }
        }
        if let Some((descriptor, least)) = ring
            && let Some(named) = descriptor.buffer(buffer)
        {
            self.named = Some(Memory { bytes: named.bytes.max(least), ..named });
        }
        Ok(())
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.judge(address, bytes.len(), true);
        self.put(address, bytes);
        Ok(())
    }
}

/// A software card as the tests see it.
pub trait Card {
    /// Its model.
    const MODEL: &'static Model;
    /// A write, and what it sets off at once.
    fn write(&mut self, offset: u32, width: u8, value: u32, bus: &mut dyn Dma);
    /// A read.
    fn read(&mut self, offset: u32, width: u8) -> u32;
    /// The n-th of registers alike; changes nothing.
    fn register(&self, id: RegisterId, n: u8) -> u32;
    /// Slot whose turn it is.
    fn turn(&self) -> u8 {
        0
    }
    /// Sends until nothing is left.
    fn work(&mut self, bus: &mut dyn Dma);
    /// A frame arrives.
    fn receive(&mut self, frame: &[u8], bus: &mut dyn Dma);
    /// An interrupt cause that reading takes away is pending.
    fn pending(&self) -> bool {
        false
    }
    /// The machine's state as the card's registers have it, if they alone decide it once nothing is left to send.
    fn state(&self, machine: &str) -> Option<&'static str>;
    /// Bytes of a receive buffer, where descriptors do not say.
    fn buffer(&self) -> u64 {
        0
    }
}

/// The pair.
pub struct Beside<C> {
    /// The card.
    pub card: C,
    /// The model's view of it.
    pub tracker: Tracker,
    /// Its memory.
    pub bus: Bus,
    /// Transfers announced so far, in all.
    pub announced: usize,
}

impl<C: Card> Beside<C> {
    /// A card just powered on.
    pub fn new(card: C) -> Self {
        Self { card, tracker: Tracker::new(), bus: Bus::default(), announced: 0 }
    }

    /// Transfers that the card made so far.
    pub const fn made(&self) -> usize {
        self.bus.made
    }

    /// The hook set of the present state.
    pub fn hooks(&self, questions: Questions) -> HookSet {
        hook_set(C::MODEL, self.tracker.states(), questions)
    }

    /// Nothing may be reached.
    fn forbid(&mut self) {
        self.bus.allowed.clear();
        self.bus.named = None;
    }

    /// The memory that a transfer may reach now.
    fn allow(&mut self, start: &'static Start, turn: u8) {
        let memory = start.target.memory(turn, &mut |id, n| self.card.register(id, n));
        let fills = matches!(start.transfer, Transfer::Fill);
        let ring = match start.target {
            DmaTarget::Ring { descriptor, .. } => {
                Some((descriptor, if fills { self.card.buffer() } else { 0 }))
            }
            _ => None,
        };
        self.bus.allowed.extend(memory.map(|memory| Allowed { memory, ring }));
    }

    /// A receiver that runs may fill memory at any time: in states to which an edge leads that says so.
    fn allow_fills(&mut self) {
        for (machine, state) in C::MODEL.machines.iter().zip(*self.tracker.states()) {
            for start in
                machine.edges.iter().filter(|edge| edge.to == state).filter_map(|it| it.start.as_ref())
            {
                if matches!(start.transfer, Transfer::Fill) {
                    self.allow(start, 0);
                }
            }
        }
    }

    /// A write, to both.
    pub fn write(&mut self, offset: u32, width: u8, value: u32) {
        let page = self.tracker.page(C::MODEL).unwrap_or(0);
        let turn = self.card.turn();
        let caused = self.card.pending();
        let mut starts: Vec<&'static Start> = Vec::new();
        let events: Vec<(RegisterId, u32)> = named(C::MODEL, page, offset, width, value).collect();
        for event in events.iter().map(|(id, value)| Seen::WriteWord(*id, *value)) {
            starts.extend(self.tracker.starts(C::MODEL, event));
            self.tracker.step(C::MODEL, event);
        }
        self.announced += starts.len();
        self.forbid();
        // A dump is made within the write, to an address that may be in it. All else is made after it.
        for start in starts.iter().filter(|start| matches!(start.transfer, Transfer::Dump)) {
            let memory = start.target.memory(turn, &mut |id, n| {
                let written = events.iter().find(|(written, _)| *written == id);
                written.map_or_else(|| self.card.register(id, n), |(_, value)| *value)
            });
            self.bus.allowed.extend(memory.map(|memory| Allowed { memory, ring: None }));
        }
        self.card.write(offset, width, value, &mut self.bus);
        self.forbid();
        starts.iter().for_each(|start| self.allow(start, turn));
        self.allow_fills();
        self.card.work(&mut self.bus);
        self.report(caused);
        self.compare(format_args!("write {offset:x} {width} {value:x}"));
    }

    /// A read, from both.
    pub fn read(&mut self, offset: u32, width: u8) -> u32 {
        let page = self.tracker.page(C::MODEL).unwrap_or(0);
        let value = self.card.read(offset, width);
        let events: Vec<RegisterId> = named(C::MODEL, page, offset, width, 0).map(|(id, _)| id).collect();
        for id in events {
            self.tracker.step(C::MODEL, Seen::Read(id, value));
        }
        self.compare(format_args!("read {offset:x} {width}"));
        value
    }

    /// A frame from the wire.
    pub fn receive(&mut self, frame: &[u8]) {
        let caused = self.card.pending();
        self.forbid();
        self.allow_fills();
        self.card.receive(frame, &mut self.bus);
        self.report(caused);
        self.compare(format_args!("receive"));
    }

    /// What whoever follows a card reports after it has looked at it.
    fn report(&mut self, caused: bool) {
        for event in [DeviceEvent::Drained, DeviceEvent::Dumped] {
            self.tracker.step(C::MODEL, Seen::Device(event));
        }
        if self.card.pending() && !caused {
            self.tracker.step(C::MODEL, Seen::Device(DeviceEvent::Caused));
        }
    }

    /// States that registers decide are the card's.
    fn compare(&self, what: std::fmt::Arguments<'_>) {
        for (machine, state) in C::MODEL.machines.iter().zip(self.tracker.states()) {
            let says = machine.states[usize::from(*state)].name;
            if let Some(is) = self.card.state(machine.name) {
                assert_eq!(says, is, "{} after {what}", machine.name);
            }
        }
    }
}
