//! The answers, as a table, for a host that has everything.

use super::*;
use proptest::prelude::*;

const GUEST: CpuInfo =
    CpuInfo { vcpu_id: 2, apic_id: 2, vcpus: 3, tsc_khz: 2_500_000, cr4: 0, apic_base: 1 << 11 };

const ALL: [u32; 4] = [u32::MAX; 4];

/// A register of the answer, by its number.
const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

#[test]
fn hidden_and_provided_bits() {
    // Leaf, subleaf, register, bit, shown to a guest of a host that has all, shown if the host has none.
    let table = [
        (0x1, 0, ECX, 3, false, false, "MONITOR"),
        (0x1, 0, ECX, 5, false, false, "VMX"),
        (0x1, 0, ECX, 15, false, false, "PDCM"),
        (0x1, 0, ECX, 21, true, true, "x2APIC"),
        (0x1, 0, ECX, 24, true, true, "TSC deadline"),
        (0x1, 0, ECX, 26, true, false, "XSAVE"),
        (0x1, 0, ECX, 27, false, false, "OSXSAVE"),
        (0x1, 0, ECX, 31, true, true, "hypervisor"),
        (0x1, 0, EDX, 4, true, false, "TSC"),
        (0x1, 0, EDX, 9, true, false, "APIC"),
        (0x1, 0, EDX, 16, true, false, "PAT"),
        (0x1, 0, EDX, 21, false, false, "debug store"),
        (0x1, 0, EDX, 22, false, false, "thermal MSRs"),
        (0x1, 0, EDX, 28, true, true, "HTT"),
        (0x6, 0, EAX, 2, true, true, "ARAT"),
        (0x6, 0, ECX, 0, false, false, "APERF"),
        (0x7, 0, EBX, 1, false, false, "TSC_ADJUST"),
        (0x7, 0, EBX, 2, false, false, "SGX"),
        (0x7, 0, EBX, 7, true, false, "SMEP"),
        (0x7, 0, EBX, 12, false, false, "resource monitoring"),
        (0x7, 0, EBX, 20, true, false, "SMAP"),
        (0x7, 0, EBX, 25, false, false, "processor trace"),
        (0x7, 0, ECX, 16, false, false, "five-level paging"),
        (0x7, 0, ECX, 3, false, false, "PKU"),
        (0x7, 0, ECX, 22, true, false, "RDPID"),
        (0x7, 0, EDX, 26, false, false, "IBRS"),
        (0x7, 0, EDX, 27, false, false, "STIBP"),
        (0x7, 0, EDX, 29, false, false, "ARCH_CAPABILITIES"),
        (0x7, 0, EDX, 31, false, false, "SSBD"),
        (0xA, 0, EAX, 0, false, false, "performance counters"),
        (0xD, 1, EAX, 1, true, false, "XSAVEC"),
        (0xD, 1, EAX, 3, false, false, "XSAVES"),
        (0xD, 2, EAX, 3, true, false, "AVX state"),
        (0xD, 9, EAX, 3, false, false, "PKRU state"),
        (0xD, 11, EAX, 3, false, false, "CET state"),
        (0x12, 0, EAX, 0, false, false, "SGX"),
        (0x8000_0001, 0, ECX, 2, false, false, "SVM"),
        (0x8000_0001, 0, ECX, 3, false, false, "extended APIC space"),
        (0x8000_0001, 0, ECX, 9, false, false, "OSVW"),
        (0x8000_0001, 0, ECX, 10, false, false, "IBS"),
        (0x8000_0001, 0, ECX, 12, false, false, "SKINIT"),
        (0x8000_0001, 0, ECX, 22, true, false, "topology"),
        (0x8000_0001, 0, ECX, 23, false, false, "PerfCtrExtCore"),
        (0x8000_0001, 0, ECX, 24, false, false, "PerfCtrExtNB"),
        (0x8000_0001, 0, ECX, 28, false, false, "PerfCtrExtLLC"),
        (0x8000_0001, 0, ECX, 29, false, false, "MWAITX"),
        (0x8000_0001, 0, EDX, 11, true, false, "SYSCALL"),
        (0x8000_0001, 0, EDX, 20, true, false, "NX"),
        (0x8000_0001, 0, EDX, 27, true, false, "RDTSCP"),
        (0x8000_0001, 0, EDX, 29, true, false, "long mode"),
        (0x8000_0007, 0, EBX, 0, false, false, "MCA overflow recovery"),
        (0x8000_0007, 0, EDX, 8, true, true, "invariant TSC"),
        (0x8000_0008, 0, EBX, 0, true, false, "CLZERO"),
        (0x8000_0008, 0, EBX, 4, false, false, "RDPRU"),
        (0x8000_0008, 0, EBX, 12, true, false, "IBPB"),
        (0x8000_0008, 0, EBX, 14, false, false, "IBRS"),
        (0x8000_0008, 0, EBX, 15, false, false, "STIBP"),
        (0x8000_0008, 0, EBX, 24, false, false, "SSBD"),
        (0x8000_000A, 0, EDX, 0, false, false, "nested paging"),
        (0x8000_001B, 0, EAX, 0, false, false, "IBS"),
        (0x8000_0021, 0, EAX, 8, false, false, "automatic IBRS"),
        (0x8000_0021, 0, EAX, 28, true, false, "IBPB_BRTYPE"),
        (0x8000_0021, 0, EAX, 29, true, false, "SRSO_NO"),
        (0x8000_0022, 0, EAX, 0, false, false, "performance monitoring 2"),
    ];
    for (leaf, subleaf, register, bit, with_all, with_none, what) in table {
        let shown = |host| filter(leaf, subleaf, host, &GUEST)[register] >> bit & 1 != 0;
        assert_eq!((shown(ALL), shown([0; 4])), (with_all, with_none), "{what}, leaf {leaf:#x}");
    }
}

#[test]
fn bits_that_follow_the_guest() {
    let osxsave = CpuInfo { cr4: 1 << 18, ..GUEST };
    assert_ne!(filter(1, 0, ALL, &osxsave)[ECX] & 1 << 27, 0);
    assert_eq!(filter(1, 0, [0; 4], &osxsave)[ECX] & 1 << 27, 0, "no XSAVE in the host");
    let disabled = CpuInfo { apic_base: 0, ..GUEST };
    for leaf in [1, 0x8000_0001] {
        assert_ne!(filter(leaf, 0, ALL, &GUEST)[EDX] & 1 << 9, 0);
        assert_eq!(filter(leaf, 0, ALL, &GUEST)[EDX] ^ filter(leaf, 0, ALL, &disabled)[EDX], 1 << 9);
    }
    let alone = CpuInfo { vcpus: 1, vcpu_id: 0, apic_id: 0, ..GUEST };
    assert_eq!(filter(1, 0, ALL, &alone)[EDX] & 1 << 28, 0);
    assert_eq!(filter(0x8000_0001, 0, ALL, &alone)[ECX] & 2, 0);
}

#[test]
fn topology_is_one_socket_of_single_threaded_cores() {
    assert_eq!(filter(1, 0, [0, 0x1234_0800, 0, 0], &GUEST)[EBX], 0x0203_0800);
    assert_eq!(filter(0xB, 0, ALL, &GUEST), [0, 1, 0x100, 2]);
    assert_eq!(filter(0xB, 1, ALL, &GUEST), [2, 3, 0x201, 2]);
    assert_eq!(filter(0xB, 2, ALL, &GUEST), [0, 0, 2, 2]);
    assert_eq!(filter(0x8000_0008, 0, [0x0030_3030, 0, ALL[2], 0], &GUEST), [0x3030, 0, 0x2002, 0]);
    assert_eq!(filter(0x8000_001E, 0, ALL, &GUEST), [2, 2, 0, 0]);
    // An L3 of 16 threads is shared by all three; an L1 by two threads is not.
    assert_eq!(filter(0x8000_001D, 3, [0x3C163, 1, 2, 3], &GUEST), [0x8163, 1, 2, 3]);
    assert_eq!(filter(0x8000_001D, 0, [0x4121, 1, 2, 3], &GUEST)[EAX], 0x121);
    assert_eq!(filter(4, 0, [0x1C00_4121, 1, 2, 3], &GUEST)[EAX], 0x0800_0121);
    for (vcpus, bits) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (256, 8)] {
        assert_eq!(id_bits(vcpus), bits);
    }
}

#[test]
fn leaves_have_an_end() {
    assert_eq!(filter(0, 0, [0x20, 1, 2, 3], &GUEST), [0xD, 1, 2, 3]);
    assert_eq!(filter(0, 0, [0x07, 1, 2, 3], &GUEST)[EAX], 0xB);
    assert_eq!(filter(0x8000_0000, 0, [0x8000_0028, 1, 2, 3], &GUEST)[EAX], 0x8000_0021);
    for leaf in
        [3, 5, 8, 9, 0xA, 0xE, 0xF, 0x10, 0x1F, 0x8000_001F, 0x8000_0020, 0x8000_0022, 0xC000_0000, u32::MAX]
    {
        assert_eq!(filter(leaf, 0, ALL, &GUEST), [0; 4], "leaf {leaf:#x}");
    }
}

#[test]
fn linux_cpuid_rst_signature_and_clock() {
    let [max, ebx, ecx, edx] = filter(0x4000_0000, 0, [0; 4], &GUEST);
    let name: Vec<u8> = [ebx, ecx, edx].into_iter().flat_map(u32::to_le_bytes).collect();
    assert_eq!((max, &name[..]), (0x4000_0010, &b"KVMKVMKVM\0\0\0"[..]));
    assert_eq!(filter(0x4000_0001, 0, [0; 4], &GUEST), [0x0100_004A, 0, 0, 0]);
    assert_eq!(filter(0x4000_0010, 0, [0; 4], &GUEST), [2_500_000, 1_000_000, 0, 0]);
    assert_eq!(filter(0x4000_0100, 0, ALL, &GUEST), [0; 4]);
}

proptest! {
    #[test]
    fn any_question_has_an_answer(leaf: u32, subleaf: u32, host: [u32; 4], apic_id: u32, vcpus: u32) {
        let guest = CpuInfo { apic_id, vcpus, ..GUEST };
        for base in [0, 0x4000_0000, 0x8000_0000] {
            let _ = filter(base | leaf & 0x3F, subleaf & 0x3F, host, &guest);
        }
        let _ = filter(leaf, subleaf, host, &guest);
    }
}
