//! How long an engine looks for work before it sleeps.
//!
//! Falling asleep and being woken cost a guest an exit and an interrupt. They pay when nothing comes for long; an engine that is woken soon
//! after it fell asleep should have looked a little longer.

use crate::x86::tsc;

/// Nanoseconds that an engine looks for work, at least and at most.
const LEAST_NS: u64 = 2_000;
const MOST_NS: u64 = 200_000;

/// The patience of an engine.
pub(super) struct Patience {
    /// Ticks that it looks on after the last work.
    ticks: u64,
    /// TSC when it has looked long enough.
    over: u64,
    /// TSC when it fell asleep.
    asleep_since: u64,
}

impl Patience {
    pub fn new(now: u64) -> Self {
        let ticks = tsc::ticks_from_ns(LEAST_NS);
        Self { ticks, over: now.saturating_add(ticks), asleep_since: now }
    }

    /// There was work.
    pub fn found(&mut self, now: u64) {
        self.over = now.saturating_add(self.ticks);
    }

    /// Whether it has looked long enough; then it falls asleep, or finds work.
    pub fn is_over(&mut self, now: u64) -> bool {
        self.asleep_since = now;
        now >= self.over
    }

    /// It was woken.
    pub fn slept(&mut self, now: u64) {
        let slept = now.saturating_sub(self.asleep_since);
        let (least, most) = (tsc::ticks_from_ns(LEAST_NS), tsc::ticks_from_ns(MOST_NS));
        self.ticks = if slept < most { (self.ticks * 2).min(most) } else { (self.ticks / 2).max(least) };
        self.found(now);
    }
}
