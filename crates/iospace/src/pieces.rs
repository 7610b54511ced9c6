//! What is in a space: pieces of consecutive pages that are consecutive in memory too.

use alloc::collections::BTreeMap;
use core::cell::Cell;
use core::ops::Range;
use sluice_memory::{Access, Hpa, PAGE_SIZE};

/// What pages are, as far as it matters whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Memory of the domain that the space belongs to.
    Own,
    /// Registers of a device, or what stands in for them.
    Registers,
    /// Memory of a device of this domain's, by its number: it is the space's own domain, or one that shows this one pages of it.
    DeviceMemory(u16),
    /// Memory of another domain, by its number, which lends it to this one: a part of a window.
    Lent(u16),
    /// What a window shows where nothing is lent: memory that means nothing.
    Sink,
    /// What devices hold for a guest, by its number.
    Region(u16),
}

/// Who may do what with a page, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// What it is.
    pub contents: Contents,
    /// The processors of the guest that the space belongs to.
    pub owner: Access,
    /// Whom the page is lent to: devices, software in a driver domain.
    pub party: Access,
}

impl Rights {
    /// Memory that the guest runs in and its devices use.
    pub const MEMORY: Self = Self {
        contents: Contents::Own,
        owner: Access::READ.union(Access::WRITE).union(Access::EXECUTE),
        party: Access::READ.union(Access::WRITE),
    };

    /// Memory that the guest runs in; its devices use what [`crate::Space::lend`] shows them.
    pub const UNLENT: Self = Self { party: Access::empty(), ..Self::MEMORY };

    /// Registers of a device, for the guest's processors only.
    pub const DEVICE: Self = Self {
        contents: Contents::Registers,
        owner: Access::READ.union(Access::WRITE).union(Access::UNCACHED),
        party: Access::empty(),
    };

    /// A part of a window, which the owner and its devices use as data.
    pub const fn window(contents: Contents) -> Self {
        let data = Access::READ.union(Access::WRITE);
        Self { contents, owner: data, party: data }
    }

    /// Nobody may do anything with the page any more.
    #[must_use]
    pub const fn none(self) -> Self {
        Self { owner: Access::empty(), party: Access::empty(), ..self }
    }
}

/// Consecutive pages of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first in the space.
    pub at: u64,
    /// Where that one is.
    pub hpa: Hpa,
    /// Bytes, whole pages.
    pub len: u64,
    /// Who may do what with them.
    pub rights: Rights,
}

impl Piece {
    fn end(&self) -> u64 {
        self.at + self.len
    }

    /// The part of it within a range that it overlaps.
    fn within(&self, range: &Range<u64>) -> Self {
        let at = self.at.max(range.start);
        let end = self.end().min(range.end);
        Self { at, hpa: Hpa::new(self.hpa.as_u64() + (at - self.at)), len: end - at, rights: self.rights }
    }
}

/// All pieces of a space. None overlap.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    by_address: BTreeMap<u64, Piece>,
    /// What [`Pieces::last`] found: neighbouring pages are mostly asked for one after the other.
    recent: Cell<Option<Piece>>,
}

impl Pieces {
    pub(crate) const fn new() -> Self {
        Self { by_address: BTreeMap::new(), recent: Cell::new(None) }
    }

    /// The pieces that overlap a range, cut to it, in order.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let before = self.by_address.range(..range.start).next_back().map(|(_, piece)| *piece);
        let inside = if range.is_empty() { range.end..range.end } else { range.clone() };
        before
            .filter(|piece| piece.end() > range.start && !range.is_empty())
            .into_iter()
            .chain(self.by_address.range(inside).map(|(_, piece)| *piece))
            .map(move |piece| piece.within(&range))
    }

    /// The last part of a range in which there is something; of one page: that page.
    pub(crate) fn last(&self, range: &Range<u64>) -> Option<Piece> {
        let holds = |piece: &Piece| piece.at <= range.start && range.end <= piece.end();
        if self.recent.get().filter(holds).is_none() {
            self.recent.set(self.last_in(range));
        }
        Some(self.recent.get()?.within(range))
    }

    /// Adds a piece where nothing is.
    pub(crate) fn insert(&mut self, piece: Piece) {
        self.by_address.insert(piece.at, piece);
    }

    /// Whether there is anything in a range.
    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        self.last_in(range).is_some()
    }

    /// The last piece, whole, of which something is in a range.
    fn last_in(&self, range: &Range<u64>) -> Option<Piece> {
        let (_, last) = self.by_address.range(..range.end).next_back()?;
        (last.end() > range.start && !range.is_empty()).then_some(*last)
    }

    /// Takes a range out and hands what was in it to `taken`, from the last piece to the first.
    pub(crate) fn take(&mut self, range: Range<u64>, mut taken: impl FnMut(Piece)) {
        while let Some(whole) = self.last_in(&range) {
            self.recent.set(None);
            self.by_address.remove(&whole.at);
            for rest in [whole.at..range.start, range.end..whole.end()] {
                if rest.start < rest.end {
                    self.insert(whole.within(&rest));
                }
            }
            taken(whole.within(&range));
        }
    }

    /// All pieces, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Piece> {
        self.by_address.values().copied()
    }
}

/// The addresses of a range of whole pages; `None` if it is not that.
pub(crate) fn range(at: u64, len: u64) -> Option<Range<u64>> {
    let end = at.checked_add(len)?;
    (at.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE)).then_some(at..end)
}
