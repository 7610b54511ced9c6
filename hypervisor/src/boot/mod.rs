//! From the boot loader to [`crate::main`]: entry code, what the loader says, and the order in which the ground is laid.

mod entry;
mod multiboot2;
mod pvh;
mod selftest;

use crate::cpu::{self, apic, gdt, idt, ioapic, smp, timer, tsc};
use crate::mm::{self, Hpa};
use crate::{acpi, device, iommu, log};
use arrayvec::{ArrayString, ArrayVec};

pub use sluice_abi::bundle;

/// Most regions of the memory map that are kept.
pub const MAX_REGIONS: usize = 128;

/// What a range of physical addresses is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Memory, free to use.
    Usable,
    /// Memory that holds ACPI tables or state.
    Acpi,
    /// Anything else.
    Reserved,
}

impl RegionKind {
    /// From the type of an E820 or multiboot2 entry.
    fn from_e820(kind: u32) -> Self {
        match kind {
            1 => RegionKind::Usable,
            3 | 4 => RegionKind::Acpi,
            _ => RegionKind::Reserved,
        }
    }

    /// Whether it is to be mapped cached.
    pub fn is_memory(self) -> bool {
        self != RegionKind::Reserved
    }
}

/// A range of physical addresses.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What it is for.
    pub kind: RegionKind,
}

/// What the boot loader told, copied out of its memory.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// Name of the protocol.
    pub protocol: &'static str,
    /// The memory map, in the loader's order.
    pub memory: ArrayVec<Region, MAX_REGIONS>,
    /// ACPI root pointer, if the loader knows.
    pub rsdp: Option<Hpa>,
    /// The boot module: address and bytes.
    pub bundle: Option<(Hpa, u64)>,
    /// The command line, cut off at 256 bytes.
    pub cmdline: ArrayString<256>,
}

impl BootInfo {
    fn new(protocol: &'static str) -> Self {
        Self { protocol, memory: ArrayVec::new(), rsdp: None, bundle: None, cmdline: ArrayString::new() }
    }

    fn add_region(&mut self, start: u64, bytes: u64, kind: u32) {
        let region = Region { start, end: start.saturating_add(bytes), kind: RegionKind::from_e820(kind) };
        if bytes > 0 {
            let _ = self.memory.try_push(region);
        }
    }

    fn set_cmdline(&mut self, bytes: impl Iterator<Item = u8>) {
        for byte in bytes.take(self.cmdline.capacity()) {
            self.cmdline.push(if byte.is_ascii_graphic() { char::from(byte) } else { ' ' });
        }
    }

    /// Value of `key=value` in the command line.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.cmdline.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The boot module's bytes. Only after [`mm::init`].
    pub fn bundle_bytes(&self) -> Option<&'static [u8]> {
        let (start, bytes) = self.bundle?;
        // SAFETY: the loader put the module into memory, `mm::frames` leaves it out, and nobody writes it: it stays as
        // it is for the rest of the run.
        Some(unsafe { core::slice::from_raw_parts(mm::virt(start), usize::try_from(bytes).ok()?) })
    }
}

static INFO: crate::sync::Once<BootInfo> = crate::sync::Once::new();

/// What the boot loader told.
pub fn info() -> &'static BootInfo {
    INFO.get().expect("boot information is read first")
}

/// First Rust code, called by the entry code on the boot stack and the boot page tables.
extern "C" fn rust_entry(magic: u32, address: u32) -> ! {
    log::init();
    idt::init();
    idt::install();
    let info = match magic {
        pvh::ENTRY_MAGIC => pvh::read(address),
        multiboot2::MAGIC => multiboot2::read(address),
        _ => panic!("unknown boot protocol {magic:#x}"),
    };
    let info = INFO.call_once(|| info);
    if let Some(level) = info.option("log") {
        log::set_level(level);
    }
    ::log::info!(
        "sluice {} by {}, command line \"{}\"",
        env!("CARGO_PKG_VERSION"),
        info.protocol,
        info.cmdline
    );
    for region in &info.memory {
        ::log::debug!("memory {:#012x}-{:#012x} {:?}", region.start, region.end, region.kind);
    }
    cpu::init_control();
    mm::init(info);
    acpi::init(info);
    apic::probe(acpi::apic_ids().iter().any(|id| *id > 254));
    apic::init();
    let cpu = cpu::register(apic::id()).expect("memory for the boot processor");
    // SAFETY: this is the processor that `cpu` describes.
    unsafe { gdt::install(cpu) };
    // SAFETY: the stack is mapped, unused, and `late` never returns.
    unsafe { entry::call_on_stack(cpu.tables.stack_top(), late) }
}

/// The rest, on the boot processor's own guarded stack.
extern "C" fn late() -> ! {
    let info = info();
    tsc::init();
    device::pci::quiet_all();
    iommu::start();
    timer::calibrate();
    timer::init();
    ioapic::init();
    cpu::this().online.store(true, core::sync::atomic::Ordering::Release);
    smp::start(info);
    mm::check_live();
    ::log::info!(
        "{} processors, {} MiB of memory, {} MiB free",
        cpu::count(),
        mm::memory_bytes() >> 20,
        mm::frames().free_bytes() >> 20,
    );
    selftest::run(info.option("selftest").unwrap_or_default());
    smp::release();
    crate::main(info)
}
