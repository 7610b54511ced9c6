//! Memory for tables, and a peer that remembers what it could reach.

use sluice_grants::status::{GRANTED, Word};
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
    /// What is written beside the words, if the peer programs devices by it.
    pub addresses: Option<BTreeMap<u32, Rc<Cell<u64>>>>,
    pub flushes: u32,
    /// Shows so many pages more.
    pub room: u32,
}

#[derive(Default)]
pub struct Status {
    pub word: Rc<Cell<u64>>,
    pub address: Option<Rc<Cell<u64>>>,
}

impl Word for Status {
    fn load(&self) -> Option<u64> {
        Some(self.word.get())
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        let same = self.word.get() == old;
        if same {
            let is_told = self.address.as_ref().is_none_or(|address| address.get() != 0);
            assert!(is_told || (old ^ new) & GRANTED == 0, "it is granted, and its address is not there");
            self.word.set(new);
        }
        same
    }
    fn has_address(&self) -> bool {
        self.address.is_some()
    }
    fn tell(&self, page: Option<Hpa>) {
        if let Some(address) = &self.address {
            address.set(page.map_or(0, Hpa::as_u64));
        }
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
        for (reference, address) in self.addresses.iter().flatten().filter(|(_, address)| address.get() != 0)
        {
            let shown = self.shown.get(reference).map(|grant| grant.frame.as_u64());
            assert_eq!(shown, Some(address.get()), "{reference} has an address that is not granted");
        }
    }

    fn word(&self, reference: u32) -> Option<Status> {
        let address =
            |addresses: &BTreeMap<u32, Rc<Cell<u64>>>| addresses.get(&reference).cloned().unwrap_or_default();
        self.keeps_status.then(|| Status {
            word: self.words.get(&reference).cloned().unwrap_or_default(),
            address: self.addresses.as_ref().map(address),
        })
    }
}

impl Window {
    pub fn new(size: u32, room: u32, keeps_status: bool) -> Self {
        let words = (0..size).map(|reference| (reference, Rc::default())).collect();
        Self { words, keeps_status, room, ..Self::default() }
    }
}
