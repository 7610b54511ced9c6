//! The memory that a transfer of a bus master reaches, worked out from register values.
//!
//! Key type: [`Memory`]. One description, the model's [`DmaTarget`], serves the checker and the tests that compare a model with
//! a software card.

use crate::language::{Address, Descriptor, DmaTarget, RegisterId};

/// A range of memory. Descriptors in it name more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bus address, as the client wrote it.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bits of an address that the device puts out: a ring that leaves them goes on at 0.
    pub mask: u64,
}

impl Memory {
    /// It does not leave the addresses that the device puts out. Whoever vets refuses one that does.
    pub const fn is_whole(&self) -> bool {
        match self.address.checked_add(self.bytes.saturating_sub(1)) {
            Some(last) => last <= self.mask,
            None => false,
        }
    }

    /// All of a transfer is in it.
    pub const fn holds(&self, address: u64, bytes: u64) -> bool {
        let into = address.wrapping_sub(self.address) & self.mask;
        address <= self.mask && bytes <= self.bytes && into <= self.bytes - bytes
    }
}

impl DmaTarget {
    /// The memory that registers name now; `None` for device memory. `read` gives the value of the
    /// n-th of registers alike, `turn` is the slot whose turn it is.
    pub fn memory(&self, turn: u8, read: &mut dyn FnMut(RegisterId, u8) -> u32) -> Option<Memory> {
        let mut at = |address: &Address| {
            let high = address.high.map_or(0, |high| read(high, 0));
            let mask = if address.high.is_some() { u64::MAX } else { u32::MAX.into() };
            (u64::from(read(address.low, 0) & address.mask) | u64::from(high) << 32, mask)
        };
        Some(match self {
            Self::Device => return None,
            Self::Slots { address, length, mask, count } => {
                let slot = turn % (*count).max(1);
                let bytes = (read(*length, slot) & mask).into();
                Memory { address: read(*address, slot).into(), bytes, mask: u32::MAX.into() }
            }
            Self::Fixed { address, bytes } => {
                let (address, mask) = at(address);
                Memory { address, bytes: (*bytes).into(), mask }
            }
            Self::Bytes { address, length, mask: bits, unit, slack } => {
                let (address, mask) = at(address);
                let power = (read(*length, 0) & bits) >> bits.trailing_zeros().min(31);
                let ring = u64::from(*unit).checked_shl(power).unwrap_or(u64::MAX);
                Memory { address, bytes: ring.saturating_add((*slack).into()), mask }
            }
            Self::Ring { base, length, head, most, descriptor } => {
                let (address, mask) = at(base);
                let size = u64::from(descriptor.bytes);
                let bytes = match length {
                    Some((register, bits)) => u64::from(read(*register, 0) & bits),
                    None => u64::from(*most).saturating_mul(size),
                };
                let reached = head.map_or(0, |head| (u64::from(read(head, 0)) + 1).saturating_mul(size));
                Memory { address, bytes: bytes.max(reached), mask }
            }
        })
    }

    /// The registers that [`Self::memory`] reads for the address, at most three.
    pub(super) const fn address_registers(&self) -> [Option<RegisterId>; 3] {
        match self {
            Self::Device => [None, None, None],
            Self::Slots { address, .. } => [Some(*address), None, None],
            Self::Fixed { address, .. } | Self::Bytes { address, .. } => {
                [Some(address.low), address.high, None]
            }
            Self::Ring { base, head, .. } => [Some(base.low), base.high, *head],
        }
    }

    /// The register that it reads for the length.
    pub(super) const fn length_register(&self) -> Option<RegisterId> {
        match self {
            Self::Slots { length, .. } | Self::Bytes { length, .. } => Some(*length),
            Self::Ring { length: Some((register, _)), .. } => Some(*register),
            Self::Device | Self::Fixed { .. } | Self::Ring { length: None, .. } => None,
        }
    }
}

impl Descriptor {
    /// The buffer that a descriptor names; its length 0 if a register says it. `None` if `bytes` are
    /// not a whole descriptor.
    pub fn buffer(&self, bytes: &[u8]) -> Option<Memory> {
        let at = |offset: u32| bytes.get(usize::try_from(offset).ok()?..);
        let address = u64::from_le_bytes(*at(self.address)?.first_chunk()?);
        let length = match self.length {
            Some(offset) => u32::from_le_bytes(*at(offset)?.first_chunk()?) & self.mask,
            None => 0,
        };
        Some(Memory { address, bytes: length.into(), mask: u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_goes_on_at_zero_where_addresses_end() {
        let memory = Memory { address: 0xffff_fff0, bytes: 0x40, mask: u32::MAX.into() };
        assert!(!memory.is_whole());
        assert!(memory.holds(0xffff_fff0, 0x40) && memory.holds(0, 0x30) && !memory.holds(0, 0x31));
        assert!(!memory.holds(0xffff_ffef, 1) && !memory.holds(0x1_0000_0000, 1));
        let low = Memory { address: 0x1000, bytes: 0x40, mask: u64::MAX };
        assert!(
            low.is_whole() && low.holds(0x1030, 0x10) && !low.holds(0x1030, 0x11) && !low.holds(0xfff, 1)
        );
        assert!(!Memory { address: u64::MAX, bytes: 2, mask: u64::MAX }.is_whole());
    }

    #[test]
    fn a_head_beyond_the_ring_is_part_of_it() {
        let [low, high, length, head] = [0, 1, 2, 3].map(RegisterId);
        const DESCRIPTOR: Descriptor = Descriptor { bytes: 16, address: 0, length: Some(8), mask: 0xffff };
        let target = DmaTarget::Ring {
            base: Address { low, mask: !0xf, high: Some(high) },
            length: Some((length, 0xfff80)),
            head: Some(head),
            most: 1 << 16,
            descriptor: &DESCRIPTOR,
        };
        let memory = |values: [u32; 4]| target.memory(0, &mut |id, _| values[usize::from(id.0)]);
        let ring = Memory { address: 0x1_0000_2000, bytes: 0x1000, mask: u64::MAX };
        assert_eq!(memory([0x200f, 1, 0x1000, 255]), Some(ring));
        assert_eq!(memory([0x2000, 1, 0x1000, 0xffff]), Some(Memory { bytes: 0x10_0000, ..ring }));
        let bytes = [0, 0x10, 0, 0, 1, 0, 0, 0, 60, 0, 0xff, 0x0b, 0, 0, 0, 0];
        let buffer = Memory { address: 0x1_0000_1000, bytes: 60, mask: u64::MAX };
        assert_eq!(DESCRIPTOR.buffer(&bytes), Some(buffer));
        assert_eq!(DESCRIPTOR.buffer(&bytes[..10]), None);
    }
}
