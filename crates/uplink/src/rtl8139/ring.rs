//! Sending in C+ mode: a ring of descriptors, and a ring of bytes that they lead to ([`Places`]). A packet is one descriptor, and the
//! card puts checksums in and cuts it.
//!
//! The card writes descriptors back; of these nothing is read but who has them. Each is written whole before the card gets it again, and
//! which is the card's last.
//! Source: RTL8139C+(L) data sheet 1.6, sections 5 (TPPoll, ring addresses) and 6.2 (transmit descriptors).

use crate::places::Places;
use crate::{Card, DmaMemory, MAX_FRAME, MIN_FRAME, MIN_PADDED, Place, RawDevice, Sent, put_frame};
use sluice_nic::Offload;
use sluice_nic::rtl8139::registers::{POLL_NORMAL, reg};

/// Descriptors, and the bytes of one. The ring begins at a multiple of 256 and has 64 at most.
const DESCRIPTORS: usize = 64;
const DESCRIPTOR: usize = 16;
/// Where the bytes begin, and how many there are: four of the longest packets.
const BUFFERS: usize = 0x1000;
const BYTES: usize = 0x4_0000;

/// A descriptor's first word: the card's; last of its ring; a whole packet; to be cut, with what payload; checksums to be put in.
const OWN: u32 = 1 << 31;
const END_OF_RING: u32 = 1 << 30;
const WHOLE: u32 = 1 << 29 | 1 << 28;
const CUT: u32 = 1 << 27;
const PAYLOAD: u32 = 16;
const SUM_IP: u32 = 1 << 18;
const SUM_TCP: u32 = 1 << 16;

/// The ring.
#[derive(Debug)]
pub(super) struct Ring {
    places: Places<DESCRIPTORS, BYTES>,
    /// Where in the card's memory it begins; the bytes follow it.
    base: usize,
    /// There are packets in it that the card has not been told of.
    queued: bool,
    /// Frames that the packet becomes which a place was last found for.
    placed: usize,
}

/// What an empty descriptor has: which is the last of the ring.
const fn end(index: usize) -> u32 {
    if index + 1 == DESCRIPTORS { END_OF_RING } else { 0 }
}

impl Ring {
    /// Bytes of memory that it needs.
    pub const MEMORY: usize = BUFFERS + BYTES;

    /// At `base` of the card's memory, and not in use yet.
    pub const fn new(base: usize) -> Self {
        Self { places: Places::new(), base, queued: false, placed: 0 }
    }

    /// Empties it. The card's transmitter is off, and begins with the first descriptor when it is on.
    pub fn clear(&mut self, card: &mut Card<'_>) {
        *self = Self::new(self.base);
        for index in 0..DESCRIPTORS {
            card.memory.write(self.at(index), &u128::from(end(index)).to_le_bytes());
        }
        let bus = card.memory.bus().wrapping_add(self.base as u32);
        // That of normal priority, and none of high priority.
        for (row, value) in (0..).zip([bus, 0, 0, 0]) {
            card.registers.write(reg::TSAD + 4 * row, 4, value);
        }
    }

    const fn at(&self, index: usize) -> usize {
        self.base + index * DESCRIPTOR
    }

    /// Where so many bytes can be put. The card is told of what waits first, if there is no room.
    fn find(&mut self, card: &mut Card<'_>, bytes: usize) -> Option<usize> {
        self.look(card, bytes).or_else(|| {
            let told = self.queued;
            self.flush(card.registers);
            if told { self.look(card, bytes) } else { None }
        })
    }

    fn look(&mut self, card: &mut Card<'_>, bytes: usize) -> Option<usize> {
        let base = self.base;
        let memory = &*card.memory;
        let found = self.places.place(1, bytes, &mut |index| {
            let mut status = [0; 4];
            memory.read(base + index * DESCRIPTOR, &mut status);
            u32::from_le_bytes(status) & OWN == 0
        })?;
        Some(self.base + BUFFERS + found)
    }

    /// As [`Transmit::enqueue`](crate::Transmit::enqueue). [`Sent::Full`]: it is not said yet that somebody waits.
    pub fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        if !(MIN_FRAME..=MAX_FRAME).contains(&frame.len()) {
            return Sent::Refused;
        }
        let Some(at) = self.find(card, frame.len().max(MIN_PADDED)) else { return Sent::Full };
        let length = put_frame(card.memory, at, frame);
        self.push(card.memory, at, length, 0);
        Sent::Done
    }

    /// As [`Transmit::place`](crate::Transmit::place).
    pub fn place(&mut self, card: &mut Card<'_>, len: usize, offload: &Offload) -> Place {
        // Short frames are for who pads them. The card looks at headers, and asks nobody where they are.
        if len < MIN_PADDED || !(offload.is_in_headers || *offload == Offload::default()) {
            return Place::Never;
        }
        let Some(frames) = offload.frames_of(len, MAX_FRAME) else { return Place::Never };
        self.placed = frames;
        self.find(card, len).map_or(Place::Full, Place::At)
    }

    /// As [`Transmit::enqueue_placed`](crate::Transmit::enqueue_placed): the frames that it becomes.
    pub fn enqueue_placed(
        &mut self,
        memory: &mut dyn DmaMemory,
        at: usize,
        len: usize,
        offload: &Offload,
    ) -> usize {
        let sum = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        // Who is cut has all checksums put in, and the bits of them are the payload's.
        let what = match offload.segments {
            Some(segments) => CUT | u32::from(segments.payload) << PAYLOAD,
            None => sum(offload.ip.is_some(), SUM_IP) | sum(offload.transport.is_some(), SUM_TCP),
        };
        self.push(memory, at, len, what);
        self.placed
    }

    /// A packet whose bytes are at a place that was found.
    fn push(&mut self, memory: &mut dyn DmaMemory, at: usize, len: usize, what: u32) {
        let place = at - self.base - BUFFERS;
        let index = self.places.push(place);
        self.places.end(place, len);
        let descriptor = self.at(index);
        let address = u64::from(memory.bus()) + at as u64;
        memory.write(descriptor + 4, &(u128::from(address) << 32).to_le_bytes()[..DESCRIPTOR - 4]);
        // The card may be at it already, and goes on as soon as this says so.
        memory.write(descriptor, &(OWN | end(index) | WHOLE | what | len as u32).to_le_bytes());
        self.queued = true;
    }

    /// As [`Transmit::flush`](crate::Transmit::flush).
    pub fn flush(&mut self, raw: &mut dyn RawDevice) {
        if core::mem::take(&mut self.queued) {
            raw.write(reg::TPPOLL, 1, POLL_NORMAL.into());
        }
    }
}
