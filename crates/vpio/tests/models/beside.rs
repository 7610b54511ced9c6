//! A model's tracker beside a software card: the same accesses to both, and what the tracker says must be
//! so of the card.
//!
//! Key types: [`Beside`], the pair; [`Card`], what it asks of a software card. After each access: the states
//! that registers alone decide are the card's; every transfer that the card made was one that the model
//! announced or that a state of work allows, within the memory that the model's [`Place`] names or that
//! descriptors there name; a tracker at rest stands beside a card that is. Used by the tests of this folder and
//! by the fuzz targets of the models.

use sluice_nic::dma::{Dma, DmaError};
use sluice_vpio::model::{Descriptor, DeviceEvent, Memory, Model, Place, RegisterId, Start, Transfer};
use sluice_vpio::{HookSet, Questions, Seen, Tracker, hook_set, named};
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
    bytes: BTreeMap<u64, u8>,
    allowed: Vec<Allowed>,
    /// Transfers made so far.
    made: usize,
}

impl Bus {
    /// What a driver puts into memory.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        self.bytes.extend((0..).map(|index| address.wrapping_add(index)).zip(bytes.iter().copied()));
        // Received frames pile up.
        if self.bytes.len() > 1 << 20 {
            self.bytes.clear();
        }
    }

    /// A transfer is within what is allowed; of a ring, whole descriptors. Returns what they look like.
    fn judge(&mut self, address: u64, len: usize, write: bool) -> Option<(&'static Descriptor, u64)> {
        self.made += 1;
        let mut within = self.allowed.iter().filter(|allowed| holds(allowed.memory, address, len)).peekable();
        let way = if write { "to" } else { "from" };
        assert!(
            within.peek().is_some(),
            "{len} bytes {way} {address:x} were not announced: {:x?}",
            self.allowed
        );
        within.find_map(|allowed| {
            let (descriptor, _) = allowed.ring?;
            let whole = (address - allowed.memory.address).is_multiple_of(descriptor.bytes.into());
            (whole && len == descriptor.bytes as usize).then_some(allowed.ring)?
        })
    }
}

impl Dma for Bus {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let ring = self.judge(address, buffer.len(), false);
        for (byte, at) in buffer.iter_mut().zip(address..) {
            *byte = self.bytes.get(&at).copied().unwrap_or(0);
        }
        if let Some((descriptor, least)) = ring
            && let Some(named) = descriptor.buffer(buffer)
        {
            let memory = Memory { bytes: named.bytes.max(least), ..named };
            self.allowed.push(Allowed { memory, ring: None });
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
pub trait Card: Clone {
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

    /// The memory that a transfer may reach now.
    fn allow(&mut self, start: &'static Start, turn: u8) {
        let memory = start.place.memory(turn, &mut |id, n| self.card.register(id, n));
        let fills = matches!(start.transfer, Transfer::Fill);
        let ring = match start.place {
            Place::Ring { descriptor, .. } => Some((descriptor, if fills { self.card.buffer() } else { 0 })),
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
        let events: Vec<Seen> = named(C::MODEL, page, offset, width, value)
            .map(|(id, value)| Seen::WriteWord(id, value))
            .collect();
        for event in events {
            starts.extend(self.tracker.starts(C::MODEL, event));
            self.tracker.step(C::MODEL, event);
        }
        self.announced += starts.len();
        // A dump is made within the write, to an address that is in it; the card as it will be tells where.
        let mut after = self.card.clone();
        after.write(offset, width, value, &mut Anything);
        let before = std::mem::replace(&mut self.card, after);
        self.bus.allowed.clear();
        starts.iter().for_each(|start| self.allow(start, turn));
        self.allow_fills();
        self.card = before;
        self.card.write(offset, width, value, &mut self.bus);
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
        self.bus.allowed.clear();
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

/// The range holds all of a transfer.
fn holds(memory: Memory, address: u64, len: usize) -> bool {
    let into = address.checked_sub(memory.address);
    into.and_then(|into| into.checked_add(len as u64)).is_some_and(|end| end <= memory.bytes)
}

/// Memory that takes and gives nothing, for trying a write.
struct Anything;

impl Dma for Anything {
    fn read(&mut self, _: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        buffer.fill(0);
        Ok(())
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DmaError> {
        Ok(())
    }
}
