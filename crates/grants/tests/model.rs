//! Whatever is issued and revoked, in whatever order and however wrongly: the peer sees what a plain table says, no page is unpinned that
//! somebody may still reach, a page in use is taken back only by force, and the status words say what is granted.

use proptest::prelude::*;
use sluice_grants::status::{GRANTED, Word};
use sluice_grants::{Batch, Error, Grant, MAX_BATCH, MAX_SIZE, Operation, Peer, Space};
use sluice_memory::{Hpa, PAGE_SIZE, PhysicalMemory, TableFrames};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Memory for tables: how many frames are out, and how many may be.
#[derive(Clone, Default)]
struct Tables(Rc<RefCell<Words>>);

#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    used: BTreeSet<u64>,
    next: u64,
    limit: usize,
}

impl Tables {
    fn new(limit: usize) -> Self {
        let tables = Self::default();
        tables.0.borrow_mut().limit = limit;
        tables
    }

    fn out(&self) -> usize {
        self.0.borrow().used.len()
    }
}

impl PhysicalMemory for Tables {
    fn read(&self, _: Hpa, _: &mut [u8]) {
        unreachable!("tables are read by the word");
    }
    fn write(&self, _: Hpa, _: &[u8]) {
        unreachable!("tables are written by the word");
    }
    fn fill(&self, _: Hpa, _: u64, _: u8) {
        unreachable!("tables come cleared");
    }
    fn read_u64(&self, at: Hpa) -> u64 {
        assert!(self.0.borrow().used.contains(&(at.as_u64() & !0xfff)), "{at} is no table in use");
        self.0.borrow().words.get(&at.as_u64()).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.0.borrow_mut().words.insert(at.as_u64(), value);
    }
}

impl TableFrames for Tables {
    fn allocate_table(&mut self) -> Option<Hpa> {
        let mut tables = self.0.borrow_mut();
        if tables.used.len() >= tables.limit {
            return None;
        }
        tables.next += PAGE_SIZE;
        let frame = tables.next;
        tables.used.insert(frame);
        Some(Hpa::new(frame))
    }
    fn free_table(&mut self, frame: Hpa) {
        let mut tables = self.0.borrow_mut();
        assert!(tables.used.remove(&frame.as_u64()), "{frame} is given back twice");
        tables.words.retain(|at, _| at & !0xfff != frame.as_u64());
    }
}

/// A peer that remembers whatever it ever could reach until it is told to forget.
#[derive(Default)]
struct Window {
    shown: BTreeMap<u32, Grant>,
    /// What may still be reached.
    cached: BTreeSet<u64>,
    hidden: Vec<u64>,
    pins: BTreeMap<u64, u32>,
    words: BTreeMap<u32, Rc<Cell<u64>>>,
    keeps_status: bool,
    flushes: u32,
    /// Shows so many pages more.
    room: u32,
}

struct Status(Rc<Cell<u64>>);

impl Word for Status {
    fn load(&self) -> Option<u64> {
        Some(self.0.get())
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        let same = self.0.get() == old;
        if same {
            self.0.set(new);
        }
        same
    }
}

impl Peer for Window {
    type Word = Status;

    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        self.room = self.room.checked_sub(1).ok_or(Error::OutOfMemory)?;
        assert!(self.shown.insert(reference, grant).is_none(), "{reference} is shown twice");
        *self.pins.entry(grant.frame.as_u64()).or_default() += 1;
        self.cached.insert(grant.frame.as_u64());
        Ok(())
    }

    fn widen(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        self.room = self.room.checked_sub(1).ok_or(Error::OutOfMemory)?;
        assert_eq!(self.shown.insert(reference, grant), Some(Grant { writable: false, ..grant }));
        Ok(())
    }

    fn hide(&mut self, reference: u32, grant: Grant) {
        assert_eq!(self.shown.remove(&reference), Some(grant));
        self.hidden.push(grant.frame.as_u64());
    }

    fn forget(&mut self) {
        self.flushes += 1;
        self.cached = self.shown.values().map(|grant| grant.frame.as_u64()).collect();
        for frame in self.hidden.drain(..) {
            let pins = self.pins.get_mut(&frame).expect("it is pinned");
            *pins -= 1;
            assert!(*pins > 0 || !self.cached.contains(&frame), "{frame:#x} is unpinned and can be reached");
        }
    }

    fn word(&self, reference: u32) -> Option<Status> {
        self.keeps_status.then(|| Status(self.words.get(&reference).cloned().unwrap_or_default()))
    }
}

impl Window {
    fn new(size: u32, room: u32, keeps_status: bool) -> Self {
        let words = (0..size).map(|reference| (reference, Rc::default())).collect();
        Self { words, keeps_status, room, ..Self::default() }
    }

    fn word_of(&self, reference: u32) -> u64 {
        self.words.get(&reference).map_or(0, |word| word.get())
    }

    fn set(&self, reference: u32, word: u64) {
        if let Some(cell) = self.words.get(&reference) {
            cell.set(word);
        }
    }
}

const SIZE: u32 = 600;

fn operation() -> impl Strategy<Value = Operation> {
    let reference = prop_oneof![8 => 0..12u32, 1 => SIZE - 2..SIZE + 2, 1 => any::<u32>()];
    let frame = prop_oneof![8 => (0..6u64).prop_map(|page| Hpa::new(0x100_0000 + page * PAGE_SIZE)), 1 => Just(Hpa::new(0x123))];
    let grant = (frame, any::<bool>()).prop_map(|(frame, writable)| Grant { frame, writable });
    let issue = (reference.clone(), proptest::option::weighted(0.9, grant))
        .prop_map(|(reference, grant)| Operation::Issue(reference, grant));
    let revoke =
        (reference, any::<bool>()).prop_map(|(reference, forced)| Operation::Revoke { reference, forced });
    prop_oneof![issue, revoke]
}

/// What the peer does in between: it writes a status word.
type Use = Option<(u32, u64)>;

/// What the plain table says of one operation.
fn expect(
    table: &mut BTreeMap<u32, Grant>,
    window: &Window,
    operation: Operation,
    room: &mut u32,
) -> Result<(), Error> {
    let reference = match operation {
        Operation::Issue(reference, _) | Operation::Revoke { reference, .. } => reference,
    };
    if reference >= SIZE {
        return Err(Error::NoReference);
    }
    match operation {
        Operation::Issue(..) if table.get(&reference).is_some_and(|old| old.writable) => Err(Error::Taken),
        Operation::Issue(_, grant) => {
            if let (Some(old), Some(grant)) = (table.get(&reference), grant)
                && (old.frame != grant.frame || !grant.writable)
            {
                return Err(Error::Taken);
            }
            let grant = grant.filter(|grant| grant.frame.is_aligned(PAGE_SIZE)).ok_or(Error::NoPage)?;
            *room = room.checked_sub(1).ok_or(Error::OutOfMemory)?;
            table.insert(reference, grant);
            Ok(())
        }
        Operation::Revoke { forced, .. } => {
            if !table.contains_key(&reference) {
                return Err(Error::Absent);
            }
            if window.keeps_status && !forced && window.word_of(reference) & 0xffff_ffff != 0 {
                return Err(Error::Busy);
            }
            table.remove(&reference);
            Ok(())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_space_does_what_a_plain_table_does(
        calls in proptest::collection::vec((proptest::collection::vec(operation(), 1..12), proptest::option::of((0..12u32, any::<u64>()))), 1..30),
        keeps_status in any::<bool>(),
        room in 0..60u32,
    ) {
        let tables = Tables::new(usize::MAX);
        let mut space = Space::new(tables.clone(), SIZE).unwrap();
        let mut window = Window::new(SIZE, room, keeps_status);
        let (mut table, mut room) = (BTreeMap::new(), room);
        for (operations, used) in calls {
            let used: Use = used;
            if let Some((reference, word)) = used {
                // A peer writes what it likes, also the bit that is not its own.
                window.set(reference, word);
            }
            let (mut done, mut failed) = (0, None);
            for operation in &operations {
                match expect(&mut table, &window, *operation, &mut room) {
                    Ok(()) => done += 1,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let expected = match failed {
                Some(error) if done == 0 => Err(error),
                _ => Ok(done),
            };
            let flushes = window.flushes;
            let batch = |index: u64| operations.get(index as usize).copied();
            prop_assert_eq!(space.carry_out(&mut window, &batch, operations.len() as u64), expected);
            prop_assert_eq!(window.flushes, flushes + 1);
            prop_assert_eq!(&window.shown, &table);
            prop_assert_eq!(space.live() as usize, table.len());
            let reached: BTreeSet<u64> = table.values().map(|grant| grant.frame.as_u64()).collect();
            prop_assert_eq!(&window.cached, &reached);
            let pinned: u32 = window.pins.values().sum();
            prop_assert_eq!(pinned as usize, table.len());
            let mut seen = BTreeMap::new();
            space.visit(|reference, grant| _ = seen.insert(reference, grant));
            prop_assert_eq!(&seen, &table);
            for operation in &operations[..done as usize] {
                let (Operation::Issue(reference, _) | Operation::Revoke { reference, .. }) = *operation;
                prop_assert_eq!(space.lookup(reference), Ok(table.get(&reference).copied()));
                if keeps_status {
                    prop_assert_eq!(window.word_of(reference) & GRANTED != 0, table.contains_key(&reference));
                }
            }
        }
        let mut left = BTreeMap::new();
        prop_assert!(space.clear(|reference, grant| _ = left.insert(reference, grant)));
        prop_assert_eq!(left, table);
        prop_assert_eq!((space.live(), space.lookup(0)), (0, Ok(None)));
        drop(space);
        prop_assert_eq!(tables.out(), 0);
    }
}

fn page(number: u64) -> Option<Grant> {
    Some(Grant { frame: Hpa::new(number * PAGE_SIZE), writable: true })
}

fn issue(reference: u32) -> impl Batch {
    move |_| Some(Operation::Issue(reference, page(9)))
}

fn revoke(reference: u32, forced: bool) -> impl Batch {
    move |_| Some(Operation::Revoke { reference, forced })
}

#[test]
fn a_page_in_use_is_taken_back_by_force_only() {
    let mut space = Space::new(Tables::new(usize::MAX), SIZE).unwrap();
    let mut window = Window::new(SIZE, 9, true);
    assert_eq!(space.carry_out(&mut window, &issue(3), 1), Ok(1));
    assert_eq!(window.word_of(3), GRANTED);
    window.set(3, GRANTED | 2);
    assert_eq!(space.carry_out(&mut window, &revoke(3, false), 1), Err(Error::Busy));
    assert_eq!((window.word_of(3), window.shown.len()), (GRANTED | 2, 1));
    assert_eq!(space.carry_out(&mut window, &revoke(3, true), 1), Ok(1));
    // The peer counts itself out later, and finds what it left.
    assert_eq!((window.word_of(3), window.shown.len()), (2, 0));
}

/// A word that is never what it was: a peer that writes it all the time.
struct Restless(Cell<u64>);

impl Word for Restless {
    fn load(&self) -> Option<u64> {
        self.0.set(self.0.get() + 1);
        Some(GRANTED)
    }
    fn replace(&self, _: u64, _: u64) -> bool {
        false
    }
}

#[test]
fn a_word_that_never_stands_still_holds_nobody_up() {
    use sluice_grants::status::{close, open};
    let word = Restless(Cell::new(0));
    assert!(!close(&word, false));
    assert!(close(&word, true));
    open(&word);
    assert!(word.0.get() <= 48);
}

#[test]
fn a_call_moves_so_many_references_and_no_more() {
    let mut space = Space::new(Tables::new(usize::MAX), MAX_SIZE).unwrap();
    let mut window = Window::new(0, u32::MAX, false);
    let all = |index: u64| Some(Operation::Issue(index as u32, page(index)));
    assert_eq!(space.carry_out(&mut window, &all, u64::MAX), Ok(MAX_BATCH));
    assert_eq!(space.live(), MAX_BATCH as u32);
}

#[test]
fn without_memory_for_tables_nothing_is_granted() {
    assert!(Space::new(Tables::new(0), SIZE).is_none());
    assert!(Space::new(Tables::new(9), 0).is_none());
    assert!(Space::new(Tables::new(9), MAX_SIZE + 1).is_none());
    for limit in 1..4 {
        let mut space = Space::new(Tables::new(limit), SIZE).unwrap();
        let mut window = Window::new(SIZE, 9, false);
        assert_eq!(space.carry_out(&mut window, &issue(0), 1), Err(Error::OutOfMemory), "{limit}");
        assert_eq!((space.live(), window.shown.len(), space.lookup(0)), (0, 0, Ok(None)));
    }
}
