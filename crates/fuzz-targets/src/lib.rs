//! What a guest can reach, behind functions that take bytes.
//!
//! Each target in [`TARGETS`] turns a byte string into hostile input for one parser or device and panics
//! when a promise of that code is broken. Two harnesses drive them: `tests/smoke.rs` with pseudo-random
//! bytes, on any toolchain, in every `cargo test`; and `fuzz/` with libFuzzer, which learns from coverage.
//!
//! The targets say in their documentation what they assert beyond "no panic". Arithmetic is checked in both
//! harnesses, so an overflow is a panic too.
#![forbid(unsafe_code)]

pub mod backend;
pub mod boot;
pub mod devfile;
pub mod dmar;
pub mod emulated;
pub mod grants;
pub mod ide;
mod input;
pub mod insn;
pub mod ivrs;
pub mod masters;
pub mod models;
pub mod nic_e1000;
pub mod nic_rtl8139;
pub mod nvme;
pub mod paravirtual;
pub mod platform;
pub mod tables;
pub mod vif;
pub mod vif_card;
pub mod vif_native;
pub mod vif_offload;
pub mod virtio;
pub mod virtio_iommu;
pub mod vpio;
mod wire;

pub use input::Input;

/// A target: its name, as in `fuzz/fuzz_targets`, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("insn_plain", insn::plain),
    ("insn_step", insn::step),
    ("insn_string_io", insn::string_io),
    ("insn_walk", insn::walk),
    ("boot_loader", boot::loader),
    ("boot_bundle", boot::bundle),
    ("boot_config", boot::config),
    ("channel", boot::channel),
    ("iommu_dmar", dmar::dmar),
    ("platform_lapic", platform::lapic),
    ("platform_ioapic", platform::ioapic),
    ("platform_uart", platform::uart),
    ("platform_hotplug", platform::hotplug),
    ("platform_rtc", platform::rtc),
    ("platform_pci", platform::pci),
    ("platform_msix", platform::msix),
    ("platform_cpuid", platform::cpuid),
    ("traps_ports", tables::ports),
    ("traps_pages", tables::pages),
    ("acpi_ivrs", ivrs::ivrs),
    ("memory_guest", tables::guest_memory),
    ("nic_ne2000", vpio::ne2000),
    ("nic_rtl8139", nic_rtl8139::rtl8139),
    ("nic_e1000", nic_e1000::e1000),
    ("vpio_monitor", vpio::monitor),
    ("ide_command", ide::command),
    ("nvme_command", nvme::command),
    ("model_rtl8139", models::rtl8139),
    ("model_e1000", models::e1000),
    ("vpio_masters", masters::masters),
    ("shared_nic", emulated::shared_nic),
    ("uplink_cards", emulated::uplink),
    ("vif_offload", vif_offload::offload),
    ("virtio_device", virtio::device),
    ("virtio_port", virtio::port),
    ("virtio_iommu", virtio_iommu::requests),
    ("vif_network", vif::network),
    ("vif_card", vif_card::card),
    ("vif_native", vif_native::native),
    ("backend_vhost_user", backend::vhost_user),
    ("backend_request", backend::request),
    ("backend_command", backend::command),
    ("backend_packets", backend::packets),
    ("backend_random", backend::random),
    ("backend_relay", backend::relay),
    ("devfile_request", devfile::request),
    ("devfile_calls", devfile::calls),
    ("grant_calls", grants::calls),
    ("grant_table", grants::table),
    ("paravirtual_calls", paravirtual::calls),
    ("paravirtual_image", paravirtual::image),
];
