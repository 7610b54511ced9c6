//! See `sluice_fuzz_targets::tables::guest_memory`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::tables::guest_memory(data));
