//! Non-maskable interrupts: none in the handler of another, one after it, and that one at once.
//!
//! Source: Intel SDM vol. 3, 6.7.1; APM vol. 2, 8.2.3.

use super::Verdict;
use crate::{machine, trap};
use core::sync::atomic::{AtomicU64, Ordering};

const ICR: u32 = 0x830;
/// To processor 0, by its number.
const NMI: u64 = 4 << 8 | 1 << 14;

static TAKEN: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);
static NESTED: AtomicU64 = AtomicU64::new(0);
/// Where each was taken.
static AT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// The first of a round asks for three more.
fn handler(rip: u64) {
    let number = TAKEN.fetch_add(1, Ordering::Relaxed) as usize;
    if INSIDE.fetch_add(1, Ordering::Relaxed) != 0 {
        // The frame of the outer one is overwritten: there is no way back.
        NESTED.fetch_add(1, Ordering::Relaxed);
        crate::console::println!("SLUICE-RESULT nmi.nested=1");
        machine::power_off();
    }
    if let Some(at) = AT.get(number) {
        at.store(rip, Ordering::Relaxed);
    }
    if number == 0 {
        for _ in 0..3 {
            machine::wrmsr(ICR, NMI);
            // Goes out and in again.
            machine::inb(0x80);
        }
    }
    INSIDE.store(0, Ordering::Relaxed);
}

/// Runs the check.
pub fn run() {
    let mut verdict = Verdict::new("nmi");
    machine::x2apic();
    trap::on_nmi(Some(handler));
    for round in 0..100u64 {
        TAKEN.store(0, Ordering::Relaxed);
        if round & 1 == 0 {
            machine::cli()
        } else {
            machine::sti()
        }
        machine::wrmsr(ICR, NMI);
        machine::nop();
        machine::cli();
        verdict.expect("taken in round", round, TAKEN.load(Ordering::Relaxed), 2);
        let at = AT.each_ref().map(|at| at.load(Ordering::Relaxed));
        verdict.expect("place of the second in round", round, at[1], at[0]);
        // The step that came between them left nothing behind.
        verdict.expect("trap flag in round", round, machine::rflags() & 0x100, 0);
        verdict.expect("DR6 in round", round, machine::dr6() & 0x4000, 0);
    }
    trap::on_nmi(None);
    verdict.report();
}
