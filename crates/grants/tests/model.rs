//! Whatever is issued and revoked, in whatever order and however wrongly: the peer sees what a plain table says, no page is unpinned that
//! somebody may still reach, a page in use is taken back only by force, and the status words say what is granted.

mod common;

use common::{Tables, Window};
use proptest::prelude::*;
use sluice_grants::status::{GRANTED, Word};
use sluice_grants::{Batch, Error, Grant, MAX_BATCH, MAX_SIZE, Operation, Peer, Space};
use sluice_memory::{Hpa, PAGE_SIZE};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const SIZE: u32 = 600;

impl Window {
    fn word_of(&self, reference: u32) -> u64 {
        self.words.get(&reference).map_or(0, |word| word.get())
    }

    fn set(&self, reference: u32, word: u64) {
        if let Some(cell) = self.words.get(&reference) {
            cell.set(word);
        }
    }

    /// A window whose peer programs devices by addresses.
    fn with_addresses(self) -> Self {
        let addresses = self.words.keys().map(|reference| (*reference, Rc::default())).collect();
        Self { addresses: Some(addresses), ..self }
    }

    /// What is written beside the word of a reference.
    fn address_of(&self, reference: u32) -> Option<u64> {
        self.addresses.as_ref()?.get(&reference).map(|address| address.get())
    }
}

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
            // Force does not stop a device that works by the address.
            let forced = forced && window.addresses.is_none();
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
        (keeps_status, addresses) in any::<(bool, bool)>(),
        room in 0..60u32,
    ) {
        let tables = Tables::new(usize::MAX);
        let mut space = Space::new(tables.clone(), SIZE).unwrap();
        let mut window = Window::new(SIZE, room, keeps_status);
        if keeps_status && addresses {
            window = window.with_addresses();
        }
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
            for (reference, address) in window.addresses.iter().flatten() {
                let granted = table.get(reference).map_or(0, |grant| grant.frame.as_u64());
                prop_assert_eq!(address.get(), granted);
            }
        }
        if window.addresses.is_some() {
            space.close_all(|reference| window.word(reference).unwrap());
            for reference in table.keys() {
                prop_assert_eq!((window.word_of(*reference) & GRANTED, window.address_of(*reference)), (0, Some(0)));
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

#[test]
fn a_page_that_a_device_uses_by_its_address_is_not_taken_back_by_force() {
    let mut space = Space::new(Tables::new(usize::MAX), SIZE).unwrap();
    let mut window = Window::new(SIZE, 9, true).with_addresses();
    assert_eq!(space.carry_out(&mut window, &issue(3), 1), Ok(1));
    assert_eq!((window.word_of(3), window.address_of(3)), (GRANTED, Some(9 * PAGE_SIZE)));
    window.set(3, GRANTED | 1);
    for forced in [false, true] {
        assert_eq!(space.carry_out(&mut window, &revoke(3, forced), 1), Err(Error::Busy));
        assert_eq!((window.word_of(3), window.address_of(3)), (GRANTED | 1, Some(9 * PAGE_SIZE)));
        assert_eq!(window.shown.len(), 1);
    }
    window.set(3, GRANTED);
    assert_eq!(space.carry_out(&mut window, &revoke(3, true), 1), Ok(1));
    assert_eq!((window.word_of(3), window.address_of(3)), (0, Some(0)));
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
    open(&word, Hpa::new(PAGE_SIZE));
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
