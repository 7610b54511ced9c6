//! The function by which a controller domain passes the signals of a network on. The layout is [`sluice_hypercall::signals`]'s.
//!
//! Its words are memory of the hypervisor's that holds nothing else, and are never read here: the controller may write there what it likes. What it
//! writes to the port is checked against what it owes ([`Relay`]).

use super::Network;
use super::bars::{Bars, Layout};
use super::network;
use super::relay::{Controller, Relay};
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::devices::messages::Messages;
use crate::devices::nic::Mirror;
use crate::domain::{Answer, Domain, Transfer, VirtualFunction};
use crate::mm::Direct;
use crate::pci;
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use sluice_hypercall::signals::{
    SIGNALS_BAR, SIGNALS_BAR_SIZE, SIGNALS_CLASS, SIGNALS_DEVICE, SIGNALS_DOORBELL_BAR,
    SIGNALS_DOORBELL_SIZE, SIGNALS_MEMORY, SIGNALS_MSIX_PENDING, SIGNALS_MSIX_TABLE, SIGNALS_RECEIVED,
    SIGNALS_SENT, SIGNALS_VECTORS, SIGNALS_VERSION_VALUE,
};
use sluice_memory::{Gpa, PAGE_SIZE};
use sluice_platform::pci::{BarAddresses, BuildError, ConfigEffect, Function};
use sluice_traps::Direction;
use sluice_vif::{RECEIVE, VifSet};

/// What the function is called where a domain cannot have it.
pub const CONTROLLER: &str = "signals";

/// Its BARs. The words are memory to the guest.
static LAYOUT: Layout = Layout {
    device: SIGNALS_DEVICE,
    class: SIGNALS_CLASS,
    version: SIGNALS_VERSION_VALUE as u8,
    memory: SIGNALS_BAR,
    doorbell: SIGNALS_DOORBELL_BAR,
    ports: SIGNALS_DOORBELL_SIZE,
    parts: &[
        (0..SIGNALS_MEMORY, Direction::READ.union(Direction::WRITE)),
        (SIGNALS_MEMORY..SIGNALS_BAR_SIZE as u32, Direction::empty()),
    ],
    vectors: SIGNALS_VECTORS,
    table: SIGNALS_MSIX_TABLE,
    pending: SIGNALS_MSIX_PENDING,
};

struct State {
    messages: Messages,
    /// Its driver takes signals.
    works: bool,
    /// Nothing is behind the function any more.
    gone: bool,
}

/// A controller's function.
struct ControllerFunction {
    network: Arc<Network>,
    guest: Guest,
    /// Itself, for engines.
    this: Weak<Self>,
    words: Mirror,
    /// The lock is held until the domain's tables say the same.
    bars: SpinLock<Bars>,
    state: SpinLock<State>,
}

/// The function of the controller of the network at a place of the configuration.
///
/// # Errors
/// There is no such network, or no room for the function.
pub fn controller(
    index: u16,
    guest: Guest,
    addresses: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    let network = network(index).ok_or(AttachError::NoSuchDevice)?;
    let words = Mirror::new(guest.id, SIGNALS_MEMORY as usize / PAGE_SIZE as usize);
    let words = words.ok_or(AttachError::OutOfMemory)?;
    let bars = Bars::new(&LAYOUT, &guest, addresses)?;
    let state = State { messages: Messages::new(SIGNALS_VECTORS), works: false, gone: false };
    Ok(Arc::new_cyclic(|this| ControllerFunction {
        network,
        guest,
        this: this.clone(),
        words,
        bars: SpinLock::new(Rank::Function, bars),
        state: SpinLock::new(Rank::Face, state),
    }))
}

impl ControllerFunction {
    fn relay(&self) -> Option<&Relay> {
        self.network.relay()
    }

    /// Its driver may have begun to take signals, or have ended.
    fn refresh(&self) {
        let who = || {
            let state = self.state.lock();
            let works = state.works && !state.gone;
            works.then(|| -> Weak<dyn Controller> { self.this.clone() })
        };
        self.relay().into_iter().for_each(|relay| relay.refresh(who));
    }
}

impl Controller for ControllerFunction {
    fn tell(&self, queue: u16, vifs: VifSet) {
        let Some((domain, _)) = self.guest.domain() else { return };
        let word = if queue == RECEIVE { SIGNALS_RECEIVED } else { SIGNALS_SENT };
        if let Some(at) = self.words.at(word.into(), 8) {
            Direct.set_bits(at, vifs.bits());
        }
        // Not only if the word was empty: what a word holds is the controller's.
        let message = self.state.lock().messages.raise(0);
        if let Some(message) = message {
            domain.deliver(&message);
        }
    }
}

impl VirtualFunction for ControllerFunction {
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
    }

    fn detach(&self) {
        if core::mem::replace(&mut self.state.lock().gone, true) {
            return;
        }
        self.refresh();
        // The words go with the function.
        let bars = self.bars.lock();
        if let Some((domain, _)) = self.guest.domain() {
            bars.hide(&domain, self.guest.slot, self.words.hpa());
        }
    }

    fn configured(&self, domain: &Domain, _: usize, _: ConfigEffect) {
        let slot = self.guest.slot;
        let gone = self.state.lock().gone;
        self.bars.lock().settle(domain, slot, self.words.hpa(), gone);
        let mut state = self.state.lock();
        // Read here, so that what the guest wrote last is what holds.
        let platform = domain.platform.lock();
        let capability = platform.pci.msix(slot);
        let masters = platform.pci.command(slot) & pci::COMMAND_MASTER != 0;
        drop(platform);
        state.messages.configure(domain, capability);
        state.works = masters && state.messages.are_enabled();
        drop(state);
        self.refresh();
    }

    /// Signals are to be passed on.
    fn port(&self, _: &Domain, _: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        match transfer {
            Transfer::Read(into) => into.fill(0),
            Transfer::Write(bytes) if width == 4 => {
                for word in bytes.as_chunks().0 {
                    self.relay().into_iter().for_each(|relay| relay.pass(u32::from_le_bytes(*word)));
                }
            }
            Transfer::Write(_) => {}
        }
        Answer::Done
    }

    fn memory(&self, domain: &Domain, _: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let Some(offset) = self.bars.lock().offset(gpa) else { return Answer::Refused };
        let Some(entry) = offset.checked_sub(SIGNALS_MSIX_TABLE) else {
            // The words, which exit when nothing is behind the function any more.
            if let Transfer::Read(into) = &mut transfer {
                into.fill(0);
            }
            return Answer::Done;
        };
        let pending = SIGNALS_MSIX_PENDING - SIGNALS_MSIX_TABLE;
        self.state.lock().messages.access(domain, entry, pending, transfer);
        Answer::Attend
    }
}
