//! What the domain that serves a virtual device sees of it: a back-end function, with a window onto the guest's memory.
//!
//! [`sluice_hypercall::backend`] says what is where.

use super::super::hooked_bar::HookedBar;
use super::window::WindowBar;
use super::{Lent, Link};
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::domain::region::Placed;
use crate::domain::{Answer, Domain, PageHandler, Transfer, VirtualFunction};
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use sluice_hypercall::backend as reg;
use sluice_hypercall::call::Error;
use sluice_hypercall::devfile::{Copy, DEVFILE_MAPS_SIZE};
use sluice_memory::Gpa;
use sluice_platform::pci::{BarAddresses, BuildError, Builder, ConfigEffect, Function, Identity};
use sluice_virtio::{Changes, Kind};

/// Where the BARs answer, and what is in the window.
struct Bars {
    registers: HookedBar,
    window: WindowBar,
}

/// The back end of a virtual device.
pub struct BackFunction {
    link: Arc<Link>,
    server: Guest,
    /// Itself, for the link.
    this: Weak<Self>,
    /// The lock is held until the domain's tables say the same.
    bars: SpinLock<Bars>,
}

impl BackFunction {
    /// The back end of a link.
    ///
    /// # Errors
    /// The domain has no room for its BARs.
    pub fn new(
        link: Arc<Link>,
        server: Guest,
        addresses: &mut BarAddresses,
        high: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        let registers = HookedBar::new(reg::REGISTERS_BAR, reg::REGISTERS_SIZE, addresses);
        let window = WindowBar::new(link.window, high);
        let (registers, window) = registers.zip(window).ok_or(AttachError::NoRoom)?;
        let bars = SpinLock::new(Rank::Function, Bars { registers, window });
        Ok(Arc::new_cyclic(|this| Self { link, server, this: this.clone(), bars }))
    }

    /// Whose it is.
    pub fn server(&self) -> &Guest {
        &self.server
    }

    /// From now on the window shows this, and nothing of what it showed before can be reached by it when this returns.
    pub fn show(&self, lent: Option<Lent>) {
        let domain = self.server.domain().map(|(domain, _)| domain);
        self.bars.lock().window.lend(domain.as_ref(), lent);
    }

    /// Its domain's devices reach the region of the link no more when this returns.
    pub fn leave_region(&self) {
        if let Some((region, (server, _))) = self.link.region.as_ref().zip(self.server.domain()) {
            server.leave_region(region);
        }
    }

    /// Pages of the domain can be shown as what is mapped of a device file, from now on.
    pub fn lend_maps(&self) {
        if let Some((server, _)) = self.server.domain().filter(|_| self.shows_maps()) {
            server.lend_maps(self.server.slot, DEVFILE_MAPS_SIZE);
        }
    }

    /// Nothing is mapped any more.
    pub fn withdraw_maps(&self) {
        if let Some((server, _)) = self.server.domain().filter(|_| self.shows_maps()) {
            server.withdraw_from_device(self.server.slot);
        }
    }

    /// What the guest sees of what is mapped.
    pub fn maps(&self) -> Option<Lent> {
        let (server, _) = self.server.domain().filter(|_| self.shows_maps())?;
        Some(Lent::Pages(Arc::downgrade(&server), self.server.slot))
    }

    fn shows_maps(&self) -> bool {
        self.link.with(|state| state.device.kind()) == Kind::DeviceFile
    }

    fn register(&self, offset: u32, transfer: Transfer<'_>) {
        let width = transfer.len() as u8;
        self.link.change(|state| match transfer {
            Transfer::Read(buffer) => {
                let value = state.device.backend_read(self.server.slot, offset, width).to_le_bytes();
                buffer.iter_mut().zip(value).for_each(|(to, from)| *to = from);
                ((), Changes::empty())
            }
            Transfer::Write(bytes) => {
                let mut word = [0; 4];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                ((), state.device.backend_write(offset, width, u32::from_le_bytes(word)))
            }
        });
    }
}

impl VirtualFunction for BackFunction {
    fn slot(&self) -> u8 {
        self.server.slot
    }

    fn pin(&self) -> u8 {
        self.server.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let identity =
            Identity { vendor: reg::VENDOR, device: reg::DEVICE, class: reg::CLASS, ..Identity::default() };
        let bars = self.bars.lock();
        let builder = bars.registers.describe(Builder::new(identity));
        bars.window
            .describe(builder, reg::WINDOW_BAR)
            .msix(
                reg::VECTORS,
                (reg::REGISTERS_BAR, reg::MSIX_TABLE),
                (reg::REGISTERS_BAR, reg::MSIX_PENDING),
            )
            .build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.server.set_domain(domain, index);
        if let Some(this) = self.this.upgrade() {
            self.link.server_comes(&this);
        }
    }

    fn detach(&self) {
        self.link.server_goes();
        self.show(None);
    }

    fn configured(&self, domain: &Domain, _: usize, _: ConfigEffect) {
        let slot = self.server.slot;
        let mut bars = self.bars.lock();
        let platform = domain.platform.lock();
        let enabled =
            |index: u8| platform.pci.bar(slot, index).filter(|bar| bar.enabled).map(|bar| bar.address);
        let [registers, window] = [reg::REGISTERS_BAR, reg::WINDOW_BAR].map(enabled);
        drop(platform);
        bars.registers.leave(domain, registers);
        bars.registers.settle(domain, PageHandler::Socket { slot, bar: reg::REGISTERS_BAR }, registers);
        bars.window.settle(self.server.domain().map(|(domain, _)| domain).as_ref(), window);
        drop(bars);
        self.link.with(|state| {
            // Read here, so that what the guest wrote last is what holds.
            let capability = domain.platform.lock().pci.msix(slot);
            state.back_messages.configure(domain, capability);
        });
    }

    /// It has no ports.
    fn port(&self, _: &Domain, _: u16, _: u8, _: Transfer<'_>) -> Answer {
        Answer::Refused
    }

    fn memory(&self, domain: &Domain, _: u8, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let Some(offset) = self.bars.lock().registers.offset(gpa) else { return Answer::Refused };
        if let Some(offset) = offset.checked_sub(reg::MSIX_TABLE) {
            let pending = reg::MSIX_PENDING - reg::MSIX_TABLE;
            self.link.with(|state| state.back_messages.access(domain, offset, pending, transfer));
            return Answer::Attend;
        }
        // Registers know accesses of up to four bytes: a wider one is several, the lowest first.
        for start in (0..transfer.len()).step_by(4) {
            let part = transfer.part(start..transfer.len().min(start + 4));
            self.register(offset.wrapping_add(start as u32), part);
        }
        Answer::Attend
    }

    fn used(&self, queue: u64) -> bool {
        let Ok(queue @ 0..reg::MAX_QUEUES) = u32::try_from(queue) else { return false };
        self.link.with(|state| state.use_buffers(queue as u16));
        true
    }

    fn shows_pages(&self) -> Option<(Arc<Domain>, u8)> {
        self.bars.lock().window.pages()
    }

    fn region(&self) -> Option<Placed> {
        let region = self.link.region.clone()?;
        let window = self.bars.lock().window.at()?;
        Some(Placed { region, at: window + self.link.lendable })
    }

    fn copy(&self, domain: &Domain, copy: &Copy) -> Result<(), Error> {
        self.link.with(|state| state.copy(&self.link, domain, copy))
    }
}
