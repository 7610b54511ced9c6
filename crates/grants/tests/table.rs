//! Whatever a granter writes into its table and its peer asks for, in whatever order: the peer sees what was permitted when it was mapped, an entry says that it
//! is used for as long as its page can be reached, and a granter that finds it unused may use the page for something else.

mod common;

use common::{Status, Tables, Window};
use proptest::prelude::*;
use sluice_grants::status::Word;
use sluice_grants::table::{PERMIT, READ_ONLY, Table, USED, Use};
use sluice_grants::{Error, Grant, MAX_BATCH, Peer, Space};
use sluice_memory::{Hpa, PAGE_SIZE};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

const SIZE: u32 = 16;
/// Pages of the granter.
const PAGES: u64 = 6;
/// Where its memory is.
const MEMORY: u64 = 0x100_0000;

#[derive(Default)]
struct Entries(BTreeMap<u32, Rc<Cell<u64>>>);

impl Entries {
    fn new() -> Self {
        Self((0..SIZE).map(|reference| (reference, Rc::default())).collect())
    }

    fn get(&self, reference: u32) -> u64 {
        self.0[&reference].get()
    }

    fn set(&self, reference: u32, entry: u64) {
        self.0[&reference].set(entry);
    }
}

impl Table for Entries {
    type Entry = Status;

    fn entry(&self, reference: u32) -> Status {
        Status { word: self.0[&reference].clone(), address: None }
    }

    fn frame(&self, page: u64) -> Option<Hpa> {
        (page < PAGES * PAGE_SIZE).then(|| Hpa::new(MEMORY + page))
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The granter writes an entry, as it may or not.
    Write(u32, u64),
    Map(Vec<Use>),
    Unmap(Vec<u32>),
    Copy(Use),
    /// The peer is gone, with all it had mapped.
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    let reference = || prop_oneof![9 => 0..SIZE, 1 => any::<u32>()];
    let entry = (0..PAGES + 1, 0..16u64).prop_map(|(page, flags)| (page * PAGE_SIZE) | flags);
    let some = move || (reference(), any::<bool>()).prop_map(|(reference, writes)| Use { reference, writes });
    prop_oneof![
        6 => (0..SIZE, entry).prop_map(|(reference, entry)| Step::Write(reference, entry)),
        4 => proptest::collection::vec(some(), 1..6).prop_map(Step::Map),
        3 => proptest::collection::vec(reference(), 1..6).prop_map(Step::Unmap),
        2 => some().prop_map(Step::Copy),
        1 => Just(Step::Lose),
    ]
}

/// What an entry gives for a use.
fn permitted(entry: u64, writes: bool) -> Result<u64, Error> {
    if entry & PERMIT == 0 {
        Err(Error::Absent)
    } else if writes && entry & READ_ONLY != 0 {
        Err(Error::ReadOnly)
    } else if entry & 0xff8 != 0 {
        Err(Error::NoPage)
    } else {
        Ok(entry & !0xfff)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_peer_sees_what_was_permitted(steps in proptest::collection::vec(step(), 1..60), room in 0..40u32) {
        let tables = Tables::new(usize::MAX);
        let mut space = Space::new(tables.clone(), SIZE).unwrap();
        let mut window = Window::new(SIZE, room, false);
        let entries = Entries::new();
        let (mut mapped, mut room) = (BTreeMap::<u32, Grant>::new(), room);
        for step in steps {
            match step {
                Step::Write(reference, entry) => entries.set(reference, entry),
                Step::Map(uses) => {
                    let mut expected = Ok(0);
                    for (done, Use { reference, writes }) in (0..).zip(&uses) {
                        let found = if *reference >= SIZE {
                            Err(Error::NoReference)
                        } else if mapped.contains_key(reference) {
                            Err(Error::Taken)
                        } else {
                            permitted(entries.get(*reference), *writes)
                        };
                        let found = found.and_then(|page| entries.frame(page).ok_or(Error::NoPage));
                        let found = found.and_then(|frame| {
                            room = room.checked_sub(1).ok_or(Error::OutOfMemory)?;
                            Ok(frame)
                        });
                        match found {
                            Ok(frame) => _ = mapped.insert(*reference, Grant { frame, writable: *writes }),
                            Err(error) => {
                                expected = if done == 0 { Err(error) } else { expected };
                                break;
                            }
                        }
                        expected = Ok(done + 1);
                    }
                    let list = |index: u64| uses.get(index as usize).copied();
                    prop_assert_eq!(space.map(&mut window, &entries, list, uses.len() as u64), expected);
                }
                Step::Unmap(references) => {
                    let gone = references.iter().take_while(|reference| mapped.remove(reference).is_some()).count();
                    let list = |index: u64| references.get(index as usize).copied();
                    let done = space.unmap(&mut window, &entries, list, references.len() as u64);
                    prop_assert_eq!(done.unwrap_or(0), gone as u64);
                    prop_assert!(done.is_ok() || gone == 0);
                    for reference in &references[..gone] {
                        prop_assert_eq!(entries.get(*reference) & USED, 0);
                    }
                }
                Step::Copy(wanted) => {
                    let mut copied = None;
                    let done = space.use_once(&entries, wanted, |page| {
                        copied = Some(page);
                        Ok(())
                    });
                    if wanted.reference < SIZE {
                        let expected = permitted(entries.get(wanted.reference), wanted.writes);
                        prop_assert_eq!((done.err(), copied), (expected.err(), expected.ok()));
                    } else {
                        prop_assert_eq!(done, Err(Error::NoReference));
                    }
                }
                Step::Lose => {
                    window.shown.clear();
                    window.pins.clear();
                    window.cached.clear();
                    space.let_go(&entries);
                    for reference in mapped.keys() {
                        prop_assert_eq!(entries.get(*reference) & USED, 0);
                    }
                    mapped.clear();
                }
            }
            prop_assert_eq!(&window.shown, &mapped);
            prop_assert_eq!(space.live() as usize, mapped.len());
        }
        drop(space);
        prop_assert_eq!(tables.out(), 0);
    }

    #[test]
    fn what_is_mapped_is_used_until_it_is_unmapped(order in Just((0..SIZE).collect::<Vec<u32>>()).prop_shuffle()) {
        let mut space = Space::new(Tables::new(usize::MAX), SIZE).unwrap();
        let mut window = Window::new(SIZE, SIZE, false);
        let entries = Entries::new();
        (0..SIZE).for_each(|reference| entries.set(reference, PERMIT | (u64::from(reference) % PAGES * PAGE_SIZE)));
        let all = |index: u64| Some(Use { reference: index as u32, writes: true });
        prop_assert_eq!(space.map(&mut window, &entries, all, SIZE.into()), Ok(SIZE.into()));
        for (done, reference) in order.iter().enumerate() {
            prop_assert!(order[done..].iter().all(|reference| entries.get(*reference) & USED != 0));
            // A copy does not end the use of what is mapped.
            let wanted = Use { reference: *reference, writes: true };
            prop_assert_eq!(space.use_once(&entries, wanted, |_| Ok(())), Ok(()));
            prop_assert!(entries.get(*reference) & USED != 0);
            prop_assert_eq!(space.unmap(&mut window, &entries, |_| Some(*reference), 1), Ok(1));
        }
    }
}

/// A peer whose processors know pages until they are told to forget them.
struct Knowing<'a> {
    window: Window,
    entries: &'a Entries,
    hidden: Vec<u32>,
}

impl Peer for Knowing<'_> {
    type Word = Status;

    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        self.window.show(reference, grant)
    }
    fn widen(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        self.window.widen(reference, grant)
    }
    fn hide(&mut self, reference: u32, grant: Grant) {
        self.hidden.push(reference);
        self.window.hide(reference, grant);
    }
    fn forget(&mut self) {
        for reference in self.hidden.drain(..) {
            assert!(self.entries.get(reference) & USED != 0, "{reference} is known and free");
        }
        self.window.forget();
    }
    fn word(&self, reference: u32) -> Option<Status> {
        self.window.word(reference)
    }
}

#[test]
fn an_entry_is_let_go_once_the_page_is_forgotten() {
    let mut space = Space::new(Tables::new(usize::MAX), SIZE).unwrap();
    let entries = Entries::new();
    (0..SIZE).for_each(|reference| entries.set(reference, PERMIT));
    let mut peer = Knowing { window: Window::new(SIZE, SIZE, false), entries: &entries, hidden: Vec::new() };
    let all = |index: u64| Some(Use { reference: index as u32, writes: true });
    assert_eq!(space.map(&mut peer, &entries, all, SIZE.into()), Ok(SIZE.into()));
    assert_eq!(space.unmap(&mut peer, &entries, |index| Some(index as u32), SIZE.into()), Ok(SIZE.into()));
}

/// An entry that its granter changes all the time.
struct Restless(Cell<u64>);

impl Word for &Restless {
    fn load(&self) -> Option<u64> {
        self.0.set(self.0.get() + 1);
        Some(PERMIT | self.0.get() << 12)
    }
    fn replace(&self, _: u64, _: u64) -> bool {
        false
    }
}

impl<'a> Table for &'a Restless {
    type Entry = &'a Restless;

    fn entry(&self, _: u32) -> &'a Restless {
        self
    }
    fn frame(&self, _: u64) -> Option<Hpa> {
        panic!("it was never permitted");
    }
}

#[test]
fn an_entry_that_never_stands_still_holds_nobody_up() {
    let mut space = Space::new(Tables::new(usize::MAX), SIZE).unwrap();
    let mut window = Window::new(SIZE, 9, false);
    let restless = Restless(Cell::new(0));
    let all = |index: u64| Some(Use { reference: index as u32, writes: false });
    assert_eq!(space.map(&mut window, &&restless, all, 1), Err(Error::Busy));
    assert!(restless.0.get() <= 64);
}

#[test]
fn a_call_maps_so_many_pages_and_no_more() {
    let mut space = Space::new(Tables::new(usize::MAX), 1024).unwrap();
    let mut window = Window::new(0, u32::MAX, false);
    struct All;
    impl Table for All {
        type Entry = Status;
        fn entry(&self, _: u32) -> Status {
            Status { word: Rc::new(Cell::new(PERMIT)), address: None }
        }
        fn frame(&self, _: u64) -> Option<Hpa> {
            Some(Hpa::new(MEMORY))
        }
    }
    let all = |index: u64| Some(Use { reference: index as u32, writes: true });
    assert_eq!(space.map(&mut window, &All, all, u64::MAX), Ok(MAX_BATCH));
    let references = |index: u64| Some(index as u32);
    assert_eq!(space.unmap(&mut window, &All, references, u64::MAX), Ok(MAX_BATCH));
    assert_eq!(space.live(), 0);
}
