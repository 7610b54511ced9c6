//! The MSI-X table and pending bits of a function, which live in the memory of one of its BARs.
//!
//! The hypervisor shows these pages to the guest in place of the physical ones, and programs the physical
//! table itself.
//!
//! Source: PCI Local Bus 3.0, 6.8.2.

use crate::Message;
use alloc::{vec, vec::Vec};

/// Bytes of a table entry.
pub const ENTRY_SIZE: u32 = 16;

const MASKED: u32 = 1;

/// A table entry: address, data and mask of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
    /// The vector is masked.
    pub masked: bool,
}

impl Entry {
    /// What this vector means to a local APIC, if anything.
    pub fn message(&self) -> Option<Message> {
        Message::from_msi(self.address, self.data)
    }
}

/// The MSI-X table of one function.
#[derive(Clone, Debug)]
pub struct MsixTable {
    /// Four doublewords per entry, as the guest sees them.
    words: Vec<[u32; 4]>,
    pending: Vec<u64>,
}

impl MsixTable {
    /// A table of so many vectors (2048 at most), all masked.
    pub fn new(vectors: u16) -> Self {
        let vectors = vectors.min(2048);
        Self { words: vec![[0, 0, 0, MASKED]; vectors.into()], pending: vec![0; vectors.div_ceil(64).into()] }
    }

    /// The effect of a reset.
    pub fn reset(&mut self) {
        self.words.fill([0, 0, 0, MASKED]);
        self.pending.fill(0);
    }

    /// Vectors.
    pub fn len(&self) -> u16 {
        self.words.len() as u16
    }

    /// Is it without vectors?
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// What the guest programmed for `vector`.
    pub fn entry(&self, vector: u16) -> Option<Entry> {
        let [low, high, data, control] = *self.words.get(usize::from(vector))?;
        let address = u64::from(high) << 32 | u64::from(low);
        Some(Entry { address, data, masked: control & MASKED != 0 })
    }

    /// The interrupt of `vector` occurred: its message, or, if it is masked, nothing but a pending bit.
    pub fn raise(&mut self, vector: u16, all_masked: bool) -> Option<Message> {
        let entry = self.entry(vector)?;
        let masked = entry.masked || all_masked;
        if let Some(word) = self.pending.get_mut(usize::from(vector >> 6)) {
            let bit = 1 << (vector & 63);
            if masked { *word |= bit } else { *word &= !bit }
        }
        entry.message().filter(|_| !masked)
    }

    /// Is `vector` pending?
    pub fn is_pending(&self, vector: u16) -> bool {
        let word = self.pending.get(usize::from(vector >> 6)).copied().unwrap_or(0);
        word & 1 << (vector & 63) != 0
    }

    /// A read of 4 or 8 aligned bytes at `offset` in the table; other accesses read zero.
    pub fn read(&self, offset: u32, width: u8) -> u64 {
        match width {
            4 if offset & 3 == 0 => self.word(offset).into(),
            8 if offset & 7 == 0 => {
                u64::from(self.word(offset.wrapping_add(4))) << 32 | u64::from(self.word(offset))
            }
            _ => 0,
        }
    }

    /// A write of 4 or 8 aligned bytes at `offset` in the table; the vector that it changed. Other accesses
    /// do nothing.
    pub fn write(&mut self, offset: u32, width: u8, value: u64) -> Option<u16> {
        match width {
            4 if offset & 3 == 0 => self.set_word(offset, value as u32),
            8 if offset & 7 == 0 => {
                self.set_word(offset, value as u32)?;
                self.set_word(offset.wrapping_add(4), (value >> 32) as u32)
            }
            _ => None,
        }
    }

    /// A read of 4 or 8 aligned bytes at `offset` in the pending bits, which are read-only.
    pub fn read_pending(&self, offset: u32, width: u8) -> u64 {
        let word = self.pending.get((offset >> 3) as usize).copied().unwrap_or(0);
        match width {
            8 if offset & 7 == 0 => word,
            4 if offset & 7 == 0 => word & 0xFFFF_FFFF,
            4 if offset & 7 == 4 => word >> 32,
            _ => 0,
        }
    }

    fn word(&self, offset: u32) -> u32 {
        let entry = self.words.get((offset / ENTRY_SIZE) as usize);
        entry.and_then(|entry| entry.get((offset / 4 % 4) as usize)).copied().unwrap_or(0)
    }

    fn set_word(&mut self, offset: u32, value: u32) -> Option<u16> {
        let vector = offset / ENTRY_SIZE;
        let index = (offset / 4 % 4) as usize;
        let writable = [0xFFFF_FFFC, u32::MAX, u32::MAX, MASKED].get(index).copied()?;
        *self.words.get_mut(vector as usize)?.get_mut(index)? = value & writable;
        Some(vector as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_6_8_2_entries_start_masked_and_keep_what_is_written() {
        let mut table = MsixTable::new(3);
        assert!(table.entry(2).unwrap().masked);
        assert_eq!(table.write(32, 8, 0x0000_0001_FEE0_1003), Some(2));
        assert_eq!(table.write(40, 4, 0x45), Some(2));
        assert_eq!(table.write(44, 4, 0xFFFF_FFFE), Some(2));
        assert_eq!(table.entry(2), Some(Entry { address: 0x1_FEE0_1000, data: 0x45, masked: false }));
        assert_eq!(table.read(40, 8), 0x45);
        assert_eq!(table.write(48, 4, 1), None, "past the end");
        assert_eq!(table.write(33, 4, 1), None, "unaligned");
        assert_eq!(table.read(48, 8), 0);
    }

    #[test]
    fn pci_6_8_2_9_a_masked_vector_is_pending_until_delivered() {
        let mut table = MsixTable::new(65);
        let _ = table.write(64 * 16, 8, 0xFEE0_0000);
        let _ = table.write(64 * 16 + 8, 8, 0x1_0000_0041);
        assert_eq!(table.raise(64, false), None);
        assert!(table.is_pending(64));
        assert_eq!(table.read_pending(8, 8), 1);
        let _ = table.write(64 * 16 + 12, 4, 0);
        assert_eq!(table.raise(64, true), None, "function mask");
        assert_eq!(table.raise(64, false).unwrap().vector, 0x41);
        assert_eq!(table.read_pending(8, 4), 0);
        assert_eq!(table.raise(65, false), None);
    }
}
