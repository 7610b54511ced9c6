//! A queue to send from, of which an 82574L has two: a ring with registers of its own, and the bytes that it leads to.

use super::sender::{self, Sender};
use super::{SEND, SEND_BUFFERS, SEND_BYTES, SENDERS, SENT, messages, reg, set_ring};
use crate::{Card, MAX_FRAME, MIN_FRAME, MIN_PADDED, Place, Queue, Sent, Transmit, put_frame};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_nic::Offload;

/// TARC of a queue beside another: on, three requests in turn, and the bits that the specification update asks for where both queues are in use.
const TURNS: u32 = 3 | 1 << 7 | 1 << 10 | 0b111 << 23 | 1 << 26;

/// How the card tells that there is room.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// By its line. While this is set somebody waits, and who acknowledges the interrupt switches it off.
    Line(Arc<AtomicBool>),
    /// By a message of the queue's own, which is switched off when it is sent.
    Message,
}

/// The queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Which it is of the card's, and whether others are in use.
    index: u8,
    has_peers: bool,
    notice: Notice,
    /// Bytes of the longest frame.
    pub longest: usize,
    sender: Sender,
    /// There are frames in it that the card has not been told of.
    queued: bool,
    /// The frames that the packet becomes for which there is a place.
    placed: u64,
    sent: u64,
}

impl SendQueue {
    /// Bytes of memory that the card must reach.
    pub const MEMORY: usize = SEND_BUFFERS + SEND_BYTES;

    /// A queue of the card's that is not in use yet.
    pub const fn new(index: u8, has_peers: bool, notice: Notice) -> Self {
        let sender = Sender::new(0, !has_peers);
        Self { index, has_peers, notice, longest: MAX_FRAME, sender, queued: false, placed: 0, sent: 0 }
    }

    /// The card's registers of its ring.
    const fn ring(&self) -> u16 {
        reg::SEND_RING + self.index as u16 * reg::NEXT_RING
    }

    /// Puts it to use, with memory from `base` on.
    pub fn start_at(&mut self, card: &mut Card<'_>, base: usize) {
        // A card with two remembers the last context only, whichever queue it was for (317694, 7.2.6).
        self.sender = Sender::new(base, !self.has_peers);
        self.queued = false;
        let bus = card.memory.bus().wrapping_add(base as u32);
        set_ring(card.registers, self.ring(), bus, SENDERS);
        if self.has_peers {
            card.registers.write(self.ring() + reg::TURNS, 4, TURNS);
        }
        card.registers.write(reg::TCTL, 4, SEND);
    }
}

impl Transmit for SendQueue {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        if !(MIN_FRAME..=self.longest).contains(&frame.len()) {
            return Sent::Refused;
        }
        let length = frame.len().max(MIN_PADDED);
        let Some(at) = self.sender.place(card.memory, 1, length) else {
            self.await_room(card);
            return Sent::Full;
        };
        put_frame(card.memory, at, frame);
        self.sender.push_frame(card.memory, at, length);
        self.queued = true;
        self.sent += 1;
        Sent::Done
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        if core::mem::take(&mut self.queued) {
            card.registers.write(self.ring() + reg::TAIL, 4, self.sender.tail() as u32);
        }
    }

    fn place(&mut self, card: &mut Card<'_>, len: usize, offload: &Offload) -> Place {
        // The card pads short frames, and not what is summed: who sends such a frame pads it.
        let frames = offload.frames_of(len, self.longest).filter(|_| len >= MIN_PADDED);
        let Some(frames) = frames else { return Place::Never };
        self.placed = frames as u64;
        self.sender.place(card.memory, sender::descriptors(len), len).map_or(Place::Full, Place::At)
    }

    fn await_room(&mut self, card: &mut Card<'_>) {
        self.flush(card);
        let cause = match &self.notice {
            Notice::Line(awaited) => {
                awaited.store(true, Ordering::SeqCst);
                SENT
            }
            Notice::Message => messages::room(self.index),
        };
        card.registers.write(reg::IMS, 4, cause);
    }

    fn enqueue_placed(&mut self, card: &mut Card<'_>, at: usize, len: usize, offload: &Offload) {
        self.sender.push_packet(card.memory, at, len, offload);
        self.queued = true;
        self.sent += self.placed;
    }
}

impl Queue for SendQueue {
    fn memory(&self) -> usize {
        Self::MEMORY
    }

    fn start(&mut self, card: &mut Card<'_>) {
        self.start_at(card, 0);
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}
