//! A unit's registers in memory (48882, 3.4). All that are used have 64 bits and take accesses of as many.

use crate::mm;
use crate::x86::tsc;
use sluice_iommu::amdvi::register::{BYTES, STATUS, Status};
use sluice_memory::Hpa;

/// Longest time that a unit gets for what should take microseconds.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// The mapped registers.
pub struct Registers {
    base: *mut u8,
}

// SAFETY: the pointer leads to device registers in the direct map, valid on every processor.
unsafe impl Send for Registers {}

impl Registers {
    /// Maps the registers at a base that IVRS names and the unit's function confirms.
    pub fn map(base: Hpa) -> Self {
        Self { base: mm::map_mmio(base, BYTES) }
    }

    fn at(&self, offset: u64) -> *mut u64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= BYTES);
        self.base.wrapping_add(offset as usize).cast()
    }

    /// Reads the register at an offset of [`sluice_iommu::amdvi::register`].
    pub fn read(&self, offset: u64) -> u64 {
        // SAFETY: within the mapped registers, aligned; reading has no effects.
        unsafe { self.at(offset).read_volatile() }
    }

    /// Writes it.
    pub fn write(&self, offset: u64, value: u64) {
        // SAFETY: as above. What the unit then does to memory is argued where bases and the control register are written:
        // it has rings and tables of its own there.
        unsafe { self.at(offset).write_volatile(value) };
    }

    /// Waits until what was switched off has stopped.
    pub fn wait_stopped(&self, what: Status) {
        if !wait(|| !Status::from_bits_retain(self.read(STATUS)).intersects(what)) {
            log::warn!("AMD-Vi: {what:?} does not stop");
        }
    }
}

/// Waits until something is so, busily; returns whether it is within [`PATIENCE_NS`].
pub fn wait(mut so: impl FnMut() -> bool) -> bool {
    let start = tsc::now();
    // Before the clock is known, a second of a fast one.
    let ticks = if tsc::khz() == 0 { 5_000_000_000 } else { tsc::ticks_from_ns(PATIENCE_NS) };
    loop {
        if so() {
            return true;
        }
        if tsc::now().wrapping_sub(start) > ticks {
            return so();
        }
        core::hint::spin_loop();
    }
}
