//! The card driven as a driver does, its quirks, and random accesses. `tests/qemu-e1000.rs` compares it with
//! QEMU's.

mod handoff;
mod properties;
mod receive;
mod registers;
mod transmit;
mod whole;

use super::registers::reg;
use super::*;
use crate::Budget;
use crate::dma::{Dma, VecMemory};
use alloc::vec;
use alloc::vec::Vec;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const MEMORY: u64 = 0x1_0000;
const TX_RING: u64 = MEMORY;
const RX_RING: u64 = MEMORY + 0x1000;
/// Where frames to send lie.
const OUT: u64 = MEMORY + 0x2000;
/// Receive buffers, 2 KiB each.
const IN: u64 = MEMORY + 0x1_0000;

const EOP: u32 = 1 << 24;
const RS: u32 = 1 << 27;
const DEXT: u32 = 1 << 29;
const DATA: u32 = DEXT | 1 << 20;
const VLE: u32 = 1 << 30;
const TSE: u32 = 1 << 26;

/// A card and its memory.
#[derive(Clone)]
struct Machine {
    card: E1000,
    memory: VecMemory,
    tail: u32,
}

impl Machine {
    /// Rings of 16 descriptors, 15 of them free to receive, and a second gone by.
    fn started() -> Self {
        let mut machine = Self { card: E1000::new(MAC), memory: VecMemory::new(MEMORY, 0x2_0000), tail: 0 };
        for entry in 0..16 {
            machine.memory.write(RX_RING + 16 * entry, &(IN + 0x800 * entry).to_le_bytes()).unwrap();
        }
        for (offset, value) in [
            (reg::TDBAL, TX_RING as u32),
            (reg::TDLEN, 256),
            (reg::TCTL, 0x0010_40fa),
            (reg::RDBAL, RX_RING as u32),
            (reg::RDLEN, 256),
            (reg::RDT, 15),
            (reg::RCTL, 0x8002),
            (reg::IMS, 0xdf),
        ] {
            machine.card.write(offset, 4, value);
        }
        machine.card.advance(2_000_000_000);
        machine
    }

    fn get(&mut self, offset: u32) -> u32 {
        self.card.read(offset, 4)
    }

    fn set(&mut self, offset: u32, value: u32) {
        self.card.write(offset, 4, value);
    }

    /// A transmit descriptor, not yet given to the card.
    fn push(&mut self, address: u64, lower: u32, upper: u32) {
        let at = TX_RING + 16 * u64::from(self.tail);
        self.memory.write(at, &address.to_le_bytes()).unwrap();
        self.memory.write(at + 8, &lower.to_le_bytes()).unwrap();
        self.memory.write(at + 12, &upper.to_le_bytes()).unwrap();
        self.tail = (self.tail + 1) % 16;
    }

    /// The doorbell; returns what went out.
    fn ring(&mut self) -> Vec<Vec<u8>> {
        self.set(reg::TDT, self.tail);
        self.run()
    }

    fn run(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; MAX_OUTGOING];
        loop {
            match self.card.transmit(&mut self.memory, &mut buffer, &mut Budget::default()) {
                Transmission::Frame(len) => frames.push(buffer[..len].to_vec()),
                Transmission::Busy => {}
                Transmission::Idle => return frames,
            }
        }
    }

    fn receive(&mut self, frame: &[u8]) -> Reception {
        self.card.receive(&mut self.memory, frame, &mut Budget::default())
    }

    /// Length, status and special of a receive descriptor.
    fn received(&self, entry: u64) -> (u16, u8, u16) {
        let bytes = self.memory.at(RX_RING + 16 * entry, 16).unwrap();
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        (word(8), bytes[12], word(14))
    }

    fn status(&self, entry: u64) -> u8 {
        self.memory.at(TX_RING + 16 * entry, 16).unwrap()[12]
    }
}

impl Machine {
    /// A context descriptor for an IPv4 header at 14 and a TCP header at 34.
    fn context(&mut self, flags: u32, payload: u32, header: u8, segment: u16) {
        let address = u64::from_le_bytes([14, 24, 33, 0, 34, 50, 0, 0]);
        self.push(address, DEXT | flags | payload, u32::from(header) << 8 | u32::from(segment) << 16);
    }
}

fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    (0..len).map(|i| to.get(i).copied().unwrap_or(i as u8)).collect()
}
