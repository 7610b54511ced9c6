//! Sending in C mode: four buffers, in turn.
//!
//! Source: RTL8139C(L) data sheet 1.4, sections 5.5 (TSD) and 7.

use super::{BURST, GAP};
use crate::{Card, Sent, is_frame, put_frame};
use sluice_nic::rtl8139::registers::{TransmitStatus, reg};

/// Bytes of a buffer to send from.
const BUFFER: usize = 0x800;
const BUFFERS: usize = 4;
/// TCR: tries an aborted transmission again.
const CLEAR_ABORT: u32 = 1;

/// The buffers.
#[derive(Debug)]
pub(super) struct Slots {
    /// Where in the card's memory they begin.
    base: usize,
    /// The one to send from next.
    next: usize,
    /// Those that the card was given and that were not seen to be free again.
    busy: [bool; BUFFERS],
}

/// The register of a buffer.
const fn of(first: u16, buffer: usize) -> u16 {
    first + 4 * (buffer % BUFFERS) as u16
}

impl Slots {
    /// At `base` of the card's memory, and not in use yet.
    pub const fn new(base: usize) -> Self {
        Self { base, next: 0, busy: [false; BUFFERS] }
    }

    /// Tells the card, which was reset, where they are.
    pub fn start(&mut self, card: &mut Card<'_>) {
        *self = Self::new(self.base);
        for buffer in 0..BUFFERS {
            let address = card.memory.bus().wrapping_add((self.base + buffer * BUFFER) as u32);
            card.registers.write(of(reg::TSAD, buffer), 4, address);
        }
    }

    /// As [`Transmit::enqueue`](crate::Transmit::enqueue). [`Sent::Full`]: it is not said yet that somebody waits.
    pub fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        let raw = &mut *card.registers;
        if !is_frame(frame) {
            return Sent::Refused;
        }
        let (buffer, status) = (self.next % BUFFERS, of(reg::TSD, self.next));
        let Some(busy) = self.busy.get_mut(buffer) else { return Sent::Refused };
        if *busy {
            let seen = TransmitStatus::from_bits_retain(raw.read(status, 4));
            if seen.contains(TransmitStatus::ABORTED) {
                raw.write(reg::TCR, 4, BURST | GAP | CLEAR_ABORT);
            }
            if !seen.intersects(TransmitStatus::OWN | TransmitStatus::ABORTED) {
                return Sent::Full;
            }
        }
        *busy = true;
        let length = put_frame(card.memory, self.base + buffer * BUFFER, frame);
        raw.write(status, 4, length as u32);
        self.next = (buffer + 1) % BUFFERS;
        Sent::Done
    }
}
