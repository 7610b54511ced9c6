//! A device's memory, shown and hidden again and again: after each change the guest sees what is there now.
//!
//! For a guest with a device that has memory in BAR 0, in slot 3.

use super::Verdict;

const FUNCTION: u64 = 0xe000_0000 + (3 << 15);
const COMMAND: u64 = FUNCTION + 4;
const BAR_0: u64 = FUNCTION + 0x10;
const MEMORY: u16 = 2;

/// Runs the check.
pub fn run() {
    let mut verdict = Verdict::new("bars");
    let command = |value: u16| unsafe { (COMMAND as *mut u16).write_volatile(value) };
    let at = |bar: u32| u64::from(bar & !0xf) as *const u32;
    let read_bar = || unsafe { (BAR_0 as *const u32).read_volatile() };
    let first = read_bar();
    for round in 0..50u32 {
        let bar = first ^ (round & 1) << 24;
        command(0);
        unsafe { (BAR_0 as *mut u32).write_volatile(bar) };
        verdict.expect("BAR 0 in round", round.into(), read_bar() & !0xf, bar & !0xf);
        let hidden = unsafe { at(bar).read_volatile() };
        verdict.expect("hidden register in round", round.into(), hidden, u32::MAX);
        command(MEMORY);
        let shown = unsafe { at(bar).read_volatile() };
        verdict.expect("register that is not there in round", round.into(), u32::from(shown == u32::MAX), 0);
    }
    command(0);
    verdict.report();
}
