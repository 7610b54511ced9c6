//! A driver of the RTL8139C+ in C+ mode, as the uplink's is one in C mode: both descriptor rings end where no power of
//! two is.
//!
//! Source: RTL8139C+(L) data sheet 1.6, section 6.

use super::*;
use sluice_nic::rtl8139::registers::reg;

const RECEIVES: usize = 23;
const SENDS: usize = 11;
const RECEIVE_RING: usize = 0;
const SEND_RING: usize = 0x1000;
const BUFFERS: usize = 0x2000;
const BUFFER: usize = 0x800;
const OWN: u32 = 1 << 31;
const END: u32 = 1 << 30;
const WHOLE: u32 = 3 << 28;

/// The driver: where it is in its rings.
pub(super) struct Cplus {
    receive: usize,
    send: usize,
}

impl Cplus {
    pub(super) fn boxed() -> Box<dyn Uplink> {
        Box::new(Self { receive: 0, send: 0 })
    }
}

fn describe(card: &mut Card<'_>, at: usize, status: u32, buffer: usize) {
    let address = card.memory.bus() + buffer as u32;
    let words = [status, 0, address, 0].map(u32::to_le_bytes);
    card.memory.write(at, words.as_flattened());
}

fn status(card: &Card<'_>, at: usize) -> u32 {
    let mut word = [0; 4];
    card.memory.read(at, &mut word);
    u32::from_le_bytes(word)
}

fn end(index: usize, len: usize) -> u32 {
    if index + 1 == len { END } else { 0 }
}

impl Cplus {
    fn offer(&mut self, card: &mut Card<'_>, index: usize) {
        let buffer = BUFFERS + index * BUFFER;
        describe(card, RECEIVE_RING + 16 * index, OWN | end(index, RECEIVES) | 0x7ff, buffer);
    }
}

impl Transmit for Cplus {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        let at = SEND_RING + 16 * self.send;
        if status(card, at) & OWN != 0 {
            return Sent::Full;
        }
        let buffer = BUFFERS + (RECEIVES + self.send) * BUFFER;
        // In two pieces.
        card.memory.write(buffer, frame);
        let first = status(card, at) & END | WHOLE | OWN | frame.len() as u32;
        describe(card, at, first, buffer);
        self.send = (self.send + 1) % SENDS;
        card.registers.write(reg::TPPOLL, 1, 0x40);
        Sent::Done
    }
}

impl Uplink for Cplus {
    fn name(&self) -> &'static str {
        "rtl8139+"
    }

    fn start(&mut self, card: &mut Card<'_>) -> bool {
        *self = Self { receive: 0, send: 0 };
        card.registers.write(reg::CR, 1, 0x10);
        (0..RECEIVES).for_each(|index| self.offer(card, index));
        (0..SENDS).for_each(|index| describe(card, SEND_RING + 16 * index, end(index, SENDS), 0));
        let bus = card.memory.bus();
        for (offset, width, value) in [
            (reg::CPCR, 2, 3),
            (reg::CR, 1, 0x0c),
            (reg::RDSAR, 4, bus + RECEIVE_RING as u32),
            (reg::TSAD, 4, bus + SEND_RING as u32),
            (reg::RCR, 4, 0x0f),
            (reg::TCR, 4, 0x0300_0700),
            (reg::IMR, 2, 0xe07f),
        ] {
            card.registers.write(offset, width, value);
        }
        true
    }

    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        let causes = card.registers.read(reg::ISR, 2);
        card.registers.write(reg::ISR, 2, causes);
        loop {
            let status = status(card, RECEIVE_RING + 16 * self.receive);
            if status & OWN != 0 {
                return false;
            }
            let mut frame = vec![0; (status & 0x1fff) as usize - 4];
            card.memory.read(BUFFERS + self.receive * BUFFER, &mut frame);
            take(&frame);
            self.offer(card, self.receive);
            self.receive = (self.receive + 1) % RECEIVES;
        }
    }

    fn stop(&mut self, card: &mut Card<'_>) {
        card.registers.write(reg::IMR, 2, 0);
        card.registers.write(reg::CR, 1, 0x10);
    }

    fn counters(&self) -> sluice_uplink::Counters {
        sluice_uplink::Counters::default()
    }
}
