//! A card without DMA that guests have in turn, each with its native driver (`mode = "vpio"`, NE2000).
//!
//! Key types: [`Card`] (the physical card under its monitor), [`Ne2000Function`] (what a guest has of it). `sluice_vpio` decides,
//! this module carries out: it makes the accesses, keeps the domains' port tables in step with the hooks that the monitor wants,
//! moves interrupt lines, wakes who waits.

mod card;
mod ports;

pub use card::Card;

use super::guest::Guest;
use crate::domain::{Answer, Domain, PortHandler, Transfer, VirtualFunction};
use crate::sync::{Rank, SpinLock};
use alloc::sync::Arc;
use sluice_memory::Gpa;
use sluice_platform::pci::{BarKind, BuildError, Builder, ConfigEffect, Function};
use sluice_vpio::{ClientId, Outcome, Reaction, Refusal, RegisterAccess};

/// What a guest has of a card that it shares by turns.
pub struct Ne2000Function {
    card: Arc<Card>,
    /// The guest, to the monitor.
    client: ClientId,
    guest: Guest,
    ports: SpinLock<Ports>,
}

/// What decides which ports are direct. The lock around it is held until the domain's port table says the same, so that what
/// was decided last is what is installed last.
struct Ports {
    /// Offsets that must exit, by bit, as the monitor last said.
    hooks: u32,
    /// The guest has the function's ports switched on, at the address where they physically are.
    decoded: bool,
}

impl Ne2000Function {
    fn new(card: Arc<Card>, client: ClientId, guest: Guest) -> Self {
        let ports = SpinLock::new(Rank::Function, Ports { hooks: u32::MAX, decoded: false });
        Self { card, client, guest, ports }
    }

    /// The monitor wants other accesses to exit.
    fn set_hooks(&self, domain: &Domain, index: u8, hooks: u32) {
        let mut ports = self.ports.lock();
        ports.hooks = hooks;
        self.install(domain, index, &ports);
    }

    /// An access of one byte, if it can be served in a few steps.
    fn quick(&self, domain: &Domain, offset: u16, transfer: &mut Transfer<'_>) -> Option<Answer> {
        let written = match transfer {
            Transfer::Read([_]) => None,
            Transfer::Write([value]) => Some(*value),
            _ => return None,
        };
        let (value, after) = self.card.quick(self.client, domain, offset, written)?;
        if let Transfer::Read([byte]) = transfer {
            *byte = value;
        }
        Some(after.done())
    }

    fn install(&self, domain: &Domain, index: u8, ports: &Ports) {
        let (base, size) = self.card.ports();
        let Ports { hooks, decoded } = *ports;
        let handler = if decoded { PortHandler::Device(index) } else { PortHandler::None };
        domain.hook_ports(base, size, handler, if decoded { !hooks } else { 0 });
    }
}

impl VirtualFunction for Ne2000Function {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    /// Its ports stay where they physically are, since the I/O permission map cannot move them.
    fn describe(&self) -> Result<Function, BuildError> {
        let (base, size) = self.card.ports();
        let device = self.card.device();
        Builder::new(device.identity())
            .interrupt(device.function.pin.min(1), self.guest.pin)
            .fixed_ports()
            .bar(0, BarKind::Io, size.into(), base.into())
            .build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
    }

    fn detach(&self) {
        super::leave(self.card.device(), || self.card.detach(self.client));
    }

    fn configured(&self, domain: &Domain, index: usize, _: ConfigEffect) {
        let mut ports = self.ports.lock();
        let decoded = domain.platform.lock().pci.bar(self.guest.slot, 0).is_some_and(|bar| bar.enabled);
        if ports.decoded != decoded {
            ports.decoded = decoded;
            #[cfg(feature = "widen-races")]
            crate::x86::tsc::delay_us(2_000);
            self.install(domain, index as u8, &ports);
        }
    }

    fn port(&self, domain: &Domain, port: u16, width: u8, mut transfer: Transfer<'_>) -> Answer {
        let offset = port.wrapping_sub(self.card.ports().0);
        if let Some(answer) = self.quick(domain, offset, &mut transfer) {
            return answer;
        }
        let single = transfer.len() == usize::from(width);
        let client = self.client;
        let (outcome, after) = self.card.with(Some((client, domain)), |monitor, raw, now| match transfer {
            Transfer::Read(buffer) if single => {
                let outcome = monitor.access(raw, client, now, RegisterAccess::Read { offset, width });
                if let Outcome::Done(value) | Outcome::Refused(Refusal { value, .. }) = outcome {
                    for (to, from) in buffer.iter_mut().zip(value.to_le_bytes()) {
                        *to = from;
                    }
                }
                outcome
            }
            Transfer::Write(bytes) if single => {
                let mut word = [0; 4];
                for (to, from) in word.iter_mut().zip(bytes) {
                    *to = *from;
                }
                let value = u32::from_le_bytes(word);
                monitor.access(raw, client, now, RegisterAccess::Write { offset, width, value })
            }
            Transfer::Read(into) => {
                monitor.access(raw, client, now, RegisterAccess::ReadString { offset, width, into })
            }
            Transfer::Write(from) => {
                monitor.access(raw, client, now, RegisterAccess::WriteString { offset, width, from })
            }
        });
        match outcome {
            Outcome::Done(_) => after.done(),
            Outcome::Refused(refusal) => match refusal.reaction {
                Reaction::Discard | Reaction::Interrupt => Answer::Refused,
                Reaction::DeferredError => Answer::Failed { deferred: true },
                Reaction::MachineCheck => Answer::Failed { deferred: false },
            },
            Outcome::Wait => Answer::Wait,
        }
    }

    /// It has none.
    fn memory(&self, _: &Domain, _: u8, _: Gpa, _: Transfer<'_>) -> Answer {
        Answer::Refused
    }

    fn end_of_interrupt(&self, domain: &Domain) -> bool {
        let client = self.client;
        self.card.with(Some((client, domain)), |monitor, _, _| monitor.end_of_interrupt(client));
        true
    }

    fn halted(&self, domain: &Domain) {
        let client = self.client;
        self.card.with(Some((client, domain)), |monitor, raw, now| monitor.halted(raw, client, now));
    }
}
