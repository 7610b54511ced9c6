//! See `sluice_fuzz_targets::models::e1000`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::models::e1000(data));
