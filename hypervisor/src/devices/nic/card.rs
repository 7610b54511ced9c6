//! A physical card that the hypervisor drives, and the guests' cards behind it.

use super::super::device::Device;
use super::super::error::AttachError;
use super::super::guest::Guest;
use super::super::hardware::Hardware;
use super::super::told::Told;
use super::NicFunction;
use super::bars::Bars;
use super::mirror::Mirror;
use crate::domain::Domain;
use crate::iommu::{DmaEndpoint, Owner};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_abi::config::{Emulated, Mode, NicModel, Reaction, Vpio};
use sluice_abi::report::{Count, DeviceReport, ShareReport};
use sluice_emulated::{DirectPolicy, Environment, Guests, Handoffs, PAGES, PortId, SharedNic, Shown};
use sluice_iommu::SpaceTag;
use sluice_memory::{Gpa, Hpa};
use sluice_nic::dma::{Dma, DmaError};
use sluice_platform::pci::BarAddresses;

/// The software card that a guest is to have.
pub struct CardChoice {
    model: NicModel,
    mac: [u8; 6],
    /// What the guest may do with the card's registers without an exit; `None`: nothing.
    direct: Option<DirectChoice>,
    /// What the guest sees of refused transfers; `None`: what its card says of them by itself.
    reaction: Option<Reaction>,
}

/// How a guest has registers without an exit: in a mirror, and those of the physical card while it is alone.
struct DirectChoice {
    policy: DirectPolicy,
    weight: u8,
}

impl CardChoice {
    /// A card like the physical one, whose registers the guest can have without an exit.
    ///
    /// # Errors
    /// No model knows the physical card, or the guest wants another one.
    pub fn like_physical(device: &Device, options: &Vpio) -> Result<Self, AttachError> {
        let pci::Function { vendor, device: id, .. } = device.function;
        let like = NicModel::of(vendor, id).ok_or(AttachError::NoModel)?;
        let model = options.model.unwrap_or(like);
        let sees = sluice_emulated::describe(model);
        if (sees.vendor, sees.device) != (vendor, id) {
            return Err(AttachError::NoModel);
        }
        let policy = direct_policy(device, options.registers_unprotected);
        let direct = Some(DirectChoice { policy, weight: options.weight });
        Ok(Self { model, mac: options.mac, direct, reaction: options.refusals.others })
    }

    /// A card of any model, all of whose accesses exit.
    ///
    /// # Errors
    /// There is no driver for the physical card.
    pub fn any(device: &Device, options: &Emulated) -> Result<Self, AttachError> {
        let pci::Function { vendor, device: id, .. } = device.function;
        let like = NicModel::of(vendor, id).ok_or(AttachError::NoDriver)?;
        Ok(Self { model: options.model.unwrap_or(like), mac: options.mac, direct: None, reaction: None })
    }
}

/// What a guest may do with the physical card when it is alone: something, if it reaches its own memory with it and nothing else.
fn direct_policy(device: &Device, registers_unprotected: bool) -> DirectPolicy {
    match device.containment().is_complete() && device.has_own_pages {
        true if registers_unprotected => DirectPolicy::Open,
        true => DirectPolicy::Guarded,
        false => DirectPolicy::Never,
    }
}

/// A guest's memory, as its card reaches it: by guest-physical addresses, every access validated.
pub struct Memory(Arc<Domain>);

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(Gpa::new(address), buffer).map_err(|_| DmaError)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.write(Gpa::new(address), bytes).map_err(|_| DmaError)
    }
}

/// A guest's card at its port of the switch.
struct Plugged {
    port: PortId,
    function: Arc<NicFunction>,
}

/// The memory of the guests, for their cards and for the physical one.
pub struct GuestMemories<'a> {
    plugged: &'a [Plugged],
    /// Where its driver's memory is for the physical card, behind an IOMMU.
    home: Option<(DmaEndpoint, SpaceTag, Hpa)>,
}

impl GuestMemories<'_> {
    fn domain(&self, port: PortId) -> Option<Arc<Domain>> {
        let plugged = self.plugged.iter().find(|plugged| plugged.port == port)?;
        plugged.function.guest.domain().map(|(domain, _)| domain)
    }
}

impl Guests for GuestMemories<'_> {
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
pub struct Card {
    device: Arc<Device>,
    /// How its guests have it: in one mode, all of them.
    mode: Mode,
    state: SpinLock<State>,
}

struct State {
    shared: SharedNic,
    /// The way to the physical card; `None` once it is off the wire.
    hardware: Option<Hardware>,
    plugged: Vec<Plugged>,
}

impl Card {
    /// Takes a device that nobody has: it is on the wire.
    ///
    /// # Errors
    /// Says why it cannot be driven.
    pub fn start(device: &Arc<Device>, mode: Mode) -> Result<Arc<Self>, AttachError> {
        let pci::Function { vendor, device: id, .. } = device.function;
        let uplink = sluice_uplink::for_device(vendor, id, &|offset| device.function.bdf.read(offset))
            .ok_or(AttachError::NoDriver)?;
        let mut hardware = Hardware::take(device, uplink.bar(), uplink.memory())?;
        let mut shared = SharedNic::new(uplink);
        if let Some(rate) = device.rate {
            shared.limit(rate);
        }
        let answers = shared.start(&mut hardware.card());
        let state = State { shared, hardware: Some(hardware), plugged: Vec::new() };
        let card = Self { device: device.clone(), mode, state: SpinLock::new(Rank::Card, state) };
        if !answers {
            card.stop();
            return Err(AttachError::NoAnswer);
        }
        log::info!("device {}: on the wire, driven as {}", device.name, card.driver());
        Ok(Arc::new(card))
    }

    /// Gives the device back: off the wire and off the bus. Returns how often it changed hands.
    pub fn stop(&self) -> Handoffs {
        let mut state = self.state.lock();
        let State { shared, hardware, .. } = &mut *state;
        let handoffs = shared.handoffs();
        if let Some(mut hardware) = hardware.take() {
            shared.stop(&mut hardware.card());
            let sluice_uplink::Counters { sent, received, overruns, restarts } = shared.uplink().counters();
            log::info!(
                "device {}: off the wire, {sent} frames sent, {received} received, {overruns} overruns, {restarts} restarts",
                self.device.name
            );
            hardware.give_back(&self.device);
        }
        handoffs
    }

    /// The physical function.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How its guests have it: in one mode, all of them.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    fn driver(&self) -> &'static str {
        self.state.lock().shared.uplink().name()
    }

    /// How reports call a device that is shared so: by the model that its guests' accesses follow.
    pub fn model(&self) -> &'static str {
        if self.mode == Mode::Vpio { self.driver() } else { self.mode.word() }
    }

    /// Plugs in a card for a guest.
    ///
    /// # Errors
    /// Says what there is not enough of.
    pub fn plug_in(
        self: &Arc<Self>,
        choice: &CardChoice,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<NicFunction>, AttachError> {
        let description = sluice_emulated::describe(choice.model);
        let mut state = self.state.lock();
        let State { shared, plugged, .. } = &mut *state;
        let port = shared.attach(choice.model, choice.mac).map_err(|_| AttachError::TooMany)?;
        let bars = Bars::new(&description, guest.slot, addresses).ok_or(AttachError::NoRoom);
        let bars = bars.and_then(|bars| match &choice.direct {
            Some(direct) => show_registers(shared, port, guest.id, bars, direct),
            None => Ok((bars, Shown::default())),
        });
        if bars.is_err() {
            shared.detach(port);
        }
        if choice.reaction == Some(Reaction::Discard) {
            shared.keep_quiet(port);
        }
        let told = Told::new(choice.reaction);
        let function = Arc::new(NicFunction::new(self.clone(), port, guest, description, bars?, told));
        plugged.push(Plugged { port, function: function.clone() });
        Ok(function)
    }

    /// Unplugs the card of a guest. Returns what it did.
    pub fn unplug(&self, port: PortId) -> Option<ShareReport> {
        let report = {
            let state = self.state.lock();
            let plugged = state.plugged.iter().find(|plugged| plugged.port == port);
            plugged.map(|plugged| self.share_report(&state.shared, plugged))
        };
        self.with(|shared, env| shared.unplug(env, port));
        self.state.lock().plugged.retain(|plugged| plugged.port != port);
        report
    }

    /// Whether guests have cards behind it.
    pub fn has_guests(&self) -> bool {
        !self.state.lock().plugged.is_empty()
    }

    /// Runs `act` on the shared card, then carries what changed to its guests. `None` if the card is off the wire.
    pub fn with<R>(
        &self,
        act: impl FnOnce(&mut SharedNic, &mut Environment<'_, GuestMemories<'_>>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        let State { shared, hardware, plugged } = &mut *state;
        let hardware = hardware.as_mut()?;
        let mut guests = GuestMemories { plugged, home: hardware.home() };
        let now = tsc::uptime_ns();
        let mut env = Environment { card: hardware.card(), guests: &mut guests, now, clock: &tsc::uptime_ns };
        let result = act(shared, &mut env);
        loop {
            let changes = shared.take_changes();
            if changes.is_empty() {
                break;
            }
            for Plugged { port, function } in plugged.iter() {
                if (changes.shown | changes.lines | changes.resumes) & port.bit() == 0 {
                    continue;
                }
                let Some((domain, index)) = function.guest.domain() else { continue };
                if changes.shown & port.bit() != 0 {
                    function.show(&domain, index, shared.shown(*port), shared.line(*port));
                }
                if changes.lines & port.bit() != 0 {
                    domain.set_line(function.guest.pin, shared.line(*port));
                }
                if changes.resumes & port.bit() != 0 {
                    let wait = shared.resumes_at(*port).map(|at| at.saturating_sub(tsc::uptime_ns()));
                    let at =
                        wait.map_or(u64::MAX, |wait| tsc::now().saturating_add(tsc::ticks_from_ns(wait)));
                    function.own_time.set(&domain, at);
                }
            }
            shared.carried_out(&mut env, changes.shown);
        }
        self.device.poll_next(shared.deadline());
        Some(result)
    }

    /// Runs `act` on the level of the line of a guest's card, which does not change meanwhile.
    pub fn with_line(&self, port: PortId, act: impl FnOnce(bool)) {
        let state = self.state.lock();
        act(state.shared.line(port));
    }

    /// A guest is about to end an interrupt: runs `act` on the level that the line of its card has now, which does not change meanwhile.
    pub fn end_of_interrupt(&self, port: PortId, act: impl FnOnce(bool)) {
        let mut state = self.state.lock();
        act(state.shared.end_of_interrupt(port));
    }

    /// The physical line went up.
    pub fn interrupt(&self) {
        self.with(|shared, env| shared.interrupt(env));
        // Held until the guest's line is up: who has the card now has it then.
        let state = self.state.lock();
        let Some(holder) = state.shared.holder() else { return self.device.unmask() };
        let Some(plugged) = state.plugged.iter().find(|plugged| plugged.port == holder) else { return };
        if let Some((domain, _)) = plugged.function.guest.domain() {
            plugged.function.line.raise(&domain, &plugged.function.guest);
        }
    }

    /// It is the time that the shared card asked for.
    pub fn poll(&self) {
        self.with(|shared, env| shared.poll(env));
    }

    /// Adds what the present guests did.
    pub fn add_to(&self, report: &mut DeviceReport) {
        let state = self.state.lock();
        let State { shared, plugged, .. } = &*state;
        let Handoffs { all, forced } = shared.handoffs();
        report.handoffs += all;
        report.forced += forced;
        let holder = plugged.iter().find(|plugged| shared.holder() == Some(plugged.port));
        report.holder = holder.map(|plugged| plugged.function.guest.name.clone());
        plugged.iter().for_each(|plugged| self.share_report(shared, plugged).add_to(&mut report.shares));
    }

    fn share_report(&self, shared: &SharedNic, plugged: &Plugged) -> ShareReport {
        let counters = shared.counters(plugged.port).unwrap_or_default();
        let count = |(name, value): (&str, u64)| Count { name: name.into(), value };
        ShareReport {
            domain: plugged.function.guest.name.clone(),
            mode: self.mode.word().into(),
            hooked_elements: counters.elements,
            hooked_instructions: counters.instructions,
            hooked_by_register: shared.by_register(plugged.port).map(count).collect(),
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

/// Shows a guest its card's registers in memory.
fn show_registers(
    shared: &mut SharedNic,
    port: PortId,
    domain: DomainId,
    bars: Bars,
    direct: &DirectChoice,
) -> Result<(Bars, Shown), AttachError> {
    let mirror = Mirror::new(domain, PAGES).ok_or(AttachError::OutOfMemory)?;
    shared.show(port, Box::new(mirror.clone()));
    shared.allow(port, direct.policy);
    shared.set_weight(port, direct.weight);
    Ok((bars.mirrored(mirror), shared.shown(port)))
}
