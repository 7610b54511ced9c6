//! A unit that forgets nothing it is not told to forget: for tests, which QEMU would forgive a missing invalidation.
//!
//! [`Model`] reads tables and descriptors as the manual describes them (D51397, chapters 6 and 9) and shares no code with
//! what writes them. It caches every context entry, every entry of a table on the way and every page that a walk could
//! have led to, by all ways at once, stale ones included; it drops what a descriptor's bytes say, and of a large page
//! only the part that they name, as a unit may have cached it in small pieces.
//!
//! Deviations: root entries are not cached: the driver writes each once. Invalidations are carried out at once.

use crate::{RequesterId, SpaceTag};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use sluice_memory::{Access, Hpa, Iova, PhysicalMemory};

const READ: u8 = 1;
const WRITE: u8 = 2;

/// An entry of a table on the way, cached: where the next lower table is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Step {
    tag: u16,
    /// First address below it.
    at: u64,
    /// Level of the table that it leads to; it covers a whole one.
    level: u32,
    table: u64,
    rights: u8,
}

/// A translation, cached; without rights the absence of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Page {
    tag: u16,
    at: u64,
    len: u64,
    hpa: u64,
    rights: u8,
}

/// A context entry, cached: tag, table of the highest level, levels; `None` for one that is not present.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Context {
    requester: u16,
    leads_to: Option<(u16, u64, u32)>,
}

/// A cached page: its space, address, bytes, memory, and what may be done there; nothing, if it is the absence of a page
/// that is cached.
pub type Cached = (SpaceTag, Iova, u64, Hpa, Access);

/// The unit.
#[derive(Clone, Debug)]
pub struct Model {
    root: Hpa,
    caches_absent: bool,
    contexts: BTreeSet<Context>,
    steps: BTreeSet<Step>,
    pages: BTreeSet<Page>,
}

fn field(word: u64, high: u32, low: u32) -> u64 {
    word << (63 - high) >> (63 - high + low)
}

/// Bytes that a whole table of a level covers; 0 is a page.
fn span(level: u32) -> u64 {
    1 << (12 + 9 * level)
}

fn access(rights: u8) -> Access {
    let mut access = Access::empty();
    access.set(Access::READ, rights & READ != 0);
    access.set(Access::WRITE, rights & WRITE != 0);
    access
}

/// Follows one entry down, at `level` (1 is the lowest), which was found at a place that covers `at`.
///
/// # Panics
/// Bits are set that must not be: a unit would report a damaged table.
fn descend(entry: u64, level: u32, tag: u16, at: u64, rights: u8) -> Result<Step, Page> {
    let base = at / span(level - 1) * span(level - 1);
    let rights = rights & field(entry, 1, 0) as u8;
    if field(entry, 1, 0) == 0 {
        return Err(Page { tag, at: base, len: span(level - 1), hpa: 0, rights: 0 });
    }
    assert_eq!(entry >> 52, 0, "bits above the address in {entry:#x}");
    let large = field(entry, 7, 7) == 1;
    if level == 1 || large {
        assert!(level <= 3, "no pages at level {level}: {entry:#x}");
        let hpa = field(entry, 51, 12) << 12;
        assert_eq!(hpa % span(level - 1), 0, "a large page's address is not aligned: {entry:#x}");
        return Err(Page { tag, at: base, len: span(level - 1), hpa, rights });
    }
    assert_eq!(field(entry, 11, 11), 0, "snoop control on the way: {entry:#x}");
    Ok(Step { tag, at: base, level: level - 1, table: field(entry, 51, 12) << 12, rights })
}

/// The context entry of a requester, after the root table at `root`; otherwise the reason of the fault.
///
/// # Panics
/// Reserved bits are set.
fn context(memory: &impl PhysicalMemory, root: Hpa, requester: RequesterId) -> Result<(u16, u64, u32), u8> {
    let word = |table: u64, index: u64| memory.read_u64(Hpa::new(table + 8 * index));
    let bus = u64::from(requester.0 >> 8);
    let low = word(root.as_u64(), 2 * bus);
    assert_eq!(word(root.as_u64(), 2 * bus + 1), 0, "the high half of a root entry is reserved");
    if low & 1 == 0 {
        return Err(1);
    }
    assert_eq!(field(low, 11, 1), 0, "reserved bits of root entry {low:#x}");
    let function = u64::from(requester.0 & 0xff);
    let table = low & !0xfff;
    let (low, high) = (word(table, 2 * function), word(table, 2 * function + 1));
    if low & 1 == 0 {
        return Err(2);
    }
    assert_eq!((field(low, 11, 4), high >> 24), (0, 0), "reserved bits of context entry {high:#x}:{low:#x}");
    assert_eq!(field(low, 1, 1), 0, "faults must be recorded");
    assert_eq!(field(low, 3, 2), 0, "only untranslated requests are let through");
    // 1 is 39 bits, 3 levels.
    let levels = field(high, 2, 0) as u32 + 2;
    assert!((3..=5).contains(&levels), "{levels} levels");
    Ok((field(high, 23, 8) as u16, low & !0xfff, levels))
}

/// What a unit without any cache does with an address: space, memory, rights and bytes of the page; otherwise the reason
/// of the fault, that of a read where nothing is mapped.
///
/// # Errors
/// The fault reason.
///
/// # Panics
/// A table is damaged.
pub fn walk(
    memory: &impl PhysicalMemory,
    root: Hpa,
    requester: RequesterId,
    at: Iova,
) -> Result<(SpaceTag, Hpa, Access, u64), u8> {
    let (tag, table, levels) = context(memory, root, requester)?;
    let at = at.as_u64();
    if at >= span(levels) {
        return Err(4);
    }
    let mut step = Step { tag, at: 0, level: levels, table, rights: READ | WRITE };
    loop {
        let index = at / span(step.level - 1) % 512;
        let entry = memory.read_u64(Hpa::new(step.table + 8 * index));
        match descend(entry, step.level, tag, at, step.rights) {
            Ok(next) => step = next,
            Err(page) if page.rights == 0 => return Err(6),
            Err(page) => {
                let hpa = Hpa::new(page.hpa + at % page.len);
                return Ok((SpaceTag(tag), hpa, access(page.rights), page.len));
            }
        }
    }
}

impl Model {
    /// A unit with its root table there, and nothing cached.
    pub const fn new(root: Hpa) -> Self {
        Self {
            root,
            caches_absent: false,
            contexts: BTreeSet::new(),
            steps: BTreeSet::new(),
            pages: BTreeSet::new(),
        }
    }

    /// The same in caching mode: it remembers what is not present, too.
    pub fn caching_absent(root: Hpa) -> Self {
        Self { caches_absent: true, ..Self::new(root) }
    }

    /// Answers a request for an address in all ways it can, and keeps all that was found.
    ///
    /// # Panics
    /// A table is damaged.
    pub fn fill(&mut self, requester: RequesterId, at: Iova, memory: &impl PhysicalMemory) {
        let now = context(memory, self.root, requester).ok();
        if now.is_some() || self.caches_absent {
            self.contexts.insert(Context { requester: requester.0, leads_to: now });
        }
        let ways: Vec<_> = self.contexts.iter().filter(|known| known.requester == requester.0).collect();
        let ways: Vec<_> = ways.into_iter().filter_map(|known| known.leads_to).collect();
        for (tag, table, levels) in ways {
            self.fill_space(tag, table, levels, at.as_u64(), memory);
        }
    }

    fn fill_space(&mut self, tag: u16, table: u64, levels: u32, at: u64, memory: &impl PhysicalMemory) {
        if at >= span(levels) {
            return;
        }
        let covers = |step: &Step| step.tag == tag && (step.at..step.at + span(step.level)).contains(&at);
        let mut ways: Vec<Step> = self.steps.iter().copied().filter(covers).collect();
        ways.push(Step { tag, at: 0, level: levels, table, rights: READ | WRITE });
        while let Some(Step { level, table, rights, .. }) = ways.pop() {
            let entry = memory.read_u64(Hpa::new(table + 8 * (at / span(level - 1) % 512)));
            match descend(entry, level, tag, at, rights) {
                Ok(next) => {
                    if self.steps.insert(next) {
                        ways.push(next);
                    }
                }
                Err(page) if page.rights == 0 && !self.caches_absent => {}
                Err(page) => {
                    self.pages.insert(page);
                }
            }
        }
    }

    /// Carries out an invalidation descriptor, as it lies in memory.
    ///
    /// # Panics
    /// A unit would refuse it.
    pub fn apply(&mut self, descriptor: &[u8; 16]) {
        let word = u128::from_le_bytes(*descriptor);
        let (low, high) = (word as u64, (word >> 64) as u64);
        let tag = field(low, 31, 16) as u16;
        match (field(low, 3, 0), field(low, 5, 4)) {
            (1, how) => {
                assert_eq!((field(low, 15, 6), low >> 50, high), (0, 0, 0), "reserved bits of {word:#034x}");
                self.forget_contexts(how, tag, field(low, 47, 32) as u16, field(low, 49, 48));
            }
            (2, how) => {
                let reserved = (field(low, 15, 8), low >> 32, field(high, 11, 7));
                assert_eq!(reserved, (0, 0, 0), "reserved bits of {word:#034x}");
                let range = (how == 3).then(|| {
                    let bytes = 1u64 << (12 + field(high, 5, 0));
                    let start = high & !0xfff & !(bytes - 1);
                    (start, start + bytes)
                });
                let hint = field(high, 6, 6) == 1;
                match how {
                    1 => {
                        self.steps.clear();
                        self.pages.clear();
                    }
                    2 | 3 => self.forget_pages(tag, range, hint),
                    _ => panic!("no granularity in {word:#034x}"),
                }
            }
            // Interrupts, and waits: nothing that is cached here.
            (4 | 5, _) => {}
            _ => panic!("no such descriptor: {word:#034x}"),
        }
    }

    fn forget_contexts(&mut self, how: u64, tag: u16, requester: u16, mask: u64) {
        let tagged = |context: &Context| context.leads_to.map_or(0, |(tag, ..)| tag) == tag;
        let ignored = [0u16, 4, 6, 7][mask as usize];
        match how {
            1 => self.contexts.clear(),
            2 => self.contexts.retain(|context| !tagged(context)),
            3 => self
                .contexts
                .retain(|context| !(tagged(context) && context.requester & !ignored == requester & !ignored)),
            _ => panic!("no granularity"),
        }
    }

    fn forget_pages(&mut self, tag: u16, range: Option<(u64, u64)>, hint: bool) {
        let (start, end) = range.unwrap_or((0, u64::MAX));
        let meets = |at: u64, len: u64| at < end && start < at + len;
        if !hint {
            self.steps.retain(|step| step.tag != tag || !meets(step.at, span(step.level)));
        }
        let hit = |page: &&Page| page.tag == tag && meets(page.at, page.len);
        for page in self.pages.iter().filter(hit).copied().collect::<Vec<_>>() {
            self.pages.remove(&page);
            // What lies outside stays, in pieces.
            for (from, to) in [(page.at, start), (end, page.at + page.len)] {
                if from < to {
                    let hpa = if page.rights == 0 { 0 } else { page.hpa + (from - page.at) };
                    self.pages.insert(Page { at: from, len: to - from, hpa, ..page });
                }
            }
        }
    }

    /// The pages that a device may still reach.
    pub fn cached(&self) -> impl Iterator<Item = Cached> {
        self.pages.iter().map(|page| {
            (SpaceTag(page.tag), Iova::new(page.at), page.len, Hpa::new(page.hpa), access(page.rights))
        })
    }

    /// The tables that may still be walked without anything leading there: none of them may be used for anything else
    /// yet. Those of the highest level are in [`Model::reaches`].
    pub fn cached_tables(&self) -> impl Iterator<Item = Hpa> {
        self.steps.iter().map(|step| Hpa::new(step.table))
    }

    /// The spaces that a requester may reach, with their tables of the highest level, as far as its context entry was
    /// seen.
    pub fn reaches(&self, requester: RequesterId) -> Vec<(SpaceTag, Hpa)> {
        let seen = self.contexts.iter().filter(|context| context.requester == requester.0);
        let leads_to = seen.filter_map(|context| context.leads_to);
        leads_to.map(|(tag, table, _)| (SpaceTag(tag), Hpa::new(table))).collect()
    }
}
