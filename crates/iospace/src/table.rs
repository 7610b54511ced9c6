//! A view that is a tree of page tables, for processors or for an IOMMU.

use crate::{Piece, Retiring, Rights, Stale, View};
use core::ops::Range;
use sluice_memory::{Access, Format, Hpa, MapError, TableFrames, Tables};

/// Who uses the tables of a view.
pub trait Audience {
    /// See [`View::Owner`].
    type Owner: ?Sized;

    /// What of a page's rights is meant for it.
    fn access(&self, rights: Rights) -> Access;

    /// It may remember that nothing was mapped.
    fn caches_absent(&self) -> bool;

    /// See [`View::forget`].
    fn forget(&mut self, owner: &Self::Owner, stale: &Stale);
}

/// Page tables that show a space to an audience.
#[derive(Debug)]
pub struct TableView<T: Format, F: TableFrames, A> {
    /// `None` once they have been given back.
    tables: Option<Tables<T>>,
    frames: Retiring<F>,
    audience: A,
}

impl<T: Format, F: TableFrames, A: Audience> TableView<T, F, A> {
    /// Empty tables; `None` without memory.
    pub fn new(format: T, frames: F, audience: A) -> Option<Self> {
        let mut frames = Retiring::new(frames);
        let tables = Tables::with_format(format, &mut frames)?;
        Some(Self { tables: Some(tables), frames, audience })
    }

    /// Physical address of the table of the highest level.
    pub fn root(&self) -> Hpa {
        self.tables.as_ref().map_or(Hpa::new(0), Tables::root)
    }

    /// Who uses them.
    pub fn audience(&self) -> &A {
        &self.audience
    }

    /// Shows every mapped page: its address, where it is, its bytes and rights.
    pub fn visit(&self, show: &mut impl FnMut(u64, Hpa, u64, Access)) {
        if let Some(tables) = &self.tables {
            tables.visit(&self.frames, show);
        }
    }
}

impl<T: Format, F: TableFrames, A: Audience> View for TableView<T, F, A> {
    type Owner = A::Owner;

    fn show(&mut self, piece: &Piece) -> Result<bool, MapError> {
        let access = self.audience.access(piece.rights);
        let Some(tables) = self.tables.as_mut().filter(|_| !access.is_empty()) else { return Ok(false) };
        let replaced = tables.map(&mut self.frames, piece.at, piece.hpa, piece.len, access)?;
        Ok(replaced || self.audience.caches_absent())
    }

    fn is_for(&self, rights: Rights) -> bool {
        !self.audience.access(rights).is_empty()
    }

    fn hide(&mut self, range: Range<u64>) -> Result<bool, MapError> {
        let Some(tables) = &mut self.tables else { return Ok(false) };
        tables.unmap(&mut self.frames, range.start, range.end - range.start)
    }

    fn forget(&mut self, owner: &A::Owner, stale: &Stale) {
        self.audience.forget(owner, stale);
        self.frames.free_retired();
    }
}

/// The owner has seen to it that nobody uses the tables any more.
impl<T: Format, F: TableFrames, A> Drop for TableView<T, F, A> {
    fn drop(&mut self) {
        if let Some(tables) = self.tables.take() {
            tables.release(&mut self.frames);
        }
        self.frames.free_retired();
    }
}
