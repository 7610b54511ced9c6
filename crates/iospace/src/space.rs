//! A space and its views.

use crate::pieces::{self, Pieces};
use crate::{Contents, Foreign, Ledger, Piece, Rights, Stale};
use alloc::vec::Vec;
use core::ops::Range;
use sluice_memory::{Access, AddError, Gpa, GuestMemory, Hpa, MapError, PAGE_SIZE};

/// Someone who sees a space.
pub trait View {
    /// What it takes to make a view forget: whose translations they are.
    type Owner: ?Sized;

    /// Shows a piece, as far as its rights are for this view. Nothing is shown there.
    /// Returns whether translations may be cached all the same: of the absence of anything.
    ///
    /// # Errors
    /// See [`MapError`]. A part may be shown then.
    fn show(&mut self, piece: &Piece) -> Result<bool, MapError>;

    /// Whether of these rights any are for this view.
    fn is_for(&self, rights: Rights) -> bool;

    /// Shows nothing in a range any more. Returns whether it did before: whoever has cached that can go on using it
    /// until [`View::forget`].
    ///
    /// # Errors
    /// See [`MapError`]: a large page cannot be split without memory. Then the view still shows a part of the range.
    fn hide(&mut self, range: Range<u64>) -> Result<bool, MapError>;

    /// Sees to it that nobody uses a stale translation of this view any more, nor a table that is no longer part of it.
    /// Returns only then.
    fn forget(&mut self, owner: &Self::Owner, stale: &Stale);
}

/// Why pages cannot be issued or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueError {
    /// Not whole pages, or beyond what a view can show.
    BadRange,
    /// A page has been issued already.
    Taken,
    /// Not all of the pages have been issued.
    Absent,
    /// The memory is not this space's to show.
    Foreign,
    /// No memory for tables.
    OutOfMemory,
}

impl From<Foreign> for IssueError {
    fn from(_: Foreign) -> Self {
        Self::Foreign
    }
}

impl From<MapError> for IssueError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::BadRange => Self::BadRange,
            MapError::OutOfMemory => Self::OutOfMemory,
        }
    }
}

/// A view, and what it must forget with the next [`Space::settle`].
#[derive(Debug)]
struct Seen<V> {
    view: V,
    stale: Stale,
}

impl<V: View> Seen<V> {
    fn show(&mut self, piece: &Piece) -> Result<(), MapError> {
        let stale = self.view.show(piece);
        if stale != Ok(false) {
            self.stale.add(piece.at..piece.at + piece.len);
        }
        stale.map(|_| ())
    }

    fn hide(&mut self, range: Range<u64>) -> Result<(), MapError> {
        let stale = self.view.hide(range.clone());
        if stale != Ok(false) {
            self.stale.add(range);
        }
        stale.map(|_| ())
    }
}

/// Numbered pages, and everyone who sees them.
#[derive(Debug)]
pub struct Space<V: View, L: Ledger> {
    pieces: Pieces,
    ledger: L,
    views: Vec<Seen<V>>,
    /// Memory that was revoked and may still be reached.
    retired: Vec<(Hpa, u64)>,
}

impl<V: View, L: Ledger> Space<V, L> {
    /// Nothing, seen by nobody. The ledger says what it may show.
    pub const fn new(ledger: L) -> Self {
        Self { pieces: Pieces::new(), ledger, views: Vec::new(), retired: Vec::new() }
    }

    /// What says what may be shown.
    pub const fn ledger(&self) -> &L {
        &self.ledger
    }

    /// The same, to change: what is shown stays.
    pub const fn ledger_mut(&mut self) -> &mut L {
        &mut self.ledger
    }

    /// Lets somebody else see the space.
    ///
    /// # Errors
    /// The view cannot show all of it; it is dropped.
    pub fn add_view(&mut self, view: V) -> Result<(), IssueError> {
        let mut seen = Seen { view, stale: Stale::new() };
        for piece in self.pieces.iter() {
            seen.show(&piece)?;
        }
        // Whatever is cached under the name of a view that nobody has used yet is not of this one.
        seen.stale.add_all();
        self.views.push(seen);
        Ok(())
    }

    /// All views.
    pub fn views(&self) -> impl Iterator<Item = &V> {
        self.views.iter().map(|seen| &seen.view)
    }

    /// The pieces in a range, cut to it, in order.
    pub fn pieces_in(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        self.pieces.overlapping(range)
    }

    /// All pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.pieces.iter()
    }

    /// The way to what is memory of the owner in it, as it is now. All else is left out.
    ///
    /// # Errors
    /// It is in more pieces than [`GuestMemory`] takes.
    pub fn memory(&self) -> Result<GuestMemory, AddError> {
        let mut memory = GuestMemory::new();
        for piece in self.pieces.iter().filter(|piece| piece.rights.contents == Contents::Own) {
            memory.add(Gpa::new(piece.at), piece.hpa, piece.len)?;
        }
        Ok(memory)
    }

    /// Issues pages: from now on the views show `len` bytes from `hpa` at `at`.
    ///
    /// # Errors
    /// See [`IssueError`]. Nothing was changed, but out of memory the pages count as issued and revoked: the next
    /// [`Space::settle`] gives the memory back.
    pub fn issue(&mut self, at: u64, hpa: Hpa, len: u64, rights: Rights) -> Result<(), IssueError> {
        let range = pieces::range(at, len).ok_or(IssueError::BadRange)?;
        if self.pieces.meets(&range) {
            return Err(IssueError::Taken);
        }
        let piece = Piece { at, hpa, len, rights };
        self.ledger.pin(&piece)?;
        if let Err(error) = self.show(&piece) {
            // What was shown for a moment may be cached.
            self.hide(range)?;
            self.retired.push((hpa, len));
            return Err(error.into());
        }
        self.pieces.insert(piece);
        Ok(())
    }

    /// Changes who may do what with pages that are issued. Takes effect for those who had more rights before with the
    /// next [`Space::settle`].
    ///
    /// # Errors
    /// See [`IssueError`]; out of memory, the old rights stay, or fewer.
    pub fn change(&mut self, at: u64, len: u64, rights: Rights) -> Result<(), IssueError> {
        let range = pieces::range(at, len).ok_or(IssueError::BadRange)?;
        if self.pieces.overlapping(range.clone()).map(|piece| piece.len).sum::<u64>() != len {
            return Err(IssueError::Absent);
        }
        // Memory does not turn into registers: the ledger was asked for what it was issued as.
        if self.pieces.overlapping(range.clone()).any(|piece| piece.rights.contents != rights.contents) {
            return Err(IssueError::Foreign);
        }
        self.hide(range.clone())?;
        let (mut failed, mut pieces) = (None, Vec::new());
        self.pieces.take(range, |piece| pieces.push(piece));
        for old in pieces {
            let new = Piece { rights, ..old };
            match self.show(&new) {
                Ok(()) => self.pieces.insert(new),
                Err(error) => {
                    // Hidden, it can still be revoked.
                    let _ = self.hide(old.at..old.at + old.len);
                    self.pieces.insert(Piece { rights: old.rights.none(), ..old });
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Shows pages to the party that they are lent to, where [`Space::issue`] lent them to nobody, or [`Space::withhold`] took them. The
    /// rights of their pieces stay as they are: which pages are lent is the caller's to know.
    ///
    /// # Errors
    /// See [`IssueError`]: [`IssueError::Absent`] where not all is memory of the owner's. A part may be lent then.
    pub fn lend(&mut self, at: u64, len: u64, party: Access) -> Result<(), IssueError> {
        let range = pieces::range(at, len).ok_or(IssueError::BadRange)?;
        let own = |piece: &Piece| piece.rights.contents == Contents::Own;
        let pieces: Vec<Piece> = self.pieces.overlapping(range).filter(own).collect();
        if pieces.iter().map(|piece| piece.len).sum::<u64>() != len {
            return Err(IssueError::Absent);
        }
        for piece in pieces {
            let rights = Rights { owner: Access::empty(), party, ..piece.rights };
            self.show(&Piece { rights, ..piece })?;
        }
        Ok(())
    }

    /// Shows pages to the party no more, and to the owner as before. Whoever has cached them can go on until [`Space::settle`].
    ///
    /// # Errors
    /// See [`IssueError`]; pages that were lent one by one never fail.
    pub fn withhold(&mut self, at: u64, len: u64) -> Result<(), IssueError> {
        let range = pieces::range(at, len).ok_or(IssueError::BadRange)?;
        let party = Rights { owner: Access::empty(), ..Rights::MEMORY };
        let parties = self.views.iter_mut().filter(|seen| seen.view.is_for(party));
        for seen in parties {
            seen.hide(range.clone())?;
        }
        Ok(())
    }

    /// Shows a page over one of a piece of [`Contents::Sink`], which stays issued: [`Space::uncover`] shows the sink's again. There is no moment at
    /// which nothing is shown. Which pages are covered is the caller's to know.
    ///
    /// # Errors
    /// See [`IssueError`]: [`IssueError::Absent`] where no sink is. The sink's page is shown then, and the frame counts as covered and uncovered.
    pub fn cover(&mut self, at: u64, hpa: Hpa, rights: Rights) -> Result<(), IssueError> {
        let sink = self.sink_at(at)?;
        let piece = Piece { at, hpa, len: PAGE_SIZE, rights };
        self.ledger.pin(&piece)?;
        if let Err(error) = self.show(&piece) {
            // Where the page is shown already, its table is there: the way back takes no memory.
            let _ = self.show(&sink);
            self.retired.push((hpa, PAGE_SIZE));
            return Err(error.into());
        }
        Ok(())
    }

    /// Shows the sink's page again where `hpa` was shown by [`Space::cover`]. The next [`Space::settle`] unpins it.
    ///
    /// # Errors
    /// See [`IssueError`]; a page that is covered never fails.
    pub fn uncover(&mut self, at: u64, hpa: Hpa) -> Result<(), IssueError> {
        let sink = self.sink_at(at)?;
        self.show(&sink)?;
        self.retired.push((hpa, PAGE_SIZE));
        Ok(())
    }

    /// A page that was covered is to be unpinned: its whole piece was taken back meanwhile, and that is settled.
    pub fn unpin_covered(&self, hpa: Hpa) {
        self.ledger.unpin(hpa, PAGE_SIZE);
    }

    /// The sink's page at an address.
    fn sink_at(&self, at: u64) -> Result<Piece, IssueError> {
        let range = pieces::range(at, PAGE_SIZE).ok_or(IssueError::BadRange)?;
        let found = self.pieces.last(&range);
        found.filter(|piece| piece.rights.contents == Contents::Sink).ok_or(IssueError::Absent)
    }

    /// Whether nothing is issued in a range; not if there is no such range.
    pub fn is_free(&self, at: u64, len: u64) -> bool {
        pieces::range(at, len).is_some_and(|range| self.pieces.overlapping(range).next().is_none())
    }

    /// Takes pages back: the views do not show them any more. What is not issued is left out. The next
    /// [`Space::settle`] gives the memory back.
    ///
    /// # Errors
    /// See [`IssueError`]; the pages stay issued then, though not every view may still show them. Whole pieces never
    /// fail.
    pub fn revoke(&mut self, at: u64, len: u64) -> Result<(), IssueError> {
        let range = pieces::range(at, len).ok_or(IssueError::BadRange)?;
        self.hide(range.clone())?;
        self.pieces.take(range, |piece| self.retired.push((piece.hpa, piece.len)));
        Ok(())
    }

    /// Whether nothing waits for [`Space::settle`].
    pub fn is_settled(&self) -> bool {
        self.views.iter().all(|seen| seen.stale.is_empty()) && self.retired.is_empty()
    }

    /// Has every view forget what was taken away since the last time, in one batch, then gives the memory that was
    /// revoked to `free`: nobody reaches it any more.
    pub fn settle(&mut self, owner: &V::Owner, mut free: impl FnMut(Hpa, u64)) {
        for Seen { view, stale } in self.views.iter_mut().filter(|seen| !seen.stale.is_empty()) {
            view.forget(owner, stale);
            stale.clear();
        }
        self.free_retired(&mut free);
    }

    /// Takes back all pages of a space that nobody has used yet, so that nothing can be cached, and gives the memory to
    /// `free`. The views are dropped.
    pub fn abandon(&mut self, mut free: impl FnMut(Hpa, u64)) {
        self.views.clear();
        self.pieces.take(0..u64::MAX, |piece| self.retired.push((piece.hpa, piece.len)));
        self.free_retired(&mut free);
    }

    fn free_retired(&mut self, free: &mut impl FnMut(Hpa, u64)) {
        for (hpa, len) in self.retired.drain(..) {
            self.ledger.unpin(hpa, len);
            free(hpa, len);
        }
    }

    fn show(&mut self, piece: &Piece) -> Result<(), MapError> {
        self.views.iter_mut().try_for_each(|seen| seen.show(piece))
    }

    fn hide(&mut self, range: Range<u64>) -> Result<(), MapError> {
        self.views.iter_mut().try_for_each(|seen| seen.hide(range.clone()))
    }
}
