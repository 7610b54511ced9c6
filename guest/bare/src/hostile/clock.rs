//! A time-stamp counter that goes back and forth under the local APIC's timer.

use crate::console::println;
use crate::{machine, trap};

const TSC: u32 = 0x10;
const DEADLINE: u32 = 0x6e0;
const LVT_TIMER: u32 = 0x832;
const INITIAL: u32 = 0x838;
const DIVIDE: u32 = 0x83e;

const VECTOR: u64 = 0xe0;
const DEADLINE_MODE: u64 = 2 << 17;

/// Sets a deadline that never comes after the counter went back, then timers across jumps; each must come once.
pub fn run() {
    machine::x2apic();
    machine::wrmsr(DIVIDE, 0xb);
    machine::wrmsr(LVT_TIMER, DEADLINE_MODE | VECTOR);
    machine::wrmsr(TSC, 0x1000);
    machine::wrmsr(DEADLINE, u64::MAX);
    machine::sti();
    // Nothing here exits, so that every exit is the hypervisor's.
    while machine::rdtsc() < 1_000_000_000 {
        core::hint::spin_loop();
    }
    machine::cli();
    println!("SLUICE-RESULT early={}", trap::interrupts());
    // A count of 10 ms goes on while the counter loses a second, and while it gains a thousand.
    machine::wrmsr(LVT_TIMER, VECTOR);
    for to in [1, 2_000_000_000_000] {
        machine::wrmsr(INITIAL, 10_000_000);
        machine::wrmsr(TSC, to);
        wait();
        let took = machine::rdtsc().wrapping_sub(to);
        println!("SLUICE-RESULT from={to} took={took}");
    }
    // A deadline that the counter jumps over has come; one that it jumps back from comes later.
    machine::wrmsr(LVT_TIMER, DEADLINE_MODE | VECTOR);
    let now = machine::rdtsc();
    machine::wrmsr(DEADLINE, now + 1_000_000_000_000);
    machine::wrmsr(TSC, now + 1_000_000_000_001);
    wait();
    machine::wrmsr(DEADLINE, now + 1_100_000_000_000);
    machine::wrmsr(TSC, now + 1_099_990_000_000);
    wait();
    println!("SLUICE-RESULT interrupts={}", trap::interrupts());
}

/// Sleeps until an interrupt; afterwards interrupts are off again.
fn wait() {
    machine::wait();
    machine::cli();
}
