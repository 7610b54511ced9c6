//! What a cache would have done during a trace, by the rule that bounds it.
//!
//! Deviations from the module: a freed table can be allocated again at once (there, when no processor walks it any more), and the cache shrinks to a fixed threshold
//! before the next event, where the module's does so in a work of its own.

use super::adapt::Adapt;
use super::trace::{Event, LEVELS};

/// How many spare pages the cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// None: there is no cache.
    None,
    /// So many at most, of all levels together.
    Fixed(u32),
    /// All.
    Unbounded,
    /// As many as each level needed lately.
    Adaptive,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tables that were allocated.
    pub allocated: u64,
    /// Those that the kernel's allocator was asked for.
    pub misses: u64,
    /// Seconds that passed.
    pub seconds: u64,
    /// Spare pages at the end of each second, summed up.
    pub page_seconds: u64,
    /// Most spare pages at once.
    pub most: u32,
    /// Pages that were given back.
    pub given_back: u64,
}

impl Outcome {
    /// Spare pages in the mean.
    pub fn mean(&self) -> f64 {
        if self.seconds == 0 { 0.0 } else { self.page_seconds as f64 / self.seconds as f64 }
    }

    /// Misses among allocations, in percent.
    pub fn miss_percent(&self) -> f64 {
        if self.allocated == 0 { 0.0 } else { 100.0 * self.misses as f64 / self.allocated as f64 }
    }
}

/// A cache that begins empty.
pub struct Cache {
    rule: Rule,
    spare: [u32; LEVELS],
    adapt: [Adapt; LEVELS],
    /// So far.
    pub outcome: Outcome,
}

impl Cache {
    /// With this rule.
    pub fn new(rule: Rule) -> Self {
        let adapt = [const { Adapt::new(0) }; LEVELS];
        Self { rule, spare: [0; LEVELS], adapt, outcome: Outcome::default() }
    }

    /// Spare pages of each level.
    #[cfg(test)]
    pub const fn spare(&self) -> &[u32; LEVELS] {
        &self.spare
    }

    /// Steps of a level's window.
    #[cfg(test)]
    pub const fn window(&self, level: usize) -> u32 {
        self.adapt[level].window()
    }

    /// Spare pages of all levels.
    pub fn count(&self) -> u32 {
        self.spare.iter().sum()
    }

    fn give_back(&mut self, level: usize, count: u32) {
        self.spare[level] -= count;
        self.outcome.given_back += u64::from(count);
    }

    /// From each level as much as it has of all, as the module does (`cache_shrink`).
    fn shrink(&mut self, count: u32) {
        let (all, mut left) = (self.count(), count);
        for level in 0..LEVELS {
            let share = (self.spare[level] * count.min(all)).div_ceil(all.max(1)).min(left);
            self.give_back(level, share);
            left -= share;
        }
    }

    /// An event happens.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Allocated(level) => self.allocate(level),
            Event::Freed(level) => self.free(level),
            Event::Second => self.second(),
        }
    }

    fn allocate(&mut self, level: usize) {
        self.outcome.allocated += 1;
        if let Some(left) = self.spare[level].checked_sub(1) {
            self.spare[level] = left;
            self.adapt[level].taken(left);
        } else {
            self.outcome.misses += 1;
            self.adapt[level].missed();
        }
    }

    fn free(&mut self, level: usize) {
        if self.rule == Rule::None {
            return;
        }
        self.spare[level] += 1;
        let count = self.count();
        self.outcome.most = self.outcome.most.max(count);
        if let Rule::Fixed(most) = self.rule
            && count > most
        {
            self.shrink(count - (most - most / 8));
        }
    }

    fn second(&mut self) {
        self.outcome.seconds += 1;
        self.outcome.page_seconds += u64::from(self.count());
        if self.rule == Rule::Adaptive {
            for level in 0..LEVELS {
                let count = self.adapt[level].step(self.spare[level]);
                self.give_back(level, count);
            }
        }
    }
}

/// What comes of a trace.
pub fn replay(events: &[(Event, u32)], rule: Rule) -> Outcome {
    let mut cache = Cache::new(rule);
    for (event, count) in events {
        for _ in 0..*count {
            cache.event(*event);
        }
    }
    cache.outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTE: usize = 4;

    /// So many tables come and go, and then so many seconds pass.
    fn burst(tables: u32, seconds: u32) -> [(Event, u32); 3] {
        [(Event::Allocated(PTE), tables), (Event::Freed(PTE), tables), (Event::Second, seconds)]
    }

    #[test]
    fn without_a_cache_all_is_missed_and_with_one_the_first_only() {
        let trace = [burst(10, 1), burst(10, 1)].concat();
        let none = replay(&trace, Rule::None);
        assert_eq!((none.allocated, none.misses, none.page_seconds), (20, 20, 0));
        let all = replay(&trace, Rule::Unbounded);
        let expected =
            Outcome { allocated: 20, misses: 10, seconds: 2, page_seconds: 20, most: 10, given_back: 0 };
        assert_eq!(all, expected);
        assert_eq!((all.mean(), all.miss_percent()), (10.0, 50.0));
    }

    #[test]
    fn a_fixed_threshold_keeps_an_eighth_less_than_itself() {
        let outcome = replay(&burst(20, 1), Rule::Fixed(16));
        assert_eq!((outcome.most, outcome.page_seconds, outcome.given_back), (17, 14, 2 * 3));
    }
}
