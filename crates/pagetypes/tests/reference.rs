//! The types against a count from nothing: what is accepted, what is counted, what can be reached.

mod world;

use proptest::prelude::*;
use sluice_pagetypes::{Entry, Kind, Mfn, Old, Types};
use std::cell::RefCell;
use world::{FIRST, Hardware, Held, Recount, World};

const FRAMES: u64 = 12;
/// The last frame is the hypervisor's.
const HIDDEN: Mfn = Mfn(FIRST + FRAMES - 1);
/// Places in tables: the first and last of a line, the hypervisor's, the last.
const PLACES: [usize; 5] = [0, 7, 8, 260, 511];

#[derive(Clone, Debug)]
enum Step {
    /// The guest writes memory, if it can.
    Store(Mfn, usize, u64),
    Pin(Mfn, Kind),
    Unpin(Mfn),
    Update(Mfn, usize, u64, bool),
    Load(usize, Option<Mfn>),
    Descriptors(Mfn),
    ReleaseDescriptors,
    WriteDescriptor(Mfn, usize, u64),
    Semi(Vec<Mfn>, bool),
    GiveBack(Vec<Mfn>),
    /// So many frames, before this one.
    TakeAgain(usize, Option<Mfn>),
}

/// A frame; few of them are not the domain's.
fn frame() -> impl Strategy<Value = Mfn> {
    prop_oneof![20 => FIRST..FIRST + FRAMES, 1 => Just(FIRST - 1), 1 => Just(FIRST + FRAMES), 1 => Just(0u64)]
        .prop_map(Mfn)
}

fn place() -> impl Strategy<Value = usize> {
    prop::sample::select(&PLACES[..])
}

fn entry() -> impl Strategy<Value = u64> {
    let flags = prop_oneof![
        6 => Just(Entry::PRESENT | Entry::WRITE),
        4 => Just(Entry::PRESENT),
        1 => Just(Entry::WRITE),
        1 => Just(Entry::PRESENT | Entry::WRITE | Entry::LARGE),
        1 => Just(Entry::PRESENT | Entry::UNCACHED | Entry::USER | Entry::DIRTY),
    ];
    prop_oneof![1 => Just(0), 6 => (frame(), flags).prop_map(|(frame, flags)| Entry::new(frame, flags).bits())]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&Kind::ALL[..])
}

fn step() -> impl Strategy<Value = Step> {
    let descriptor = prop::sample::select(&[0, 0x00cf_fa00_0000_ffff, 0x0000_8c00_0000_ffff][..]);
    prop_oneof![
        4 => (frame(), place(), entry()).prop_map(|(frame, at, value)| Step::Store(frame, at, value)),
        6 => (frame(), kind()).prop_map(|(frame, kind)| Step::Pin(frame, kind)),
        3 => frame().prop_map(Step::Unpin),
        10 => (frame(), place(), entry(), any::<bool>()).prop_map(|(table, at, value, keep)| Step::Update(table, at, value, keep)),
        4 => (0usize..2, prop::option::weighted(0.8, frame())).prop_map(|(cpu, root)| Step::Load(cpu, root)),
        1 => frame().prop_map(Step::Descriptors),
        1 => Just(Step::ReleaseDescriptors),
        1 => (frame(), place(), descriptor).prop_map(|(frame, at, value)| Step::WriteDescriptor(frame, at, value)),
        2 => (prop::collection::vec(frame(), 0..4), any::<bool>()).prop_map(|(frames, semi)| Step::Semi(frames, semi)),
        2 => prop::collection::vec(frame(), 0..4).prop_map(Step::GiveBack),
        2 => (0usize..4, prop::option::weighted(0.3, frame())).prop_map(|(count, limit)| Step::TakeAgain(count, limit)),
    ]
}

struct Guest {
    types: Types,
    world: World,
    held: Held,
}

impl Guest {
    fn new(mischief: Vec<(usize, u64)>) -> Self {
        let mut types = Types::new(Mfn(FIRST), FRAMES as usize).unwrap();
        types.reserve(HIDDEN).unwrap();
        let hardware = Hardware { mischief, ..Hardware::new(FRAMES, &[HIDDEN]) };
        Self { types, world: World(RefCell::new(hardware)), held: Held::default() }
    }

    /// Whether what there is, and one more use, fits together.
    fn fits(&self, extra: (Mfn, Kind)) -> bool {
        Recount::of(&self.world.0.borrow(), &self.held, FRAMES, Some(extra)).is_some()
    }

    fn counts(&self, frame: Mfn) -> Option<sluice_pagetypes::Counts> {
        self.types.counts(frame).filter(|_| self.types.owns(frame))
    }

    fn is_table(&self, frame: Mfn) -> Option<Kind> {
        let counts = self.counts(frame)?;
        (counts.uses > 0 && counts.kind.is_table()).then_some(counts.kind)
    }

    /// What the reference says of a step that is about to be made.
    fn expects(&self, step: &Step) -> bool {
        match *step {
            Step::Store(..) | Step::ReleaseDescriptors => true,
            Step::Pin(frame, kind) => {
                kind.is_table() && !self.held.pinned.contains_key(&frame) && self.fits((frame, kind))
            }
            Step::Unpin(frame) => self.held.pinned.contains_key(&frame),
            Step::Update(table, at, value, _) => match self.is_table(table) {
                None => self.fits((table, Kind::Writable)),
                Some(Kind::L4) if at == 260 => false,
                Some(kind) => {
                    let old = Entry::from_bits_retain(self.world.0.borrow().word(table, at));
                    match Entry::from_bits_retain(value).adjusted(kind) {
                        None => false,
                        Some(new) if !new.contains(Entry::PRESENT) => true,
                        Some(new)
                            if old.contains(Entry::PRESENT)
                                && old.frame() == new.frame()
                                && (kind != Kind::L1 || old.is_writable() == new.is_writable()) =>
                        {
                            true
                        }
                        Some(new) => match kind.below() {
                            Some(below) => self.fits((new.frame(), below)),
                            None if new.is_writable() => self.fits((new.frame(), Kind::Writable)),
                            None => self.counts(new.frame()).is_some(),
                        },
                    }
                }
            },
            Step::Load(_, root) => root.is_none_or(|root| self.fits((root, Kind::L4))),
            Step::Descriptors(frame) => {
                let bad = |at: usize| {
                    self.world.0.borrow().word(frame, at) & 1 << 47 != 0
                        && self.world.0.borrow().word(frame, at) & 1 << 44 == 0
                };
                let both = |at: usize| {
                    let word = self.world.0.borrow().word(frame, at);
                    word & 1 << 47 != 0 && word & 1 << 43 != 0 && word >> 53 & 3 == 3
                };
                let known = self
                    .counts(frame)
                    .is_some_and(|counts| counts.uses > 0 && counts.kind == Kind::Descriptors);
                self.fits((frame, Kind::Descriptors))
                    && (known || !PLACES.iter().any(|at| bad(*at) || both(*at)))
            }
            Step::WriteDescriptor(frame, _, value) => {
                let writable = self.fits((frame, Kind::Writable))
                    || self.fits((frame, Kind::Descriptors)) && self.held.descriptors.contains(&frame);
                writable && value != 0x0000_8c00_0000_ffff
            }
            Step::Semi(ref frames, _) => frames.iter().all(|frame| self.counts(*frame).is_some()),
            Step::GiveBack(ref frames) => self.givable(frames) == frames.len(),
            Step::TakeAgain(count, limit) => {
                let before = |frame: &Mfn| limit.is_none_or(|limit| *frame < limit);
                self.held.given.keys().filter(|frame| before(frame)).count() >= count
            }
        }
    }

    /// How many of the frames can be given back before the first that cannot.
    fn givable(&self, frames: &[Mfn]) -> usize {
        let is_memory = |at: usize, frame: Mfn| {
            let counts = self.counts(frame).filter(|_| !frames[..at].contains(&frame));
            counts.is_some_and(|counts| !counts.semi) && self.fits((frame, Kind::Writable))
        };
        frames.iter().enumerate().take_while(|(at, frame)| is_memory(*at, **frame)).count()
    }

    /// Makes a step. Returns whether it was accepted.
    fn make(&mut self, step: Step) -> bool {
        let (types, world) = (&mut self.types, &mut self.world);
        match step {
            Step::Store(frame, at, value) => {
                let hardware = world.0.get_mut();
                hardware.fill();
                if hardware.can_write(frame) {
                    hardware.set(frame, at, value);
                }
                true
            }
            Step::Pin(frame, kind) => {
                let done = types.pin(world, frame, kind).is_ok();
                if done {
                    self.held.pinned.insert(frame, kind);
                }
                done
            }
            Step::Unpin(frame) => {
                self.held.pinned.remove(&frame);
                types.unpin(world, frame).is_ok()
            }
            Step::Update(table, at, value, keep) => {
                let before = if keep { Old::Noted } else { Old::Lost };
                types.update(world, table, at, value, before).is_ok()
            }
            Step::Load(cpu, root) => {
                if root.is_some_and(|root| types.hold_root(world, root).is_err()) {
                    return false;
                }
                let hardware = world.0.get_mut();
                let old = std::mem::replace(&mut hardware.roots[cpu], root);
                // A processor that is given another root keeps what it knows: worse than what it does.
                if let Some(old) = old {
                    types.release(world, old);
                }
                true
            }
            Step::Descriptors(frame) => {
                let done = types.hold_descriptors(world, frame).is_ok();
                if done {
                    self.held.descriptors.push(frame);
                }
                done
            }
            Step::ReleaseDescriptors => {
                if let Some(frame) = self.held.descriptors.pop() {
                    types.release(world, frame);
                }
                true
            }
            Step::WriteDescriptor(frame, at, value) => {
                types.write_descriptor(world, frame, at, value).is_ok()
            }
            Step::Semi(mut frames, semi) => types.set_semi(world, &mut frames, semi).is_ok(),
            Step::GiveBack(mut frames) => {
                let mut asked = frames.clone();
                let (done, result) = types.give_back(world, &mut frames);
                asked.truncate(done);
                frames.truncate(done);
                asked.sort();
                frames.sort();
                assert_eq!(frames, asked, "it took the first ones");
                frames.iter().for_each(|frame| self.held.give_back(types, *frame));
                result.is_ok()
            }
            Step::TakeAgain(count, limit) => {
                let mut frames = vec![Mfn(0); count];
                let done = types.take_again(world, &mut frames, limit);
                let lowest: Vec<Mfn> = self.held.given.keys().copied().take(done).collect();
                assert_eq!(frames[..done], lowest);
                assert!(limit.is_none_or(|limit| lowest.iter().all(|frame| *frame < limit)));
                self.held.take_again(world.0.get_mut(), &lowest);
                done == count
            }
        }
    }

    fn check(&mut self) {
        let hardware = self.world.0.get_mut();
        hardware.fill();
        hardware.check();
        for frame in &self.held.descriptors {
            assert!(!hardware.can_write(*frame), "{frame} of descriptors can be written");
        }
        self.held.check(hardware);
        assert_eq!(self.types.given_back(), self.held.given.len() as u64);
        let recount = Recount::of(hardware, &self.held, FRAMES, None);
        recount.expect("what is in use fits together").check(&self.types, hardware);
    }
}

/// PiBooster, 3.3: between semi-writable memory and page tables no IOMMU is flushed, and devices reach neither.
#[test]
fn page_tables_of_semi_writable_frames_cost_no_flush_of_an_iommu() {
    let tables = [Kind::L4, Kind::L3, Kind::L2, Kind::L1].map(|kind| (Mfn(FIRST + kind as u64), kind));
    let mut guest = Guest::new(Vec::new());
    let mut flushes = |semi: bool| {
        assert!(guest.make(Step::Semi(tables.map(|(frame, _)| frame).to_vec(), semi)));
        let before = guest.world.0.borrow().io_flushes;
        for (frame, kind) in tables {
            assert!(guest.make(Step::Pin(frame, kind)));
            guest.check();
        }
        for (frame, _) in tables {
            // Its memory is written before it is a table again: the frame changes its kind twice.
            assert!(guest.make(Step::Unpin(frame)) && guest.make(Step::Update(frame, 0, 0, false)));
            guest.check();
        }
        guest.world.0.borrow().io_flushes - before
    };
    assert_eq!([flushes(false), flushes(true), flushes(false)], [4, 0, 4]);
}

/// A batch costs one flush, however many frames it has.
#[test]
fn frames_become_semi_writable_at_one_flush() {
    let mut guest = Guest::new(Vec::new());
    let frames: Vec<Mfn> = (0..8).map(|frame| Mfn(FIRST + frame)).chain([Mfn(FIRST)]).collect();
    assert!(guest.make(Step::Semi(frames, true)));
    guest.check();
    assert_eq!(guest.world.0.borrow().io_flushes, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// What is accepted is what the reference accepts, and the counts are those of a count from nothing.
    #[test]
    fn agrees_with_a_count_from_nothing(steps in prop::collection::vec(step(), 1..80)) {
        let mut guest = Guest::new(Vec::new());
        for step in steps {
            let expected = guest.expects(&step);
            let text = format!("{step:?}");
            prop_assert_eq!(guest.make(step), expected, "{}", text);
            guest.check();
        }
    }

    /// While a frame is validated, processors and devices write wherever they still can: what was validated is what there is.
    #[test]
    fn nothing_can_be_written_while_it_is_validated(
        mischief in prop::collection::vec((place(), entry()), 1..4),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut guest = Guest::new(mischief);
        for step in steps {
            guest.make(step);
            guest.check();
        }
    }
}
