//! See `sluice_fuzz_targets::insn::string_io`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::insn::string_io(data));
