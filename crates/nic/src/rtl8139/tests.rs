//! The card as drivers use it, rule by rule, and under random accesses.

mod c_mode;
mod cplus;
mod hostile;
mod registers;
mod whole;

use super::registers::reg;
use super::{Reception, Rtl8139};
use crate::Budget;
use crate::dma::VecMemory;
use alloc::vec::Vec;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// Where test memory starts.
const START: u64 = 0x10_0000;
const RING: u32 = 0x10_0000;
const SEND: u32 = 0x12_0000;
const SEND_RING: u32 = 0x13_0000;
const RECEIVE_RING: u32 = 0x13_1000;
const BUFFERS: u32 = 0x14_0000;
const DUMP: u32 = 0x13_2000;

/// A card and its memory.
struct Bench {
    card: Rtl8139,
    memory: VecMemory,
}

impl Bench {
    fn new() -> Self {
        Self { card: Rtl8139::new(MAC), memory: VecMemory::new(START, 0x8_0000) }
    }

    /// As 8139too starts it: 32 KiB ring with this `WRAP`, all kinds of addresses but foreign ones.
    fn c_mode(rcr: u32) -> Self {
        let mut bench = Self::new();
        bench.write(reg::CR, 1, 0x10);
        bench.write(reg::RBSTART, 4, RING);
        bench.write(reg::CR, 1, 0x0c);
        bench.write(reg::RCR, 4, rcr | 0x0e);
        bench.write(reg::TCR, 4, 0x0300_0700);
        bench.write(reg::IMR, 2, 0xe07f);
        bench
    }

    /// As 8139cp starts it.
    fn cplus(cpcr: u32) -> Self {
        let mut bench = Self::new();
        bench.write(reg::CR, 1, 0x10);
        bench.write(reg::CPCR, 2, cpcr | 3);
        bench.write(reg::CR, 1, 0x0c);
        bench.write(reg::RCR, 4, 0x0e);
        bench.write(reg::RDSAR, 4, RECEIVE_RING);
        bench.write(reg::TSAD, 4, SEND_RING);
        bench.write(reg::IMR, 2, 0xe07f);
        bench
    }

    fn read(&self, offset: u16, width: u8) -> u32 {
        self.card.read(offset, width)
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.card.write(offset, width, value, &mut self.memory);
    }

    /// All frames that go out now.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.card.busy() {
            frames.extend(self.card.transmit(&mut self.memory, &mut Budget::default()).map(<[u8]>::to_vec));
        }
        frames
    }

    fn receive(&mut self, frame: &[u8]) -> Reception {
        self.card.receive(frame, &mut self.memory)
    }

    fn at(&self, address: u32, len: usize) -> &[u8] {
        self.memory.at(address.into(), len).unwrap()
    }

    fn put(&mut self, address: u32, bytes: &[u8]) {
        self.memory.at_mut(address.into(), bytes.len()).unwrap().copy_from_slice(bytes);
    }

    fn word(&self, address: u32) -> u32 {
        u32::from_le_bytes(self.at(address, 4).try_into().unwrap())
    }

    fn descriptor(&mut self, address: u32, status: u32, vlan: u32, buffer: u32) {
        for (index, word) in (0..).zip([status, vlan, buffer, 0]) {
            self.put(address + 4 * index, &word.to_le_bytes());
        }
    }

    /// C mode: sends from the descriptor.
    fn send(&mut self, descriptor: u16, frame: &[u8]) -> Vec<Vec<u8>> {
        self.put(SEND, frame);
        self.write(reg::TSAD + 4 * descriptor, 4, SEND);
        self.write(reg::TSD + 4 * descriptor, 4, frame.len() as u32);
        self.sent()
    }
}

fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    (0..len).map(|index| to.get(index).copied().unwrap_or(index as u8)).collect()
}
