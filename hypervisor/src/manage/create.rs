//! Domains that are made while the machine runs: their bundle comes by the channel, in pieces.
//!
//! It is a bundle like the boot loader's, and checked by the same rules. Beyond them, who can make domains may not gain what the
//! configuration has not given: a domain that is made so has no stream to the channel of its own, reaches devices by their protected ways
//! only, and no device that another domain owns.

use super::{Entry, Manager, Source};
use crate::devices;
use crate::mm::Buffer;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_abi::bundle::{self, Bundle};
use sluice_abi::channel::CommandError;
use sluice_abi::config::{self, Attachment, Config, Dma, MAX_DOMAINS};

/// Whether a device is had in no way that endangers others.
fn is_protected(share: &config::Share) -> bool {
    match &share.attachment {
        Attachment::Passthrough(options) => {
            options.dma != Dma::Unprotected && !options.interrupts_unprotected
        }
        Attachment::Vpio(options) => !options.registers_unprotected,
        Attachment::Emulated(_) | Attachment::Sectors(_) => true,
    }
}

impl Manager {
    /// Takes a piece of a bundle; the first one says how long all of it is, and replaces whatever was there.
    pub(super) fn upload(&mut self, offset: u64, total: u64, bytes: &[u8]) -> Result<(), CommandError> {
        if offset == 0 {
            self.upload = None;
            let total = usize::try_from(total).map_err(|_| CommandError::OutOfMemory)?;
            self.upload = Some(Buffer::new(total).ok_or(CommandError::OutOfMemory)?);
        }
        let buffer = self.upload.as_mut().ok_or(CommandError::WrongState)?;
        if buffer.len() as u64 == offset && buffer.append(bytes) {
            Ok(())
        } else {
            Err(CommandError::WrongState)
        }
    }

    /// Adds the domains of the bundle that has come; none of them runs yet.
    pub(super) fn create(&mut self) -> Result<(), CommandError> {
        let buffer = self.upload.take_if(|buffer| buffer.is_full()).ok_or(CommandError::WrongState)?;
        let configuration = Bundle::new(buffer.bytes()).get(bundle::CONFIG);
        let decoded: Option<Config> = configuration.and_then(|bytes| postcard::from_bytes(bytes).ok());
        let mut decoded =
            decoded.filter(|config| config.version == config::VERSION && config.check().is_ok());
        let config = decoded.as_mut().ok_or(CommandError::BadConfiguration)?;
        let mut places = Vec::new();
        for domain in &config.domains {
            if domain.control || !domain.devices.iter().all(is_protected) {
                return Err(CommandError::NotAllowed);
            }
            let place = self.place(&domain.name, &places)?;
            places.push(place);
        }
        for domain in &mut config.domains {
            let owned = domain.devices.iter_mut().map(|share| &mut share.device);
            let behind = domain.virtio.iter_mut().filter_map(|virtio| virtio.identity.as_mut());
            for index in owned.chain(behind) {
                let wanted = config.devices.get(usize::from(*index));
                *index = wanted.and_then(devices::index_of).ok_or(CommandError::NoSuchDevice)?;
            }
        }
        let servers = self.servers(config, &places)?;
        let networks: Vec<String> = config.networks.iter().map(|network| network.name.clone()).collect();
        let source = Arc::new(buffer);
        let mut wanted = Vec::new();
        for (mut domain, place) in core::mem::take(&mut config.domains).into_iter().zip(places) {
            log::info!("domain {}: made by a command", domain.name);
            wanted.push((place, core::mem::take(&mut domain.virtio), core::mem::take(&mut domain.vifs)));
            let entry = Entry::new(domain, Some(Source::Made(source.clone())), self.keeps_consoles);
            match self.entries.get_mut(place) {
                Some(old) => *old = entry,
                None => self.entries.push(entry),
            }
        }
        let made = self.attach_all(&wanted, &servers, &networks);
        if made.is_err() {
            for (place, ..) in &wanted {
                self.entries[*place].source = None;
                DomainId::at(*place).into_iter().for_each(|id| self.settle_slots(id));
            }
        }
        let hello = self.hello();
        self.send(&hello);
        for state in self.states() {
            self.send(&state);
        }
        made
    }

    /// Who serves devices of domains that are made, in the order in which [`Virtio::by`](config::Virtio::by) counts: those that are made, at
    /// their places, and those that the configuration calls its neighbours.
    fn servers(&self, config: &Config, places: &[usize]) -> Result<Vec<u16>, CommandError> {
        let neighbour = |name: &String| {
            let place = self.entries.iter().position(|entry| entry.config.name == *name && !entry.is_over());
            place.ok_or(CommandError::NoSuchDomain)
        };
        let places = places.iter().copied().map(Ok).chain(config.neighbours.iter().map(neighbour));
        places.map(|place| Ok(DomainId::at(place?).ok_or(CommandError::TooManyDomains)?.0)).collect()
    }

    /// Gives domains their virtual devices; `servers` are those that [`Virtio::by`](config::Virtio::by) counts, `networks` those of their interfaces.
    fn attach_all(
        &mut self,
        wanted: &[(usize, Vec<config::Virtio>, Vec<config::Vif>)],
        servers: &[u16],
        networks: &[String],
    ) -> Result<(), CommandError> {
        for (place, devices, vifs) in wanted {
            let id = DomainId::at(*place).ok_or(CommandError::TooManyDomains)?;
            for device in devices {
                let by = servers.get(usize::from(device.by)).ok_or(CommandError::NoSuchDomain)?;
                self.attach(id, config::Virtio { by: *by, ..device.clone() })?;
            }
            for vif in vifs {
                let network = networks.get(usize::from(vif.network)).ok_or(CommandError::NoSuchNetwork)?;
                self.attach_vif(id, network, vif.clone())?;
            }
        }
        Ok(())
    }

    /// Where a new domain of this name goes: to the place of one that was made, ended and is called like it, or to a new place, or to
    /// that of any that was made and is gone. `taken` are places of others that are being made.
    fn place(&self, name: &str, taken: &[usize]) -> Result<usize, CommandError> {
        let free = |place: &usize| !taken.contains(place);
        let called = self.entries.iter().position(|entry| entry.config.name == name);
        if let Some(place) = called {
            let entry = self.entries.get(place).filter(|entry| entry.is_over());
            return entry.map(|_| place).filter(free).ok_or(CommandError::NameTaken);
        }
        let new = self.entries.len() + taken.iter().filter(|place| **place >= self.entries.len()).count();
        if new < MAX_DOMAINS {
            return Ok(new);
        }
        let gone = (0..self.entries.len()).filter(free);
        let mut gone = gone.filter(|place| self.entries.get(*place).is_some_and(Entry::is_gone));
        gone.next().ok_or(CommandError::TooManyDomains)
    }
}
