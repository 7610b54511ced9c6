//! Vectors of the hypervisor's own interrupts.

/// Local APIC timer.
pub const TIMER: u8 = 0xf0;
/// Kick: leave the guest or the halt and look at the work queues.
pub const KICK: u8 = 0xf1;
/// An IOMMU has recorded a fault.
pub const FAULT: u8 = 0xf2;
/// Spurious interrupt of the local APIC: takes no end-of-interrupt.
pub const SPURIOUS: u8 = 0xff;
