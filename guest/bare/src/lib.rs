//! A bare-metal guest kernel for tests: it measures what an exit costs, and does everything to the
//! hypervisor that a guest must not get away with.
//!
//! `job=` on the command line says what to do: [`null`] measures, [`hostile`] attacks, [`dma`] attacks by a
//! device, [`grants`] shares pages with another such kernel, [`regions`] serves a device that holds memory of others, [`conform`] compares the processor with the manual, [`instructions`] checks what the hypervisor executes in the
//! processor's stead, [`isolation`] looks for memory of others, [`witness`] notices what others do to its own, [`loops`]
//! what they leave it of its processor, [`pingpong`] measures how two processors pass a word. It ends by powering off, unless the attack ends it before.
//!
//! Everything here is unsafe by purpose, so that `unsafe` marks nothing: [`machine`] holds the
//! instructions, and jobs are written as plainly as they can be.
#![no_std]
#![allow(clippy::undocumented_unsafe_blocks, reason = "what an attack does need not be sound")]

mod conform;
mod console;
mod dma;
mod entry;
mod grants;
mod hostile;
mod instructions;
mod isolation;
mod loops;
mod machine;
mod null;
mod nvme;
mod pci;
mod pingpong;
mod random;
mod regions;
mod trap;
mod witness;

use console::println;
pub use entry::BootInfo;

/// What the kernel can be told to do.
pub struct Job {
    name: &'static str,
    /// Called with what follows the name after a colon.
    run: fn(&str, &BootInfo),
}

/// Attacks by devices. Apart, for a kernel that does nothing else: all of them do not fit below 640 KiB.
pub const DMA: Job = Job { name: "dma", run: dma::run };

/// A peer that has such a device.
pub const GRANTS: Job = Job { name: "grants", run: grants::run_low };

/// All of them.
pub const ALL: &[Job] = &[
    Job { name: "null", run: |_, _| null::run() },
    Job { name: "hostile", run: hostile::run },
    Job { name: "conform", run: conform::run },
    Job { name: "grants", run: grants::run },
    Job { name: "regions", run: regions::run },
    DMA,
    Job { name: "instructions", run: |_, _| instructions::run() },
    Job { name: "witness", run: |_, boot| witness::run(boot) },
    Job { name: "watch", run: |_, boot| witness::watch(boot) },
    Job { name: "pingpong", run: |_, boot| pingpong::run(boot) },
    Job { name: "loops", run: |_, boot| loops::run(boot) },
    Job { name: "marker", run: |_, boot| isolation::mark(boot) },
    Job { name: "scan", run: |_, boot| isolation::scan(boot) },
];

/// Does that of `jobs` which the command line names, and powers off. `start_info` is the physical address of the PVH start information.
pub fn run(start_info: u64, jobs: &[Job]) -> ! {
    trap::init();
    let boot = entry::BootInfo::read(start_info);
    let wanted = boot.argument("job").unwrap_or("null");
    let (name, detail) = wanted.split_once(':').unwrap_or((wanted, ""));
    match jobs.iter().find(|job| job.name == name) {
        Some(job) => (job.run)(detail, &boot),
        None => println!("no such job: {wanted}"),
    }
    machine::power_off()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("bare: {info}");
    loop {
        machine::halt();
    }
}
