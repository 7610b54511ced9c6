//! The bare-metal image of the Sluice hypervisor: the only place for assembly and for talking to hardware.
//!
//! [`boot`] lays the ground ([`mm`], [`acpi`], [`cpu`]) and calls [`main`] on the boot processor and [`run_cpu`] on
//! every other, both with interrupts off.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(dead_code)] // The ground offers more than is used yet.

extern crate alloc;

mod acpi;
mod boot;
mod cpu;
mod log;
mod mm;
mod panic;
mod power;
mod sync;
mod uart;

/// The boot processor's life after the ground is laid.
fn main(info: &'static boot::BootInfo) -> ! {
    ::log::info!("hello");
    let bundle = info.bundle_bytes().map(boot::bundle::Bundle::new);
    for member in bundle.iter().flat_map(|bundle| bundle.members()) {
        ::log::info!(
            "bundle: {} bytes of {}",
            member.data.len(),
            core::str::from_utf8(member.name).unwrap_or("?")
        );
    }
    power::off()
}

/// Life of every other processor.
fn run_cpu(_cpu: &'static cpu::Cpu) -> ! {
    loop {
        cpu::idle();
    }
}
