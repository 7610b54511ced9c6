//! The time-stamp counter as the clock: conversion to time, once its frequency is known.

use super::control::rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};

static KHZ: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick, times 2^32.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
static START: AtomicU64 = AtomicU64::new(0);

/// Thousands of ticks per second; zero before [`set_frequency`].
#[inline]
pub fn khz() -> u64 {
    KHZ.load(Ordering::Relaxed)
}

/// The counter.
#[inline]
pub fn now() -> u64 {
    rdtsc()
}

/// What another clock shows, and the counter at that moment: of eight readings the one with the least time around it, since
/// a hypervisor below may let any of them wait.
pub fn beside<T>(mut clock: impl FnMut() -> T) -> (u64, T) {
    let mut reading = || {
        let before = now();
        let shown = clock();
        (before, now() - before, shown)
    };
    let mut best = reading();
    for _ in 1..8 {
        let another = reading();
        if another.1 < best.1 {
            best = another;
        }
    }
    (best.0 + best.1 / 2, best.2)
}

/// Nanoseconds in that many ticks; saturates.
#[inline]
pub fn ns_from_ticks(ticks: u64) -> u64 {
    let ns = (u128::from(ticks) * u128::from(NS_PER_TICK.load(Ordering::Relaxed))) >> 32;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Ticks in that many nanoseconds; saturates.
#[inline]
pub fn ticks_from_ns(ns: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(khz()) / 1_000_000).unwrap_or(u64::MAX)
}

/// Nanoseconds since [`start`]; zero before the frequency is known.
pub fn uptime_ns() -> u64 {
    uptime_ns_at(now())
}

/// The same when the counter reads `now`.
pub fn uptime_ns_at(now: u64) -> u64 {
    ns_from_ticks(now.wrapping_sub(START.load(Ordering::Relaxed)))
}

/// Waits that long, busily.
pub fn delay_us(us: u64) {
    let start = now();
    let ticks = ticks_from_ns(us.saturating_mul(1000));
    while now().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// Time begins now.
pub fn start() {
    START.store(now(), Ordering::Relaxed);
}

/// Says how many thousands of ticks a second has. Once, on the boot processor.
pub fn set_frequency(khz: u64) {
    assert!(khz > 0, "the time-stamp counter stands still");
    KHZ.store(khz, Ordering::Relaxed);
    NS_PER_TICK.store((u128::from(1_000_000u64) << 32).div_euclid(khz.into()) as u64, Ordering::Relaxed);
}
