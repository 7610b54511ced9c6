//! Every instruction that is intercepted or that this guest does not have: what it must raise, by an exact list.
//!
//! Source: APM vol 3, "Exceptions" of each instruction, with what CPUID shows here.

use super::Verdict;
use crate::{machine, trap};
use core::arch::asm;

const NOTHING: u64 = 0;
const BP: u64 = 3;
const UD: u64 = 6;
const GP: u64 = 13;

const CR4_OSXSAVE: u64 = 1 << 18;

/// Executes `code` with these registers. Returns the vector that it raised, or zero.
macro_rules! raised {
    ($code:literal, $rax:expr, $rcx:expr, $rdx:expr) => {
        trap::attempt(|| unsafe {
            asm!("push rbx", $code, "pop rbx", inout("rax") $rax => _, inout("rcx") $rcx => _, inout("rdx") $rdx => _)
        })
        .map_or(NOTHING, u64::from)
    };
}

macro_rules! check {
    ($verdict:ident, $($code:literal => $expected:expr),+ $(,)?) => {
        let mut number = 0;
        $(
            number += 1;
            $verdict.expect(concat!("exception of ", $code, ", number"), number,
                raised!($code, 0x1000u64, 0u64, 0u64), $expected);
        )+
        let _ = number;
    };
}

/// Runs the check.
pub fn run() {
    machine::x2apic();
    let mut verdict = Verdict::new("instructions");
    machine::set_cr4(machine::cr4() & !CR4_OSXSAVE);
    check!(verdict, "xsetbv" => UD, "xgetbv" => UD);
    machine::set_cr4(machine::cr4() | CR4_OSXSAVE);
    check!(
        verdict,
        "vmrun rax" => UD,
        "vmload rax" => UD,
        "vmsave rax" => UD,
        "stgi" => UD,
        "clgi" => UD,
        "skinit eax" => UD,
        "invlpga rax, ecx" => UD,
        "vmmcall" => NOTHING,
        "vmcall" => UD,
        "vmxon [rdi]" => UD,
        "monitor" => UD,
        "mwait" => UD,
        // MONITORX, MWAITX.
        ".byte 0x0f, 0x01, 0xfa" => UD,
        ".byte 0x0f, 0x01, 0xfb" => UD,
        // RDPRU, INVLPGB, TLBSYNC, MCOMMIT.
        ".byte 0x0f, 0x01, 0xfd" => UD,
        ".byte 0x0f, 0x01, 0xfe" => UD,
        ".byte 0x0f, 0x01, 0xff" => UD,
        ".byte 0xf3, 0x0f, 0x01, 0xfa" => UD,
        "rdpmc" => GP,
        "rsm" => UD,
        "getsec" => UD,
        "wrpkru" => UD,
        "rdpkru" => UD,
        "wbinvd" => NOTHING,
        "invd" => NOTHING,
        // WBNOINVD.
        ".byte 0xf3; wbinvd" => NOTHING,
        "cpuid" => NOTHING,
        "rdtsc" => NOTHING,
        "rdtscp" => NOTHING,
        "swapgs; swapgs" => NOTHING,
        "clts" => NOTHING,
        "xgetbv" => NOTHING,
        "ud2" => UD,
        // INTO.
        ".byte 0xce" => UD,
        "int3" => BP,
    );
    extended(&mut verdict);
    results(&mut verdict);
    verdict.report();
}

/// XSETBV: what CPUID shows here is x87, SSE and AVX.
fn extended(verdict: &mut Verdict) {
    for value in 0..1024u64 {
        let expected = if matches!(value, 1 | 3 | 7) { NOTHING } else { GP };
        verdict.expect("exception of XSETBV of", value, raised!("xsetbv", value, 0u64, 0u64), expected);
    }
    for bit in 0..32 {
        verdict.expect(
            "exception of XSETBV of bit 32 and",
            bit,
            raised!("xsetbv", 7u64, 0u64, 1u64 << bit),
            GP,
        );
        verdict.expect(
            "exception of XSETBV of register",
            1 << bit,
            raised!("xsetbv", 7u64, 1u64 << bit, 0u64),
            GP,
        );
    }
    verdict.expect("exception of XSETBV of", 7, raised!("xsetbv", 7u64, 0u64, 0u64), NOTHING);
}

/// What they do if they raise nothing.
fn results(verdict: &mut Verdict) {
    machine::wrmsr(0xc000_0103, 0x1234_5678);
    let aux: u32;
    unsafe { asm!("rdtscp", out("eax") _, out("edx") _, out("ecx") aux, options(nostack)) };
    verdict.expect("RDTSCP", 0, aux, 0x1234_5678);
    machine::wrmsr(0xc000_0103, 0);
    // HLT sleeps until an interrupt, and no longer.
    machine::cli();
    let before = trap::interrupts();
    machine::wrmsr(0x83f, 0x41);
    machine::wait();
    machine::cli();
    verdict.expect("interrupts that ended HLT", 0, trap::interrupts() - before, 1);
}
