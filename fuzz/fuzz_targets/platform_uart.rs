//! See `sluice_fuzz_targets::platform::uart`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::platform::uart(data));
