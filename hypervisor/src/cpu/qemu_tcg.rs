//! What QEMU's own emulation (TCG, multi-threaded) gets wrong, as far as it takes more than avoiding it: docs/debug.md.
//!
//! Source: QEMU 7.2.22. `cpu_clear_ignne` (target/i386/tcg/sysemu/fpu_helper.c), which every load of an x87 status word
//! calls on whatever processor, writes the first processor's `hflags2`, where VMRUN and #VMEXIT note nested paging and GIF;
//! `helper_vmrun` (svm_helper.c) writes `interrupt_request`, in which other threads tell of interrupts. Neither is atomic.

use crate::x86;

/// Whether this is it: CPUID 0x40000000 says so.
pub fn is_tcg() -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    let signature = x86::cpuid(0x4000_0000, 0);
    x86::cpuid(1, 0).ecx & HYPERVISOR != 0
        && [signature.ebx, signature.ecx, signature.edx].map(u32::to_le_bytes)
            == [*b"TCGT", *b"CGTC", *b"GTCG"]
}

/// Whether the first of several processors must not run guests: its entries and exits would be disturbed by every FXRSTOR,
/// XRSTOR and FLDENV on the others.
pub fn disturbs_the_first() -> bool {
    is_tcg()
}

/// Writes the task priority as it always is here, 0: the local APIC looks at what is requested and tells the processor.
#[inline]
pub fn renew_task_priority() {
    // SAFETY: the value is what the register has; nothing that the compiler knows of changes.
    unsafe { core::arch::asm!("mov cr8, {}", in(reg) 0u64, options(nomem, nostack, preserves_flags)) };
}
