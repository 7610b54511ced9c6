//! See `sluice_fuzz_targets::emulated::shared_nic`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::emulated::shared_nic(data));
