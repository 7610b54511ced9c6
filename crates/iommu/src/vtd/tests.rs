//! Formats together, against the unit of `model`: what is written leads where it should, and what is taken away is not
//! cached once the descriptors for it are carried out.

use super::context::{ContextEntry, context_offset, root_entry, root_offset};
use super::model::{Model, walk};
use super::page::SecondLevel;
use super::queue::{Descriptor, Limits};
use crate::{Invalidation, RequesterId, SpaceTag};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::RefCell;
use proptest::prelude::*;
use sluice_memory::{Access, Format, Hpa, Iova, PAGE_SIZE, PhysicalMemory, TableFrames, Tables};

const RW: Access = Access::READ.union(Access::WRITE);
const LIMITS: Limits = Limits { largest_order: Some(9), drains_reads: false, drains_writes: true };
const REQUESTER: RequesterId = RequesterId::new(3, 7, 2);
const TAG: SpaceTag = SpaceTag(0xa5);

/// Frames for tables; what is freed is kept aside until it is retired.
struct Frames {
    words: RefCell<BTreeMap<u64, u64>>,
    used: BTreeSet<u64>,
    freed: Vec<Hpa>,
    next: u64,
}

impl Frames {
    fn new() -> Self {
        Self { words: RefCell::default(), used: BTreeSet::new(), freed: Vec::new(), next: 0x8_0000_0000 }
    }

    fn check(&self, at: Hpa) -> u64 {
        assert!(at.is_aligned(8) && self.used.contains(&(at.as_u64() & !0xfff)), "{at} is in no table");
        at.as_u64()
    }

    fn retire(&mut self) {
        for frame in core::mem::take(&mut self.freed) {
            assert!(self.used.remove(&frame.as_u64()));
        }
    }
}

impl PhysicalMemory for Frames {
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
        self.words.borrow().get(&self.check(at)).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.words.borrow_mut().insert(self.check(at), value);
    }
}

impl TableFrames for Frames {
    fn allocate_table(&mut self) -> Option<Hpa> {
        self.next += PAGE_SIZE;
        self.used.insert(self.next);
        Some(Hpa::new(self.next))
    }
    fn free_table(&mut self, frame: Hpa) {
        self.freed.push(frame);
    }
}

/// Writes an entry of the root or a context table.
fn put(frames: &Frames, table: Hpa, offset: u64, [low, high]: [u64; 2]) {
    frames.write_u64(Hpa::new(table.as_u64() + offset + 8), high);
    frames.write_u64(Hpa::new(table.as_u64() + offset), low);
}

/// A root table in which one requester leads to a space.
fn attached(frames: &mut Frames, tables: &Tables<SecondLevel>, format: SecondLevel) -> Hpa {
    let (root, contexts) = (frames.allocate_table().unwrap(), frames.allocate_table().unwrap());
    put(frames, root, root_offset(REQUESTER), [root_entry(contexts), 0]);
    let entry = ContextEntry { tag: TAG, root: tables.root(), levels: format.levels };
    put(frames, contexts, context_offset(REQUESTER), entry.encode());
    root
}

fn formats() -> impl Strategy<Value = SecondLevel> {
    (3u8..=5, 1u8..=3, any::<bool>()).prop_map(|(levels, largest_leaf, snoop)| SecondLevel {
        levels,
        largest_leaf,
        snoop,
    })
}

/// Kind, first page, pages, target, rights, alignment.
type Op = (u8, u64, u64, u64, u8, bool);

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let pages = prop::sample::select(&[1u64, 2, 64, 511, 512, 1024][..]);
    prop::collection::vec((0u8..4, 0u64..1500, pages, 0u64..4, 1u8..4, any::<bool>()), 1..most)
}

/// Tables and, page by page, what should be in them.
struct Space {
    tables: Tables<SecondLevel>,
    model: BTreeMap<u64, (u64, Access)>,
    base: u64,
}

impl Space {
    fn new(format: SecondLevel, frames: &mut Frames) -> Self {
        let tables = Tables::with_format(format, frames).unwrap();
        // Around the border of two pages of 1 GiB, high up in what the levels reach.
        let base = (1 << (9 * format.levels())) - 2 * (1 << 18) - 700;
        Self { tables, model: BTreeMap::new(), base }
    }

    /// Does it, and says what a unit may have known of it, and whether that was something mapped.
    fn change(
        &mut self,
        frames: &mut Frames,
        (kind, page, pages, to, bits, aligned): Op,
    ) -> (Invalidation, bool) {
        let first = if aligned { (self.base + page) & !511 } else { self.base + page };
        let (at, len) = (Iova::new(first * PAGE_SIZE), pages * PAGE_SIZE);
        let access = Access::from_bits_truncate(bits);
        let range = first..first + pages;
        let flush = match kind {
            0 | 1 => {
                // Targets below 39 bits, some with the same low bits.
                let target = (first & 0x3_ffff) + to * 0x4_0000 + u64::from(to == 3);
                self.model.extend(range.map(|page| (page, (page - first + target, access))));
                self.tables.map(frames, at, Hpa::new(target * PAGE_SIZE), len, access)
            }
            2 => {
                self.model.retain(|page, _| !range.contains(page));
                self.tables.unmap(frames, at, len)
            }
            _ => {
                self.model.range_mut(range).for_each(|(_, old)| old.1 = access);
                self.tables.protect(frames, at, len, access)
            }
        };
        (Invalidation::covering(TAG, at, len), flush.unwrap())
    }

    fn probes(&self) -> impl Iterator<Item = u64> + use<> {
        let base = self.base;
        (base - 3..base + 2600).step_by(61).chain([base + 511, base + 512, base + 700])
    }

    /// All that is cached is what is mapped now.
    fn stale(&self, unit: &Model) -> Option<u64> {
        unit.cached().find_map(|(tag, at, len, hpa, access)| {
            assert_eq!(tag, TAG);
            let first = at.as_u64() / PAGE_SIZE;
            (0..len / PAGE_SIZE).map(|n| (first + n, n)).find_map(|(page, n)| {
                let now = self.model.get(&page).copied();
                (now != Some((hpa.as_u64() / PAGE_SIZE + n, access))).then_some(page)
            })
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The walk from root entry to page finds what was mapped, with its rights, and else faults.
    #[test]
    fn tables_lead_where_they_should(format in formats(), ops in ops(20)) {
        let mut frames = Frames::new();
        let mut space = Space::new(format, &mut frames);
        let root = attached(&mut frames, &space.tables, format);
        for op in ops {
            space.change(&mut frames, op);
            frames.retire();
        }
        for page in space.probes() {
            let at = Iova::new(page * PAGE_SIZE + 0x9a8);
            let expected = match space.model.get(&page) {
                Some(&(to, access)) => Ok((TAG, Hpa::new(to * PAGE_SIZE + 0x9a8), access)),
                None => Err(6),
            };
            let found = walk(&frames, root, REQUESTER, at);
            prop_assert_eq!(found.map(|(tag, hpa, access, _)| (tag, hpa, access)), expected);
            if let Ok((.., bytes)) = found {
                prop_assert!(bytes <= 1 << (3 + 9 * (u32::from(format.largest_leaf))));
            }
        }
        let above = Iova::new(1 << (12 + 9 * format.levels()));
        prop_assert_eq!(walk(&frames, root, REQUESTER, above).err(), Some(4));
        // Neighbours of the requester are blocked: by their context entry, or by their bus's root entry.
        let at = Iova::new(space.base * PAGE_SIZE);
        prop_assert_eq!(walk(&frames, root, RequesterId(REQUESTER.0 + 1), at).err(), Some(2));
        prop_assert_eq!(walk(&frames, root, RequesterId(REQUESTER.0 ^ 0x100), at).err(), Some(1));
    }

    /// The smallest cover of a change, as the unit understands its descriptor, leaves nothing stale in it and no way
    /// into a table that is out of use. In a unit that remembers what is absent, that takes one for each change.
    #[test]
    fn descriptors_leave_nothing_stale(format in formats(), ops in ops(10), absent: bool) {
        let mut frames = Frames::new();
        let mut space = Space::new(format, &mut frames);
        let root = attached(&mut frames, &space.tables, format);
        let mut unit = if absent { Model::caching_absent(root) } else { Model::new(root) };
        for op in ops {
            for page in space.probes() {
                unit.fill(REQUESTER, Iova::new(page * PAGE_SIZE), &frames);
            }
            let (what, stale) = space.change(&mut frames, op);
            // Requests between the change and the invalidation find old ways and new ones.
            for page in space.probes() {
                unit.fill(REQUESTER, Iova::new(page * PAGE_SIZE), &frames);
            }
            if absent || stale {
                unit.apply(&Descriptor::translations(what, LIMITS).bytes());
            }
            frames.retire();
            if absent {
                let known_absent = unit.cached().find(|(_, at, len, _, access)| {
                    let first = at.as_u64() / PAGE_SIZE;
                    access.is_empty() && space.model.range(first..first + len / PAGE_SIZE).next().is_some()
                });
                prop_assert_eq!(known_absent, None);
            } else {
                prop_assert_eq!(space.stale(&unit), None);
            }
            for table in unit.cached_tables() {
                prop_assert!(frames.used.contains(&table.as_u64()), "{} is cached and out of use", table);
            }
        }
    }

    /// What is detached stays cached until its context entry, then its space, are forgotten.
    #[test]
    fn detaching_takes_both(format in formats(), other: u16) {
        prop_assume!(other != REQUESTER.0);
        let mut frames = Frames::new();
        let mut space = Space::new(format, &mut frames);
        let root = attached(&mut frames, &space.tables, format);
        space.change(&mut frames, (0, 0, 512, 1, 3, true));
        let at = Iova::new(((space.base) & !511) * PAGE_SIZE);
        let mut unit = Model::new(root);
        unit.fill(REQUESTER, at, &frames);
        let bus = Hpa::new(frames.read_u64(Hpa::new(root.as_u64() + root_offset(REQUESTER))) & !0xfff);
        put(&frames, bus, context_offset(REQUESTER), [0, 0]);
        prop_assert_eq!(walk(&frames, root, REQUESTER, at).err(), Some(2));
        // Of another requester, or another space: nothing is forgotten.
        for (requester, tag) in [(RequesterId(other), TAG), (REQUESTER, SpaceTag(TAG.0 ^ 1))] {
            unit.apply(&Descriptor::Context { requester, tag }.bytes());
        }
        unit.apply(&Descriptor::translations(Invalidation::Space(TAG), LIMITS).bytes());
        prop_assert_eq!(unit.reaches(REQUESTER).len(), 1);
        unit.fill(REQUESTER, at, &frames);
        prop_assert!(unit.cached().next().is_some(), "the stale context entry leads on");
        unit.apply(&Descriptor::Context { requester: REQUESTER, tag: TAG }.bytes());
        unit.apply(&Descriptor::translations(Invalidation::Space(TAG), LIMITS).bytes());
        unit.fill(REQUESTER, at, &frames);
        prop_assert!(unit.cached().next().is_none() && unit.cached_tables().next().is_none());
    }
}

/// The model can tell: without the descriptor, with one of another space, or with one that names too little.
#[test]
fn the_model_notices() {
    let format = SecondLevel { levels: 4, largest_leaf: 3, snoop: false };
    let cached_after = |what: Option<Invalidation>| {
        let mut frames = Frames::new();
        let mut space = Space::new(format, &mut frames);
        let root = attached(&mut frames, &space.tables, format);
        let at = Iova::new(1 << 30);
        space.tables.map(&mut frames, at, Hpa::new(0), 1 << 21, RW).unwrap();
        let mut unit = Model::new(root);
        unit.fill(REQUESTER, at, &frames);
        unit.fill(REQUESTER, Iova::new((1 << 30) + 0x1f_f000), &frames);
        space.tables.unmap(&mut frames, at, 1 << 21).unwrap();
        if let Some(what) = what {
            unit.apply(&Descriptor::translations(what, LIMITS).bytes());
        }
        unit.cached().map(|(_, at, len, ..)| (at.as_u64() - (1 << 30), len)).collect::<Vec<_>>()
    };
    let pages = |space, offset: u64, order| {
        Some(Invalidation::Pages { space, at: Iova::new((1 << 30) + offset), order })
    };
    assert_eq!(cached_after(None), [(0, 1 << 21)]);
    assert_eq!(cached_after(Some(Invalidation::Space(SpaceTag(1)))), [(0, 1 << 21)]);
    assert_eq!(cached_after(pages(SpaceTag(1), 0, 9)), [(0, 1 << 21)]);
    // A unit may hold a large page in small pieces: all of it has to be named.
    assert_eq!(cached_after(pages(TAG, 0x1000, 0)), [(0, 0x1000), (0x2000, 0x1f_e000)]);
    assert_eq!(cached_after(pages(TAG, 0, 9)), []);
    assert_eq!(cached_after(Some(Invalidation::Space(TAG))), []);
    assert_eq!(cached_after(Some(Invalidation::Everything)), []);
}

/// A large page that is split and whose table goes again: the way through the table is forgotten, too.
#[test]
fn ways_into_retired_tables_are_forgotten() {
    let format = SecondLevel { levels: 3, largest_leaf: 2, snoop: true };
    let mut frames = Frames::new();
    let mut space = Space::new(format, &mut frames);
    let root = attached(&mut frames, &space.tables, format);
    space.tables.map(&mut frames, Iova::new(0x1000), Hpa::new(0x5000), 0x1000, RW).unwrap();
    let mut unit = Model::new(root);
    unit.fill(REQUESTER, Iova::new(0x1000), &frames);
    assert!(space.tables.map(&mut frames, Iova::new(0), Hpa::new(0), 1 << 21, RW).unwrap());
    let small = frames.freed.clone();
    assert_eq!(small.len(), 1);
    let reached = |unit: &Model| unit.cached_tables().any(|table| small.contains(&table));
    assert!(reached(&unit));
    // Only the one page: the table's last user would be forgotten by a unit that obeys the hint, the way to it is by
    // this one, which gets none.
    let page = Invalidation::Pages { space: TAG, at: Iova::new(0x1000), order: 0 };
    let mut hinted = Descriptor::translations(page, LIMITS).bytes();
    hinted[8] |= 1 << 6;
    unit.apply(&hinted);
    assert!(reached(&unit));
    unit.apply(&Descriptor::translations(page, LIMITS).bytes());
    assert!(!reached(&unit));
}
