//! Instructions that a guest does not have: SVM's, monitors', management mode's, and those that are
//! intercepted for other reasons, with any register values.

use super::Tally;
use crate::machine;
use crate::random::Random;
use core::arch::asm;

macro_rules! forms {
    ($which:ident, $a:ident, $b:ident, $c:ident, $($code:expr),+ $(,)?) => {{
        const COUNT: u64 = [$($code),+].len() as u64;
        let mut which = $which % COUNT;
        $(
            if which == 0 {
                unsafe { asm!("push rbx", $code, "pop rbx",
                    inout("rax") $a => _, inout("rcx") $b => _, inout("rdx") $c => _,
                    out("rsi") _, out("rdi") _, out("r8") _) };
                return;
            }
            which = which.wrapping_sub(1);
        )+
        let _ = which;
    }};
}

fn execute(which: u64, a: u64, b: u64, c: u64) {
    forms!(
        which,
        a,
        b,
        c,
        "vmrun rax",
        "vmload rax",
        "vmsave rax",
        "stgi",
        "clgi",
        "skinit eax",
        "invlpga rax, ecx",
        "vmmcall",
        "vmcall",
        "monitor",
        "mwait",
        ".byte 0x0f, 0x01, 0xfa",
        ".byte 0x0f, 0x01, 0xfb",
        "rdpmc",
        "wbinvd",
        "invd",
        ".byte 0xf3; wbinvd",
        "rsm",
        "xsetbv",
        "xgetbv",
        "rdtscp",
        "rdpru",
        "getsec",
        "cpuid",
        "pause",
        "swapgs; swapgs",
        "sysret",
        "sysenter",
        "int 0x80",
        ".byte 0xce",
        "ud2",
        ".byte 0x0f, 0xff, 0xc0",
        "rdrand rax",
        "rdseed rax",
        "rdpid rax",
        "stac",
        "clac",
        "wrpkru",
        "rdpkru",
        "clts",
        "fwait",
        ".byte 0xf1",
        // Redundant prefixes before what is intercepted: the length is not the shortest.
        ".byte 0x66, 0x66; cpuid",
        ".byte 0x2e, 0x3e; vmmcall",
        // What is left of this one takes the NOPs for its operand, and not the way back off the stack.
        ".byte 0x40; rdmsr; nop; nop; nop; nop; nop",
        "vmxon [rdi]",
        "vmptrld [rsp]",
        ".byte 0x0f, 0x05",
        "lock mov cr0, rax",
        "mov rax, cr8",
        "mov cr8, rax",
        "mov rax, cr2",
    );
}

/// Runs the attack.
pub fn run(random: &mut Random) {
    machine::set_cr4(machine::cr4() | 1 << 18);
    let mut tally = Tally::default();
    // Asking for SVM first: it must be refused.
    tally.attempt(|| machine::wrmsr(0xc000_0080, machine::rdmsr(0xc000_0080) | 1 << 12));
    for round in 0..20_000u64 {
        let (a, b, c) = (random.wild(), random.wild(), random.wild());
        tally.attempt(|| execute(round, a, b, c));
        // XSETBV with a value that is right changes which state there is: keep it so.
        tally.attempt(|| execute(18, a & 7 | 1, 0, 0));
    }
    tally.report("instructions");
}
