//! Where in memory a transfer of a bus master goes, as the registers of the device say.
//!
//! Key type: [`DmaTarget`], a part of a transfer's start. Proof-only: in a run an IOMMU or a mirror stands between a guest and
//! the DMA of its card. The checker sees to it that every register which decides a transfer is known, and tests run models
//! beside software cards, whose transfers must be where `check::memory` works out that they go.

use super::register::RegisterId;

/// An address in one register, or in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Bits 0-31.
    pub low: RegisterId,
    /// Bits of it that count.
    pub mask: u32,
    /// Bits 32-63, if there are any.
    pub high: Option<RegisterId>,
}

/// How a descriptor of a ring looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Bytes.
    pub bytes: u32,
    /// Offset of the buffer's address, eight bytes.
    pub address: u32,
    /// Offset of the long word that holds the buffer's length; `None`: a register says it.
    pub length: Option<u32>,
    /// Bits of that word.
    pub mask: u32,
}

/// Where data of a transfer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaTarget {
    /// In the device's own memory.
    Device,
    /// One buffer, of several in turn: the n-th of these registers alike.
    Slots {
        /// Addresses, 32 bits each.
        address: RegisterId,
        /// Lengths.
        length: RegisterId,
        /// Bits of a length.
        mask: u32,
        /// How many there are.
        count: u8,
    },
    /// One buffer of fixed length.
    Fixed {
        /// Where.
        address: Address,
        /// Bytes.
        bytes: u32,
    },
    /// A ring of bytes.
    Bytes {
        /// Where.
        address: Address,
        /// This register has the logarithm of the length.
        length: RegisterId,
        /// In these bits.
        mask: u32,
        /// In units of so many bytes.
        unit: u32,
        /// Bytes behind the ring that the device may write, too.
        slack: u32,
    },
    /// A ring of descriptors, which name buffers.
    Ring {
        /// Where.
        base: Address,
        /// Register and bits that hold its length in bytes; `None`: what the descriptors say.
        length: Option<(RegisterId, u32)>,
        /// Number of the descriptor that comes next, if a client can write it: it may lie beyond.
        head: Option<RegisterId>,
        /// Descriptors it has at most.
        most: u32,
        /// What they look like.
        descriptor: &'static Descriptor,
    },
}
