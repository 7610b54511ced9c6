//! How a card that is a bus master reaches memory.
//!
//! Key types: [`Dma`], which the owner of a card implements; [`BusMaster`], the card's side of it: what is refused
//! reads as ones, is not written, and is counted, as on a PCI bus where nobody claims a cycle (PCI Local Bus
//! Specification 3.0, section 3.3.3.1, master abort). [`VecMemory`] and [`Recorded`] are for tests.
//!
//! Addresses are those that the driver put into the card. What they mean - guest-physical, behind an IOMMU, vetted
//! or not - is the owner's affair.

use alloc::vec;
use alloc::vec::Vec;

/// The owner refuses an access: nothing is there, or the card may not touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaError;

/// Memory as a card sees it. A transfer is done whole or refused whole.
pub trait Dma {
    /// Fills `buffer` from `address` on. An error leaves the contents of `buffer` open.
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError>;
    /// Stores `bytes` from `address` on. On an error nothing may have been stored. Eight bytes at a multiple of eight are stored at once.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError>;
}

impl<D: Dma + ?Sized> Dma for &mut D {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        (**self).read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        (**self).write(address, bytes)
    }
}

/// No memory: every access is refused. What a card has while bus mastering is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoMemory;

impl Dma for NoMemory {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DmaError> {
        Err(DmaError)
    }
}

/// A card's hold on memory for the time of one access.
pub struct BusMaster<'a> {
    memory: &'a mut dyn Dma,
    refused: &'a mut u64,
}

impl<'a> BusMaster<'a> {
    /// `refused` counts the accesses that the owner refuses.
    pub fn new(memory: &'a mut dyn Dma, refused: &'a mut u64) -> Self {
        Self { memory, refused }
    }

    /// Reads; ones if refused. True if it was done.
    pub fn read(&mut self, address: u64, buffer: &mut [u8]) -> bool {
        let done = self.memory.read(address, buffer).is_ok();
        if !done {
            *self.refused = self.refused.wrapping_add(1);
            buffer.fill(0xff);
        }
        done
    }

    /// Writes; nothing if refused. True if it was done.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        let done = self.memory.write(address, bytes).is_ok();
        if !done {
            *self.refused = self.refused.wrapping_add(1);
        }
        done
    }

    /// A little-endian long word.
    pub fn read_u32(&mut self, address: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Stores a little-endian long word.
    pub fn write_u32(&mut self, address: u64, value: u32) {
        self.write(address, &value.to_le_bytes());
    }
}

/// A stretch of memory, for tests; all other addresses are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VecMemory {
    /// Address of the first byte.
    pub start: u64,
    /// Contents.
    pub bytes: Vec<u8>,
}

impl VecMemory {
    /// `len` zeros from `start` on.
    pub fn new(start: u64, len: usize) -> Self {
        Self { start, bytes: vec![0; len] }
    }

    /// The bytes at an address; `None` if they are not all here.
    pub fn at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }

    /// The same, to write to.
    pub fn at_mut(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let from = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get_mut(from..from.checked_add(len)?)
    }
}

impl Dma for VecMemory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        buffer.copy_from_slice(self.at(address, buffer.len()).ok_or(DmaError)?);
        Ok(())
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.at_mut(address, bytes.len()).ok_or(DmaError)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// One access of a card to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: usize,
    /// Towards memory.
    pub write: bool,
    /// The owner refused it.
    pub refused: bool,
}

/// Memory that remembers what was done to it, for tests.
#[derive(Clone, Debug)]
pub struct Recorded<D> {
    /// The memory.
    pub memory: D,
    /// What happened, oldest first.
    pub log: Vec<Transfer>,
}

impl<D: Dma> Recorded<D> {
    /// Nothing done yet.
    pub const fn new(memory: D) -> Self {
        Self { memory, log: Vec::new() }
    }

    fn note(&mut self, address: u64, len: usize, write: bool, result: Result<(), DmaError>) {
        self.log.push(Transfer { address, len, write, refused: result.is_err() });
    }
}

impl<D: Dma> Dma for Recorded<D> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let result = self.memory.read(address, buffer);
        self.note(address, buffer.len(), false, result);
        result
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let result = self.memory.write(address, bytes);
        self.note(address, bytes.len(), true, result);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_holds_its_stretch_and_nothing_else() {
        let mut memory = VecMemory::new(0x1000, 16);
        assert_eq!(memory.write(0x100c, &[1, 2, 3, 4]), Ok(()));
        assert_eq!(memory.write(0x100d, &[9; 4]), Err(DmaError));
        assert_eq!(memory.write(0xfff, &[9; 4]), Err(DmaError));
        assert_eq!(memory.write(u64::MAX, &[9; 4]), Err(DmaError));
        let mut word = [0; 4];
        assert_eq!(memory.read(0x100c, &mut word), Ok(()));
        assert_eq!(word, [1, 2, 3, 4]);
        assert_eq!(memory.at(0x1000, 12), Some(&[0; 12][..]));
    }

    #[test]
    fn refused_reads_are_ones_and_counted() {
        let (mut memory, mut refused) = (Recorded::new(VecMemory::new(0, 8)), 0);
        let mut bus = BusMaster::new(&mut memory, &mut refused);
        bus.write_u32(4, 0x1234_5678);
        assert_eq!(bus.read_u32(4), 0x1234_5678);
        assert_eq!(bus.read_u32(6), u32::MAX);
        bus.write_u32(6, 0);
        assert_eq!(refused, 2);
        let refusals: Vec<bool> = memory.log.iter().map(|transfer| transfer.refused).collect();
        assert_eq!(refusals, [false, false, true, true]);
        assert_eq!(memory.log[3], Transfer { address: 6, len: 4, write: true, refused: true });
        assert_eq!(NoMemory.read(0, &mut []), Err(DmaError));
    }
}
