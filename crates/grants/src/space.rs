//! A grant space and what calls do to it.

use crate::status::{self, Word};
use crate::{MAX_BATCH, MAX_SIZE};
use arrayvec::ArrayVec;
use sluice_memory::{Access, Hpa, LongMode, MapError, PAGE_SIZE, TableFrames, Tables};

/// Why a call failed. Of several references, those before the one that failed are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The space has no such reference.
    NoReference,
    /// The granter has no such page.
    NoPage,
    /// The reference is granted already: another page, or with no fewer rights.
    Taken,
    /// The reference is not granted.
    Absent,
    /// The peer uses the page.
    Busy,
    /// There is no memory for tables.
    OutOfMemory,
    /// The page may only be read ([`crate::table`]).
    ReadOnly,
}

/// What a reference gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// A page of the granter.
    pub frame: Hpa,
    /// The peer may write it, too.
    pub writable: bool,
}

/// Where a peer sees the pages.
pub trait Peer {
    /// Its status words.
    type Word: Word;

    /// Pins the page and shows it. Where it was shown last, others may be remembered until [`Peer::forget`].
    ///
    /// # Errors
    /// [`Error::NoPage`] or [`Error::OutOfMemory`]. Nothing is shown then.
    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), Error>;

    /// Lets a page that is shown be written, too. There is no moment at which it is not shown, and it is pinned as often as before.
    ///
    /// # Errors
    /// As [`Peer::show`]. It is shown as before then.
    fn widen(&mut self, reference: u32, grant: Grant) -> Result<(), Error>;

    /// Shows it no more. It stays pinned until [`Peer::forget`].
    fn hide(&mut self, reference: u32, grant: Grant);

    /// Has everyone who could reach a page forget what was changed, and unpins what was hidden. Returns only then.
    fn forget(&mut self);

    /// The status word of a reference, if the peer keeps any.
    fn word(&self, reference: u32) -> Option<Self::Word>;
}

/// One step of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Lets the peer reach a page, or write one that it may only read so far; `None`: the granter has no such page.
    Issue(u32, Option<Grant>),
    /// Takes one back, whether the peer uses it or not if `forced`.
    Revoke {
        /// Which.
        reference: u32,
        /// Whatever the status word says, unless the peer programs devices by an address beside it.
        forced: bool,
    },
}

/// Operations that are carried out by one call: a range, or a list in the granter's memory.
pub trait Batch {
    /// Operation number `index`. It may be asked for twice, and need not be the same then.
    fn operation(&self, index: u64) -> Option<Operation>;
}

impl<F: Fn(u64) -> Option<Operation>> Batch for F {
    fn operation(&self, index: u64) -> Option<Operation> {
        self(index)
    }
}

/// Steps of a call, in order and until one fails.
pub struct Steps {
    done: u64,
    failed: Option<Error>,
}

impl Steps {
    /// Takes up to [`MAX_BATCH`] of so many.
    pub fn take(count: u64, mut step: impl FnMut(u64) -> Result<(), Error>) -> Self {
        let mut done = 0;
        while done < count.min(MAX_BATCH) {
            if let Err(error) = step(done) {
                return Self { done, failed: Some(error) };
            }
            done += 1;
        }
        Self { done, failed: None }
    }

    /// How many were taken, if any was or none was asked for.
    ///
    /// # Errors
    /// What the first one failed by.
    pub fn answer(self) -> Result<u64, Error> {
        match self.failed {
            Some(error) if self.done == 0 => Err(error),
            _ => Ok(self.done),
        }
    }
}

/// The table of references.
#[derive(Debug)]
pub struct Space<F: TableFrames> {
    /// `None` once it has been given back.
    tables: Option<Tables<LongMode>>,
    frames: F,
    size: u32,
    live: u32,
}

/// Where a reference is in the tree.
fn place(reference: u32) -> u64 {
    u64::from(reference) * PAGE_SIZE
}

impl<F: TableFrames> Space<F> {
    /// An empty space of so many references, 1 to [`MAX_SIZE`]; `None` for any other number, and without memory.
    pub fn new(mut frames: F, size: u32) -> Option<Self> {
        if !(1..=MAX_SIZE).contains(&size) {
            return None;
        }
        let tables = Some(Tables::with_format(LongMode, &mut frames)?);
        Some(Self { tables, frames, size, live: 0 })
    }

    /// References that it has.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// References that are granted.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// What a reference gives.
    ///
    /// # Errors
    /// [`Error::NoReference`].
    pub fn lookup(&self, reference: u32) -> Result<Option<Grant>, Error> {
        if reference >= self.size {
            return Err(Error::NoReference);
        }
        let found = self.tables.as_ref().and_then(|tables| tables.lookup(&self.frames, place(reference)));
        Ok(found.map(|(frame, access, _)| Grant { frame, writable: access.contains(Access::WRITE) }))
    }

    /// Shows all grants, in order.
    pub fn visit(&self, mut show: impl FnMut(u32, Grant)) {
        if let Some(tables) = &self.tables {
            tables.visit(&self.frames, &mut |at, frame, _, access| {
                show((at / PAGE_SIZE) as u32, Grant { frame, writable: access.contains(Access::WRITE) });
            });
        }
    }

    /// Shows a peer everything that is granted, which it does not see yet; then has everyone forget.
    ///
    /// # Errors
    /// As [`Peer::show`]. Nothing is shown then.
    pub fn show<P: Peer>(&self, peer: &mut P) -> Result<(), Error> {
        let (mut shown, mut failed) = (0, None);
        self.visit(|reference, grant| {
            if failed.is_none() {
                match peer.show(reference, grant) {
                    Ok(()) => shown += 1,
                    Err(error) => failed = Some(error),
                }
            }
        });
        let Some(error) = failed else {
            peer.forget();
            return Ok(());
        };
        self.visit(|reference, grant| {
            if shown > 0 {
                shown -= 1;
                peer.hide(reference, grant);
            }
        });
        peer.forget();
        Err(error)
    }

    /// Carries out `count` operations, up to [`MAX_BATCH`], in order and until one fails; then has everyone forget, once. Returns how many
    /// were carried out.
    ///
    /// # Errors
    /// What the first one failed by.
    pub fn carry_out<P: Peer>(&mut self, peer: &mut P, batch: &impl Batch, count: u64) -> Result<u64, Error> {
        self.carry_out_and(peer, batch, count, P::forget)
    }

    /// The same, but nobody has been made to forget anything: that is to follow, by [`Peer::forget`], before a page that was revoked is taken for the
    /// granter's own again, or one that was issued for the peer's.
    ///
    /// # Errors
    /// What the first one failed by.
    pub fn carry_out_unsettled<P: Peer>(
        &mut self,
        peer: &mut P,
        batch: &impl Batch,
        count: u64,
    ) -> Result<u64, Error> {
        self.carry_out_and(peer, batch, count, |_| ())
    }

    fn carry_out_and<P: Peer>(
        &mut self,
        peer: &mut P,
        batch: &impl Batch,
        count: u64,
        settle: impl FnOnce(&mut P),
    ) -> Result<u64, Error> {
        // One that is issued is told of once it can be reached; a batch may name it again, so that the table has the last word.
        let mut issued = ArrayVec::<u32, { MAX_BATCH as usize }>::new();
        let steps = Steps::take(count, |index| match batch.operation(index).ok_or(Error::NoPage)? {
            Operation::Issue(reference, grant) => {
                self.issue(peer, reference, grant)?;
                let _ = issued.try_push(reference);
                Ok(())
            }
            Operation::Revoke { reference, forced } => self.revoke(peer, reference, forced),
        });
        settle(peer);
        for reference in issued.iter().copied() {
            if let (Ok(Some(grant)), Some(word)) = (self.lookup(reference), peer.word(reference)) {
                status::open(&word, grant.frame);
            }
        }
        steps.answer()
    }

    fn issue(&mut self, peer: &mut impl Peer, reference: u32, grant: Option<Grant>) -> Result<(), Error> {
        let old = self.lookup(reference)?;
        if let Some(Grant { writable: true, .. }) = old {
            return Err(Error::Taken);
        }
        let grant = grant.ok_or(Error::NoPage)?;
        if old.is_some_and(|old| old.frame != grant.frame || !grant.writable) {
            return Err(Error::Taken);
        }
        if old.is_some() {
            self.note(reference, grant)?;
            return peer.widen(reference, grant).inspect_err(|_| {
                // The tables are there: this takes no memory.
                let _ = self.note(reference, Grant { writable: false, ..grant });
            });
        }
        self.add(peer, reference, grant)
    }

    /// Notes and shows what was not there.
    pub(crate) fn add(&mut self, peer: &mut impl Peer, reference: u32, grant: Grant) -> Result<(), Error> {
        self.note(reference, grant)?;
        self.live += 1;
        peer.show(reference, grant).inspect_err(|_| self.remove(reference))
    }

    fn note(&mut self, reference: u32, grant: Grant) -> Result<(), Error> {
        let tables = self.tables.as_mut().ok_or(Error::OutOfMemory)?;
        let mut access = Access::READ;
        access.set(Access::WRITE, grant.writable);
        match tables.map(&mut self.frames, place(reference), grant.frame, PAGE_SIZE, access) {
            Ok(_) => Ok(()),
            Err(MapError::BadRange) => Err(Error::NoPage),
            Err(MapError::OutOfMemory) => Err(Error::OutOfMemory),
        }
    }

    fn revoke(&mut self, peer: &mut impl Peer, reference: u32, forced: bool) -> Result<(), Error> {
        let grant = self.lookup(reference)?.ok_or(Error::Absent)?;
        if let Some(word) = peer.word(reference) {
            // No IOMMU would stop the device that uses it.
            let forced = forced && !word.has_address();
            if !status::close(&word, forced) {
                return Err(Error::Busy);
            }
        }
        self.remove(reference);
        peer.hide(reference, grant);
        Ok(())
    }

    /// A page that is there is taken out of tables that exist: that takes no memory.
    pub(crate) fn remove(&mut self, reference: u32) {
        let tables = self.tables.as_mut();
        let removed = tables.map(|tables| tables.unmap(&mut self.frames, place(reference), PAGE_SIZE));
        if removed == Some(Ok(true)) {
            self.live -= 1;
        }
    }

    /// Says in all words that nothing is granted, whatever they count: before the pages are taken away in one go.
    pub fn close_all<W: Word>(&self, word: impl Fn(u32) -> W) {
        self.visit(|reference, _| _ = status::close(&word(reference), true));
    }

    /// Forgets all grants: the peer, or what it saw them by, is gone. `each` gets what there was. False for want of memory; the space
    /// has no references then, but everything was handed to `each` all the same.
    pub fn clear(&mut self, each: impl FnMut(u32, Grant)) -> bool {
        self.visit(each);
        self.live = 0;
        if let Some(tables) = self.tables.take() {
            tables.release(&mut self.frames);
        }
        self.tables = Tables::with_format(LongMode, &mut self.frames);
        self.tables.is_some()
    }
}

impl<F: TableFrames> Drop for Space<F> {
    fn drop(&mut self) {
        if let Some(tables) = self.tables.take() {
            tables.release(&mut self.frames);
        }
    }
}
