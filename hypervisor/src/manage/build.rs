//! Building a domain: memory, nested page tables, virtual platform, kernel, processors.

use super::seats::{Seat, Seats};
use crate::devices::{self, AttachError, Guest, vif, virtio};
use crate::domain::vcpu::{Context, RunState, Vcpu};
use crate::domain::{Domain, Memory, MemoryError, VirtualFunction, grants, layout};
use crate::sched;
use crate::{exit, svm};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use sluice_abi::DomainId;
use sluice_abi::bundle::Bundle;
use sluice_abi::channel::CommandError;
use sluice_abi::config::{self, Attachment, Dma, VirtioKind};
use sluice_iospace::IssueError;
use sluice_loader::{Entry, GuestWrite, LoadError, Mode, Parameters};
use sluice_memory::PAGE_SIZE;
use sluice_platform::acpi;
use sluice_platform::pci;
use sluice_platform::pci::{BarAddresses, ConfigEffect, PciBus};
use sluice_platform::rtc::Rtc;
use sluice_xenpv::{BIOS, Hardware};

/// Guest-physical addresses for memory BARs.
const PCI_WINDOW: Range<u64> = layout::PCI_MEMORY..layout::PCI_MEMORY + layout::PCI_MEMORY_SIZE;
/// The same above 4 GiB, for windows of a domain that serves others.
const HIGH_WINDOW: Range<u64> = layout::WINDOWS..layout::WINDOWS + layout::WINDOWS_SIZE;

/// Why a domain cannot be built.
#[derive(Clone, Debug)]
pub enum BuildError {
    /// Not enough memory.
    OutOfMemory,
    /// The bundle lacks its kernel or ramdisk.
    Missing,
    /// The kernel cannot be started.
    Kernel(LoadError),
    /// The device at this place of its list cannot be given to it.
    Device(usize, AttachError),
    /// The virtual device of this name, its own or one that it serves, cannot be given to it.
    Virtual(String, AttachError),
    /// One of its devices reaches all memory, by physical addresses: what is virtual of other domains is not where it looks.
    Unprotected,
    /// It has so much memory that there is no room for windows.
    TooLarge,
    /// The IOMMUs before its devices want different tables, or know no more spaces.
    Iommu,
    /// The map of its memory does not take what it was given: the hypervisor is at fault.
    Map(IssueError),
    /// Its kernel cannot be started as a paravirtual guest's.
    Paravirtual(sluice_xenpv::build::BuildError),
    /// A paravirtual domain has too many processors, or something else than devices that it owns.
    TooMuch,
    /// A paravirtual domain has a device whose registers are where it has memory by its own page numbers.
    InTheWay,
    /// The page tables that were built for it are refused: the hypervisor is at fault.
    Tables(sluice_pagetypes::Refused),
    /// The guest's PCI bus cannot show a device as it is.
    Function(pci::BuildError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => out.write_str("there is not enough memory, or not in one piece"),
            Self::Missing => out.write_str("the bundle lacks its kernel or ramdisk"),
            Self::Kernel(error) => write!(out, "its kernel cannot be loaded: {error}"),
            Self::Device(index, error) => {
                write!(out, "it cannot have device {} of its list: {error}", index + 1)
            }
            Self::Virtual(name, error) => write!(out, "it can neither have nor serve the device {name}: {error}"),
            Self::Unprotected => out.write_str(
                "it has a device with dma = \"unprotected\", which reaches memory by other addresses than it does; a domain that serves \
                 virtio devices, or has any, needs an IOMMU before its devices",
            ),
            Self::TooLarge => out.write_str("it has too much memory for a domain that serves others: give it less than 252 GiB"),
            Self::Iommu => out.write_str(
                "the IOMMUs before its devices want different tables, or know no more spaces: give them to several domains",
            ),
            Self::Map(error) => write!(out, "fault of the hypervisor: its memory cannot be mapped: {error:?}"),
            Self::Paravirtual(error) => write!(out, "its kernel cannot be started: {error}"),
            Self::TooMuch => out.write_str(
                "a paravirtual domain has 32 processors at most, and of devices only those that it owns behind an IOMMU (mode = \"passthrough\")",
            ),
            Self::InTheWay => out.write_str(
                "it has more memory than there is below the registers of its device: give it less, 3 GiB at most",
            ),
            Self::Tables(error) => {
                write!(out, "fault of the hypervisor: its first page tables are not right: {error:?}")
            }
            Self::Function(error) => write!(out, "its PCI bus cannot show a device as it is: {error:?}"),
        }
    }
}

impl From<MemoryError> for BuildError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::OutOfMemory => Self::OutOfMemory,
            MemoryError::Iommu => Self::Iommu,
            MemoryError::Map(error) => Self::Map(error),
        }
    }
}

impl BuildError {
    /// As the management channel says it.
    pub fn as_command_error(&self) -> CommandError {
        match self {
            Self::OutOfMemory | Self::Map(_) | Self::TooLarge => CommandError::OutOfMemory,
            Self::Missing | Self::Kernel(_) | Self::Paravirtual(_) | Self::Tables(_) => {
                CommandError::BadKernel
            }
            Self::Device(..)
            | Self::Virtual(..)
            | Self::Unprotected
            | Self::Iommu
            | Self::TooMuch
            | Self::InTheWay
            | Self::Function(_) => CommandError::DeviceBusy,
        }
    }
}

/// Whether a domain has a device that reaches memory by physical addresses.
pub fn reaches_everything(config: &config::Domain) -> bool {
    config.devices.iter().any(devices::reaches_everything)
}

/// Builds the domain of a configuration, with the clock of its last life; it does not run yet. Its slots have what `seats` says.
///
/// # Errors
/// Says what is missing; nothing is kept.
pub fn build(
    id: DomainId,
    config: &config::Domain,
    seats: &Seats,
    bundle: &Bundle<'_>,
    rtc: Rtc,
) -> Result<Arc<Domain>, BuildError> {
    let kernel = bundle.get(&config.kernel).ok_or(BuildError::Missing)?;
    let initrd = match &config.initrd {
        Some(name) => Some(bundle.get(name).ok_or(BuildError::Missing)?),
        None => None,
    };
    let whole = config.devices.iter().filter(|share| devices::reaches_guest(share));
    let endpoints: Vec<_> = whole.filter_map(devices::dma_endpoint).collect();
    let identity = reaches_everything(config);
    let has_sockets = seats.iter().any(|(_, seat)| !matches!(seat, Seat::Device(_)));
    if identity && has_sockets {
        return Err(BuildError::Unprotected);
    }
    let paravirtual = config.kind == config::Kind::Paravirtual;
    if paravirtual && !is_within_interface(config, seats) {
        return Err(BuildError::TooMuch);
    }
    let mut memory = Memory::new(id, config.memory, &endpoints, identity, paravirtual)?;
    let mut attached = Attached(Vec::new());
    let mut addresses = [BarAddresses::new(PCI_WINDOW), BarAddresses::new(HIGH_WINDOW)];
    attached.attach(id, config, seats, &mut addresses[0])?;
    let bus = build_bus(&attached.0).map_err(BuildError::Function)?;
    let start = if paravirtual {
        let hardware = hardware(&attached.0);
        let spare = (BIOS.end - BIOS.start) * PAGE_SIZE;
        if hardware.registers.iter().any(|frames| frames.start * PAGE_SIZE < config.memory + spare) {
            return Err(BuildError::InTheWay);
        }
        let (layout, built) = load_paravirtual(config, kernel, initrd, &memory, &hardware)?;
        Start::Paravirtual(layout, built, hardware)
    } else {
        let entry = load(config, kernel, initrd, seats, &mut memory);
        Start::Full(entry.map_err(BuildError::Kernel)?)
    };
    let mut domain =
        Domain::new(id, config, attached.0.clone(), bus, rtc, memory).ok_or(BuildError::OutOfMemory)?;
    attached.0.clear();
    match build_processors(&domain, &start) {
        Ok(vcpus) => domain.vcpus = vcpus,
        Err(error) => {
            domain.detach();
            return Err(error);
        }
    }
    let domain = Arc::new(domain);
    domain.settle();
    if matches!(&start, Start::Paravirtual(.., hardware) if hardware.is_initial()) && !domain.show_bios() {
        domain.detach();
        return Err(BuildError::OutOfMemory);
    }
    for (index, function) in domain.functions.iter().enumerate() {
        function.attached(&domain, index);
    }
    for (index, function) in domain.functions.iter().enumerate() {
        function.configured(&domain, index, ConfigEffect::None);
    }
    for (slot, seat) in seats.iter() {
        if let Err(error) = plug(&domain, slot, seat, &mut addresses) {
            domain.detach();
            return Err(error);
        }
    }
    grants::enter(&domain);
    Ok(domain)
}

/// Whether a paravirtual domain has what its interface knows: as many processors as it may have, and devices that it owns and whose requests an IOMMU looks
/// at, all of whose memory is the domain's.
fn is_within_interface(config: &config::Domain, seats: &Seats) -> bool {
    let owned = |share: &config::Share| match &share.attachment {
        Attachment::Passthrough(options) => options.dma == Dma::Guest,
        _ => false,
    };
    let only_devices = seats.iter().all(|(_, seat)| matches!(seat, Seat::Device(_)));
    u32::from(config.vcpus) <= sluice_xenpv::MAX_PROCESSORS
        && only_devices
        && config.devices.iter().all(owned)
}

/// What a paravirtual domain is told of its devices.
fn hardware(functions: &[Arc<dyn VirtualFunction>]) -> Hardware {
    let registers = functions.iter().flat_map(|function| function.registers()).collect();
    let lines = functions.iter().fold(0, |lines, function| lines | 1 << function.pin());
    Hardware { registers, lines }
}

/// Where the function of a slot finds itself.
fn guest_at(id: DomainId, config: &config::Domain, slot: u8) -> Guest {
    let (name, line) = (&config.name, layout::slot_line(slot));
    match config.kind {
        config::Kind::Full => Guest::new(id, name, slot, layout::slot_gsi(slot)),
        config::Kind::Paravirtual => Guest::new(id, name, slot, line).of_machine(),
    }
}

/// Whether there is a window in what a slot has: onto a guest's memory, or onto what a device file's server shows.
fn has_window(config: &config::Domain, seat: &Seat) -> bool {
    match seat {
        Seat::BackEnd(..) => true,
        Seat::Virtual(name) => {
            let is_file = |virtio: &config::Virtio| virtio.kind == VirtioKind::DeviceFile;
            config.virtio.iter().any(|virtio| virtio.name == *name && is_file(virtio))
        }
        Seat::Device(_) | Seat::Channel | Seat::Iommu | Seat::Controller(_) => false,
    }
}

/// Puts what a slot has into its socket; devices have none. Its BARs are at addresses below and above 4 GiB.
///
/// # Errors
/// Says why it cannot be there.
pub fn plug(
    domain: &Arc<Domain>,
    slot: u8,
    seat: &Seat,
    [low, high]: &mut [BarAddresses; 2],
) -> Result<(), BuildError> {
    let guest = guest_at(domain.id, &domain.config, slot);
    let (name, function) = match seat {
        Seat::Device(_) => return Ok(()),
        _ if !Domain::has_room_for_windows(domain.config.memory) && has_window(&domain.config, seat) => {
            return Err(BuildError::TooLarge);
        }
        Seat::Virtual(name) => (&**name, devices::front(name, guest, low, high)),
        Seat::Channel => (virtio::channel::NAME, virtio::channel(guest, low, high)),
        Seat::Iommu => (virtio::IOMMU, virtio::iommu(&domain.config, guest, low, high)),
        Seat::Controller(network) => (vif::CONTROLLER, vif::controller(*network, guest, low)),
        Seat::BackEnd(of, _) if !domain.serve(*of) => return Err(BuildError::OutOfMemory),
        Seat::BackEnd(of, name) => (&**name, virtio::back((*of, name), guest, low, high)),
    };
    let function = function.map_err(|error| BuildError::Virtual(name.into(), error))?;
    domain.plug(function).map_err(BuildError::Function)
}

/// Functions of a domain under construction: they leave their devices unless it becomes one.
struct Attached(Vec<Arc<dyn VirtualFunction>>);

impl Attached {
    fn attach(
        &mut self,
        domain: DomainId,
        config: &config::Domain,
        seats: &Seats,
        addresses: &mut BarAddresses,
    ) -> Result<(), BuildError> {
        for (slot, seat) in seats.iter() {
            let Seat::Device(index) = *seat else { continue };
            let Some(share) = config.devices.get(index) else { continue };
            let function = devices::attach(share, guest_at(domain, config, slot), addresses);
            self.0.push(function.map_err(|error| BuildError::Device(index, error))?);
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.iter().for_each(|function| function.detach());
    }
}

fn build_bus(functions: &[Arc<dyn VirtualFunction>]) -> Result<PciBus, pci::BuildError> {
    let mut bus = PciBus::new();
    for function in functions {
        bus.insert(function.slot(), function.describe()?)?;
    }
    Ok(bus)
}

fn load(
    config: &config::Domain,
    kernel: &[u8],
    initrd: Option<&[u8]>,
    seats: &Seats,
    memory: &mut Memory,
) -> Result<Entry, LoadError> {
    let route = |slot| acpi::IrqRoute { slot, pin: 0, gsi: layout::slot_gsi(slot) };
    let routes: Vec<acpi::IrqRoute> = Seats::slots().map(route).collect();
    let sockets: Vec<u8> = seats.sockets().collect();
    let has_windows = Domain::has_room_for_windows(config.memory);
    let endpoints: Vec<u8> = seats.behind_iommu(config).collect();
    let iommu = seats.find(&Seat::Iommu).map(|slot| acpi::Iommu { slot, endpoints: &endpoints });
    let tables = acpi::build(
        &acpi::Description {
            vcpus: u32::from(config.vcpus),
            routes: &routes,
            sockets: &sockets,
            mmio_window: PCI_WINDOW,
            high_window: if has_windows { HIGH_WINDOW } else { 0..0 },
            io_window: 0x1000..0x1_0000,
            ecam: layout::ECAM,
            iommu,
        },
        layout::ACPI,
    );
    memory.write(layout::RESET_VECTOR, &layout::FIRMWARE).map_err(|_| LoadError::OutOfRange)?;
    for (at, bytes) in &tables.blocks {
        memory.write(*at, bytes).map_err(|_| LoadError::OutOfRange)?;
    }
    let ram = memory.ram();
    let parameters = Parameters { initrd, cmdline: &config.cmdline, ram: &ram, rsdp: Some(tables.rsdp) };
    sluice_loader::load(kernel, &parameters, memory)
}

/// How the first processor begins.
enum Start {
    /// As its kernel's boot protocol says.
    Full(Entry),
    /// As memory was built.
    Paravirtual(sluice_xenpv::Layout, sluice_xenpv::Built, Hardware),
}

/// Builds the memory of a paravirtual domain.
fn load_paravirtual(
    config: &config::Domain,
    kernel: &[u8],
    initrd: Option<&[u8]>,
    memory: &Memory,
    hardware: &Hardware,
) -> Result<(sluice_xenpv::Layout, sluice_xenpv::Built), BuildError> {
    use sluice_xenpv::build::BuildError::TooLarge;
    let (start, bytes) = memory.piece().ok_or(BuildError::OutOfMemory)?;
    let first = sluice_pagetypes::Mfn(start.as_u64() / PAGE_SIZE);
    let layout = sluice_xenpv::Layout::new(first, bytes / PAGE_SIZE, config.vcpus.into());
    let layout = layout.ok_or(BuildError::Paravirtual(TooLarge))?;
    let image = sluice_xenpv::Image::parse(kernel).map_err(BuildError::Paravirtual)?;
    let clock = sluice_platform::clock::wall_clock(crate::firmware::rtc::boot_time_ns());
    let mut frames = exit::paravirtual::Frames;
    let told = (&*config.cmdline, hardware.is_initial());
    let built = layout.build(&mut frames, &image, told, initrd.unwrap_or_default(), &clock);
    Ok((layout, built.map_err(BuildError::Paravirtual)?))
}

fn build_processors(domain: &Domain, start: &Start) -> Result<Vec<Arc<Vcpu>>, BuildError> {
    let count = u32::from(domain.config.vcpus);
    let told = domain.config.devices.iter().any(|share| share.attachment.machine_check());
    let mut vcpus = Vec::new();
    for id in 0..count {
        let mut context = Context::new(id, told).ok_or(BuildError::OutOfMemory)?;
        exit::initialize(&mut context, domain);
        exit::inject::start_up(&mut context, 0);
        match (id, start) {
            (0, Start::Full(entry)) => enter_kernel(&mut context, entry),
            (0, Start::Paravirtual(layout, built, hardware)) => {
                let (built, hardware) = (built.clone(), hardware.clone());
                let started = exit::paravirtual::start(&mut context, domain, layout, built, hardware);
                started.map_err(BuildError::Tables)?;
            }
            (_, Start::Paravirtual(..)) => exit::paravirtual::wait(&mut context, id),
            (_, Start::Full(_)) => {}
        }
        let wanted = domain.config.cpus.get(id as usize % domain.config.cpus.len().max(1));
        let home = sched::home(wanted.copied(), id);
        let vcpu = Vcpu::new(id, home, context);
        if id == 0 {
            vcpu.set_state(RunState::Ready);
        }
        vcpus.push(Arc::new(vcpu));
    }
    Ok(vcpus)
}

/// Puts the first processor where its kernel's boot protocol wants it.
fn enter_kernel(context: &mut Context, entry: &Entry) {
    use svm::vmcb::Segment;
    let save = &mut context.vmcb.save;
    let data = Segment { selector: 0x18, attributes: 0xc93, limit: 0xffff_ffff, base: 0 };
    (save.ds, save.es, save.fs, save.gs, save.ss) = (data, data, data, data, data);
    save.gdtr = Segment { base: entry.gdt_base.as_u64(), limit: u32::from(entry.gdt_limit), ..data };
    match entry.mode {
        Mode::Long => {
            save.cs = Segment { selector: 0x10, attributes: 0xa9b, limit: 0xffff_ffff, base: 0 };
            save.cr0 = 0x8000_0031;
            save.cr4 = 0x20;
            save.cr3 = entry.cr3.as_u64();
            save.efer = svm::EFER_SVME | 1 << 8 | 1 << 10;
        }
        Mode::Protected32 => {
            save.cs = Segment { selector: 0x10, attributes: 0xc9b, limit: 0xffff_ffff, base: 0 };
            save.cr0 = 0x11;
        }
    }
    save.rip = entry.rip;
    save.rsp = entry.rsp;
    save.rax = entry.rax;
    context.regs[3] = entry.rbx;
    context.regs[6] = entry.rsi;
}
