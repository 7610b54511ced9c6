//! Frames of tables that are out of use, but may still be walked.

use alloc::vec::Vec;
use sluice_memory::{Hpa, PhysicalMemory, TableFrames};

/// [`TableFrames`] that keep what is freed until nobody can walk it any more.
#[derive(Debug)]
pub struct Retiring<F> {
    frames: F,
    retired: Vec<Hpa>,
}

impl<F: TableFrames> Retiring<F> {
    /// Over these frames.
    #[must_use]
    pub const fn new(frames: F) -> Self {
        Self { frames, retired: Vec::new() }
    }

    /// Gives back what was freed. The caller has seen to it that no translation that led through these frames is
    /// remembered by anyone.
    pub fn free_retired(&mut self) {
        for frame in self.retired.drain(..) {
            self.frames.free_table(frame);
        }
    }
}

impl<F: PhysicalMemory> PhysicalMemory for Retiring<F> {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        self.frames.read(at, buffer);
    }

    fn write(&self, at: Hpa, bytes: &[u8]) {
        self.frames.write(at, bytes);
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.frames.fill(at, len, byte);
    }

    fn read_u64(&self, at: Hpa) -> u64 {
        self.frames.read_u64(at)
    }

    fn write_u64(&self, at: Hpa, value: u64) {
        self.frames.write_u64(at, value);
    }
}

impl<F: TableFrames> TableFrames for Retiring<F> {
    fn allocate_table(&mut self) -> Option<Hpa> {
        self.frames.allocate_table()
    }

    fn free_table(&mut self, frame: Hpa) {
        self.retired.push(frame);
    }
}
