//! A queue that another program serves, and whose requests are answered in their order though it answers them in any.
//!
//! The program gets rings of this daemon's, the descriptors are the guest's. What the guest makes available is passed on, entry by entry; what the
//! program has used is kept back until all before it is used, too. So the guest's queue says, as one of the daemon's own disks does, what is
//! answered and what is not, and whoever comes after the program or after the daemon does again what is not: no request is lost with either.
//! This is right for a disk only, where doing a read or a write twice is doing it once (see the crate's description).
//!
//! Both rings are hostile: the guest's is read by [`virtio_queue`], the program's here. Neither can have more under way than there are
//! entries, and a head is under way once.

use crate::function::Window;
use crate::sys;
use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use vhost::VringConfigData;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{
    Address, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};

/// Bytes of the rings of a queue in [`Rings`]: the available ring, and behind it the used ring.
const STRIDE: u64 = 0x2000;
const USED: u64 = 0x1000;

/// Most entries of a queue, with which each ring has room in its page.
pub const MOST: u16 = 256;

const GUESTS: &str = "the guest's queue is broken";
const PROGRAMS: &str = "the back end's queue is broken";

/// Memory with rings for a program, at addresses behind the guest's memory.
#[derive(Clone, Debug)]
pub struct Rings(pub Window);

impl Rings {
    /// Empty rings of so many queues.
    ///
    /// # Errors
    /// There is no memory, or no room for addresses behind the window.
    pub fn new(queues: usize, window: &GuestMemoryMmap) -> Result<Self> {
        let len = STRIDE * queues as u64;
        let file = sys::memory_file(len).context("could not make rings for the back end")?;
        let start = window
            .last_addr()
            .raw_value()
            .checked_add(1)
            .and_then(|end| end.checked_next_multiple_of(STRIDE));
        let start = GuestAddress(start.context("the window leaves no room for rings")?);
        let range = (start, len as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range])
            .context("could not map rings for the back end")?;
        Ok(Self(Window::new(memory)))
    }

    fn available(&self, place: usize) -> Result<u64> {
        let start = self.0.iter().next().context(PROGRAMS)?.start_addr().raw_value();
        Ok(start + STRIDE * place as u64)
    }
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The guest has it.
    Guests,
    /// The program has it.
    Programs,
    /// The program has answered, so many bytes were written, and others before it are not answered.
    Used(u32),
}

/// A queue between a guest and a program.
#[derive(Debug)]
pub struct Relay {
    /// The guest's.
    queue: Queue,
    /// The program's, at this address.
    rings: Rings,
    available: u64,
    /// What is under way, by its head.
    states: Vec<State>,
    /// The same in the order in which the guest asked.
    order: VecDeque<u16>,
    /// Indices of the program's rings.
    passed: u16,
    seen: u16,
}

impl Relay {
    /// Takes up a guest's queue, with the rings at this place for the program.
    ///
    /// # Errors
    /// It has too many entries for them.
    pub fn new(queue: Queue, rings: &Rings, place: usize) -> Result<Self> {
        let entries = queue.size();
        ensure!((1..=MOST).contains(&entries), "the guest's queue is too long");
        Ok(Self {
            queue,
            rings: rings.clone(),
            available: rings.available(place)?,
            states: vec![State::Guests; usize::from(entries)],
            order: VecDeque::with_capacity(usize::from(entries)),
            passed: 0,
            seen: 0,
        })
    }

    /// Where the program finds the queue.
    pub fn for_program(&self) -> VringConfigData {
        VringConfigData {
            queue_max_size: MOST,
            queue_size: self.queue.size(),
            flags: 0,
            desc_table_addr: self.queue.desc_table(),
            used_ring_addr: self.available + USED,
            avail_ring_addr: self.available,
            log_addr: None,
        }
    }

    /// Passes on what the guest has made available, and asks it to tell of more. Returns whether there was anything.
    ///
    /// # Errors
    /// The guest broke a rule.
    pub fn pass_on(&mut self, window: &GuestMemoryMmap) -> Result<bool> {
        let before = self.passed;
        loop {
            while let Some(chain) = self.queue.iter(window).context(GUESTS)?.next() {
                let head = chain.head_index();
                match self.states.get_mut(usize::from(head)) {
                    Some(state @ State::Guests) => *state = State::Programs,
                    _ => bail!("the guest asks for what is under way, or is no request"),
                }
                self.order.push_back(head);
                let slot = u64::from(self.passed % self.queue.size());
                let entry = GuestAddress(self.available + 4 + 2 * slot);
                self.rings.0.write_obj(head.to_le(), entry).context(PROGRAMS)?;
                self.passed = self.passed.wrapping_add(1);
            }
            // The program reads entries after the index.
            let index = GuestAddress(self.available + 2);
            self.rings.0.store(self.passed.to_le(), index, Ordering::Release).context(PROGRAMS)?;
            if !self.queue.enable_notification(window).context(GUESTS)? {
                return Ok(self.passed != before);
            }
        }
    }

    /// Takes back what the program has used, and answers what may be answered. Returns whether the guest wants to know.
    ///
    /// # Errors
    /// The program broke a rule, or the guest did.
    pub fn take_back(&mut self, window: &GuestMemoryMmap) -> Result<bool> {
        let used = self.available + USED;
        let index: u16 = self.rings.0.load(GuestAddress(used + 2), Ordering::Acquire).context(PROGRAMS)?;
        let index = u16::from_le(index);
        while self.seen != index {
            let slot = u64::from(self.seen % self.queue.size());
            let entry: [u32; 2] =
                self.rings.0.read_obj(GuestAddress(used + 4 + 8 * slot)).context(PROGRAMS)?;
            let [head, len] = entry.map(u32::from_le);
            match self.states.get_mut(head as usize) {
                Some(state @ State::Programs) => *state = State::Used(len),
                _ => bail!("the back end answers what it was not asked"),
            }
            self.seen = self.seen.wrapping_add(1);
        }
        let mut answered = false;
        while let Some(head) = self.order.front().copied()
            && let Some(state) = self.states.get_mut(usize::from(head))
            && let State::Used(len) = *state
        {
            *state = State::Guests;
            self.order.pop_front();
            self.queue.add_used(window, head, len).context(GUESTS)?;
            answered = true;
        }
        Ok(answered && self.queue.needs_notification(window).context(GUESTS)?)
    }
}

#[cfg(test)]
mod tests;
