//! How long something ran, also while it still does.
//!
//! One word says all, so that somebody else can read it at any moment: the ticks so far while it stands, and while it runs the
//! moment at which it would have begun to run them, in one go.

/// A stopwatch, in ticks of a 63-bit counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopwatch(u64);

const RUNS: u64 = 1 << 63;

impl Stopwatch {
    /// That of [`Self::bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Starts it; without effect while it runs.
    pub const fn start(self, now: u64) -> Self {
        if self.0 & RUNS != 0 { self } else { Self(now.wrapping_sub(self.0) | RUNS) }
    }

    /// Stops it; without effect while it stands.
    pub const fn stop(self, now: u64) -> Self {
        Self(self.ticks(now))
    }

    /// Adds ticks that something ran beside it.
    pub const fn add(self, ticks: u64) -> Self {
        let sum = if self.0 & RUNS != 0 { self.0.wrapping_sub(ticks) } else { self.0.wrapping_add(ticks) };
        Self(sum & !RUNS | self.0 & RUNS)
    }

    /// The ticks at `now`. A clock that is a little behind the one that started it is no harm.
    pub const fn ticks(self, now: u64) -> u64 {
        if self.0 & RUNS == 0 {
            return self.0;
        }
        let ticks = now.wrapping_sub(self.0) & !RUNS;
        // More than half of the range is less than nothing.
        if ticks & RUNS >> 1 != 0 { 0 } else { ticks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_that_runs_tells_as_much_as_one_that_was_stopped() {
        let mut watch = Stopwatch::default();
        assert_eq!(watch.ticks(1_000), 0);
        watch = watch.start(100);
        assert_eq!((watch.ticks(100), watch.ticks(150)), (0, 50));
        watch = watch.start(120);
        assert_eq!(watch.ticks(150), 50, "it ran already");
        watch = watch.stop(160);
        assert_eq!((watch.ticks(160), watch.ticks(999)), (60, 60));
        watch = watch.add(5).start(1_000);
        assert_eq!(watch.ticks(1_010), 75);
        assert_eq!(watch.add(5).ticks(1_010), 80);
    }

    #[test]
    fn a_clock_that_is_behind_is_no_harm() {
        assert_eq!(Stopwatch::default().start(100).ticks(90), 0);
    }

    proptest! {
        #[test]
        fn it_never_tells_more_than_has_passed(
            runs in proptest::collection::vec((0u64..1 << 40, 0u64..1 << 40), 0..20),
            begin in 0u64..1 << 50,
        ) {
            let (mut watch, mut now, mut ran, mut last) = (Stopwatch::default(), begin, 0, 0);
            for (stands, runs) in runs {
                now += stands;
                watch = watch.start(now);
                for part in 0..=4 {
                    let told = watch.ticks(now + runs / 4 * part);
                    prop_assert!(told >= last && told - last <= stands + runs);
                    last = told;
                }
                now += runs;
                ran += runs;
                watch = watch.stop(now);
                prop_assert_eq!(watch.ticks(now), ran);
                last = ran;
            }
        }
    }
}
