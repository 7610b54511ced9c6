//! Every short sequence of what two processors and a device of a guest can do, from a guest that runs.
//!
//! Each processor has a root of its own and reads by it all the time. The exploration is exhaustive up to its depth.

mod world;

use sluice_pagetypes::{Entry, Kind, Mfn, Old, Types};
use stateright::{Checker, Model, Property};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{FIRST, Hardware, Held, Recount, World};

const FRAMES: u64 = 6;
const HIDDEN: Mfn = Mfn(FIRST + 5);

fn at(index: u64) -> Mfn {
    Mfn(FIRST + index)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Update(Mfn, u64),
    Store(Mfn, u64),
    Pin(Mfn, Kind),
    Unpin(Mfn),
    Load(usize, Option<Mfn>),
    Semi(Mfn, bool),
    GiveBack(Mfn),
    TakeAgain,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    types: Types,
    hardware: Hardware,
    held: Held,
    /// A check failed on the way here.
    broken: bool,
}

struct Guest {
    semi: bool,
}

impl State {
    fn make(&mut self, action: &Action) {
        let mut world = World(RefCell::new(self.hardware.clone()));
        let types = &mut self.types;
        // What is refused is as good a step as what is done: nothing may come of either.
        match *action {
            Action::Update(table, value) => {
                let _ = types.update(&mut world, table, 0, value, Old::Lost);
            }
            Action::Store(frame, value) => world.0.get_mut().set(frame, 0, value),
            Action::Pin(frame, kind) => {
                if types.pin(&mut world, frame, kind).is_ok() {
                    self.held.pinned.insert(frame, kind);
                }
            }
            Action::Unpin(frame) => {
                if types.unpin(&mut world, frame).is_ok() {
                    self.held.pinned.remove(&frame);
                }
            }
            Action::Load(cpu, root) => {
                if root.is_none_or(|root| types.hold_root(&mut world, root).is_ok()) {
                    let old = std::mem::replace(&mut world.0.get_mut().roots[cpu], root);
                    old.into_iter().for_each(|old| types.release(&mut world, old));
                }
            }
            Action::Semi(frame, semi) => {
                let _ = types.set_semi(&mut world, &mut [frame], semi);
            }
            Action::GiveBack(frame) => {
                if types.give_back(&mut world, &mut [frame]).1.is_ok() {
                    self.held.give_back(types, frame);
                }
            }
            Action::TakeAgain => {
                let mut frame = [Mfn(0)];
                let done = types.take_again(&mut world, &mut frame, None);
                self.held.take_again(world.0.get_mut(), &frame[..done]);
            }
        }
        self.hardware = world.0.into_inner();
        // Flushes are not part of what is explored.
        self.hardware.io_flushes = 0;
        self.hardware.fill();
        self.hardware.check();
        self.held.check(&self.hardware);
        let recount = Recount::of(&self.hardware, &self.held, FRAMES, None);
        recount.expect("what is in use fits together").check(&self.types, &self.hardware);
    }
}

impl Model for Guest {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut types = Types::new(at(0), FRAMES as usize).unwrap();
        types.reserve(HIDDEN).unwrap();
        let mut state =
            State { types, hardware: Hardware::new(FRAMES, &[HIDDEN]), held: Held::default(), broken: false };
        for table in 0..4 {
            state.make(&Action::Store(
                at(table),
                Entry::new(at(table + 1), Entry::PRESENT | Entry::WRITE).bits(),
            ));
        }
        for frame in 0..5 {
            state.make(&Action::Semi(at(frame), self.semi));
        }
        state.make(&Action::Load(0, Some(at(0))));
        assert_eq!(state.types.counts(at(4)).map(|counts| counts.uses), Some(1), "the guest runs");
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let entries = || {
            let of = |frame| {
                [Entry::PRESENT, Entry::PRESENT | Entry::WRITE].map(|flags| Entry::new(frame, flags).bits())
            };
            [0].into_iter().chain((0..FRAMES).flat_map(move |frame| of(at(frame))))
        };
        for frame in (0..FRAMES).map(at) {
            actions.extend(entries().map(|value| Action::Update(frame, value)));
            if state.hardware.can_write(frame) {
                actions.extend(entries().map(|value| Action::Store(frame, value)));
            }
            actions.extend([Kind::L1, Kind::L2, Kind::L3, Kind::L4].map(|kind| Action::Pin(frame, kind)));
            actions.push(Action::Unpin(frame));
            actions.extend([0, 1].map(|cpu| Action::Load(cpu, Some(frame))));
            actions.extend([false, true].map(|semi| Action::Semi(frame, semi)));
            actions.push(Action::GiveBack(frame));
        }
        actions.push(Action::TakeAgain);
        actions.extend([0, 1].map(|cpu| Action::Load(cpu, None)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let made = catch_unwind(AssertUnwindSafe(|| state.make(&action)));
        if made.is_err() {
            return Some(State { broken: true, ..last.clone() });
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing that must not be written can be", |_, state: &State| !state.broken)]
    }
}

/// Three steps deep from a guest that runs, with memory of both sorts.
#[test]
fn no_sequence_of_steps_makes_a_table_writable() {
    for semi in [false, true] {
        let checker = Guest { semi }.checker().threads(2).target_max_depth(4).spawn_bfs().join();
        println!("{} states, {} different", checker.state_count(), checker.unique_state_count());
        assert!(checker.unique_state_count() > 1000, "the guest can do something");
        checker.assert_properties();
    }
}
