//! The kernel, linked below 1 MiB: a guest under `dma = "unprotected"` has no RAM at 16 MiB. It only attacks by devices, and has them
//! work on pages that another one grants.
#![no_std]
#![no_main]

/// Called with the physical address of the PVH start information.
#[unsafe(no_mangle)]
extern "C" fn bare_main(start_info: u64) -> ! {
    sluice_bare::run(start_info, &[sluice_bare::DMA, sluice_bare::GRANTS])
}
