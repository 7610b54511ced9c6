//! Software cards in front of a physical card that the hypervisor drives (`mode = "emulated"`, and `mode = "vpio"` for cards
//! that master the bus).
//!
//! Key types: [`Card`] (the physical card and what is shared behind it), [`NicFunction`] (a guest's card on its PCI bus).
//! `sluice_emulated` decides what happens; this module brings it registers, memory, guests and time. With `vpio` a guest sees its
//! card's registers in a [`Mirror`](mirror::Mirror), or has the physical card in its own hands while it is alone.

mod bars;
mod card;
mod mirror;

pub use bars::pieces;
pub use card::{Card, CardChoice};
pub use mirror::Mirror;

use super::guest::Guest;
use super::intx::ForwardedLine;
use super::own_time::OwnTime;
use super::told::Told;
use crate::domain::{Answer, Domain, Transfer, VirtualFunction};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use alloc::sync::Arc;
use bars::{Bars, Mapper, Mapping};
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_emulated::{Description, PortId, Register, Shown};
use sluice_memory::Gpa;
use sluice_platform::pci::{BuildError, Builder, ConfigEffect, Function, Identity};

/// QEMU's subsystem, for drivers that look.
const SUBSYSTEM: (u16, u16) = (0x1af4, 0x1100);

/// Who a software card says it is.
pub fn identity(description: &Description) -> Identity {
    let Description { vendor, device, revision, class, .. } = *description;
    let (subsystem_vendor, subsystem) = SUBSYSTEM;
    Identity { vendor, device, class, revision, subsystem_vendor, subsystem }
}

/// A guest's software card.
pub struct NicFunction {
    card: Arc<Card>,
    /// Its port of the switch.
    port: PortId,
    guest: Guest,
    description: Description,
    bars: Bars,
    /// The lock around it is held until the domain's tables say the same.
    mapping: SpinLock<Mapping>,
    /// When the card goes on with what it has left to do.
    own_time: OwnTime,
    /// The physical line, while the guest has the physical card. Changed under the lock of the card.
    line: ForwardedLine,
    /// A module of the guest's says without an exit that its interrupts are dealt with. Changed under the lock of the card.
    symbiotic: AtomicBool,
    /// The refused transfers that the guest's processors were told of.
    told: Told,
}

impl NicFunction {
    fn new(
        card: Arc<Card>,
        port: PortId,
        guest: Guest,
        description: Description,
        (bars, shown): (Bars, Shown),
        told: Told,
    ) -> Self {
        Self {
            card,
            port,
            guest,
            description,
            bars,
            mapping: SpinLock::new(Rank::Function, Mapping::new(shown)),
            own_time: OwnTime::default(),
            line: ForwardedLine::default(),
            symbiotic: AtomicBool::new(false),
            told,
        }
    }

    fn mapper<'a>(&'a self, domain: &'a Domain, index: u8) -> Mapper<'a> {
        Mapper { domain, index, device: self.card.device(), bars: &self.bars }
    }

    /// The guest finds something else in its card's memory from now on. `line`: level of the software card's line. The caller holds
    /// the lock of the card.
    fn show(&self, domain: &Domain, index: u8, shown: Shown, line: bool) {
        self.symbiotic.store(shown.symbiotic, Ordering::Relaxed);
        self.mapper(domain, index).show(&mut self.mapping.lock(), shown);
        if !shown.hardware {
            self.line.lower(self.card.device(), domain, &self.guest, line);
        }
    }

    /// Interrupts of this guest's own are posted to it, so that its processor looks before it goes on.
    fn access(&self, register: Register, width: u8, transfer: Transfer<'_>) -> Answer {
        let polled_at = self.card.device().poll_at();
        let done = self.card.with(|shared, env| {
            match transfer {
                Transfer::Read(into) => shared.read(env, self.port, register, width, into),
                Transfer::Write(from) => shared.write(env, self.port, register, width, from),
            }
            self.told.take(|| shared.refused(self.port))
        });
        match done {
            Some(Some(failed)) => failed,
            Some(None) => self.own_time.answer(self.card.device(), polled_at),
            None => Answer::Refused,
        }
    }
}

impl VirtualFunction for NicFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let builder = Builder::new(identity(&self.description)).interrupt(1, self.guest.pin).fixed_ports();
        self.bars.describe(builder).build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        self.card.device().unmask();
    }

    fn detach(&self) {
        super::leave(self.card.device(), || self.card.unplug(self.port));
    }

    fn configured(&self, domain: &Domain, index: usize, effect: ConfigEffect) {
        let slot = self.guest.slot;
        let mut mapping = self.mapping.lock();
        let platform = domain.platform.lock();
        let wanted = core::array::from_fn(|index| {
            let bar = platform.pci.bar(slot, index as u8)?;
            bar.enabled.then_some(bar.address)
        });
        drop(platform);
        self.mapper(domain, index as u8).map(&mut mapping, &wanted);
        drop(mapping);
        if let ConfigEffect::CommandChanged(..) = effect {
            self.card.with(|shared, env| {
                // Read here, so that what the guest wrote last is what the card is told last.
                let command = domain.platform.lock().pci.command(slot);
                let (master, silent) =
                    (command & pci::COMMAND_MASTER != 0, command & pci::COMMAND_NO_INTX != 0);
                shared.configure(self.port, master, silent);
                shared.poll(env);
            });
        }
    }

    fn port(&self, _: &Domain, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        match self.bars.port_offset(port) {
            Some(offset) => self.access(Register { io: true, offset }, width, transfer),
            None => Answer::Refused,
        }
    }

    fn memory(&self, _: &Domain, bar: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let offset = self.mapping.lock().offset(bar, gpa);
        let Some(offset) = offset else { return Answer::Refused };
        let (mut done, mut answer) = (0, Answer::Done);
        while done < transfer.len() {
            let left = transfer.len() - done;
            let width = [4, 2, 1].into_iter().find(|width| *width <= left).unwrap_or(1);
            let at = Register { io: false, offset: (offset as u32).wrapping_add(done as u32) };
            answer = self.access(at, width as u8, transfer.part(done..done + width));
            if answer == Answer::Refused {
                break;
            }
            done += width;
        }
        answer
    }

    /// A software card's line shows at all times what it says, but for what a module says by writing memory; the physical one's is up until now.
    fn end_of_interrupt(&self, domain: &Domain) -> bool {
        if self.symbiotic.load(Ordering::Relaxed) {
            self.card.end_of_interrupt(self.port, |level| domain.set_line(self.guest.pin, level));
        }
        let is_raised = self.line.is_raised();
        if is_raised {
            let lower = |level| self.line.lower(self.card.device(), domain, &self.guest, level);
            self.card.with_line(self.port, lower);
        }
        is_raised
    }

    fn resumes_at(&self) -> u64 {
        self.own_time.at()
    }

    /// Goes on with what the card has left to do, if it is time and nobody else does so already.
    fn resume(&self, now: u64) {
        if self.own_time.claim(now) {
            self.card.with(|shared, env| shared.resume(env, self.port));
        }
    }
}
