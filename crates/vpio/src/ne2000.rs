//! The NE2000 as the monitor runs it: contexts of clients, the two regimes, receive isolation.
//!
//! A client's *context* is a software card ([`sluice_nic::Ne2000`]) in hypervisor memory. While a
//! client is off-line (stopped, in monitor mode or in loopback) it is served from its context alone.
//! While one client has the card undivided ([`Regime::Sole`]) the hardware is its card and the
//! context only shadows what the hardware will not give back. While several share
//! ([`Regime::Shared`]) the context is the card, and the hardware lends the holder its command
//! register, remote DMA registers and transmitter.
//!
//! What lies where in card memory while shared: pages 0x40-0x7f mirror, where needed, what the
//! holder sends; pages 0x80-0xbf are the monitor's receive ring. The data port is hooked, so neither
//! can be read by a client.

mod backlog;
mod hardware;
mod quick;
mod receive;
mod regime;
mod send;
mod serve;

use alloc::boxed::Box;
use alloc::vec;
use core::array;

use sluice_nic::Ne2000;
use sluice_nic::ne2000::registers::{Interrupt, Receive, SendStatus, TCR_LOOPBACK, port};

use crate::access::{ClientId, RawDevice};
use crate::counters::DeviceCounters;
use backlog::Backlog;
use send::Mirror;
use sluice_model::models::ne2000::{MODEL, id};
use sluice_model::{Check, RegisterId, Seen, Start, Tracker};
use sluice_uplink::ne2000::ring::Ring;

pub(crate) use hardware::CountingDevice;

/// Who uses the hardware, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Regime {
    /// Nobody; card stopped and scrubbed.
    Unused,
    /// One client, undivided.
    Sole(ClientId),
    /// Several; at most one holds it.
    Shared(Option<ClientId>),
}

bitflags::bitflags! {
    /// Registers of a context whose value was written past the monitor and cannot be read back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Unknown: u8 {
        const TPSR = 1;
        const TBCR0 = 2;
        const TBCR1 = 4;
    }
}

/// One client's card.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) card: Ne2000,
    backlog: Backlog,
    unknown: Unknown,
    /// What TPSR and TBCR name is in the hardware and may be sent without asking.
    vetted: bool,
    /// They name a frame for another client: the monitor carries it across when the client commands its transmission, and the
    /// hardware never sends it.
    crosses: bool,
    /// A transmission was asked for while reception was still off: on-line until stopped.
    engaged: bool,
    /// Times this client stopped the card for the others by a direct write.
    stops: u32,
    /// Sole holder: its card reports this error, which the client has not acknowledged.
    failing: Option<SendStatus>,
    pub(crate) tx_packets: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_dropped: u64,
}

/// After so many direct stops a client's command register is hooked for good.
const STOPS_FORGIVEN: u32 = 16;

impl Context {
    fn new(mac: [u8; 6]) -> Self {
        let mut context = Self {
            card: Ne2000::new(mac),
            backlog: Backlog::new(),
            unknown: Unknown::empty(),
            vetted: false,
            crosses: false,
            engaged: false,
            stops: 0,
            failing: None,
            tx_packets: 0,
            rx_packets: 0,
            rx_dropped: 0,
        };
        context.power_on();
        context
    }

    /// As after power-on. A real card starts with unknown configuration; here reception starts
    /// off, so that a driver that probes is not yet on-line.
    fn power_on(&mut self) {
        self.card.power_on();
        self.card.regs.rcr = Receive::MONITOR.bits();
        self.backlog.clear();
        self.unknown = Unknown::empty();
        self.vetted = false;
        self.engaged = false;
        self.failing = None;
    }

    /// The card says that a transmission went wrong.
    const fn fail(&mut self, how: SendStatus) {
        self.card.regs.tsr = how.bits();
        self.card.regs.isr |= Interrupt::SEND_ERROR.bits();
    }

    /// The client uses the network, so it needs the hardware.
    fn online(&self) -> bool {
        let regs = &self.card.regs;
        !regs.stopped()
            && regs.tcr & TCR_LOOPBACK == 0
            && (self.engaged || regs.rcr & Receive::MONITOR.bits() == 0)
    }

    /// Interrupts raised and not yet acknowledged that hardware cannot be made to raise again.
    const fn has_news(&self) -> bool {
        let lasting = Interrupt::DMA_DONE.union(Interrupt::RESET).bits();
        self.card.regs.isr & !lasting != 0
    }
}

/// The device.
#[derive(Debug)]
pub(crate) struct Device {
    contexts: [Option<Box<Context>>; ClientId::MAX],
    regime: Regime,
    ring: Ring,
    mirror: Mirror,
    scratch: Box<[u8]>,
    /// Sole holder's line: raised by the hardware, not yet ended by the guest.
    sole_line: bool,
    /// Register index by page and port: the model's table, unrolled.
    lookup: [[RegisterId; 32]; 4],
    /// Registers on which the check of a transmission depends, bit per index.
    send_inputs: u64,
    /// Which commands start a transfer.
    starts: [bool; 256],
    /// What the last access named.
    named: RegisterId,
    /// What decides lines and hooks may have changed.
    stirred: Stirred,
    pub(crate) counters: DeviceCounters,
}

/// What may have changed since the monitor last looked. Too much costs time, too little is a fault that the monitor's
/// debugging assertions find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stirred {
    /// Clients whose line may have another level, bit per client.
    pub(crate) lines: u8,
    /// Who holds the card, how, or what the holder may command.
    pub(crate) hooks: bool,
}

/// The transfers that a value of CMD starts, by the model. The edges that start some leave every state, so any state answers.
fn started(command: u8) -> impl Iterator<Item = &'static Start> {
    Tracker::unseen(&MODEL).starts(&MODEL, Seen::Write(id::CMD, command))
}

impl Device {
    pub(crate) fn new() -> Self {
        let ring = Ring::new(receive::RING_START, receive::RING_STOP);
        let find = |page, port| MODEL.find(port as u16, page as u8).unwrap_or(RegisterId(u8::MAX));
        let inputs = (0..MODEL.registers.len().min(64))
            .filter(|&index| MODEL.vetted_by(RegisterId(index as u8)).any(|check| check == Check::SendRange));
        Self {
            lookup: array::from_fn(|page| array::from_fn(|port| find(page, port))),
            send_inputs: inputs.fold(0, |mask, index| mask | 1 << index),
            starts: array::from_fn(|command| started(command as u8).next().is_some()),
            named: RegisterId(u8::MAX),
            contexts: array::from_fn(|_| None),
            regime: Regime::Unused,
            ring,
            mirror: Mirror::new(),
            scratch: vec![0; ring.bytes()].into_boxed_slice(),
            sole_line: false,
            stirred: Stirred::default(),
            counters: DeviceCounters::default(),
        }
    }

    /// The register an access names.
    fn register(&self, offset: u16, page: u8) -> RegisterId {
        let row = self.lookup.get(usize::from(page & 3));
        row.and_then(|row| row.get(usize::from(offset))).copied().unwrap_or(RegisterId(u8::MAX))
    }

    fn decides_send(&self, register: RegisterId) -> bool {
        register.0 < 64 && self.send_inputs & (1 << register.0) != 0
    }

    pub(crate) const fn regime(&self) -> Regime {
        self.regime
    }

    pub(crate) const fn holder(&self) -> Option<ClientId> {
        match self.regime {
            Regime::Unused => None,
            Regime::Sole(client) => Some(client),
            Regime::Shared(holder) => holder,
        }
    }

    pub(crate) fn context(&self, client: ClientId) -> Option<&Context> {
        self.contexts.get(client.index())?.as_deref()
    }

    /// For changing it, so that its line may change, too.
    fn context_mut(&mut self, client: ClientId) -> Option<&mut Context> {
        self.stirred.lines |= client.bit();
        self.contexts.get_mut(client.index())?.as_deref_mut()
    }

    /// Takes what may have changed since the last call.
    pub(crate) fn take_stirred(&mut self) -> Stirred {
        core::mem::take(&mut self.stirred)
    }

    /// Other hooks, and any line, may be called for now.
    const fn stir(&mut self) {
        self.stirred = Stirred { lines: u8::MAX, hooks: true };
    }

    const fn set_regime(&mut self, regime: Regime) {
        self.regime = regime;
        self.stir();
    }

    /// Makes a context in a free slot.
    pub(crate) fn attach(&mut self, mac: [u8; 6]) -> Option<ClientId> {
        let index = self.contexts.iter().position(Option::is_none)?;
        *self.contexts.get_mut(index)? = Some(Box::new(Context::new(mac)));
        ClientId::from_index(index)
    }

    /// Forgets a client that does not hold the card.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.stir();
        self.mirror.disown(client);
        if let Some(slot) = self.contexts.get_mut(client.index()) {
            *slot = None;
        }
    }

    pub(crate) fn has_address(&self, mac: [u8; 6]) -> bool {
        self.contexts.iter().flatten().any(|context| context.card.mac() == mac)
    }

    /// The client needs the hardware. A sole holder counts as on-line whatever it does.
    pub(crate) fn online(&self, client: ClientId) -> bool {
        self.regime == Regime::Sole(client) || self.context(client).is_some_and(Context::online)
    }

    /// How many clients need the hardware.
    pub(crate) fn users(&self) -> usize {
        let online = self.contexts.iter().flatten().filter(|context| context.online()).count();
        let Regime::Sole(holder) = self.regime else { return online };
        online + usize::from(!self.context(holder).is_some_and(Context::online))
    }

    /// The holder's commands must be seen: it may not send what its registers name, or it stopped
    /// the card too often.
    pub(crate) fn guards(&self, client: ClientId) -> bool {
        matches!(self.regime, Regime::Shared(_))
            && self.context(client).is_some_and(|context| !context.vetted || context.stops > STOPS_FORGIVEN)
    }

    /// Ports that tell a sole holder of an error that its hardware knows nothing of.
    pub(crate) fn telling(&self, client: ClientId) -> u32 {
        let failing = self.context(client).is_some_and(|context| context.failing.is_some());
        if failing { 1 << port::TPSR | 1 << port::ISR } else { 0 }
    }

    /// Level of a client's line.
    pub(crate) fn line(&self, client: ClientId) -> bool {
        match self.regime {
            Regime::Sole(holder) if holder == client => {
                let failing = |context: &Context| {
                    context.failing.is_some() && context.card.regs.imr & Interrupt::SEND_ERROR.bits() != 0
                };
                self.sole_line || self.context(client).is_some_and(failing)
            }
            _ => self.context(client).is_some_and(|context| context.card.interrupt()),
        }
    }

    pub(crate) const fn sole_line(&self) -> bool {
        self.sole_line
    }

    pub(crate) fn end_of_interrupt(&mut self, client: ClientId) {
        if self.regime == Regime::Sole(client) {
            self.sole_line = false;
            self.stirred.lines |= client.bit();
        }
    }

    /// The physical line is up.
    pub(crate) fn interrupt(&mut self, raw: &mut dyn RawDevice) {
        match self.regime {
            Regime::Unused => hardware::silence(raw),
            Regime::Sole(client) => {
                self.sole_line = true;
                self.stirred.lines |= client.bit();
            }
            Regime::Shared(_) => self.watch(raw),
        }
    }
}
