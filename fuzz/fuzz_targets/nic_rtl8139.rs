//! See `sluice_fuzz_targets::nic_rtl8139::rtl8139`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::nic_rtl8139::rtl8139(data));
