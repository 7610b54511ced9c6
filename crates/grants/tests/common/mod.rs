//! Memory for tables, and a peer that remembers what it could reach.

use sluice_grants::status::Word;
use sluice_grants::{Error, Grant, Peer};
use sluice_memory::{Hpa, PAGE_SIZE, PhysicalMemory, TableFrames};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Memory for tables: how many frames are out, and how many may be.
#[derive(Clone, Default)]
pub struct Tables(Rc<RefCell<Words>>);

#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    used: BTreeSet<u64>,
    next: u64,
    limit: usize,
}

impl Tables {
    pub fn new(limit: usize) -> Self {
        let tables = Self::default();
        tables.0.borrow_mut().limit = limit;
        tables
    }

    pub fn out(&self) -> usize {
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
pub struct Window {
    pub shown: BTreeMap<u32, Grant>,
    /// What may still be reached.
    pub cached: BTreeSet<u64>,
    pub hidden: Vec<u64>,
    pub pins: BTreeMap<u64, u32>,
    pub words: BTreeMap<u32, Rc<Cell<u64>>>,
    pub keeps_status: bool,
    pub flushes: u32,
    /// Shows so many pages more.
    pub room: u32,
}

pub struct Status(pub Rc<Cell<u64>>);

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
    pub fn new(size: u32, room: u32, keeps_status: bool) -> Self {
        let words = (0..size).map(|reference| (reference, Rc::default())).collect();
        Self { words, keeps_status, room, ..Self::default() }
    }
}
