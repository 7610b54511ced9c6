//! A unit's registers as memory, and its command register (D51397, 11.4).

use crate::mm;
use crate::x86::tsc;
use sluice_iommu::vtd::registers::{CAP, Capabilities, ECAP, GCMD, GSTS, Global};
use sluice_memory::Hpa;

/// How long a unit may take for what it is told. None that works takes a thousandth of it.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Mapped registers.
pub struct Registers {
    base: *mut u8,
    bytes: u64,
}

// SAFETY: the pointer leads to device registers in the direct map, valid on every processor.
unsafe impl Send for Registers {}

impl Registers {
    /// Maps the registers of the unit at `base`, a page's beginning, as far as they go.
    pub fn map(base: Hpa) -> (Self, Capabilities) {
        let mut registers = Self { base: mm::map_mmio(base, mm::PAGE), bytes: mm::PAGE };
        let capabilities = Capabilities { cap: registers.read64(CAP), ecap: registers.read64(ECAP) };
        let bytes = capabilities.register_bytes().max(mm::PAGE);
        registers = Self { base: mm::map_mmio(base, bytes), bytes };
        (registers, capabilities)
    }

    fn at<T>(&self, offset: u64) -> *mut T {
        let size = size_of::<T>() as u64;
        assert!(offset.is_multiple_of(size) && offset + size <= self.bytes, "no VT-d register {offset:#x}");
        self.base.wrapping_add(offset as usize).cast()
    }

    /// Reads 32 bits.
    pub fn read32(&self, offset: u64) -> u32 {
        // SAFETY: mapped registers, aligned (`at`); reading any of them has no side effect.
        unsafe { self.at::<u32>(offset).read_volatile() }
    }

    /// Reads 64 bits.
    pub fn read64(&self, offset: u64) -> u64 {
        // SAFETY: as for `read32`.
        unsafe { self.at::<u64>(offset).read_volatile() }
    }

    /// Writes 32 bits.
    pub fn write32(&self, offset: u64, value: u32) {
        // SAFETY: mapped registers, aligned (`at`). The unit itself writes only to the status word of its queue, whose
        // address is in descriptors; which memory devices reach is the matter of those who write its tables.
        unsafe { self.at::<u32>(offset).write_volatile(value) };
    }

    /// Writes 64 bits.
    pub fn write64(&self, offset: u64, value: u64) {
        // SAFETY: as for `write32`.
        unsafe { self.at::<u64>(offset).write_volatile(value) };
    }

    /// What of the command register is in effect.
    pub fn status(&self) -> Global {
        Global::from_bits_retain(self.read32(GSTS))
    }

    /// Changes one bit of the command register and waits for it to take effect.
    pub fn command(&self, bit: Global, on: bool) {
        self.write32(GCMD, Global::command(self.status().bits(), bit, on));
        // The write buffer's bit goes when it is done, all others come.
        let done = on && bit != Global::FLUSH_WRITES;
        self.wait("command", || self.status().contains(bit) == done);
    }

    /// Waits, and panics when it takes too long: a unit that hangs could still let through what it was told to stop.
    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = tsc::now();
        while !done() {
            let patience = tsc::ticks_from_ns(PATIENCE_NS);
            assert!(
                tsc::now().wrapping_sub(start) < patience,
                "VT-d: {what} hangs, status {:?}",
                self.status()
            );
            core::hint::spin_loop();
        }
    }
}
