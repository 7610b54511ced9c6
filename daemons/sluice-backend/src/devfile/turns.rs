//! Whose batch of commands a device does next: guests that want more of it than there is share its time by their weights.
//!
//! The device does what it is given in that order, and nothing ends a batch early. So a batch is held back before the device has it, for as long as its guest
//! is ahead of another one that wants the device. How long a batch takes is known when it is over: until then it counts as much as its guest's batches did
//! lately, and more if it has already taken longer.
//!
//! Source: Goyal, Vin and Cheng, "Start-time Fair Queuing" (SIGCOMM 1996), in the form for devices with several requests at once of Jin, Chase and Kaur,
//! "Interposed Proportional Sharing for a Storage Service Utility" (SIGMETRICS 2004). Deviation: who has just been served is waited for, since a program that
//! waits for its frame before it sends the next one would else be taken for one that wants nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The weight by which time counts as it is.
const USUAL: u64 = 100;

/// How far a guest may be ahead of another one that wants the device, in time of a guest of the usual weight.
const SLACK: Duration = Duration::from_millis(5);

/// How long who has been served is waited for, at most: no longer than the batch usually takes that waits, so that at worst half of the time is lost.
const IDLE: Duration = Duration::from_millis(50);

/// Batches that the device may have of a guest at once where others use it, too: who asks next waits for them.
const FEW: u32 = 2;
/// As many as there can be if they usually take no longer in all than this.
const SHORT: Duration = Duration::from_millis(10);

/// What a guest's first batch is taken for.
const UNKNOWN: Duration = SHORT;

/// How long a guest is one of those who use the device.
const AWAY: Duration = Duration::from_secs(10);

/// A batch, by who asks for it.
pub type Ticket = u64;

struct Guest {
    name: Vec<u8>,
    weight: u32,
    /// What it has had, to its weight, in nanoseconds.
    had: u64,
    /// What its batches took lately.
    usual: Duration,
    waiting: VecDeque<Ticket>,
    /// Batches that the device has.
    given: u32,
    /// When it was last served.
    served: Option<Instant>,
}

impl Guest {
    fn was_served(&self, now: Instant, lately: Duration) -> bool {
        self.served.is_some_and(|served| now.saturating_duration_since(served) < lately)
    }

    /// It uses the device now and then.
    fn is_there(&self, now: Instant) -> bool {
        self.wants(now, AWAY)
    }

    /// Another batch keeps nobody waiting for long.
    fn is_short(&self) -> bool {
        self.given < FEW || self.usual * (self.given + 1) < SHORT
    }

    /// It asks for the device, has it, or has had it just now.
    fn wants(&self, now: Instant, lately: Duration) -> bool {
        !self.waiting.is_empty() || self.given > 0 || self.was_served(now, lately)
    }

    /// Nanoseconds of the device to its weight.
    fn share(&self, time: Duration) -> u64 {
        time.as_nanos() as u64 * USUAL / u64::from(self.weight)
    }
}

/// A batch that the device has.
struct Batch {
    ticket: Ticket,
    guest: usize,
    /// What its guest has been charged for it.
    charged: Duration,
    used: Duration,
}

/// Guests of a device, and what it does for them.
#[derive(Default)]
pub struct Turns {
    guests: Vec<Guest>,
    /// In the order in which they were given.
    given: VecDeque<Batch>,
    /// Until when it is known whom the device worked for.
    known: Option<Instant>,
    /// What the guest had that was let go last.
    last: u64,
}

impl Turns {
    /// A guest asks for its next batch.
    pub fn ask(&mut self, name: &[u8], weight: u32, ticket: Ticket, now: Instant) {
        let known = self.guests.iter().position(|guest| guest.name == name);
        let which = known.unwrap_or_else(|| {
            let name = name.to_vec();
            let usual = UNKNOWN;
            self.guests.push(Guest {
                name,
                weight,
                had: 0,
                usual,
                waiting: VecDeque::new(),
                given: 0,
                served: None,
            });
            self.guests.len() - 1
        });
        let guest = &mut self.guests[which];
        guest.weight = weight.max(1);
        if !guest.wants(now, IDLE) {
            // What it left unused others have had.
            guest.had = guest.had.max(self.last);
        }
        guest.waiting.push_back(ticket);
    }

    /// It does not want it any more. Returns whether it was waiting yet.
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        self.guests.iter_mut().any(|guest| {
            let place = guest.waiting.iter().position(|waiting| *waiting == ticket);
            place.is_some_and(|place| guest.waiting.remove(place).is_some())
        })
    }

    /// The batch that the device may have now; `None`: none, or none yet.
    pub fn next(&mut self, now: Instant) -> Option<Ticket> {
        self.account(now);
        let may = |which: &usize| {
            let guest = &self.guests[*which];
            let others = self.guests.iter().enumerate().filter(|(other, _)| other != which);
            let mut others = others.map(|(_, other)| other).filter(|other| other.is_there(now));
            let ahead = SLACK.as_nanos() as u64;
            let waits_for = |other: &Guest| {
                other.wants(now, guest.usual.min(IDLE)) && guest.had > other.had.saturating_add(ahead)
            };
            !guest.waiting.is_empty() && others.all(|other| guest.is_short() && !waits_for(other))
        };
        let which = (0..self.guests.len()).filter(may).min_by_key(|which| self.guests[*which].had)?;
        let guest = &mut self.guests[which];
        let ticket = guest.waiting.pop_front()?;
        self.last = guest.had;
        guest.had += guest.share(guest.usual);
        guest.given += 1;
        self.given.push_back(Batch { ticket, guest: which, charged: guest.usual, used: Duration::ZERO });
        Some(ticket)
    }

    /// Somebody waits, and may go after a while.
    pub fn is_held(&self) -> bool {
        self.guests.iter().any(|guest| !guest.waiting.is_empty())
    }

    /// The time since the last look is the oldest batch's; or, while somebody is held, the guest's that is waited for.
    fn account(&mut self, now: Instant) {
        let since = self.known.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(since);
        if let Some(oldest) = self.given.front_mut() {
            oldest.used += elapsed;
            if oldest.used > oldest.charged {
                let guest = &mut self.guests[oldest.guest];
                guest.had += guest.share(oldest.used - oldest.charged);
                oldest.charged = oldest.used;
            }
        } else if self.is_held() {
            let awaited =
                self.guests.iter_mut().filter(|guest| guest.waiting.is_empty() && guest.wants(since, IDLE));
            if let Some(guest) = awaited.min_by_key(|guest| guest.had) {
                guest.had += guest.share(elapsed);
            }
        }
    }

    /// These batches are over. Of several that are over at once each has taken its part of the time since the last look, as they usually do.
    pub fn over(&mut self, tickets: &[Ticket], now: Instant) {
        if !self.given.iter().any(|batch| tickets.contains(&batch.ticket)) {
            return self.account(now);
        }
        let since = self.known.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(since).as_nanos();
        let (over, left): (VecDeque<Batch>, VecDeque<Batch>) =
            self.given.drain(..).partition(|batch| tickets.contains(&batch.ticket));
        self.given = left;
        let usual = |batch: &Batch| self.guests[batch.guest].usual.as_nanos().max(1);
        let all: u128 = over.iter().map(usual).sum();
        let parts: Vec<u128> = over.iter().map(|batch| elapsed * usual(batch) / all.max(1)).collect();
        for (batch, part) in over.into_iter().zip(parts) {
            let guest = &mut self.guests[batch.guest];
            let used = batch.used + Duration::from_nanos(part as u64);
            guest.had = (guest.had + guest.share(used)).saturating_sub(guest.share(batch.charged));
            guest.usual = (guest.usual * 3 + used) / 4;
            guest.given -= 1;
            guest.served = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that does one batch after the other, and guests that wait for theirs, and ask for the next after a pause.
    struct Machine {
        turns: Turns,
        now: Instant,
        /// Batches that the device has, and whose they are.
        queue: VecDeque<(Ticket, usize)>,
        /// What each guest had.
        had: Vec<Duration>,
    }

    struct Load {
        weight: u32,
        batch: Duration,
        /// From the end of a batch to when the next one is asked for.
        pause: Duration,
        /// Batches that it asks for at once.
        at_once: usize,
    }

    const fn load(weight: u32, micros: u64, pause: u64, at_once: usize) -> Load {
        Load { weight, batch: Duration::from_micros(micros), pause: Duration::from_micros(pause), at_once }
    }

    /// What part of the time each had the device for.
    fn shares(loads: &[Load]) -> Vec<f64> {
        const STEP: Duration = Duration::from_micros(100);
        const TIME: Duration = Duration::from_secs(20);
        let start = Instant::now();
        let mut machine = Machine {
            turns: Turns::default(),
            now: start,
            queue: VecDeque::new(),
            had: vec![Duration::ZERO; loads.len()],
        };
        // When each asks for batches next.
        let mut asks: Vec<(Instant, usize)> =
            loads.iter().enumerate().flat_map(|(which, load)| vec![(start, which); load.at_once]).collect();
        let mut next = 1;
        let mut busy: Option<(Instant, Ticket, usize)> = None;
        while machine.now < start + TIME {
            machine.now += STEP;
            if let Some((end, ticket, which)) = busy
                && end <= machine.now
            {
                machine.turns.over(&[ticket], machine.now);
                machine.had[which] += loads[which].batch;
                asks.push((machine.now + loads[which].pause, which));
                busy = None;
            }
            for (_, which) in asks.extract_if(.., |(when, _)| *when <= machine.now) {
                let name = [which as u8];
                machine.turns.ask(&name, loads[which].weight, next * 16 + which as u64, machine.now);
                next += 1;
            }
            while let Some(ticket) = machine.turns.next(machine.now) {
                machine.queue.push_back((ticket, (ticket % 16) as usize));
            }
            if busy.is_none()
                && let Some((ticket, which)) = machine.queue.pop_front()
            {
                busy = Some((machine.now + loads[which].batch, ticket, which));
            }
        }
        machine.had.iter().map(|had| had.as_secs_f64() / TIME.as_secs_f64()).collect()
    }

    fn near(shares: &[f64], expected: &[f64]) {
        let is_near = shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 0.05);
        assert!(is_near, "{shares:?}, not {expected:?}");
    }

    #[test]
    fn batches_of_any_length_have_the_same_time() {
        near(&shares(&[load(100, 50_000, 0, 2), load(100, 1_000, 0, 2)]), &[0.5, 0.5]);
        near(
            &shares(&[load(100, 5_000, 0, 16), load(100, 5_000, 0, 1), load(100, 700, 0, 3)]),
            &[1. / 3.; 3],
        );
    }

    #[test]
    fn time_goes_by_weights() {
        near(&shares(&[load(100, 10_000, 0, 2), load(300, 1_000, 0, 2)]), &[0.25, 0.75]);
    }

    #[test]
    fn who_waits_for_its_own_work_is_waited_for() {
        near(&shares(&[load(100, 50_000, 0, 2), load(100, 9_000, 1_000, 1)]), &[0.5, 0.5]);
    }

    #[test]
    fn who_is_waited_for_pays_for_it() {
        // Five of every forty milliseconds is what it wants.
        let few = load(100, 5_000, 35_000, 1);
        let long = shares(&[load(100, 100_000, 0, 2), few]);
        assert!((0.45..0.55).contains(&long[0]) && long[1] > 0.06, "{long:?}");
    }

    #[test]
    fn nobody_is_waited_for_longer_than_a_batch_takes() {
        let short = shares(&[load(100, 10_000, 0, 2), load(100, 5_000, 35_000, 1)]);
        assert!(short[0] > 0.7 && short[1] > 0.08, "{short:?}");
    }

    #[test]
    fn what_one_leaves_the_other_has() {
        // It wants one part in twenty of the device and no more.
        let shares = shares(&[load(100, 10_000, 0, 2), load(100, 5_000, 95_000, 1)]);
        assert!(shares[0] > 0.94, "{shares:?}");
    }

    #[test]
    fn who_comes_late_has_no_claim_to_what_was_before() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        for ticket in 1..=10 {
            turns.ask(b"alice", 100, ticket, at(100 * ticket));
            assert_eq!(turns.next(at(100 * ticket)), Some(ticket), "she is alone");
            turns.over(&[ticket], at(100 * ticket + 90));
        }
        turns.ask(b"bob", 100, 11, at(1_100));
        assert_eq!(turns.next(at(1_100)), Some(11));
        let (alice, bob) = (turns.guests[0].had, turns.guests[1].had);
        assert!(alice - bob <= turns.guests[0].share(Duration::from_millis(90)), "{alice} and {bob}");
    }

    #[test]
    fn what_is_given_up_is_not_given() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.ask(b"alice", 100, 1, now);
        assert!(turns.give_up(1) && !turns.is_held());
        assert_eq!(turns.next(now), None);
        turns.ask(b"alice", 100, 2, now);
        assert_eq!(turns.next(now), Some(2));
        assert!(!turns.give_up(2), "the device has it");
    }

    #[test]
    fn who_comes_waits_for_few_batches_of_others() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let long = Duration::from_millis(50);
        turns.ask(b"bob", 100, 1, start);
        assert_eq!(turns.next(start), Some(1));
        turns.over(&[1], start + long);
        let now = start + Duration::from_secs(1);
        (2..=20).for_each(|ticket| turns.ask(b"alice", 100, ticket, now));
        assert_eq!(std::iter::from_fn(|| turns.next(now)).count() as u32, FEW, "he is not away");
        turns.over(&[2], now + long);
        assert_eq!(turns.next(now + long), Some(4), "another one");
        assert_eq!(turns.next(now + long), None);
        let now = now + AWAY;
        assert_eq!(std::iter::from_fn(|| turns.next(now)).count(), 16, "she is alone");
    }

    #[test]
    fn short_batches_are_as_many_as_there_are() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.ask(b"bob", 100, 1, now);
        turns.next(now);
        turns.over(&[1], now);
        let mut given = 0;
        // It is known after some that hers are short.
        for ticket in 2..=40 {
            turns.ask(b"alice", 100, ticket, now);
            assert_eq!(turns.next(now), Some(ticket));
            turns.over(&[ticket], now);
            given = ticket;
        }
        (given + 1..=given + 20).for_each(|ticket| turns.ask(b"alice", 100, ticket, now));
        assert_eq!(std::iter::from_fn(|| turns.next(now)).count(), 20);
    }

    #[test]
    fn looks_in_between_lose_no_time() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.ask(b"alice", 100, 1, start);
        assert_eq!(turns.next(start), Some(1));
        let at = |millis| start + Duration::from_millis(millis);
        (1..100).for_each(|millis| turns.over(&[99], at(millis)));
        turns.over(&[1], at(100));
        assert_eq!(turns.guests[0].had, 100_000_000, "a tenth of a second");
    }

    #[test]
    fn a_batch_that_does_not_end_is_charged_while_it_lasts() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.ask(b"alice", 100, 1, now);
        assert_eq!(turns.next(now), Some(1));
        turns.ask(b"bob", 100, 2, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(turns.next(later), Some(2));
        turns.ask(b"alice", 100, 3, later);
        assert_eq!(turns.next(later), None, "she has had a second");
    }
}
