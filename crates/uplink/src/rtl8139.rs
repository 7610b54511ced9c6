//! The RTL8139 as an uplink. It receives in C mode, by a ring of bytes; it sends in C+ mode if the card has it, and else from four buffers.
//!
//! Memory: the ring of 32 KiB and what the card may write behind it, then what is sent from. RCR.WRAP is off, so frames
//! go round the ring's end and nothing is written beyond 16 bytes after it.
//! Source: RTL8139C(L) data sheet 1.4, sections 5, 7 (transmit) and 8 (receive); RTL8139C+(L) data sheet 1.6, sections 5 (CPCR, of which either
//! direction has a bit) and 6. Registers by their names there.

mod ring;
mod slots;

use crate::{Card, Counters, DmaMemory, MAX_FRAME, MIN_FRAME, Place, RawDevice, Sent, Transmit, Uplink};
use alloc::boxed::Box;
use alloc::vec;
use ring::Ring;
use slots::Slots;
use sluice_nic::Offload;
use sluice_nic::rtl8139::registers::{Command, CplusCommand, Interrupt, Receive, TCR_VERSION, reg};

/// Bytes of the receive ring: RBLEN is 2.
const RING_LEN: usize = 32 << 10;
const RING_LENGTH: u32 = 2 << 11;
/// Where begins what is sent from.
const SEND: usize = RING_LEN + 0x1000;
/// Bytes of memory in all: what is sent from takes less in C mode.
const MEMORY: usize = SEND + Ring::MEMORY;
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
/// TCR: which chip it is.
const VERSION: u32 = 0x7cc0_0000;
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

/// What it sends from.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a card has one")]
enum Sender {
    /// In C mode.
    Slots(Slots),
    /// In C+ mode.
    Ring(Ring),
}

/// The driver.
#[derive(Debug)]
pub struct Rtl8139 {
    /// The card may be put into C+ mode if it has that.
    may_use_rings: bool,
    /// Offset in the ring that is read next.
    read: usize,
    sender: Sender,
    /// Somebody waits for room, and transmit interrupts are on.
    awaited: bool,
    /// A frame that goes round the ring's end.
    scratch: Box<[u8]>,
    counters: Counters,
}

/// A frame in the ring.
struct Received {
    start: usize,
    len: usize,
    fcs: u32,
    /// Where what follows it begins.
    next: usize,
}

impl Default for Rtl8139 {
    fn default() -> Self {
        Self::new()
    }
}

impl Rtl8139 {
    /// A driver for a card that it has not touched yet.
    pub fn new() -> Self {
        Self {
            may_use_rings: true,
            read: 0,
            sender: Sender::Slots(Slots::new(SEND)),
            awaited: false,
            scratch: vec![0; MAX_FRAME].into_boxed_slice(),
            counters: Counters::default(),
        }
    }

    /// The same, which leaves the card in C mode.
    pub fn new_in_c_mode() -> Self {
        Self { may_use_rings: false, ..Self::new() }
    }

    fn set_mask(&mut self, raw: &mut dyn RawDevice, awaited: bool) {
        self.awaited = awaited;
        let mask = if awaited { RECEIVE | SENT } else { RECEIVE };
        raw.write(reg::IMR, 2, mask.bits().into());
    }

    /// Turns the receiver on with an empty ring; writing RCR empties it. What RCR said before does not let a frame in. A ring to send from
    /// begins anew, too: in C+ mode a write of CR that has TE takes the card to its first descriptor. What was in it is lost.
    fn open(&mut self, card: &mut Card<'_>) {
        let everything = Receive::ALL | Receive::STATION | Receive::MULTICAST | Receive::BROADCAST;
        let nothing = RING_LENGTH | BURST | NO_THRESHOLD;
        match &mut self.sender {
            Sender::Slots(_) => card.registers.write(reg::CR, 1, Command::TRANSMIT.bits().into()),
            Sender::Ring(ring) => {
                card.registers.write(reg::CR, 1, 0);
                ring.clear(card);
            }
        }
        let raw = &mut *card.registers;
        raw.write(reg::RCR, 4, nothing);
        self.read = 0;
        raw.write(reg::CR, 1, RUNNING);
        raw.write(reg::RCR, 4, nothing | everything.bits());
        raw.write(reg::CAPR, 2, LAG.wrapping_neg().into());
    }

    /// The next frame in the ring. `None` if there is something else.
    fn fetch(&self, memory: &dyn DmaMemory) -> Option<Received> {
        let mut header = [0; HEADER];
        memory.read(self.read, &mut header);
        let [s0, s1, l0, l1] = header;
        let (status, length) = (u16::from_le_bytes([s0, s1]), usize::from(u16::from_le_bytes([l0, l1])));
        let len = length.checked_sub(CRC)?;
        if status & INTACT == 0 || !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return None;
        }
        let start = (self.read + HEADER) % RING_LEN;
        let end = (start + len) % RING_LEN;
        let mut fcs = [0; CRC];
        let (first, rest) = fcs.split_at_mut(CRC.min(RING_LEN - end));
        memory.read(end, first);
        if !rest.is_empty() {
            memory.read(0, rest);
        }
        let next = (self.read + HEADER + length).next_multiple_of(4) % RING_LEN;
        Some(Received { start, len, fcs: u32::from_le_bytes(fcs), next })
    }

    /// Hands a frame over where it lies, or a copy if it goes round the ring's end.
    fn hand_over(
        &mut self,
        memory: &mut dyn DmaMemory,
        frame: &Received,
        take: &mut dyn FnMut(&[u8], Option<u32>),
    ) {
        let Received { start, len, fcs, .. } = *frame;
        if start + len <= RING_LEN {
            memory.with(start, len, &mut |bytes| {
                take(bytes, Some(fcs));
                true
            });
            return;
        }
        let Some(bytes) = self.scratch.get_mut(..len) else { return };
        let (first, rest) = bytes.split_at_mut(RING_LEN - start);
        memory.read(start, first);
        memory.read(0, rest);
        take(bytes, Some(fcs));
    }

    /// Up to [`FRAMES`] frames of the ring; true if there may be more. The card gets their room back when all are handed over.
    fn drain(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8], Option<u32>)) -> bool {
        // One that comes later raises the line again.
        let end = (card.registers.read(reg::CBR, 2) as usize).next_multiple_of(4) % RING_LEN;
        let mut count = 0;
        while self.read != end && count < FRAMES {
            let Some(frame) = self.fetch(card.memory) else {
                self.counters.restarts += 1;
                self.open(card);
                return false;
            };
            self.hand_over(card.memory, &frame, take);
            self.read = frame.next;
            count += 1;
        }
        self.counters.received += count as u64;
        if count > 0 {
            card.registers.write(reg::CAPR, 2, (self.read as u16).wrapping_sub(LAG).into());
        }
        self.read != end
    }
}

impl Transmit for Rtl8139 {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        let sent = match &mut self.sender {
            Sender::Slots(slots) => slots.enqueue(card, frame),
            Sender::Ring(ring) => ring.enqueue(card, frame),
        };
        match sent {
            Sent::Done => self.counters.sent += 1,
            Sent::Full => self.await_room(card),
            Sent::Refused => {}
        }
        sent
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        if let Sender::Ring(ring) = &mut self.sender {
            ring.flush(card.registers);
        }
    }

    fn place(&mut self, card: &mut Card<'_>, len: usize, offload: &Offload) -> Place {
        match &mut self.sender {
            Sender::Slots(_) => Place::Never,
            Sender::Ring(ring) => ring.place(card, len, offload),
        }
    }

    fn await_room(&mut self, card: &mut Card<'_>) {
        self.flush(card);
        self.set_mask(card.registers, true);
    }

    fn enqueue_placed(&mut self, card: &mut Card<'_>, at: usize, len: usize, offload: &Offload) {
        if let Sender::Ring(ring) = &mut self.sender {
            self.counters.sent += ring.enqueue_placed(card.memory, at, len, offload) as u64;
        }
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
        raw.write(reg::IMR, 2, 0);
        let has_rings = raw.read(reg::TCR, 4) & VERSION == TCR_VERSION;
        if self.may_use_rings && has_rings {
            // Before the ring's address, which it may spoil.
            raw.write(reg::CPCR, 2, CplusCommand::TRANSMIT.bits().into());
            self.sender = Sender::Ring(Ring::new(SEND));
        } else {
            let mut slots = Slots::new(SEND);
            slots.start(card);
            self.sender = Sender::Slots(slots);
        }
        let raw = &mut *card.registers;
        raw.write(reg::RBSTART, 4, card.memory.bus());
        for row in [0, 4] {
            raw.write(reg::MAR + row, 4, u32::MAX);
        }
        // Before the receiver is on: a frame that comes then raises the line.
        raw.write(reg::ISR, 2, 0xffff);
        self.open(card);
        let raw = &mut *card.registers;
        raw.write(reg::TCR, 4, BURST | GAP);
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
        for row in 0..4 {
            raw.write(reg::TSAD + 4 * row, 4, 0);
        }
        raw.write(reg::ISR, 2, 0xffff);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
