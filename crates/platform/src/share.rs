//! Who of those that share a processor runs next: the one that has had the least of it.
//!
//! One that halted and has woken takes the place of one that goes on, unless it is [`CREDIT_NS`] ahead of it: so who waits for interrupts is served
//! at once, however busy others are, and nobody gets more than others for longer than that, however it halts and wakes. What one did
//! not want while it slept it does not get later: it begins where the others are.
//!
//! The same is said of Linux's scheduler before 6.6 (Documentation/scheduler/sched-design-CFS.rst).

/// Nanoseconds that one which wakes may be ahead of others.
pub const CREDIT_NS: u64 = 20_000_000;

/// Nanoseconds that one which wakes is charged for taking another's place: what it takes at most to put one processor's state in the place
/// of another's, and caches that are cold after it. It bounds how often that can be done.
pub const SWITCH_NS: u64 = 5_000;

/// What one has had, and whether it has halted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    used: u64,
    halted: bool,
}

impl Default for Share {
    fn default() -> Self {
        Self { used: 0, halted: true }
    }
}

impl Share {
    /// That of [`Self::bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self { used: bits >> 1, halted: bits & 1 != 0 }
    }

    /// All of it in a word.
    pub const fn bits(self) -> u64 {
        self.used << 1 | self.halted as u64
    }

    /// After it had so many ticks more, and halted, or else had to make room.
    pub const fn and(self, ticks: u64, halted: bool) -> Self {
        Self { used: self.used.saturating_add(ticks), halted }
    }
}

/// The order on a processor, in ticks of its clock.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    credit: u64,
    switch: u64,
    /// What those who want to run have had at least.
    floor: u64,
}

impl Order {
    /// With [`CREDIT_NS`] and [`SWITCH_NS`] as ticks.
    pub const fn new(credit: u64, switch: u64) -> Self {
        Self { credit, switch, floor: 0 }
    }

    fn used(&self, share: Share) -> u64 {
        if share.halted { share.used.max(self.floor) } else { share.used }
    }

    /// The least comes first.
    fn place(&self, share: Share) -> u64 {
        self.used(share).saturating_add(if share.halted { 0 } else { self.credit })
    }

    /// Chooses among those who want to run. Returns it with its share as it begins.
    pub fn next<T>(&mut self, wanting: impl Iterator<Item = (T, Share)>) -> Option<(T, Share)> {
        let (mut first, mut least) = (None, u64::MAX);
        for (who, share) in wanting {
            least = least.min(self.used(share));
            let place = self.place(share);
            if first.as_ref().is_none_or(|(_, _, foremost)| place < *foremost) {
                first = Some((who, share, place));
            }
        }
        let (who, share, _) = first?;
        let used = self.used(share).saturating_add(if share.halted { self.switch } else { 0 });
        self.floor = self.floor.max(least);
        Some((who, Share { used, halted: false }))
    }

    /// Nobody else has wanted to run since the one that runs was chosen: who comes begins where that is by now.
    pub fn alone(&mut self, running: Share) {
        self.floor = self.floor.max(running.used);
    }

    /// Whether one that wants to run takes the place of one that does.
    pub fn takes_place(&self, share: Share, running: Share) -> bool {
        self.claim(share).takes_place(self, running)
    }

    /// What one that wants to run claims. Until another is chosen, it stays what it is.
    pub fn claim(&self, share: Share) -> Claim {
        if share.halted { Claim(self.place(share)) } else { Claim::NONE }
    }
}

/// What those who have woken claim of the place of one that runs: the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim(u64);

impl Claim {
    /// Nobody claims it.
    pub const NONE: Self = Self(u64::MAX);

    /// Whether it is enough to take the place of one that runs, by what that has had by now.
    pub fn takes_place(self, order: &Order, running: Share) -> bool {
        self != Self::NONE && self.0 < order.place(running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CREDIT: u64 = 20_000;
    const SLICE: u64 = 4_000;

    /// One that runs and sleeps by turns; with no sleep it always wants to run.
    #[derive(Clone, Debug)]
    struct Habit {
        runs: Vec<u64>,
        sleeps: Vec<u64>,
    }

    struct One {
        habit: Habit,
        share: Share,
        nth: usize,
        /// What it wants to run before it sleeps.
        left: u64,
        wakes: u64,
        had: u64,
        /// The longest that it has waited after it woke.
        waited: u64,
    }

    struct Processor {
        order: Order,
        now: u64,
        all: Vec<One>,
    }

    impl Processor {
        fn new(habits: &[Habit]) -> Self {
            let one = |habit: &Habit| One {
                habit: habit.clone(),
                share: Share::default(),
                nth: 0,
                left: habit.runs[0],
                wakes: 0,
                had: 0,
                waited: 0,
            };
            let all = habits.iter().map(one).collect();
            Self { order: Order::new(CREDIT, 5), now: 0, all }
        }

        /// The next slice, as the hypervisor has it.
        fn slice(&mut self) {
            let now = self.now;
            let wanting = self.all.iter().enumerate().filter(|(_, one)| one.wakes <= now);
            let Some((at, share)) = self.order.next(wanting.map(|(at, one)| (at, one.share))) else {
                self.now = self.all.iter().map(|one| one.wakes).min().unwrap();
                return;
            };
            let wakes = &mut self.all[at];
            if wakes.share.halted && wakes.nth > 0 {
                wakes.waited = wakes.waited.max(now - wakes.wakes);
            }
            // Who is alone runs until another wakes.
            let others = self.all.iter().enumerate().filter(|(other, _)| *other != at);
            let next = others.map(|(_, one)| one.wakes).min().unwrap_or(now + SLICE);
            let alone = next > now;
            let end = if alone { next } else { now + SLICE }.min(now + self.all[at].left);
            // Who wakes meanwhile.
            let mut wakes: Vec<_> =
                self.all.iter().filter(|one| one.wakes > now && one.wakes < end).collect();
            wakes.sort_by_key(|one| one.wakes);
            let took = |one: &&One| self.order.takes_place(one.share, share.and(one.wakes - now, false));
            let end = wakes.into_iter().find(took).map_or(end, |one| one.wakes);
            let one = &mut self.all[at];
            (one.left, one.had) = (one.left - (end - now), one.had + end - now);
            self.now = end;
            if alone {
                self.order.alone(share.and(end - now, false));
            }
            let halts = one.left == 0;
            one.share = share.and(end - now, halts);
            if halts {
                one.wakes = end + one.habit.sleeps[one.nth % one.habit.sleeps.len()];
                one.nth += 1;
                one.left = one.habit.runs[one.nth % one.habit.runs.len()];
            }
        }
    }

    fn habits() -> impl Strategy<Value = Habit> {
        let some = |most| prop::collection::vec(1..most, 1..6);
        (some(6_000u64), some(3_000u64)).prop_map(|(runs, sleeps)| Habit { runs, sleeps })
    }

    fn always() -> Habit {
        Habit { runs: vec![u64::MAX / 2], sleeps: vec![1] }
    }

    proptest! {
        /// However others halt and wake: who always wants to run has its part, but for what each of them may be ahead.
        #[test]
        fn who_always_wants_to_run_gets_its_part(others in prop::collection::vec(habits(), 1..4)) {
            let all: Vec<_> = others.into_iter().chain([always()]).collect();
            let mut processor = Processor::new(&all);
            while processor.now < 2_000_000 {
                processor.slice();
            }
            let part = processor.now / all.len() as u64;
            let least = part - (CREDIT + SLICE) * (all.len() as u64 - 1);
            prop_assert!(processor.all.last().unwrap().had >= least, "{} of {}", processor.all.last().unwrap().had, processor.now);
        }
    }

    #[test]
    fn who_wakes_comes_at_once_beside_those_who_always_want_to_run() {
        let rare = Habit { runs: vec![50], sleeps: vec![900] };
        let mut processor = Processor::new(&[always(), always(), rare]);
        while processor.now < 2_000_000 {
            processor.slice();
        }
        assert_eq!(processor.all[2].waited, 0);
        assert!(processor.all[2].had > 100_000);
    }

    #[test]
    fn who_is_ahead_by_the_credit_waits_for_its_turn() {
        let order = Order::new(CREDIT, 5);
        let running = Share { used: 1_000, halted: false };
        let woken = |used| Share { used, halted: true };
        assert!(order.takes_place(woken(1_000 + CREDIT - 1), running));
        assert!(!order.takes_place(woken(1_000 + CREDIT), running));
        assert!(!order.takes_place(Share { used: 0, halted: false }, running), "it has not slept");
    }

    #[test]
    fn two_who_always_want_to_run_take_turns() {
        let mut processor = Processor::new(&[always(), always()]);
        for _ in 0..100 {
            processor.slice();
        }
        assert_eq!(processor.all[0].had, processor.all[1].had);
    }

    #[test]
    fn a_long_sleep_saves_nothing_up() {
        let sleeper = Habit { runs: vec![1, u64::MAX / 2], sleeps: vec![1_000_000] };
        let mut processor = Processor::new(&[always(), sleeper]);
        while processor.now < 1_400_000 {
            processor.slice();
        }
        let late = processor.all[1].had;
        assert!((180_000..=200_000 + CREDIT + SLICE).contains(&late), "{late}");
    }

    #[test]
    fn who_ran_alone_does_not_wait_for_those_who_come() {
        let mut processor = Processor::new(&[always(), always(), always()]);
        processor.all[1].wakes = 1_000_000;
        processor.all[2].wakes = 1_000_000;
        while processor.now < 1_300_000 {
            processor.slice();
        }
        let had = processor.all[0].had;
        assert!((1_100_000 - CREDIT..=1_100_000 + CREDIT).contains(&had), "{had}");
    }

    /// A wake costs whoever wakes: one that does nothing else cannot have another make room all the time.
    #[test]
    fn wakes_that_do_nothing_are_bounded() {
        let restless = Habit { runs: vec![1], sleeps: vec![1] };
        let mut processor = Processor::new(&[always(), restless]);
        let (mut switches, mut last) = (0, 0);
        while processor.now < 2_000_000 {
            processor.slice();
            switches += u64::from(processor.all[1].had != last);
            last = processor.all[1].had;
        }
        assert!(switches < 2_000_000 / 5, "{switches}");
    }

    #[test]
    fn it_stays_the_same_as_a_word() {
        for share in [Share::default(), Share { used: 1 << 60, halted: false }] {
            assert_eq!(Share::from_bits(share.bits()), share);
        }
    }
}
