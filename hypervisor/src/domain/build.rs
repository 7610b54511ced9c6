//! Building a domain: memory, nested page tables, virtual platform, kernel, processors.

use super::memory::Memory;
use super::vcpu::{Context, RunState, Vcpu};
use super::{Domain, PageHandler, Platform, PortHandler, layout};
use crate::boot::bundle::Bundle;
use crate::cpu::fpu::FpuState;
use crate::cpu::tsc;
use crate::device::{self, AttachError, Share, Windows};
use crate::mm;
use crate::sched;
use crate::svm::{self, VmcbPage, exit};
use crate::sync::SpinLock;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use sluice_abi::channel::CommandError;
use sluice_abi::config;
use sluice_loader::{Entry, GuestWrite, LoadError, Mode, Parameters};
use sluice_memory::{Gpa, PAGE_SIZE};
use sluice_platform::acpi;
use sluice_platform::ioapic::IoApic;
use sluice_platform::lapic::{LocalApic, Rates};
use sluice_platform::machine_check::MachineCheck;
use sluice_platform::pci::{ConfigEffect, PciBus};
use sluice_platform::uart::Uart;
use sluice_platform::{pci, power};
use sluice_traps::Direction;
use sluice_traps::pages::PageTable;
use sluice_traps::ports::PortTable;

/// Bytes of an I/O permission map (APM vol 2, 15.10.1).
const PERMISSION_MAP: u64 = 3 * PAGE_SIZE;
/// First slot of the virtual PCI bus that holds a shared device.
const FIRST_SLOT: u8 = 3;

/// Why a domain cannot be built.
#[derive(Clone, Copy, Debug)]
pub enum BuildError {
    /// Not enough memory.
    OutOfMemory,
    /// The bundle lacks its kernel or ramdisk.
    Missing,
    /// The kernel cannot be started.
    Kernel(LoadError),
    /// The device at this place of its list cannot be given to it.
    Device(usize, AttachError),
    /// The IOMMUs before its devices want different tables, or know no more spaces.
    Iommu,
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
            Self::Iommu => out.write_str(
                "the IOMMUs before its devices want different tables, or know no more spaces: give them to several domains",
            ),
            Self::Function(error) => write!(out, "its PCI bus cannot show a device as it is: {error:?}"),
        }
    }
}

impl BuildError {
    /// As the management channel says it.
    pub fn as_command_error(self) -> CommandError {
        match self {
            Self::OutOfMemory => CommandError::OutOfMemory,
            Self::Missing | Self::Kernel(_) => CommandError::BadKernel,
            Self::Device(..) | Self::Iommu | Self::Function(_) => CommandError::DeviceBusy,
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.dissolve();
        mm::release(self.permission_map, PERMISSION_MAP);
    }
}

/// Builds the domain of a configuration; it does not run yet.
///
/// # Errors
/// Says what is missing; nothing is kept.
pub fn build(
    index: u16,
    config: &config::Domain,
    bundle: &Bundle<'static>,
) -> Result<Arc<Domain>, BuildError> {
    let kernel = bundle.get(&config.kernel).ok_or(BuildError::Missing)?;
    let initrd = match &config.initrd {
        Some(name) => Some(bundle.get(name).ok_or(BuildError::Missing)?),
        None => None,
    };
    let mut memory = Memory::new(index, config)?;
    let mut attached = Attached(Vec::new());
    attached.attach(index, config)?;
    let bus = build_bus(&attached.0).map_err(BuildError::Function)?;
    let entry = load(config, kernel, initrd, &attached.0, &mut memory).map_err(BuildError::Kernel)?;
    let permission_map = mm::allocate_zeroed(PERMISSION_MAP).ok_or(BuildError::OutOfMemory)?;
    let (ram, space) = memory.take();
    let mut domain = Domain {
        index,
        config: config.clone(),
        vcpus: Vec::new(),
        shares: core::mem::take(&mut attached.0),
        ports: SpinLock::new(port_table()),
        pages: SpinLock::new(page_table()),
        platform: SpinLock::new(Platform { io_apic: IoApic::new(0), uart: Uart::new(), pci: bus }),
        memory: ram,
        space: SpinLock::new(space),
        permission_map,
        // 0 is the host's. A domain that is built again takes the same one: its first entry on each
        // processor flushes.
        asid: u32::from(index) + 1,
        state: AtomicU8::new(0),
        end: SpinLock::new(None),
        frozen: AtomicU32::new(0),
        console: SpinLock::new(VecDeque::new()),
        console_dropped: AtomicU64::new(0),
        held_until: AtomicU64::new(u64::MAX),
    };
    domain.derive_permission_map();
    match build_processors(&domain, &entry) {
        Ok(vcpus) => domain.vcpus = vcpus,
        Err(error) => {
            device::release(&domain);
            return Err(error);
        }
    }
    let domain = Arc::new(domain);
    domain.settle();
    device::bind(&domain);
    for (index, share) in domain.shares.iter().enumerate() {
        share.configured(&domain, index, ConfigEffect::None);
    }
    Ok(domain)
}

/// Devices of a domain under construction: taken back unless it becomes one.
struct Attached(Vec<Share>);

impl Attached {
    fn attach(&mut self, domain: u16, config: &config::Domain) -> Result<(), BuildError> {
        let mut windows = Windows::new();
        for (index, share) in config.devices.iter().enumerate() {
            let slot = FIRST_SLOT + index as u8;
            let share =
                device::attach(share, domain, &config.name, slot, layout::slot_gsi(slot), &mut windows);
            self.0.push(share.map_err(|error| BuildError::Device(index, error))?);
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.iter().for_each(device::withdraw);
    }
}

fn build_bus(shares: &[Share]) -> Result<PciBus, pci::BuildError> {
    let mut bus = PciBus::new();
    for share in shares {
        bus.insert(share.slot(), share.function()?)?;
    }
    Ok(bus)
}

fn port_table() -> PortTable<PortHandler> {
    let mut ports = PortTable::new();
    let both = Direction::READ | Direction::WRITE;
    ports.hook(layout::UART_PORT..=layout::UART_PORT + 7, both, PortHandler::Uart);
    ports.hook(pci::ADDRESS_PORT..=pci::DATA_PORT + 3, both, PortHandler::PciConfig);
    ports.hook(power::SLEEP_CONTROL_PORT..=power::RESET_PORT, both, PortHandler::Power);
    ports
}

fn page_table() -> PageTable<PageHandler> {
    let mut pages = PageTable::new();
    let both = Direction::READ | Direction::WRITE;
    pages.hook(Gpa::new(layout::IO_APIC), PAGE_SIZE, both, PageHandler::IoApic);
    pages.hook(Gpa::new(layout::LOCAL_APIC), PAGE_SIZE, both, PageHandler::LocalApic);
    pages.hook(Gpa::new(layout::ECAM), layout::ECAM_SIZE, both, PageHandler::Ecam);
    pages
}

fn load(
    config: &config::Domain,
    kernel: &[u8],
    initrd: Option<&[u8]>,
    shares: &[Share],
    memory: &mut Memory,
) -> Result<Entry, LoadError> {
    let routes: Vec<acpi::IrqRoute> =
        shares.iter().map(|share| acpi::IrqRoute { slot: share.slot(), pin: 0, gsi: share.pin() }).collect();
    let tables = acpi::build(
        &acpi::Description {
            vcpus: u32::from(config.vcpus),
            routes: &routes,
            mmio_window: layout::PCI_MEMORY..layout::PCI_MEMORY + layout::PCI_MEMORY_SIZE,
            io_window: 0x1000..0x1_0000,
            ecam: layout::ECAM,
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

fn build_processors(domain: &Domain, entry: &Entry) -> Result<Vec<Vcpu>, BuildError> {
    let count = u32::from(domain.config.vcpus);
    let told = domain.config.devices.iter().any(|share| share.refusals.machine_check());
    let mut vcpus = Vec::new();
    for id in 0..count {
        let mut context = Context {
            vmcb: VmcbPage::new().ok_or(BuildError::OutOfMemory)?,
            regs: [0; 16],
            lapic: LocalApic::new(id, Rates::new(tsc::khz() as u32)),
            fpu: FpuState::new().ok_or(BuildError::OutOfMemory)?,
            tsc_aux: 0,
            breakpoints: [0; 4],
            pat: 0x0007_0406_0007_0406,
            mtrr_default: 0xc06,
            inject: 0,
            offered: None,
            last_event: 0,
            window: false,
            shadow_at: 0,
            clock_msr: 0,
            pv_eoi_msr: 0,
            pv_eoi_armed: false,
            machine_check: MachineCheck::new(told),
            machine_check_lost: false,
        };
        exit::initialize(&mut context, domain);
        svm::inject::start_up(&mut context, 0);
        if id == 0 {
            enter_kernel(&mut context, entry);
        }
        let wanted = domain.config.cpus.get(id as usize % domain.config.cpus.len().max(1));
        let home = sched::home(wanted.copied(), id);
        let vcpu = Vcpu::new(id, home, context);
        if id == 0 {
            vcpu.set_state(RunState::Ready);
        }
        vcpus.push(vcpu);
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
