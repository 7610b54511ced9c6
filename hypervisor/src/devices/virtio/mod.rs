//! Virtual devices that one domain serves for another: virtio functions.
//!
//! Key types: [`Link`] (a device of the configuration, alive or not), [`FrontFunction`] (what its guest sees, and drives with its stock
//! virtio driver), [`BackFunction`] (what the domain that serves it sees). `sluice_virtio` decides what an access means; this module
//! brings it guests, interrupts and the window. Either side may come and go while the other lives on, and so
//! may the device while both run.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2; Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient
//! I/O Virtualization", 2.1 (driver domains).

mod back;
pub mod channel;
mod files;
mod front;
mod iommu;
mod vif;
mod window;

use super::error::AttachError;
use super::guest::Guest;
use super::messages::Messages;
use super::vif::{Face, Interface, Network};
use crate::domain::region::Region;
use crate::domain::{Domain, Loan, VirtualFunction, attention, window_end};
use crate::sync::{Rank, SpinLock};
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use back::BackFunction;
use core::sync::atomic::{AtomicU32, Ordering};
use files::Files;
use front::FrontFunction;
pub use iommu::NAME as IOMMU;
use sluice_abi::DomainId;
use sluice_abi::config::{self, Grants, VirtioKind};
use sluice_abi::report::LinkReport;
use sluice_hypercall::backend;
use sluice_memory::Extent;
use sluice_platform::pci::{BarAddresses, Identity};
use sluice_virtio::{Changes, Device, Issues, Kind, Port, Signal, pci};

/// Which of a guest's virtual devices.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    /// The one of this name in its list.
    Named(String),
    /// Its stream to the management channel, which the hypervisor serves.
    Channel,
    /// Its IOMMU, which the hypervisor serves.
    Iommu,
}

impl Which {
    fn is_named(&self, name: &str) -> bool {
        matches!(self, Self::Named(own) if own == name)
    }
}

/// A virtual device: where the guest that has it and the domain that serves it meet.
pub struct Link {
    guest: DomainId,
    /// Which of the guest's devices it is.
    which: Which,
    /// "guest.device".
    name: String,
    /// Names of both domains.
    between: (String, String),
    /// What it is, for a report.
    kind: &'static str,
    /// Who serves it may take its guest's processor at once when it is told of buffers. Acknowledgements that come while a program still sends
    /// are cheaper for its kernel than those that it waits for; a disk's requests are cheaper together.
    hurries: bool,
    /// Bytes of the window, and of what the guest can lend in it.
    window: u64,
    lendable: u64,
    /// What a physical device holds for the guest of this device file. Its server has it in the window behind what the guest can lend.
    region: Option<Arc<Region>>,
    /// Who the physical device behind a device file says it is.
    behind: Option<Identity>,
    /// The interface that an engine serves, in place of a domain.
    vif: Option<Interface>,
    state: SpinLock<State>,
}

/// What both sides see, and who they are.
struct State {
    device: Device,
    /// What the hypervisor serves it by.
    port: Option<Port>,
    /// It is a device file: what its operations reach.
    files: Option<Files>,
    front: Option<Weak<FrontFunction>>,
    back: Option<Weak<BackFunction>>,
    front_messages: Messages,
    back_messages: Messages,
    /// What the guest lends.
    lent: Option<Lent>,
    /// The log has a complaint about its driver: one for each life of the guest.
    complained: bool,
    kicks: u64,
    used: u64,
}

/// What a guest lends to whom serves a device of its.
#[derive(Clone)]
pub enum Lent {
    /// All of its memory.
    All(DomainId, Vec<Extent>),
    /// The pages that it issues to the device in this slot of its bus.
    Pages(Weak<Domain>, u8),
}

impl Lent {
    fn by(domain: &Arc<Domain>, slot: u8) -> Option<Self> {
        match domain.config.grants {
            Grants::None => None,
            Grants::All => Some(Self::All(domain.id, domain.extents().to_vec())),
            Grants::Pages | Grants::Iommu => Some(Self::Pages(Arc::downgrade(domain), slot)),
        }
    }

    fn issues(lent: Option<&Self>) -> Issues {
        match lent {
            None => Issues::Nothing,
            Some(Self::All(..)) => Issues::All,
            Some(Self::Pages(..)) => Issues::Pages,
        }
    }

    /// What is lent as a whole.
    fn loan(&self) -> Option<Loan<'_>> {
        match self {
            Self::All(by, extents) => Some(Loan { by: *by, extents }),
            Self::Pages(..) => None,
        }
    }

    /// Whose single pages are lent, while that domain is there, and the slot of its device.
    fn pages(&self) -> Option<(Arc<Domain>, u8)> {
        match self {
            Self::All(..) => None,
            Self::Pages(domain, slot) => Some((domain.upgrade()?, *slot)),
        }
    }

    /// Bytes that can be reached now.
    fn bytes(&self) -> u64 {
        match self {
            Self::All(_, extents) => extents.iter().map(|extent| extent.len).sum(),
            Self::Pages(domain, slot) => domain.upgrade().map_or(0, |domain| domain.granted_to_device(*slot)),
        }
    }
}

/// All that there are now.
static LINKS: SpinLock<Vec<Arc<Link>>> = SpinLock::new(Rank::Links, Vec::new());

/// Nobody: no index of a domain.
const NOBODY: u32 = u32::MAX;

/// Index of the domain that is in the foreground. While it is nobody, all are.
static FOREGROUND: AtomicU32 = AtomicU32::new(NOBODY);

/// Index of the domain that the person at a device wants to leave for the next.
static LEFT: AtomicU32 = AtomicU32::new(NOBODY);

fn link(guest: DomainId, is_it: impl Fn(&Which) -> bool) -> Result<Arc<Link>, AttachError> {
    let links = LINKS.lock();
    let link = links.iter().find(|link| link.guest == guest && is_it(&link.which));
    link.cloned().ok_or(AttachError::NoSuchDevice)
}

fn named(guest: DomainId, device: &str) -> Result<Arc<Link>, AttachError> {
    link(guest, |which| which.is_named(device))
}

/// Notes a virtual device of a guest, which the domain called `server` serves. Neither has it yet.
pub fn add(guest: DomainId, domain: &config::Domain, virtio: &config::Virtio, server: &str) {
    let link = Arc::new(Link::new(guest, domain, virtio, server));
    LINKS.lock().push(link);
}

/// Notes a network card of a guest, which an engine of a network serves.
pub fn add_vif(guest: DomainId, domain: &config::Domain, vif: &config::Vif, network: Arc<Network>) {
    let link = Arc::new(Link::of_vif(guest, domain, vif, Interface::new(network, vif)));
    LINKS.lock().push(link);
}

/// Sets what an interface of a guest that is a virtio card may send, and its VLAN.
pub fn set_vif(guest: DomainId, vif: &config::Vif) {
    if let Ok(link) = named(guest, &vif.name)
        && let Some(served) = &link.vif
    {
        served.set(vif);
    }
}

/// From now on this guest is in the foreground, and all others are in the background. The caller is the only one to choose.
///
/// # Errors
/// It has no device file.
pub fn set_foreground(guest: DomainId) -> Result<(), AttachError> {
    let links = LINKS.lock();
    let mut files = links.iter().filter(|link| link.is_file());
    files.find(|link| link.guest == guest).ok_or(AttachError::NoSuchDevice)?;
    FOREGROUND.store(guest.index() as u32, Ordering::Relaxed);
    // Who leaves is told before who comes.
    for comes in [false, true] {
        links.iter().filter(|link| link.is_file() && (link.guest == guest) == comes).for_each(|link| {
            link.change(|state| ((), state.device.set_background(!comes)));
        });
    }
    Ok(())
}

/// The guest that is to be in the foreground next, if the person at a device has asked for it: of those whose device files the same domain
/// serves, the one after who is left.
pub fn wanted_foreground() -> Option<DomainId> {
    let left = LEFT.swap(NOBODY, Ordering::Relaxed);
    let links = LINKS.lock();
    let server = &links.iter().find(|link| link.is_file() && link.guest.index() as u32 == left)?.between.1;
    let guests = links.iter().filter(|link| link.is_file() && link.between.1 == *server);
    guests.map(|link| link.guest).min_by_key(|guest| (guest.index() as u32 <= left, guest.index()))
}

/// Notes the stream by which a guest reaches the management channel.
pub fn add_channel(guest: DomainId, domain: &config::Domain) {
    let link = Arc::new(Link::of_channel(guest, domain));
    LINKS.lock().push(link);
}

/// Forgets a virtual device, which its guest no longer has. What still serves it serves nobody.
pub fn remove(guest: DomainId, device: &str) {
    LINKS.lock().retain(|link| link.guest != guest || !link.which.is_named(device));
}

/// Forgets the IOMMU of a guest.
pub fn remove_iommu(guest: DomainId) {
    LINKS.lock().retain(|link| link.guest != guest || link.which != Which::Iommu);
}

/// A guest's function of its virtual device of this name. `high` has addresses above 4 GiB.
///
/// # Errors
/// There is no such device, or no room for it.
pub fn front(
    device: &str,
    guest: Guest,
    addresses: &mut BarAddresses,
    high: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    Ok(FrontFunction::new(named(guest.id, device)?, guest, addresses, high)?)
}

/// A guest's function of its stream to the management channel.
///
/// # Errors
/// It has none, or no room for it.
pub fn channel(
    guest: Guest,
    addresses: &mut BarAddresses,
    high: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    let link = link(guest.id, |which| *which == Which::Channel)?;
    Ok(FrontFunction::new(link, guest, addresses, high)?)
}

/// A guest's function of the IOMMU that it drives, a new one for each of its lives.
///
/// # Errors
/// There is no room for it.
pub fn iommu(
    domain: &config::Domain,
    guest: Guest,
    addresses: &mut BarAddresses,
    high: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    remove_iommu(guest.id);
    let link = Arc::new(Link::of_iommu(guest.id, domain));
    LINKS.lock().push(link.clone());
    Ok(FrontFunction::new_iommu(link, guest, domain.memory, addresses, high)?)
}

/// The back end of a guest's virtual device, for the domain that serves it. `high` has addresses above 4 GiB.
///
/// # Errors
/// There is no such device, or no room for it.
pub fn back(
    (guest, device): (DomainId, &str),
    server: Guest,
    addresses: &mut BarAddresses,
    high: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    Ok(BackFunction::new(named(guest, device)?, server, addresses, high)?)
}

/// All virtual devices, for a report.
pub fn reports() -> Vec<LinkReport> {
    LINKS.lock().iter().map(|link| link.report()).collect()
}

/// The region that a guest has with the device behind a device file.
fn region(guest: DomainId, domain: &config::Domain, virtio: &config::Virtio) -> Option<Arc<Region>> {
    let device = virtio.identity.filter(|_| virtio.region != 0)?;
    let region = Region::new(guest, device, virtio.region);
    if region.is_none() {
        log::error!(
            "device {}.{}: no memory for its region of {:#x} bytes",
            domain.name,
            virtio.name,
            virtio.region
        );
    }
    region.map(Arc::new)
}

/// The beginning of a configuration, of whatever is longest of what is known of one.
type Known = [u8; 40];

/// What is known of a file system's configuration (Virtio 1.2, 5.11.4): its tag, of 36 bytes, which a name is shorter than; one queue of requests.
fn files_config(name: &str) -> Known {
    let mut config = [0; _];
    config[..36].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    config[36] = 1;
    config
}

/// What is known of a network card's configuration before a back end is there (Virtio 1.2, 5.1.4): its station address, and after its status
/// the most pairs of queues.
fn net_config(mac: [u8; 6], pairs: u8) -> Known {
    let mut config = [0; _];
    config[..6].copy_from_slice(&mac);
    config[8] = pairs;
    config
}

impl Link {
    fn new(guest: DomainId, domain: &config::Domain, virtio: &config::Virtio, server: &str) -> Self {
        let name = format!("{}.{}", domain.name, virtio.name);
        let (kind, known) = match virtio.kind {
            VirtioKind::Net { mac, pairs } => (Kind::Net, net_config(mac, pairs)),
            VirtioKind::Block => (Kind::Block, [0; _]),
            VirtioKind::DeviceFile => (Kind::DeviceFile, [0; _]),
            VirtioKind::Entropy => (Kind::Entropy, [0; _]),
            VirtioKind::Files => (Kind::Files, files_config(&virtio.name)),
        };
        let region = region(guest, domain, virtio);
        let lendable = window_end(domain.memory);
        let all = lendable + region.as_ref().map_or(0, |region| region.len());
        let mut device = Device::new(kind, &name, &virtio.source, &known);
        let foreground = FOREGROUND.load(Ordering::Relaxed);
        device.set_background(foreground != NOBODY && foreground != guest.index() as u32);
        Self {
            guest,
            which: Which::Named(virtio.name.clone()),
            name,
            between: (domain.name.clone(), server.into()),
            kind: virtio.kind.word(),
            hurries: matches!(virtio.kind, VirtioKind::Net { .. }),
            window: all.next_power_of_two(),
            lendable,
            region,
            behind: virtio.identity.and_then(super::identity),
            vif: None,
            state: SpinLock::new(Rank::Card, State::new(device, None)),
        }
    }

    /// The stream by which a guest reaches the management channel.
    fn of_channel(guest: DomainId, domain: &config::Domain) -> Self {
        let state = State::new(Device::of_port(), Some(Port::new(channel::NAME)));
        Self::served_here(guest, Which::Channel, (&domain.name, channel::NAME), "port", state)
    }

    /// A device of this name that the hypervisor serves.
    fn served_here(
        guest: DomainId,
        which: Which,
        (domain, name): (&str, &str),
        kind: &'static str,
        state: State,
    ) -> Self {
        Self {
            guest,
            which,
            name: format!("{domain}.{name}"),
            between: (domain.into(), "the hypervisor".into()),
            kind,
            hurries: false,
            window: 0,
            lendable: 0,
            region: None,
            behind: None,
            vif: None,
            state: SpinLock::new(Rank::Card, state),
        }
    }

    /// A guest's interface on a network of ours.
    fn of_vif(guest: DomainId, domain: &config::Domain, vif: &config::Vif, served: Interface) -> Self {
        let kind = VirtioKind::Net { mac: vif.mac, pairs: 1 };
        Self {
            guest,
            which: Which::Named(vif.name.clone()),
            name: format!("{}.{}", domain.name, vif.name),
            between: (domain.name.clone(), format!("network {}", served.network())),
            kind: kind.word(),
            hurries: false,
            window: 0,
            lendable: 0,
            region: None,
            behind: None,
            vif: Some(served),
            state: SpinLock::new(Rank::Card, State::new(vif::device(vif), None)),
        }
    }

    fn is_file(&self) -> bool {
        self.kind == VirtioKind::DeviceFile.word()
    }

    /// Whether another domain serves it, to which its guest lends memory.
    fn is_lent_to(&self) -> bool {
        matches!(self.which, Which::Named(_)) && self.vif.is_none()
    }

    /// The guest exists: from here on its memory is in the window, as far as it lends any.
    fn guest_comes(self: &Arc<Self>, front: &Arc<FrontFunction>, domain: &Arc<Domain>) {
        let slot = front.guest().slot;
        if let Some(vif) = &self.vif {
            vif.comes(&self.name, domain, Face::Queues(Arc::<Self>::downgrade(self)));
        }
        let lent = Lent::by(domain, slot).filter(|_| self.is_lent_to());
        if self.is_lent_to() && domain.config.grants.by_page() {
            domain.lend_to_device(slot, self.lendable);
        }
        let back = self.with(|state| {
            state.front = Some(Arc::downgrade(front));
            state.lent = lent.clone();
            (state.complained, state.front_messages) = (false, Messages::new(pci::VECTORS));
            state.back.as_ref().and_then(Weak::upgrade)
        });
        if let Some(back) = back {
            back.show(lent.clone());
            front.show_maps(back.maps());
        }
        // Only now: the back end finds memory where it is told of some.
        self.with(|state| {
            let ranges = domain.extents().iter().map(|extent| (extent.gpa.as_u64(), extent.len));
            let ranges = ranges.filter(|_| lent.is_some());
            let changes = state.device.attach_guest(Lent::issues(lent.as_ref()), ranges);
            state.tell(self, changes);
        });
    }

    /// The guest is no more: when this returns, nobody reaches its memory by the window.
    fn guest_goes(&self) {
        if let Some(vif) = &self.vif {
            vif.goes();
        }
        let (lent, back) = self.with(|state| {
            let changes = state.device.detach_guest();
            state.tell(self, changes);
            state.front = None;
            state.forget_declarations();
            (state.lent.take(), state.back.as_ref().and_then(Weak::upgrade))
        });
        if let Some((domain, slot)) = lent.and_then(|lent| lent.pages()) {
            domain.withdraw_from_device(slot);
        }
        if let Some(back) = back {
            back.show(None);
            back.leave_region();
        }
        // What a device held for this life of the guest is not the next one's.
        if let Some(region) = &self.region {
            region.clear();
        }
    }

    fn server_comes(&self, back: &Arc<BackFunction>) {
        let (lent, front) = self.with(|state| {
            state.back = Some(Arc::downgrade(back));
            state.back_messages = Messages::new(backend::VECTORS);
            state.device.attach_backend();
            let front = state.front.as_ref().and_then(Weak::upgrade);
            (state.lent.clone(), front.filter(|_| state.files.is_some()))
        });
        back.show(lent);
        back.lend_maps();
        if let Some(front) = front {
            front.show_maps(back.maps());
        }
    }

    /// The domain that serves it is no more: when this returns, the guest reaches nothing of it by what is mapped.
    fn server_goes(&self) {
        let (front, back) = self.with(|state| {
            let back = state.back.take().and_then(|back| back.upgrade());
            state.forget_declarations();
            let mut changes = state.device.detach_backend();
            // The next server knows nothing of what is open: the guest is told at once that its operations have failed.
            if state.files.is_some() && state.device.is_live() {
                changes |= state.device.break_down();
            }
            state.tell(self, changes);
            (state.front.as_ref().and_then(Weak::upgrade), back)
        });
        if let Some(front) = front {
            front.show_maps(None);
        }
        if let Some(back) = back {
            back.withdraw_maps();
            back.leave_region();
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock())
    }

    /// Does what one side does, and tells whom it concerns.
    fn change<R>(&self, act: impl FnOnce(&mut State) -> (R, Changes)) -> R {
        let mut engine = self.vif.as_ref().map(|vif| (vif, vif.lock()));
        self.with(|state| {
            let (result, mut changes) = act(state);
            if let Some((vif, engine)) = engine.as_mut().filter(|_| changes.contains(Changes::BACKEND)) {
                changes |= state.activate(vif, engine);
            }
            if !state.device.is_live() {
                state.forget_declarations();
            }
            state.tell(self, changes);
            result
        })
    }

    /// The guest tells of buffers in queues. An engine looks itself, if it is awake.
    fn kick(&self, mut queues: impl Iterator<Item = u16>) {
        let Some(vif) = &self.vif else {
            return self.change(|state| {
                let changes = queues.map(|queue| state.kick(queue));
                ((), changes.fold(Changes::empty(), Changes::union))
            });
        };
        if self.with(|state| queues.any(|queue| state.count_kick(queue))) {
            vif.ring();
        }
    }

    fn report(&self) -> LinkReport {
        let mut engines = self.vif.as_ref().map(|vif| (vif, vif.lock()));
        self.with(|state| LinkReport {
            vif: engines.as_mut().map_or(Vec::new(), |(vif, engines)| vif.counts(engines)),
            name: self.name.clone(),
            kind: self.kind.into(),
            guest: self.between.0.clone(),
            server: self.between.1.clone(),
            offered: state.device.is_offered(),
            status: state.device.status().bits(),
            background: state.device.is_in_background(),
            window: self.window,
            lent: state.lent.as_ref().map_or(0, Lent::bytes),
            kicks: state.kicks,
            used: state.used,
            copied: state.files.as_ref().map_or(0, |files| files.copied),
            refused: state.files.as_ref().map_or(0, |files| files.refused),
        })
    }
}

impl State {
    fn new(device: Device, port: Option<Port>) -> Self {
        let files = (device.kind() == Kind::DeviceFile).then(Files::default);
        Self {
            device,
            port,
            files,
            front: None,
            back: None,
            front_messages: Messages::new(pci::VECTORS),
            back_messages: Messages::new(backend::VECTORS),
            lent: None,
            complained: false,
            kicks: 0,
            used: 0,
        }
    }

    fn front(&self) -> Option<(Arc<FrontFunction>, Arc<Domain>)> {
        let front = self.front.as_ref()?.upgrade()?;
        let (domain, _) = front.guest().domain()?;
        Some((front, domain))
    }

    fn tell(&mut self, link: &Link, changes: Changes) {
        if changes.is_empty() {
            return;
        }
        if changes.contains(Changes::BACKEND) {
            match &mut self.port {
                Some(port) if !self.device.is_live() => port.reset(),
                Some(_) => {}
                None => self.tell_back(backend::CHANGED_VECTOR),
            }
        }
        if changes.contains(Changes::FOCUS) {
            LEFT.store(link.guest.index() as u32, Ordering::Relaxed);
            attention::ask();
        }
        if changes.contains(Changes::REFUSED) && self.complains() {
            let remedy = match &self.lent {
                Some(_) => {
                    "load sluice-dma, or with grants = \"iommu\" virtio_iommu (Linux 6.12), before the device's driver"
                }
                None => "add grants to its configuration",
            };
            log::warn!(
                "device {}: its driver is refused, since domain {} issues no memory: {remedy}",
                link.name,
                link.between.0
            );
        }
        let Some((front, domain)) = self.front() else { return };
        if changes.contains(Changes::CONFIGURATION) {
            let signal = self.device.configuration_signal(self.front_messages.are_enabled());
            self.tell_front(&front, &domain, signal);
        }
        if changes.contains(Changes::LINE) {
            domain.set_line(front.guest().pin, self.line());
        }
        if changes.contains(Changes::OFFERED) {
            domain.vcpus.iter().for_each(|vcpu| vcpu.device_is_here());
        }
    }

    /// Whether a complaint about its driver is worth the log: not if a guest could fill it with more.
    fn complains(&mut self) -> bool {
        !core::mem::replace(&mut self.complained, true)
    }

    /// Level of the guest's line: a function whose messages are enabled raises none.
    fn line(&self) -> bool {
        self.device.line() && !self.front_messages.are_enabled()
    }

    fn tell_front(&mut self, front: &FrontFunction, domain: &Domain, signal: Signal) {
        match signal {
            Signal::None => {}
            Signal::Line => domain.set_line(front.guest().pin, self.line()),
            Signal::Message(vector) => {
                if let Some(message) = self.front_messages.raise(vector) {
                    domain.deliver(&message);
                }
            }
        }
    }

    fn tell_back(&mut self, vector: u16) {
        let back = self.back.as_ref().and_then(Weak::upgrade);
        let Some((domain, _)) = back.and_then(|back| back.server().domain()) else { return };
        if let Some(message) = self.back_messages.raise(vector) {
            domain.deliver(&message);
        }
    }

    /// Whether the guest's word of a queue is worth passing on; it is counted then.
    fn count_kick(&mut self, queue: u16) -> bool {
        let is_kick = self.device.is_kick(queue);
        self.kicks += u64::from(is_kick);
        is_kick
    }

    /// The guest made buffers of a queue available.
    fn kick(&mut self, queue: u16) -> Changes {
        if !self.count_kick(queue) {
            return Changes::empty();
        }
        if self.port.is_some() {
            return self.serve_port();
        }
        self.tell_back(backend::KICK_VECTOR + queue);
        Changes::empty()
    }

    /// The back end has used buffers of a queue.
    fn use_buffers(&mut self, queue: u16) {
        let Some((front, domain)) = self.front() else { return };
        self.signal_used(&front, &domain, queue);
    }

    fn signal_used(&mut self, front: &FrontFunction, domain: &Domain, queue: u16) {
        self.used += 1;
        let signal = self.device.used(queue, self.front_messages.are_enabled());
        self.tell_front(front, domain, signal);
    }
}
