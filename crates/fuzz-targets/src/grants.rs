//! Calls of grant spaces, as a hostile granter makes them, and the status words of a hostile peer.

use crate::Input;
use sluice_grants::status::Word;
use sluice_grants::{Error, Grant, MAX_BATCH, Operation, Peer, Space};
use sluice_hypercall::grant::{self as hc, Call, Entry, Page};
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
}

struct Fixed(u64);

impl Word for Fixed {
    fn load(&self) -> Option<u64> {
        Some(self.0)
    }
    fn replace(&self, old: u64, _: u64) -> bool {
        self.0 == old
    }
}

impl Peer for Window {
    type Word = Fixed;
    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        assert!(reference < SIZE && grant.frame.as_u64() >> 30 == 1 && grant.frame.is_aligned(PAGE_SIZE));
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
        Some(Fixed(self.word))
    }
}

fn page(page: Page) -> Option<Grant> {
    (page.gpa < PAGES * PAGE_SIZE)
        .then(|| Grant { frame: Hpa::new(MEMORY + page.gpa), writable: page.writable })
}

/// Any call with any arguments, and lists of any bytes. Asserts that only pages of the granter are ever shown, that the table and the window agree,
/// that no call moves more than it may, and that a page in use goes by force only.
pub fn calls(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(mut space) = Space::new(Tables::default(), SIZE) else { return };
    let mut window = Window { shown: BTreeMap::new(), word: 0 };
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
            _ => continue,
        };
        assert!(result.is_err() || result.is_ok_and(|done| done <= count.min(MAX_BATCH)));
        assert_eq!(space.live() as usize, window.shown.len());
        let kept = before.iter().all(|(reference, grant)| {
            window.shown.get(reference).is_some_and(|now| now.frame == grant.frame)
        });
        assert!(kept || forced || !used, "a page in use is taken back");
    }
}
