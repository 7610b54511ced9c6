//! The driver's side of a split queue whose chains are one descriptor each: buffer and descriptor have the same number.
//!
//! Source: Virtio 1.2, 2.7. Deviations: there are no event indices.

use crate::DmaMemory;
use core::sync::atomic::{Ordering, fence};

/// Bytes of a descriptor, and the flag that the device writes (2.7.5).
const DESCRIPTOR: usize = 16;
const WRITE: u64 = 2;
/// Offsets in a ring (2.7.6, 2.7.8): flags, index, entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// The driver wants no interrupt; the device wants no notification.
const QUIET: u16 = 1;

/// Offsets of its parts in the card's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub descriptors: usize,
    pub available: usize,
    pub used: usize,
}

/// A queue of `N` descriptors, a power of two.
#[derive(Debug)]
pub(super) struct Queue<const N: usize> {
    places: Places,
    /// Buffers offered, and come back.
    offered: u16,
    seen: u16,
    /// The device has this one.
    is_away: [bool; N],
    /// A buffer that is here, probably.
    here: usize,
    /// The device interrupts for buffers that come back.
    listens: bool,
}

fn get(memory: &dyn DmaMemory, at: usize) -> u16 {
    let mut bytes = [0; 2];
    memory.read(at, &mut bytes);
    u16::from_le_bytes(bytes)
}

impl<const N: usize> Queue<N> {
    /// One that the device does not know yet.
    pub const fn new(places: Places) -> Self {
        Self { places, offered: 0, seen: 0, is_away: [false; N], here: 0, listens: true }
    }

    /// The device was reset: nothing is in the rings.
    pub fn begin(&self, memory: &mut dyn DmaMemory) {
        memory.write(self.places.available, &[0; ENTRIES]);
        memory.write(self.places.used, &[0; ENTRIES]);
    }

    /// A buffer that the device does not have.
    pub fn free(&mut self) -> Option<u16> {
        let found = (0..N).map(|after| (self.here + after) % N).find(|index| !self.is_away[*index])?;
        self.here = found;
        Some(found as u16)
    }

    /// Puts a buffer of so many bytes into the queue, for the device to write or to read. It sees it once that is published.
    pub fn offer(&mut self, memory: &mut dyn DmaMemory, index: u16, at: usize, bytes: usize, write: bool) {
        let number = usize::from(index) % N;
        let address = u64::from(memory.bus()) + at as u64;
        let rest = bytes as u64 | if write { WRITE << 32 } else { 0 };
        let words = u128::from(address) | u128::from(rest) << 64;
        memory.write(self.places.descriptors + number * DESCRIPTOR, &words.to_le_bytes());
        let entry = self.places.available + ENTRIES + usize::from(self.offered) % N * 2;
        memory.write(entry, &(number as u16).to_le_bytes());
        self.is_away[number] = true;
        self.offered = self.offered.wrapping_add(1);
    }

    /// Shows the device what was offered. Returns whether it wants to be notified.
    pub fn publish(&self, memory: &mut dyn DmaMemory) -> bool {
        fence(Ordering::Release);
        memory.write(self.places.available + INDEX, &self.offered.to_le_bytes());
        fence(Ordering::SeqCst);
        get(memory, self.places.used + FLAGS) & QUIET == 0
    }

    /// The next buffer that came back, and how many bytes the device has written into it. `Some(None)`: it gives back what it does not have.
    pub fn next_used(&mut self, memory: &dyn DmaMemory) -> Option<Option<(u16, u32)>> {
        if get(memory, self.places.used + INDEX) == self.seen {
            return None;
        }
        fence(Ordering::Acquire);
        let mut entry = [0; 8];
        memory.read(self.places.used + ENTRIES + usize::from(self.seen) % N * 8, &mut entry);
        self.seen = self.seen.wrapping_add(1);
        let [i0, i1, i2, i3, b0, b1, b2, b3] = entry;
        let (index, bytes) = (u32::from_le_bytes([i0, i1, i2, i3]), u32::from_le_bytes([b0, b1, b2, b3]));
        let away = self.is_away.get_mut(index as usize).filter(|away| **away);
        Some(away.map(|away| {
            *away = false;
            (index as u16, bytes)
        }))
    }

    /// Whether the device is to interrupt for buffers that come back, as it is to begin with.
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// Says whether it is. Who wants to be interrupted looks once more.
    pub fn listen(&mut self, memory: &mut dyn DmaMemory, wanted: bool) {
        if core::mem::replace(&mut self.listens, wanted) == wanted {
            return;
        }
        let flags = if wanted { 0 } else { QUIET };
        memory.write(self.places.available + FLAGS, &flags.to_le_bytes());
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const PLACES: Places = Places { descriptors: 0, available: 0x100, used: 0x200 };

    struct Ram(Vec<u8>);

    impl DmaMemory for Ram {
        fn bus(&self) -> u32 {
            0x4000
        }
        fn read(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0[offset..offset + into.len()]);
        }
        fn write(&mut self, offset: usize, bytes: &[u8]) {
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
            act(&mut self.0[offset..offset + len])
        }
    }

    /// The device gives this back.
    fn give(ram: &mut Ram, nth: u16, index: u32, bytes: u32) {
        let entry = u64::from(index) | u64::from(bytes) << 32;
        ram.write(0x204 + usize::from(nth % 4) * 8, &entry.to_le_bytes());
        ram.write(0x202, &nth.wrapping_add(1).to_le_bytes());
    }

    #[test]
    fn a_buffer_comes_back_once_and_only_if_it_was_away() {
        let (mut ram, mut queue) = (Ram(vec![0; 0x300]), Queue::<4>::new(PLACES));
        queue.begin(&mut ram);
        queue.offer(&mut ram, 2, 0x80, 64, true);
        queue.offer(&mut ram, 0, 0x40, 32, false);
        assert!(queue.publish(&mut ram));
        let [two, none] = [2u16, 0].map(|index| usize::from(index) * 16);
        assert_eq!(ram.0[two..two + 16], [0x80, 0x40, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(ram.0[none..none + 16], [0x40, 0x40, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ram.0[0x100..0x108], [0, 0, 2, 0, 2, 0, 0, 0]);
        assert_eq!(queue.free(), Some(1));
        assert_eq!(queue.next_used(&ram), None);
        let all = [(2, Some((2, 60))), (2, None), (1, None), (4, None), (u32::MAX, None), (0, Some((0, 60)))];
        for (nth, (index, found)) in (0..).zip(all) {
            give(&mut ram, nth, index, 60);
            assert_eq!(queue.next_used(&ram), Some(found), "{index}");
            assert_eq!(queue.next_used(&ram), None);
        }
    }

    #[test]
    fn who_has_all_buffers_leaves_none() {
        let (mut ram, mut queue) = (Ram(vec![0; 0x300]), Queue::<4>::new(PLACES));
        for index in 0..4 {
            assert_eq!(queue.free(), Some(index));
            queue.offer(&mut ram, index, 0, 1, false);
        }
        assert_eq!(queue.free(), None);
        give(&mut ram, 0, 3, 0);
        assert!(queue.next_used(&ram).is_some());
        assert_eq!(queue.free(), Some(3));
        // The device wants no notification.
        ram.0[0x200] = 1;
        assert!(!queue.publish(&mut ram));
        queue.listen(&mut ram, false);
        assert_eq!(ram.0[0x100], 1);
    }
}
