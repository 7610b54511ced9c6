//! Which slot of a domain's bus has what.
//!
//! A slot keeps what it has through all lives of the domain, so that its system finds devices where they were.

use alloc::string::String;
use sluice_abi::DomainId;
use sluice_abi::config::{self, Attachment, Dma, Grants, MAX_FUNCTIONS};

/// First slot of the virtual PCI bus that has something.
const FIRST_SLOT: usize = 3;

/// What a slot has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    /// The device at this place of the domain's list.
    Device(usize),
    /// Its virtual device of this name.
    Virtual(String),
    /// Its stream to the management channel.
    Channel,
    /// The IOMMU that its kernel drives.
    Iommu,
    /// What passes signals of the network at this place of the configuration on.
    Controller(u16),
    /// The back end of a guest's virtual device of this name.
    BackEnd(DomainId, String),
}

/// Whether a device reaches only what its domain issues to it.
fn is_fine(share: &config::Share) -> bool {
    matches!(&share.attachment, Attachment::Passthrough(options) if options.dma == Dma::Fine)
}

/// The slots of a domain's bus.
#[derive(Clone, Debug, Default)]
pub struct Seats {
    seats: [Option<Seat>; MAX_FUNCTIONS],
    /// Slots whose function the domain is asked for.
    leaving: u32,
}

impl Seats {
    /// Those of what a domain has from the start. There is room for them in a configuration that was checked.
    pub fn of(domain: &config::Domain) -> Self {
        let mut seats = Self::default();
        let devices = (0..domain.devices.len()).map(Seat::Device);
        let virtio = domain.virtio.iter().map(|device| &device.name);
        let virtual_devices =
            virtio.chain(domain.vifs.iter().map(|vif| &vif.name)).cloned().map(Seat::Virtual);
        let channel = domain.control.then_some(Seat::Channel);
        // First, so that it is where it was whatever the domain has.
        let iommu = (domain.grants == Grants::Iommu).then_some(Seat::Iommu);
        for seat in iommu.into_iter().chain(devices).chain(virtual_devices).chain(channel) {
            let _ = seats.take(seat);
        }
        seats
    }

    /// Gives something the first slot that is free; `None` if none is.
    pub fn take(&mut self, seat: Seat) -> Option<u8> {
        let place = self.seats.iter().position(Option::is_none)?;
        self.seats[place] = Some(seat);
        Some((FIRST_SLOT + place) as u8)
    }

    /// Whether there is a slot for one thing more.
    pub fn has_room(&self) -> bool {
        self.seats.contains(&None)
    }

    /// Slots, and what they have.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Seat)> {
        let slots = (FIRST_SLOT as u8..).zip(&self.seats);
        slots.filter_map(|(slot, seat)| Some((slot, seat.as_ref()?)))
    }

    /// The slot that has this.
    pub fn find(&self, wanted: &Seat) -> Option<u8> {
        self.iter().find(|(_, seat)| *seat == wanted).map(|(slot, _)| slot)
    }

    /// Whether one of them has the back end of a device of this guest.
    pub fn serve(&self, guest: DomainId) -> bool {
        self.iter().any(|(_, seat)| matches!(seat, Seat::BackEnd(of, _) if *of == guest))
    }

    /// Slots of what passes signals of networks on.
    pub fn controllers(&self) -> impl Iterator<Item = u8> {
        self.iter().filter(|(_, seat)| matches!(seat, Seat::Controller(_))).map(|(slot, _)| slot)
    }

    /// Slots of what comes and goes: all but those of devices.
    pub fn sockets(&self) -> impl Iterator<Item = u8> {
        let slots = (FIRST_SLOT as u8..).zip(&self.seats);
        slots.filter(|(_, seat)| !matches!(seat, Some(Seat::Device(_)))).map(|(slot, _)| slot)
    }

    /// Slots of what can be behind the domain's IOMMU, now or later: virtual devices that another domain serves, and those of its own that
    /// reach only what it issues.
    pub fn behind_iommu(&self, domain: &config::Domain) -> impl Iterator<Item = u8> {
        let is_behind = |seat: &Option<Seat>| match seat {
            None => true,
            Some(Seat::Virtual(name)) => domain.virtio.iter().any(|virtio| virtio.name == *name),
            Some(Seat::Device(index)) => domain.devices.get(*index).is_some_and(is_fine),
            Some(Seat::Channel | Seat::Iommu | Seat::Controller(_) | Seat::BackEnd(..)) => false,
        };
        (FIRST_SLOT as u8..).zip(&self.seats).filter(move |(_, seat)| is_behind(seat)).map(|(slot, _)| slot)
    }

    /// All slots that can have something.
    pub fn slots() -> impl Iterator<Item = u8> {
        (FIRST_SLOT as u8..).take(MAX_FUNCTIONS)
    }

    /// Empties a slot, and returns what it had.
    pub fn leave(&mut self, slot: u8) -> Option<Seat> {
        self.leaving &= !(1 << (slot & 31));
        self.seats.get_mut(usize::from(slot).checked_sub(FIRST_SLOT)?)?.take()
    }

    /// The domain is asked for what is in a slot.
    pub fn ask_for(&mut self, slot: u8) {
        self.leaving |= 1 << (slot & 31);
    }

    /// Whether the domain is asked for what is in a slot.
    pub fn is_leaving(&self, slot: u8) -> bool {
        self.leaving & 1 << (slot & 31) != 0
    }
}
