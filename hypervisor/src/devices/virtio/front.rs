//! What a guest sees of a virtual device: a virtio function.

use super::super::hooked_bar::HookedBar;
use super::iommu::Translator;
use super::window::WindowBar;
use super::{Lent, Link};
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::devices::ports::HookedPorts;
use crate::domain::{Answer, Domain, PageHandler, Transfer, VirtualFunction};
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_devfile::Ranges;
use sluice_hypercall::backend::MAX_QUEUES;
use sluice_hypercall::call::Error;
use sluice_hypercall::devfile::DEVFILE_MAPS_SIZE;
use sluice_insn::PagingState;
use sluice_memory::Gpa;
use sluice_platform::pci::{BarAddresses, BuildError, ConfigEffect, Function};
use sluice_virtio::{Changes, Kind, pci};

/// Where the BARs answer.
struct Bars {
    registers: HookedBar,
    msix: HookedBar,
    /// The port by which the device is notified.
    notify: HookedPorts,
    /// What is mapped of a device file; others have none.
    maps: Option<WindowBar>,
}

/// A guest's virtio function.
pub struct FrontFunction {
    link: Arc<Link>,
    guest: Guest,
    /// Itself, for the link.
    this: Weak<Self>,
    /// Nothing is behind it any more.
    dead: AtomicBool,
    /// The lock is held until the domain's tables say the same.
    bars: SpinLock<Bars>,
    /// It is the guest's IOMMU.
    translator: Option<Translator>,
}

impl FrontFunction {
    /// The guest's function of a link.
    ///
    /// # Errors
    /// The guest has no room for its BARs.
    pub fn new(
        link: Arc<Link>,
        guest: Guest,
        addresses: &mut BarAddresses,
        high: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        Self::of(link, guest, None, addresses, high)
    }

    /// The function of the IOMMU of a guest with so much memory.
    ///
    /// # Errors
    /// The guest has no room for its BARs.
    pub fn new_iommu(
        link: Arc<Link>,
        guest: Guest,
        memory: u64,
        addresses: &mut BarAddresses,
        high: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        Self::of(link, guest, Some(Translator::new(memory)), addresses, high)
    }

    fn of(
        link: Arc<Link>,
        guest: Guest,
        translator: Option<Translator>,
        addresses: &mut BarAddresses,
        high: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        let registers = HookedBar::new(pci::REGISTERS_BAR, pci::REGISTERS_SIZE, addresses);
        let msix = HookedBar::new(pci::MSIX_BAR, pci::MSIX_SIZE, addresses);
        let notify = HookedPorts::new(pci::NOTIFY_SIZE as u16, guest.slot, addresses);
        let ((registers, msix), notify) = registers.zip(msix).zip(notify).ok_or(AttachError::NoRoom)?;
        let maps = match link.with(|state| state.device.kind()) {
            Kind::DeviceFile => Some(WindowBar::new(DEVFILE_MAPS_SIZE, high).ok_or(AttachError::NoRoom)?),
            _ => None,
        };
        let bars = SpinLock::new(Rank::Function, Bars { registers, msix, notify, maps });
        Ok(Arc::new_cyclic(|this| Self {
            link,
            guest,
            this: this.clone(),
            dead: AtomicBool::new(false),
            bars,
            translator,
        }))
    }

    /// Whose it is.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// From now on this is what the guest sees of what is mapped of a device file, and nothing of what it saw before when this returns.
    pub fn show_maps(&self, lent: Option<Lent>) {
        let domain = self.guest.domain().map(|(domain, _)| domain);
        if let Some(maps) = &mut self.bars.lock().maps {
            maps.lend(domain.as_ref(), lent);
        }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn registers(&self, offset: u32, transfer: Transfer<'_>) -> Answer {
        let width = transfer.len() as u8;
        self.link.change(|state| {
            if !state.device.is_offered() {
                return (Answer::Wait, Changes::empty());
            }
            match transfer {
                Transfer::Read(buffer) => {
                    let (value, changes) = state.device.read(offset, width);
                    buffer.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
                    (Answer::Attend, changes)
                }
                Transfer::Write(bytes) => {
                    let mut word = [0; 4];
                    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                    (Answer::Attend, state.device.write(offset, width, u32::from_le_bytes(word)))
                }
            }
        })
    }
}

impl VirtualFunction for FrontFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let bars = self.bars.lock();
        let at = pci::Addresses {
            registers: bars.registers.initial(),
            msix: bars.msix.initial(),
            notify: bars.notify.initial(),
            maps: bars.maps.as_ref().map_or(0, WindowBar::initial),
        };
        drop(bars);
        let kind = self.link.with(|state| state.device.kind());
        pci::function(kind, self.guest.pin, &at, self.link.behind)
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        if let Some(this) = self.this.upgrade() {
            self.link.guest_comes(&this, domain);
        }
    }

    fn detach(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.link.guest_goes();
        self.show_maps(None);
    }

    fn configured(&self, domain: &Domain, _: usize, _: ConfigEffect) {
        let slot = self.guest.slot;
        let mut bars = self.bars.lock();
        let platform = domain.platform.lock();
        let enabled =
            |index: u8| platform.pci.bar(slot, index).filter(|bar| bar.enabled).map(|bar| bar.address);
        let wanted = [pci::REGISTERS_BAR, pci::MSIX_BAR, pci::NOTIFY_BAR, pci::MAPS_BAR];
        let [registers, msix, notify, at] = wanted.map(enabled);
        drop(platform);
        // First away with what moves, so that two BARs can change places.
        bars.registers.leave(domain, registers);
        bars.msix.leave(domain, msix);
        bars.notify.leave(domain, notify);
        bars.registers.settle(domain, PageHandler::Socket { slot, bar: pci::REGISTERS_BAR }, registers);
        bars.msix.settle(domain, PageHandler::Socket { slot, bar: pci::MSIX_BAR }, msix);
        bars.notify.settle(domain, slot, notify);
        if let Some(maps) = &mut bars.maps {
            maps.settle(self.guest.domain().map(|(domain, _)| domain).as_ref(), at);
        }
        drop(bars);
        self.link.with(|state| {
            // Read here, so that what the guest wrote last is what holds.
            let capability = domain.platform.lock().pci.msix(slot);
            state.front_messages.configure(domain, capability);
            domain.set_line(self.guest.pin, state.line());
        });
    }

    /// The guest tells of buffers in a queue. It need not wait for anything: it is the other domain's turn.
    fn port(&self, _: &Domain, _: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        let Transfer::Write(bytes) = transfer else { return Answer::Refused };
        if self.is_dead() {
            return Answer::Done;
        }
        if let Some((translator, (domain, _))) = self.translator.as_ref().zip(self.guest.domain()) {
            return translator.requests(&self.link, &domain);
        }
        let numbers = bytes.chunks(width.max(1).into()).take(MAX_QUEUES as usize);
        let queue =
            |bytes: &[u8]| bytes.iter().take(2).rev().fold(0, |queue, byte| queue << 8 | u16::from(*byte));
        self.link.kick(numbers.map(queue));
        if self.link.hurries { Answer::Attend } else { Answer::Done }
    }

    fn memory(&self, domain: &Domain, bar: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let bars = self.bars.lock();
        let offset = if bar == pci::MSIX_BAR { bars.msix.offset(gpa) } else { bars.registers.offset(gpa) };
        drop(bars);
        let Some(offset) = offset else { return Answer::Refused };
        if self.is_dead() {
            // A driver that resets the device waits until its status is zero.
            if let Transfer::Read(buffer) = transfer {
                buffer.fill(0);
            }
            return Answer::Done;
        }
        if bar == pci::MSIX_BAR {
            self.link.with(|state| state.front_messages.access(domain, offset, pci::MSIX_PENDING, transfer));
            return Answer::Attend;
        }
        // Registers know accesses of up to four bytes: a wider one is several, the lowest first.
        let (mut answer, is_write) = (Answer::Attend, transfer.is_write());
        for start in (0..transfer.len()).step_by(4) {
            let part = transfer.part(start..transfer.len().min(start + 4));
            answer = self.registers(offset.wrapping_add(start as u32), part);
        }
        match self.translator.as_ref().filter(|_| is_write).zip(self.guest.domain()) {
            Some((translator, (domain, _))) => translator.written(&self.link, &domain),
            None => answer,
        }
    }

    fn reaches_grants(&self) -> bool {
        !self.is_dead() && self.link.with(|state| state.device.issue_pages())
    }

    fn declare(&self, tag: u32, reach: Option<(PagingState, Ranges)>) -> Result<(), Error> {
        if self.is_dead() {
            return Err(Error::NoPeer);
        }
        self.link.with(|state| state.declare(tag, reach))
    }
}
