//! See `sluice_fuzz_targets::nvme::command`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::nvme::command(data));
