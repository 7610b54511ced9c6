//! See `sluice_fuzz_targets::models::rtl8139`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::models::rtl8139(data));
