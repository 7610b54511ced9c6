//! Frames for tables of pages that hardware walks: nested page tables, and what an IOMMU reads.

use super::direct::Direct;
use super::frames;
use super::layout::virt;
use core::arch::x86_64::{_mm_clflush, _mm_mfence};
use sluice_memory::{FrameUse, Hpa, PAGE_SIZE, PhysicalMemory};

/// Bytes that CLFLUSH writes back at once: 64 on every processor with SVM or VT-d. A smaller step would be safe, too.
const CACHE_LINE: u64 = 64;

/// Frames for tables.
#[derive(Clone, Copy, Debug)]
pub struct TableFrames {
    /// Who reads them reads past the processors' caches: everything written is written back.
    pub write_back: bool,
}

impl TableFrames {
    /// For whoever sees what the processors' caches hold: processors, most IOMMUs.
    pub const COHERENT: Self = Self { write_back: false };

    /// Cleared memory for a table of `bytes`, naturally aligned up to 2 MiB.
    pub fn allocate(&self, bytes: u64) -> Option<Hpa> {
        let bytes = bytes.next_multiple_of(PAGE_SIZE);
        let start = frames::allocate(FrameUse::Table, bytes, bytes.next_power_of_two())?;
        self.fill(start, bytes, 0);
        Some(start)
    }

    fn written(&self, at: Hpa, bytes: u64) {
        if !self.write_back || bytes == 0 {
            return;
        }
        let end = at.as_u64() + bytes;
        let mut line = at.as_u64() & !(CACHE_LINE - 1);
        while line < end {
            // SAFETY: CLFLUSH of mapped memory changes no contents; SSE2 is part of the 64-bit architecture.
            unsafe { _mm_clflush(virt(Hpa::new(line))) };
            line += CACHE_LINE;
        }
        // SAFETY: orders the write-back before what tells the unit of it.
        unsafe { _mm_mfence() };
    }
}

impl PhysicalMemory for TableFrames {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        Direct.read(at, buffer);
    }

    fn write(&self, at: Hpa, bytes: &[u8]) {
        Direct.write(at, bytes);
        self.written(at, bytes.len() as u64);
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        Direct.fill(at, len, byte);
        self.written(at, len);
    }

    fn read_u64(&self, at: Hpa) -> u64 {
        Direct.read_u64(at)
    }

    fn write_u64(&self, at: Hpa, value: u64) {
        Direct.write_u64(at, value);
        self.written(at, 8);
    }
}

impl sluice_memory::TableFrames for TableFrames {
    fn allocate_table(&mut self) -> Option<Hpa> {
        self.allocate(PAGE_SIZE)
    }

    fn free_table(&mut self, frame: Hpa) {
        frames::release(FrameUse::Table, frame, PAGE_SIZE);
    }
}
