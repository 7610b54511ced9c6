//! From the boot loader to the first guest: entry code, what the loader says, and the order in which the ground is laid.

mod entry;
mod guests;
mod multiboot2;
mod pvh;
mod selftest;

use crate::cpu::{self, apic, frequency, gdt, idt, smp, timer};
use crate::firmware::acpi;
use crate::handover::BootInfo;
use crate::irq::ioapic;
use crate::{iommu, log, mm, panic, pci, power, run, screen, svm};
use sluice_screen::Style;

/// Title of the screen until there are guests.
const STARTING: &str = concat!(" Sluice ", env!("CARGO_PKG_VERSION"), " starts");

static INFO: crate::sync::Once<BootInfo> = crate::sync::Once::new();

/// What the boot loader told.
fn info() -> &'static BootInfo {
    INFO.get().expect("boot information is read first")
}

/// First Rust code, called by the entry code on the boot stack and the boot page tables.
extern "C" fn rust_entry(magic: u32, address: u32) -> ! {
    log::init();
    idt::init(panic::exception);
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
    screen::init(info);
    screen::show_log(STARTING, Style::BAR);
    acpi::init(info.rsdp);
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
    frequency::init();
    pci::quiet_all();
    iommu::start();
    timer::calibrate();
    timer::init();
    ioapic::init();
    cpu::this().online.store(true, core::sync::atomic::Ordering::Release);
    smp::start(info);
    smp::assign_roles();
    mm::check_live();
    ::log::info!(
        "{} processors, {} MiB of memory, {} MiB free",
        cpu::count(),
        mm::memory_bytes() >> 20,
        mm::free_bytes() >> 20,
    );
    selftest::run(info.option("selftest").unwrap_or_default());
    if let Err(why) = svm::check() {
        ::log::error!("this processor cannot run guests: {why}");
        power::fail(power::code::MACHINE);
    }
    sluice_insn::prepare();
    smp::release(run::run_cpu);
    guests::run(info)
}
