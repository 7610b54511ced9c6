//! Exit and refusal counters: exact, free-running, one writer each, read without stopping anyone.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::report::Count;

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Names in the order of the variants, as they appear in reports.
            pub const NAMES: &[&str] = &[$($text,)*];
        }
    };
}

counted! {
    /// Why a guest was left, as finely as it pays to know.
    Exit {
        /// A physical interrupt.
        Interrupt => "interrupt",
        /// A physical NMI.
        Nmi => "nmi",
        /// The guest's interrupt window opened.
        InterruptWindow => "interrupt_window",
        /// CPUID.
        Cpuid => "cpuid",
        /// HLT.
        Hlt => "hlt",
        /// A port of the serial console.
        IoUart => "io.uart",
        /// A port of PCI configuration.
        IoPci => "io.pci",
        /// A port of a shared device.
        IoDevice => "io.device",
        /// Any other port.
        IoOther => "io.other",
        /// Local APIC: end of interrupt.
        ApicEoi => "apic.eoi",
        /// Local APIC: interrupt command.
        ApicIcr => "apic.icr",
        /// Local APIC: timer.
        ApicTimer => "apic.timer",
        /// Local APIC: any other register.
        ApicOther => "apic.other",
        /// Any other MSR.
        Msr => "msr",
        /// I/O APIC registers.
        MmioIoApic => "mmio.ioapic",
        /// PCI configuration in memory (ECAM).
        MmioEcam => "mmio.ecam",
        /// Registers of a shared device.
        MmioDevice => "mmio.device",
        /// Memory where nothing is.
        MmioOther => "mmio.other",
        /// VMMCALL.
        Hypercall => "hypercall",
        /// An exception that must be seen before the guest takes it.
        Exception => "exception",
        /// Any other instruction.
        Instruction => "instruction",
        /// Triple fault.
        Shutdown => "shutdown",
        /// The processor refused the guest's state.
        Invalid => "invalid",
    }
}

counted! {
    /// What a guest asked for and did not get.
    Refusal {
        /// A port that it has no right to.
        Port => "port",
        /// An MSR that does not exist for it.
        Msr => "msr",
        /// Guest-physical memory where nothing is.
        Memory => "memory",
        /// An instruction that may not touch trapped memory, or none at all.
        Instruction => "instruction",
        /// SVM instructions and the like.
        Privileged => "privileged",
        /// A device access that a check of its model refused.
        Device => "device",
        /// The same, of which a machine check tells.
        MachineCheck => "machine_check",
    }
}

/// Counters of one kind.
pub struct Counters<const N: usize>([AtomicU64; N]);

/// One per virtual processor.
pub type ExitCounters = Counters<{ Exit::NAMES.len() }>;
/// One per domain: what a paravirtual guest asked for.
pub type ParavirtualCounters = Counters<{ sluice_xenpv::COUNTS }>;
/// One per virtual processor.
pub type RefusalCounters = Counters<{ Refusal::NAMES.len() }>;

impl<const N: usize> Counters<N> {
    /// All zero.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }

    /// Counts one. Only the processor that runs the owner may call it: it is not an atomic addition.
    #[inline]
    pub fn count(&self, which: usize) {
        if let Some(counter) = self.0.get(which) {
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Takes over what was counted elsewhere. Only one processor at a time may call it.
    pub fn publish(&self, values: impl IntoIterator<Item = u64>) {
        self.0.iter().zip(values).for_each(|(counter, value)| counter.store(value, Ordering::Relaxed));
    }

    /// Adds these counters to `sums`.
    pub fn add_to(&self, sums: &mut [u64; N]) {
        for (sum, counter) in sums.iter_mut().zip(&self.0) {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
}

/// Pairs sums with names, leaving out what never happened.
pub fn named(names: &[&str], sums: &[u64]) -> Vec<Count> {
    names
        .iter()
        .zip(sums)
        .filter(|(_, value)| **value != 0)
        .map(|(name, value)| Count { name: (*name).into(), value: *value })
        .collect()
}
