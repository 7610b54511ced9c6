//! The clock page, while the time-stamp counter is written.
//!
//! Source: Linux Documentation/virt/kvm/x86/msr.rst.

use super::Verdict;
use crate::machine::{rdtsc, wrmsr};

const TSC: u32 = 0x10;
const SYSTEM_TIME: u32 = 0x4b56_4d01;
const STABLE: u64 = 1;

/// The structure, as words of 32 bits: version, padding, TSC, system time, multiplier, shift and flags.
#[repr(C, align(32))]
struct Page([u32; 8]);

static mut PAGE: Page = Page([0; 8]);

fn word(index: usize) -> u64 {
    unsafe { (&raw const PAGE).cast::<u32>().add(index).read_volatile().into() }
}

/// Nanoseconds, as Linux computes them.
fn now() -> u64 {
    let (timestamp, system_time) = (word(2) | word(3) << 32, word(4) | word(5) << 32);
    let (factor, shift) = (word(6), word(7) as i8);
    let ticks = rdtsc().wrapping_sub(timestamp);
    let shifted = if shift < 0 { ticks >> -shift } else { ticks << shift };
    system_time.wrapping_add(((u128::from(shifted) * u128::from(factor)) >> 32) as u64)
}

/// Runs the check: the time goes on, less than a second further, whatever becomes of the counter.
pub fn run() {
    let mut verdict = Verdict::new("clock");
    let processors = core::arch::x86_64::__cpuid_count(0xb, 1).ebx;
    wrmsr(SYSTEM_TIME, &raw const PAGE as u64 | 1);
    let (mut version, mut last) = (word(0), now());
    verdict.expect("version", version, version & 1, 0);
    verdict.expect("stable among", processors.into(), word(7) >> 8 & STABLE, STABLE);
    for to in [0, 1 << 40, rdtsc() + 10_000_000_000, 1 << 62, 5] {
        wrmsr(TSC, to);
        verdict.expect("counter far from", to, u64::from(rdtsc().wrapping_sub(to) > 1 << 30), 0);
        let time = now();
        verdict.expect("time after", to, u64::from(time.wrapping_sub(last) > 1_000_000_000), 0);
        verdict.expect("version after", version, word(0), version + 2);
        // The other processors' counters did not move.
        verdict.expect("stable among", processors.into(), word(7) >> 8 & STABLE, u64::from(processors == 1));
        (version, last) = (word(0), time);
    }
    wrmsr(SYSTEM_TIME, 0);
    wrmsr(TSC, 1 << 41);
    verdict.expect("version of a page that was taken back", version, word(0), version);
    verdict.report();
}
