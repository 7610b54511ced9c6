//! A physical card that the hypervisor drives, for guests that see software cards (`mode = "emulated"`).
//!
//! Key types: [`Emulated`] (the physical card and the shared behind it), [`Station`] (a guest's card as its PCI bus shows
//! it). `sluice_emulated` decides what happens; this module brings it registers, memory and guests. It is under the
//! lock of the device, as a monitor is.

mod hardware;
mod mirror;
mod station;

pub use station::Station;

use super::{AttachError, Client, Device, Seat, Windows};
use crate::domain::{Domain, VirtualFunction};
use crate::iommu::{DmaEndpoint, Owner};
use crate::x86::tsc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use hardware::Hardware;
use mirror::Mirror;
use sluice_abi::DomainId;
use sluice_abi::config::{self, Mode, NicModel};
use sluice_abi::report::{Count, ShareReport};
use sluice_emulated::{DirectPolicy, Environment, Guests, Handoffs, PortId, SharedNic};
use sluice_iommu::SpaceTag;
use sluice_memory::{Gpa, Hpa};
use sluice_nic::dma::{Dma, DmaError};

/// A guest's memory, as its card reaches it: by guest-physical addresses, every access validated.
pub(super) struct Memory(Arc<Domain>);

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(Gpa::new(address), buffer).map_err(|_| DmaError)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.write(Gpa::new(address), bytes).map_err(|_| DmaError)
    }
}

/// The guests of a device.
pub(super) struct Clients<'a> {
    clients: &'a [Client],
    /// Where its driver's memory is for the card.
    home: Option<(DmaEndpoint, SpaceTag, Hpa)>,
}

impl Clients<'_> {
    fn domain(&self, port: PortId) -> Option<Arc<Domain>> {
        self.clients.iter().find(|client| client.seat == Seat::Port(port))?.domain.upgrade()
    }
}

impl Guests for Clients<'_> {
    type Memory = Memory;

    fn memory(&mut self, port: PortId) -> Option<Memory> {
        self.domain(port).map(Memory)
    }

    fn confine_dma(&mut self, to: Option<PortId>) -> bool {
        let Some((endpoint, tag, root)) = self.home else { return false };
        let domain = to.and_then(|port| self.domain(port));
        let guest = domain.and_then(|domain| Some((Owner::Domain(domain.id), domain.device_space()?)));
        let (owner, (tag, root)) = guest.unwrap_or((Owner::Hypervisor, (tag, root)));
        endpoint.attach(tag, root);
        // What the card asks for is this owner's doing from now on.
        endpoint.release();
        if endpoint.claim(owner).is_err() {
            log::error!("a card that was the hypervisor's has another owner");
        }
        to.is_none() || guest.is_some()
    }
}

/// A physical card on the wire, and the guests' cards behind it.
pub(super) struct Emulated {
    mode: Mode,
    shared: SharedNic,
    hardware: Hardware,
}

impl Emulated {
    /// Takes a device that nobody has: it is on the wire.
    pub fn start(device: &Device, mode: Mode) -> Result<Self, AttachError> {
        let function = &device.function;
        let missing = if mode == Mode::Vpio { AttachError::NoModel } else { AttachError::NoDriver };
        let uplink = sluice_uplink::for_device(function.vendor, function.device).ok_or(missing)?;
        let hardware = Hardware::take(device, &*uplink)?;
        let mut emulated = Self { mode, shared: SharedNic::new(uplink), hardware };
        let Self { shared, hardware, .. } = &mut emulated;
        if !shared.start(&mut hardware.card()) {
            emulated.stop(device);
            return Err(AttachError::NoAnswer);
        }
        log::info!("device {}: on the wire, driven as {}", device.name, emulated.shared.uplink().name());
        Ok(emulated)
    }

    /// Gives the device back: off the wire and off the bus.
    pub fn stop(mut self, device: &Device) {
        let Self { shared, hardware, .. } = &mut self;
        shared.stop(&mut hardware.card());
        let counters = shared.uplink().counters();
        log::info!("device {}: off the wire after {counters:?}", device.name);
        self.hardware.give_back(device);
    }

    /// How its guests share it: in one mode, all of them.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How reports call a device in this mode.
    pub fn name(&self) -> &'static str {
        if self.mode == Mode::Vpio { self.shared.uplink().name() } else { "emulated" }
    }

    /// Plugs in a card for the guest with this index.
    pub fn plug_in(
        &mut self,
        model: NicModel,
        mac: [u8; 6],
        (domain, slot): (DomainId, u8),
        (policy, weight): (DirectPolicy, u8),
        windows: &mut Windows,
    ) -> Result<Station, AttachError> {
        let port = self.shared.attach(model, mac).map_err(|_| AttachError::TooMany)?;
        let card = Station::new(port, model, slot, windows).ok_or(AttachError::NoRoom);
        let card = card.and_then(|card| {
            if self.mode == Mode::Vpio { self.mirror(card, domain, policy, weight) } else { Ok(card) }
        });
        if card.is_err() {
            self.shared.detach(port);
        }
        card
    }

    /// Shows a guest its card in memory.
    fn mirror(
        &mut self,
        card: Station,
        domain: DomainId,
        policy: DirectPolicy,
        weight: u8,
    ) -> Result<Station, AttachError> {
        let mirror = Mirror::new(domain).ok_or(AttachError::OutOfMemory)?;
        self.shared.show(card.port(), Box::new(mirror.clone()));
        self.shared.allow(card.port(), policy);
        self.shared.set_weight(card.port(), weight);
        let shown = self.shared.shown(card.port());
        Ok(card.mirrored(mirror, shown))
    }

    /// Runs `act` on the shared card, then carries the lines that changed to their guests. Returns the time at which to
    /// poll, too.
    pub fn with<R>(
        &mut self,
        clients: &[Client],
        act: impl FnOnce(&mut SharedNic, &mut Environment<'_, Clients<'_>>) -> R,
    ) -> (R, Option<u64>) {
        let Self { shared, hardware, .. } = self;
        let mut guests = Clients { clients, home: hardware.home() };
        let now = tsc::uptime_ns();
        let mut env = Environment { card: hardware.card(), guests: &mut guests, now, clock: &tsc::uptime_ns };
        let result = act(shared, &mut env);
        loop {
            let changes = shared.take_changes();
            if changes.is_empty() {
                break;
            }
            for client in clients {
                let Seat::Port(port) = client.seat else { continue };
                let changed = (changes.shown | changes.lines | changes.resumes) & port.bit() != 0;
                let Some((domain, share)) = client.both().filter(|_| changed) else { continue };
                if changes.shown & port.bit() != 0 {
                    share.show(&domain, client.index, shared.shown(port), shared.line(port));
                }
                if changes.lines & port.bit() != 0 {
                    domain.set_line(share.pin(), shared.line(port));
                }
                if changes.resumes & port.bit() != 0 {
                    let wait = shared.resumes_at(port).map(|at| at.saturating_sub(tsc::uptime_ns()));
                    let at =
                        wait.map_or(u64::MAX, |wait| tsc::now().saturating_add(tsc::ticks_from_ns(wait)));
                    share.resume_at(&domain, at);
                }
            }
            shared.carried_out(&mut env, changes.shown);
        }
        (result, shared.deadline())
    }

    /// Level of the line of a guest's card.
    pub fn line(&self, port: PortId) -> bool {
        self.shared.line(port)
    }

    /// How often the card changed hands, and the guest that has it.
    pub fn handoffs(&self) -> (Handoffs, Option<PortId>) {
        (self.shared.handoffs(), self.shared.holder())
    }

    /// The counters of one guest.
    pub fn report(&self, domain: &str, port: PortId) -> ShareReport {
        let counters = self.shared.counters(port).unwrap_or_default();
        let count = |(name, value): (&str, u64)| Count { name: name.into(), value };
        ShareReport {
            domain: domain.into(),
            mode: if self.mode == Mode::Vpio { "vpio" } else { "emulated" }.into(),
            hooked_elements: counters.elements,
            hooked_instructions: counters.instructions,
            hooked_by_register: self.shared.by_register(port).map(count).collect(),
            tx_packets: counters.tx_packets,
            tx_dropped: counters.tx_dropped,
            rx_packets: counters.rx_packets,
            rx_dropped: counters.rx_dropped,
            forged: counters.forged,
            refused: counters.refused,
            ..ShareReport::default()
        }
    }
}

/// The card that a guest sees, and its address, if there is a driver for the physical one.
pub(super) fn wanted(device: &Device, share: &config::Share) -> Result<(NicModel, [u8; 6]), AttachError> {
    let function = &device.function;
    let like = NicModel::of(function.vendor, function.device).ok_or(AttachError::NoDriver)?;
    let model = share.model.unwrap_or(like);
    let sees = sluice_emulated::describe(model);
    if share.mode == Mode::Vpio && (sees.vendor, sees.device) != (function.vendor, function.device) {
        return Err(AttachError::NoModel);
    }
    Ok((model, share.mac.ok_or(AttachError::NoMac)?))
}
