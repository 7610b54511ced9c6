//! A guest's memory by the addresses that its kernel names.

use crate::abi::{Error, PAGE};
use crate::{Guest, Host};
use sluice_pagetypes::{ENTRIES, Entry, HOLE, Kind, Mfn};

/// Where an address leads: the table of the lowest level, the place in it, and its entry.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The table.
    pub table: Mfn,
    /// Place in it.
    pub index: usize,
    /// The entry.
    pub entry: Entry,
}

/// What an address of the kernel's led to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The address in pages.
    page: u64,
    /// Where it is in the lowest table, and what is there.
    pub(crate) leaf: Leaf,
}

/// The lowest table for an address, by the page tables from `root` on. They have been validated: what they refer to is the domain's. `None`: there is none,
/// or the address is the hypervisor's, or none at all.
pub fn leaf(host: &impl Host, root: Mfn, address: u64) -> Option<Leaf> {
    let canonical = address as i64 >> 47;
    if canonical != 0 && canonical != -1 || HOLE.contains(&(address as usize >> 39 & 511)) {
        return None;
    }
    let mut table = root;
    for shift in [39, 30, 21] {
        let entry = entry(host, table, address as usize >> shift & 511);
        if !entry.contains(Entry::PRESENT) {
            return None;
        }
        table = entry.frame();
    }
    let index = address as usize >> 12 & 511;
    Some(Leaf { table, index, entry: entry(host, table, index) })
}

/// An entry of a table.
pub fn entry(host: &impl Host, table: Mfn, index: usize) -> Entry {
    Entry::from_bits_retain(host.word(table, index % ENTRIES))
}

impl Guest {
    /// Where an address of the kernel's is, for reading or for writing.
    #[inline(always)]
    pub(crate) fn place(&self, host: &impl Host, address: u64, write: bool) -> Result<(Mfn, usize), Error> {
        let needed = if write { Entry::PRESENT | Entry::WRITE } else { Entry::PRESENT };
        let entry = match self.cpu.found.get() {
            Some(found) if found.page == address / PAGE => found.leaf.entry,
            _ => self.find(host, address)?,
        };
        if !entry.contains(needed) {
            return Err(Error::Fault);
        }
        Ok((entry.frame(), (address % PAGE) as usize))
    }

    /// Walks to the entry for an address of the kernel's, and remembers it.
    #[inline(never)]
    fn find(&self, host: &impl Host, address: u64) -> Result<Entry, Error> {
        let leaf = leaf(host, self.cpu.root, address).ok_or(Error::Fault)?;
        // What is not its memory are registers, which the hypervisor does not touch for it.
        if leaf.entry.contains(Entry::PRESENT) && !self.types.owns(leaf.entry.frame()) {
            return Err(Error::Fault);
        }
        self.cpu.found.set(Some(Found { page: address / PAGE, leaf }));
        Ok(leaf.entry)
    }

    /// The addresses that processors found last: their page tables, the address, and what is remembered of it.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn remembered(&self) -> impl Iterator<Item = (Mfn, u64, Entry)> + '_ {
        self.processors().filter_map(|processor| {
            let found = processor.found.get()?;
            Some((processor.root, found.page * PAGE, found.leaf.entry))
        })
    }

    /// The page tables of the kernel that asks are others from now on.
    pub(crate) fn lose(&mut self) {
        self.cpu.found.set(None);
    }

    /// An entry of a table is another one from now on, whoever walks it. One of the lowest level is that of its own addresses only.
    pub(crate) fn lose_entry(&mut self, table: Mfn, index: usize) {
        let is_lowest = || self.types.counts(table).is_some_and(|counts| counts.kind == Kind::L1);
        self.lose_found(table, index, is_lowest);
    }

    /// [`Self::lose_entry`] for a table that is one of the lowest level.
    #[inline(always)]
    pub(crate) fn lose_mapping(&mut self, table: Mfn, index: usize) {
        self.lose_found(table, index, || true);
    }

    #[inline(always)]
    fn lose_found(&self, table: Mfn, index: usize, is_lowest: impl Fn() -> bool) {
        self.cpu.lose_entry(table, index, &is_lowest);
        // Mostly there are none.
        for other in &self.others {
            other.lose_entry(table, index, &is_lowest);
        }
    }

    /// Reads memory by an address of the kernel's.
    pub(crate) fn copy_in(&self, host: &impl Host, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let (frame, offset) = self.place(host, at, false)?;
            let here = rest.len().min(PAGE as usize - offset);
            let (part, after) = rest.split_at_mut(here);
            host.read(frame, offset, part);
            at = at.checked_add(here as u64).ok_or(Error::Fault)?;
            rest = after;
        }
        Ok(())
    }

    /// Writes memory by an address of the kernel's. On an error a part may be written.
    pub(crate) fn copy_out(&self, host: &mut impl Host, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut at = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (frame, offset) = self.place(host, at, true)?;
            let here = rest.len().min(PAGE as usize - offset);
            let (part, after) = rest.split_at(here);
            host.write(frame, offset, part);
            at = at.checked_add(here as u64).ok_or(Error::Fault)?;
            rest = after;
        }
        Ok(())
    }

    /// Reads consecutive words.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, host: &impl Host, address: u64) -> Result<[u64; N], Error> {
        if address.is_multiple_of(8) && address % PAGE + 8 * N as u64 <= PAGE {
            let (frame, offset) = self.place(host, address, false)?;
            let mut words = [0; N];
            for (word, index) in words.iter_mut().zip(offset / 8..) {
                *word = host.word(frame, index);
            }
            return Ok(words);
        }
        self.scattered_words(host, address)
    }

    /// The same where they are not in words of one page.
    #[inline(never)]
    fn scattered_words<const N: usize>(&self, host: &impl Host, address: u64) -> Result<[u64; N], Error> {
        let mut words = [0; N];
        let mut bytes = [[0; 8]; N];
        self.copy_in(host, address, bytes.as_flattened_mut())?;
        words.iter_mut().zip(bytes).for_each(|(word, bytes)| *word = u64::from_le_bytes(bytes));
        Ok(words)
    }

    /// Reads consecutive halves of words.
    pub(crate) fn halves<const N: usize>(&self, host: &impl Host, address: u64) -> Result<[u32; N], Error> {
        let mut halves = [0; N];
        let mut bytes = [[0; 4]; N];
        self.copy_in(host, address, bytes.as_flattened_mut())?;
        halves.iter_mut().zip(bytes).for_each(|(half, bytes)| *half = u32::from_le_bytes(bytes));
        Ok(halves)
    }
}

/// Reads a word of a frame; `offset` leaves room for it.
#[cfg(any(test, feature = "model"))]
pub fn word(host: &impl Host, frame: Mfn, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    host.read(frame, offset, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Reads a byte of a frame.
#[inline(always)]
pub fn byte(host: &impl Host, frame: Mfn, offset: usize) -> u8 {
    host.word(frame, offset / 8).to_le_bytes().get(offset % 8).copied().unwrap_or_default()
}
