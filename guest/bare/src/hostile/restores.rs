//! Restoring floating-point state, and the neighbour that must not notice.
//!
//! QEMU's TCG clears a flag of its *first* processor whenever any processor loads an x87 status word (FXRSTOR, XRSTOR,
//! FLDENV: what every switch of tasks does), by reading and writing a whole word of flags. If the first one enters or
//! leaves a guest in that moment, it goes on without nested paging, or with it where there is no guest (docs/debug.md).

use crate::console::println;
use crate::machine;
use core::arch::asm;

#[repr(C, align(64))]
struct Area([u8; 512]);

/// Restores for as many ticks of the TSC as `time` says.
pub fn run(time: u64) {
    let mut area = Area([0; 512]);
    let at = &raw mut area;
    unsafe { asm!("fninit; fxsave [{}]", in(reg) at, options(nostack)) };
    let (start, mut done) = (machine::rdtsc(), 0u64);
    while machine::rdtsc().wrapping_sub(start) < time {
        for _ in 0..100 {
            unsafe { asm!("fxrstor [{}]", in(reg) at, options(nostack)) };
        }
        done += 100;
    }
    println!("SLUICE-RESULT restored={done}");
}

/// Goes out and in again for as long.
pub fn exits(time: u64) {
    let (start, mut done) = (machine::rdtsc(), 0u64);
    while machine::rdtsc().wrapping_sub(start) < time {
        core::hint::black_box(core::arch::x86_64::__cpuid(0x4000_0000));
        done += 1;
    }
    println!("SLUICE-RESULT exits={done}");
}
