//! Sockets: the slots of a guest's bus where functions come and go while it runs.
//!
//! The guest's system learns of both by the registers of [`sluice_platform::hotplug`]. A function in a socket is called as any other is, but
//! has no work of its own, and its line says at all times what it should: [`VirtualFunction::end_of_interrupt`], [`VirtualFunction::resume`]
//! and [`VirtualFunction::halted`] are not called, so that sockets cost nothing where they are not used.

use super::{Answer, Domain, Transfer, VirtualFunction, attention, fill};
use crate::sync::{Rank, SpinLock};
use alloc::sync::Arc;
use sluice_platform::hotplug;
use sluice_platform::pci::{BuildError, ConfigEffect};

/// A slot, and what is in it. The lock is held while that is looked up or changed, and not while it is called.
pub struct Socket(SpinLock<Option<Arc<dyn VirtualFunction>>>);

impl Socket {
    /// An empty one.
    pub fn new() -> Self {
        Self(SpinLock::new(Rank::Socket, None))
    }

    fn take(&self) -> Option<Arc<dyn VirtualFunction>> {
        self.0.lock().take()
    }
}

impl Domain {
    /// What is in the socket of a slot.
    pub fn plugged(&self, slot: u8) -> Option<Arc<dyn VirtualFunction>> {
        self.sockets.get(usize::from(slot))?.0.lock().clone()
    }

    /// Puts a function into the socket of its slot. A guest that runs is told by [`Self::announce_plugged`].
    ///
    /// # Errors
    /// There is something in the slot, or the bus cannot show the function as it is.
    pub fn plug(self: &Arc<Self>, function: Arc<dyn VirtualFunction>) -> Result<(), BuildError> {
        let slot = function.slot();
        let socket = self.sockets.get(usize::from(slot)).ok_or(BuildError::Slot(slot))?;
        let shown = function.describe()?;
        self.platform.lock().pci.insert(slot, shown)?;
        *socket.0.lock() = Some(function.clone());
        function.attached(self, slot.into());
        // What the guest configured before this is in force now.
        function.configured(self, slot.into(), ConfigEffect::None);
        Ok(())
    }

    /// Takes what is behind the function in a socket: the function stays until the guest lets go of it, and does nothing any more.
    pub fn deaden(&self, slot: u8) {
        if let Some(function) = self.plugged(slot) {
            function.detach();
            self.wake_waiting();
        }
    }

    /// Lets processors look again that wait for an answer of a function.
    fn wake_waiting(&self) {
        self.vcpus.iter().for_each(|vcpu| vcpu.device_is_here());
    }

    /// Takes away what is in a socket, whether the guest has let go of it or not: when this returns, nobody answers there any more.
    pub fn unplug(&self, slot: u8) {
        let mut platform = self.platform.lock();
        platform.pci.remove(slot);
        platform.hotplug.forget(slot);
        drop(platform);
        self.leave_bus(slot);
        let Some(function) = self.sockets.get(usize::from(slot)).and_then(Socket::take) else { return };
        function.detach();
        self.wake_waiting();
    }

    /// The bus shows a function no more: nor does it answer at its addresses, from now on.
    fn leave_bus(&self, slot: u8) {
        if let Some(function) = self.plugged(slot) {
            function.configured(self, slot.into(), ConfigEffect::BarsChanged(slot));
        }
    }

    /// Empties all sockets, as the domain has ended.
    pub(super) fn unplug_all(&self) {
        self.sockets.iter().filter_map(Socket::take).for_each(|function| function.detach());
    }

    /// Tells the guest that something has come to a slot.
    pub fn announce_plugged(&self, slot: u8) {
        self.platform.lock().hotplug.come(slot);
        self.pulse(hotplug::GSI);
    }

    /// Asks the guest to let go of what is in a slot; [`Self::take_ejected`] says when it has.
    pub fn ask_for(&self, slot: u8) {
        self.platform.lock().hotplug.ask(slot);
        self.pulse(hotplug::GSI);
    }

    /// A slot whose function the guest was asked for and has let go of; it is named once.
    pub fn take_ejected(&self) -> Option<u8> {
        self.platform.lock().hotplug.take_ejected()
    }

    /// An access to the registers of [`hotplug`]. They know 32 bits only.
    #[cold]
    pub(super) fn hotplug_port(&self, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        if width != 4 {
            fill(transfer, 0);
            return Answer::Done;
        }
        let mut platform = self.platform.lock();
        match transfer {
            Transfer::Read(buffer) => {
                for word in buffer.as_chunks_mut().0 {
                    *word = platform.hotplug.read(port).to_le_bytes();
                }
                Answer::Done
            }
            Transfer::Write(bytes) => {
                let mut ejected = 0;
                for word in bytes.as_chunks().0 {
                    ejected |= platform.hotplug.write(port, u32::from_le_bytes(*word));
                }
                // The guest may look at once whether the slot is empty, and give its addresses to whatever comes next.
                let slots = (0..32).filter(|slot| ejected & 1 << slot != 0);
                slots.clone().for_each(|slot| platform.pci.remove(slot));
                drop(platform);
                slots.for_each(|slot| self.leave_bus(slot));
                if ejected != 0 {
                    attention::ask();
                }
                Answer::Attend
            }
        }
    }
}
