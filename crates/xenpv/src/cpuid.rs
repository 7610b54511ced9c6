//! CPUID for a guest whose kernel runs at privilege level 3.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 3, appendix E; which features a paravirtual guest can have is Xen's choice
//! (cpufeatureset.h).

use crate::guest::gpr;
use crate::{Guest, Host, Registers};

/// First leaf of the hypervisor's.
const XEN: u32 = 0x4000_0000;

/// Leaf 1, ECX: MONITOR, VMX, SMX, PCID, x2APIC, deadline timer, XSAVE, OSXSAVE, AVX, F16C, FMA.
const HIDDEN_1_ECX: u32 =
    1 << 3 | 1 << 5 | 1 << 6 | 1 << 12 | 1 << 17 | 1 << 21 | 1 << 24 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29;
/// Leaf 1, EDX: VME, PSE, MTRR, PGE, MCA, machine check, PSE36.
const HIDDEN_1_EDX: u32 = 1 << 1 | 1 << 3 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17;
/// Leaf 7, EBX: what may stay are BMI1, BMI2, ERMS, RDSEED, ADX, CLFLUSHOPT, CLWB, SHA.
const SHOWN_7_EBX: u32 = 1 << 3 | 1 << 8 | 1 << 9 | 1 << 18 | 1 << 19 | 1 << 23 | 1 << 24 | 1 << 29;
/// Leaf 8000_0001, ECX: SVM, XOP, SKINIT, watchdog, LWP, FMA4, performance counters, MWAITX.
const HIDDEN_EXT_ECX: u32 =
    1 << 2 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 15 | 1 << 16 | 1 << 23 | 1 << 24 | 1 << 28 | 1 << 29;
/// Leaf 8000_0001, EDX: as leaf 1, and pages of 1 GiB.
const HIDDEN_EXT_EDX: u32 = HIDDEN_1_EDX | 1 << 26;

impl Guest {
    /// CPUID: answers in the registers.
    pub fn cpuid(&mut self, host: &impl Host, registers: &mut Registers) {
        let (leaf, subleaf) = (registers.gpr[gpr::RAX] as u32, registers.gpr[gpr::RCX] as u32);
        let [eax, ebx, ecx, edx] = answer(host, leaf, subleaf);
        registers.gpr[gpr::RAX] = eax.into();
        registers.gpr[gpr::RBX] = ebx.into();
        registers.gpr[gpr::RCX] = ecx.into();
        registers.gpr[gpr::RDX] = edx.into();
    }
}

fn answer(host: &impl Host, leaf: u32, subleaf: u32) -> [u32; 4] {
    let name = |at: usize| {
        let text = *b"XenVMMXenVMM";
        u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
    };
    match leaf {
        XEN => return [XEN + 2, name(0), name(4), name(8)],
        0x4000_0001 => return [4 << 16 | 17, 0, 0, 0],
        // No hypercall pages: who asks for one by an MSR gets none.
        0x4000_0002..=0x4fff_ffff => return [0; 4],
        // XSAVE is hidden, and so is what can only be used with it; no counters, no monitor.
        5 | 0xa | 0xd | 0xf | 0x10 | 0x14 | 0x8000_000a | 0x8000_001e => return [0; 4],
        _ => {}
    }
    let [mut eax, mut ebx, mut ecx, mut edx] = host.cpuid(leaf, subleaf);
    match leaf {
        0 => eax = eax.min(0xd),
        1 => {
            ecx = ecx & !HIDDEN_1_ECX | 1 << 31;
            edx &= !HIDDEN_1_EDX;
        }
        6 => [eax, ebx, ecx, edx] = [0; 4],
        7 => {
            eax = 0;
            ebx = if subleaf == 0 { ebx & SHOWN_7_EBX } else { 0 };
            (ecx, edx) = (0, 0);
        }
        // Barriers and controls of speculation are MSRs, which are not the guest's.
        0x8000_0008 => ebx = 0,
        0x8000_0001 => {
            ecx &= !HIDDEN_EXT_ECX;
            edx &= !HIDDEN_EXT_EDX;
        }
        _ => {}
    }
    [eax, ebx, ecx, edx]
}
