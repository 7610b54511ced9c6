//! The kernel, linked at 16 MiB.
#![no_std]
#![no_main]

/// Called with the physical address of the PVH start information.
#[unsafe(no_mangle)]
extern "C" fn bare_main(start_info: u64) -> ! {
    sluice_bare::run(start_info, sluice_bare::ALL)
}
