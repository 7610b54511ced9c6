//! The RTL8139 as an uplink, in C mode: a receive ring and four buffers to send from.
//!
//! Memory: the ring of 32 KiB and what the card may write behind it, then the four buffers. RCR.WRAP is off, so frames
//! go round the ring's end and nothing is written beyond 16 bytes after it.
//! Source: RTL8139C(L) data sheet 1.4, sections 5, 7 (transmit) and 8 (receive). Registers by their names there.

use crate::{
    Card, Counters, DmaMemory, MAX_FRAME, MIN_FRAME, RawDevice, Sent, Transmit, Uplink, is_frame, put_frame,
};
use alloc::boxed::Box;
use alloc::vec;
use sluice_nic::rtl8139::registers::{Command, Interrupt, Receive, TransmitStatus, reg};

/// Bytes of the receive ring: RBLEN is 2.
const RING: usize = 32 << 10;
const RING_LENGTH: u32 = 2 << 11;
/// Bytes of a buffer to send from.
const BUFFER: usize = 0x800;
const BUFFERS: usize = 4;
/// Where the buffers begin.
const SEND: usize = RING + 0x1000;
/// Bytes of memory in all.
const MEMORY: usize = SEND + BUFFERS * BUFFER;
/// Bytes before each frame in the ring, and of the CRC after it.
const HEADER: usize = 4;
const CRC: usize = 4;
/// First bit of a header: received intact.
const INTACT: u16 = 1;
/// CAPR is this far behind the place that is read next (section 5.9).
const LAG: u16 = 0x10;
/// TCR and RCR: unlimited DMA bursts; TCR: normal gap between frames; RCR: no threshold.
const BURST: u32 = 7 << 8;
const GAP: u32 = 3 << 24;
const NO_THRESHOLD: u32 = 7 << 13;
/// TCR: tries an aborted transmission again.
const CLEAR_ABORT: u32 = 1;
/// Frames of one [`Uplink::poll`].
const FRAMES: usize = 64;
/// Reads of a register that should change.
const PATIENCE: usize = 10_000;

const RECEIVE: Interrupt = Interrupt::RECEIVED
    .union(Interrupt::RECEIVE_ERROR)
    .union(Interrupt::OVERFLOW)
    .union(Interrupt::FIFO_OVERFLOW);
const SENT: Interrupt = Interrupt::SENT.union(Interrupt::SEND_ERROR);
const LOST: Interrupt = Interrupt::OVERFLOW.union(Interrupt::FIFO_OVERFLOW);
const RUNNING: u32 = Command::RECEIVE.union(Command::TRANSMIT).bits() as u32;

/// The driver.
#[derive(Debug)]
pub struct Rtl8139 {
    /// Offset in the ring that is read next.
    read: usize,
    /// The buffer to send from next.
    next: usize,
    /// Buffers that the card was given and that were not seen to be free again.
    busy: [bool; BUFFERS],
    /// Somebody waits for a buffer, and transmit interrupts are on.
    awaited: bool,
    scratch: Box<[u8]>,
    counters: Counters,
}

impl Default for Rtl8139 {
    fn default() -> Self {
        Self::new()
    }
}

/// The register of a buffer.
const fn of(first: u16, buffer: usize) -> u16 {
    first + 4 * (buffer % BUFFERS) as u16
}

impl Rtl8139 {
    /// A driver for a card that it has not touched yet.
    pub fn new() -> Self {
        Self {
            read: 0,
            next: 0,
            busy: [false; BUFFERS],
            awaited: false,
            scratch: vec![0; MAX_FRAME].into_boxed_slice(),
            counters: Counters::default(),
        }
    }

    fn set_mask(&mut self, raw: &mut dyn RawDevice, awaited: bool) {
        self.awaited = awaited;
        let mask = if awaited { RECEIVE | SENT } else { RECEIVE };
        raw.write(reg::IMR, 2, mask.bits().into());
    }

    /// Turns the receiver on with an empty ring; writing RCR empties it. What RCR said before does not let a frame in.
    fn open(&mut self, raw: &mut dyn RawDevice) {
        let everything = Receive::ALL | Receive::STATION | Receive::MULTICAST | Receive::BROADCAST;
        let nothing = RING_LENGTH | BURST | NO_THRESHOLD;
        raw.write(reg::CR, 1, Command::TRANSMIT.bits().into());
        raw.write(reg::RCR, 4, nothing);
        self.read = 0;
        raw.write(reg::CR, 1, RUNNING);
        raw.write(reg::RCR, 4, nothing | everything.bits());
        raw.write(reg::CAPR, 2, LAG.wrapping_neg().into());
    }

    /// The next frame in the ring, in `scratch`: its length and check sequence. `None` if there is something else.
    fn fetch(&mut self, memory: &dyn DmaMemory) -> Option<(usize, u32)> {
        let mut header = [0; HEADER];
        memory.read(self.read, &mut header);
        let [s0, s1, l0, l1] = header;
        let (status, length) = (u16::from_le_bytes([s0, s1]), usize::from(u16::from_le_bytes([l0, l1])));
        let frame = length.checked_sub(CRC)?;
        if status & INTACT == 0 || !(MIN_FRAME..=MAX_FRAME).contains(&frame) {
            return None;
        }
        let start = (self.read + HEADER) % RING;
        let (first, rest) = self.scratch.get_mut(..frame)?.split_at_mut(frame.min(RING - start));
        memory.read(start, first);
        memory.read(0, rest);
        let end = (start + frame) % RING;
        let mut fcs = [0; CRC];
        let (first, rest) = fcs.split_at_mut(CRC.min(RING - end));
        memory.read(end, first);
        memory.read(0, rest);
        self.read = (self.read + HEADER + length).next_multiple_of(4) % RING;
        Some((frame, u32::from_le_bytes(fcs)))
    }

    /// Up to [`FRAMES`] frames of the ring; true if there may be more.
    fn drain(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8], Option<u32>)) -> bool {
        let raw = &mut *card.registers;
        for _ in 0..FRAMES {
            if raw.read(reg::CR, 1) & u32::from(Command::EMPTY.bits()) != 0 {
                return false;
            }
            let Some((length, fcs)) = self.fetch(card.memory) else {
                self.counters.restarts += 1;
                self.open(raw);
                return false;
            };
            raw.write(reg::CAPR, 2, (self.read as u16).wrapping_sub(LAG).into());
            self.counters.received += 1;
            take(self.scratch.get(..length).unwrap_or(&[]), Some(fcs));
        }
        true
    }
}

impl Transmit for Rtl8139 {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
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
                self.set_mask(raw, true);
                return Sent::Full;
            }
        }
        *busy = true;
        let length = put_frame(card.memory, SEND + buffer * BUFFER, frame);
        raw.write(status, 4, length as u32);
        self.next = (buffer + 1) % BUFFERS;
        self.counters.sent += 1;
        Sent::Done
    }
}

impl Uplink for Rtl8139 {
    fn name(&self) -> &'static str {
        "rtl8139"
    }

    fn memory(&self) -> usize {
        MEMORY
    }

    fn start(&mut self, card: &mut Card<'_>) -> bool {
        let raw = &mut *card.registers;
        raw.write(reg::CR, 1, Command::RESET.bits().into());
        let reset = |raw: &mut dyn RawDevice| raw.read(reg::CR, 1) & u32::from(Command::RESET.bits()) == 0;
        if !(0..PATIENCE).any(|_| reset(raw)) {
            return false;
        }
        (self.next, self.busy) = (0, [false; BUFFERS]);
        raw.write(reg::IMR, 2, 0);
        raw.write(reg::RBSTART, 4, card.memory.bus());
        for row in [0, 4] {
            raw.write(reg::MAR + row, 4, u32::MAX);
        }
        // Before the receiver is on: a frame that comes then raises the line.
        raw.write(reg::ISR, 2, 0xffff);
        self.open(raw);
        raw.write(reg::TCR, 4, BURST | GAP);
        for buffer in 0..BUFFERS {
            let address = card.memory.bus().wrapping_add((SEND + buffer * BUFFER) as u32);
            raw.write(of(reg::TSAD, buffer), 4, address);
        }
        self.set_mask(raw, false);
        true
    }

    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        self.poll_with_fcs(card, &mut |frame, _| take(frame))
    }

    fn poll_with_fcs(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8], Option<u32>)) -> bool {
        let status = card.registers.read(reg::ISR, 2) as u16;
        let seen = Interrupt::from_bits_retain(status);
        if status == u16::MAX {
            return false;
        }
        // Before the ring is read: a frame that comes later raises the line again.
        card.registers.write(reg::ISR, 2, status.into());
        if self.awaited && seen.intersects(SENT) {
            self.set_mask(card.registers, false);
        }
        if seen.intersects(LOST) {
            self.counters.overruns += 1;
        }
        self.drain(card, take)
    }

    fn stop(&mut self, card: &mut Card<'_>) {
        let raw = &mut *card.registers;
        raw.write(reg::IMR, 2, 0);
        raw.write(reg::CR, 1, Command::RESET.bits().into());
        let _ = (0..PATIENCE).any(|_| raw.read(reg::CR, 1) & u32::from(Command::RESET.bits()) == 0);
        raw.write(reg::RBSTART, 4, 0);
        for buffer in 0..BUFFERS {
            raw.write(of(reg::TSAD, buffer), 4, 0);
        }
        raw.write(reg::ISR, 2, 0xffff);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
