//! What is asked of a model, and the answer: sets of accesses that must exit.
//!
//! Key types: [`Questions`], [`HookSet`]. [`hook_set`](crate::hook_set) answers.

use crate::language::Effects;

bitflags::bitflags! {
    /// What must be known or prevented now. The hook set answers exactly these.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Questions: u8 {
        /// Keep what the device will not give back: values that cannot be read, and its identity.
        const SHADOW = 1;
        /// Several clients use the device: received data and device memory must stay apart.
        const ISOLATE = 2;
        /// Somebody waits: when is the device reusable?
        const FOLLOW = 4;
        /// This client stopped reception for others before: see the commands that can.
        const GUARD = 8;
        /// The client does not hold the device: see everything.
        const ABSENT = 16;
        /// The client reads a copy of its registers: which reads cannot be answered so? And all writes.
        const MIRROR = 32;
        /// Nobody will put right what the client does to PHY, power, wake-up, EEPROM: see it.
        const PRESERVE = 64;
    }
}

/// The accesses that must exit, reads and writes apart, by unit of hooking: ports, or pages of 4 KiB
/// of a device in memory. AMD's I/O permission map has one bit per port: use [`Self::ports`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    pub(crate) reads: u32,
    pub(crate) writes: u32,
}

impl HookSet {
    /// Everything exits.
    pub const ALL: Self = Self { reads: u32::MAX, writes: u32::MAX };
    /// Nothing exits.
    pub const NONE: Self = Self { reads: 0, writes: 0 };

    /// Reads and writes of these ports exit, bit per offset.
    pub const fn of_ports(ports: u32) -> Self {
        Self { reads: ports, writes: ports }
    }

    /// Reads of this port or page must exit. What the device does not have always exits.
    pub const fn reads(self, unit: u32) -> bool {
        unit >= 32 || self.reads & (1 << unit) != 0
    }

    /// Writes of this port or page must exit. What the device does not have always exits.
    pub const fn writes(self, unit: u32) -> bool {
        unit >= 32 || self.writes & (1 << unit) != 0
    }

    /// Bit `n` set: port offset `n` must exit.
    pub const fn ports(self) -> u32 {
        self.reads | self.writes
    }

    /// An access of `width` bytes at port `offset` exits. For tests that stand in for the processor, which asks the I/O
    /// permission map.
    pub const fn catches(self, offset: u16, width: u8) -> bool {
        let mut byte = 0;
        while byte < width as u16 {
            let port = offset.wrapping_add(byte);
            if port >= 32 || self.ports() & (1 << port) != 0 {
                return true;
            }
            byte += 1;
        }
        false
    }

    /// An access of `width` bytes at `offset` of a device in memory exits. For tests that stand in for the processor, which
    /// asks its page tables.
    pub const fn catches_memory(self, offset: u32, width: u8, write: bool) -> bool {
        let mut page = offset >> 12;
        while page <= offset.saturating_add((width as u32).saturating_sub(1)) >> 12 {
            if if write { self.writes(page) } else { self.reads(page) } {
                return true;
            }
            page += 1;
        }
        false
    }

    /// What exits by either of the two.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self { reads: self.reads | other.reads, writes: self.writes | other.writes }
    }
}

impl Questions {
    /// The effects that must be seen to answer these questions.
    pub(crate) const fn effects(self) -> Effects {
        let mut wanted = Effects::empty();
        if self.contains(Self::SHADOW) {
            wanted = wanted.union(Effects::LASTING).union(Effects::RESETS).union(Effects::UNLOCKS);
        }
        if self.contains(Self::ISOLATE) {
            wanted = wanted
                .union(Effects::REVEALS_MEMORY)
                .union(Effects::REVEALS_RECEIVE)
                .union(Effects::WRITES_MEMORY)
                .union(Effects::MOVES_RECEIVE)
                .union(Effects::MOVES_SEND)
                .union(Effects::RESETS)
                .union(Effects::UNLOCKS);
        }
        if self.contains(Self::FOLLOW) {
            wanted = wanted.union(Effects::TRANSIENT);
        }
        if self.contains(Self::GUARD) {
            wanted = wanted.union(Effects::COMMANDS);
        }
        if self.contains(Self::PRESERVE) {
            wanted = wanted.union(Effects::UNLOCKS).union(Effects::LINGERS).union(Effects::BURNS);
        }
        wanted
    }
}
