//! Who uses a device now, and what is left of those who did.

use super::device::Device;
use super::error::AttachError;
use super::guest::Guest;
use super::ide::SharedDisk;
use super::ne2000::{self, Ne2000Function};
use super::nic::{self, CardChoice, NicFunction};
use super::nvme::SharedNvme;
use super::passthrough::PassthroughFunction;
use super::vif;
use crate::domain::VirtualFunction;
use crate::pci;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_abi::config::{self, Attachment, Mode};
use sluice_abi::report::{DeviceReport, ShareReport};
use sluice_emulated::Handoffs;
use sluice_platform::pci::BarAddresses;

/// Who uses a device now.
enum User {
    Nobody,
    /// One guest, which has it to itself.
    Owner(Arc<PassthroughFunction>),
    /// Guests that have it in turn.
    Turns(Arc<ne2000::Card>),
    /// The hypervisor's driver, and the guests' software cards behind it.
    Driver(Arc<nic::Card>),
    /// Guests that have a part of it each.
    Parts(Arc<SharedDisk>),
    /// The same of a disk that has queues for each.
    Queues(Arc<SharedNvme>),
    /// The engine of a network, for good.
    Engine(Arc<vif::Network>),
}

/// The use of a device: who uses it now, and what reports say of earlier users.
pub struct Usage {
    user: User,
    /// Counters of guests that are gone.
    past: Vec<ShareReport>,
    /// Handoffs between guests that are gone.
    handoffs: Handoffs,
    /// What reports call the last use.
    model: &'static str,
}

impl Usage {
    /// Nobody has used the device yet.
    pub fn new() -> Self {
        let model = Mode::Passthrough.word();
        Self { user: User::Nobody, past: Vec::new(), handoffs: Handoffs::default(), model }
    }

    /// Gives a guest its function of the device.
    ///
    /// # Errors
    /// Says why it cannot have one.
    pub fn attach(
        &mut self,
        device: &Arc<Device>,
        attachment: &Attachment,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<dyn VirtualFunction>, AttachError> {
        Ok(match attachment {
            Attachment::Passthrough(options) => self.attach_owner(device, options, guest, addresses)?,
            Attachment::Vpio(options) if device.function.masters_bus() => {
                let choice = CardChoice::like_physical(device, options)?;
                self.attach_software_card(device, attachment.mode(), &choice, guest, addresses)?
            }
            Attachment::Vpio(options) => self.attach_in_turn(device, options, guest)?,
            Attachment::Sectors(sectors) if device.function.class == pci::CLASS_NVME => {
                self.attach_queues(device, *sectors, guest, addresses)?
            }
            Attachment::Sectors(sectors) => self.attach_part(device, *sectors, guest)?,
            Attachment::Emulated(options) => {
                let choice = CardChoice::any(device, options)?;
                self.attach_software_card(device, attachment.mode(), &choice, guest, addresses)?
            }
        })
    }

    fn attach_owner(
        &mut self,
        device: &Arc<Device>,
        options: &config::Passthrough,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<PassthroughFunction>, AttachError> {
        let User::Nobody = self.user else { return Err(AttachError::Busy) };
        let function = PassthroughFunction::new(device, options, guest, addresses)?;
        self.model = Mode::Passthrough.word();
        self.user = User::Owner(function.clone());
        Ok(function)
    }

    fn attach_in_turn(
        &mut self,
        device: &Arc<Device>,
        options: &config::Vpio,
        guest: Guest,
    ) -> Result<Arc<Ne2000Function>, AttachError> {
        if device.ports.1 == 0 {
            return Err(AttachError::NoPorts);
        }
        let card = match &self.user {
            User::Nobody => ne2000::Card::new(device).ok_or(AttachError::NoModel)?,
            User::Turns(card) => card.clone(),
            _ => return Err(AttachError::Busy),
        };
        let function = card.attach(options, guest)?;
        self.model = card.model();
        self.user = User::Turns(card);
        Ok(function)
    }

    fn attach_part(
        &mut self,
        device: &Arc<Device>,
        sectors: config::Sectors,
        guest: Guest,
    ) -> Result<Arc<dyn VirtualFunction>, AttachError> {
        let disk = match &self.user {
            User::Nobody => SharedDisk::start(device)?,
            User::Parts(disk) => disk.clone(),
            _ => return Err(AttachError::Busy),
        };
        self.model = Mode::Vpio.word();
        self.user = User::Parts(disk.clone());
        let function = disk.attach(sectors, guest);
        if function.is_err() {
            self.end_if_unused(device);
        }
        Ok(function?)
    }

    fn attach_queues(
        &mut self,
        device: &Arc<Device>,
        sectors: config::Sectors,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<dyn VirtualFunction>, AttachError> {
        let disk = match &self.user {
            User::Nobody => SharedNvme::start(device)?,
            User::Queues(disk) => disk.clone(),
            _ => return Err(AttachError::Busy),
        };
        self.model = Mode::Vpio.word();
        self.user = User::Queues(disk.clone());
        let function = disk.attach(sectors, guest, addresses);
        if function.is_err() {
            self.end_if_unused(device);
        }
        Ok(function?)
    }

    fn attach_software_card(
        &mut self,
        device: &Arc<Device>,
        mode: Mode,
        choice: &CardChoice,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<NicFunction>, AttachError> {
        let card = match &self.user {
            User::Nobody => nic::Card::start(device, mode)?,
            User::Driver(card) if card.mode() == mode => card.clone(),
            _ => return Err(AttachError::Busy),
        };
        self.model = card.model();
        self.user = User::Driver(card.clone());
        let function = card.plug_in(choice, guest, addresses);
        if function.is_err() {
            self.end_if_unused(device);
        }
        function
    }

    /// Gives the device to the engine of a network.
    ///
    /// # Errors
    /// Says why it cannot have it.
    pub fn dedicate(&mut self, device: &Arc<Device>, network: &Arc<vif::Network>) -> Result<(), AttachError> {
        let User::Nobody = self.user else { return Err(AttachError::Busy) };
        self.model = network.connect(device)?;
        self.user = User::Engine(network.clone());
        Ok(())
    }

    /// A guest has left, and `report` says what it did.
    pub fn left(&mut self, device: &Device, report: Option<ShareReport>) {
        if let Some(report) = report {
            report.add_to(&mut self.past);
        }
        self.end_if_unused(device);
    }

    /// If nobody has the device any more, it is silent, and free for any use.
    fn end_if_unused(&mut self, device: &Device) {
        let in_use = match &self.user {
            User::Nobody | User::Engine(_) => true,
            User::Owner(_) => false,
            User::Turns(card) => card.has_guests(),
            User::Driver(card) => card.has_guests(),
            User::Parts(disk) => disk.has_guests(),
            User::Queues(disk) => disk.has_guests(),
        };
        if in_use {
            return;
        }
        device.close_line();
        let Handoffs { all, forced } = match core::mem::replace(&mut self.user, User::Nobody) {
            User::Nobody | User::Owner(_) | User::Engine(_) => Handoffs::default(),
            User::Turns(card) => card.handoffs(),
            User::Driver(card) => card.stop(),
            User::Parts(disk) => {
                disk.stop();
                Handoffs::default()
            }
            User::Queues(disk) => {
                disk.stop();
                Handoffs::default()
            }
        };
        self.handoffs.all += all;
        self.handoffs.forced += forced;
    }

    /// Deals with an interrupt of the device's line.
    pub fn interrupt(&self) {
        match &self.user {
            User::Nobody => {}
            User::Owner(function) => function.interrupt(),
            User::Turns(card) => card.interrupt(),
            User::Driver(card) => card.interrupt(),
            User::Parts(disk) => disk.interrupt(),
            // It tells by messages.
            User::Queues(_) => {}
            User::Engine(network) => network.interrupt(),
        }
    }

    /// The function raised one of its messages, which only an owner lets it do, or a driver for it.
    pub fn message(&self, message: u16) {
        match &self.user {
            User::Owner(function) => function.message(message),
            User::Queues(disk) => disk.message(message),
            _ => {}
        }
    }

    /// It is the time that the device asked for.
    pub fn poll(&self) {
        match &self.user {
            User::Nobody => {}
            User::Owner(function) => function.poll(),
            User::Turns(card) => card.poll(),
            User::Driver(card) => card.poll(),
            User::Parts(disk) => disk.poll(),
            User::Queues(disk) => disk.poll(),
            User::Engine(_) => {}
        }
    }

    /// The device and its users, past ones first.
    pub fn report(&self, device: &Device) -> DeviceReport {
        let mut report = DeviceReport {
            name: device.name.clone(),
            model: self.model.into(),
            handoffs: self.handoffs.all,
            forced: self.handoffs.forced,
            interrupts: device.interrupts(),
            shares: self.past.clone(),
            ..DeviceReport::default()
        };
        match &self.user {
            User::Nobody | User::Owner(_) => {}
            // The processors that are woken by messages count these.
            User::Engine(network) => report.interrupts += network.messages(),
            User::Turns(card) => card.add_to(&mut report),
            User::Driver(card) => card.add_to(&mut report),
            User::Parts(disk) => disk.add_to(&mut report),
            User::Queues(disk) => disk.add_to(&mut report),
        }
        report
    }
}
