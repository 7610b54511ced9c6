//! Locked instructions for which an emulator stops every other processor, and the neighbour that must not notice.
//!
//! QEMU's TCG makes a locked access to a misaligned word whole by calling all other processors out of what they run. One
//! that was just given an interrupt by event injection took it a second time then (docs/debug.md).

use crate::console::println;
use crate::{machine, trap};
use core::arch::asm;

const SELF_IPI: u32 = 0x83f;
const EOI: u32 = 0x80b;
/// Ticks of the TSC between an interrupt and its end, in which the guest does nothing that exits.
const PAUSE: u64 = 100_000;

/// Executes locked instructions on a misaligned word for as many ticks of the TSC as `time` says.
pub fn run(time: u64) {
    let mut words = [0u64; 2];
    let word = unsafe { words.as_mut_ptr().cast::<u8>().add(3) };
    let (start, mut done) = (machine::rdtsc(), 0u64);
    while machine::rdtsc().wrapping_sub(start) < time {
        unsafe { asm!("lock inc qword ptr [{}]", in(reg) word, options(nostack)) };
        done += 1;
    }
    println!("SLUICE-RESULT locked={done}");
}

/// Sleeps `count` times with an interrupt of its own pending, which STI lets in after HLT only: whoever takes it before, because
/// something else came between the two, sleeps for ever.
pub fn naps(count: u64) {
    machine::x2apic();
    for _ in 0..count {
        machine::cli();
        machine::wrmsr(SELF_IPI, 0x41);
        machine::wait();
    }
    println!("SLUICE-RESULT naps={count}");
}

/// Sends itself `count` interrupts, one after the other, and counts what arrives.
pub fn count_interrupts(count: u64) {
    machine::x2apic();
    trap::end_by_hand(true);
    machine::sti();
    for _ in 0..count {
        machine::wrmsr(SELF_IPI, 0x41);
        let start = machine::rdtsc();
        while machine::rdtsc().wrapping_sub(start) < PAUSE {
            core::hint::spin_loop();
        }
        machine::wrmsr(EOI, 0);
    }
    machine::cli();
    trap::end_by_hand(false);
    println!("SLUICE-RESULT sent={count} interrupts={}", trap::interrupts());
}
