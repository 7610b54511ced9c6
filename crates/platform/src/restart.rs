//! When a guest that ended is started again.
//!
//! A guest that ends soon after its start, again and again, would keep the machine busy with building it. The first few times it
//! is built at once, as a guest that installs something may well reboot twice in a row; from then on it waits, each time twice as long.

/// A life of so many nanoseconds is a life: what came before it is forgotten.
const STEADY_NS: u64 = 60_000_000_000;
/// So many short lives in a row follow each other at once.
const AT_ONCE: u32 = 3;
/// The pause after the next one.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
/// The longest pause.
const LONGEST_PAUSE_NS: u64 = 64_000_000_000;

/// How a guest's lives went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// Short lives in a row.
    short: u32,
}

impl Restarts {
    /// A life of `lived_ns` has ended. Returns how many nanoseconds to wait before the next.
    pub fn pause(&mut self, lived_ns: u64) -> u64 {
        self.short = if lived_ns < STEADY_NS { self.short.saturating_add(1) } else { 0 };
        match self.short.checked_sub(AT_ONCE + 1) {
            None => 0,
            Some(doublings) => (FIRST_PAUSE_NS << doublings.min(16)).min(LONGEST_PAUSE_NS),
        }
    }

    /// Short lives in a row.
    pub fn in_a_row(&self) -> u32 {
        self.short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn short_lives_are_ever_farther_apart() {
        let mut restarts = Restarts::default();
        let pauses: Vec<u64> = (0..12).map(|_| restarts.pause(SECOND) / SECOND).collect();
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(restarts.in_a_row(), 12);
    }

    #[test]
    fn a_long_life_makes_up_for_short_ones() {
        let mut restarts = Restarts::default();
        for _ in 0..10 {
            restarts.pause(0);
        }
        assert_eq!(restarts.pause(STEADY_NS), 0);
        assert_eq!(restarts.pause(SECOND), 0);
    }

    #[test]
    fn a_guest_that_never_lives_costs_one_start_a_minute() {
        let mut restarts = Restarts { short: u32::MAX };
        assert_eq!(restarts.pause(0), LONGEST_PAUSE_NS);
    }
}
