//! A software Intel 82540EM (PCI 8086:100e), visible behaviour as QEMU's `e1000`.
//!
//! Key types: [`E1000`]; [`registers::Registers`], its register file; [`Transmission`] and [`Reception`],
//! what became of frames. Memory is reached through [`crate::dma::Dma`], only within [`E1000::transmit`] and
//! [`E1000::receive`]; PCI configuration, bus mastering included, is the owner's. Time is told by
//! [`E1000::advance`] and stands still between two calls. What memory refuses reads as zeros, as with QEMU's
//! card, so that a ring that is not there sends nothing. Sources: Intel PCI/PCI-X Family of Gigabit Ethernet
//! Controllers Software Developer's Manual (317453); behaviour where QEMU differs from it from observing
//! QEMU's card (`tests/qemu-e1000.rs`).
//!
//! Quirks kept on purpose (drivers and monitors must live with them): CTRL.RST and CTRL.PHY_RST do nothing;
//! the ports do nothing; a packet without an end and the header that segments repeat stay until another
//! packet replaces them (`tests/handoff.rs`); an access of one or two bytes is one of the whole register, a
//! write with zeros above; RCTL.LBM does nothing, only the PHY loops back; RDTR and TIDV delay nothing. More
//! are listed in the parts. Deviations: work is bounded, see `transmit.rs` and `receive.rs`; a doorbell's
//! work is done when the owner says, not within the write; an empty frame is counted and goes nowhere (with
//! QEMU's, it can stop the network behind the card for good).

mod eeprom;
mod interrupts;
mod packet;
mod phy;
mod receive;
pub mod registers;
#[cfg(test)]
mod tests;
mod transmit;
mod whole;

use crate::dma::Dma;
use crate::time::earliest;
use registers::{Cause, Control, Reading, Registers, Writing, reg};
use transmit::Transmitter;

pub use eeprom::Eeprom;
pub use interrupts::Line;
pub use packet::context_for;
pub use phy::{Phy, mii};
pub use receive::{Reception, SKIPPED};
pub use registers::{PORTS, WINDOW};
pub use transmit::{MAX_OUTGOING, Transmission};
pub use whole::{MOST_DESCRIPTORS, Whole};

/// PCI vendor and device.
pub const PCI_ID: (u16, u16) = (0x8086, 0x100e);
/// PCI revision.
pub const PCI_REVISION: u8 = 3;

/// The card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct E1000 {
    /// The register file; open so that a card can be saved and loaded.
    pub regs: Registers,
    /// The PHY's registers, likewise.
    pub phy: Phy,
    eeprom: Eeprom,
    mac: [u8; 6],
    now: u64,
    cable: bool,
    /// When auto-negotiation is done.
    negotiated_at: Option<u64>,
    /// When frames are received again after RCTL was written.
    receive_from: Option<u64>,
    line: Line,
    tx: Transmitter,
    refused: u64,
}

impl E1000 {
    /// A card just powered on, with this station address in its EEPROM and the cable plugged in. Allocates 192 KiB.
    pub fn new(mac: [u8; 6]) -> Self {
        let mut card = Self {
            regs: Registers::new(),
            phy: phy::RESET,
            eeprom: Eeprom::new(mac),
            mac,
            now: 0,
            cable: true,
            negotiated_at: None,
            receive_from: None,
            line: Line::default(),
            tx: Transmitter::new(),
            refused: 0,
        };
        card.power_on();
        card
    }

    /// Back to the state after power-on: what a reset of the machine does. Allocates nothing.
    pub fn power_on(&mut self) {
        self.regs.clear();
        self.phy = phy::RESET;
        self.line = Line::default();
        self.tx.reset();
        (self.negotiated_at, self.receive_from) = (None, None);
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        for (register, value) in [
            (reg::CTRL, 0x0014_0240),
            (reg::STATUS, 0x8008_0783),
            (reg::PBA, 0x0010_0030),
            (reg::LEDCTL, 0x0000_0602),
            (reg::MANC, 0x0022_2300),
            (reg::VET, 0x8100),
            (reg::RAL, u32::from_le_bytes([m0, m1, m2, m3])),
            (reg::RAH, u32::from_le_bytes([m4, m5, 0, 0x80])),
        ] {
            self.regs.set(register, value);
        }
        if !self.cable {
            self.link_down();
        }
    }

    /// The station address it was built with.
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The EEPROM.
    pub const fn eeprom(&self) -> &Eeprom {
        &self.eeprom
    }

    /// Accesses to memory that the owner refused.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// It is now `now` nanoseconds after some beginning: what is due happens. Time that goes back is ignored.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let due = |time: &mut Option<u64>| time.take_if(|time| *time <= now).is_some();
        due(&mut self.receive_from);
        if due(&mut self.line.held_until) {
            self.release_line();
        }
        if due(&mut self.negotiated_at) {
            self.negotiated();
        }
    }

    /// The time it was told last.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// When [`Self::advance`] should be called next: something is due.
    pub fn deadline(&self) -> Option<u64> {
        earliest([self.receive_from, self.line.held_until, self.negotiated_at])
    }

    /// Reads `width` bytes, 1, 2 or 4. An access that is not aligned is several that are, the lowest byte
    /// first.
    pub fn read(&mut self, offset: u32, width: u8) -> u32 {
        if let Some((first, rest)) = split(offset, width) {
            let low = self.read(offset, first);
            let high = self.read(offset.wrapping_add(u32::from(first)), rest);
            return low | high.checked_shl(8 * u32::from(first)).unwrap_or(0);
        }
        self.read_register(offset) & mask(width)
    }

    /// What an aligned read of four bytes would give, without doing what it does.
    pub fn image(&self, offset: u32) -> u32 {
        let word = self.regs.get(offset);
        match registers::reading(offset) {
            Reading::Nothing => 0,
            Reading::EepromPins => self.eeprom.pins(),
            Reading::EepromWord => self.eeprom.word(word),
            _ => word,
        }
    }

    /// What the register at a multiple of four holds, if reading it does nothing, now or ever.
    pub fn peek(&self, offset: u32) -> Option<u32> {
        let offset = offset % WINDOW;
        (registers::reading(offset) == Reading::Word).then(|| self.regs.get(offset))
    }

    /// Writes; see [`Self::read`] for accesses that are not aligned. Then call [`Self::transmit`].
    pub fn write(&mut self, offset: u32, width: u8, value: u32) {
        if let Some((first, rest)) = split(offset, width) {
            self.write(offset, first, value);
            let high = value.checked_shr(8 * u32::from(first)).unwrap_or(0);
            return self.write(offset.wrapping_add(u32::from(first)), rest, high);
        }
        self.write_register(offset, value & mask(width));
    }

    /// IN from BAR 1.
    pub const fn read_port(&mut self, _offset: u16, _width: u8) -> u32 {
        0
    }

    /// OUT to BAR 1.
    pub const fn write_port(&mut self, _offset: u16, _width: u8, _value: u32) {}

    /// Reads memory.
    fn fetch(&mut self, memory: &mut dyn Dma, address: u64, into: &mut [u8]) {
        if memory.read(address, into).is_err() {
            self.refused = self.refused.wrapping_add(1);
            into.fill(0);
        }
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let offset = (offset % WINDOW) & !3;
        let word = self.regs.get(offset);
        match registers::reading(offset) {
            Reading::Nothing => return 0,
            Reading::Word => {}
            Reading::Clears => self.regs.set(offset, 0),
            Reading::ClearsPair => {
                self.regs.set(offset, 0);
                self.regs.set(offset - 4, 0);
            }
            Reading::Causes => self.set_causes(0),
            Reading::EepromPins => return self.eeprom.pins(),
            Reading::EepromWord => return self.eeprom.word(word),
        }
        word
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let offset = (offset % WINDOW) & !3;
        match registers::writing(offset) {
            Writing::Nothing => {}
            Writing::Word(bits) => self.regs.set(offset, value & bits),
            Writing::Effect => self.take_effect(offset, value),
        }
    }

    fn take_effect(&mut self, offset: u32, value: u32) {
        match offset {
            reg::CTRL => self.regs.set(offset, value & !Control::RESET.bits()),
            reg::EECD => self.eeprom.set_pins(value),
            reg::MDIC => self.access_phy(value),
            reg::RCTL => self.control_receiver(value),
            reg::TCTL | reg::TDT => {
                self.regs.set(offset, if offset == reg::TDT { value & 0xffff } else { value });
                self.ring_doorbell();
            }
            reg::ICR => self.set_causes(self.regs.get(reg::ICR) & !value),
            reg::ICS => self.raise(Cause::from_bits_retain(value)),
            reg::IMS | reg::IMC => {
                let mask = self.regs.get(reg::IMS);
                self.regs.set(reg::IMS, if offset == reg::IMS { mask | value } else { mask & !value });
                self.raise(Cause::empty());
            }
            _ => {}
        }
    }
}

/// Widths of the first aligned access and of what follows, if `width` bytes at `offset` are more than one
/// aligned access.
const fn split(offset: u32, width: u8) -> Option<(u8, u8)> {
    let mut first = if width >= 4 { 4 } else { width };
    while first > 1 && (first == 3 || offset & (first as u32 - 1) != 0) {
        first -= 1;
    }
    if first < width { Some((first, width - first)) } else { None }
}

/// All ones of a width in bytes.
const fn mask(width: u8) -> u32 {
    match width {
        1 => 0xff,
        2 => 0xffff,
        _ => u32::MAX,
    }
}
