//! The guest's own memory, as the device sees it: what it may reach, and what moves in it.

use super::LEN;
use crate::entry::BootInfo;

/// RAM that the kernel does not use, all at bus addresses that are its guest-physical ones.
#[derive(Clone, Copy)]
pub struct Own {
    /// All RAM that the device may reach; the first MiB is left alone.
    ram: (u64, u64),
    next: u64,
}

impl Own {
    /// Nothing is taken yet.
    pub fn new(boot: &BootInfo) -> Self {
        let (start, end) = boot.spare();
        let ram = boot.ram().iter().find(|range| range.1 == end).copied().unwrap_or((start, end));
        Self { ram, next: start }
    }

    /// Whole pages that nobody else takes, cleared.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(4096);
        for word in (at..self.next).step_by(8) {
            unsafe { (word as *mut u64).write_volatile(0) };
        }
        at
    }

    /// What nobody took.
    pub fn rest(&self) -> (u64, u64) {
        (self.next, self.ram.1)
    }

    /// Whether a bus address is memory of this guest.
    pub fn contains(&self, at: u64) -> bool {
        (self.ram.0..self.ram.1).contains(&at)
    }

    /// First address after it.
    pub fn end(&self) -> u64 {
        self.ram.1
    }

    /// Whether the first MiB too means this guest's memory on the bus.
    pub fn has_low(&self) -> bool {
        self.ram.0 == 1 << 20
    }
}

/// Reads memory that a device writes.
pub fn get(at: u64) -> u32 {
    unsafe { (at as *const u32).read_volatile() }
}

/// Writes memory that a device reads.
pub fn put(at: u64, value: u32) {
    unsafe { (at as *mut u32).write_volatile(value) };
}

/// As [`put`], eight bytes.
pub fn put64(at: u64, value: u64) {
    put(at, value as u32);
    put(at + 4, (value >> 32) as u32);
}

/// Fills the memory of a transfer.
pub fn fill(at: u64, value: u32) {
    (at..at + LEN).step_by(4).for_each(|at| put(at, value));
}

/// Copies the memory of a transfer.
pub fn copy(to: u64, from: u64) {
    (0..LEN).step_by(4).for_each(|offset| put(to + offset, get(from + offset)));
}
