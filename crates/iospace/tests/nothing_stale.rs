//! QEMU forgives missing flushes; this does not. Processors are modelled as caching whatever they ever could, tables on
//! the way included, and forgetting only what they are told to. After every `settle` nothing is cached that the space does
//! not say, and no frame was given back while anybody could still reach it.

use proptest::prelude::*;
use sluice_iospace::{Audience, IssueError, Piece, Rights, Space, Stale, TableView};
use sluice_memory::{Access, Format, Hpa, LongMode, PAGE_SIZE, PhysicalMemory, TableFrames};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What the processors have cached: for an address, what the walk read on its way.
#[derive(Default)]
struct Cached {
    /// By page: memory and rights.
    pages: BTreeMap<u64, (Hpa, Access)>,
    /// By page: the tables that were walked.
    walks: BTreeMap<u64, Vec<Hpa>>,
}

#[derive(Default)]
struct Machine {
    words: BTreeMap<u64, u64>,
    used: BTreeSet<u64>,
    next: u64,
    left: u32,
    cached: Cached,
}

/// Table frames; all clones are the same memory.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Machine>>);

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
        let machine = self.0.borrow();
        assert!(machine.used.contains(&(at.as_u64() & !0xfff)), "{at} is no table in use");
        machine.words.get(&at.as_u64()).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.0.borrow_mut().words.insert(at.as_u64(), value);
    }
}

impl TableFrames for Memory {
    fn allocate_table(&mut self) -> Option<Hpa> {
        let mut machine = self.0.borrow_mut();
        machine.left = machine.left.checked_sub(1)?;
        machine.next += PAGE_SIZE;
        let frame = 1 << 40 | machine.next;
        machine.used.insert(frame);
        Some(Hpa::new(frame))
    }
    fn free_table(&mut self, frame: Hpa) {
        let mut machine = self.0.borrow_mut();
        assert!(machine.used.remove(&frame.as_u64()), "{frame} freed twice");
        machine.words.retain(|at, _| at & !0xfff != frame.as_u64());
        let walked = machine.cached.walks.values().flatten().any(|table| *table == frame);
        assert!(!walked, "{frame} is free, and a walk may still go through it");
    }
}

struct Processors(Memory);

impl Audience for Processors {
    type Owner = ();
    fn access(&self, rights: Rights) -> Access {
        rights.owner
    }
    fn caches_absent(&self) -> bool {
        false
    }
    fn forget(&mut self, (): &(), stale: &Stale) {
        let cached = &mut self.0.0.borrow_mut().cached;
        let keep = |page: &u64| stale.ranges().is_some_and(|ranges| !ranges.iter().any(|r| r.contains(page)));
        cached.pages.retain(|page, _| keep(page));
        cached.walks.retain(|page, _| keep(page));
    }
}

type View = TableView<LongMode, Memory, Processors>;

/// A processor uses a page: it caches what it finds, unless it has something cached already.
fn touch(memory: &Memory, root: Hpa, page: u64) {
    let mut walked = Vec::new();
    let mut table = root;
    let mut found = None;
    for level in (1..=4u32).rev() {
        walked.push(table);
        let shift = 12 + 9 * (level - 1);
        let entry = memory.read_u64(Hpa::new(table.as_u64() + (page >> shift & 511) * 8));
        match LongMode.decode(entry, level) {
            sluice_memory::Entry::Absent => break,
            sluice_memory::Entry::Table(next) => table = next,
            sluice_memory::Entry::Leaf(hpa, access) => {
                found = Some((Hpa::new(hpa.as_u64() + page % (1 << shift)), access));
                break;
            }
        }
    }
    let cached = &mut memory.0.borrow_mut().cached;
    cached.walks.entry(page).or_insert(walked);
    if let Some(found) = found {
        cached.pages.entry(page).or_insert(found);
    }
}

const RIGHTS: [Rights; 3] = [
    Rights::MEMORY,
    Rights { owner: Access::READ, party: Access::READ },
    Rights { owner: Access::empty(), party: Access::WRITE },
];

#[derive(Clone, Debug)]
enum Step {
    Issue { page: u64, pages: u64, rights: usize },
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
        4 => (page(), pages(), 0..3usize).prop_map(|(page, pages, rights)| Step::Issue { page, pages, rights }),
        2 => (page(), pages(), 0..3usize).prop_map(|(page, pages, rights)| Step::Change { page, pages, rights }),
        3 => (page(), pages()).prop_map(|(page, pages)| Step::Revoke { page, pages }),
        4 => prop::collection::vec(0u64..3000, 1..40).prop_map(Step::Touch),
        3 => Just(Step::Settle),
        1 => (0u32..6).prop_map(Step::Starve),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn nothing_stale_after_settle(steps in steps()) {
        let memory = Memory::default();
        memory.0.borrow_mut().left = 1000;
        let mut space = Space::new();
        space.add_view(View::new(LongMode, memory.clone(), Processors(memory.clone())).unwrap()).unwrap();
        space.settle(&(), |_, _| ());
        let root = space.views().next().unwrap().root();
        // By page: where it is and what the processors may do; the test's own idea of the space.
        let mut model: BTreeMap<u64, (u64, Rights)> = BTreeMap::new();
        let mut issued = 0;
        let mut revoked: BTreeSet<u64> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Issue { page, pages, rights } => {
                    // Every page issued is another one, sometimes aligned so that large pages come about.
                    issued += 1u64;
                    let first = issued * 4096 + if page % 3 == 0 { page % 512 } else { 1 };
                    let taken = (page..page + pages).any(|page| model.contains_key(&page));
                    let result = space.issue(page * PAGE_SIZE, Hpa::new(first * PAGE_SIZE), pages * PAGE_SIZE, RIGHTS[rights]);
                    match result {
                        Ok(()) => {
                            prop_assert!(!taken);
                            model.extend((0..pages).map(|n| (page + n, (first + n, RIGHTS[rights]))));
                        }
                        Err(IssueError::Taken) => prop_assert!(taken),
                        Err(error) => prop_assert_eq!(error, IssueError::OutOfMemory),
                    }
                }
                Step::Change { page, pages, rights } => {
                    let there = (page..page + pages).all(|page| model.contains_key(&page));
                    match space.change(page * PAGE_SIZE, pages * PAGE_SIZE, RIGHTS[rights]) {
                        Ok(()) => {
                            prop_assert!(there);
                            (page..page + pages).for_each(|page| model.get_mut(&page).unwrap().1 = RIGHTS[rights]);
                        }
                        Err(IssueError::Absent) => prop_assert!(!there),
                        Err(error) => {
                            // The space says what rights are left.
                            prop_assert_eq!(error, IssueError::OutOfMemory);
                            for piece in space.pieces() {
                                for n in 0..piece.len / PAGE_SIZE {
                                    let page = model.get_mut(&(piece.at / PAGE_SIZE + n)).unwrap();
                                    prop_assert!(piece.rights == page.1 || piece.rights == Rights::NONE || piece.rights == RIGHTS[rights]);
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
                Step::Touch(pages) => pages.iter().for_each(|page| touch(&memory, root, page * PAGE_SIZE)),
                Step::Starve(left) => memory.0.borrow_mut().left = left,
                Step::Settle => {
                    let mut freed = BTreeSet::new();
                    space.settle(&(), |hpa, len| {
                        let first = hpa.as_u64() / PAGE_SIZE;
                        for frame in first..first + len / PAGE_SIZE {
                            assert!(freed.insert(frame), "given back twice");
                            let reached = memory.0.borrow().cached.pages.values().any(|(at, _)| at.as_u64() / PAGE_SIZE == frame);
                            assert!(!reached, "given back while it can be reached");
                        }
                    });
                    prop_assert_eq!(&freed, &core::mem::take(&mut revoked));
                    prop_assert!(space.is_settled());
                    for (at, (hpa, access)) in &memory.0.borrow().cached.pages {
                        let (frame, rights) = model.get(&(at / PAGE_SIZE)).expect("cached, not issued");
                        prop_assert_eq!((hpa.as_u64(), *access), (frame * PAGE_SIZE, rights.owner));
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
        }
        // An owner that is gone walks no more.
        memory.0.borrow_mut().cached = Cached::default();
        drop(space);
        prop_assert!(memory.0.borrow().used.is_empty(), "tables are left over");
    }
}
