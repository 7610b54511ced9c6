//! From the ground that is laid to the first guest.

use crate::handover::BootInfo;
use crate::{cpu, devices, manage, mm, power, run};
use sluice_abi::bundle::Bundle;
use sluice_abi::config::Config;

/// Builds the domains that the bundle names and runs them: the boot processor's life after the ground is laid.
pub fn run(info: &'static BootInfo) -> ! {
    let Some(bundle) = mm::boot_module(info).map(Bundle::new) else {
        log::error!("no bundle: start with a boot module that `cargo sluice bundle` made");
        power::fail(power::code::CONFIGURATION);
    };
    let config = match bundle.get(sluice_abi::bundle::CONFIG).map(postcard::from_bytes::<Config>) {
        Some(Ok(config)) if config.version == sluice_abi::config::VERSION => config,
        Some(Ok(config)) => {
            log::error!(
                "the bundle has version {}, this image takes {}",
                config.version,
                sluice_abi::config::VERSION
            );
            power::fail(power::code::CONFIGURATION);
        }
        _ => {
            log::error!("the bundle holds no valid configuration: make it again");
            power::fail(power::code::CONFIGURATION);
        }
    };
    if let Err(fault) = config.check() {
        log::error!("the configuration cannot be run: {fault:?}");
        power::fail(power::code::CONFIGURATION);
    }
    devices::init(&config.devices, info);
    devices::vif::init(&config.networks);
    manage::init(config, bundle, info);
    run::run_cpu(cpu::this())
}
