//! How much of its processor a guest gets while others do what they like: loops in windows of the same length.

use crate::console::println;
use crate::entry::BootInfo;
use crate::isolation::wait_for_key;
use crate::machine;

/// Ticks of a window: a score of slices.
const WINDOW: u64 = 80_000_000;

/// Counts in one window for each key that is typed, `windows=` in all, and compares each with the first.
pub fn run(boot: &BootInfo) {
    let windows: u64 = boot.argument("windows").and_then(|text| text.parse().ok()).unwrap_or(2);
    println!("SLUICE-RESULT loops=ready");
    let mut first = 0;
    for window in 0..windows {
        wait_for_key();
        let loops = count();
        first = if window == 0 { loops } else { first };
        println!("SLUICE-RESULT loops.{window}={loops} share.{window}={}", loops * 100 / first.max(1));
    }
    println!("SLUICE-RESULT done=ok");
}

fn count() -> u64 {
    let end = machine::rdtsc() + WINDOW;
    let mut loops = 0;
    while machine::rdtsc() < end {
        for _ in 0..1000 {
            core::hint::black_box(());
        }
        loops += 1;
    }
    loops
}
