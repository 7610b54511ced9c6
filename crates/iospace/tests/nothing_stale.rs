//! QEMU forgives missing flushes; this does not. Processors, AMD-Vi and VT-d units are modelled as caching whatever they ever
//! could, tables on the way included, and forgetting only what they are told to - the units by the bytes of their
//! commands. After every `settle` nothing is cached that the space does not say, and no frame was given back while anybody
//! could still reach it. The ledger of frames agrees at every step: what is issued or may still be reached is pinned.

use proptest::prelude::*;
use sluice_iommu::{Invalidation, RequesterId, SpaceTag, amdvi, vtd};
use sluice_iospace::{
    Audience, Contents, Foreign, IssueError, Ledger, Piece, Rights, Space, Stale, TableView,
};
use sluice_memory::{
    Access, Extent, Format, Gpa, Hpa, Iova, LongMode, PAGE_SIZE, PhysicalMemory, TableFrames,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Words of memory; everything above [`TABLES`] must be in use as a table.
#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    used: BTreeSet<u64>,
    next: u64,
    left: u32,
}

/// Where the device tables of units are.
const DEVICES: u64 = 1 << 41;
const TABLES: u64 = 1 << 42;
const DEVICE: RequesterId = RequesterId::new(0, 3, 0);
const TAG: SpaceTag = SpaceTag(7);

/// All clones are the same memory.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Words>>);

impl PhysicalMemory for Memory {
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
        let memory = self.0.borrow();
        let table = at.as_u64() & !0xfff;
        assert!(table < TABLES || memory.used.contains(&table), "{at} is no table in use");
        memory.words.get(&at.as_u64()).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.0.borrow_mut().words.insert(at.as_u64(), value);
    }
}

/// Somebody who caches what is in tables.
trait Cache: Sized {
    type Format: Format;
    fn new(format: Self::Format) -> Self;
    /// The root of the tables is known now.
    fn attach(&mut self, memory: &Memory, root: Hpa);
    /// Uses the page at an address.
    fn fill(&mut self, memory: &Memory, at: u64);
    fn forget(&mut self, stale: &Stale);
    /// What rights are meant for it.
    fn access(rights: Rights) -> Access;
    /// Cached pages: address, bytes, memory, rights.
    fn pages(&self) -> Vec<(u64, u64, Hpa, Access)>;
    /// Cached tables.
    fn tables(&self) -> Vec<Hpa>;
}

/// A processor: by address, what the walk found, and what it read on its way.
struct Processor {
    root: Hpa,
    pages: BTreeMap<u64, (Hpa, Access)>,
    walks: BTreeMap<u64, Vec<Hpa>>,
}

impl Cache for Processor {
    type Format = LongMode;

    fn new(_: LongMode) -> Self {
        Self { root: Hpa::new(0), pages: BTreeMap::new(), walks: BTreeMap::new() }
    }

    fn attach(&mut self, _: &Memory, root: Hpa) {
        self.root = root;
    }

    fn fill(&mut self, memory: &Memory, at: u64) {
        let mut walked = Vec::new();
        let mut table = self.root;
        for level in (1..=4u32).rev() {
            walked.push(table);
            let shift = 12 + 9 * (level - 1);
            let entry = memory.read_u64(Hpa::new(table.as_u64() + (at >> shift & 511) * 8));
            match LongMode.decode(entry, level) {
                sluice_memory::Entry::Absent => break,
                sluice_memory::Entry::Table(next) => table = next,
                sluice_memory::Entry::Leaf(hpa, access) => {
                    let hpa = Hpa::new(hpa.as_u64() + at % (1 << shift));
                    self.pages.entry(at).or_insert((hpa, access));
                    break;
                }
            }
        }
        self.walks.entry(at).or_insert(walked);
    }

    fn forget(&mut self, stale: &Stale) {
        let keep = |at: &u64| stale.ranges().is_some_and(|ranges| !ranges.iter().any(|r| r.contains(at)));
        self.pages.retain(|at, _| keep(at));
        self.walks.retain(|at, _| keep(at));
    }

    fn access(rights: Rights) -> Access {
        rights.owner
    }

    fn pages(&self) -> Vec<(u64, u64, Hpa, Access)> {
        self.pages.iter().map(|(at, (hpa, access))| (*at, PAGE_SIZE, *hpa, *access)).collect()
    }

    fn tables(&self) -> Vec<Hpa> {
        self.walks.values().flatten().copied().collect()
    }
}

struct AmdVi {
    unit: amdvi::model::Model,
    levels: u8,
}

impl Cache for AmdVi {
    type Format = amdvi::page::HostFormat;

    fn new(format: Self::Format) -> Self {
        Self { unit: amdvi::model::Model::new(Hpa::new(DEVICES)), levels: format.levels }
    }

    fn attach(&mut self, memory: &Memory, root: Hpa) {
        let entry = amdvi::device::Memory::Space { tag: TAG, root, levels: self.levels };
        for (word, value) in (0u64..).zip(entry.encode()) {
            memory.write_u64(Hpa::new(DEVICES + u64::from(DEVICE.0) * 32 + word * 8), value);
        }
    }

    fn fill(&mut self, memory: &Memory, at: u64) {
        self.unit.fill(DEVICE, Iova::new(at), memory);
    }

    fn forget(&mut self, stale: &Stale) {
        for what in stale.invalidations(TAG) {
            self.unit.apply(&amdvi::command::Command::from(what).bytes());
        }
    }

    fn access(rights: Rights) -> Access {
        rights.party
    }

    fn pages(&self) -> Vec<(u64, u64, Hpa, Access)> {
        self.unit.cached().map(|(_, at, len, hpa, access)| (at.as_u64(), len, hpa, access)).collect()
    }

    fn tables(&self) -> Vec<Hpa> {
        self.unit.cached_tables().collect()
    }
}

struct Vtd {
    unit: vtd::model::Model,
    levels: u8,
}

const CONTEXTS: u64 = DEVICES + 0x1000;

impl Vtd {
    fn descriptor(what: Invalidation) -> [u8; 16] {
        // A unit that takes no more than 2 MiB at once.
        let limits = vtd::queue::Limits { largest_order: Some(9), drains_reads: true, drains_writes: true };
        vtd::queue::Descriptor::translations(what, limits).bytes()
    }
}

impl Cache for Vtd {
    type Format = vtd::page::SecondLevel;

    fn new(format: Self::Format) -> Self {
        Self { unit: vtd::model::Model::new(Hpa::new(DEVICES)), levels: format.levels }
    }

    fn attach(&mut self, memory: &Memory, root: Hpa) {
        let table = vtd::context::root_entry(Hpa::new(CONTEXTS));
        memory.write_u64(Hpa::new(DEVICES + vtd::context::root_offset(DEVICE)), table);
        let entry = vtd::context::ContextEntry { tag: TAG, root, levels: self.levels }.encode();
        for (word, value) in (0u64..).zip(entry) {
            memory.write_u64(Hpa::new(CONTEXTS + vtd::context::context_offset(DEVICE) + word * 8), value);
        }
    }

    fn fill(&mut self, memory: &Memory, at: u64) {
        self.unit.fill(DEVICE, Iova::new(at), memory);
    }

    fn forget(&mut self, stale: &Stale) {
        for what in stale.invalidations(TAG) {
            self.unit.apply(&Self::descriptor(what));
        }
    }

    fn access(rights: Rights) -> Access {
        rights.party
    }

    fn pages(&self) -> Vec<(u64, u64, Hpa, Access)> {
        self.unit.cached().map(|(_, at, len, hpa, access)| (at.as_u64(), len, hpa, access)).collect()
    }

    fn tables(&self) -> Vec<Hpa> {
        self.unit.cached_tables().collect()
    }
}

/// Frames for tables that somebody may have cached.
struct Frames<C> {
    memory: Memory,
    cache: Rc<RefCell<C>>,
}

impl<C> Clone for Frames<C> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), cache: self.cache.clone() }
    }
}

impl<C> PhysicalMemory for Frames<C> {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        self.memory.read(at, buffer);
    }
    fn write(&self, at: Hpa, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }
    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.memory.fill(at, len, byte);
    }
    fn read_u64(&self, at: Hpa) -> u64 {
        self.memory.read_u64(at)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.memory.write_u64(at, value);
    }
}

impl<C: Cache> TableFrames for Frames<C> {
    fn allocate_table(&mut self) -> Option<Hpa> {
        let mut memory = self.memory.0.borrow_mut();
        memory.left = memory.left.checked_sub(1)?;
        memory.next += PAGE_SIZE;
        let frame = TABLES + memory.next;
        memory.used.insert(frame);
        Some(Hpa::new(frame))
    }
    fn free_table(&mut self, frame: Hpa) {
        let mut memory = self.memory.0.borrow_mut();
        assert!(memory.used.remove(&frame.as_u64()), "{frame} freed twice");
        memory.words.retain(|at, _| at & !0xfff != frame.as_u64());
        let walked = self.cache.borrow().tables().contains(&frame);
        assert!(!walked, "{frame} is free, and a walk may still go through it");
    }
}

struct User<C>(Rc<RefCell<C>>);

impl<C: Cache> Audience for User<C> {
    type Owner = ();
    fn access(&self, rights: Rights) -> Access {
        C::access(rights)
    }
    fn caches_absent(&self) -> bool {
        false
    }
    fn forget(&mut self, (): &(), stale: &Stale) {
        self.0.borrow_mut().forget(stale);
    }
}

/// Pins by frame. Frames from [`FOREIGN`] on are another's.
#[derive(Clone, Default)]
struct Pins(Rc<RefCell<BTreeMap<u64, u32>>>);

const FOREIGN: u64 = 1 << 26;

fn frames(hpa: Hpa, len: u64) -> std::ops::Range<u64> {
    hpa.as_u64() / PAGE_SIZE..(hpa.as_u64() + len) / PAGE_SIZE
}

impl Pins {
    /// Whether these frames are pinned and no others.
    fn are(&self, frames: impl Iterator<Item = u64>) -> bool {
        self.0.borrow().keys().copied().eq(frames.collect::<BTreeSet<u64>>())
    }
}

impl Ledger for Pins {
    fn pin(&self, piece: &Piece) -> Result<(), Foreign> {
        let frames = frames(piece.hpa, piece.len);
        if frames.end > FOREIGN {
            return Err(Foreign);
        }
        frames.for_each(|frame| *self.0.borrow_mut().entry(frame).or_default() += 1);
        Ok(())
    }

    fn unpin(&self, hpa: Hpa, len: u64) {
        for frame in frames(hpa, len) {
            let pins = self.0.borrow_mut().remove(&frame).expect("unpinned once more than pinned");
            if pins > 1 {
                self.0.borrow_mut().insert(frame, pins - 1);
            }
        }
    }
}

const RIGHTS: [Rights; 5] = [
    Rights::MEMORY,
    Rights { owner: Access::READ, party: Access::READ, ..Rights::MEMORY },
    Rights { owner: Access::empty(), party: Access::WRITE, ..Rights::MEMORY },
    Rights::DEVICE,
    Rights::window(Contents::Lent(1)),
];

#[derive(Clone, Debug)]
enum Step {
    Issue { page: u64, pages: u64, rights: usize, foreign: bool },
    Change { page: u64, pages: u64, rights: usize },
    Revoke { page: u64, pages: u64 },
    Touch(Vec<u64>),
    Settle,
    Starve(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = || prop_oneof![0u64..2000, prop::sample::select(&[0u64, 512, 1024, 1536][..])];
    let pages = || prop::sample::select(&[1u64, 2, 64, 512, 1024][..]);
    let step = prop_oneof![
        4 => (page(), pages(), 0..5usize, prop::bool::weighted(0.1))
            .prop_map(|(page, pages, rights, foreign)| Step::Issue { page, pages, rights, foreign }),
        2 => (page(), pages(), 0..5usize).prop_map(|(page, pages, rights)| Step::Change { page, pages, rights }),
        3 => (page(), pages()).prop_map(|(page, pages)| Step::Revoke { page, pages }),
        4 => prop::collection::vec(0u64..3000, 1..40).prop_map(Step::Touch),
        3 => Just(Step::Settle),
        1 => (0u32..6).prop_map(Step::Starve),
    ];
    prop::collection::vec(step, 1..60)
}

fn nothing_stale<C: Cache>(format: C::Format, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let cache = Rc::new(RefCell::new(C::new(format)));
    let memory = Memory::default();
    memory.0.borrow_mut().left = 1000;
    let frames = Frames { memory: memory.clone(), cache: cache.clone() };
    let view = TableView::new(format, frames, User(cache.clone())).unwrap();
    cache.borrow_mut().attach(&memory, view.root());
    let pins = Pins::default();
    let mut space = Space::new(pins.clone());
    space.add_view(view).unwrap();
    space.settle(&(), |_, _| ());
    // By page: where it is and who may do what; the test's own idea of the space.
    let mut model: BTreeMap<u64, (u64, Rights)> = BTreeMap::new();
    let mut issued = 0;
    let mut revoked: BTreeSet<u64> = BTreeSet::new();
    for step in steps {
        match step {
            Step::Issue { page, pages, rights, foreign } => {
                // Every page issued is another one, sometimes aligned so that large pages come about.
                issued += 1u64;
                let first = issued * 4096 + if page % 3 == 0 { page % 512 } else { 1 };
                let first = if foreign { FOREIGN - pages / 2 + first % 2 } else { first };
                let taken = (page..page + pages).any(|page| model.contains_key(&page));
                let (at, hpa, len) = (page * PAGE_SIZE, Hpa::new(first * PAGE_SIZE), pages * PAGE_SIZE);
                match space.issue(at, hpa, len, RIGHTS[rights]) {
                    Ok(()) => {
                        prop_assert!(!taken && !foreign);
                        model.extend((0..pages).map(|n| (page + n, (first + n, RIGHTS[rights]))));
                    }
                    Err(IssueError::Taken) => prop_assert!(taken),
                    Err(IssueError::Foreign) => prop_assert!(foreign),
                    Err(error) => {
                        prop_assert_eq!(error, IssueError::OutOfMemory);
                        // A part of it may have been seen.
                        revoked.extend(first..first + pages);
                    }
                }
            }
            Step::Change { page, pages, rights } => {
                let there = (page..page + pages).all(|page| model.contains_key(&page));
                match space.change(page * PAGE_SIZE, pages * PAGE_SIZE, RIGHTS[rights]) {
                    Ok(()) => {
                        prop_assert!(there);
                        (page..page + pages)
                            .for_each(|page| model.get_mut(&page).unwrap().1 = RIGHTS[rights]);
                    }
                    Err(IssueError::Absent) => prop_assert!(!there),
                    Err(IssueError::Foreign) => prop_assert!(
                        (page..page + pages).any(|page| model[&page].1.contents != RIGHTS[rights].contents)
                    ),
                    Err(error) => {
                        // The space says what rights are left.
                        prop_assert_eq!(error, IssueError::OutOfMemory);
                        for piece in space.pieces() {
                            for n in 0..piece.len / PAGE_SIZE {
                                let page = model.get_mut(&(piece.at / PAGE_SIZE + n)).unwrap();
                                let left = [page.1, page.1.none(), RIGHTS[rights]];
                                prop_assert!(left.contains(&piece.rights));
                                page.1 = piece.rights;
                            }
                        }
                    }
                }
            }
            Step::Revoke { page, pages } => match space.revoke(page * PAGE_SIZE, pages * PAGE_SIZE) {
                Ok(()) => {
                    for page in page..page + pages {
                        revoked.extend(model.remove(&page).map(|(frame, _)| frame));
                    }
                }
                Err(error) => prop_assert_eq!(error, IssueError::OutOfMemory),
            },
            Step::Touch(pages) => {
                pages.iter().for_each(|page| cache.borrow_mut().fill(&memory, page * PAGE_SIZE));
            }
            Step::Starve(left) => memory.0.borrow_mut().left = left,
            Step::Settle => {
                prop_assert!(
                    pins.are(model.values().map(|(frame, _)| *frame).chain(revoked.iter().copied()))
                );
                let mut freed = BTreeSet::new();
                space.settle(&(), |hpa, len| {
                    let first = hpa.as_u64() / PAGE_SIZE;
                    assert!((first..first + len / PAGE_SIZE).all(|frame| freed.insert(frame)), "twice");
                    let meets = |(_, bytes, at, _): &(u64, u64, Hpa, Access)| {
                        at.as_u64() < hpa.as_u64() + len && hpa.as_u64() < at.as_u64() + bytes
                    };
                    assert!(!cache.borrow().pages().iter().any(meets), "given back while it can be reached");
                });
                prop_assert_eq!(&freed, &core::mem::take(&mut revoked));
                prop_assert!(space.is_settled());
                prop_assert!(pins.are(model.values().map(|(frame, _)| *frame)));
                for (at, len, hpa, access) in cache.borrow().pages() {
                    for n in 0..len / PAGE_SIZE {
                        let (frame, rights) = model.get(&(at / PAGE_SIZE + n)).expect("cached, not issued");
                        prop_assert_eq!(hpa.as_u64() / PAGE_SIZE + n, *frame);
                        prop_assert_eq!(access, C::access(*rights));
                    }
                }
            }
        }
        // The pieces are the model, always.
        let mut pages = 0;
        for Piece { at, hpa, len, rights } in space.pieces() {
            for n in 0..len / PAGE_SIZE {
                let expected = (hpa.as_u64() / PAGE_SIZE + n, rights);
                prop_assert_eq!(model.get(&(at / PAGE_SIZE + n)), Some(&expected));
            }
            pages += len / PAGE_SIZE;
        }
        prop_assert_eq!(pages as usize, model.len());
        // What the space says of memory is these pieces, without registers.
        if let Ok(memory) = space.memory() {
            let pieces = space.pieces().filter(|piece| piece.rights.contents == Contents::Own);
            let pieces = pieces.map(|Piece { at, hpa, len, .. }| Extent { gpa: Gpa::new(at), hpa, len });
            prop_assert!(pieces.eq(memory.extents().iter().copied()));
        }
    }
    // An owner that is gone walks no more.
    *cache.borrow_mut() = C::new(format);
    drop(space);
    prop_assert!(memory.0.borrow().used.is_empty(), "tables are left over");
    Ok(())
}

proptest! {
    #[test]
    fn of_processors(steps in steps()) {
        nothing_stale::<Processor>(LongMode, steps)?;
    }

    #[test]
    fn of_amdvi(steps in steps(), levels in 3u8..=6) {
        nothing_stale::<AmdVi>(amdvi::page::HostFormat { levels }, steps)?;
    }

    #[test]
    fn of_vtd(steps in steps(), levels in 3u8..=5, largest_leaf in 1u8..=3, snoop: bool) {
        nothing_stale::<Vtd>(vtd::page::SecondLevel { levels, largest_leaf, snoop }, steps)?;
    }
}

#[derive(Clone, Debug)]
enum Loan {
    Lend(u64),
    Withhold(u64),
    Touch(Vec<u64>),
    Settle,
}

fn loans() -> impl Strategy<Value = Vec<Loan>> {
    let page = || prop_oneof![0u64..8, 508u64..516, 0u64..520];
    let step = prop_oneof![
        4 => page().prop_map(Loan::Lend),
        4 => page().prop_map(Loan::Withhold),
        4 => prop::collection::vec(page(), 1..40).prop_map(Loan::Touch),
        3 => Just(Loan::Settle),
    ];
    prop::collection::vec(step, 1..60)
}

/// Memory of a paravirtual guest: its devices reach what is lent to them page by page, and nothing of what was withheld once that is settled.
fn lent<C: Cache>(format: C::Format, steps: Vec<Loan>) -> Result<(), TestCaseError> {
    const FIRST: u64 = 4096;
    const PAGES: u64 = 520;
    let cache = Rc::new(RefCell::new(C::new(format)));
    let memory = Memory::default();
    memory.0.borrow_mut().left = 1000;
    let frames = Frames { memory: memory.clone(), cache: cache.clone() };
    let view = TableView::new(format, frames, User(cache.clone())).unwrap();
    cache.borrow_mut().attach(&memory, view.root());
    let mut space = Space::new(Pins::default());
    space.add_view(view).unwrap();
    space.issue(0, Hpa::new(FIRST * PAGE_SIZE), PAGES * PAGE_SIZE, Rights::UNLENT).unwrap();
    space.settle(&(), |_, _| ());
    let mut model = BTreeSet::new();
    // Each by itself, so that no page need be split later.
    for page in 0..PAGES {
        space.lend(page * PAGE_SIZE, PAGE_SIZE, Rights::MEMORY.party).unwrap();
        model.insert(page);
    }
    prop_assert_eq!(space.lend(PAGES * PAGE_SIZE, PAGE_SIZE, Rights::MEMORY.party), Err(IssueError::Absent));
    for step in steps {
        match step {
            Loan::Lend(page) => {
                space.lend(page * PAGE_SIZE, PAGE_SIZE, Rights::MEMORY.party).unwrap();
                model.insert(page);
            }
            Loan::Withhold(page) => {
                // Not even without memory for tables.
                let left = core::mem::take(&mut memory.0.borrow_mut().left);
                space.withhold(page * PAGE_SIZE, PAGE_SIZE).unwrap();
                memory.0.borrow_mut().left = left;
                model.remove(&page);
            }
            Loan::Touch(pages) => {
                pages.iter().for_each(|page| cache.borrow_mut().fill(&memory, page * PAGE_SIZE));
            }
            Loan::Settle => {
                space.settle(&(), |_, _| panic!("nothing was given back"));
                for (at, len, hpa, access) in cache.borrow().pages() {
                    prop_assert_eq!((len, hpa.as_u64()), (PAGE_SIZE, at + FIRST * PAGE_SIZE));
                    prop_assert!(model.contains(&(at / PAGE_SIZE)), "page {:#x} was withheld", at);
                    prop_assert_eq!(access, Rights::MEMORY.party);
                }
            }
        }
        let whole =
            Piece { at: 0, hpa: Hpa::new(FIRST * PAGE_SIZE), len: PAGES * PAGE_SIZE, rights: Rights::UNLENT };
        prop_assert!(space.pieces().eq([whole]), "it is issued as before");
        let mut shown = BTreeSet::new();
        for view in space.views() {
            view.visit(&mut |at, _, len, _| shown.extend(at / PAGE_SIZE..(at + len) / PAGE_SIZE));
        }
        prop_assert_eq!(&shown, &model);
    }
    // An owner that is gone walks no more.
    *cache.borrow_mut() = C::new(format);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn of_lent_amdvi(steps in loans(), levels in 3u8..=6) {
        lent::<AmdVi>(amdvi::page::HostFormat { levels }, steps)?;
    }

    #[test]
    fn of_lent_vtd(steps in loans(), levels in 3u8..=5, largest_leaf in 1u8..=3, snoop: bool) {
        lent::<Vtd>(vtd::page::SecondLevel { levels, largest_leaf, snoop }, steps)?;
    }
}

#[test]
fn processors_reach_what_is_lent_to_devices_or_not() {
    let cache = Rc::new(RefCell::new(Processor::new(LongMode)));
    let memory = Memory::default();
    memory.0.borrow_mut().left = 1000;
    let frames = Frames { memory: memory.clone(), cache: cache.clone() };
    let mut space = Space::new(Pins::default());
    space.add_view(TableView::new(LongMode, frames, User(cache)).unwrap()).unwrap();
    space.issue(0, Hpa::new(1 << 24), 4 * PAGE_SIZE, Rights::UNLENT).unwrap();
    space.settle(&(), |_, _| ());
    space.lend(0, 2 * PAGE_SIZE, Rights::MEMORY.party).unwrap();
    space.withhold(PAGE_SIZE, PAGE_SIZE).unwrap();
    assert!(space.is_settled(), "nothing has changed for them");
    let mut shown = 0;
    space.views().for_each(|view| view.visit(&mut |_, _, len, _| shown += len));
    assert_eq!(shown, 4 * PAGE_SIZE);
}

#[derive(Clone, Debug)]
enum Layer {
    Cover { page: u64, frame: u64, rights: usize },
    Uncover(u64),
    Touch(Vec<u64>),
    Settle,
    Starve(u32),
}

fn covers() -> impl Strategy<Value = Vec<Layer>> {
    let page = || prop_oneof![0u64..8, 508u64..516, 0u64..1030];
    let frame = prop_oneof![9 => 100u64..104, 1 => FOREIGN..FOREIGN + 2];
    let step = prop_oneof![
        4 => (page(), frame, 0..2usize).prop_map(|(page, frame, rights)| Layer::Cover { page, frame, rights }),
        4 => page().prop_map(Layer::Uncover),
        4 => prop::collection::vec(page(), 1..40).prop_map(Layer::Touch),
        3 => Just(Layer::Settle),
        1 => (0u32..6).prop_map(Layer::Starve),
    ];
    prop::collection::vec(step, 1..60)
}

/// Pages come over a sink of two large pages, and go.
fn nothing_stale_over_a_sink<C: Cache>(format: C::Format, steps: Vec<Layer>) -> Result<(), TestCaseError> {
    const SINK: u64 = 512;
    const PAGES: u64 = 1024;
    let data = Access::READ | Access::WRITE;
    let rights = [
        Rights::window(Contents::Lent(1)),
        Rights { owner: Access::READ, party: Access::READ, contents: Contents::Lent(1) },
    ];
    let cache = Rc::new(RefCell::new(C::new(format)));
    let memory = Memory::default();
    memory.0.borrow_mut().left = 20;
    let frames = Frames { memory: memory.clone(), cache: cache.clone() };
    let view = TableView::new(format, frames, User(cache.clone())).unwrap();
    cache.borrow_mut().attach(&memory, view.root());
    let pins = Pins::default();
    let mut space = Space::new(pins.clone());
    space.add_view(view).unwrap();
    for large in 0..2 {
        let (at, len) = (large * 512 * PAGE_SIZE, 512 * PAGE_SIZE);
        space.issue(at, Hpa::new(SINK * PAGE_SIZE), len, Rights::window(Contents::Sink)).unwrap();
    }
    space.settle(&(), |_, _| ());
    prop_assert!(!space.is_free(0, PAGE_SIZE) && !space.is_free((PAGES - 1) * PAGE_SIZE, 2 * PAGE_SIZE));
    prop_assert!(
        space.is_free(PAGES * PAGE_SIZE, PAGES * PAGE_SIZE) && !space.is_free(PAGE_SIZE / 2, PAGE_SIZE)
    );
    let mut model: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut retired: Vec<u64> = Vec::new();
    for step in steps {
        match step {
            Layer::Cover { page, frame, rights: which } => {
                if model.contains_key(&page) {
                    continue;
                }
                match space.cover(page * PAGE_SIZE, Hpa::new(frame * PAGE_SIZE), rights[which]) {
                    Ok(()) => {
                        prop_assert!(frame < FOREIGN && page < PAGES);
                        model.insert(page, (frame, which));
                    }
                    Err(IssueError::Absent) => prop_assert!(page >= PAGES),
                    Err(IssueError::Foreign) => prop_assert!(frame >= FOREIGN),
                    Err(error) => {
                        prop_assert_eq!(error, IssueError::OutOfMemory);
                        retired.push(frame);
                    }
                }
            }
            Layer::Uncover(page) => {
                if let Some((frame, _)) = model.remove(&page) {
                    space.uncover(page * PAGE_SIZE, Hpa::new(frame * PAGE_SIZE)).unwrap();
                    retired.push(frame);
                }
            }
            Layer::Touch(pages) => {
                pages.iter().for_each(|page| cache.borrow_mut().fill(&memory, page * PAGE_SIZE))
            }
            Layer::Settle => {
                space.settle(&(), |_, _| ());
                retired.clear();
                for (at, len, hpa, access) in cache.borrow().pages() {
                    for n in 0..len / PAGE_SIZE {
                        let page = at / PAGE_SIZE + n;
                        let is = (hpa.as_u64() / PAGE_SIZE + n, access & data);
                        let sink = (SINK + page % 512, data);
                        let wanted =
                            model.get(&page).map(|(frame, which)| (*frame, C::access(rights[*which])));
                        prop_assert_eq!(is, wanted.unwrap_or(sink));
                    }
                }
            }
            Layer::Starve(left) => memory.0.borrow_mut().left = left,
        }
        // There is no moment at which nothing is there.
        let mut shown = BTreeMap::new();
        space.views().for_each(|view| {
            view.visit(&mut |at, hpa, len, _| {
                (0..len / PAGE_SIZE)
                    .for_each(|n| _ = shown.insert(at / PAGE_SIZE + n, hpa.as_u64() / PAGE_SIZE + n));
            });
        });
        for page in 0..PAGES {
            let wanted = model.get(&page).map_or(SINK + page % 512, |(frame, _)| *frame);
            prop_assert_eq!(shown.get(&page), Some(&wanted));
        }
        // What may still be reached stays pinned, and so often.
        for frame in 100..104 {
            let covered = model.values().filter(|(shown, _)| *shown == frame).count();
            let waiting = retired.iter().filter(|waiting| **waiting == frame).count();
            prop_assert_eq!(pins.0.borrow().get(&frame).copied().unwrap_or(0) as usize, covered + waiting);
        }
    }
    // An owner that is gone walks no more.
    *cache.borrow_mut() = C::new(format);
    drop(space);
    prop_assert!(memory.0.borrow().used.is_empty(), "tables are left over");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn of_processors_over_a_sink(steps in covers()) {
        nothing_stale_over_a_sink::<Processor>(LongMode, steps)?;
    }

    #[test]
    fn of_amdvi_over_a_sink(steps in covers(), levels in 3u8..=6) {
        nothing_stale_over_a_sink::<AmdVi>(amdvi::page::HostFormat { levels }, steps)?;
    }

    #[test]
    fn of_vtd_over_a_sink(steps in covers(), levels in 3u8..=5, largest_leaf in 1u8..=3, snoop: bool) {
        nothing_stale_over_a_sink::<Vtd>(vtd::page::SecondLevel { levels, largest_leaf, snoop }, steps)?;
    }
}

#[test]
fn only_a_sink_is_covered() {
    let cache = Rc::new(RefCell::new(Processor::new(LongMode)));
    let memory = Memory::default();
    memory.0.borrow_mut().left = 20;
    let frames = Frames { memory, cache: cache.clone() };
    let mut space = Space::new(Pins::default());
    space.add_view(TableView::new(LongMode, frames, User(cache.clone())).unwrap()).unwrap();
    let (lent, page) = (Rights::window(Contents::Lent(1)), Hpa::new(100 * PAGE_SIZE));
    for (at, rights) in [(0, Rights::MEMORY), (PAGE_SIZE, Rights::DEVICE), (2 * PAGE_SIZE, lent)] {
        space.issue(at, Hpa::new(50 * PAGE_SIZE), PAGE_SIZE, rights).unwrap();
        assert_eq!(space.cover(at, page, lent), Err(IssueError::Absent));
        assert_eq!(space.uncover(at, page), Err(IssueError::Absent));
    }
    assert_eq!(space.cover(1, page, lent), Err(IssueError::BadRange));
    // A sink is found where it is, and no more once it was taken away or is something else.
    let (at, sink) = (8 * PAGE_SIZE, Hpa::new(60 * PAGE_SIZE));
    for other in [None, Some(lent)] {
        space.issue(at, sink, PAGE_SIZE, Rights::window(Contents::Sink)).unwrap();
        assert_eq!(space.cover(at, page, lent), Ok(()));
        assert_eq!(space.uncover(at, page), Ok(()));
        space.revoke(at, PAGE_SIZE).unwrap();
        if let Some(rights) = other {
            space.issue(at, sink, PAGE_SIZE, rights).unwrap();
        }
        assert_eq!(space.cover(at, page, lent), Err(IssueError::Absent));
        assert_eq!(space.uncover(at, page), Err(IssueError::Absent));
    }
}
