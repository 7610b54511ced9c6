//! The device's side of a queue: taking buffers that the driver makes available, and giving them back used.
//!
//! Source: Virtio 1.2, 2.7 (split queues), without indirect descriptors. All that is read is the guest's word: an index or an address that
//! makes no sense is a [`Fault`], and no chain is followed further than the queue has entries.

use crate::queue::Queue;

/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// The driver wants no signal (2.7.7).
const NO_INTERRUPT: u16 = 1;
/// Offset of the entries in the available ring, and in the used ring.
const ENTRIES: u64 = 4;

/// The driver broke the rules of the queue: its device needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Memory of the guest, by the addresses that its driver uses.
pub trait Memory {
    /// Fills `buffer` from `address` on.
    ///
    /// # Errors
    /// It is not all memory of the guest's.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault>;

    /// Stores `bytes` from `address` on.
    ///
    /// # Errors
    /// It is not all memory of the guest's.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// A piece of memory that a chain names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where it is.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// It is for the device to write; else to read.
    pub writable: bool,
}

/// How far the device has come with a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Chains taken.
    taken: u16,
    /// Chains given back.
    used: u16,
}

impl Ring {
    /// Head of the next chain, which stays the next one until it is given back; `None` if the driver has made none available.
    ///
    /// # Errors
    /// The driver claims to have made more available than there are.
    pub fn next(&self, queue: &Queue, memory: &dyn Memory) -> Result<Option<u16>, Fault> {
        let available = read_u16(memory, queue.driver, 2)?;
        match available.wrapping_sub(self.taken) {
            0 => Ok(None),
            waiting if waiting > queue.size => Err(Fault),
            _ => {
                let slot = u64::from(self.taken % queue.size);
                let head = read_u16(memory, queue.driver, ENTRIES + slot * 2)?;
                if head < queue.size { Ok(Some(head)) } else { Err(Fault) }
            }
        }
    }

    /// Gives the next chain back, with so many bytes written into it. Returns whether the driver wants to hear of it.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn put(
        &mut self,
        queue: &Queue,
        memory: &dyn Memory,
        head: u16,
        written: u32,
    ) -> Result<bool, Fault> {
        let slot = u64::from(self.used % queue.size);
        let mut entry = [0; 8];
        entry[..2].copy_from_slice(&head.to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(at(queue.device, ENTRIES + slot * 8)?, &entry)?;
        let used = self.used.wrapping_add(1);
        memory.write(at(queue.device, 2)?, &used.to_le_bytes())?;
        (self.taken, self.used) = (self.taken.wrapping_add(1), used);
        Ok(read_u16(memory, queue.driver, 0)? & NO_INTERRUPT == 0)
    }
}

/// The buffers of a chain, in order. After a fault there is no other.
pub fn buffers<'a>(
    queue: &'a Queue,
    memory: &'a dyn Memory,
    head: u16,
) -> impl Iterator<Item = Result<Buffer, Fault>> + 'a {
    let (mut next, mut left) = (Some(head), queue.size);
    core::iter::from_fn(move || {
        let index = next.take()?;
        let found = match left.checked_sub(1) {
            Some(fewer) => {
                left = fewer;
                descriptor(queue, memory, index)
            }
            None => Err(Fault),
        };
        Some(found.map(|(buffer, after)| {
            next = after;
            buffer
        }))
    })
}

fn descriptor(queue: &Queue, memory: &dyn Memory, index: u16) -> Result<(Buffer, Option<u16>), Fault> {
    if index >= queue.size {
        return Err(Fault);
    }
    let mut bytes = [0; DESCRIPTOR as usize];
    memory.read(at(queue.desc, u64::from(index) * DESCRIPTOR)?, &mut bytes)?;
    let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
    let flags = u16::from_le_bytes([f0, f1]);
    if flags & INDIRECT != 0 {
        return Err(Fault);
    }
    let buffer = Buffer {
        address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        len: u32::from_le_bytes([l0, l1, l2, l3]),
        writable: flags & WRITE != 0,
    };
    Ok((buffer, (flags & NEXT != 0).then_some(u16::from_le_bytes([n0, n1]))))
}

fn at(base: u64, offset: u64) -> Result<u64, Fault> {
    base.checked_add(offset).ok_or(Fault)
}

fn read_u16(memory: &dyn Memory, base: u64, offset: u64) -> Result<u16, Fault> {
    let mut bytes = [0; 2];
    memory.read(at(base, offset)?, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}
