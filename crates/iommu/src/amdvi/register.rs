//! Registers in memory (48882, 3.3 and 3.4) and the capability block in configuration space (48882, 3.2).

use bitflags::bitflags;
use sluice_memory::Hpa;

/// Bytes of registers that are used.
pub const BYTES: u64 = 0x4000;

/// Device table base; [`device_table`].
pub const DEVICE_TABLE: u64 = 0x0000;
/// Command buffer base; [`ring`].
pub const COMMANDS: u64 = 0x0008;
/// Event log base; [`ring`].
pub const EVENTS: u64 = 0x0010;
/// [`Control`].
pub const CONTROL: u64 = 0x0018;
/// Exclusion base; 0 for none.
pub const EXCLUSION_BASE: u64 = 0x0020;
/// Exclusion limit.
pub const EXCLUSION_LIMIT: u64 = 0x0028;
/// [`Features`].
pub const FEATURES: u64 = 0x0030;
/// Offset in the command buffer that the unit reads next.
pub const COMMAND_HEAD: u64 = 0x2000;
/// Offset behind the last command.
pub const COMMAND_TAIL: u64 = 0x2008;
/// Offset in the event log that the hypervisor reads next.
pub const EVENT_HEAD: u64 = 0x2010;
/// Offset that the unit writes next.
pub const EVENT_TAIL: u64 = 0x2018;
/// [`Status`].
pub const STATUS: u64 = 0x2020;

/// Value for [`DEVICE_TABLE`]: a table of `bytes`, 4 KiB to 2 MiB.
pub const fn device_table(at: Hpa, bytes: u64) -> u64 {
    at.as_u64() | (bytes / 4096 - 1)
}

/// Value for [`COMMANDS`] and [`EVENTS`]: a ring of `1 << order` entries, 256 (8) to 32768 (15).
pub const fn ring(at: Hpa, order: u8) -> u64 {
    at.as_u64() | (order as u64) << 56
}

bitflags! {
    /// The control register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Control: u64 {
        /// Translate, check, look up. Off, everything passes.
        const ENABLE = 1 << 0;
        /// HyperTransport tunnel traffic is translated (HtTunEn).
        const TUNNEL = 1 << 1;
        /// Log events.
        const EVENTS = 1 << 2;
        /// Raise an interrupt when an event was logged.
        const EVENT_INTERRUPT = 1 << 3;
        /// Invalidations of device IOTLBs time out after 1 s (InvTimeOut = 4).
        const TIMEOUT_1S = 4 << 5;
        /// PassPW, as firmware says.
        const PASS_PW = 1 << 8;
        /// ResPassPW, as firmware says.
        const RESPONSE_PASS_PW = 1 << 9;
        /// Reads of the device table look into the processors' caches.
        const COHERENT = 1 << 10;
        /// Isoc, as firmware says.
        const ISOCHRONOUS = 1 << 11;
        /// Read commands.
        const COMMANDS = 1 << 12;
        /// Log page requests.
        const PAGE_REQUEST_LOG = 1 << 13;
        /// Raise an interrupt for them.
        const PAGE_REQUEST_INTERRUPT = 1 << 14;
        /// Process them.
        const PAGE_REQUESTS = 1 << 15;
        /// The filter of system management interrupts that firmware may have set up, and its log.
        const SMI_FILTER = 1 << 22 | 1 << 24;
        /// Log interrupts of guests.
        const GUEST_LOG = 1 << 28;
        /// Raise an interrupt for them.
        const GUEST_LOG_INTERRUPT = 1 << 29;
    }

    /// The status register. What is not `RUN` is cleared by writing 1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u64 {
        /// Events were lost, and logging has stopped.
        const EVENT_OVERFLOW = 1 << 0;
        /// An event was logged since this bit was cleared.
        const EVENT_INTERRUPT = 1 << 1;
        /// Events are logged.
        const EVENTS_RUN = 1 << 3;
        /// Commands are read.
        const COMMANDS_RUN = 1 << 4;
    }

    /// The extended feature register.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// [`super::command::Command::ForgetAll`] (IASup).
        const INVALIDATE_ALL = 1 << 6;
        /// HATS: the number of levels beyond 4.
        const LEVELS = 3 << 10;
        /// What the manual names or will.
        const _ = !0;
    }

    /// First word of the capability block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capability: u32 {
        /// It may remember that nothing is mapped (NpCache).
        const CACHES_ABSENT = 1 << 26;
        /// [`FEATURES`] can be read (EFRSup).
        const FEATURES = 1 << 27;
        /// The rest.
        const _ = !0;
    }
}

impl Features {
    /// The most levels that tables can have, 4-6; `None` if the unit does not translate by host tables at all.
    pub const fn levels(self) -> Option<u8> {
        match self.bits() >> 10 & 3 {
            3 => None,
            more => Some(4 + more as u8),
        }
    }
}

impl Capability {
    /// Identifier of the capability, and bits 18:16 for an IOMMU.
    const IDENTIFIER: u32 = 0x0003_000f;
    /// Offset in the block: lower half of the registers' address, bit 0 for enabled and locked.
    pub const BASE_LOW: u8 = 4;
    /// Offset in the block: upper half.
    pub const BASE_HIGH: u8 = 8;
    /// Bit 0 of [`Capability::BASE_LOW`].
    pub const BASE_ENABLED: u32 = 1;

    /// Whether the block is an IOMMU's.
    pub const fn is_iommu(self) -> bool {
        self.bits() & 0x0007_00ff == Self::IDENTIFIER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases() {
        assert_eq!(device_table(Hpa::new(0x20_0000), 2 << 20), 0x20_01ff);
        assert_eq!(ring(Hpa::new(0x8000), 8), 0x0800_0000_0000_8000);
    }

    #[test]
    fn what_qemu_says() {
        let features = Features::from_bits_retain(0x29d3);
        assert_eq!(features.levels(), Some(6));
        assert!(features.contains(Features::INVALIDATE_ALL));
        let capability = Capability::from_bits_retain(0x1f0b_400f);
        assert!(capability.is_iommu() && capability.contains(Capability::FEATURES));
        assert!(capability.contains(Capability::CACHES_ABSENT));
        assert_eq!(Features::from_bits_retain(3 << 10).levels(), None);
    }
}
