//! Registers of a device: where they are and what an access to each could do.
//!
//! Key types: [`Register`], [`Effects`], [`Space`]. What an access sets in motion is said by the machines, beside this file.

bitflags::bitflags! {
    /// What an access to a register can do that somebody may have to know or prevent. That it starts
    /// a transfer, or holds an address or length of one, is said by the edges ([`Start`](crate::Start)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Effects: u16 {
        /// Write: the value lasts and cannot be read back.
        const LASTING = 1 << 0;
        /// Write: the value cannot be read back, but matters only until the command that uses it.
        const TRANSIENT = 1 << 1;
        /// Read: shows device memory, whoever's it is.
        const REVEALS_MEMORY = 1 << 2;
        /// Read: tells of receptions or interrupts that may be another's.
        const REVEALS_RECEIVE = 1 << 3;
        /// Write: changes device memory.
        const WRITES_MEMORY = 1 << 4;
        /// Write: decides where received data goes, whether it is received or who is told.
        const MOVES_RECEIVE = 1 << 5;
        /// Write: decides what a transmission sends.
        const MOVES_SEND = 1 << 6;
        /// Access: resets the device or its identity, and this cannot be told afterwards.
        const RESETS = 1 << 7;
        /// Write: opens configuration that outlives the client (EEPROM, power, identity) and cannot
        /// be put right afterwards.
        const UNLOCKS = 1 << 8;
        /// Write: is able to stop reception, or to start a transmission.
        const COMMANDS = 1 << 9;
        /// Read: takes away what it shows.
        const CONSUMES = 1 << 10;
        /// Read: the value changes by itself, with nothing that the device reports.
        const CHANGES = 1 << 11;
        /// Read: shows an address that was translated for the device: the host's. Proof-only: asked by
        /// [`check::vet`](crate::check::vet).
        const SHOWS_ADDRESS = 1 << 12;
        /// Write: changes what outlives the client but can be read and put right: PHY, wake-up, power.
        const LINGERS = 1 << 13;
        /// Write: can change what survives power-off: EEPROM or flash memory.
        const BURNS = 1 << 14;
    }
}

/// Index into the registers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterId(pub u8);

/// A register, or several alike at consecutive places.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name in the data sheet; `READ/WRITE` where one place has two.
    pub name: &'static str,
    /// First byte offset.
    pub first: u32,
    /// Last byte offset.
    pub last: u32,
    /// Bytes of one register: 1, 2 or 4.
    pub width: u8,
    /// Register pages it is visible on, bit per page.
    pub pages: u8,
    /// What reading can do.
    pub read: Effects,
    /// What writing can do.
    pub write: Effects,
}

impl Register {
    /// The units of hooking it occupies, bit per unit: ports, or pages of memory.
    pub const fn units(&self, space: Space) -> u32 {
        let mut mask = 0;
        let mut unit = space.unit(self.first);
        while unit <= space.unit(self.last) && unit < 32 {
            mask |= 1 << unit;
            unit += 1;
        }
        mask
    }

    /// It is visible on this register page and holds this byte.
    pub const fn holds(&self, offset: u32, page: u8) -> bool {
        self.first <= offset && offset <= self.last && self.pages & (1 << (page & 7)) != 0
    }
}

/// Where the registers lie, and so what can be hooked apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Ports, at most 32: each can be hooked by itself.
    Ports,
    /// Memory: pages of 4 KiB, at most 32.
    Memory {
        /// Bytes that the device answers; they are the first of its BAR.
        bytes: u32,
        /// What an access does that is narrower than the register it falls into.
        narrow: Narrow,
    },
}

/// What a device in memory does with an aligned access narrower than the register it falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// Nothing. A wider access is one to each byte, if those are registers.
    Ignored,
    /// It is taken for one of the whole register, with zeros above.
    Whole,
}

impl Space {
    /// Number of the unit of hooking that a byte is in.
    pub const fn unit(self, offset: u32) -> u32 {
        match self {
            Self::Ports => offset,
            Self::Memory { .. } => offset >> 12,
        }
    }

    /// Units that exist in a device of this space with so many ports, bit per unit.
    pub const fn all_units(self, ports: u16) -> u32 {
        let units = match self {
            Self::Ports => ports as u32,
            Self::Memory { bytes, .. } => bytes.div_ceil(4096),
        };
        if units >= 32 { u32::MAX } else { (1 << units) - 1 }
    }
}

/// Registers a model has at most.
pub const MAX_REGISTERS: usize = 128;
