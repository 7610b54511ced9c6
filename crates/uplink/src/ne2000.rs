//! The NE2000 (RTL8029) as an uplink. It masters no bus: every byte passes its data port.
//!
//! Card memory: pages 0x40-0x45 hold the frame being sent, pages 0x46-0xbf are the receive [`ring::Ring`].
//! Source: National DP8390D data sheet, 7-11; Realtek RTL8029AS data sheet.

pub mod card;
pub mod ring;

use crate::{Card, Counters, MAX_FRAME, MIN_PADDED, RawDevice, Sent, Transmit, Uplink, is_frame};
use alloc::boxed::Box;
use alloc::vec;
use card::{DCR, HALT, PAGE1, RUN, get, put, put_array, put_pair};
use ring::Ring;
use sluice_nic::ne2000::registers::{Command, Interrupt, Receive, port};
use sluice_nic::ne2000::{MEMORY_LEN, MEMORY_START, PROM_LEN};

const SEND_PAGE: u8 = 0x40;
const RING_START: u8 = 0x46;
const RING_STOP: u8 = 0xc0;
/// TCR: the transmitter loops back inside the chip while the card is set up.
const LOOPBACK: u8 = 0x02;

const RECEIVE: Interrupt = Interrupt::RECEIVED.union(Interrupt::RECEIVE_ERROR).union(Interrupt::OVERFLOW);
const SENT: Interrupt = Interrupt::SENT.union(Interrupt::SEND_ERROR);
const TAKE_ALL: Receive = Receive::BROADCAST.union(Receive::MULTICAST).union(Receive::PROMISCUOUS);

/// The driver.
#[derive(Debug)]
pub struct Ne2000 {
    ring: Ring,
    scratch: Box<[u8]>,
    /// Somebody waits for the transmitter, whose interrupts are on.
    awaited: bool,
    counters: Counters,
}

impl Default for Ne2000 {
    fn default() -> Self {
        Self::new()
    }
}

impl Ne2000 {
    /// A driver for a card that it has not touched yet. Allocates 30 KiB.
    pub fn new() -> Self {
        let ring = Ring::new(RING_START, RING_STOP);
        let scratch = vec![0; ring.bytes()].into_boxed_slice();
        Self { ring, scratch, awaited: false, counters: Counters::default() }
    }

    fn await_sent(&mut self, raw: &mut dyn RawDevice, awaited: bool) {
        if self.awaited != awaited {
            self.awaited = awaited;
            put(raw, port::IMR, (if awaited { RECEIVE | SENT } else { RECEIVE }).bits());
        }
    }

    /// Receives everything into an empty ring, but is not started.
    fn set_up(&mut self, raw: &mut dyn RawDevice) {
        put(raw, port::CMD, HALT);
        put(raw, port::IMR, 0);
        put(raw, port::DCR, DCR);
        put_pair(raw, port::RBCR0, 0);
        put(raw, port::RCR, Receive::MONITOR.bits());
        put(raw, port::TCR, LOOPBACK);
        put_pair(raw, port::TBCR0, 0);
        self.ring.open(raw);
        put(raw, port::ISR, 0xff);
    }
}

impl Transmit for Ne2000 {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        let raw = &mut *card.registers;
        if !is_frame(frame) {
            return Sent::Refused;
        }
        if get(raw, port::CMD) & Command::TRANSMIT.bits() != 0 {
            self.await_sent(raw, true);
            return Sent::Full;
        }
        let mut padded = [0; MAX_FRAME.next_multiple_of(4)];
        padded.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        let length = frame.len().max(MIN_PADDED);
        if let Some(bytes) = padded.get(..length.next_multiple_of(4)) {
            card::write_memory(raw, RUN, u16::from(SEND_PAGE) << 8, bytes);
        }
        put(raw, port::TPSR, SEND_PAGE);
        put_pair(raw, port::TBCR0, length as u16);
        put(raw, port::CMD, RUN | Command::TRANSMIT.bits());
        self.counters.sent += 1;
        Sent::Done
    }
}

impl Uplink for Ne2000 {
    fn name(&self) -> &'static str {
        "ne2000"
    }

    fn start(&mut self, card: &mut Card<'_>) -> bool {
        let raw = &mut *card.registers;
        let value = raw.read(port::RESET, 1);
        raw.write(port::RESET, 1, value);
        self.set_up(raw);
        put(raw, port::CMD, HALT | PAGE1);
        put_array(raw, 8, &[0xff; 8]); // MAR: the multicast filter lets everything pass.
        put(raw, port::CMD, HALT);
        if get(raw, port::CMD) != HALT {
            return false;
        }
        self.awaited = false;
        put(raw, port::IMR, RECEIVE.bits());
        put(raw, port::CMD, RUN);
        put(raw, port::TCR, 0);
        put(raw, port::RCR, TAKE_ALL.bits());
        true
    }

    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        let raw = &mut *card.registers;
        for _ in 0..4 {
            let status = Interrupt::from_bits_retain(get(raw, port::ISR)) - Interrupt::RESET;
            if !status.intersects(RECEIVE | SENT) {
                return false;
            }
            put(raw, port::ISR, status.bits());
            if status.intersects(SENT) {
                self.await_sent(raw, false);
            }
            if status.intersects(RECEIVE) {
                let mut received = 0;
                let counted = &mut |frame: &[u8]| {
                    received += 1;
                    take(frame);
                };
                let sound = self.ring.drain(raw, &mut self.scratch, counted);
                self.counters.received += received;
                self.counters.restarts += u64::from(!sound);
            }
            if status.contains(Interrupt::OVERFLOW) {
                self.ring.reopen(raw);
                self.counters.overruns += 1;
            }
        }
        true
    }

    fn stop(&mut self, card: &mut Card<'_>) {
        let raw = &mut *card.registers;
        self.set_up(raw);
        // The remote DMA engine is not to wrap within memory.
        put(raw, port::PSTART, (MEMORY_START >> 8) as u8);
        put(raw, port::PSTOP, RING_STOP);
        self.scratch.fill(0);
        let step = self.scratch.len().min(MEMORY_LEN);
        for start in (0..MEMORY_LEN).step_by(step) {
            let zeros = self.scratch.get(..step.min(MEMORY_LEN - start)).unwrap_or(&[]);
            card::write_memory(raw, HALT, (MEMORY_START as usize + start) as u16, zeros);
        }
        // The address in the PROM comes back by a reset, which keeps some of what was written there.
        card::write_memory(raw, HALT, 0, &[0; PROM_LEN]);
        let _ = raw.read(port::RESET, 1);
        put(raw, port::CMD, HALT);
        put(raw, port::ISR, 0xff);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
