//! Debug registers and the debug exception: what a guest sets is its own, and a single step comes back as one.
//!
//! Run twice on one processor, each life looks for the other's breakpoint addresses.

use crate::console::println;
use crate::{machine, trap};
use core::arch::asm;

/// DR6: the exception was a single step (APM vol 2, 13.1.1.3).
const SINGLE_STEP: u64 = 1 << 14;

fn breakpoints() -> [u64; 4] {
    let (a, b, c, d);
    unsafe {
        asm!("mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3", out(reg) a, out(reg) b, out(reg) c,
            out(reg) d, options(nostack))
    };
    [a, b, c, d]
}

fn set_breakpoints(value: u64) {
    unsafe {
        asm!("mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}", in(reg) value, options(nostack))
    };
}

/// Steps once; then holds its own values in the registers for as many ticks of the TSC as `time` says.
pub fn run(own: u64, time: u64) {
    println!("SLUICE-RESULT inherited={}", breakpoints().iter().filter(|value| **value != 0).count());
    let vector = trap::attempt(|| unsafe {
        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop", "nop");
    });
    let status: u64;
    unsafe { asm!("mov {}, dr6", out(reg) status, options(nostack)) };
    let stepped = vector == Some(1) && status & SINGLE_STEP != 0;
    println!("SLUICE-RESULT step={}", if stepped { "ok" } else { "lost" });
    let own = own | 1;
    set_breakpoints(own);
    let (start, mut foreign) = (machine::rdtsc(), 0u64);
    while machine::rdtsc().wrapping_sub(start) < time {
        foreign += u64::from(breakpoints() != [own; 4]);
    }
    set_breakpoints(0);
    println!("SLUICE-RESULT foreign={foreign}");
}
