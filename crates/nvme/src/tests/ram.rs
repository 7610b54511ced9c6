//! A guest's memory.

use crate::{Memory, PAGE};
use std::cell::RefCell;
use std::ops::Range;
use std::vec;
use std::vec::Vec;

/// Bytes of it.
pub const END: u64 = 1 << 20;
/// Addresses in it that are not the guest's.
pub const HOLE: Range<u64> = 0xa_0000..0xc_0000;
/// How far behind its address the physical disk finds a byte.
pub const BUS: u64 = 0x40_0000_0000;

/// Memory from 0 on, and a list of what was written by the controller: where, and how many bytes.
pub struct Ram(RefCell<Vec<u8>>, RefCell<Vec<(u64, usize)>>);

impl Ram {
    pub fn new() -> Self {
        Self(RefCell::new(vec![0; END as usize]), RefCell::default())
    }

    /// The guest writes.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.0.borrow_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// The guest writes entries of a list.
    pub fn put_list(&self, at: u64, entries: impl IntoIterator<Item = u64>) {
        for (index, entry) in entries.into_iter().enumerate() {
            self.put(at + 8 * index as u64, &entry.to_le_bytes());
        }
    }

    /// The guest writes the same byte everywhere.
    pub fn fill(&self, byte: u8) {
        self.0.borrow_mut().fill(byte);
    }

    /// The guest writes the same words over and over.
    pub fn repeat(&self, words: &[u64]) {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for part in self.0.borrow_mut().chunks_mut(words.len()) {
            part.copy_from_slice(&words[..part.len()]);
        }
    }

    /// The guest reads.
    pub fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        *self.0.borrow()[at as usize..].first_chunk().expect("inside")
    }

    /// What was written since the last time.
    pub fn take_writes(&self) -> Vec<(u64, usize)> {
        self.1.take()
    }

    /// Whether bytes that the physical disk is given are the guest's.
    pub fn has_bus(at: u64, len: u64) -> bool {
        at.checked_sub(BUS).is_some_and(|at| Self::has(at, len))
    }

    fn has(at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= END && (end <= HOLE.start || HOLE.end <= at))
    }
}

impl Memory for Ram {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let is_ours = Self::has(at, into.len() as u64);
        if is_ours {
            into.copy_from_slice(&self.0.borrow()[at as usize..at as usize + into.len()]);
        }
        is_ours
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let is_ours = Self::has(at, bytes.len() as u64);
        if is_ours {
            self.put(at, bytes);
            self.1.borrow_mut().push((at, bytes.len()));
        }
        is_ours
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.read(at, &mut word).then_some(u32::from_le_bytes(word))
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.write(at, &value.to_le_bytes())
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        assert!(len > 0 && at % PAGE + len <= PAGE, "{len} bytes at {at:#x} are within a page");
        Self::has(at, len).then_some(BUS.wrapping_add(at))
    }
}
