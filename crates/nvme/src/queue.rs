//! A guest's queues, in its memory.

use crate::{Command, Memory, PAGE, Status};
use core::sync::atomic::{Ordering, fence};

/// Where a driver that writes its doorbells to memory has them, and what it has to see there before it rings (NVMe, 5.7 and 7.13).
#[derive(Clone, Copy, Debug)]
pub struct Doorbells {
    /// The page of doorbells.
    pub values: u64,
    /// The page that says past which value to ring.
    pub events: u64,
}

impl Doorbells {
    /// The last value of a doorbell.
    fn value(&self, doorbell: u16, memory: &impl Memory) -> Option<u32> {
        memory.read_word(self.values + 4 * u64::from(doorbell))
    }

    /// The driver is to ring when it passes this value.
    fn ring_at(&self, doorbell: u16, value: u16, memory: &impl Memory) {
        memory.write_word(self.events + 4 * u64::from(doorbell), value.into());
        // What was written is seen before what is read next.
        fence(Ordering::SeqCst);
    }
}

/// A queue of commands.
#[derive(Clone, Copy, Debug)]
pub struct Submissions {
    at: u64,
    size: u16,
    head: u16,
    tail: u16,
}

impl Submissions {
    /// Whether so many entries from `at` on have addresses.
    pub const fn is_within(at: u64, size: u16) -> bool {
        at.checked_add(size as u64 * Command::SIZE as u64).is_some()
    }

    /// An empty queue of `size` entries, from a page on.
    pub const fn new(at: u64, size: u16) -> Self {
        Self { at, size, head: 0, tail: 0 }
    }

    /// Entry that is taken next.
    pub const fn head(&self) -> u16 {
        self.head
    }

    /// The driver has filled entries up to this one. False: there is no such entry.
    pub fn set_tail(&mut self, tail: u32) -> bool {
        let is_one = tail < u32::from(self.size);
        if is_one {
            self.tail = tail as u16;
        }
        is_one
    }

    /// Whether there is a command, as far as the driver has said.
    pub const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Looks for what the driver says in memory: whether there is a command now. If not, it will ring for the next one.
    pub fn look(&mut self, doorbells: &Doorbells, doorbell: u16, memory: &impl Memory) -> bool {
        for asks in [false, true] {
            if asks {
                doorbells.ring_at(doorbell, self.tail, memory);
            }
            if let Some(tail) = doorbells.value(doorbell, memory) {
                self.set_tail(tail);
            }
            if !self.is_empty() {
                return true;
            }
        }
        false
    }

    /// Takes a command; `None` if there is none, or it cannot be read.
    pub fn take(&mut self, memory: &impl Memory) -> Option<Command> {
        if self.is_empty() {
            return None;
        }
        let mut raw = [0; Command::SIZE];
        if !memory.read(self.at + u64::from(self.head) * Command::SIZE as u64, &mut raw) {
            return None;
        }
        self.head = (self.head + 1) % self.size;
        Some(Command::decode(&raw))
    }

    /// The next command, which stays there: the driver may change it until it is taken.
    pub fn peek(&self, memory: &impl Memory) -> Option<Command> {
        Self { ..*self }.take(memory)
    }

    /// Takes a command, unless it has to wait: it is read once, and what waits and what is taken are the same bytes.
    pub fn take_unless(
        &mut self,
        memory: &impl Memory,
        waits: impl FnOnce(&Command) -> bool,
    ) -> Option<Command> {
        let mut after = *self;
        let command = after.take(memory).filter(|command| !waits(command))?;
        *self = after;
        Some(command)
    }
}

/// A queue of completions.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    at: u64,
    size: u16,
    head: u16,
    tail: u16,
    phase: bool,
    /// Which message tells of them, if any does.
    vector: Option<u16>,
}

impl Completions {
    /// Bytes of an entry.
    const ENTRY: u64 = 16;

    /// Whether so many entries from `at` on have addresses.
    pub const fn is_within(at: u64, size: u16) -> bool {
        at.checked_add(size as u64 * Self::ENTRY).is_some()
    }

    /// An empty queue of `size` entries, from a page on.
    pub const fn new(at: u64, size: u16, vector: Option<u16>) -> Self {
        Self { at, size, head: 0, tail: 0, phase: true, vector }
    }

    /// Which message tells of them.
    pub const fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// The driver has seen entries up to this one. False: there is no such entry.
    pub fn set_head(&mut self, head: u32) -> bool {
        let is_one = head < u32::from(self.size);
        if is_one {
            self.head = head as u16;
        }
        is_one
    }

    /// Whether there is room for an entry, as far as the driver has said.
    pub const fn has_room(&self) -> bool {
        (self.tail + 1) % self.size != self.head
    }

    /// Looks for what the driver says in memory: whether there is room now. If not, it will ring when there is.
    pub fn look(&mut self, doorbells: &Doorbells, doorbell: u16, memory: &impl Memory) -> bool {
        for asks in [false, true] {
            if asks {
                doorbells.ring_at(doorbell, self.head, memory);
            }
            if let Some(head) = doorbells.value(doorbell, memory) {
                self.set_head(head);
            }
            if self.has_room() {
                return true;
            }
        }
        false
    }

    /// Tells the driver of a command: its number, what became of it, and which queue it came by and where that is now.
    pub fn put(
        &mut self,
        id: u16,
        status: Status,
        result: u32,
        (queue, head): (u16, u16),
        memory: &impl Memory,
    ) {
        let at = self.at + u64::from(self.tail) * Self::ENTRY;
        let mut entry = [0; 12];
        entry[..4].copy_from_slice(&result.to_le_bytes());
        entry[8..10].copy_from_slice(&head.to_le_bytes());
        entry[10..].copy_from_slice(&queue.to_le_bytes());
        let last = u32::from(id) | u32::from(self.phase) << 16 | u32::from(status.0) << 17;
        memory.write(at, &entry);
        // The phase tag says that the rest is there.
        fence(Ordering::Release);
        memory.write_word(at + 12, last);
        self.tail += 1;
        if self.tail == self.size {
            (self.tail, self.phase) = (0, !self.phase);
        }
    }
}

/// Whether a queue can begin there.
pub const fn is_page(at: u64) -> bool {
    at.is_multiple_of(PAGE)
}
