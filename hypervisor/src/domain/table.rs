//! A granter's table of grants, the older way to lend pages: where its entries are. [`sluice_grants::table`] has what they say, [`super::uses`] who may use them.

use super::Domain;
use sluice_grants::status::Word;
use sluice_grants::table::{PERMIT, READ_ONLY, Table, USED};
use sluice_hypercall::table::{TABLE_PERMIT, TABLE_READ_ONLY, TABLE_USED};
use sluice_memory::{Gpa, Hpa, PAGE_SIZE};

const _: () = assert!(TABLE_PERMIT == PERMIT && TABLE_READ_ONLY == READ_ONLY && TABLE_USED == USED);

/// A table, in memory of its granter.
pub(super) struct GrantTable<'a> {
    granter: &'a Domain,
    at: u64,
}

impl<'a> GrantTable<'a> {
    /// The granter's at this address, if it has one there.
    pub(super) fn of(granter: &'a Domain, at: Option<u64>) -> Option<Self> {
        Some(Self { granter, at: at? })
    }
}

/// An entry of a table.
pub(super) struct Entry<'a> {
    granter: &'a Domain,
    at: Gpa,
}

impl Word for Entry<'_> {
    fn load(&self) -> Option<u64> {
        self.granter.read_u64(self.at)
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        self.granter.replace_u64(self.at, old, new)
    }
}

impl<'a> Table for GrantTable<'a> {
    type Entry = Entry<'a>;

    fn entry(&self, reference: u32) -> Entry<'a> {
        Entry { granter: self.granter, at: Gpa::new(self.at + u64::from(reference) * 8) }
    }

    fn frame(&self, page: u64) -> Option<Hpa> {
        let mut parts = self.granter.memory.translate(Gpa::new(page), PAGE_SIZE).ok()?;
        parts.next().map(|(frame, _)| frame)
    }
}
