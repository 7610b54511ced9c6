//! A grant table, the older way to lend pages: the granter writes entries in memory of its own, without a call, and its peer has a page mapped and
//! unmapped for each use, or copied. The granter can end a grant only while the page is not in use, which is for the peer to say.
//!
//! An entry is a word that both sides change by locked compare-and-exchange only. Bits 63:12 and [`PERMIT`], [`READ_ONLY`] are the granter's, [`USED`] is the
//! hypervisor's. [`begin`] sets [`USED`] together with what it read, and [`end`] clears it only once nobody reaches the page any more: a granter that
//! exchanges an entry without [`USED`] for 0 knows that the page is its own again.
//!
//! Source: Ram, Santos and Turner, 2.1 (Xen's mechanism). Deviations: an entry has eight bytes and names no peer, since a space has one; a reference is
//! mapped once at a time, at its page of the window, in place of any number of times at addresses of the peer's.

use crate::MAX_BATCH;
use crate::space::{Error, Grant, Peer, Space, Steps};
use crate::status::{Word, change};
use arrayvec::ArrayVec;
use sluice_memory::{Hpa, PAGE_SIZE, TableFrames};

/// The peer may use the page.
pub const PERMIT: u64 = 1 << 0;
/// It may only read it.
pub const READ_ONLY: u64 = 1 << 1;
/// It does use it.
pub const USED: u64 = 1 << 2;

/// What an entry says besides the page.
const FLAGS: u64 = PERMIT | READ_ONLY | USED;

/// A page that the peer wants to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which.
    pub reference: u32,
    /// It is to be written, too.
    pub writes: bool,
}

/// A granter's table, and its memory.
pub trait Table {
    /// Its entries.
    type Entry: Word;

    /// The entry of a reference of the space.
    fn entry(&self, reference: u32) -> Self::Entry;

    /// The frame of a page of the granter, by its guest-physical address; `None` if it has no such page.
    fn frame(&self, page: u64) -> Option<Hpa>;
}

/// Begins a use. Returns the page's guest-physical address, as the granter says.
///
/// # Errors
/// [`Error::Absent`]: it is not granted. [`Error::ReadOnly`]. [`Error::NoPage`]: unknown bits are set, or there is no entry. [`Error::Busy`]: the granter keeps changing it.
fn begin(entry: &impl Word, writes: bool) -> Result<u64, Error> {
    let mut found = Err(Error::NoPage);
    let changed = change(entry, |old| {
        found = if old & PERMIT == 0 {
            Err(Error::Absent)
        } else if writes && old & READ_ONLY != 0 {
            Err(Error::ReadOnly)
        } else if old & (PAGE_SIZE - 1) & !FLAGS != 0 {
            Err(Error::NoPage)
        } else {
            Ok(old & !(PAGE_SIZE - 1))
        };
        found.is_ok().then_some(old | USED)
    });
    match found {
        Ok(_) if !changed => Err(Error::Busy),
        found => found,
    }
}

/// Ends it: nobody reaches the page any more.
fn end(entry: &impl Word) {
    change(entry, |old| Some(old & !USED));
}

impl<F: TableFrames> Space<F> {
    /// Maps up to [`MAX_BATCH`] of `count` pages where the peer has its window, in order and until one cannot be; then has everyone forget what was there, once. Returns how many
    /// were mapped.
    ///
    /// # Errors
    /// What the first one failed by: [`Error::Taken`] if it is mapped, or as the entry says.
    pub fn map<P: Peer>(
        &mut self,
        peer: &mut P,
        table: &impl Table,
        uses: impl Fn(u64) -> Option<Use>,
        count: u64,
    ) -> Result<u64, Error> {
        let steps = Steps::take(count, |index| {
            let Use { reference, writes } = uses(index).ok_or(Error::NoPage)?;
            if self.lookup(reference)?.is_some() {
                return Err(Error::Taken);
            }
            let entry = table.entry(reference);
            let page = begin(&entry, writes)?;
            let frame = table.frame(page).ok_or(Error::NoPage);
            let mapped = frame.and_then(|frame| self.add(peer, reference, Grant { frame, writable: writes }));
            mapped.inspect_err(|_| end(&entry))
        });
        peer.forget();
        steps.answer()
    }

    /// Unmaps up to [`MAX_BATCH`] of `count` references, in order and until one cannot be, and lets their entries go once nobody reaches the pages. Returns how many were unmapped.
    ///
    /// # Errors
    /// [`Error::Absent`]: the first one is not mapped. [`Error::NoReference`].
    pub fn unmap<P: Peer>(
        &mut self,
        peer: &mut P,
        table: &impl Table,
        references: impl Fn(u64) -> Option<u32>,
        count: u64,
    ) -> Result<u64, Error> {
        let mut unmapped = ArrayVec::<u32, { MAX_BATCH as usize }>::new();
        let steps = Steps::take(count, |index| {
            let reference = references(index).ok_or(Error::NoReference)?;
            let grant = self.lookup(reference)?.ok_or(Error::Absent)?;
            self.remove(reference);
            peer.hide(reference, grant);
            let _ = unmapped.try_push(reference);
            Ok(())
        });
        peer.forget();
        // The peer's list may say something else by now.
        for reference in unmapped.iter().copied() {
            end(&table.entry(reference));
        }
        steps.answer()
    }

    /// Uses a page during `act`, which gets its guest-physical address, whether it is mapped or not.
    ///
    /// # Errors
    /// As the entry says, or as `act`.
    pub fn use_once(
        &self,
        table: &impl Table,
        Use { reference, writes }: Use,
        act: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mapped = self.lookup(reference)?.is_some();
        let entry = table.entry(reference);
        let done = begin(&entry, writes).and_then(act);
        if !mapped {
            end(&entry);
        }
        done
    }

    /// The peer has lost all that was mapped, and nobody reaches it: lets all entries go.
    pub fn let_go(&mut self, table: &impl Table) {
        self.clear(|reference, _| end(&table.entry(reference)));
    }
}
