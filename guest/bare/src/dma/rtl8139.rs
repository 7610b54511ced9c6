//! RTL8139: frames go out and come back inside the card (loopback), read from anywhere, written anywhere.
//!
//! In C mode transmit buffers and the receive ring have addresses of 32 bits; in C+ mode descriptors and what they
//! name have 64.
//!
//! Source: Realtek RTL8139D(L) data sheet, 5 (registers), 8.3 (loopback); RTL8139C+ data sheet, 6.1 and 6.2
//! (registers, descriptors).

use super::memory::{Own, copy, get, put, put64};
use super::targets::MESSAGES;
use super::{Engine, LEN};
use crate::machine::{inb, outb, outl, outw};
use crate::pci;

const DUMP: u16 = 0x10;
const TX_STATUS: u16 = 0x10;
const TX_ADDRESS: u16 = 0x20;
const TX_RING: u16 = 0x20;
const RX_RING: u16 = 0x30;
const COMMAND: u16 = 0x37;
const INTERRUPT_MASK: u16 = 0x3c;
const TX_CONFIG: u16 = 0x40;
const RX_CONFIG: u16 = 0x44;
const POLL: u16 = 0xd9;
const PLUS_COMMAND: u16 = 0xe0;
const RX_DESCRIPTORS: u16 = 0xe4;

const RESET: u8 = 0x10;
const BOTH: u8 = 0x0c;
const LOOPBACK: u32 = 3 << 17;
/// Any frame, unlimited bursts, no wrapping; writing it empties the ring.
const ACCEPT_ALL: u32 = 0xf | 1 << 7 | 7 << 8 | 7 << 13;
const DUMP_NOW: u32 = 8;
/// A descriptor that is the card's, at the end of its ring; of a whole frame.
const CARDS: u32 = OWN | LAST;
const OWN: u32 = 1 << 31;
const LAST: u32 = 1 << 30;
const WHOLE: u32 = 3 << 28;
const SPACE: u32 = 0x600;
/// Bytes of an own frame as received: with its frame check sequence. Others are a neighbour's.
const OWN_FRAME: u32 = LEN as u32 + 4;
/// Descriptors of the ring that goes on by itself.
const DESCRIPTORS: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Plain,
    Plus,
}

/// The card.
pub struct Rtl8139 {
    base: u16,
    mode: Mode,
    /// The transmit register whose turn it is.
    turn: u16,
    transfers: u64,
    /// Own memory: a receive ring or buffer; a transmit and a receive descriptor; a long receive ring.
    ring: u64,
    descriptors: u64,
    long: u64,
    at: u64,
}

impl Rtl8139 {
    /// The first one there is.
    pub fn open(own: &mut Own) -> Option<Self> {
        let function = pci::find(|function| function.read(0) == 0x8139_10ec)?;
        function.enable();
        let (ring, descriptors) = (own.take(0x4000), own.take(512));
        let long = own.take(DESCRIPTORS * 16);
        let base = function.ports(0);
        Some(Self { base, mode: Mode::None, turn: 0, transfers: 0, ring, descriptors, long, at: 0 })
    }

    fn enter(&mut self, mode: Mode) {
        if self.mode == mode {
            return;
        }
        outb(self.base + COMMAND, RESET);
        while inb(self.base + COMMAND) & RESET != 0 {}
        outw(self.base + INTERRUPT_MASK, 0);
        if mode == Mode::Plus {
            outw(self.base + PLUS_COMMAND, 3);
            self.place(TX_RING, self.descriptors);
            self.place(RX_DESCRIPTORS, self.descriptors + 256);
        }
        outb(self.base + COMMAND, BOTH);
        outl(self.base + TX_CONFIG, LOOPBACK | 7 << 8);
        outl(self.base + RX_CONFIG, ACCEPT_ALL);
        self.turn = 0;
        self.mode = mode;
    }

    fn place(&self, register: u16, at: u64) {
        outl(self.base + register + 4, (at >> 32) as u32);
        outl(self.base + register, at as u32);
    }

    /// C mode: a frame from `from` into a ring at `to`, after four bytes of status.
    fn plain(&mut self, from: u64, to: u64) {
        self.enter(Mode::Plain);
        outl(self.base + RX_RING, to as u32);
        outl(self.base + RX_CONFIG, ACCEPT_ALL);
        outl(self.base + TX_ADDRESS + 4 * self.turn, from as u32);
        outl(self.base + TX_STATUS + 4 * self.turn, LEN as u32);
        self.turn = (self.turn + 1) & 3;
    }

    /// C+ mode: a frame from `from` to `to`.
    fn plus(&mut self, from: u64, to: u64) {
        self.enter(Mode::Plus);
        self.receive_into(to);
        self.send(from);
    }

    fn receive_into(&self, to: u64) {
        let receive = self.descriptors + 256;
        put64(receive + 8, to);
        put(receive, CARDS | SPACE);
    }

    fn send(&self, from: u64) {
        put64(self.descriptors + 8, from);
        put(self.descriptors, CARDS | WHOLE | LEN as u32);
        outb(self.base + POLL, 0x40);
    }

    /// Every other transfer that can be in C mode is.
    fn turn_of_plain(&mut self, at: u64) -> bool {
        self.transfers += 1;
        at + LEN < 1 << 32 && self.transfers & 2 == 0
    }
}

impl Engine for Rtl8139 {
    fn read(&mut self, from: u64, into: u64) {
        if from < (1 << 32) - LEN && self.turn_of_plain(from) {
            put(self.ring, 0);
            self.plain(from, self.ring);
            let status = get(self.ring);
            if status & 1 != 0 && status >> 16 == OWN_FRAME {
                copy(into, self.ring + 4);
            }
        } else {
            self.plus(from, self.ring);
            let status = get(self.descriptors + 256);
            if status & OWN == 0 && status & 0x1fff == OWN_FRAME {
                copy(into, self.ring);
            }
        }
    }

    fn write(&mut self, to: u64, from: u64) {
        // C mode puts a status of its own in front: not where every word is an interrupt.
        let message = (MESSAGES.0..MESSAGES.1).contains(&to);
        if to < (1 << 32) - LEN && !message && self.turn_of_plain(to) {
            self.plain(from, to);
        } else {
            self.plus(from, to);
        }
    }

    fn structures(&self) -> &'static [&'static str] {
        &["tally", "transmit-ring", "receive-ring", "receive-status"]
    }

    fn misplace(&mut self, which: usize, at: u64) {
        self.enter(Mode::Plus);
        match which {
            0 => self.place(DUMP, at & !0x3f | u64::from(DUMP_NOW)),
            1 => {
                self.receive_into(self.ring);
                self.place(TX_RING, at);
                outb(self.base + POLL, 0x40);
            }
            2 => {
                self.place(RX_DESCRIPTORS, at);
                self.send(self.ring);
            }
            _ => {
                self.enter(Mode::Plain);
                // Over the end of the ring.
                for _ in 0..20 {
                    outl(self.base + RX_RING, at as u32);
                    outl(self.base + TX_ADDRESS + 4 * self.turn, self.ring as u32);
                    outl(self.base + TX_STATUS + 4 * self.turn, LEN as u32);
                    self.turn = (self.turn + 1) & 3;
                }
            }
        }
        self.mode = Mode::None;
    }

    /// 64 packets of 64 KiB, again and again.
    fn ring_doorbell(&mut self, own: &mut Own) -> bool {
        if self.at == 0 {
            self.enter(Mode::Plus);
            outl(self.base + TX_CONFIG, 7 << 8);
            self.at = own.take(0x1_0000);
            self.place(TX_RING, self.long);
        }
        for index in 0..DESCRIPTORS {
            let descriptor = self.long + index * 16;
            put64(descriptor + 8, self.at);
            put(descriptor, OWN | WHOLE | 0xffff);
        }
        outb(self.base + POLL, 0x40);
        true
    }

    fn keep_busy(&mut self, area: (u64, u64)) {
        self.enter(Mode::Plus);
        let fresh = self.at == 0;
        for index in 0..DESCRIPTORS {
            let descriptor = self.long + index * 16;
            if !fresh && get(descriptor) & OWN != 0 {
                continue;
            }
            self.at += 4096;
            if !(area.0..area.1 - 4096).contains(&self.at) {
                self.at = area.0;
            }
            put64(descriptor + 8, self.at);
            put(descriptor, OWN | if index + 1 == DESCRIPTORS { LAST } else { 0 } | SPACE);
        }
        if fresh {
            self.place(RX_DESCRIPTORS, self.long);
        }
        self.send(self.ring);
    }
}
