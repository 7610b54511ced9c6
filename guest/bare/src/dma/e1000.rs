//! Intel 82540EM: frames go through the loopback of its PHY, read from anywhere, written anywhere.
//!
//! Source: Intel PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual, 3.2.3 and 3.3.3
//! (legacy descriptors), 13.4 (registers), 13.5 (PHY control).

use super::memory::{Own, copy, fill, get, put, put64};
use super::{Engine, LEN};
use crate::{machine, pci};
use sluice_hypercall::symbiotic::{
    SYMBIOTIC_BEGIN, SYMBIOTIC_CONTROL, SYMBIOTIC_DOORBELL, SYMBIOTIC_DOORBELL_OFF, SYMBIOTIC_RING,
};

pub const CONTROL: u64 = 0x0000;
pub const PHY: u64 = 0x0020;
pub const MASK_CLEAR: u64 = 0x00d8;
pub const RECEIVE: u64 = 0x0100;
pub const TRANSMIT: u64 = 0x0400;
/// Rings: base low and high, length, head, tail.
pub const RX_RING: u64 = 0x2800;
pub const TX_RING: u64 = 0x3800;
/// Offsets in the registers of a ring.
pub const LENGTH: u64 = 8;
pub const HEAD: u64 = 0x10;
pub const TAIL: u64 = 0x18;

const CONTROL_RESET: u32 = 1 << 26;
pub const CONTROL_LINK_UP: u32 = 1 << 6;
/// Write of PHY register 0: loopback, 1000 Mb/s, full duplex.
pub const PHY_LOOPBACK: u32 = PHY_NETWORK | 0x4000;
/// The same to the network.
pub const PHY_NETWORK: u32 = 1 << 26 | 1 << 21 | 0x0140;
/// On, any frame, buffers of 2 KiB.
pub const RECEIVE_ALL: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 15;
pub const TRANSMIT_ON: u32 = 1 << 1 | 1 << 3 | 0xf << 4 | 0x40 << 12;
/// End of packet, frame check sequence, report status.
pub const WHOLE: u32 = 0b1011 << 24;
pub const DONE: u32 = 1;
/// Bytes of an own frame as received: with its frame check sequence.
const OWN_FRAME: u32 = LEN as u32 + 4;
const DESCRIPTORS: u32 = 8;
/// Descriptors of the ring that goes on by itself.
const MANY: u32 = 4096;
/// The longest ring there is, and the longest buffer that a descriptor names.
const MOST: u32 = 0xf_ff80 / 16;
const LONGEST: u32 = 0xffff;

/// The registers of a card, and where they are.
#[derive(Clone, Copy)]
pub struct Registers(pub u64);

impl Registers {
    pub fn get(self, register: u64) -> u32 {
        get(self.0 + register)
    }

    pub fn set(self, register: u64, value: u32) {
        put(self.0 + register, value);
    }

    /// Sets a ring up, empty.
    pub fn ring(self, ring: u64, at: u64, descriptors: u32) {
        self.set(ring, at as u32);
        self.set(ring + 4, (at >> 32) as u32);
        self.set(ring + LENGTH, descriptors * 16);
        self.set(ring + HEAD, 0);
        self.set(ring + TAIL, 0);
    }
}

/// The card.
pub struct E1000 {
    registers: Registers,
    /// Own memory: two rings, a buffer, a long ring.
    transmit: u64,
    receive: u64,
    buffer: u64,
    long: u64,
    turn: u32,
    /// Where the long ring's next buffer is; 0: it is not in use.
    at: u64,
    tail: u32,
    on_network: bool,
    /// The tail does not exit; who writes it rings.
    is_symbiotic: bool,
}

impl E1000 {
    /// The first one there is.
    pub fn open(own: &mut Own) -> Option<Self> {
        let function = pci::find(|function| function.read(0) == 0x100e_8086)?;
        function.enable();
        let (transmit, receive, buffer) = (own.take(4096), own.take(4096), own.take(4096));
        let (registers, long) = (Registers(function.memory(0)), own.take(u64::from(MANY) * 16));
        let mut card = Self {
            registers,
            transmit,
            receive,
            buffer,
            long,
            turn: 0,
            at: 0,
            tail: 0,
            on_network: false,
            is_symbiotic: false,
        };
        card.registers.set(CONTROL, card.registers.get(CONTROL) | CONTROL_RESET);
        card.registers.set(MASK_CLEAR, u32::MAX);
        card.registers.set(CONTROL, card.registers.get(CONTROL) | CONTROL_LINK_UP);
        card.rings();
        card.registers.set(TRANSMIT, TRANSMIT_ON);
        card.registers.set(RECEIVE, RECEIVE_ALL);
        // All causes are masked. A card that is shared by vpio, and that nobody else wants, is given after a while to who has
        // room for what comes from the network.
        for index in 0..u64::from(DESCRIPTORS) {
            put64(card.receive + 16 * index, card.buffer);
        }
        card.registers.set(RX_RING + TAIL, DESCRIPTORS - 1);
        function.unmute();
        machine::sleep(1_000_000_000);
        card.registers.set(PHY, PHY_LOOPBACK);
        card.rings();
        Some(card)
    }

    /// The same, which shares a page with the hypervisor as a module of Linux' would.
    pub fn open_symbiotic(own: &mut Own) -> Option<Self> {
        let mut card = Self::open(own)?;
        card.registers.set(SYMBIOTIC_CONTROL.into(), SYMBIOTIC_BEGIN);
        card.is_symbiotic = card.registers.get(SYMBIOTIC_DOORBELL.into()) != SYMBIOTIC_DOORBELL_OFF;
        card.is_symbiotic.then_some(card)
    }

    /// The card sends descriptors up to this one.
    fn send_up_to(&self, tail: u32) {
        self.registers.set(TX_RING + TAIL, tail);
        if self.is_symbiotic {
            self.registers.set(SYMBIOTIC_RING.into(), 1);
        }
    }

    fn rings(&mut self) {
        // Where these registers are memory, the card may look between two of them: it would send old descriptors of its own guest's again, and what comes of
        // that would be taken for what was read elsewhere.
        if self.is_symbiotic {
            self.registers.set(TRANSMIT, 0);
        }
        self.registers.ring(TX_RING, self.transmit, DESCRIPTORS);
        self.registers.ring(RX_RING, self.receive, DESCRIPTORS);
        if self.is_symbiotic {
            self.registers.set(TRANSMIT, TRANSMIT_ON);
        }
        self.turn = 0;
    }

    /// Prepares a receive buffer, which is the only one.
    fn receive_into(&self, to: u64) -> u64 {
        let descriptor = self.receive + u64::from(self.turn) * 16;
        put64(descriptor, to);
        put64(descriptor + 8, 0);
        self.registers.set(RX_RING + TAIL, (self.turn + 1) % DESCRIPTORS);
        descriptor
    }

    fn send(&self, from: u64) {
        let descriptor = self.transmit + u64::from(self.turn) * 16;
        put64(descriptor, from);
        put(descriptor + 8, WHOLE | LEN as u32);
        put(descriptor + 12, 0);
        self.send_up_to((self.turn + 1) % DESCRIPTORS);
    }

    /// A frame from `from` to `to`; whether it arrived. A neighbour's may take its place: it is sent again then.
    fn transfer(&mut self, from: u64, to: u64) -> bool {
        for _ in 0..8 {
            match self.attempt(from, to) {
                None => return false,
                Some(OWN_FRAME) => return true,
                Some(_) => self.rings(),
            }
        }
        false
    }

    /// A frame from `from`, and the length of the first that arrives at `to`.
    fn attempt(&mut self, from: u64, to: u64) -> Option<u32> {
        let descriptor = self.receive_into(to);
        self.send(from);
        let mut patience = 1000;
        while get(descriptor + 12) & DONE == 0 && patience > 0 {
            patience -= 1;
        }
        let arrived = get(descriptor + 12) & DONE != 0;
        self.turn = (self.turn + 1) % DESCRIPTORS;
        if !arrived {
            self.rings();
        }
        arrived.then(|| get(descriptor + 8) & 0xffff)
    }
}

impl Engine for E1000 {
    fn read(&mut self, from: u64, into: u64) {
        if self.transfer(from, self.buffer) {
            copy(into, self.buffer);
        }
    }

    fn write(&mut self, to: u64, from: u64) {
        self.transfer(from, to);
    }

    fn structures(&self) -> &'static [&'static str] {
        &["transmit-ring", "receive-ring", "both-rings"]
    }

    fn misplace(&mut self, which: usize, at: u64) {
        if which != 1 {
            self.registers.ring(TX_RING, at, DESCRIPTORS);
        }
        if which != 0 {
            self.registers.ring(RX_RING, at, DESCRIPTORS);
            self.registers.set(RX_RING + TAIL, DESCRIPTORS - 1);
        } else {
            self.receive_into(self.buffer);
        }
        if which == 1 {
            self.send(self.buffer);
        } else {
            self.send_up_to(DESCRIPTORS - 1);
        }
        self.rings();
    }

    fn keep_busy(&mut self, area: (u64, u64)) {
        if self.at == 0 {
            self.at = area.0;
            for index in 0..u64::from(MANY) {
                self.give(index, area);
            }
            self.registers.ring(RX_RING, self.long, MANY);
            self.tail = MANY - 1;
            self.registers.set(RX_RING + TAIL, self.tail);
        }
        // What was received since, from itself or from others, makes room.
        let head = self.registers.get(RX_RING + HEAD);
        while (self.tail + 1) % MANY != head {
            self.give(u64::from(self.tail), area);
            self.tail = (self.tail + 1) % MANY;
        }
        self.registers.set(RX_RING + TAIL, self.tail);
        self.send(self.buffer);
        self.turn = (self.turn + 1) % DESCRIPTORS;
    }

    /// 4 GiB, of which no packet ends.
    fn ring_doorbell(&mut self, own: &mut Own) -> bool {
        let (ring, buffer) = (own.take(u64::from(MOST) * 16), own.take(0x1_0000));
        for index in 0..u64::from(MOST) {
            put64(ring + index * 16, buffer);
            put(ring + index * 16 + 8, LONGEST);
        }
        self.registers.set(PHY, PHY_NETWORK);
        self.registers.ring(TX_RING, ring, MOST);
        self.send_up_to(MOST - 1);
        false
    }

    fn broadcast(&mut self) {
        if !self.on_network {
            self.on_network = true;
            self.registers.set(RECEIVE, 0);
            self.registers.set(PHY, PHY_NETWORK);
            fill(self.buffer, u32::MAX);
        }
        self.send(self.buffer);
        self.turn = (self.turn + 1) % DESCRIPTORS;
    }
}

impl E1000 {
    /// The card may fill the descriptor `index` of the long ring, with the next page.
    fn give(&mut self, index: u64, area: (u64, u64)) {
        self.at += 4096;
        if !(area.0..area.1 - 4096).contains(&self.at) {
            self.at = area.0;
        }
        put64(self.long + index * 16, self.at);
        put64(self.long + index * 16 + 8, 0);
    }
}
