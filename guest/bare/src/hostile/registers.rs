//! Model-specific registers: every one of the ranges that exist, and random ones.

use super::Tally;
use crate::console::println;
use crate::machine::{rdmsr, wrmsr};
use crate::random::Random;

const RANGES: [(u32, u32); 7] = [
    (0, 0x2000),
    (0x4000_0000, 0x4000_0200),
    (0x4b56_4d00, 0x4b56_4d10),
    (0xc000_0000, 0xc000_2000),
    (0xc001_0000, 0xc001_2000),
    (0xfffe_0000, 0xfffe_0100),
    (0xffff_ff00, 0xffff_ffff),
];

/// Runs the attack.
pub fn run(random: &mut Random) {
    let (mut reads, mut writes) = (Tally::default(), Tally::default());
    for (first, end) in RANGES {
        for msr in first..end {
            one(msr, random, &mut reads, &mut writes);
        }
        println!("SLUICE-RESULT msrs={end:#x}");
    }
    for _ in 0..5000 {
        one(random.next() as u32, random, &mut reads, &mut writes);
    }
    reads.report("rdmsr");
    writes.report("wrmsr");
}

fn one(msr: u32, random: &mut Random, reads: &mut Tally, writes: &mut Tally) {
    let mut value = 0;
    reads.attempt(|| value = rdmsr(msr));
    let wild = random.wild();
    for new in [wild, value, !value, value ^ 1 << (wild & 63)] {
        writes.attempt(|| wrmsr(msr, new));
    }
    // Back to what it was, where that is known.
    writes.attempt(|| wrmsr(msr, value));
}
