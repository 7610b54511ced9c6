//! A bare-metal guest kernel for tests: it measures what an exit costs, and does everything to the
//! hypervisor that a guest must not get away with.
//!
//! `job=` on the command line says what to do: [`null`] measures, [`hostile`] attacks, [`dma`] attacks by a
//! device, [`grants`] shares pages with another such kernel, [`conform`] compares the processor with the manual, [`instructions`] checks what the hypervisor executes in the
//! processor's stead, [`isolation`] looks for memory of others, [`witness`] notices what others do to its own, [`loops`]
//! what they leave it of its processor. It ends by powering off, unless the attack ends it before.
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
mod pci;
mod random;
mod trap;
mod witness;

use console::println;

/// Called by [`entry`] with the physical address of the PVH start information.
#[unsafe(no_mangle)]
extern "C" fn bare_main(start_info: u64) -> ! {
    trap::init();
    let boot = entry::BootInfo::read(start_info);
    let job = boot.argument("job").unwrap_or("null");
    let (name, detail) = job.split_once(':').unwrap_or((job, ""));
    match name {
        "null" => null::run(),
        "hostile" => hostile::run(detail, &boot),
        "conform" => conform::run(detail, &boot),
        "grants" => grants::run(detail, &boot),
        "dma" => dma::run(detail, &boot),
        "instructions" => instructions::run(),
        "witness" => witness::run(&boot),
        "watch" => witness::watch(&boot),
        "loops" => loops::run(&boot),
        "marker" => isolation::mark(&boot),
        "scan" => isolation::scan(&boot),
        _ => println!("no such job: {job}"),
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
