//! What a guest's CPUID says: the host's answer, less what the guest may not use, plus what we provide.
//!
//! Feature words are filtered by lists of what is *allowed*, so that a feature this file has never heard of
//! is hidden. The topology is one socket of `vcpus` cores with a thread each, whatever the host's.
//!
//! What the answers oblige the hypervisor to: x2APIC and TSC-deadline MSRs (0x1B, 0x6E0, 0x800-0x83F), the
//! paravirtual clock and end of interrupt ([`crate::clock`]), TSC_AUX kept per processor, a TSC that is invariant, MTRRs and PAT (0xFE, 0x277, 0x2FF), machine check
//! MSRs ([`crate::machine_check`]), EFER, SYSENTER and SYSCALL MSRs. It owes nothing for performance counters,
//! debug store, thermal, microcode-controlled mitigations, SVM or MONITOR.
//!
//! Source: AMD APM vol. 3, appendix E; Intel SDM vol. 2, CPUID; leaves 0x4000_00xx: the interface documented
//! with Linux (Documentation/virt/kvm/x86/cpuid.rst).

use crate::lapic::TIMER_KHZ;

/// What the answers depend on beside the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInfo {
    /// Number of the processor that asks, which is its core's.
    pub vcpu_id: u32,
    /// Its APIC id.
    pub apic_id: u32,
    /// Processors of the guest, at least 1. Their APIC ids are 0 to `vcpus - 1`.
    pub vcpus: u32,
    /// Rate of its TSC, in kHz.
    pub tsc_khz: u32,
    /// Its CR4, for OSXSAVE (bit 18).
    pub cr4: u64,
    /// Its IA32_APIC_BASE, for the local APIC's being enabled (bit 11).
    pub apic_base: u64,
}

const CR4_OSXSAVE: u64 = 1 << 18;
const APIC_BASE_ENABLE: u64 = 1 << 11;

/// The highest leaves that a guest sees.
const MAX_BASIC: u32 = 0x0D;
const MAX_EXTENDED: u32 = 0x8000_0021;
const MAX_PARAVIRTUAL: u32 = 0x4000_0010;

/// A set of bits, as their numbers.
const fn bits<const N: usize>(numbers: [u8; N]) -> u32 {
    let (mut set, mut index) = (0, 0);
    while index < N {
        set |= 1 << numbers[index];
        index += 1;
    }
    set
}

/// Leaf 1, ECX.
mod leaf_1_ecx {
    use super::bits;
    /// SSE3, PCLMULQDQ, SSSE3, FMA, CMPXCHG16B, PCID, SSE4.1, SSE4.2, MOVBE, POPCNT, AES, XSAVE, AVX, F16C,
    /// RDRAND.
    pub const ALLOWED: u32 = bits([0, 1, 9, 12, 13, 17, 19, 20, 22, 23, 25, 26, 28, 29, 30]);
    /// x2APIC, TSC deadline, hypervisor.
    pub const PROVIDED: u32 = bits([21, 24, 31]);
    pub const XSAVE: u32 = 1 << 26;
    pub const OSXSAVE: u32 = 1 << 27;
}

/// Leaf 1, EDX: all but serial number, debug store, thermal control and pending break. HTT is ours.
mod leaf_1_edx {
    use super::bits;
    pub const ALLOWED: u32 = !bits([10, 18, 20, 21, 22, 28, 29, 30, 31]);
    pub const HTT: u32 = 1 << 28;
    pub const APIC: u32 = 1 << 9;
}

/// Leaf 7, subleaf 0.
mod leaf_7 {
    use super::bits;
    /// FSGSBASE, BMI1, AVX2, FDP, SMEP, BMI2, ERMS, INVPCID, no FPU CS/DS, AVX512 (F, DQ, IFMA, PF, ER, CD,
    /// BW, VL), RDSEED, ADX, SMAP, CLFLUSHOPT, CLWB, SHA.
    pub const EBX: u32 =
        bits([0, 3, 5, 6, 7, 8, 9, 10, 13, 16, 17, 18, 19, 20, 21, 23, 24, 26, 27, 28, 29, 30, 31]);
    /// AVX512 VBMI, UMIP, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ, RDPID, CLDEMOTE, MOVDIRI,
    /// MOVDIR64B. Not PKU: PKRU takes effect at once, and so cannot be swapped lazily with the rest.
    pub const ECX: u32 = bits([1, 2, 6, 8, 9, 10, 11, 12, 14, 22, 25, 27, 28]);
    /// Fast short REP MOV, VP2INTERSECT, SERIALIZE. None of the speculation controls: their MSRs are not given.
    pub const EDX: u32 = bits([4, 8, 14]);
    /// Subleaf 1, EAX: AVX-VNNI, AVX512 BF16, the fast string operations.
    pub const EAX_1: u32 = bits([4, 5, 10, 11, 12]);
}

/// Leaf 0xD: state components, and ways to save them.
mod leaf_d {
    use super::bits;
    /// x87, SSE, AVX, the three of AVX512.
    pub const COMPONENTS: u32 = bits([0, 1, 2, 5, 6, 7]);
    /// XSAVEOPT, XSAVEC, XGETBV with ECX 1. Not XSAVES, which has an MSR.
    pub const WAYS: u32 = bits([0, 1, 2]);
}

/// Extended leaves.
mod extended {
    use super::bits;
    /// 8000_0001 ECX: LAHF, CR8 by LOCK MOV, ABM, SSE4A, misaligned SSE, PREFETCH, XOP, FMA4, TBM, topology.
    pub const ECX_1: u32 = bits([0, 4, 5, 6, 7, 8, 11, 16, 21, 22]);
    pub const CMP_LEGACY: u32 = 1 << 1;
    /// 8000_0001 EDX: that of leaf 1 which it repeats, SYSCALL, NX, MMX extensions, FFXSR, 1 GiB pages, RDTSCP,
    /// long mode, 3DNow.
    pub const EDX_1: u32 = 0x0183_F3FF | bits([11, 20, 22, 25, 26, 27, 29, 30, 31]);
    /// 8000_0007 EDX: invariant TSC.
    pub const INVARIANT_TSC: u32 = 1 << 8;
    /// 8000_0008 EBX: CLZERO, error pointers saved by XSAVE, WBNOINVD, IBPB. No speculation controls that last.
    pub const EBX_8: u32 = bits([0, 2, 9, 12]);
    pub const IBPB: u32 = 1 << 12;
    /// 8000_0021 EAX: LFENCE is serializing, a null selector clears its base; what a barrier of branch predictions does (SBPB,
    /// IBPB_BRTYPE), or that none is needed for returns (SRSO_NO).
    pub const EAX_21: u32 = bits([2, 6, 27, 28, 29]);
}

/// Paravirtual features, leaf 0x4000_0001 EAX.
mod feature {
    pub const NO_IO_DELAY: u32 = 1 << 1;
    pub const CLOCK: u32 = 1 << 3;
    pub const PV_EOI: u32 = 1 << 6;
    pub const CLOCK_STABLE: u32 = 1 << 24;
}

/// The guest's answer (EAX, EBX, ECX, EDX) for a leaf and subleaf, given the `host`'s for the same.
///
/// For leaf 0xD the host's answer has to be taken with the guest's XCR0 loaded, as sizes depend on it.
#[inline]
pub fn filter(leaf: u32, subleaf: u32, host: [u32; 4], guest: &CpuInfo) -> [u32; 4] {
    let [eax, ebx, ecx, edx] = host;
    match leaf {
        0 => [eax.clamp(0x0B, MAX_BASIC), ebx, ecx, edx],
        1 => leaf_1(host, guest),
        // Cache descriptors.
        2 => host,
        4 if eax & 0x1F != 0 => {
            let cores = guest.vcpus.saturating_sub(1).min(63);
            [cache_sharing(eax, guest) & 0x03FF_FFFF | cores << 26, ebx, ecx, edx]
        }
        // ARAT: the APIC timer runs in every idle state.
        6 => [1 << 2, 0, 0, 0],
        7 => leaf_7(subleaf, host),
        0x0B => leaf_b(subleaf, guest),
        0x0D => leaf_d(subleaf, host),
        0x4000_0000..=0x4FFF_FFFF => paravirtual(leaf, guest),
        0x8000_0000 => [eax.min(MAX_EXTENDED), ebx, ecx, edx],
        0x8000_0001 => {
            let cmp_legacy = if guest.vcpus > 1 { extended::CMP_LEGACY } else { 0 };
            [eax, ebx, ecx & extended::ECX_1 | cmp_legacy, edx & extended::EDX_1 & !hidden_apic(guest)]
        }
        // Brand string, L1 and L2 caches; TLBs and optimization hints.
        0x8000_0002..=0x8000_0006 | 0x8000_0019 | 0x8000_001A => host,
        0x8000_0007 => [0, 0, 0, extended::INVARIANT_TSC],
        0x8000_0008 => {
            let cores = guest.vcpus.saturating_sub(1).min(0xFF);
            // Address sizes, without the one for nested guests.
            [eax & 0xFFFF, ebx & extended::EBX_8, cores | id_bits(guest.vcpus) << 12, 0]
        }
        0x8000_001D if eax & 0x1F != 0 => [cache_sharing(eax, guest), ebx, ecx, edx],
        // One thread per core, one node.
        0x8000_001E => [guest.apic_id, guest.vcpu_id & 0xFF, 0, 0],
        0x8000_0021 => [eax & extended::EAX_21, 0, 0, 0],
        _ => [0; 4],
    }
}

fn leaf_1([eax, ebx, ecx, edx]: [u32; 4], guest: &CpuInfo) -> [u32; 4] {
    let osxsave = ecx & leaf_1_ecx::XSAVE != 0 && guest.cr4 & CR4_OSXSAVE != 0;
    let htt = if guest.vcpus > 1 { leaf_1_edx::HTT } else { 0 };
    [
        eax,
        ebx & 0xFFFF | guest.vcpus.clamp(1, 0xFF) << 16 | guest.apic_id << 24,
        ecx & leaf_1_ecx::ALLOWED | leaf_1_ecx::PROVIDED | if osxsave { leaf_1_ecx::OSXSAVE } else { 0 },
        edx & leaf_1_edx::ALLOWED & !hidden_apic(guest) | htt,
    ]
}

/// The bit that says there is a local APIC, in leaves 1 and 8000_0001, while it is disabled (APM vol. 2, 16.3.2).
fn hidden_apic(guest: &CpuInfo) -> u32 {
    if guest.apic_base & APIC_BASE_ENABLE != 0 { 0 } else { leaf_1_edx::APIC }
}

fn leaf_7(subleaf: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> [u32; 4] {
    match subleaf {
        0 => [eax.min(1), ebx & leaf_7::EBX, ecx & leaf_7::ECX, edx & leaf_7::EDX],
        1 => [eax & leaf_7::EAX_1, 0, 0, 0],
        _ => [0; 4],
    }
}

/// Extended topology: a level of threads, one per core, and a level of cores.
fn leaf_b(subleaf: u32, guest: &CpuInfo) -> [u32; 4] {
    const THREADS: u32 = 1 << 8;
    const CORES: u32 = 2 << 8;
    match subleaf {
        0 => [0, 1, THREADS, guest.apic_id],
        1 => [id_bits(guest.vcpus), guest.vcpus & 0xFFFF, CORES | 1, guest.apic_id],
        _ => [0, 0, subleaf & 0xFF, guest.apic_id],
    }
}

fn leaf_d(subleaf: u32, [eax, ebx, ecx, _]: [u32; 4]) -> [u32; 4] {
    match subleaf {
        0 => [state_components(eax.into()) as u32, ebx, ecx, 0],
        1 => [eax & leaf_d::WAYS, ebx, 0, 0],
        2..32 if leaf_d::COMPONENTS & 1 << subleaf != 0 => [eax, ebx, ecx, 0],
        _ => [0; 4],
    }
}

/// Whether the host's leaf 8000_0008 (EBX) says that it has a barrier of branch predictions (MSR 0x49), which guests have, too.
pub fn has_prediction_barrier(ebx: u32) -> bool {
    ebx & extended::IBPB != 0
}

/// Components of extended state that a guest's leaf 0xD shows, of those that the `host` has. They are all in EAX.
pub fn state_components(host: u64) -> u64 {
    host & u64::from(leaf_d::COMPONENTS)
}

fn paravirtual(leaf: u32, guest: &CpuInfo) -> [u32; 4] {
    use feature::*;
    match leaf {
        0x4000_0000 => [
            MAX_PARAVIRTUAL,
            u32::from_le_bytes(*b"KVMK"),
            u32::from_le_bytes(*b"VMKV"),
            u32::from_le_bytes(*b"M\0\0\0"),
        ],
        0x4000_0001 => [NO_IO_DELAY | CLOCK | PV_EOI | CLOCK_STABLE, 0, 0, 0],
        0x4000_0010 => [guest.tsc_khz, TIMER_KHZ, 0, 0],
        _ => [0; 4],
    }
}

/// Bits that an APIC id takes.
fn id_bits(vcpus: u32) -> u32 {
    32 - vcpus.saturating_sub(1).leading_zeros()
}

/// The EAX of a cache leaf with its sharing replaced: caches of level 3 and up by all, others by none.
fn cache_sharing(eax: u32, guest: &CpuInfo) -> u32 {
    let sharing = if eax >> 5 & 7 >= 3 { guest.vcpus.saturating_sub(1).min(0xFFF) } else { 0 };
    eax & !(0xFFF << 14) | sharing << 14
}

#[cfg(test)]
mod tests;
