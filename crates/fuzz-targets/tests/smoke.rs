//! Every target with pseudo-random inputs: the same ones in each run, so that a failure can be repeated.
//!
//! `SLUICE_FUZZ_MS` sets how many milliseconds each target gets (default 300), `SLUICE_FUZZ_SEED` the first seed. A
//! failure names the target and the seed of the input; `SLUICE_FUZZ_TARGET` runs that target alone.

use sluice_fuzz_targets::TARGETS;
use std::time::{Duration, Instant};

/// Inputs that every target gets, however slow the machine.
const AT_LEAST: u64 = 200;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Bytes of some texture: small numbers, repeated values and ones are likelier than in noise.
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = match next() % 4 {
        0 => next() % 16,
        1 => next() % 128,
        _ => next() % 1024,
    };
    let texture = next() % 3;
    let mut last = 0;
    let bytes = (0..len).map(|_| {
        let value = next();
        last = match (texture, value >> 32 & 7) {
            (1, 0..=2) => (value % 8) as u8,
            (2, 0) => last,
            (_, 1) => *[0, 1, 0x7f, 0x80, 0xff].get((value >> 40) as usize % 5).unwrap_or(&0),
            _ => value as u8,
        };
        last
    });
    bytes.collect()
}

/// Names the input if a target panics.
struct Naming<'a>(&'a str, u64);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target {}, SLUICE_FUZZ_SEED={}", self.0, self.1);
        }
    }
}

#[test]
fn random_inputs_break_no_promise() {
    let time = Duration::from_millis(number("SLUICE_FUZZ_MS", 300));
    let first = number("SLUICE_FUZZ_SEED", 1);
    let only = std::env::var("SLUICE_FUZZ_TARGET").unwrap_or_default();
    for (name, target) in TARGETS.iter().filter(|(name, _)| only.is_empty() || only == *name) {
        let until = Instant::now() + time;
        let mut seed = first;
        while seed - first < AT_LEAST || Instant::now() < until {
            let naming = Naming(name, seed);
            target(&input(seed));
            drop(naming);
            seed += 1;
        }
        println!("{name}: {} inputs", seed - first);
    }
}
