//! See `sluice_fuzz_targets::virtio_iommu::requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_fuzz_targets::virtio_iommu::requests(data));
