//! The bare-metal image of the Sluice hypervisor: the only place for assembly and for talking to hardware.
//!
//! [`boot`] lays the ground ([`mm`], [`acpi`], [`cpu`]) and calls [`main`] on the boot processor and [`run_cpu`] on
//! every other, both with interrupts off.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

mod acpi;
mod boot;
mod cpu;
mod device;
mod domain;
mod iommu;
mod log;
mod manage;
mod mm;
mod panic;
mod power;
mod sched;
mod svm;
mod sync;
mod uart;

use sluice_abi::config::Config;

/// The boot processor's life after the ground is laid.
fn main(info: &'static boot::BootInfo) -> ! {
    let Some(bundle) = info.bundle_bytes().map(boot::bundle::Bundle::new) else {
        ::log::error!("no bundle: start with a boot module that `cargo sluice bundle` made");
        power::fail(power::code::CONFIGURATION);
    };
    let config = match bundle.get(sluice_abi::bundle::CONFIG).map(postcard::from_bytes::<Config>) {
        Some(Ok(config)) if config.version == sluice_abi::config::VERSION => config,
        Some(Ok(config)) => {
            ::log::error!(
                "the bundle has version {}, this image takes {}",
                config.version,
                sluice_abi::config::VERSION
            );
            power::fail(power::code::CONFIGURATION);
        }
        _ => {
            ::log::error!("the bundle holds no valid configuration: make it again");
            power::fail(power::code::CONFIGURATION);
        }
    };
    // Address space identifier 0 is the host's; each domain takes one.
    let most = svm::features().map_or(usize::MAX, |features| features.asids.saturating_sub(1) as usize);
    if let Err(fault) = config.check(most) {
        ::log::error!("the configuration cannot be run here (at most {most} domains): {fault:?}");
        power::fail(power::code::CONFIGURATION);
    }
    if let Err(index) = device::init(&config.devices, info) {
        let name = config.devices.get(index).map_or("?", |device| &device.name);
        ::log::error!("device {name}: no such PCI function in this machine");
        power::fail(power::code::CONFIGURATION);
    }
    manage::init(config, bundle);
    sched::run_cpu(cpu::this())
}

/// Life of every other processor.
fn run_cpu(cpu: &'static cpu::Cpu) -> ! {
    sched::run_cpu(cpu)
}
