//! The task priority by its two names, CR8 and the local APIC's register, and the interrupts that it holds back.
//!
//! Source: Intel SDM vol. 3, 11.8.3.1 and 11.8.6.

use super::Verdict;
use crate::machine::{self, cr8, rdmsr, rdtsc, set_cr8, wrmsr};
use crate::trap;

const TPR: u32 = 0x808;
const PPR: u32 = 0x80a;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const SELF_IPI: u32 = 0x83f;
const DEADLINE: u32 = 0x6e0;
const DEADLINE_MODE: u64 = 2 << 17;
/// Of the timer, which ends a sleep that should have ended long before.
const RESCUE: u64 = 0xf1;
/// When it does so, in ticks of the TSC.
const PATIENCE: u64 = 1_000_000_000;

/// Runs the check.
pub fn run() {
    machine::x2apic();
    let mut verdict = Verdict::new("priority");
    registers(&mut verdict);
    wrmsr(LVT_TIMER, DEADLINE_MODE | RESCUE);
    for round in 0..100 {
        // The local APIC last heard of a high priority, before the interrupt or after it.
        naps(&mut verdict, round, |raise, send| {
            raise();
            set_cr8(0);
            send();
        });
        naps(&mut verdict, round, |raise, send| {
            raise();
            send();
            set_cr8(0);
        });
        // It never heard of the high one.
        naps(&mut verdict, round, |_, send| {
            set_cr8(15);
            send();
            set_cr8(0);
        });
        lowers(&mut verdict, round);
    }
    wrmsr(DEADLINE, 0);
    verdict.report();
}

/// Sends itself an interrupt in between, sleeps, and expects to be woken at once.
fn naps(verdict: &mut Verdict, round: u64, prepare: impl Fn(&dyn Fn(), &dyn Fn())) {
    machine::cli();
    let start = rdtsc();
    wrmsr(DEADLINE, start + PATIENCE);
    let raise = || {
        set_cr8(15);
        wrmsr(DEADLINE, start + PATIENCE);
    };
    let send = || if round & 1 == 0 { wrmsr(SELF_IPI, 0x41) } else { wrmsr(ICR, 0x4_0041) };
    prepare(&raise, &send);
    machine::wait();
    machine::cli();
    verdict.expect("late in round", round, u64::from(rdtsc() - start >= PATIENCE), 0);
}

/// Interrupts come when the priority falls below theirs, not before and not a moment later.
fn lowers(verdict: &mut Verdict, round: u64) {
    set_cr8(5);
    machine::sti();
    let before = trap::interrupts();
    for vector in [0x4f, 0x51, 0x61] {
        wrmsr(SELF_IPI, vector);
    }
    verdict.expect("at priority 5, round", round, trap::interrupts() - before, 1);
    for (class, arrived) in [(5, 1), (4, 2), (4, 2), (3, 3)] {
        set_cr8(class);
        machine::nop();
        verdict.expect("at priority", class, trap::interrupts() - before, arrived);
    }
    // One that is alone: nothing else has the hypervisor watch the priority.
    set_cr8(5);
    wrmsr(SELF_IPI, 0x41);
    verdict.expect("at priority 5, alone, round", round, trap::interrupts() - before, 3);
    set_cr8(0);
    machine::nop();
    verdict.expect("at priority 0, alone, round", round, trap::interrupts() - before, 4);
    machine::cli();
}

fn registers(verdict: &mut Verdict) {
    for value in 0..=255 {
        wrmsr(TPR, value);
        verdict.expect("TPR", value, rdmsr(TPR), value);
        verdict.expect("CR8 of TPR", value, cr8(), value >> 4);
        verdict.expect("PPR of TPR", value, rdmsr(PPR), value);
        let class = value >> 4 ^ 1;
        set_cr8(class);
        verdict.expect("PPR of CR8", class, rdmsr(PPR), class << 4);
        verdict.expect("TPR of CR8", class, rdmsr(TPR), class << 4);
    }
    // While an interrupt is held back, the write is the hypervisor's to check. (Else it is the processor's, and QEMU 7.2 does not.)
    set_cr8(15);
    wrmsr(SELF_IPI, 0x41);
    for value in [0x10, 0x100, u64::MAX] {
        let vector = trap::attempt(|| set_cr8(value));
        verdict.expect("exception of CR8", value, vector.map_or(0, u64::from), 13);
    }
    set_cr8(0);
    machine::sti();
    machine::nop();
    machine::cli();
}
