//! Model-specific registers, by number (AMD APM vol. 2, appendix A).

use core::arch::asm;

/// Local APIC base address and enables.
pub const APIC_BASE: u32 = 0x1b;
/// Extended features: long mode, no-execute, SVM.
pub const EFER: u32 = 0xc000_0080;
/// Page attribute table.
pub const PAT: u32 = 0x277;
/// Deadline of the local APIC timer, in TSC ticks.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// First x2APIC register; register at xAPIC offset `n` is `X2APIC + n / 16`.
pub const X2APIC: u32 = 0x800;
/// Base of GS: this processor's [`crate::cpu::Cpu`].
pub const GS_BASE: u32 = 0xc000_0101;
/// Base of GS after SWAPGS.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// Value that RDTSCP returns in ECX.
pub const TSC_AUX: u32 = 0xc000_0103;

/// EFER: no-execute enable.
pub const EFER_NXE: u64 = 1 << 11;
/// EFER: SVM enable.
pub const EFER_SVME: u64 = 1 << 12;

/// Reads a register. A register that the processor lacks raises #GP, which stops the hypervisor.
#[inline]
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDMSR changes no memory; an absent register faults and stops the run, which is not unsound.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a register.
///
/// # Safety
/// The new value must keep the hypervisor's own assumptions: mappings, code paths (SYSCALL, SYSENTER targets),
/// GS base, interrupt delivery.
#[inline]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the caller answers for the effect of this register.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags))
    };
}
