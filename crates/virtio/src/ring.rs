//! The device's side of a queue: taking buffers that the driver makes available, and giving them back used.
//!
//! Source: Virtio 1.2, 2.7 (split queues), without indirect descriptors. All that is read is the guest's word: an index or an address that
//! makes no sense is a [`Fault`], and no chain is followed further than the queue has entries.

use crate::queue::Queue;
use core::sync::atomic::{Ordering, fence};

/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// The driver wants no signal (2.7.7).
const NO_INTERRUPT: u16 = 1;
/// The device wants none (2.7.10).
const NO_NOTIFY: u16 = 1;
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

    /// Reads two bytes at once, which the driver may write meanwhile; `address` is even.
    ///
    /// # Errors
    /// They are not memory of the guest's.
    fn read_u16(&self, address: u64) -> Result<u16, Fault> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Writes two bytes at once, which the driver may read meanwhile; `address` is even.
    ///
    /// # Errors
    /// They are not memory of the guest's.
    fn write_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        self.write(address, &value.to_le_bytes())
    }
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
    /// Chains taken, and given back.
    taken: u16,
    /// Chains that the driver knows to be given back.
    published: u16,
    /// Both sides say by event indices what they want to hear of (2.7.10), not by flags.
    events: bool,
}

impl Ring {
    /// Of a queue that was just enabled, by a driver that accepted event indices or did not.
    pub const fn new(events: bool) -> Self {
        Self { taken: 0, published: 0, events }
    }

    /// Chains that the driver has made available and that are not given back.
    ///
    /// # Errors
    /// The driver claims to have made more available than there are.
    pub fn waiting(&self, queue: &Queue, memory: &(impl Memory + ?Sized)) -> Result<u16, Fault> {
        let waiting = read_u16(memory, queue.driver, 2)?.wrapping_sub(self.taken);
        // What the driver wrote before is read after.
        fence(Ordering::Acquire);
        if waiting > queue.size { Err(Fault) } else { Ok(waiting) }
    }

    /// Head of the chain that so many others are given back before. It must be one of those that wait.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn head(&self, queue: &Queue, memory: &(impl Memory + ?Sized), after: u16) -> Result<u16, Fault> {
        let slot = u64::from(self.taken.wrapping_add(after) % queue.size);
        let head = read_u16(memory, queue.driver, ENTRIES + slot * 2)?;
        if head < queue.size { Ok(head) } else { Err(Fault) }
    }

    /// Head of the next chain, which stays the next one until it is given back; `None` if the driver has made none available.
    ///
    /// # Errors
    /// The driver claims to have made more available than there are.
    pub fn next(&self, queue: &Queue, memory: &(impl Memory + ?Sized)) -> Result<Option<u16>, Fault> {
        match self.waiting(queue, memory)? {
            0 => Ok(None),
            _ => self.head(queue, memory, 0).map(Some),
        }
    }

    /// Gives the next chain back, with so many bytes written into it. The driver sees it once that is published.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn give(
        &mut self,
        queue: &Queue,
        memory: &(impl Memory + ?Sized),
        head: u16,
        written: u32,
    ) -> Result<(), Fault> {
        let slot = u64::from(self.taken % queue.size);
        let entry = u64::from(head) | u64::from(written) << 32;
        memory.write(at(queue.device, ENTRIES + slot * 8)?, &entry.to_le_bytes())?;
        self.taken = self.taken.wrapping_add(1);
        Ok(())
    }

    /// Shows the driver all chains that were given back. Returns whether it wants to hear of them.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn publish(&mut self, queue: &Queue, memory: &(impl Memory + ?Sized)) -> Result<bool, Fault> {
        let before = self.published;
        self.show(queue, memory)?;
        self.is_awaited(queue, memory, before)
    }

    /// Shows the driver all chains that were given back. Returns how many it has been shown, modulo 65,536.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn show(&mut self, queue: &Queue, memory: &(impl Memory + ?Sized)) -> Result<u16, Fault> {
        if self.published != self.taken {
            fence(Ordering::Release);
            memory.write_u16(at(queue.device, 2)?, self.taken)?;
            self.published = self.taken;
            // The driver says what it wants to hear of, and then looks whether there is something; here it is the other way round.
            fence(Ordering::SeqCst);
        }
        Ok(self.published)
    }

    /// Whether the driver wants to hear of what it has been shown after this number of chains.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn is_awaited(
        &self,
        queue: &Queue,
        memory: &(impl Memory + ?Sized),
        before: u16,
    ) -> Result<bool, Fault> {
        let now = self.published;
        if before == now {
            return Ok(false);
        }
        if !self.events {
            return Ok(read_u16(memory, queue.driver, 0)? & NO_INTERRUPT == 0);
        }
        let wanted = read_u16(memory, queue.driver, ENTRIES + u64::from(queue.size) * 2)?;
        Ok(now.wrapping_sub(wanted).wrapping_sub(1) < now.wrapping_sub(before))
    }

    /// Gives the next chain back and publishes it. Returns whether the driver wants to hear of it.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn put(
        &mut self,
        queue: &Queue,
        memory: &(impl Memory + ?Sized),
        head: u16,
        written: u32,
    ) -> Result<bool, Fault> {
        self.give(queue, memory, head, written)?;
        self.publish(queue, memory)
    }

    /// Says whether the driver is to tell of chains that it makes available. After it was asked to, the caller looks once more.
    ///
    /// # Errors
    /// The rings are not in memory of the guest's.
    pub fn listen(&self, queue: &Queue, memory: &(impl Memory + ?Sized), wanted: bool) -> Result<(), Fault> {
        if self.events {
            // An index that lies behind is not come to for a while, and then once.
            let event = if wanted { self.taken } else { self.taken.wrapping_sub(1) };
            memory.write_u16(at(queue.device, ENTRIES + u64::from(queue.size) * 8)?, event)?;
        } else {
            let flags = if wanted { 0 } else { NO_NOTIFY };
            memory.write_u16(queue.device, flags)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }
}

/// The buffers of a chain, in order. After a fault there is no other.
pub fn buffers<'a>(
    queue: &'a Queue,
    memory: &'a (impl Memory + ?Sized),
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

fn descriptor(
    queue: &Queue,
    memory: &(impl Memory + ?Sized),
    index: u16,
) -> Result<(Buffer, Option<u16>), Fault> {
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

fn read_u16(memory: &(impl Memory + ?Sized), base: u64, offset: u64) -> Result<u16, Fault> {
    memory.read_u16(at(base, offset)?)
}
