//! Physical devices and the functions that guests have of them.
//!
//! Key types: [`Device`] (a physical function), [`usage::Usage`] (who uses it now), and a [`VirtualFunction`] for each way in which a
//! guest has a device: [`passthrough`] (one guest owns it), [`ne2000`] (guests have it in turn), [`ide`] and [`nvme`] (guests have parts of a disk), [`nic`] (guests have
//! software cards, and the hypervisor drives it). A new way is a new folder, and a variant of `usage::User`. Devices that are not physical, since another
//! domain serves them, are in [`virtio`], and the networks of those that a processor of the hypervisor's serves in [`vif`].
//!
//! Here is the list of all devices: their interrupts and polls go to who uses them.

mod device;
mod error;
mod guest;
mod hardware;
mod hooked_bar;
mod ide;
mod intx;
mod messages;
mod ne2000;
mod nic;
mod nvme;
mod own_time;
mod passthrough;
mod ports;
mod ram;
mod told;
mod usage;
pub mod vif;
pub mod virtio;

pub use error::AttachError;
pub use guest::Guest;

use crate::cpu::{self, apic};
use crate::domain::VirtualFunction;
use crate::handover::BootInfo;
use crate::iommu::{self, DmaEndpoint};
use crate::irq::{self, line, message};
use crate::pci::{self, bars};
use crate::sync::{Once, Rank, SpinLock};
use crate::x86::tsc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use device::Device;
use sluice_abi::DomainId;
use sluice_abi::config::{self, Attachment};
use sluice_abi::report::{DeviceReport, LinkReport, ShareReport};
use sluice_iommu::{Containment, RequesterId};
use sluice_platform::pci::{BarAddresses, Identity};
use usage::Usage;

/// Most devices of a configuration: a bit each in a [`line::Line`].
const MAX_DEVICES: usize = 64;

/// A device of the configuration.
struct Entry {
    device: Arc<Device>,
    /// Held while guests join and leave, and while an interrupt or a poll is served.
    usage: SpinLock<Usage>,
}

static DEVICES: Once<Vec<Entry>> = Once::new();

fn entries() -> &'static [Entry] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

fn devices() -> impl Iterator<Item = &'static Device> + Clone {
    entries().iter().map(|entry| &*entry.device)
}

/// The device at a place of the configuration; `None` if this machine has none like it.
fn entry(index: usize) -> Option<&'static Entry> {
    entries().iter().find(|entry| entry.device.index == index)
}

fn device(share: &config::Share) -> Option<&'static Device> {
    entry(share.device.into()).map(|entry| &*entry.device)
}

/// Finds the configured devices. Of one that is missing the log says so: guests that want it cannot be built.
pub fn init(configured: &[config::Device], info: &BootInfo) {
    #[cfg(feature = "pack-bars")]
    bars::pack();
    let mut found = Vec::new();
    let mut decoded = bars::DecodedRanges::new(info);
    for (index, device) in configured.iter().enumerate() {
        let Some(mut function) = pci::find(&device.select).filter(|_| index < MAX_DEVICES) else {
            log::error!("device {}: no such PCI function in this machine; there are:", device.name);
            for function in pci::functions() {
                log::error!("  {} [{:04x}:{:04x}]", function.bdf, function.vendor, function.device);
            }
            continue;
        };
        let has_own_pages = decoded.separate(&mut function);
        let device = Arc::new(Device::new(index, device, function, has_own_pages));
        found.push(Entry { device, usage: SpinLock::new(Rank::Device, Usage::new()) });
    }
    DEVICES.call_once(|| found);
    let mut gsis: Vec<u32> = devices().filter_map(Device::gsi).collect();
    gsis.sort_unstable();
    gsis.dedup();
    line::init(&gsis, line_interrupt);
}

/// A physical interrupt of a line: silences it until it has been dealt with.
fn line_interrupt(vector: u8) {
    if let Some(line) = line::behind(vector) {
        let raised = line.raised();
        devices().filter(|device| raised & 1 << device.index != 0).for_each(Device::line_raised);
        irq::set_pending();
    }
    apic::eoi();
}

/// Deals with physical interrupts and with devices whose time has come.
#[inline]
pub fn service(processor: u32) {
    iommu::service();
    if irq::take_pending() {
        for entry in entries().iter().filter(|entry| entry.device.take_asserted()) {
            entry.usage.lock().interrupt();
        }
        message::take(|device, message| {
            if let Some(entry) = entry(device) {
                entry.device.count_interrupt();
                entry.usage.lock().message(message);
            }
        });
    }
    if processor == cpu::device_server() {
        let now = tsc::now();
        for entry in entries().iter().filter(|entry| entry.device.poll_at() <= now) {
            entry.device.forget_poll();
            entry.usage.lock().poll();
        }
    }
}

/// TSC at which a processor must call [`service`] at the latest.
pub fn next_poll(processor: u32) -> u64 {
    if processor != cpu::device_server() {
        return u64::MAX;
    }
    entries().iter().map(|entry| entry.device.poll_at()).min().unwrap_or(u64::MAX)
}

/// The place in the configuration of the device that is called and selected so; `None` if there is none.
pub fn index_of(wanted: &config::Device) -> Option<u16> {
    let found = devices().find(|device| device.name == wanted.name)?;
    let selected = pci::find(&wanted.select).is_some_and(|function| function.bdf == found.function.bdf);
    selected.then(|| u16::try_from(found.index).ok()).flatten()
}

/// Who the device at a place of the configuration says it is; `None` if there is none.
pub fn identity(index: u16) -> Option<Identity> {
    entry(index.into()).map(|entry| entry.device.identity())
}

/// Where a device that a guest can have in its own hands stands behind an IOMMU, if it masters the bus.
pub fn dma_endpoint(share: &config::Share) -> Option<DmaEndpoint> {
    match share.attachment {
        Attachment::Passthrough(_) | Attachment::Vpio(_) => device(share)?.dma_endpoint(),
        // The guest's software card, or its part of a disk, reaches memory by the hypervisor's hand.
        Attachment::Emulated(_) | Attachment::Sectors(_) => None,
    }
}

/// Whether the functions of a share reach all memory of the guest by DMA, where an IOMMU stands before them.
pub fn reaches_guest(share: &config::Share) -> bool {
    !matches!(share.attachment, Attachment::Passthrough(options) if options.dma.is_issued())
}

/// Whether a share gives a guest a device that reaches all memory: there is no IOMMU before it.
pub fn reaches_everything(share: &config::Share) -> bool {
    matches!(share.attachment, Attachment::Passthrough(_))
        && device(share).is_some_and(|device| device.containment() == Containment::Missing)
}

/// Gives a guest its function of a device, before its domain exists.
///
/// # Errors
/// Says why the guest cannot have it.
pub fn attach(
    share: &config::Share,
    guest: Guest,
    addresses: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    let entry = entry(share.device.into()).ok_or(AttachError::NoSuchDevice)?;
    entry.usage.lock().attach(&entry.device, &share.attachment, guest, addresses)
}

/// A guest leaves a device: `end` takes its function away, and returns what reports say of it from then on.
fn leave(device: &Device, end: impl FnOnce() -> Option<ShareReport>) {
    let Some(entry) = entry(device.index) else { return };
    let mut usage = entry.usage.lock();
    let report = end();
    usage.left(device, report);
}

/// Gives a device to the engine of a network, for as long as the machine runs.
///
/// # Errors
/// Says why it cannot have it.
fn dedicate(index: u16, network: &Arc<vif::Network>) -> Result<(), AttachError> {
    let entry = entry(index.into()).ok_or(AttachError::NoSuchDevice)?;
    entry.usage.lock().dedicate(&entry.device, network)
}

/// Notes an interface of a guest, which it finds as its face says. One on a network without an engine is not there: its guest cannot be built.
pub fn add_vif(guest: DomainId, domain: &config::Domain, vif: &config::Vif) {
    let Some(network) = vif::network(vif.network) else { return };
    match vif.face {
        config::Face::Virtio => virtio::add_vif(guest, domain, vif, network),
        config::Face::Native | config::Face::E1000 => vif::link::add(guest, domain, vif, network),
    }
}

/// Sets what an interface of a guest may send, and its VLAN.
pub fn set_vif(guest: DomainId, vif: &config::Vif) {
    if !vif::link::set(guest, vif) {
        virtio::set_vif(guest, vif);
    }
}

/// A guest's function of its virtual device of this name. `high` has addresses above 4 GiB.
///
/// # Errors
/// There is no such device, or no room for it.
pub fn front(
    device: &str,
    guest: Guest,
    low: &mut BarAddresses,
    high: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    match vif::link::find(guest.id, device) {
        Some(link) => vif::front(link, guest, low),
        None => virtio::front(device, guest, low, high),
    }
}

/// Forgets a virtual device, which its guest no longer has.
pub fn remove(guest: DomainId, device: &str) {
    vif::link::remove(guest, device);
    virtio::remove(guest, device);
}

/// All virtual devices, for a report.
pub fn links() -> Vec<LinkReport> {
    virtio::reports().into_iter().chain(vif::link::reports()).collect()
}

/// Name of the configured device that makes requests as `requester`.
pub fn name_of(requester: RequesterId) -> Option<String> {
    devices().find(|device| device.requester() == requester).map(|device| device.name.clone())
}

/// All devices, for a report.
pub fn reports() -> Vec<DeviceReport> {
    entries().iter().map(|entry| entry.usage.lock().report(&entry.device)).collect()
}
