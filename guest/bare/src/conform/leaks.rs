//! Registers that the processor does not swap by itself: two guests that share one each keep a pattern of their own in all of
//! them, and look again after each turn of the other.

use super::Verdict;
use crate::console::println;
use crate::entry::BootInfo;
use crate::machine::{self, rdmsr, rdtsc, wrmsr};
use core::arch::asm;

/// How long, in ticks of the TSC.
const TIME: u64 = 1_000_000_000;
/// A gap between two readings of the TSC that only a turn of another makes.
const TURN: u64 = 2_000_000;

const CR4_OSXSAVE: u64 = 1 << 18;
/// TSC_AUX, page attributes; system calls; bases of segments.
const REGISTERS: [u32; 11] = [
    0xc000_0103,
    0x277,
    0x174,
    0x175,
    0x176,
    0xc000_0081,
    0xc000_0082,
    0xc000_0083,
    0xc000_0084,
    0xc000_0100,
    0xc000_0102,
];

#[repr(C, align(64))]
struct Vectors([u64; 64]);

/// What FNSTENV and FXSAVE store.
#[repr(C, align(64))]
struct Legacy([u32; 128]);

/// Operands for the x87: which of the two was loaded last says whose the pointer to it is.
static OPERANDS: [u64; 16] = [3; 16];

/// Runs the check, with registers of one kind or another by the lowest bit of `seed=`.
pub fn run(boot: &BootInfo) {
    let seed: u64 = boot.argument("seed").and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut verdict = Verdict::new("leaks");
    machine::set_cr4(machine::cr4() | CR4_OSXSAVE);
    let mut turns = 0;
    for (extended, round) in [(7, 1), (if seed & 1 == 0 { 7 } else { 3 }, 2), (7, 3)] {
        turns += keep(&mut verdict, seed << 8 | round, extended);
    }
    verdict.report();
    println!("SLUICE-RESULT leaks.turns={turns}");
}

/// Sets all of them, and compares until time is up. Returns how often the other had its turn.
fn keep(verdict: &mut Verdict, own: u64, extended: u64) -> u64 {
    let pattern = own.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x0000_7fff_ffff_ffff;
    xsetbv(extended);
    let value = |index: usize| match REGISTERS[index] {
        0xc000_0103 => pattern & 0xffff_ffff,
        0x277 => 0x0007_0406_0007_0400 | ((pattern >> 8 & 1) * 6),
        0x174 => pattern & 0xfff8,
        0xc000_0084 => pattern & 0xffff_ffff,
        _ => pattern ^ index as u64,
    };
    for (index, msr) in REGISTERS.into_iter().enumerate() {
        wrmsr(msr, value(index));
    }
    set_breakpoints(pattern);
    machine::set_dr6(0xffff_0ff0 | own & 15);
    let mut vectors = Vectors([0; 64]);
    vectors.0.iter_mut().enumerate().for_each(|(index, word)| *word = pattern ^ (index as u64) << 48);
    let wide = extended & 4 != 0;
    load(&vectors, wide);
    let mine = (own >> 8 & 1) as usize * 8;
    let (own_operand, other_operand) = (&raw const OPERANDS[mine], &raw const OPERANDS[8 - mine]);
    let legacy = load_legacy(own_operand);
    let (start, mut last, mut turns) = (rdtsc(), rdtsc(), 0);
    while last.wrapping_sub(start) < TIME {
        let now = rdtsc();
        let turn = now.wrapping_sub(last) > TURN;
        last = now;
        if !turn {
            continue;
        }
        turns += 1;
        verdict.expect("XCR0 in turn", turns, xgetbv(), extended);
        for (index, msr) in REGISTERS.into_iter().enumerate() {
            verdict.expect("MSR", msr.into(), rdmsr(msr), value(index));
        }
        verdict.expect("RDTSCP in turn", turns, rdtscp(), (pattern & 0xffff_ffff) as u32);
        for (index, address) in breakpoints().into_iter().enumerate() {
            verdict.expect("breakpoint", index as u64, address, pattern ^ index as u64);
        }
        verdict.expect("DR6 in turn", turns, machine::dr6() & 15, own & 15);
        let mut found = Vectors([0; 64]);
        store(&mut found, wide);
        let compared = if wide { 64 } else { 32 };
        for index in 0..compared {
            verdict.expect("word of vector registers", index as u64, found.0[index], vectors.0[index]);
        }
        let (pointer, now) = save_legacy();
        verdict.expect(
            "the other's x87 pointer in turn",
            turns,
            u32::from(pointer == other_operand as u32),
            0,
        );
        // Control, status, tags, MXCSR, registers; not the pointers and the opcode, which are lost without an exception.
        verdict.expect("x87 tags in turn", turns, now.0[1] & 0xff, legacy.0[1] & 0xff);
        for index in [0, 6].into_iter().chain(8..40) {
            verdict.expect("word of x87 state", index as u64, now.0[index], legacy.0[index]);
        }
        // The pointer of the instructions above is this guest's own again.
        load_legacy(own_operand);
        last = rdtsc();
    }
    turns
}

fn xsetbv(value: u64) {
    unsafe { asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") 0, options(nostack)) };
}

fn xgetbv() -> u64 {
    let (low, high): (u32, u32);
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

fn rdtscp() -> u32 {
    let aux: u32;
    unsafe { asm!("rdtscp", out("eax") _, out("edx") _, out("ecx") aux, options(nostack)) };
    aux
}

fn set_breakpoints(pattern: u64) {
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", in(reg) pattern, in(reg) pattern ^ 1,
            in(reg) pattern ^ 2, in(reg) pattern ^ 3, options(nostack))
    };
}

fn breakpoints() -> [u64; 4] {
    let (a, b, c, d);
    unsafe {
        asm!("mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3", out(reg) a, out(reg) b, out(reg) c,
            out(reg) d, options(nostack))
    };
    [a, b, c, d]
}

/// Loads the sixteen vector registers, which the compiler does not use: all of YMM, or XMM.
fn load(from: &Vectors, wide: bool) {
    unsafe {
        if wide {
            asm!(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "vmovdqu ymm\\n, [rdi + 32*\\n]", ".endr",
                in("rdi") from, options(nostack));
        } else {
            asm!(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "movdqu xmm\\n, [rdi + 16*\\n]", ".endr",
                in("rdi") from, options(nostack));
        }
    }
}

/// Stores them.
fn store(to: &mut Vectors, wide: bool) {
    unsafe {
        if wide {
            asm!(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "vmovdqu [rdi + 32*\\n], ymm\\n", ".endr",
                in("rdi") to, options(nostack));
        } else {
            asm!(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "movdqu [rdi + 16*\\n], xmm\\n", ".endr",
                in("rdi") to, options(nostack));
        }
    }
}

/// Fills the x87 stack from `operand`, whose address the last instruction leaves behind. Returns the state.
fn load_legacy(operand: *const u64) -> Legacy {
    unsafe { asm!("fninit", ".rept 8", "fild qword ptr [{}]", ".endr", in(reg) operand, options(nostack)) };
    let mut state = Legacy([0; 128]);
    unsafe { asm!("fxsave [{}]", in(reg) &raw mut state, options(nostack)) };
    state
}

/// The pointer to the last operand, by its lower half, and the state.
fn save_legacy() -> (u32, Legacy) {
    let (mut environment, mut state) = (Legacy([0; 128]), Legacy([0; 128]));
    unsafe {
        asm!("fxsave [{}]", "fnstenv [{}]", in(reg) &raw mut state, in(reg) &raw mut environment, options(nostack))
    };
    (environment.0[5], state)
}
