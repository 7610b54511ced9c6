//! The 82540EM face of a VIF: a software card that its guest's stock driver drives, and whose doorbells the engine polls.
//!
//! Key type: [`CardFunction`], its guest's function. While the engine looks,
//! the guest has the registers of both rings as plain memory, and sends without an exit. Before the engine sleeps it takes the right to write those of
//! the transmit ring away, so that a doorbell exits and wakes it; with that exit the guest has it back.

use super::interface::Face;
use super::link::Link;
use super::reach::Reach;
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::devices::nic::{Mirror, identity, pieces};
use crate::devices::ports::HookedPorts;
use crate::domain::{Answer, Domain, PageHandler, Transfer, VirtualFunction};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use sluice_abi::config::NicModel;
use sluice_emulated::{Direct, PolledNic, Register, describe};
use sluice_memory::Gpa;
use sluice_nic::dma::{Dma, DmaError};
use sluice_nic::e1000::{Reception, Transmission};
use sluice_nic::{Budget, HEAD};
use sluice_platform::pci::{BarAddresses, BarKind, BuildError, Builder, ConfigEffect, Function};
use sluice_vif::{Card, Packet};

/// The card's BARs: registers, and ports that do nothing.
const REGISTERS: u8 = 0;
const PORTS: u8 = 1;

/// What a call of an engine's does for a card: bytes and descriptors. Bytes that a descriptor counts for.
const MOST_BYTES: usize = 16 * 1024;
const MOST_STEPS: usize = 64;
const PER_STEP: usize = 64;

/// Where the BARs answer.
struct Bars {
    /// Guest-physical address of the registers to begin with, and now.
    initial: u64,
    at: Option<u64>,
    ports: HookedPorts,
    /// What is direct of the registers.
    direct: Direct,
}

struct State {
    nic: PolledNic,
    /// The guest lets its card master the bus.
    master: bool,
    /// The guest has switched the line off.
    silent: bool,
    /// Level of the line, as the guest's interrupt controller knows it.
    line: bool,
    /// The engine looks what the guest sends, whose doorbells do not exit.
    looks: bool,
    /// Nothing is behind the card any more.
    gone: bool,
}

/// A guest's function of an interface.
pub struct CardFunction {
    link: Arc<Link>,
    guest: Guest,
    /// Itself, for the engine.
    this: Weak<Self>,
    mirror: Mirror,
    /// The lock is held until the domain's tables say the same.
    bars: SpinLock<Bars>,
    state: SpinLock<State>,
}

/// A guest's memory as its card reaches it: not before the guest lets it master the bus.
struct Bus<'a>(Option<&'a Domain>);

impl Dma for Bus<'_> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.ok_or(DmaError)?.read(Gpa::new(address), buffer).map_err(|_| DmaError)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.ok_or(DmaError)?.write(Gpa::new(address), bytes).map_err(|_| DmaError)
    }
}

impl State {
    fn bus<'a>(&self, memory: &'a Reach) -> Bus<'a> {
        Bus(memory.guest().filter(|_| self.master))
    }
}

impl CardFunction {
    /// The guest's function of an interface.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn new(
        link: Arc<Link>,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        let mirror = Mirror::new(guest.id, sluice_emulated::PAGES).ok_or(AttachError::OutOfMemory)?;
        let initial = addresses.take(registers_size());
        let ports = HookedPorts::new(sluice_nic::e1000::PORTS, guest.slot, addresses);
        let (initial, ports) = initial.zip(ports).ok_or(AttachError::NoRoom)?;
        let nic = PolledNic::new(link.mac(), Box::new(mirror.clone()));
        let bars = Bars { initial, at: None, ports, direct: PolledNic::direct(true) };
        let state = State { nic, master: false, silent: false, line: false, looks: true, gone: false };
        Ok(Arc::new_cyclic(|this| Self {
            link,
            guest,
            this: this.clone(),
            mirror,
            bars: SpinLock::new(Rank::Function, bars),
            state: SpinLock::new(Rank::Face, state),
        }))
    }

    /// Brings the line up to date with the card. The caller holds the lock of the state.
    fn settle(&self, state: &mut State, now: u64) {
        state.nic.settle(now);
        let line = state.nic.line() && !state.silent;
        if line != state.line
            && let Some((domain, _)) = self.guest.domain()
        {
            state.line = line;
            if line {
                self.link.count_signal();
            }
            domain.set_line(self.guest.pin, line);
        }
    }

    /// The doorbells of what the guest sends exit from now on, or do not. The caller holds the lock of the state.
    fn look(&self, state: &mut State, looks: bool) {
        if state.looks != looks && !state.gone {
            state.looks = looks;
            self.show(PolledNic::direct(looks));
        }
    }

    /// From now on the guest has this of the mirror as memory, and nothing else when this returns.
    fn show(&self, direct: Direct) {
        let Some((domain, _)) = self.guest.domain() else { return };
        let mut bars = self.bars.lock();
        let old = core::mem::replace(&mut bars.direct, direct);
        let Some(at) = bars.at else { return };
        for (piece, old) in pieces(registers_size(), at, &bars.direct).iter().zip(old) {
            if piece.direct != old && !domain.redirect_device(self.handler(), self.mirror.hpa(), piece) {
                log::warn!("domain {}: no memory to show registers in", domain.name());
            }
        }
    }

    fn handler(&self) -> PageHandler {
        PageHandler::Socket { slot: self.guest.slot, bar: REGISTERS }
    }

    /// An access of up to four bytes.
    fn access(&self, register: Register, transfer: Transfer<'_>) {
        let mut state = self.state.lock();
        let before = state.nic.deadline();
        let now = tsc::uptime_ns();
        match transfer {
            Transfer::Read(into) => state.nic.read(register, into, now),
            Transfer::Write(from) => state.nic.write(register, from, now),
        }
        self.settle(&mut state, now);
        // The engine learns of what it did not look for.
        let has_more = state.nic.is_sending() || state.nic.deadline() != before;
        if !state.looks && state.nic.is_sending() {
            self.link.count_kick();
            self.look(&mut state, true);
        }
        drop(state);
        if has_more {
            self.link.interface().ring();
        }
    }
}

/// Bytes of the registers' BAR.
fn registers_size() -> u64 {
    sluice_nic::e1000::WINDOW.into()
}

impl VirtualFunction for CardFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let bars = self.bars.lock();
        let kind = BarKind::Mem32 { prefetchable: false };
        Builder::new(identity(&describe(NicModel::E1000)))
            .interrupt(1, self.guest.pin)
            .bar(REGISTERS, kind, registers_size(), bars.initial)
            .bar(PORTS, BarKind::Io, sluice_nic::e1000::PORTS.into(), bars.ports.initial())
            .build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        if let Some(this) = self.this.upgrade() {
            self.link.comes(domain, Face::Card(this));
        }
    }

    fn detach(&self) {
        self.link.interface().goes();
        let mut state = self.state.lock();
        state.gone = true;
        // The mirror goes with the function.
        self.show(Direct::default());
    }

    fn configured(&self, domain: &Domain, _: usize, _: ConfigEffect) {
        let slot = self.guest.slot;
        let mut state = self.state.lock();
        let mut bars = self.bars.lock();
        let platform = domain.platform.lock();
        let enabled =
            |index: u8| platform.pci.bar(slot, index).filter(|bar| bar.enabled).map(|bar| bar.address);
        let (registers, ports) = (enabled(REGISTERS), enabled(PORTS));
        let command = platform.pci.command(slot);
        drop(platform);
        // First away with what moves, so that two BARs can change places.
        bars.ports.leave(domain, ports);
        if let Some(at) = bars.at.take_if(|at| Some(*at) != registers) {
            domain.unmap_device(&pieces(registers_size(), at, &Direct::default()));
        }
        bars.ports.settle(domain, slot, ports);
        if let (None, Some(at)) = (bars.at, registers) {
            let shown = domain.map_device(
                self.handler(),
                self.mirror.hpa(),
                &pieces(registers_size(), at, &bars.direct),
            );
            bars.at = shown.then_some(at);
        }
        drop(bars);
        (state.master, state.silent) =
            (command & pci::COMMAND_MASTER != 0, command & pci::COMMAND_NO_INTX != 0);
        self.settle(&mut state, tsc::uptime_ns());
    }

    fn port(&self, _: &Domain, _: u16, _: u8, transfer: Transfer<'_>) -> Answer {
        // As QEMU's card has it.
        if let Transfer::Read(into) = transfer {
            into.fill(0);
        }
        Answer::Done
    }

    fn memory(&self, _: &Domain, _: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let offset = self.bars.lock().at.and_then(|at| gpa.as_u64().checked_sub(at));
        let Some(offset) = offset.filter(|offset| *offset < registers_size()) else { return Answer::Refused };
        let mut done = 0;
        while done < transfer.len() {
            let left = transfer.len() - done;
            let width = [4, 2, 1].into_iter().find(|width| *width <= left).unwrap_or(1);
            let at = Register { io: false, offset: (offset as u32).wrapping_add(done as u32) };
            self.access(at, transfer.part(done..done + width));
            done += width;
        }
        // Interrupts of this guest's own are posted to it, so that its processor looks before it goes on.
        Answer::Done
    }
}

impl Card<Reach> for CardFunction {
    fn is_sending(&self) -> bool {
        self.state.lock().nic.is_sending()
    }

    fn peek(&self, memory: &Reach) -> Option<[u8; HEAD]> {
        let mut state = self.state.lock();
        let mut bus = state.bus(memory);
        state.nic.peek(&mut bus)
    }

    fn next_packet(&self, memory: &Reach, longest: u32) -> Option<Packet> {
        let mut state = self.state.lock();
        let mut bus = state.bus(memory);
        let whole = state.nic.next_packet(&mut bus, longest as usize)?;
        Packet::new(whole.len(), whole.offload())
    }

    fn take_packet(
        &self,
        memory: &Reach,
        into: &mut [u8],
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        let mut bus = state.bus(memory);
        state.nic.take_packet(&mut bus, into, accept)
    }

    fn send(&self, memory: &Reach, into: &mut [u8], work: &mut u32) -> Transmission {
        let mut state = self.state.lock();
        let mut bus = state.bus(memory);
        let mut budget = Budget::new(MOST_BYTES, MOST_STEPS);
        let sent = state.nic.send(&mut bus, into, &mut budget);
        let (bytes, steps) = budget.left();
        *work += (MOST_BYTES - bytes + PER_STEP * (MOST_STEPS - steps)) as u32;
        sent
    }

    fn receive(&self, memory: &Reach, frame: &[u8]) -> Reception {
        let mut state = self.state.lock();
        let mut bus = state.bus(memory);
        state.nic.offer(&mut bus, frame, tsc::uptime_ns())
    }

    fn settle(&self, now: u64) -> Option<u64> {
        let mut state = self.state.lock();
        self.settle(&mut state, now);
        state.nic.deadline()
    }

    fn listen(&self, wanted: bool) {
        if wanted {
            // It has it back when it exits to send.
            self.look(&mut self.state.lock(), false);
        }
    }
}
