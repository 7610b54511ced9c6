//! The Intel 82540EM and 82574L as uplinks. Frames go by legacy descriptors, packets that the card is to finish by a context and data descriptors.
//!
//! The card writes descriptors back; of these nothing is read but status and length, which are checked, and each is
//! written whole before the card gets it again.
//! Source: Intel 8254x Software Developer's Manual (317453), 3.2 (receive, checksums), 3.3 (transmit), 3.5 (segmentation), 13.4 (registers),
//! 14.4-14.5 (initialization); 82574 datasheet (317694), 7.1 (receive, legacy descriptors), 7.2 (queues), 10.2.4.1 (ICR), 10.2.6 (their registers). Of
//! the latter one queue is received by, and up to two are sent by.

mod messages;
mod queue;
mod sender;

use crate::{
    Card, Counters, DmaMemory, MAX_FRAME, MIN_FRAME, Place, Queue, RawDevice, Sent, Transmit, Uplink,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use queue::{Notice, SendQueue};
use sluice_nic::Offload;

/// Registers, by their names in the manual.
mod reg {
    pub const CTRL: u16 = 0x0000;
    pub const STATUS: u16 = 0x0008;
    pub const ICR: u16 = 0x00c0;
    pub const IMS: u16 = 0x00d0;
    pub const IMC: u16 = 0x00d8;
    pub const RCTL: u16 = 0x0100;
    pub const TCTL: u16 = 0x0400;
    pub const TIPG: u16 = 0x0410;
    pub const RECEIVE_RING: u16 = 0x2800;
    pub const SEND_RING: u16 = 0x3800;
    pub const RXCSUM: u16 = 0x5000;
    pub const MTA: u16 = 0x5200;
    // Of a ring.
    pub const LOW: u16 = 0x00;
    pub const HIGH: u16 = 0x04;
    pub const LENGTH: u16 = 0x08;
    pub const HEAD: u16 = 0x10;
    pub const TAIL: u16 = 0x18;
    pub const TURNS: u16 = 0x40;
    /// From one to the next.
    pub const NEXT_RING: u16 = 0x100;
}

/// CTRL: reset; link up; speed found by itself.
const RESET: u32 = 1 << 26;
const LINK: u32 = 1 << 6 | 1 << 5;
/// RCTL: on, all unicast, all multicast, broadcast, CRC taken off; buffers of 2048 bytes, one frame each.
const RECEIVE: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 15 | 1 << 26;
/// TCTL: on, short frames padded, collision threshold and distance as 14.5 says.
const SEND: u32 = 1 << 1 | 1 << 3 | 0xf << 4 | 0x40 << 12;
/// RXCSUM: checksums of IP, and of TCP and UDP, are looked at.
const CHECKS: u32 = 1 << 8 | 1 << 9;
/// TIPG for copper, 14.5.
const GAPS: u32 = 0x0060_200a;

/// Causes: descriptor sent; link changed; few receive descriptors; overrun; received.
const SENT: u32 = 1 << 0;
const LINK_CHANGED: u32 = 1 << 2;
const FEW: u32 = 1 << 4;
const OVERRUN: u32 = 1 << 6;
const RECEIVED: u32 = 1 << 7;
const WANTED: u32 = LINK_CHANGED | FEW | OVERRUN | RECEIVED;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// Descriptors to receive into, and to send from: multiples of eight.
const RECEIVERS: usize = 64;
const SENDERS: usize = 128;
/// Bytes of a buffer to receive into: what a frame needs, and a longer one than usual. RCTL says which: BSEX and BSIZE of the latter, and that
/// long frames are taken (13.4.22).
const BUFFER: usize = 2048;
const LONG_BUFFER: usize = 0x4000;
const LONG: u32 = 1 << 25 | 1 << 16 | 1 << 5;
/// The longest frame, with a tag, that is put into one and has room in a packet buffer of 64 KiB.
const LONGEST: usize = 9018;
/// Bytes that wait to be sent: four of the longest packets.
const SEND_BYTES: usize = 0x4_0000;
/// Memory: the ring to receive by on a page, its buffers, and a queue to send from if that is not given away: a page with its ring, and the bytes.
const RECEIVE_BUFFERS: usize = 0x1000;
const SEND_BUFFERS: usize = 0x1000;

/// Status of a descriptor: done; of a received one: last of its frame.
const DONE: u8 = 1;
const END: u8 = 2;
/// Of a received one: its checksums were not looked at; those of TCP or UDP, and of IP, were. And errors: they are wrong.
const UNCHECKED: u8 = 1 << 2;
const CHECKED: u8 = 1 << 5 | 1 << 6;
const WRONG: u8 = 1 << 5 | 1 << 6;
/// Reads of a register that should change.
const PATIENCE: usize = 10_000;

/// The driver.
#[derive(Debug)]
pub struct E1000 {
    /// It is an 82574L.
    is_82574: bool,
    /// Bytes of the longest frame.
    longest: usize,
    /// The descriptor that the card fills next.
    next: usize,
    /// What it sends by itself.
    queue: Option<SendQueue>,
    /// Queues that it gave away, and whether the card tells by messages.
    given: u8,
    messages: bool,
    /// Somebody waits for a descriptor, and transmit interrupts are on.
    awaited: Arc<AtomicBool>,
    counters: Counters,
}

impl Default for E1000 {
    fn default() -> Self {
        Self::new()
    }
}

/// Empties a ring, or has it begin at an address.
fn set_ring(raw: &mut dyn RawDevice, ring: u16, address: u32, descriptors: usize) {
    raw.write(ring + reg::LOW, 4, address);
    raw.write(ring + reg::HIGH, 4, 0);
    raw.write(ring + reg::LENGTH, 4, (descriptors * DESCRIPTOR) as u32);
    raw.write(ring + reg::HEAD, 4, 0);
    raw.write(ring + reg::TAIL, 4, 0);
}

impl E1000 {
    /// A driver for an 82540EM that it has not touched yet.
    pub fn new() -> Self {
        Self::with(false)
    }

    /// The same for an 82574L.
    pub fn new_82574() -> Self {
        Self::with(true)
    }

    fn with(is_82574: bool) -> Self {
        let awaited = Arc::new(AtomicBool::new(false));
        Self {
            is_82574,
            longest: MAX_FRAME,
            next: 0,
            queue: Some(SendQueue::new(0, false, Notice::Line(awaited.clone()))),
            given: 0,
            messages: false,
            awaited,
            counters: Counters::default(),
        }
    }

    /// Where the memory of its own queue begins.
    const fn after_buffers(&self) -> usize {
        RECEIVE_BUFFERS + RECEIVERS * self.buffer()
    }

    /// Bytes of a buffer to receive into.
    const fn buffer(&self) -> usize {
        if self.longest > MAX_FRAME { LONG_BUFFER } else { BUFFER }
    }

    /// Gives the card a descriptor to receive into.
    fn offer(&self, memory: &mut dyn DmaMemory, index: usize) {
        let address = u64::from(memory.bus()) + (RECEIVE_BUFFERS + index * self.buffer()) as u64;
        memory.write(index * DESCRIPTOR, &u128::from(address).to_le_bytes());
    }

    /// Length of the frame in the next descriptor, and whether the card has found all its checksums right. `Err`: the card has not filled it;
    /// `Ok(None)`: with nothing that could be a frame.
    fn filled(&self, memory: &dyn DmaMemory) -> Result<Option<(usize, bool)>, ()> {
        let mut descriptor = [0; DESCRIPTOR];
        memory.read(self.next * DESCRIPTOR, &mut descriptor);
        let [_, _, _, _, _, _, _, _, l0, l1, _, _, status, errors, _, _] = descriptor;
        if status & DONE == 0 {
            return Err(());
        }
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        let sound = status & END != 0 && errors & !WRONG == 0 && (MIN_FRAME..=self.longest).contains(&length);
        let checked = status & (CHECKED | UNCHECKED) == CHECKED && errors & WRONG == 0;
        Ok(sound.then_some((length, checked)))
    }

    /// Up to so many frames; how many descriptors the card had filled.
    fn drain(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let mut done = 0;
        while done < most
            && let Ok(filled) = self.filled(card.memory)
        {
            let place = RECEIVE_BUFFERS + self.next * self.buffer();
            match filled {
                Some((length, checked)) => {
                    self.counters.received += 1;
                    card.memory.with(place, length, &mut |frame| {
                        take(frame, checked);
                        true
                    });
                }
                None => self.counters.restarts += 1,
            }
            self.offer(card.memory, self.next);
            self.next = (self.next + 1) % RECEIVERS;
            done += 1;
        }
        if done > 0 {
            self.give_back(card.registers);
        }
        done
    }

    /// The card gets all descriptors but one, which tells a full ring from an empty one.
    fn give_back(&self, raw: &mut dyn RawDevice) {
        let last = (self.next + RECEIVERS - 1) % RECEIVERS;
        raw.write(reg::RECEIVE_RING + reg::TAIL, 4, last as u32);
    }

    fn silence(raw: &mut dyn RawDevice) {
        raw.write(reg::IMC, 4, u32::MAX);
        let _ = raw.read(reg::ICR, 4);
    }

    /// Everything off and the card reset; emulations take the reset bit for a formality.
    fn reset(&self, raw: &mut dyn RawDevice) -> bool {
        Self::silence(raw);
        raw.write(reg::RCTL, 4, 0);
        raw.write(reg::TCTL, 4, 0);
        // Nothing is under way 10 ms later; a read of STATUS takes a microsecond on a bus.
        let control = raw.read(reg::CTRL, 4);
        raw.write(reg::CTRL, 4, control | RESET);
        let done = (0..PATIENCE).any(|_| raw.read(reg::CTRL, 4) & RESET == 0);
        Self::silence(raw);
        for ring in [reg::RECEIVE_RING, reg::SEND_RING] {
            set_ring(raw, ring, 0, 0);
        }
        if self.is_82574 {
            set_ring(raw, reg::SEND_RING + reg::NEXT_RING, 0, 0);
        }
        done && raw.read(reg::STATUS, 4) != u32::MAX
    }
}

impl Transmit for E1000 {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        self.queue.as_mut().map_or(Sent::Refused, |queue| queue.enqueue(card, frame))
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        if let Some(queue) = &mut self.queue {
            queue.flush(card);
        }
    }

    fn place(&mut self, card: &mut Card<'_>, len: usize, offload: &Offload) -> Place {
        self.queue.as_mut().map_or(Place::Never, |queue| queue.place(card, len, offload))
    }

    fn await_room(&mut self, card: &mut Card<'_>) {
        if let Some(queue) = &mut self.queue {
            queue.await_room(card);
        }
    }

    fn enqueue_placed(&mut self, card: &mut Card<'_>, at: usize, len: usize, offload: &Offload) {
        if let Some(queue) = &mut self.queue {
            queue.enqueue_placed(card, at, len, offload);
        }
    }
}

impl Uplink for E1000 {
    fn name(&self) -> &'static str {
        "e1000"
    }

    fn stretch(&mut self, longest: usize) -> bool {
        let can = longest <= LONGEST;
        if can {
            self.longest = longest.max(MAX_FRAME);
        }
        can
    }

    fn memory(&self) -> usize {
        self.after_buffers() + if self.queue.is_some() { SendQueue::MEMORY } else { 0 }
    }

    fn queues(&self) -> usize {
        if self.is_82574 { 2 } else { 1 }
    }

    fn has_messages(&self) -> bool {
        self.is_82574
    }

    fn give_queues(&mut self, wanted: usize, messages: bool) -> Vec<Box<dyn Queue>> {
        let count = wanted.min(self.queues()) as u8;
        self.messages = messages && self.is_82574;
        self.given = count;
        self.queue = None;
        let give = |index| {
            let notice = if self.messages { Notice::Message } else { Notice::Line(self.awaited.clone()) };
            let mut queue = SendQueue::new(index, count > 1, notice);
            queue.longest = self.longest;
            Box::new(queue) as Box<dyn Queue>
        };
        (0..count).map(give).collect()
    }

    fn start(&mut self, card: &mut Card<'_>) -> bool {
        if !self.reset(card.registers) {
            return false;
        }
        self.next = 0;
        self.awaited.store(false, Ordering::SeqCst);
        let raw = &mut *card.registers;
        let control = raw.read(reg::CTRL, 4);
        raw.write(reg::CTRL, 4, control | LINK);
        for row in 0..128 {
            raw.write(reg::MTA + 4 * row, 4, 0);
        }
        for index in 0..RECEIVERS {
            self.offer(card.memory, index);
        }
        set_ring(raw, reg::RECEIVE_RING, card.memory.bus(), RECEIVERS);
        raw.write(reg::TIPG, 4, GAPS);
        let base = self.after_buffers();
        if let Some(queue) = &mut self.queue {
            queue.longest = self.longest;
            queue.start_at(card, base);
        }
        let raw = &mut *card.registers;
        if self.messages {
            messages::set_up(raw, self.given);
        }
        raw.write(reg::RXCSUM, 4, CHECKS);
        let long = if self.longest > MAX_FRAME { LONG } else { 0 };
        raw.write(reg::RCTL, 4, RECEIVE | long);
        self.give_back(raw);
        if !self.messages {
            raw.write(reg::IMS, 4, WANTED);
        }
        true
    }

    fn take(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        self.take_checked(card, most, &mut |frame, _| take(frame))
    }

    fn take_checked(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        self.drain(card, most.min(RECEIVERS), take)
    }

    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        if self.messages {
            let Some(missed) = messages::ask(card.registers) else { return false };
            self.counters.overruns += u64::from(missed != 0);
            return self.drain(card, RECEIVERS, &mut |frame, _| take(frame)) == RECEIVERS;
        }
        // Reading acknowledges. Before the ring is read: a frame that comes later raises the line again.
        let causes = card.registers.read(reg::ICR, 4);
        if causes == u32::MAX {
            return false;
        }
        if self.is_82574 {
            // What is read may have to be written to be acknowledged.
            card.registers.write(reg::ICR, 4, causes);
        }
        if causes & SENT != 0 && self.awaited.swap(false, Ordering::SeqCst) {
            card.registers.write(reg::IMC, 4, SENT);
        }
        if causes & OVERRUN != 0 {
            self.counters.overruns += 1;
        }
        self.drain(card, RECEIVERS, &mut |frame, _| take(frame)) == RECEIVERS
    }

    fn stop(&mut self, card: &mut Card<'_>) {
        self.reset(card.registers);
    }

    fn counters(&self) -> Counters {
        Counters { sent: self.queue.as_ref().map_or(0, SendQueue::sent), ..self.counters }
    }
}
