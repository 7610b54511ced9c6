//! See `sluice_fuzz_targets::backend::packets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::backend::packets(data));
