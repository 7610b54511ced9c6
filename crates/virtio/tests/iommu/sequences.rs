//! Random requests, beside a model that has what should be so.

use super::*;
use proptest::prelude::*;

/// What a random driver asks for.
#[derive(Clone, Debug)]
enum Ask {
    Attach { domain: u32, slot: u8 },
    Detach { domain: u32, slot: u8 },
    Map { domain: u32, pages: Range<u64>, gpa: u64, writable: bool },
    Unmap { domain: u32, pages: Range<u64> },
    Probe { slot: u8 },
}

impl Ask {
    fn bytes(&self) -> Vec<u8> {
        match self.clone() {
            Self::Attach { domain, slot } => attach(domain, endpoint(slot)),
            Self::Detach { domain, slot } => detach(domain, endpoint(slot)),
            Self::Map { domain, pages, gpa, writable } => {
                let flags = if writable { 3 } else { 1 };
                map_exactly(domain, [pages.start * PAGE, pages.end * PAGE - 1, gpa], flags)
            }
            Self::Unmap { domain, pages } => unmap(domain, pages),
            Self::Probe { slot } => probe(endpoint(slot)),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Ask),
    /// The device is told once, or until there is nothing more to do.
    Serve,
    Settle,
    /// The driver resets the device, and waits for it or does not.
    Reset {
        waits: bool,
    },
    Unplug(u8),
    Plug(u8),
    /// Most pages of a step: mapped, taken back, looked at.
    Limit(u64, usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (domain, slot) = (|| 0..3_u32, || 0..4_u8);
    let pages = || {
        let count = prop_oneof![4 => 1..4_u64, 2 => 500..530_u64, 1 => 530..2000_u64];
        (FIRST - 1..FIRST + 1200, count).prop_map(|(first, count)| first..first + count)
    };
    let gpa =
        prop_oneof![5 => 0..4096_u64, 1 => MEMORY / PAGE - 600..MEMORY / PAGE].prop_map(|page| page * PAGE);
    let ask = prop_oneof![
        4 => (domain(), slot()).prop_map(|(domain, slot)| Ask::Attach { domain, slot }),
        2 => (domain(), slot()).prop_map(|(domain, slot)| Ask::Detach { domain, slot }),
        8 => (domain(), pages(), gpa, any::<bool>())
            .prop_map(|(domain, pages, gpa, writable)| Ask::Map { domain, pages, gpa, writable }),
        4 => (domain(), pages()).prop_map(|(domain, pages)| Ask::Unmap { domain, pages }),
        1 => slot().prop_map(|slot| Ask::Probe { slot }),
    ];
    let seen = prop_oneof![Just(1000_u64), Just(8192), Just(SIZE)];
    prop_oneof![
        20 => ask.prop_map(Step::Ask),
        12 => Just(Step::Serve),
        2 => Just(Step::Settle),
        1 => any::<bool>().prop_map(|waits| Step::Reset { waits }),
        1 => slot().prop_map(Step::Unplug),
        1 => slot().prop_map(Step::Plug),
        1 => (1..600_u64, 1..600_usize, seen).prop_map(|(map, take, see)| Step::Limit(map, take, see)),
    ]
}

/// Tables for so many pages, of all devices.
const TABLES: usize = 3000;

/// What should be so when the requests so far are answered.
#[derive(Clone, Default)]
struct Plain {
    there: BTreeSet<u8>,
    open: BTreeSet<u8>,
    /// The device of each address space.
    attached: BTreeMap<u32, u8>,
    reach: Reach,
}

impl Plain {
    /// Does all of a request, or nothing. Returns its state.
    fn ask(&mut self, ask: &Ask) -> u8 {
        match ask.clone() {
            Ask::Probe { slot } if self.there.contains(&slot) => DONE,
            Ask::Probe { .. } => NO_ENTRY,
            Ask::Attach { domain, slot } => {
                let owner = self.attached.get(&domain).copied();
                if owner.is_some_and(|owner| owner != slot) {
                    return UNSUPPORTED;
                }
                if owner.is_none() {
                    self.reach.retain(|(of, _), _| *of != slot);
                }
                if !self.there.contains(&slot) {
                    return NO_ENTRY;
                }
                self.attached.retain(|_, of| *of != slot);
                self.attached.insert(domain, slot);
                self.open.insert(slot);
                DONE
            }
            Ask::Detach { domain, slot } if self.attached.get(&domain) == Some(&slot) => {
                self.attached.remove(&domain);
                self.reach.retain(|(of, _), _| *of != slot);
                DONE
            }
            Ask::Detach { .. } => INVALID,
            Ask::Map { domain, ref pages, .. } => match self.attached.get(&domain) {
                None => NO_ENTRY,
                Some(_) if pages.start < FIRST || pages.end > SIZE => OUT_OF_RANGE,
                Some(slot) if !self.open.contains(slot) => NO_ENTRY,
                Some(_) => {
                    let all = self.of(ask);
                    let fails = all.iter().zip(self.reach.len()..).find_map(|((at, (gpa, _)), before)| {
                        let bad = self.reach.contains_key(at) || *gpa >= MEMORY;
                        if bad { Some(INVALID) } else { (before >= TABLES).then_some(NO_MEMORY) }
                    });
                    if fails.is_none() {
                        self.reach.extend(all);
                    }
                    fails.unwrap_or(DONE)
                }
            },
            Ask::Unmap { domain, pages } => {
                let Some(slot) = self.attached.get(&domain) else { return NO_ENTRY };
                self.reach.retain(|(of, page), _| of != slot || !pages.contains(page));
                DONE
            }
        }
    }

    /// What a request would have a device reach.
    fn of(&self, ask: &Ask) -> Reach {
        let Ask::Map { domain, pages, gpa, writable } = ask else { return Reach::new() };
        let Some(slot) = self.attached.get(domain) else { return Reach::new() };
        let memory = (0..).map(|page| gpa + page * PAGE);
        pages.clone().zip(memory).map(|(page, gpa)| ((*slot, page), (gpa, *writable))).collect()
    }

    fn unplug(&mut self, slot: u8) {
        self.there.remove(&slot);
        self.open.remove(&slot);
        self.reach.retain(|(of, _), _| *of != slot);
    }
}

/// All of `a` is in `b`.
fn is_part(a: &Reach, b: &Reach) -> bool {
    a.iter().all(|(at, page)| b.get(at) == Some(page))
}

/// A guest, and what should be.
struct Pair {
    guest: Guest,
    plain: Plain,
    asked: VecDeque<Ask>,
    /// A device went or came while a request was not answered: it may have failed before for another reason.
    disturbed: bool,
    /// What may be reached still, since it was before a reset.
    rest: Option<Reach>,
}

impl Pair {
    fn new() -> Self {
        let mut guest = Guest::new();
        guest.behind.room = TABLES;
        let plain = Plain { there: guest.behind.there.clone(), ..Plain::default() };
        Self { guest, plain, asked: VecDeque::new(), disturbed: false, rest: None }
    }

    /// Tells the device of requests, and compares what came of it. Returns whether there is more to do.
    fn serve(&mut self) -> bool {
        let more = self.guest.serve().expect("the driver breaks no rule").more;
        let waiting = self.asked.len();
        while let Some(answer) = self.guest.answer() {
            let ask = self.asked.pop_front().expect("an answer answers a request");
            let len = if matches!(ask, Ask::Probe { .. }) { LONG } else { SHORT };
            assert_eq!(answer.len(), len as usize);
            let (state, expected) = (answer[answer.len() - 4], self.plain.ask(&ask));
            assert_eq!(state == DONE, expected == DONE, "{ask:?}");
            assert!(state == expected || self.disturbed, "{ask:?}: {state}, not {expected}");
            self.disturbed = false;
        }
        let reach = &self.guest.behind.reach;
        if let Some(rest) = self.rest.take()
            && waiting == self.asked.len()
            && more
            && is_part(reach, &rest)
        {
            self.rest = Some(reach.clone());
            return true;
        }
        let Some(next) = self.asked.front() else {
            assert!(!more && *reach == self.plain.reach, "what is answered is done");
            return false;
        };
        assert!(more, "{next:?} is not answered");
        // It may be done in part: nothing else is reached, and nothing is lost that stays.
        let mut after = self.plain.clone();
        after.ask(next);
        let mut most = self.plain.reach.clone();
        most.extend(self.plain.of(next).into_iter().filter(|(at, _)| !self.plain.reach.contains_key(at)));
        assert!(is_part(reach, &most), "{next:?} maps what is not in it");
        after.reach.retain(|at, _| self.plain.reach.contains_key(at));
        assert!(is_part(&after.reach, reach), "{next:?} takes back what is not in it");
        true
    }

    fn reset(&mut self, waits: bool) {
        self.guest.reset();
        self.asked.clear();
        self.plain.attached.clear();
        self.plain.reach.clear();
        self.disturbed = false;
        self.rest = Some(self.guest.behind.reach.clone());
        for calls in (0..10_000).take_while(|_| waits) {
            (self.guest.behind.mapped, self.guest.behind.steps) = (0, 0);
            let more = self.guest.iommu.leave(&mut self.guest.behind);
            assert!(calls < 9_999 && self.guest.behind.steps <= AT_ONCE, "it has no bound");
            assert_eq!(self.guest.behind.mapped, 0);
            if !more {
                assert!(self.guest.behind.reach.is_empty(), "something is left of before");
                self.rest = None;
                break;
            }
        }
        self.guest.start();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(ask) => {
                if self.guest.free.is_empty() {
                    while self.serve() {}
                }
                self.guest.send(&ask.bytes(), if matches!(ask, Ask::Probe { .. }) { LONG } else { SHORT });
                self.asked.push_back(ask);
            }
            Step::Serve => drop(self.serve()),
            Step::Settle => while self.serve() {},
            Step::Reset { waits } => self.reset(waits),
            Step::Unplug(slot) => {
                self.plain.unplug(slot);
                self.guest.behind.unplug(slot);
                self.disturbed = !self.asked.is_empty();
            }
            Step::Plug(slot) => {
                self.plain.there.insert(slot);
                self.guest.behind.there.insert(slot);
                self.disturbed = !self.asked.is_empty();
            }
            Step::Limit(mapped, taken, seen) => {
                let behind = &mut self.guest.behind;
                (behind.mapped_at_once, behind.taken_at_once, behind.seen_at_once) = (mapped, taken, seen);
            }
        }
    }
}

proptest! {
    #[test]
    fn devices_reach_what_was_mapped_for_them_and_nothing_else(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
        while pair.serve() {}
    }
}
