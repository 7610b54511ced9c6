//! See `sluice_fuzz_targets::vif_native::native`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::vif_native::native(data));
