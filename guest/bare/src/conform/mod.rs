//! What the manual says of the processor, checked from within a guest. Each check prints how often it was wrong: zero is right,
//! and `wrong.NAME` names the first thing that was not.
//!
//! `job=conform:NAME+NAME` on the command line; tests/conform.toml runs two of these guests on one processor.

mod bars;
mod clock;
mod hypercalls;
mod instructions;
mod leaks;
mod nmi;
mod priority;
mod registers;
mod step;

use crate::console::println;
use crate::entry::BootInfo;

/// Runs the checks of these names, joined by `+`.
pub fn run(names: &str, boot: &BootInfo) {
    for name in names.split('+') {
        match name {
            "bars" => bars::run(),
            "clock" => clock::run(),
            "hypercalls" => hypercalls::run(),
            "instructions" => instructions::run(),
            "leaks" => leaks::run(boot),
            "nmi" => nmi::run(),
            "priority" => priority::run(),
            "registers" => registers::run(),
            "step" => step::run(),
            _ => println!("no such check"),
        }
    }
    println!("SLUICE-RESULT done=ok");
}

/// Counts what was wrong of one check.
struct Verdict {
    name: &'static str,
    checked: u64,
    wrong: u64,
}

impl Verdict {
    fn new(name: &'static str) -> Self {
        Self { name, checked: 0, wrong: 0 }
    }

    /// Compares; `what` and `of` say what it was about.
    fn expect<T: PartialEq + core::fmt::LowerHex>(&mut self, what: &str, of: u64, is: T, expected: T) {
        self.checked += 1;
        if is != expected {
            self.wrong += 1;
            if self.wrong <= 5 {
                println!("{}: {what} {of:#x} is {is:#x}, expected {expected:#x}", self.name);
            }
        }
    }

    /// Prints the counts.
    fn report(&self) {
        println!("SLUICE-RESULT {0}.checked={1} {0}.wrong={2}", self.name, self.checked, self.wrong);
    }
}
