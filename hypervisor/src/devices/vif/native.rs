//! The native face of a VIF: rings without addresses in memory that the engine and the driver share, and a pool of pages that the driver has handed over.
//!
//! Key type: [`NativeFunction`], its guest's function. The layout is [`sluice_hypercall::vif`]'s. The engine's pages of the structure can only be read by
//! the guest; the driver's are memory to it. What exits are commands, and the doorbell, which is rung only while the engine does not look.

use super::Member;
use super::bars::{Bars, Layout};
use super::interface::Face;
use super::link::Link;
use super::pool::Pool;
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::devices::messages::Messages;
use crate::domain::{Answer, Domain, Transfer, VirtualFunction};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use sluice_hypercall::vif::{
    VIF_BAR, VIF_BAR_SIZE, VIF_BROKEN, VIF_CLASS, VIF_COMMAND, VIF_COMMAND_POOL, VIF_COMMAND_START,
    VIF_COMMAND_STOP, VIF_DEVICE, VIF_DOORBELL_BAR, VIF_DOORBELL_SIZE, VIF_DOORBELL_WANTED, VIF_MAC,
    VIF_MAGIC, VIF_MAGIC_VALUE, VIF_MSIX_PENDING, VIF_MSIX_TABLE, VIF_MTU, VIF_OFFERED, VIF_POOL_COUNT,
    VIF_POOL_LIST, VIF_POOL_LIST_HIGH, VIF_RECEIVED, VIF_RECEIVED_RING, VIF_RECEIVED_VECTOR, VIF_SENT,
    VIF_SENT_VECTOR, VIF_STRUCTURE, VIF_TO_SEND, VIF_VECTORS, VIF_VERSION, VIF_VERSION_VALUE,
    VIF_WANTS_RECEIVED, VIF_WANTS_SENT,
};
use sluice_memory::Gpa;
use sluice_platform::pci::{BarAddresses, BuildError, ConfigEffect, Function};
use sluice_traps::Direction;
use sluice_vif::{Active, RECEIVE};

/// Its BARs, and what of the structure the guest can do without an exit.
static LAYOUT: Layout = Layout {
    device: VIF_DEVICE,
    class: VIF_CLASS,
    version: VIF_VERSION_VALUE as u8,
    memory: VIF_BAR,
    doorbell: VIF_DOORBELL_BAR,
    ports: VIF_DOORBELL_SIZE,
    parts: &[
        (0..VIF_TO_SEND, Direction::READ),
        (VIF_TO_SEND..VIF_RECEIVED_RING, Direction::READ.union(Direction::WRITE)),
        (VIF_RECEIVED_RING..VIF_STRUCTURE, Direction::READ),
        (VIF_STRUCTURE..VIF_BAR_SIZE as u32, Direction::empty()),
    ],
    vectors: VIF_VECTORS,
    table: VIF_MSIX_TABLE,
    pending: VIF_MSIX_PENDING,
};

/// What is zero when a driver starts.
const WORDS: [u32; 8] = [
    VIF_SENT,
    VIF_RECEIVED,
    VIF_DOORBELL_WANTED,
    VIF_BROKEN,
    VIF_TO_SEND,
    VIF_OFFERED,
    VIF_WANTS_SENT,
    VIF_WANTS_RECEIVED,
];

/// What its driver is at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not started, has stopped, or broke the rules.
    Idle,
    /// One of its processors hands pages over.
    HandsOver,
    /// It has started.
    Runs,
}

struct State {
    messages: Messages,
    /// Registers of the guest's.
    list: u64,
    count: u32,
    /// The last command was refused.
    refused: bool,
    phase: Phase,
    /// The log has said that the driver breaks rules.
    complained: bool,
    /// Nothing is behind the function any more.
    gone: bool,
}

/// A guest's function of an interface.
pub struct NativeFunction {
    link: Arc<Link>,
    guest: Guest,
    /// Itself, for the engine.
    this: Weak<Self>,
    pool: Arc<Pool>,
    /// The lock is held until the domain's tables say the same.
    bars: SpinLock<Bars>,
    state: SpinLock<State>,
}

impl NativeFunction {
    /// The guest's function of an interface.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn new(
        link: Arc<Link>,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        let pool = Arc::new(Pool::new(guest.id).ok_or(AttachError::OutOfMemory)?);
        let bars = Bars::new(&LAYOUT, &guest, addresses)?;
        let state = State {
            messages: Messages::new(VIF_VECTORS),
            list: 0,
            count: 0,
            refused: false,
            phase: Phase::Idle,
            complained: false,
            gone: false,
        };
        let function = Arc::new_cyclic(|this| Self {
            link,
            guest,
            this: this.clone(),
            pool,
            bars: SpinLock::new(Rank::Function, bars),
            state: SpinLock::new(Rank::Face, state),
        });
        function.set(VIF_MAGIC, &VIF_MAGIC_VALUE.to_le_bytes());
        function.set(VIF_VERSION, &VIF_VERSION_VALUE.to_le_bytes());
        function.set(VIF_MAC, &function.link.mac());
        function.set(VIF_MTU, &function.link.mtu().to_le_bytes());
        Ok(function)
    }

    /// Writes what the driver can only read.
    fn set(&self, offset: u32, bytes: &[u8]) {
        self.pool.set(offset, bytes);
    }

    /// Goes on from one phase to the next. False: its driver is at something else, or there is nothing behind it.
    fn turn(&self, from: Phase, to: Phase) -> bool {
        let mut state = self.state.lock();
        let turns = state.phase == from && !state.gone;
        if turns {
            state.phase = to;
        }
        turns
    }

    /// Carries out a command. False: it makes no sense now.
    fn command(&self, domain: &Domain, command: u32) -> bool {
        match command {
            VIF_COMMAND_STOP => {
                let interface = self.link.interface();
                let mut control = interface.lock();
                self.turn(Phase::Runs, Phase::Idle);
                interface.activate(&mut control, None)
            }
            VIF_COMMAND_POOL if self.turn(Phase::Idle, Phase::HandsOver) => {
                let State { list, count, .. } = *self.state.lock();
                // Who broke the rules may be an engine's yet. The list is read afterwards, so that engines do not wait for it.
                let interface = self.link.interface();
                interface.activate(&mut interface.lock(), None);
                let taken = self.pool.fill(domain, list, count).is_some();
                self.turn(Phase::HandsOver, Phase::Idle);
                taken
            }
            VIF_COMMAND_START => {
                // No engine does anything meanwhile, nor another processor's stop.
                let interface = self.link.interface();
                let mut control = interface.lock();
                if !self.masters(domain) || !self.turn(Phase::Idle, Phase::Runs) {
                    return false;
                }
                WORDS.iter().for_each(|word| self.set(*word, &[0; 2]));
                let started = interface.activate(&mut control, Some(Active::NATIVE));
                if !started {
                    self.turn(Phase::Runs, Phase::Idle);
                }
                started
            }
            _ => false,
        }
    }

    /// Whether the guest lets the function master the bus.
    fn masters(&self, domain: &Domain) -> bool {
        domain.platform.lock().pci.command(self.guest.slot) & pci::COMMAND_MASTER != 0
    }

    fn read_register(&self, offset: u32) -> u32 {
        let state = self.state.lock();
        match offset {
            VIF_COMMAND => state.refused.into(),
            VIF_POOL_LIST => state.list as u32,
            VIF_POOL_LIST_HIGH => (state.list >> 32) as u32,
            VIF_POOL_COUNT => state.count,
            _ => 0,
        }
    }

    fn write_register(&self, domain: &Domain, offset: u32, value: u32) {
        if offset == VIF_COMMAND {
            let refused = !self.command(domain, value);
            self.state.lock().refused = refused;
            return;
        }
        let mut state = self.state.lock();
        let word = u64::from(value);
        match offset {
            VIF_POOL_LIST => state.list = state.list & !0xffff_ffff | word,
            VIF_POOL_LIST_HIGH => state.list = state.list & 0xffff_ffff | word << 32,
            VIF_POOL_COUNT => state.count = value,
            _ => {}
        }
    }

    /// Tells the driver something.
    fn signal(&self, vector: u16) {
        let Some((domain, _)) = self.guest.domain() else { return };
        let message = self.state.lock().messages.raise(vector);
        self.link.count_signal();
        if let Some(message) = message {
            domain.deliver(&message);
        }
    }
}

impl Member for NativeFunction {
    fn used(&self, queue: u16) {
        self.signal(if queue == RECEIVE { VIF_RECEIVED_VECTOR } else { VIF_SENT_VECTOR });
    }

    fn broke(&self) {
        self.turn(Phase::Runs, Phase::Idle);
        let mut state = self.state.lock();
        let is_news = !core::mem::replace(&mut state.complained, true);
        drop(state);
        if is_news {
            log::warn!(
                "device {}: its driver breaks the rules, and gets no frames until it starts anew",
                self.link.name()
            );
        }
        self.set(VIF_BROKEN, &1u16.to_le_bytes());
        self.signal(VIF_SENT_VECTOR);
    }
}

impl VirtualFunction for NativeFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        self.bars.lock().describe()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        self.link.comes(domain, Face::Native(self.this.clone(), self.pool.clone()));
    }

    fn detach(&self) {
        self.link.interface().goes();
        let mut state = self.state.lock();
        state.gone = true;
        drop(state);
        // The structure goes with the function.
        let bars = self.bars.lock();
        if let Some((domain, _)) = self.guest.domain() {
            bars.hide(&domain, self.guest.slot, self.pool.structure());
        }
    }

    fn configured(&self, domain: &Domain, _: usize, _: ConfigEffect) {
        let slot = self.guest.slot;
        let gone = self.state.lock().gone;
        self.bars.lock().settle(domain, slot, self.pool.structure(), gone);
        if !self.masters(domain) && self.state.lock().phase == Phase::Runs {
            // A function that may not master the bus reaches no memory.
            self.command(domain, VIF_COMMAND_STOP);
        }
        let mut state = self.state.lock();
        // Read here, so that what the guest wrote last is what holds.
        let capability = domain.platform.lock().pci.msix(slot);
        state.messages.configure(domain, capability);
    }

    /// The driver has something to send, and the engine did not look.
    fn port(&self, _: &Domain, _: u16, _: u8, transfer: Transfer<'_>) -> Answer {
        match transfer {
            Transfer::Read(into) => into.fill(0),
            Transfer::Write(_) => {
                self.link.count_kick();
                self.link.interface().ring();
            }
        }
        Answer::Done
    }

    fn memory(&self, domain: &Domain, _: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let Some(offset) = self.bars.lock().offset(gpa) else { return Answer::Refused };
        if let Some(entry) = offset.checked_sub(VIF_MSIX_TABLE) {
            let pending = VIF_MSIX_PENDING - VIF_MSIX_TABLE;
            self.state.lock().messages.access(domain, entry, pending, transfer);
            return Answer::Attend;
        }
        // Registers know accesses of four bytes: a wider one is several, the lowest first.
        for start in (0..transfer.len()).step_by(4) {
            let register = offset.wrapping_add(start as u32);
            match transfer.part(start..transfer.len().min(start + 4)) {
                Transfer::Read(into) => {
                    let value = self.read_register(register).to_le_bytes();
                    into.iter_mut().zip(value).for_each(|(to, from)| *to = from);
                }
                Transfer::Write(bytes) => {
                    if let Some(word) = bytes.first_chunk() {
                        self.write_register(domain, register, u32::from_le_bytes(*word));
                    }
                }
            }
        }
        Answer::Done
    }
}
