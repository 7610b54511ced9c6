//! Receiving: the address filter and the ring in card memory.

use super::registers::{Interrupt, RSR_GROUP, RSR_INTACT, Receive};
use super::{MAX_FRAME, MEMORY_START, Ne2000};
use crate::hash::multicast_index;
use core::ops::Range;

/// Bytes the card puts before each frame: status, next page, length.
const HEADER: usize = 4;
/// Shorter frames are padded to this.
const MIN_FRAME: usize = 60;

/// What became of a frame offered to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// In the ring, PRX raised.
    Stored,
    /// Not for this card.
    Filtered,
    /// No room in the ring; the sender may try again later.
    Full,
    /// The card is stopped.
    Stopped,
}

impl Ne2000 {
    /// Bytes free in the ring by the card's own reckoning, which takes equal pointers as empty.
    fn room(&self) -> i32 {
        let index = i32::from(self.regs.curr) << 8;
        let boundary = i32::from(self.regs.bnry) << 8;
        if index < boundary {
            boundary - index
        } else {
            (i32::from(self.regs.pstop) << 8) - (i32::from(self.regs.pstart) << 8) - (index - boundary)
        }
    }

    /// The ring has room for a frame of the greatest length.
    pub fn has_room(&self) -> bool {
        self.room() >= (MAX_FRAME + HEADER) as i32
    }

    /// A frame of this length can be stored without making CURR equal BNRY. The card itself does
    /// not ask: it stores the frame, then takes the full ring for an empty one and overwrites it.
    pub fn fits(&self, len: usize) -> bool {
        let pages = (len.clamp(MIN_FRAME, MAX_FRAME * 2) + HEADER + 4).div_ceil(256) as i32;
        self.has_room() && self.room() > pages * 256
    }

    /// The filter of RCR, the multicast hash and the PROM lets this frame pass.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        let Some(destination) = frame.first_chunk::<6>() else { return false };
        let rcr = Receive::from_bits_retain(self.regs.rcr);
        if rcr.contains(Receive::PROMISCUOUS) {
            return true;
        }
        if *destination == [0xff; 6] {
            return rcr.contains(Receive::BROADCAST);
        }
        if destination[0] & 1 != 0 {
            let index = multicast_index(destination);
            let row = self.regs.mar[usize::from(index >> 3 & 7)];
            return rcr.contains(Receive::MULTICAST) && row & (1 << (index & 7)) != 0;
        }
        // The PROM holds each address byte twice.
        destination.iter().zip(self.prom.iter().step_by(2)).all(|(a, b)| a == b)
    }

    /// As [`Self::receive`], but a frame that would fill the ring exactly finds no room: no driver needs to suffer that
    /// flaw from a card that is not real.
    pub fn receive_whole(&mut self, frame: &[u8]) -> Reception {
        if self.regs.stopped() {
            Reception::Stopped
        } else if !self.accepts(frame) {
            Reception::Filtered
        } else if !self.fits(frame.len()) {
            Reception::Full
        } else {
            self.receive(frame)
        }
    }

    /// Offers a frame (without CRC) to the receiver.
    pub fn receive(&mut self, frame: &[u8]) -> Reception {
        if self.regs.stopped() {
            return Reception::Stopped;
        }
        if !self.has_room() {
            return Reception::Full;
        }
        if !self.accepts(frame) {
            return Reception::Filtered;
        }
        let size = frame.len().max(MIN_FRAME);
        let start = u32::from(self.regs.pstart) << 8;
        let stop = u32::from(self.regs.pstop) << 8;
        let mut at = u32::from(self.regs.curr) << 8;

        // The header counts itself; the space also counts the four CRC bytes.
        let length = (size + HEADER) as u32;
        let mut next = at.wrapping_add(length.wrapping_add(4 + 255) & !0xff);
        if next >= stop {
            next = next.wrapping_sub(stop.wrapping_sub(start));
        }
        let group = frame.first().is_some_and(|first| first & 1 != 0);
        self.regs.rsr = if group { RSR_INTACT | RSR_GROUP } else { RSR_INTACT };
        let header = [self.regs.rsr, (next >> 8) as u8, length as u8, (length >> 8) as u8];
        for (index, byte) in (0u32..).zip(header) {
            self.set_byte(at.wrapping_add(index), byte);
        }
        at = at.wrapping_add(HEADER as u32);
        at = self.store(at, start..stop, frame);
        self.store(at, start..stop, [0; MIN_FRAME].get(frame.len()..).unwrap_or_default());
        self.regs.curr = (next >> 8) as u8;
        self.regs.isr |= Interrupt::RECEIVED.bits();
        Reception::Stored
    }

    /// Stores bytes of a frame from `at` on, and says where the next go. The address wraps only where it hits the end of the ring
    /// exactly; with wild pointers the ring may be nowhere near memory.
    pub(super) fn store(&mut self, mut at: u32, ring: Range<u32>, bytes: &[u8]) -> u32 {
        let mut rest = bytes;
        while !rest.is_empty() {
            let before_end = match ring.end.wrapping_sub(at) {
                0 => usize::MAX,
                left => left as usize,
            };
            let (span, later) = rest.split_at(rest.len().min(before_end));
            let memory = at.checked_sub(MEMORY_START).and_then(|from| self.ram.get_mut(from as usize..));
            match memory.and_then(|memory| memory.get_mut(..span.len())) {
                Some(to) => to.copy_from_slice(span),
                // What misses memory is dropped.
                None => {
                    (0u32..).zip(span).for_each(|(index, byte)| self.set_byte(at.wrapping_add(index), *byte))
                }
            }
            at = at.wrapping_add(span.len() as u32);
            if at == ring.end {
                at = ring.start;
            }
            rest = later;
        }
        at
    }
}
