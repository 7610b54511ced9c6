//! Virtual devices that guests get and give back while they run.
//!
//! Attaching fills a slot of the guest's bus, and one of the bus of the domain that is to serve the device; either may be running or not.
//! Detaching asks the guest for the device, as an operator does who wants to pull a card, and then the other for its back end: who
//! has let go of it says so, and its slot is free from then on. A guest that does not answer keeps the device, unless it is taken by force:
//! then nothing is behind its function any more, and the slot is free when the guest lets go of that.

use super::build;
use super::channel::Peer;
use super::seats::Seat;
use super::{Manager, Source};
use crate::devices::{self, virtio};
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_abi::channel::CommandError;
use sluice_abi::config::{Grants, Kind, Vif, Virtio};
use sluice_abi::report::DomainState;
use sluice_platform::pci::BarAddresses;
use sluice_vif::MAX_VIFS;

impl Manager {
    /// Whether a peer may have a domain serve a device of a guest. By `grants = "all"` the server reaches the guest's memory. A control domain
    /// may give that away of domains that a command made, and to whom it is lent already.
    pub(super) fn may_attach(&self, peer: Peer, id: DomainId, virtio: &Virtio) -> bool {
        let server = self.entries.get(usize::from(virtio.by));
        let is_lent = server.is_some_and(|server| server.seats.serve(id));
        peer == Peer::Host || self.is_made(id) || is_lent
    }

    /// Whether a command made a domain.
    pub(super) fn is_made(&self, id: DomainId) -> bool {
        let entry = self.entries.get(id.index());
        entry.is_some_and(|entry| matches!(entry.source, Some(Source::Made(_))))
    }

    /// Gives a domain an interface on a network, which it has from now on, in this life and those to come.
    pub(super) fn attach_vif(&mut self, id: DomainId, network: &str, vif: Vif) -> Result<(), CommandError> {
        let index = devices::vif::index_of(network).ok_or(CommandError::NoSuchNetwork)?;
        let vif = Vif { network: index, ..vif };
        let guest = self.entries.get(id.index()).ok_or(CommandError::NoSuchDomain)?;
        if !vif.is_sound() {
            return Err(CommandError::BadConfiguration);
        }
        if devices::vif::network(index).is_none_or(|network| vif.mtu > network.mtu()) {
            return Err(CommandError::FrameTooLong);
        }
        let front = Seat::Virtual(vif.name.clone());
        if guest.seats.find(&front).is_some() {
            return Err(CommandError::NameTaken);
        }
        let others = self.entries.iter().filter(|entry| !entry.is_gone());
        let mut others = others.flat_map(|entry| &entry.config.vifs).filter(|other| other.network == index);
        if others.clone().count() >= MAX_VIFS || others.any(|other| other.mac == vif.mac) {
            return Err(CommandError::AddressTaken);
        }
        if guest.config.kind == Kind::Paravirtual || build::reaches_everything(&guest.config) {
            return Err(CommandError::NotAllowed);
        }
        if !guest.seats.has_room() {
            return Err(CommandError::NoSlot);
        }
        devices::add_vif(id, &guest.config, &vif);
        log::info!("domain {}: gets interface {} on network {network}", guest.config.name, vif.name);
        self.entries[id.index()].config.vifs.push(vif);
        self.seat(id, front.clone()).map_err(|error| {
            log::error!("the interface cannot be attached: {error}");
            self.entries[id.index()].seats.find(&front).into_iter().for_each(|slot| self.vacate(id, slot));
            error.as_command_error()
        })
    }

    /// Sets what can be set of a domain's interface.
    pub(super) fn set_vif(
        &mut self,
        id: DomainId,
        device: &str,
        set: impl FnOnce(Vif) -> Vif,
    ) -> Result<(), CommandError> {
        let entry = self.entries.get_mut(id.index()).ok_or(CommandError::NoSuchDomain)?;
        let vif = entry.config.vifs.iter_mut().find(|vif| vif.name == device);
        let vif = vif.ok_or(CommandError::NoSuchDevice)?;
        let wanted = set(vif.clone());
        if !wanted.is_sound() {
            return Err(CommandError::BadConfiguration);
        }
        devices::set_vif(id, &wanted);
        *vif = wanted;
        Ok(())
    }

    /// Gives a domain a virtual device, which it has from now on, in this life and those to come.
    pub(super) fn attach(&mut self, id: DomainId, virtio: Virtio) -> Result<(), CommandError> {
        let server = DomainId(virtio.by);
        let entry = |id: DomainId| self.entries.get(id.index()).ok_or(CommandError::NoSuchDomain);
        let (guest, by) = (entry(id)?, entry(server)?);
        if !virtio.is_sound() || server == id {
            return Err(CommandError::BadConfiguration);
        }
        let (front, back) = (Seat::Virtual(virtio.name.clone()), Seat::BackEnd(id, virtio.name.clone()));
        // The last device of this name may still be on its way out.
        let is_taken = guest.seats.find(&front).is_some();
        if is_taken || self.entries.iter().any(|entry| entry.seats.find(&back).is_some()) {
            return Err(CommandError::NameTaken);
        }
        if guest.config.grants == Grants::None {
            return Err(CommandError::NothingLent);
        }
        for entry in [guest, by] {
            if entry.config.kind == Kind::Paravirtual || build::reaches_everything(&entry.config) {
                return Err(CommandError::NotAllowed);
            }
            if !entry.seats.has_room() {
                return Err(CommandError::NoSlot);
            }
        }
        virtio::add(id, &guest.config, &virtio, &by.config.name);
        let (to, of, name) = (guest.config.name.clone(), by.config.name.clone(), virtio.name.clone());
        log::info!("domain {to}: gets device {name}, which {of} serves");
        self.entries[id.index()].config.virtio.push(virtio);
        // First who serves it, so that the guest finds somebody.
        let seated = self.seat(server, back).and_then(|()| self.seat(id, front.clone()));
        if let Err(error) = &seated {
            log::error!("domain {to}: the device cannot be attached: {error}");
            match self.entries[id.index()].seats.find(&front) {
                Some(slot) => self.vacate(id, slot),
                None => self.drop_device(id, &name),
            }
        }
        seated.map_err(|error| error.as_command_error())
    }

    /// Asks a domain for a virtual device, or takes it.
    pub(super) fn detach(&mut self, id: DomainId, device: &str, force: bool) -> Result<(), CommandError> {
        let entry = self.entries.get(id.index()).ok_or(CommandError::NoSuchDomain)?;
        let slot = entry.seats.find(&Seat::Virtual(device.into())).ok_or(CommandError::NoSuchDevice)?;
        if force {
            if let Some(domain) = &entry.live {
                domain.deaden(slot);
            }
            self.drop_device(id, device);
        }
        self.withdraw(id, slot);
        Ok(())
    }

    /// Gives a domain's slot to something, which comes to it at once if the domain lives.
    fn seat(&mut self, id: DomainId, seat: Seat) -> Result<(), build::BuildError> {
        let Some(entry) = self.entries.get_mut(id.index()) else { return Ok(()) };
        let slot = entry.seats.take(seat.clone());
        if let (Some(domain), Some(slot)) = (&entry.live, slot) {
            let mut nowhere = [BarAddresses::nowhere(), BarAddresses::nowhere()];
            build::plug(domain, slot, &seat, &mut nowhere)?;
            domain.announce_plugged(slot);
        }
        Ok(())
    }

    /// Asks a domain for what is in a slot; one that could not answer is not asked.
    fn withdraw(&mut self, id: DomainId, slot: u8) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        let runs = |state: DomainState| matches!(state, DomainState::Running | DomainState::Paused);
        match entry.live.as_ref().filter(|domain| runs(domain.state())) {
            Some(domain) => {
                entry.seats.ask_for(slot);
                domain.ask_for(slot);
            }
            None => self.vacate(id, slot),
        }
    }

    /// Empties a slot of a domain.
    fn vacate(&mut self, id: DomainId, slot: u8) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        if let Some(domain) = &entry.live {
            domain.unplug(slot);
        }
        match entry.seats.leave(slot) {
            Some(Seat::Virtual(device)) => {
                log::info!("domain {}: has device {device} no more", entry.config.name);
                self.drop_device(id, &device);
            }
            Some(Seat::BackEnd(guest, _)) => {
                let still = entry.seats.serve(guest);
                if let Some(domain) = entry.live.as_ref().filter(|_| !still) {
                    domain.stop_serving(guest);
                }
            }
            Some(Seat::Iommu) => virtio::remove_iommu(id),
            Some(Seat::Device(_) | Seat::Channel | Seat::Controller(_)) | None => {}
        }
    }

    /// Forgets a device that is behind no slot of its guest any more, or not yet. Who serves it is asked for its part.
    fn drop_device(&mut self, id: DomainId, device: &str) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        entry.config.virtio.retain(|virtio| virtio.name != device);
        entry.config.vifs.retain(|vif| vif.name != device);
        devices::remove(id, device);
        let back = Seat::BackEnd(id, device.into());
        for server in self.ids() {
            let slot = self.entries.get(server.index()).and_then(|entry| entry.seats.find(&back));
            if let Some(slot) = slot {
                self.withdraw(server, slot);
            }
        }
    }

    /// Empties the slots that domains have let go of.
    pub(super) fn take_ejected(&mut self) {
        for id in self.ids() {
            let Some(domain) = self.entries.get(id.index()).and_then(|entry| entry.live.clone()) else {
                continue;
            };
            while let Some(slot) = domain.take_ejected() {
                self.vacate(id, slot);
            }
        }
    }

    /// A domain has ended: what it was asked for is gone from it, and all that it had if it is gone for good.
    pub(super) fn settle_slots(&mut self, id: DomainId) {
        let Some(entry) = self.entries.get(id.index()) else { return };
        let is_gone = entry.is_gone();
        let slots = entry.seats.iter().map(|(slot, _)| slot);
        let slots: Vec<u8> = slots.filter(|slot| is_gone || entry.seats.is_leaving(*slot)).collect();
        slots.into_iter().for_each(|slot| self.vacate(id, slot));
    }
}
