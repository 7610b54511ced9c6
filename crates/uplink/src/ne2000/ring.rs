//! A receive ring in card memory that the hypervisor keeps.
//!
//! QEMU's card takes CURR == BNRY for an empty ring and, when the last free pages are filled exactly, goes on to
//! overwrite unread frames. A frame written then would begin at page BNRY, so a zero word (no header is zero) is kept
//! there; if it changes, the ring is not believed and cleared.
//!
//! Source: National DP8390D data sheet, 7 (buffer ring) and 7.3 (overflow).

use super::card::{self, HALT, PAGE1, RUN, get, put};
use crate::{MAX_FRAME, MIN_FRAME, RawDevice};
use sluice_nic::ne2000::registers::port;

/// Bytes before each frame: status, next page, length.
const HEADER: usize = 4;
/// Bytes of a page.
const PAGE: usize = 256;

/// Where the reader is in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// First page, and the one after the last.
    start: u8,
    stop: u8,
    /// First page not yet read.
    read: u8,
    /// BNRY in the hardware; this page starts with the zero word.
    boundary: u8,
}

impl Ring {
    /// A ring in the pages from `start` up to, not including, `stop`.
    pub const fn new(start: u8, stop: u8) -> Self {
        Self { start, stop, read: start, boundary: stop.wrapping_sub(1) }
    }

    /// Bytes of card memory, and of the scratch memory for [`Self::drain`].
    pub const fn bytes(&self) -> usize {
        self.pages() as usize * PAGE
    }

    const fn pages(&self) -> u8 {
        self.stop.saturating_sub(self.start)
    }

    /// Pages from one ring page forward to another.
    const fn distance(&self, from: u8, to: u8) -> u8 {
        if to >= from { to - from } else { self.pages().saturating_sub(from - to) }
    }

    const fn contains(&self, page: u8) -> bool {
        page >= self.start && page < self.stop
    }

    /// The page so many after `page`.
    fn after(&self, page: u8, pages: usize) -> u8 {
        let index = usize::from(page.wrapping_sub(self.start)).saturating_add(pages);
        self.start.wrapping_add((index % usize::from(self.pages()).max(1)) as u8)
    }

    /// Prepares an empty ring in the hardware. The card is stopped, on page 0, in word mode.
    pub fn open(&mut self, raw: &mut dyn RawDevice) {
        *self = Self::new(self.start, self.stop);
        put(raw, port::PSTART, self.start);
        put(raw, port::PSTOP, self.stop);
        put(raw, port::BNRY, self.boundary);
        card::write_memory(raw, HALT, u16::from(self.boundary) << 8, &[0; 4]);
        put(raw, port::CMD, HALT | PAGE1);
        put(raw, port::ISR, self.read); // CURR on page 1.
        put(raw, port::CMD, HALT);
    }

    /// Drops what is in the ring and begins anew, as a receiver must that overflowed (7.3). The card runs, on page 0.
    pub fn reopen(&mut self, raw: &mut dyn RawDevice) {
        put(raw, port::CMD, HALT);
        self.open(raw);
        put(raw, port::CMD, RUN);
    }

    /// Gives every frame in the ring to `take`, in order. The card runs, on page 0. `scratch` has [`Self::bytes`].
    /// False if the ring made no sense: it was reopened, and nothing given.
    pub fn drain(
        &mut self,
        raw: &mut dyn RawDevice,
        scratch: &mut [u8],
        take: &mut dyn FnMut(&[u8]),
    ) -> bool {
        put(raw, port::CMD, RUN | PAGE1);
        let current = get(raw, port::ISR); // CURR on page 1.
        put(raw, port::CMD, RUN);
        let length = usize::from(self.distance(self.read, current)) * PAGE;
        let bytes = match scratch.get_mut(..length) {
            Some(bytes) if self.contains(current) => bytes,
            _ => return self.give_up(raw),
        };
        if bytes.is_empty() {
            return true;
        }
        // The engine wraps from PSTOP to PSTART by itself.
        card::read_memory(raw, RUN, u16::from(self.read) << 8, bytes);
        // The zero word is looked at after the data was read: what was read is then whole. And all is believed or
        // nothing: the chain of headers must lead to CURR exactly.
        if !sentinel(raw, self.boundary) || !self.frames(bytes).all(|frame| frame.is_some()) {
            return self.give_up(raw);
        }
        self.frames(bytes).flatten().for_each(take);
        self.read = current;
        // BNRY follows when it is a quarter of the ring behind.
        if self.distance(self.boundary, self.read) > self.pages() / 4 {
            return self.advance_boundary(raw);
        }
        true
    }

    fn give_up(&mut self, raw: &mut dyn RawDevice) -> bool {
        self.reopen(raw);
        false
    }

    /// The frames in drained ring bytes; `None` where there is something else, and then no more.
    fn frames<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = Option<&'a [u8]>> {
        let (ring, mut at) = (*self, 0);
        core::iter::from_fn(move || {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            let parsed = ring.parse(rest, ring.after(ring.read, at / PAGE));
            at = parsed.map_or(bytes.len(), |(_, used)| at.saturating_add(used));
            Some(parsed.filter(|_| at <= bytes.len()).map(|(frame, _)| frame))
        })
    }

    /// The next frame in drained ring bytes: its data and the bytes it occupies, or `None` if the header is not one
    /// that the card could have written at this page.
    fn parse<'a>(&self, bytes: &'a [u8], page: u8) -> Option<(&'a [u8], usize)> {
        let &[status, next, low, high, ref data @ ..] = bytes else { return None };
        let length = usize::from(u16::from_le_bytes([low, high]));
        let pages = (length + 4).div_ceil(PAGE);
        let sound = status & 0x1f == 1
            && next == self.after(page, pages)
            && (HEADER + MIN_FRAME..=HEADER + MAX_FRAME).contains(&length);
        let frame = data.get(..length.checked_sub(HEADER)?).filter(|_| sound)?;
        Some((frame, pages * PAGE))
    }

    /// Gives drained pages back to the hardware; see [`Self::drain`] for the result.
    fn advance_boundary(&mut self, raw: &mut dyn RawDevice) -> bool {
        let Self { read, boundary: old, .. } = *self;
        let new = if read == self.start { self.stop.wrapping_sub(1) } else { read.wrapping_sub(1) };
        card::write_memory(raw, RUN, u16::from(new) << 8, &[0; 4]);
        // Up to here nothing passed the old boundary. What passes it before the next line goes to pages already
        // drained, and if it gets as far as the new boundary, it shows there.
        if !sentinel(raw, old) {
            return self.give_up(raw);
        }
        put(raw, port::BNRY, new);
        self.boundary = new;
        true
    }
}

/// The zero word at a page is still there.
fn sentinel(raw: &mut dyn RawDevice, page: u8) -> bool {
    let mut word = [0; 4];
    card::read_memory(raw, RUN, u16::from(page) << 8, &mut word);
    word == [0; 4]
}
