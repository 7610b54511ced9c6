//! Calls of grant spaces, as a hostile granter makes them, and the status words of a hostile peer; tables of a hostile granter, and what a hostile peer asks of them.

use crate::Input;
use sluice_grants::status::Word;
use sluice_grants::table::{self, Table, USED, Use};
use sluice_grants::{Error, Grant, MAX_BATCH, Operation, Peer, Space};
use sluice_hypercall::grant::{self as hc, Call, Entry, Page};
use sluice_hypercall::table as table_calls;
use sluice_memory::{Hpa, PAGE_SIZE, PhysicalMemory, TableFrames};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Pages that the granter has; its memory is at this address of the machine.
const PAGES: u64 = 32;
const MEMORY: u64 = 1 << 30;
const SIZE: u32 = 1024;

/// Frames of tables.
#[derive(Default)]
struct Tables {
    words: RefCell<BTreeMap<u64, u64>>,
    next: u64,
}

impl PhysicalMemory for Tables {
    fn read(&self, _: Hpa, _: &mut [u8]) {}
    fn write(&self, _: Hpa, _: &[u8]) {}
    fn fill(&self, _: Hpa, _: u64, _: u8) {}
    fn read_u64(&self, at: Hpa) -> u64 {
        self.words.borrow().get(&at.as_u64()).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.words.borrow_mut().insert(at.as_u64(), value);
    }
}

impl TableFrames for Tables {
    fn allocate_table(&mut self) -> Option<Hpa> {
        self.next += PAGE_SIZE;
        Some(Hpa::new(self.next))
    }
    fn free_table(&mut self, _: Hpa) {}
}

/// The peer's window; every status word is the same one.
struct Window {
    shown: BTreeMap<u32, Grant>,
    word: u64,
    /// The peer programs devices by addresses beside the words.
    has_addresses: bool,
}

struct Fixed {
    word: u64,
    has_address: bool,
}

impl Word for Fixed {
    fn load(&self) -> Option<u64> {
        Some(self.word)
    }
    fn replace(&self, old: u64, _: u64) -> bool {
        self.word == old
    }
    fn has_address(&self) -> bool {
        self.has_address
    }
    fn tell(&self, page: Option<Hpa>) {
        assert!(page.is_none_or(is_granters), "the address of a page that is not the granter's is told");
    }
}

/// Whether this is a page of the granter.
fn is_granters(page: Hpa) -> bool {
    page.as_u64() >> 30 == 1 && page.is_aligned(PAGE_SIZE)
}

impl Peer for Window {
    type Word = Fixed;
    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        assert!(reference < SIZE && is_granters(grant.frame));
        assert!(self.shown.insert(reference, grant).is_none(), "a reference is shown twice");
        Ok(())
    }
    fn widen(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        let before = self.shown.insert(reference, grant);
        assert_eq!((before, grant.writable), (Some(Grant { writable: false, ..grant }), true));
        Ok(())
    }
    fn hide(&mut self, reference: u32, grant: Grant) {
        assert_eq!(self.shown.remove(&reference), Some(grant));
    }
    fn forget(&mut self) {}
    fn word(&self, _: u32) -> Option<Fixed> {
        Some(Fixed { word: self.word, has_address: self.has_addresses })
    }
}

fn page(page: Page) -> Option<Grant> {
    (page.gpa < PAGES * PAGE_SIZE)
        .then(|| Grant { frame: Hpa::new(MEMORY + page.gpa), writable: page.writable })
}

/// Any call with any arguments, and lists of any bytes. Asserts that only pages of the granter are ever shown, that the table and the window agree,
/// that no call moves more than it may, and that a page in use goes by force only, and not by that either if a device may use it by its address.
pub fn calls(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(mut space) = Space::new(Tables::default(), SIZE) else { return };
    let mut window = Window { shown: BTreeMap::new(), word: 0, has_addresses: false };
    while !input.is_empty() {
        window.word = if input.flag() { 0 } else { input.u64() };
        let number = hc::GRANT_CREATE + u64::from(input.u8() % 11);
        let mut argument = || match input.u8() % 4 {
            0 => input.u64(),
            1 => u64::from(input.u8()) * PAGE_SIZE,
            2 => u64::from(input.u16()),
            _ => u64::from(input.u8() % 8),
        };
        let arguments = [argument(), argument(), argument(), argument()];
        let known = (hc::GRANT_CREATE..=hc::GRANT_OPEN).contains(&number);
        let call = Call::decode(number, arguments);
        assert_eq!(call.is_some(), known);
        let before = window.shown.clone();
        let used = window.word & 0xffff_ffff != 0;
        let (result, count, forced) = match call {
            Some(Ok(Call::Issue { reference, page: first, count, .. })) => {
                let operation = |index: u64| {
                    let gpa = first.gpa.checked_add(index * PAGE_SIZE)?;
                    let reference = u32::try_from(u64::from(reference) + index).ok()?;
                    Some(Operation::Issue(reference, page(Page { gpa, ..first })))
                };
                (space.carry_out(&mut window, &operation, count), count, false)
            }
            Some(Ok(Call::Revoke { reference, count, forced, .. })) => {
                let operation = |index: u64| {
                    let reference = u32::try_from(u64::from(reference) + index).ok()?;
                    Some(Operation::Revoke { reference, forced })
                };
                (space.carry_out(&mut window, &operation, count), count, forced)
            }
            Some(Ok(Call::Batch { .. })) => {
                let mut list = [[0u64; 2]; 8];
                list.iter_mut()
                    .for_each(|entry| *entry = [input.u64() & !0x3f_fc00, input.u64() & !0xff_fff0_0ffe]);
                let operation = |index: u64| {
                    Some(match Entry::decode(*list.get(index as usize)?)? {
                        Entry::Issue(reference, what) => Operation::Issue(reference, page(what)),
                        Entry::Revoke(reference, forced) => Operation::Revoke { reference, forced },
                    })
                };
                (space.carry_out(&mut window, &operation, 8), 8, true)
            }
            Some(Ok(Call::Query { reference, .. })) => {
                let found =
                    space.lookup(reference).map(|grant| grant == window.shown.get(&reference).copied());
                assert_eq!(found, if reference < SIZE { Ok(true) } else { Err(Error::NoReference) });
                continue;
            }
            // Accepted anew, of which no status word or address outside of what was said is looked at.
            Some(Ok(Call::Accept { status, .. })) if window.shown.is_empty() => {
                assert!(status.is_none_or(|status| status.at % PAGE_SIZE == 0));
                window.has_addresses = status.is_some_and(|status| status.stride() == 16);
                continue;
            }
            _ => continue,
        };
        assert!(result.is_err() || result.is_ok_and(|done| done <= count.min(MAX_BATCH)));
        assert_eq!(space.live() as usize, window.shown.len());
        let kept = before.iter().all(|(reference, grant)| {
            window.shown.get(reference).is_some_and(|now| now.frame == grant.frame)
        });
        assert!(kept || forced && !window.has_addresses || !used, "a page in use is taken back");
    }
}

/// A granter's table, whose words change while they are looked at, as far as `restless` says.
struct Entries {
    words: RefCell<BTreeMap<u32, u64>>,
    restless: RefCell<Vec<u64>>,
}

struct EntryOf<'a>(&'a Entries, u32);

impl Word for EntryOf<'_> {
    fn load(&self) -> Option<u64> {
        if let Some(word) = self.0.restless.borrow_mut().pop() {
            self.0.words.borrow_mut().insert(self.1, word);
        }
        Some(self.0.words.borrow().get(&self.1).copied().unwrap_or(0))
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        let mut words = self.0.words.borrow_mut();
        let word = words.entry(self.1).or_default();
        let same = *word == old && self.0.restless.borrow().len() % 3 != 2;
        if same {
            *word = new;
        }
        same
    }
}

impl<'a> Table for &'a Entries {
    type Entry = EntryOf<'a>;
    fn entry(&self, reference: u32) -> EntryOf<'a> {
        assert!(reference < SIZE, "an entry behind the table is looked at");
        EntryOf(self, reference)
    }
    fn frame(&self, at: u64) -> Option<Hpa> {
        page(Page { gpa: at, writable: true }).map(|grant| grant.frame)
    }
}

/// Any calls of a peer with lists of any words, and entries of any words that change meanwhile. Asserts that only pages of the granter are ever shown, to write only such as
/// were permitted so, that the table and the window agree, and that no entry says that a page is used once nobody can reach it.
pub fn table(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(mut space) = Space::new(Tables::default(), SIZE) else { return };
    let mut window = Window { shown: BTreeMap::new(), word: 0, has_addresses: false };
    let entries = Entries { words: RefCell::default(), restless: RefCell::default() };
    while !input.is_empty() {
        let word = |input: &mut Input<'_>| match input.u8() % 3 {
            0 => input.u64(),
            1 => (u64::from(input.u8() % 40) * PAGE_SIZE) | u64::from(input.u8() % 16),
            _ => (u64::from(input.u8() % 40) * PAGE_SIZE) | table::PERMIT,
        };
        let reference = u32::from(input.u8() % 16);
        let now = word(&mut input);
        entries.words.borrow_mut().insert(reference, now);
        let changes = (0..input.u8() % 4).map(|_| word(&mut input)).collect();
        *entries.restless.borrow_mut() = changes;
        let quiet = entries.restless.borrow().is_empty();
        let list: Vec<u64> = (0..input.u8() % 6)
            .map(|_| {
                if input.flag() {
                    input.u64()
                } else {
                    u64::from(input.u8() % 16) | u64::from(input.u8() % 3) << 32
                }
            })
            .collect();
        let count = list.len() as u64;
        let before = window.shown.clone();
        match input.u8() % 4 {
            0 => {
                let uses = |index: u64| {
                    let mapped = table_calls::Mapped::decode(*list.get(index as usize)?)?;
                    Some(Use { reference: mapped.reference, writes: mapped.writes })
                };
                let permitted = entries.words.borrow().clone();
                let done = space.map(&mut window, &&entries, uses, count);
                assert!(done.is_err() || done.is_ok_and(|done| done <= count));
                for (reference, grant) in window.shown.iter().filter(|(new, _)| !before.contains_key(new)) {
                    let entry = permitted.get(reference).copied().unwrap_or(0);
                    let as_permitted = entry & table::PERMIT != 0
                        && (!grant.writable || entry & table::READ_ONLY == 0)
                        && MEMORY.wrapping_add(entry & !0xfff) == grant.frame.as_u64();
                    assert!(as_permitted || !quiet, "what was not permitted is mapped");
                    let entry = entries.words.borrow().get(reference).copied().unwrap_or(0);
                    assert!(entry & USED != 0 || !quiet, "a page that is mapped is not used");
                }
            }
            1 => {
                let references = |index: u64| u32::try_from(*list.get(index as usize)?).ok();
                let done = space.unmap(&mut window, &&entries, references, count);
                assert!(done.is_err() || done.is_ok_and(|done| done <= count));
                for reference in before.keys().filter(|old| !window.shown.contains_key(old)) {
                    let entry = entries.words.borrow().get(reference).copied().unwrap_or(0);
                    assert!(entry & USED == 0 || !quiet, "a page that is not mapped is used");
                }
            }
            2 => {
                let part = table_calls::Part::decode([input.u64(), input.u64()]);
                if let Some(part) = part {
                    assert!(part.offset + part.bytes <= PAGE_SIZE && part.bytes != 0);
                    let wanted = Use { reference: part.reference % (2 * SIZE), writes: part.out };
                    let done = space.use_once(&&entries, wanted, |page| {
                        assert_eq!(page % PAGE_SIZE, 0);
                        Ok(())
                    });
                    assert!(done.is_err() || wanted.reference < SIZE);
                }
            }
            _ => {
                let arguments = [input.u64(), input.u64(), input.u64(), input.u64()];
                let _ =
                    table_calls::Call::decode(table_calls::TABLE_LEND + u64::from(input.u8() % 5), arguments);
            }
        }
        assert_eq!(space.live() as usize, window.shown.len());
    }
}
