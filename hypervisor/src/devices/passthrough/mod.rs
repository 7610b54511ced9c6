//! A physical function that one guest owns (`mode = "passthrough"`).
//!
//! Key type: [`PassthroughFunction`]. The guest programs a virtual configuration space; what follows from it is carried out
//! here: BARs appear in the guest's trap table and nested page tables ([`bars`]), bus mastering follows the guest's command
//! register, and the messages that it programs (MSI, MSI-X) stay here ([`messages`]), while the function is told vectors of
//! the hypervisor's.
//!
//! Source: PCI Local Bus 3.0, 6.2.2 (command).

mod bars;
mod messages;
mod virtio;

use super::device::Device;
use super::error::AttachError;
use super::guest::Guest;
use super::intx::ForwardedLine;
use crate::domain::{Answer, Domain, EndReason, Transfer, VirtualFunction};
use crate::iommu::{self, Owner};
use crate::pci::{self, reset};
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bars::Bars;
use core::ops::Range;
use messages::Messages;
use sluice_abi::config::{Dma, Mode, Passthrough};
use sluice_abi::report::ShareReport;
use sluice_memory::Gpa;
use sluice_platform::pci::{BarAddresses, BuildError, Builder, ConfigEffect, Function};

/// For how long messages that come without end are held back.
const HELD_NS: u64 = 1_000_000;

struct State {
    bars: Bars,
    messages: Messages,
}

/// A physical function in the hands of the guest that owns it.
pub struct PassthroughFunction {
    device: Arc<Device>,
    guest: Guest,
    /// What the function reaches.
    dma: Dma,
    /// Changed under the lock of the state.
    line: ForwardedLine,
    state: SpinLock<State>,
}

impl PassthroughFunction {
    /// Makes a guest the owner of a device that nobody uses.
    ///
    /// # Errors
    /// Says why it cannot have it.
    pub fn new(
        device: &Arc<Device>,
        options: &Passthrough,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<Self>, AttachError> {
        check(device, options)?;
        let addresses = Some(addresses).filter(|_| !guest.knows_machine);
        let bars = Bars::new(&device.function, addresses).ok_or(AttachError::NoRoom)?;
        if let Some(endpoint) = device.dma_endpoint() {
            endpoint.claim(Owner::Domain(guest.id)).map_err(|iommu::Busy| AttachError::GroupBusy)?;
        }
        device.wait_ready();
        device.decode();
        for message in 0..device.function.msix.map_or(0, |msix| msix.vectors) {
            pci::messages::write_entry(&device.function, message, None);
        }
        let state = State { bars, messages: Messages::new(device) };
        Ok(Arc::new(Self {
            device: device.clone(),
            guest,
            dma: options.dma,
            line: ForwardedLine::default(),
            state: SpinLock::new(Rank::Function, state),
        }))
    }

    /// The physical line went up.
    pub fn interrupt(&self) {
        let Some((domain, _)) = self.guest.domain() else { return };
        let _state = self.state.lock();
        self.line.raise(&domain, &self.guest);
    }

    /// The function raised the vector of one of its messages.
    pub fn message(&self, message: u16) {
        let Some((domain, _)) = self.guest.domain() else { return };
        if self.state.lock().messages.raised(&domain, &self.device.function, message) {
            self.device.poll_next(Some(tsc::uptime_ns() + HELD_NS));
        }
    }

    /// Messages were held back for long enough.
    pub fn poll(&self) {
        let Some((domain, _)) = self.guest.domain() else { return };
        let mut state = self.state.lock();
        if !state.messages.are_held() {
            return;
        }
        let command = domain.platform.lock().pci.command(self.guest.slot);
        state.messages.let_through(&domain, &self.device.function);
        if command & pci::COMMAND_NO_INTX == 0 {
            self.device.function.bdf.set_command(0, pci::COMMAND_NO_INTX);
        }
    }

    /// Ends the guest's ownership: the function is off the bus at once, then reset.
    fn take_back(&self) {
        let device = &self.device;
        reset::quiet(&device.function);
        pci::messages::disable(&device.function);
        self.state.lock().messages.withdraw();
        match device.reset() {
            Some(method) => log::info!("device {}: taken back, reset ({method:?})", device.name),
            None => {
                log::warn!("device {}: there is no way to reset it: no other guest can have it", device.name);
            }
        }
        if let Some(endpoint) = device.dma_endpoint() {
            // Whatever the reset left of it reaches nothing any more.
            endpoint.block();
            endpoint.release();
            if let (true, Some((domain, _))) = (self.dma.is_issued(), self.guest.domain()) {
                domain.withdraw_from_own_device(self.guest.slot);
            }
        }
        device.leave_bus();
    }
}

/// Whether a guest can own a device.
fn check(device: &Device, options: &Passthrough) -> Result<(), AttachError> {
    device.containment().check(options.dma == Dma::Unprotected, options.interrupts_unprotected)?;
    if device.function.bars.iter().any(|bar| bar.address == 0) {
        return Err(AttachError::NoAddress);
    }
    if !device.has_own_pages {
        return Err(AttachError::SharedPage);
    }
    if !device.is_clean() {
        return Err(AttachError::NoReset);
    }
    Ok(())
}

impl VirtualFunction for PassthroughFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    /// Its ports stay where they physically are, since the I/O permission map cannot move them.
    fn describe(&self) -> Result<Function, BuildError> {
        let physical = &self.device.function;
        let builder =
            Builder::new(self.device.identity()).interrupt(physical.pin.min(1), self.guest.pin).fixed_ports();
        let mut builder = self.state.lock().bars.describe(builder, physical);
        if self.guest.knows_machine {
            // It is told of interrupts by its lines only.
            return builder.build();
        }
        if physical.msi.is_some() {
            builder = builder.msi(1);
        }
        if let Some(msix) = &physical.msix {
            builder = builder.msix(msix.vectors, msix.table, msix.pending);
        }
        virtio::describe(builder, physical).build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        if self.guest.knows_machine && !self.registers().iter().all(|frames| domain.map_registers(frames)) {
            log::error!("device {}: no memory to map its registers", self.device.name);
            domain.end(EndReason::Command);
        }
        if let Some(endpoint) = self.device.dma_endpoint() {
            let regions = (self.dma == Dma::Regions).then(|| u16::try_from(self.device.index).ok()).flatten();
            let space = match self.dma.is_issued() {
                true => domain.lend_to_own_device(self.guest.slot, &endpoint, regions),
                false => domain.device_space(),
            };
            match space {
                Some((tag, root)) => endpoint.attach(tag, root),
                None => {
                    log::error!("device {}: no memory for its tables: it reaches nothing", self.device.name)
                }
            }
        }
        self.device.unmask();
    }

    fn detach(&self) {
        super::leave(&self.device, || {
            self.take_back();
            let (domain, mode) = (self.guest.name.clone(), Mode::Passthrough.word().into());
            Some(ShareReport { domain, mode, ..ShareReport::default() })
        });
    }

    fn configured(&self, domain: &Domain, index: usize, effect: ConfigEffect) {
        let (slot, function) = (self.guest.slot, &self.device.function);
        let mut state = self.state.lock();
        let platform = domain.platform.lock();
        let bus = &platform.pci;
        let command = bus.command(slot);
        let bars = core::array::from_fn(|index| bus.bar(slot, index as u8));
        let (msi, msix) = (bus.msi(slot), bus.msix(slot));
        drop(platform);

        let follow = pci::COMMAND_MASTER | pci::COMMAND_NO_INTX;
        let allowed = if function.masters_bus() { follow } else { pci::COMMAND_NO_INTX };
        if matches!(effect, ConfigEffect::CommandChanged(..)) && command & pci::COMMAND_MASTER == 0 {
            function.bdf.set_command(0, pci::COMMAND_MASTER);
        }
        state.bars.map_ports(domain, function, &bars);
        if !self.guest.knows_machine {
            state.bars.map(domain, function, index as u8, &bars);
        }
        match effect {
            ConfigEffect::MsiChanged(_) => state.messages.set_msi(domain, function, msi),
            ConfigEffect::MsixChanged(_) => state.messages.set_msix(domain, function, msix),
            ConfigEffect::CommandChanged(..) => {
                // A function whose messages are stopped must not raise its line for them.
                let held = if state.messages.are_held() { pci::COMMAND_NO_INTX } else { 0 };
                let command = command | held;
                function.bdf.set_command(command & allowed, !command & follow);
            }
            _ => {}
        }
    }

    /// All its ports are direct.
    fn port(&self, _: &Domain, _: u16, _: u8, _: Transfer<'_>) -> Answer {
        Answer::Refused
    }

    /// What exits is the MSI-X table, what shares its pages, or an operand of an instruction that exited for another reason.
    fn memory(&self, domain: &Domain, bar: u8, gpa: Gpa, transfer: Transfer<'_>) -> Answer {
        let function = &self.device.function;
        let mut state = self.state.lock();
        let Some(offset) = state.bars.offset(bar, gpa) else { return Answer::Refused };
        match messages::table_in(function, bar) {
            Some(table) if table.contains(&offset) => {
                state.messages.table(domain, function, (offset - table.start) as u32, transfer);
            }
            _ => {
                drop(state);
                bars::forward(function, bar, offset, transfer);
            }
        }
        Answer::Attend
    }

    fn registers(&self) -> Vec<Range<u64>> {
        self.state.lock().bars.registers()
    }

    fn end_of_interrupt(&self, domain: &Domain) -> bool {
        let is_raised = self.line.is_raised();
        if is_raised {
            let _state = self.state.lock();
            self.line.lower(&self.device, domain, &self.guest, false);
        }
        is_raised
    }
}
