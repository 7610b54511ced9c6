//! A machine for the tests: memory, processors and a device that keep every translation which they were not told to forget.
#![allow(dead_code, reason = "each test uses a part of it")]

use sluice_pagetypes::{ENTRIES, Entry, HOLE, Kind, LINE, Machine, Mfn, Types};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Number of the first frame.
pub const FIRST: u64 = 0x100;

/// What one processor has read of page tables and not forgotten. It is the worst of all orders: a processor may read at any moment
/// what it can reach, so that it is taken to have read everything at every moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cache {
    /// Frames that it may write.
    pub writable: BTreeSet<Mfn>,
    /// Frames that it may read.
    pub readable: BTreeSet<Mfn>,
    /// Frames that it walks, and as what.
    pub tables: BTreeSet<(Mfn, Kind)>,
}

/// What is behind the [`Machine`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hardware {
    pub memory: BTreeMap<(Mfn, usize), u64>,
    /// The root that each processor uses.
    pub roots: Vec<Option<Mfn>>,
    pub caches: Vec<Cache>,
    /// Frames that the IOMMU's tables show to devices.
    pub shown: BTreeSet<Mfn>,
    /// Frames that it has cached.
    pub iotlb: BTreeSet<Mfn>,
    /// Frames of the hypervisor's.
    pub hypervisor: BTreeSet<Mfn>,
    /// How often the IOMMU was flushed.
    pub io_flushes: u32,
    /// What the guest writes wherever it can, at every moment: place in a frame, value.
    pub mischief: Vec<(usize, u64)>,
}

/// A processor reads what its root leads to.
fn walk(memory: &BTreeMap<(Mfn, usize), u64>, root: Mfn, cache: &mut Cache) {
    let mut open = vec![(root, Kind::L4)];
    while let Some((table, kind)) = open.pop() {
        // Its entries may have changed since it was read last.
        cache.tables.insert((table, kind));
        for ((_, index), word) in memory.range((table, 0)..(table, ENTRIES)) {
            let entry = Entry::from_bits_retain(*word);
            if !entry.contains(Entry::PRESENT) || kind == Kind::L4 && HOLE.contains(index) {
                continue;
            }
            match kind.below() {
                Some(below) => open.push((entry.frame(), below)),
                None => {
                    cache.readable.insert(entry.frame());
                    if entry.is_writable() {
                        cache.writable.insert(entry.frame());
                    }
                }
            }
        }
    }
}

impl Hardware {
    pub fn new(frames: u64, hypervisor: &[Mfn]) -> Self {
        let own = (FIRST..FIRST + frames).map(Mfn);
        let hypervisor: BTreeSet<Mfn> = hypervisor.iter().copied().collect();
        Self {
            memory: BTreeMap::new(),
            roots: vec![None; 2],
            caches: vec![Cache::default(); 2],
            shown: own.filter(|frame| !hypervisor.contains(frame)).collect(),
            iotlb: BTreeSet::new(),
            hypervisor,
            io_flushes: 0,
            mischief: Vec::new(),
        }
    }

    pub fn word(&self, frame: Mfn, index: usize) -> u64 {
        self.memory.get(&(frame, index)).copied().unwrap_or(0)
    }

    pub fn set(&mut self, frame: Mfn, index: usize, value: u64) {
        if value == 0 {
            self.memory.remove(&(frame, index));
        } else {
            self.memory.insert((frame, index), value);
        }
    }

    /// Everyone reads all that can be read.
    pub fn fill(&mut self) {
        for (root, cache) in self.roots.iter().zip(&mut self.caches) {
            if let Some(root) = root {
                walk(&self.memory, *root, cache);
            }
        }
        self.iotlb.extend(&self.shown);
    }

    /// Whether the guest can write a frame without asking: by a processor or by a device.
    pub fn can_write(&self, frame: Mfn) -> bool {
        self.iotlb.contains(&frame)
            || self.shown.contains(&frame)
            || self.caches.iter().any(|cache| cache.writable.contains(&frame))
    }

    /// Everyone reads all that can be read, the guest writes wherever it can, and nothing may come of it.
    fn strike(&mut self) {
        self.fill();
        self.check();
        let own: Vec<Mfn> = self
            .iotlb
            .iter()
            .copied()
            .chain(self.caches.iter().flat_map(|cache| cache.writable.clone()))
            .collect();
        for (index, value) in self.mischief.clone() {
            for frame in &own {
                self.set(*frame, index, value);
            }
        }
        self.fill();
        self.check();
    }

    /// No page table and no frame of the hypervisor's is ever writable to the guest or to its devices, nor is either reached as what it is not.
    pub fn check(&self) {
        let tables: BTreeSet<(Mfn, Kind)> =
            self.caches.iter().flat_map(|cache| cache.tables.clone()).collect();
        for (table, kind) in &tables {
            assert!(!self.can_write(*table), "{table} is walked as {kind:?}, and can be written");
            assert!(!self.hypervisor.contains(table), "{table} of the hypervisor is walked as {kind:?}");
            let other = tables.iter().find(|(same, other)| same == table && other != kind);
            assert_eq!(other, None, "{table} is walked as {kind:?} too");
        }
        for frame in &self.hypervisor {
            let read = self.caches.iter().any(|cache| cache.readable.contains(frame));
            assert!(!read && !self.can_write(*frame), "{frame} of the hypervisor can be reached");
        }
    }
}

/// The test's [`Machine`].
pub struct World(pub RefCell<Hardware>);

impl Machine for World {
    fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
        let mut hardware = self.0.borrow_mut();
        if !hardware.mischief.is_empty() {
            hardware.strike();
        }
        core::array::from_fn(|at| hardware.word(frame, line * LINE + at))
    }

    fn replace(&mut self, frame: Mfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        let hardware = self.0.get_mut();
        let found = hardware.word(frame, index);
        if found != old {
            return Err(found);
        }
        hardware.set(frame, index, new);
        hardware.fill();
        hardware.check();
        Ok(())
    }

    fn clear(&mut self, frame: Mfn) {
        let hardware = self.0.get_mut();
        let is_reached = hardware.iotlb.contains(&frame) || hardware.shown.contains(&frame);
        assert!(!is_reached, "a device may write {frame} meanwhile");
        hardware.memory.retain(|(at, _), _| *at != frame);
    }

    fn fill_hole(&mut self, _: Mfn) {}

    fn forget(&mut self) {
        let hardware = self.0.get_mut();
        hardware.caches.fill(Cache::default());
        hardware.fill();
    }

    fn hide(&mut self, frames: &[Mfn]) {
        let hardware = self.0.get_mut();
        for frame in frames {
            hardware.shown.remove(frame);
        }
        hardware.iotlb.clear();
        hardware.io_flushes += 1;
        hardware.fill();
    }

    fn show(&mut self, frames: &[Mfn]) {
        let hardware = self.0.get_mut();
        hardware.shown.extend(frames);
        hardware.fill();
        hardware.check();
    }
}

/// What the guest holds by its own requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    pub pinned: BTreeMap<Mfn, Kind>,
    pub descriptors: Vec<Mfn>,
    /// Frames that it gave back, and whether it had mappings of them still.
    pub given: BTreeMap<Mfn, bool>,
}

impl Held {
    /// The guest gave a frame back.
    pub fn give_back(&mut self, types: &Types, frame: Mfn) {
        let counts = types.counts(frame).expect("it was the domain's");
        self.given.insert(frame, counts.references > 0);
    }

    /// It has frames again.
    pub fn take_again(&mut self, hardware: &Hardware, frames: &[Mfn]) {
        for frame in frames {
            self.given.remove(frame).expect("it was given back");
            let mut words = hardware.memory.range((*frame, 0)..(*frame, ENTRIES));
            assert_eq!(words.next(), None, "{frame} is not zeros");
        }
    }

    /// No device reaches a frame that was given back, and no processor one that it had no mapping of.
    pub fn check(&self, hardware: &Hardware) {
        for (frame, was_mapped) in &self.given {
            assert!(!hardware.iotlb.contains(frame) && !hardware.shown.contains(frame), "{frame}");
            let reads = |cache: &Cache| {
                let walks = cache.tables.iter().any(|(table, _)| table == frame);
                walks || cache.readable.contains(frame) || cache.writable.contains(frame)
            };
            assert!(*was_mapped || !hardware.caches.iter().any(reads), "{frame} was given back");
        }
    }
}

/// How often frames are used and referred to, counted from nothing.
#[derive(Clone, Debug, Default)]
pub struct Recount {
    pub uses: BTreeMap<Mfn, (Kind, u32)>,
    pub references: BTreeMap<Mfn, u32>,
    given: BTreeSet<Mfn>,
}

impl Recount {
    /// Counts what the pins, roots, descriptor tables, and one more use, lead to. `None`: frames would have to be two things, or some entry must not be.
    pub fn of(hardware: &Hardware, held: &Held, frames: u64, extra: Option<(Mfn, Kind)>) -> Option<Self> {
        let mut count = Self::default();
        let roots = hardware.roots.iter().flatten().map(|root| (*root, Kind::L4));
        let pins = held.pinned.iter().map(|(frame, kind)| (*frame, *kind));
        let descriptors = held.descriptors.iter().map(|frame| (*frame, Kind::Descriptors));
        for (frame, kind) in roots.chain(pins).chain(descriptors) {
            count.visit(hardware, frames, frame, kind)?;
        }
        // What is new must not be of frames that were given back.
        count.given = held.given.keys().copied().collect();
        if let Some((frame, kind)) = extra {
            count.visit(hardware, frames, frame, kind)?;
        }
        Some(count)
    }

    /// Whether something can be made of a frame.
    fn may_name(&self, hardware: &Hardware, frames: u64, frame: Mfn) -> bool {
        let own = (FIRST..FIRST + frames).contains(&frame.0) && !hardware.hypervisor.contains(&frame);
        own && !self.given.contains(&frame)
    }

    fn visit(&mut self, hardware: &Hardware, frames: u64, frame: Mfn, kind: Kind) -> Option<()> {
        if !self.may_name(hardware, frames, frame) {
            return None;
        }
        *self.references.entry(frame).or_default() += 1;
        let used = self.uses.entry(frame).or_insert((kind, 0));
        if used.0 != kind {
            return None;
        }
        used.1 += 1;
        if used.1 > 1 || !kind.is_table() {
            return Some(());
        }
        for ((_, index), word) in hardware.memory.range((frame, 0)..(frame, ENTRIES)) {
            if kind == Kind::L4 && HOLE.contains(index) {
                continue;
            }
            let entry = Entry::from_bits_retain(*word).adjusted(kind)?;
            if !entry.contains(Entry::PRESENT) {
                continue;
            }
            match kind.below() {
                Some(below) => self.visit(hardware, frames, entry.frame(), below)?,
                None if entry.is_writable() => {
                    self.visit(hardware, frames, entry.frame(), Kind::Writable)?;
                }
                None => {
                    let target = entry.frame();
                    if !self.may_name(hardware, frames, target) {
                        return None;
                    }
                    *self.references.entry(target).or_default() += 1;
                }
            }
        }
        Some(())
    }

    /// Whether the types say the same, and devices reach what they say.
    pub fn check(&self, types: &Types, hardware: &Hardware) {
        for (frame, counts) in types.frames() {
            let (kind, uses) = self.uses.get(&frame).copied().unwrap_or((counts.kind, 0));
            let references = self.references.get(&frame).copied().unwrap_or(0);
            assert_eq!((counts.kind, counts.uses, counts.references), (kind, uses, references), "{frame}");
            let shown = hardware.shown.contains(&frame);
            assert_eq!(shown, counts.is_for_devices(), "{frame}: {counts:?}");
        }
    }
}
