//! Physical devices and the domains that share them.
//!
//! Key types: [`Device`] (one physical function), [`Share`] (one domain's part in it). Neighbours:
//! `sluice_vpio` decides, this module carries out: it makes the accesses, keeps the domains' trap
//! tables in step with the hooks that the monitor wants, moves interrupt lines, wakes who waits.

mod assigned;
mod emulated;
mod raw;
mod share;

pub use assigned::Windows;
pub use share::Share;

use crate::cpu::{self, apic};
use crate::domain::vcpu::Vcpu;
use crate::domain::{Domain, VirtualFunction};
use crate::handover::BootInfo;
use crate::iommu::{self, DmaEndpoint, Owner};
use crate::sync::{Once, Rank, SpinLock};
use crate::x86::tsc;
use crate::{irq, pci};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use assigned::Assigned;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use emulated::{Clients, Emulated};
use irq::{line, message};
use pci::{Bdf, bars, reset};
use raw::SharedPorts;
use sluice_abi::DomainId;
use sluice_abi::config::{self, Mode};
use sluice_abi::report::{DeviceReport, ShareReport};
use sluice_emulated::{DirectPolicy, Environment, PortId, SharedNic};
use sluice_iommu::RequesterId;
use sluice_vpio::{Changes, ClientId, Monitor, Policy, Timing};

/// Most devices of a configuration: a bit each in a [`line::Line`].
const MAX_DEVICES: usize = 64;

/// For how long messages that come without end are held back.
const HELD_NS: u64 = 1_000_000;

/// What reports call a device without a monitor.
const PASSTHROUGH: &str = "passthrough";

/// Why a device cannot be given to a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The configuration names a device that it does not declare.
    NoSuchDevice,
    /// Another domain owns it, or uses it in another mode.
    Busy,
    /// No device state model knows it; virtual passthrough needs one.
    NoModel,
    /// The mode needs a station address.
    NoMac,
    /// It can master the bus and no IOMMU stands before it.
    UnprotectedDma,
    /// It can master the bus, and the IOMMU before it does not remap interrupts.
    UnprotectedInterrupts,
    /// The IOMMU cannot tell it from a device that another domain owns.
    GroupBusy,
    /// Firmware wants it to reach memory of its own.
    FirmwareMemory,
    /// It has no port range, which is all that can be shared.
    NoPorts,
    /// The model takes no more clients.
    TooMany,
    /// A memory BAR shares a page with something else, and no free page was found for it.
    SharedPage,
    /// Firmware gave one of its BARs no address.
    NoAddress,
    /// Its memory does not fit the guest's PCI window.
    NoRoom,
    /// It had an owner before, and there is no way to reset it.
    NoReset,
    /// The hypervisor has no driver for it; emulated mode needs one.
    NoDriver,
    /// It does not do what its driver says.
    NoAnswer,
    /// Not enough memory for its driver.
    OutOfMemory,
}

impl fmt::Display for AttachError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoSuchDevice => "the configuration does not declare it",
            Self::Busy => "another domain owns it, or uses it in another mode",
            Self::NoModel => "no device state model knows it; share it with mode = \"passthrough\"",
            Self::NoMac => "the mode needs a station address: mac = \"52:54:00:...\"",
            Self::UnprotectedDma => {
                "it can master the bus and no IOMMU contains it: its owner could reach all memory. To accept that, \
                 add dma = \"unprotected\" to its entry in the domain's devices"
            }
            Self::UnprotectedInterrupts => {
                "it can master the bus and the IOMMU does not remap interrupts: its owner could forge any interrupt. To \
                 accept that, add interrupts = \"unprotected\" to its entry in the domain's devices"
            }
            Self::GroupBusy => {
                "the IOMMU cannot tell it from a device that another domain owns (their group is in the report): \
                 give both to one domain"
            }
            Self::FirmwareMemory => "firmware wants it to reach memory of the firmware's, which no guest may",
            Self::NoPorts => "it has no port range, which mode = \"vpio\" needs",
            Self::TooMany => "its model takes no more guests",
            Self::SharedPage => "its registers share a page with another device's and cannot be moved",
            Self::NoAddress => "firmware gave one of its BARs no address",
            Self::NoRoom => "its memory does not fit the guest's PCI window",
            Self::NoReset => "it had an owner before and there is no way to reset it",
            Self::NoDriver => {
                "the hypervisor has no driver for it, which mode = \"emulated\" needs; share it with mode = \"passthrough\""
            }
            Self::NoAnswer => "it does not do what its driver tells it",
            Self::OutOfMemory => "there is not enough memory for its driver",
        })
    }
}

/// What a domain is to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// Its owner.
    Owner,
    /// A client of its monitor.
    Client(ClientId),
    /// At this port of the switch before it.
    Port(PortId),
}

impl Seat {
    fn client(self) -> Option<ClientId> {
        if let Self::Client(id) = self { Some(id) } else { None }
    }
}

/// A domain's registration with a device.
struct Client {
    domain: Weak<Domain>,
    name: String,
    share: Weak<Share>,
    /// DmaEndpoint of the share among the domain's functions.
    index: usize,
    seat: Seat,
    line: bool,
}

impl Client {
    /// The domain and its part, once both exist and as long as they do.
    fn both(&self) -> Option<(Arc<Domain>, Arc<Share>)> {
        Some((self.domain.upgrade()?, self.share.upgrade()?))
    }
}

enum Sharing {
    Free,
    Passthrough,
    Vpio(Box<Monitor>),
    Emulated(Box<Emulated>),
}

struct Inner {
    sharing: Sharing,
    clients: Vec<Client>,
    /// Counters of clients that are gone.
    past: Vec<ShareReport>,
    handoffs: u64,
    forced: u64,
    /// Model of the last monitor, or "passthrough".
    model: &'static str,
}

/// One physical function.
pub struct Device {
    index: usize,
    name: String,
    function: pci::Function,
    gsi: Option<u32>,
    ports: (u16, u16),
    /// Its small memory BARs are on pages of their own.
    separate: bool,
    reset: Option<reset::Method>,
    /// Where it stands behind an IOMMU.
    endpoint: Option<DmaEndpoint>,
    /// A guest has owned it.
    used: AtomicBool,
    /// TSC from which it may be used after a reset.
    ready_at: AtomicU64,
    inner: SpinLock<Inner>,
    asserted: AtomicBool,
    /// Its line is masked at the physical I/O APIC.
    masked: AtomicBool,
    interrupts: AtomicU64,
    /// TSC at which the monitor wants to be polled.
    poll_at: AtomicU64,
}

static DEVICES: Once<Vec<Arc<Device>>> = Once::new();

fn devices() -> &'static [Arc<Device>] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

/// Finds the configured devices.
///
/// # Errors
/// The index of a device that does not exist.
pub fn init(configured: &[config::Device], info: &BootInfo) -> Result<(), usize> {
    #[cfg(feature = "pack-bars")]
    bars::pack();
    let mut found = Vec::new();
    let mut places = bars::Places::new(info);
    for (index, device) in configured.iter().enumerate() {
        let mut function = pci::find(&device.select).filter(|_| index < MAX_DEVICES).ok_or(index)?;
        let separate = places.separate(&mut function);
        let gsi = function
            .pin
            .checked_sub(1)
            .and_then(|pin| crate::firmware::acpi::pci_gsi(function.bdf.bus, function.bdf.device, pin));
        let ports = function
            .bars
            .iter()
            .find(|bar| bar.io)
            .map_or((0, 0), |bar| (bar.address as u16, bar.size as u16));
        log::info!(
            "device {}: {} [{:04x}:{:04x}] ports {:#x}+{:#x} gsi {gsi:?}",
            device.name,
            function.bdf,
            function.vendor,
            function.device,
            ports.0,
            ports.1
        );
        for bar in function.bars.iter().filter(|bar| !bar.io) {
            log::info!("device {}: memory {:#x}+{:#x}", device.name, bar.address, bar.size);
        }
        found.push(Arc::new(Device {
            index,
            separate,
            reset: reset::method(&function),
            endpoint: iommu::endpoint_of(function.bdf),
            used: AtomicBool::new(false),
            ready_at: AtomicU64::new(0),
            name: device.name.clone(),
            function,
            gsi,
            ports,
            inner: SpinLock::new(
                Rank::Device,
                Inner {
                    sharing: Sharing::Free,
                    clients: Vec::new(),
                    past: Vec::new(),
                    handoffs: 0,
                    forced: 0,
                    model: PASSTHROUGH,
                },
            ),
            asserted: AtomicBool::new(false),
            masked: AtomicBool::new(true),
            interrupts: AtomicU64::new(0),
            poll_at: AtomicU64::new(u64::MAX),
        }));
    }
    DEVICES.call_once(|| found);
    let mut gsis: Vec<u32> = devices().iter().filter_map(|device| device.gsi).collect();
    gsis.sort_unstable();
    gsis.dedup();
    line::init(&gsis, line_interrupt);
    Ok(())
}

/// A physical interrupt of a line: silences it until it has been dealt with.
fn line_interrupt(vector: u8) {
    if let Some(line) = line::behind(vector) {
        let raised = line.raised();
        for device in devices().iter().filter(|device| raised & 1 << device.index != 0) {
            device.asserted.store(true, Ordering::SeqCst);
            device.masked.store(true, Ordering::SeqCst);
            device.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        irq::attend();
    }
    apic::eoi();
}

/// Deals with physical interrupts and with monitors whose time has come.
#[inline]
pub fn service(processor: u32) {
    iommu::service();
    if irq::take_pending() {
        for device in devices().iter().filter(|device| device.asserted.swap(false, Ordering::SeqCst)) {
            device.interrupt();
        }
        message::take(|device, message| {
            if let Some(device) = devices().get(device) {
                device.message(message);
            }
        });
    }
    if processor == cpu::device_server() {
        let now = tsc::now();
        for device in devices().iter().filter(|device| device.poll_at.load(Ordering::Relaxed) <= now) {
            device.poll_at.store(u64::MAX, Ordering::Relaxed);
            device.with_monitor(None, |_, _, _| ());
            device.with_shared_nic(|shared, env| shared.poll(env));
            device.let_through();
        }
    }
}

/// TSC at which a processor must call [`service`] at the latest.
pub fn next_poll(processor: u32) -> u64 {
    if processor != cpu::device_server() {
        return u64::MAX;
    }
    devices().iter().map(|device| device.poll_at.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
}

/// Where a device stands behind an IOMMU, if it masters the bus.
pub fn dma_endpoint(share: &config::Share) -> Option<DmaEndpoint> {
    // A guest's software card reaches memory by the hypervisor's hand.
    let device = devices().get(usize::from(share.device)).filter(|_| share.mode != Mode::Emulated)?;
    device.dma_endpoint()
}

/// Whether a share gives a guest a device that reaches all memory: there is no IOMMU before it.
pub fn reaches_everything(share: &config::Share) -> bool {
    let device = devices().get(usize::from(share.device));
    share.mode == Mode::Passthrough
        && device.is_some_and(|device| device.function.masters_bus() && device.endpoint.is_none())
}

/// Gives domain `domain`, called `name`, its part in a device, before the domain exists.
///
/// # Errors
/// Says why the domain cannot have it.
pub fn attach(
    share: &config::Share,
    domain: DomainId,
    name: &str,
    slot: u8,
    pin: u8,
    windows: &mut Windows,
) -> Result<Arc<Share>, AttachError> {
    let device = devices().get(usize::from(share.device)).ok_or(AttachError::NoSuchDevice)?.clone();
    let mut inner = device.inner.lock();
    if inner.clients.is_empty() {
        inner.sharing = Sharing::Free;
    }
    let (mut assigned, mut station) = (None, None);
    let seat = match share.mode {
        Mode::Passthrough => {
            if !matches!(inner.sharing, Sharing::Free) {
                return Err(AttachError::Busy);
            }
            device.may_be_owned(share)?;
            assigned = Some(Assigned::new(&device, windows).ok_or(AttachError::NoRoom)?);
            if let Some(endpoint) = device.dma_endpoint() {
                endpoint.claim(Owner::Domain(domain)).map_err(|iommu::Busy| AttachError::GroupBusy)?;
            }
            inner.sharing = Sharing::Passthrough;
            inner.model = PASSTHROUGH;
            Seat::Owner
        }
        Mode::Vpio if !device.function.masters_bus() => {
            let mac = share.mac.ok_or(AttachError::NoMac)?;
            if device.ports.1 == 0 {
                return Err(AttachError::NoPorts);
            }
            if let Sharing::Free = inner.sharing {
                let monitor =
                    Monitor::for_device(device.function.vendor, device.function.device, Timing::default())
                        .ok_or(AttachError::NoModel)?;
                inner.model = monitor.model_name();
                inner.sharing = Sharing::Vpio(Box::new(monitor));
            }
            let Sharing::Vpio(monitor) = &mut inner.sharing else { return Err(AttachError::Busy) };
            let client = monitor.attach(mac).map_err(|_| AttachError::TooMany)?;
            let max_wait = Some(u64::from(share.max_wait_ms) * 1_000_000).filter(|wait| *wait != 0);
            monitor.set_policy(client, Policy { weight: share.weight, max_wait });
            monitor.set_reactions(client, |register| share.refusals.reaction(register));
            Seat::Client(client)
        }
        Mode::Vpio | Mode::Emulated => {
            let (model, mac) = emulated::wanted(&device, share)?;
            if let Sharing::Free = inner.sharing {
                let emulated = Emulated::start(&device, share.mode)?;
                inner.model = emulated.name();
                inner.sharing = Sharing::Emulated(Box::new(emulated));
            }
            let Sharing::Emulated(emulated) = &mut inner.sharing else { return Err(AttachError::Busy) };
            if emulated.mode() != share.mode {
                return Err(AttachError::Busy);
            }
            match emulated.plug_in(model, mac, (domain, slot), (device.policy(share), share.weight), windows)
            {
                Ok(card) => {
                    let port = card.port();
                    station = Some(card);
                    Seat::Port(port)
                }
                Err(error) => {
                    device.rest(&mut inner);
                    return Err(error);
                }
            }
        }
    };
    device.wait_ready();
    match (seat, &assigned) {
        (_, Some(assigned)) => assigned.prepare(&device.function),
        (Seat::Port(_), None) => {}
        _ => device.function.bdf.set_command(pci::COMMAND_IO, pci::COMMAND_MASTER | pci::COMMAND_NO_INTX),
    }
    let share = Share::new(device.clone(), share.mode, seat, assigned, station, slot, pin);
    inner.clients.push(Client {
        domain: Weak::new(),
        name: name.to_string(),
        share: Arc::downgrade(&share),
        index: 0,
        seat,
        line: false,
    });
    drop(inner);
    Ok(share)
}

/// Name of the configured device that makes requests as `requester`.
pub fn name_of(requester: RequesterId) -> Option<String> {
    let is_it = |device: &&Arc<Device>| {
        let Bdf { bus, device, function } = device.function.bdf;
        RequesterId::new(bus, device, function) == requester
    };
    devices().iter().find(is_it).map(|device| device.name.clone())
}

/// All devices, for a report.
pub fn reports() -> Vec<DeviceReport> {
    devices().iter().map(|device| device.report()).collect()
}

impl Device {
    /// Where the function stands behind an IOMMU, if it masters the bus.
    fn dma_endpoint(&self) -> Option<DmaEndpoint> {
        self.endpoint.filter(|_| self.function.masters_bus())
    }

    /// What a guest may do with the function when it is alone: something, if it reaches its own memory with it and
    /// nothing else.
    fn policy(&self, share: &config::Share) -> DirectPolicy {
        let endpoint = self.dma_endpoint();
        match endpoint
            .filter(|endpoint| endpoint.remaps_interrupts() && endpoint.unity().is_empty() && self.separate)
        {
            None => DirectPolicy::Never,
            Some(_) if share.registers_unprotected => DirectPolicy::Open,
            Some(_) => DirectPolicy::Guarded,
        }
    }

    /// Whether a guest can own the function.
    fn may_be_owned(&self, share: &config::Share) -> Result<(), AttachError> {
        match self.endpoint {
            _ if !self.function.masters_bus() || share.dma_unprotected => {}
            None => return Err(AttachError::UnprotectedDma),
            Some(endpoint) if !endpoint.remaps_interrupts() && !share.interrupts_unprotected => {
                return Err(AttachError::UnprotectedInterrupts);
            }
            Some(_) => {}
        }
        if self.dma_endpoint().is_some_and(|endpoint| !endpoint.unity().is_empty()) {
            return Err(AttachError::FirmwareMemory);
        }
        if self.function.bars.iter().any(|bar| bar.address == 0) {
            return Err(AttachError::NoAddress);
        }
        if !self.separate {
            return Err(AttachError::SharedPage);
        }
        if self.used.load(Ordering::SeqCst) && self.reset.is_none() {
            return Err(AttachError::NoReset);
        }
        Ok(())
    }

    fn wait_ready(&self) {
        while tsc::now() < self.ready_at.load(Ordering::SeqCst) {
            core::hint::spin_loop();
        }
    }

    /// Nobody has the device any more, if so: it is silent, and free for any use.
    fn rest(&self, inner: &mut Inner) {
        if !inner.clients.is_empty() {
            return;
        }
        if let Some(line) = self.gsi.and_then(line::of) {
            self.masked.store(true, Ordering::SeqCst);
            line.close(self.index);
        }
        match core::mem::replace(&mut inner.sharing, Sharing::Free) {
            Sharing::Vpio(monitor) => {
                inner.handoffs += monitor.device_counters().handoffs;
                inner.forced += monitor.device_counters().forced;
            }
            Sharing::Emulated(emulated) => {
                let (handoffs, _) = emulated.handoffs();
                inner.handoffs += handoffs.all;
                inner.forced += handoffs.forced;
                emulated.stop(self);
            }
            Sharing::Passthrough | Sharing::Free => {}
        }
    }

    /// Ends a guest's ownership: the function is off the bus at once, then reset.
    fn take_back(&self, share: &Share) {
        reset::quiet(&self.function);
        if let Some(assigned) = share.assigned() {
            assigned.withdraw(&self.function);
        }
        match self.reset {
            Some(method) => {
                self.ready_at.store(reset::start(&self.function, method), Ordering::SeqCst);
                log::info!("device {}: taken back, reset ({method:?})", self.name);
            }
            None => {
                log::warn!("device {}: there is no way to reset it: no other guest can have it", self.name)
            }
        }
        if let Some(endpoint) = self.dma_endpoint() {
            // Whatever the reset left of it reaches nothing any more.
            endpoint.block();
            endpoint.release();
        }
        self.used.store(true, Ordering::SeqCst);
        let decode = pci::COMMAND_IO | pci::COMMAND_MEMORY;
        self.function.bdf.set_command(pci::COMMAND_NO_INTX, pci::COMMAND_MASTER | decode);
    }

    /// Runs `act` on the monitor, then carries out what changed. From its first access to the device on, or where its hooks
    /// change, no client executes with direct access. `within` is the domain whose exit this is, if any.
    fn with_monitor<R>(
        &self,
        within: Option<&Domain>,
        act: impl FnOnce(&mut Monitor, &mut SharedPorts, u64) -> R,
    ) -> Option<R> {
        let mut inner = self.inner.lock();
        let Inner { sharing: Sharing::Vpio(monitor), clients, .. } = &mut *inner else { return None };
        let holder = monitor
            .holder()
            .and_then(|id| clients.iter().find(|client| client.seat.client() == Some(id)))
            .and_then(|client| client.domain.upgrade())
            // A domain with one processor that is here, in its exit, is not in its guest.
            .filter(|holder| within.is_none_or(|own| own.vcpus.len() > 1 || own.id != holder.id));
        let now = tsc::uptime_ns();
        let mut raw = SharedPorts::new(self.ports.0, holder);
        let result = act(monitor, &mut raw, now);
        // Most accesses change nothing that others see, and nobody waits: no handoff to move along. Who neither has the
        // device nor waits for it moves none along, or it could stop the holder as often as it likes.
        let waits = |client: &Client| client.seat.client().is_some_and(|id| !monitor.may_run(id));
        let concerns = |client: &Client| {
            let holds = client.seat.client().is_some_and(|id| monitor.holder() == Some(id));
            let own = within.is_none_or(|own| core::ptr::eq(client.domain.as_ptr(), own));
            own && (holds || waits(client))
        };
        let (contended, concerned) = (clients.iter().any(waits), clients.iter().any(concerns));
        let changes = self.carry_out(monitor, clients, &mut raw);
        let others = changes.hooks | changes.wake != 0 || changes.poll;
        if within.is_none() || others || concerned && (contended || !changes.is_empty()) {
            let wanted = monitor.poll(&mut raw, now);
            self.carry_out(monitor, clients, &mut raw);
            self.poll_next(wanted, now);
        }
        Some(result)
    }

    /// Runs `act` on the shared behind the device, if the hypervisor drives it, and carries out what changed.
    fn with_shared_nic<R>(
        &self,
        act: impl FnOnce(&mut SharedNic, &mut Environment<'_, Clients<'_>>) -> R,
    ) -> Option<R> {
        let mut inner = self.inner.lock();
        let Inner { sharing: Sharing::Emulated(emulated), clients, .. } = &mut *inner else { return None };
        let (result, wanted) = emulated.with(clients, act);
        if wanted.is_some() || self.poll_at.load(Ordering::Relaxed) != u64::MAX {
            self.poll_next(wanted, tsc::uptime_ns());
        }
        Some(result)
    }

    /// Runs `act` on the level of the line of a guest's software card, if it has one, which does not change meanwhile.
    fn with_line(&self, seat: Seat, act: impl FnOnce(bool)) {
        let inner = self.inner.lock();
        act(match (&inner.sharing, seat) {
            (Sharing::Emulated(emulated), Seat::Port(port)) => emulated.line(port),
            _ => false,
        });
    }

    /// Notes when the monitor wants to be polled, in nanoseconds; `now` likewise.
    fn poll_next(&self, wanted: Option<u64>, now: u64) {
        let ticks = |at: u64| tsc::now().saturating_add(tsc::ticks_from_ns(at.saturating_sub(now)));
        let at = wanted.map_or(u64::MAX, ticks);
        let server = cpu::device_server();
        if at < self.poll_at.swap(at, Ordering::Relaxed) && cpu::this().index != server {
            cpu::kick(server);
        }
    }

    /// Carries out what a call of the monitor changed; returns what did.
    fn carry_out(&self, monitor: &mut Monitor, clients: &mut [Client], raw: &mut SharedPorts) -> Changes {
        if self.masked.load(Ordering::Relaxed) && monitor.physical_unmask() {
            self.unmask();
        }
        let changes = monitor.changes();
        if changes.hooks != 0 {
            raw.freeze();
        }
        for client in clients.iter_mut() {
            let Some(domain) = client.domain.upgrade() else { continue };
            let Some(id) = client.seat.client() else { continue };
            let bit = id.bit();
            let Some(share) = client.share.upgrade() else { continue };
            if changes.hooks & bit != 0 {
                share.set_hooks(&domain, client.index, monitor.hooks(id).ports());
            }
            if changes.lines & bit != 0 {
                let level = monitor.line(id);
                if level != client.line {
                    client.line = level;
                    domain.set_line(share.pin(), level);
                }
            }
            if changes.wake & bit != 0 {
                domain.vcpus.iter().for_each(Vcpu::device_is_here);
            }
        }
        changes
    }

    /// The last interrupt of the line has been dealt with, as far as this device is concerned.
    fn unmask(&self) {
        if let Some(line) = self.gsi.and_then(line::of) {
            self.masked.store(false, Ordering::SeqCst);
            line.open(self.index);
        }
    }

    /// The function of a guest raised its message.
    fn message(&self, message: u16) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        self.with_owner(|domain, _, assigned| {
            if assigned.raised(domain, &self.function, message) {
                let now = tsc::uptime_ns();
                self.poll_next(Some(now + HELD_NS), now);
            }
        });
    }

    /// Lets messages through that were held back for a while.
    fn let_through(&self) {
        self.with_owner(|domain, slot, assigned| assigned.let_through(domain, slot, &self.function));
    }

    /// Runs `act` on the domain that owns the function, the slot where it is there, and what is kept of it.
    fn with_owner(&self, act: impl Fn(&Domain, u8, &Assigned)) {
        let owner = self.inner.lock().clients.first().and_then(Client::both);
        if let Some((domain, share)) = owner
            && let Some(assigned) = share.assigned()
        {
            act(&domain, share.slot(), assigned);
        }
    }

    fn interrupt(&self) {
        if self.with_monitor(None, |monitor, raw, now| monitor.interrupt(raw, now)).is_some() {
            return;
        }
        self.with_shared_nic(|shared, env| shared.interrupt(env));
        // Held until the line is up: who has the card now has it then.
        let inner = self.inner.lock();
        let seat = match &inner.sharing {
            Sharing::Emulated(emulated) => match emulated.handoffs() {
                (_, Some(port)) => Seat::Port(port),
                (_, None) => return self.unmask(),
            },
            _ => Seat::Owner,
        };
        let owner = inner.clients.iter().find(|client| client.seat == seat);
        if let Some((domain, share)) = owner.and_then(Client::both) {
            share.raise(&domain);
        }
    }

    fn share_report(&self, share: &Share) -> Option<ShareReport> {
        let inner = self.inner.lock();
        let client = inner.clients.iter().find(|client| client.seat == share.seat())?;
        Some(match &inner.sharing {
            Sharing::Vpio(monitor) => share::report(&client.name, monitor, client.seat.client()?),
            Sharing::Emulated(emulated) => match client.seat {
                Seat::Port(port) => emulated.report(&client.name, port),
                _ => return None,
            },
            _ => ShareReport {
                domain: client.name.clone(),
                mode: PASSTHROUGH.into(),
                ..ShareReport::default()
            },
        })
    }

    fn report(&self) -> DeviceReport {
        let inner = self.inner.lock();
        let mut report = DeviceReport {
            name: self.name.clone(),
            model: inner.model.into(),
            handoffs: inner.handoffs,
            forced: inner.forced,
            interrupts: self.interrupts.load(Ordering::Relaxed),
            shares: inner.past.clone(),
            ..DeviceReport::default()
        };
        if let Sharing::Vpio(monitor) = &inner.sharing {
            report.handoffs += monitor.device_counters().handoffs;
            report.forced += monitor.device_counters().forced;
            let holder = monitor.holder();
            report.holder = inner
                .clients
                .iter()
                .find(|client| holder.is_some() && client.seat.client() == holder)
                .map(|client| client.name.clone());
            for client in &inner.clients {
                if let Some(id) = client.seat.client() {
                    report.shares.push(share::report(&client.name, monitor, id));
                }
            }
        }
        if let Sharing::Emulated(emulated) = &inner.sharing {
            let (handoffs, holder) = emulated.handoffs();
            report.handoffs += handoffs.all;
            report.forced += handoffs.forced;
            let held = |client: &&Client| holder.is_some_and(|port| client.seat == Seat::Port(port));
            report.holder = inner.clients.iter().find(held).map(|client| client.name.clone());
            for client in &inner.clients {
                if let Seat::Port(port) = client.seat {
                    report.shares.push(emulated.report(&client.name, port));
                }
            }
        }
        report
    }
}
