//! Sluice: the virtual platform of a guest: the least that stock Linux needs.
//!
//! Every device is a plain value with no clock, no lock and no hardware behind it. The hypervisor calls it
//! from a VM exit with the decoded access and, where time matters, the guest's TSC; it answers with a small
//! value that says what has to happen next (send an interrupt, rearm a timer, remap a BAR). So each of them
//! runs on the host, under tests, exactly as it runs under a guest.
//!
//! | file | device | where the guest finds it |
//! |---|---|---|
//! | [`lapic`] | local APIC, xAPIC and x2APIC | 0xFEE0_0000, MSRs 0x1B, 0x6E0, 0x800-0x83F |
//! | [`ioapic`] | I/O APIC, 24 pins, global interrupts 0-23 | 0xFEC0_0000 |
//! | [`uart`] | 16550A, COM1 | ports 0x3F8-0x3FF, interrupt 4 |
//! | [`console`] | what was sent and nobody has taken yet | behind the 16550A |
//! | [`pci`], [`msix`], [`storm`] | PCI bus 0, its functions, MSI-X tables | ports 0xCF8-0xCFF, ECAM |
//! | [`power`] | power-off and reset | the ports that the FADT names |
//! | [`hotplug`] | what comes to the bus and is to leave it | ports 0x620-0x62B, interrupt 10 |
//! | [`rtc`] | the real-time clock, without an interrupt | ports 0x70, 0x71 |
//! | [`pvpanic`] | how a kernel says that it panics | port 0x505 |
//! | [`acpi`] | the tables that describe all this | where the loader puts them |
//! | [`cpuid`] | what the processor says about itself | CPUID |
//! | [`nmi`] | non-maskable interrupts, blocked until IRET | |
//! | [`xcr0`] | which extended state it may use | XSETBV |
//! | [`machine_check`] | machine checks, for refused accesses | MSRs 0x179, 0x17A, 0x400-0x403 |
//! | [`clock`] | the paravirtual clock | pages named by MSRs 0x4B56_4D00, 0x4B56_4D01 |
//! | [`share`] | who runs next on a processor | |
//!
//! There is no PIC, PIT, HPET or keyboard controller: the ACPI tables are hardware-reduced, and the
//! paravirtual clock and the TSC-deadline timer take the place of the rest.
//!
//! Everything a guest can reach here is total: any access, at any width and in any order, yields a value.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acpi;
pub mod clock;
pub mod console;
pub mod cpuid;
pub mod hotplug;
pub mod ioapic;
pub mod lapic;
pub mod machine_check;
pub mod message;
pub mod msix;
pub mod nmi;
pub mod pci;
pub mod power;
pub mod pvpanic;
pub mod restart;
pub mod rtc;
pub mod share;
pub mod stopwatch;
pub mod storm;
pub mod uart;
pub mod xcr0;

pub use message::Message;

/// The guest's access is illegal: inject #GP(0) into the processor that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;
