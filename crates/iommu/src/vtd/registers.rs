//! The register map (D51397, 11.4): offsets, what a unit can do, and how its command register is written.
//!
//! Registers are little-endian, 32 or 64 bits wide and naturally aligned; 64-bit ones may be accessed by the quadword.
//!
//! Deviation: invalidation by registers (CCMD, IVA, IOTLB) is not used, the queue is.

use super::page::SecondLevel;
use super::queue::Limits;
use bitflags::bitflags;

/// Capability, 64 bits (11.4.2): [`Capabilities`].
pub const CAP: u64 = 0x08;
/// Extended capability, 64 bits (11.4.3): [`Capabilities`].
pub const ECAP: u64 = 0x10;
/// Global command, 32 bits (11.4.4.1): [`Global`]. Write only.
pub const GCMD: u64 = 0x18;
/// Global status, 32 bits (11.4.4.2): [`Global`]. Read only.
pub const GSTS: u64 = 0x1c;
/// Root table address, 64 bits (11.4.5); bits 11:10 are the translation table mode, 0 for legacy mode.
pub const RTADDR: u64 = 0x20;
/// Fault status, 32 bits (11.4.7.1): [`FaultStatus`].
pub const FSTS: u64 = 0x34;
/// Fault event control, 32 bits (11.4.7.2); bit 31 masks the interrupt.
pub const FECTL: u64 = 0x38;
/// Fault event data, address and upper address, 32 bits each (11.4.7.3-5).
pub const FEDATA: u64 = 0x3c;
/// See [`FEDATA`].
pub const FEADDR: u64 = 0x40;
/// See [`FEDATA`].
pub const FEUADDR: u64 = 0x44;
/// Protected memory enable, 32 bits (11.4.8.1): bit 31 enables, bit 0 says that it is enabled.
pub const PMEN: u64 = 0x64;
/// Invalidation queue head and tail, 64 bits each (11.4.9.1-2): byte offset in bits 18:4.
pub const IQH: u64 = 0x80;
/// See [`IQH`].
pub const IQT: u64 = 0x88;
/// Invalidation queue address, 64 bits (11.4.9.3): bits 2:0 size, 11 width (0 for 128 bits), 63:12 address.
pub const IQA: u64 = 0x90;
/// Invalidation event control, 32 bits (11.4.9.5); bit 31 masks the interrupt.
pub const IECTL: u64 = 0xa0;
/// Interrupt remapping table address, 64 bits (11.4.10): bits 3:0 size, 11 extended mode, 63:12 address.
pub const IRTA: u64 = 0xb8;

/// In `FECTL` and `IECTL`: no interrupt.
pub const EVENT_MASKED: u32 = 1 << 31;
/// In `RTADDR`: the translation table mode.
pub const ROOT_MODE: u64 = 3 << 10;
/// In `PMEN`: enables.
pub const PROTECT: u32 = 1 << 31;
/// In `PMEN`: enabled.
pub const PROTECTED: u32 = 1;
/// In `IRTA`: destinations have 32 bits.
pub const EXTENDED_INTERRUPTS: u64 = 1 << 11;

bitflags! {
    /// Bits of `GCMD`, and at the same places of `GSTS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Global: u32 {
        /// Interrupts in compatibility format pass (CFI).
        const COMPATIBLE_INTERRUPTS = 1 << 23;
        /// Take the interrupt remapping table's address (SIRTP).
        const SET_INTERRUPT_TABLE = 1 << 24;
        /// Remap interrupts (IRE).
        const REMAP_INTERRUPTS = 1 << 25;
        /// Read the invalidation queue (QIE).
        const QUEUE = 1 << 26;
        /// Flush the write buffer (WBF); the status is set until it is done.
        const FLUSH_WRITES = 1 << 27;
        /// Take the root table's address (SRTP).
        const SET_ROOT = 1 << 30;
        /// Translate (TE).
        const TRANSLATE = 1 << 31;
    }

    /// Bits of `FSTS`. All but `PENDING` are cleared by writing 1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FaultStatus: u32 {
        /// Faults were lost.
        const OVERFLOW = 1 << 0;
        /// A record is taken.
        const PENDING = 1 << 1;
        /// The queue stopped: a descriptor is not valid.
        const QUEUE_ERROR = 1 << 4;
        /// An invalidation of a device's own TLB was answered wrongly.
        const COMPLETION_ERROR = 1 << 5;
        /// It was not answered.
        const TIME_OUT = 1 << 6;
    }
}

impl Global {
    /// Commands that happen once: their status does not mean that they are wanted again.
    const ONCE: u32 = 0x6900_0000;

    /// What to write to `GCMD` so that one bit changes to `on` and all others stay as `GSTS` says. Only one bit may be
    /// changed at a time, and the next only when the status has followed.
    pub const fn command(status: u32, bit: Self, on: bool) -> u32 {
        let keep = status & !Self::ONCE & !bit.bits();
        if on { keep | bit.bits() } else { keep }
    }
}

/// Index of the first record to look at, of the bits of `FSTS`.
pub const fn first_record(fault_status: u32) -> u64 {
    (fault_status >> 8 & 0xff) as u64
}

/// What a unit can do: its two capability registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `CAP`.
    pub cap: u64,
    /// `ECAP`.
    pub ecap: u64,
}

impl Capabilities {
    const fn bit(word: u64, bit: u32) -> bool {
        word >> bit & 1 != 0
    }

    /// Number of tags (ND).
    pub const fn tags(self) -> u32 {
        match self.cap & 7 {
            // 7 is reserved; 16 bits are all there can be.
            order @ 0..=5 => 1 << (4 + 2 * order),
            _ => 1 << 16,
        }
    }

    /// Writes to tables must be flushed out of a buffer (RWBF).
    pub const fn buffers_writes(self) -> bool {
        Self::bit(self.cap, 4)
    }

    /// It has protected memory regions (PLMR, PHMR).
    pub const fn protects_memory(self) -> bool {
        self.cap >> 5 & 3 != 0
    }

    /// It remembers entries that are not present (CM).
    pub const fn caches_absent(self) -> bool {
        Self::bit(self.cap, 7)
    }

    /// Bits of an I/O address (MGAW).
    pub const fn address_bits(self) -> u32 {
        (self.cap >> 16 & 0x3f) as u32 + 1
    }

    /// The format of its page tables (SAGAW, SLLPS, SC): four levels if it has them, else three, else five. `None` if it
    /// does not translate by second-level tables.
    pub fn format(self) -> Option<SecondLevel> {
        // Bit 1 of the field is for 3 levels.
        let levels =
            [4u8, 3, 5].into_iter().find(|levels| Self::bit(self.cap, 8 + u32::from(*levels) - 2))?;
        let largest_leaf = match self.cap >> 34 & 3 {
            3 => 3,
            1 => 2,
            _ => 1,
        };
        Some(SecondLevel { levels, largest_leaf, snoop: Self::bit(self.ecap, 7) })
    }

    /// What its invalidation descriptors can say (PSI, MAMV, DRD, DWD).
    pub fn limits(self) -> Limits {
        Limits {
            largest_order: Self::bit(self.cap, 39).then_some((self.cap >> 48 & 0x3f) as u8),
            drains_reads: Self::bit(self.cap, 55),
            drains_writes: Self::bit(self.cap, 54),
        }
    }

    /// Offset of the first fault record (FRO).
    pub const fn records(self) -> u64 {
        (self.cap >> 24 & 0x3ff) * 16
    }

    /// Number of fault records (NFR), 1-256.
    pub const fn record_count(self) -> u64 {
        (self.cap >> 40 & 0xff) + 1
    }

    /// Its reads of tables see the processors' caches (C).
    pub const fn is_coherent(self) -> bool {
        Self::bit(self.ecap, 0)
    }

    /// It has an invalidation queue (QI).
    pub const fn has_queue(self) -> bool {
        Self::bit(self.ecap, 1)
    }

    /// It remaps interrupts (IR).
    pub const fn remaps_interrupts(self) -> bool {
        Self::bit(self.ecap, 3)
    }

    /// Destinations of interrupts may have 32 bits (EIM).
    pub const fn extends_interrupts(self) -> bool {
        Self::bit(self.ecap, 4)
    }

    /// Bytes of registers, as far as they are used.
    pub const fn register_bytes(self) -> u64 {
        let end = self.records() + self.record_count() * super::fault::RECORD_BYTES;
        if end > 0x100 { end } else { 0x100 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `-device intel-iommu,intremap=on` of QEMU 7.2.
    const QEMU: Capabilities = Capabilities { cap: 0x0012_008c_2226_0206, ecap: 0x00f0_0f0a };

    #[test]
    fn qemu() {
        assert_eq!(QEMU.format(), Some(SecondLevel { levels: 3, largest_leaf: 3, snoop: false }));
        let limits = QEMU.limits();
        assert_eq!(limits, Limits { largest_order: Some(18), drains_reads: false, drains_writes: false });
        assert_eq!((QEMU.records(), QEMU.record_count()), (0x220, 1));
        assert_eq!((QEMU.tags(), QEMU.address_bits(), QEMU.register_bytes()), (1 << 16, 39, 0x230));
        assert!(QEMU.has_queue() && QEMU.remaps_interrupts() && !QEMU.extends_interrupts());
        assert!(!QEMU.is_coherent() && !QEMU.caches_absent() && !QEMU.buffers_writes());
        assert!(!QEMU.protects_memory());
    }

    #[test]
    fn levels_and_large_pages() {
        let format = |sagaw: u64, sllps: u64| {
            let format = Capabilities { cap: sagaw << 8 | sllps << 34, ecap: 0 }.format()?;
            Some((format.levels, format.largest_leaf))
        };
        assert_eq!(format(0b00000, 3), None);
        // The 30-bit width of two levels is reserved.
        assert_eq!(format(0b00001, 0), None);
        assert_eq!(format(0b00110, 0), Some((4, 1)));
        assert_eq!(format(0b00010, 1), Some((3, 2)));
        assert_eq!(format(0b01000, 3), Some((5, 3)));
        // 1 GiB without 2 MiB would not be what the tables' algorithm expects.
        assert_eq!(format(0b00100, 2), Some((4, 1)));
        assert!(Capabilities { cap: 4 << 8, ecap: 1 << 7 }.format().unwrap().snoop);
    }

    proptest! {
        /// One bit changes; what happens once is not asked for again.
        #[test]
        fn one_bit_at_a_time(status: u32, which in 0usize..7, on: bool) {
            let bit = Global::all().iter().nth(which).unwrap();
            let written = Global::command(status, bit, on);
            for other in (0..32).map(|n| 1u32 << n).filter(|other| *other != bit.bits()) {
                let once = matches!(other.trailing_zeros(), 30 | 29 | 27 | 24);
                prop_assert_eq!(written & other, if once { 0 } else { status & other });
            }
            prop_assert_eq!(written & bit.bits() != 0, on);
        }

        /// No register of a unit, however strange, lies outside of what is mapped for it.
        #[test]
        fn registers_end(cap: u64, ecap: u64) {
            let unit = Capabilities { cap, ecap };
            let last = unit.records() + (unit.record_count() - 1) * 16 + 8;
            prop_assert!(last + 8 <= unit.register_bytes());
            prop_assert!(IRTA + 8 <= unit.register_bytes() && unit.register_bytes() <= 0x8000);
            prop_assert!(unit.tags() <= 1 << 16);
        }
    }
}
