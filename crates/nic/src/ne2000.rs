//! A software NE2000 on PCI (Realtek RTL8029), visible behaviour as QEMU's `ne2k_pci`.
//!
//! Key types: [`Ne2000`], [`registers::Registers`]. Sources: National DP8390D data sheet; Realtek
//! RTL8029AS data sheet; behaviour where these are silent from observing QEMU's card.
//!
//! Quirks kept on purpose (drivers and monitors must live with them): a transmission completes
//! within the command write; STA means nothing, STP alone decides; RCR's monitor mode and TCR's
//! loopback are ignored; the filter compares PROM bytes and not PAR; reset changes only ISR and the
//! PROM; RCR, TCR, DCR, IMR, TPSR, TBCR and RBCR cannot be read on any page; ports other than
//! 0x00-0x0f, 0x10 and 0x1f do not answer, nor do aligned wide accesses to registers, while unaligned
//! ones fall apart into aligned ones. Remote DMA quirks are
//! listed in `memory.rs`.
//! Deviation: CMD starts as STP|NO_DMA, as the data sheet says, where QEMU starts it as 0.

mod memory;
mod receive;
pub mod registers;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec;
use registers::{Command, Interrupt, Registers, SendStatus, port};

pub use receive::Reception;

/// Ports of the card.
pub const PORTS: u16 = 0x20;
/// First card address of packet memory.
pub const MEMORY_START: u32 = 0x4000;
/// Card address after packet memory.
pub const MEMORY_END: u32 = 0xc000;
/// Bytes of packet memory.
pub const MEMORY_LEN: usize = (MEMORY_END - MEMORY_START) as usize;
/// Bytes of the PROM at card address 0.
pub const PROM_LEN: usize = 32;
/// Longest Ethernet frame without CRC and VLAN tag.
pub const MAX_FRAME: usize = 1514;

/// The card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ne2000 {
    /// All registers; open so that a card can be saved and loaded.
    pub regs: Registers,
    mac: [u8; 6],
    prom: [u8; PROM_LEN],
    ram: Box<[u8]>,
    outgoing: Option<Outgoing>,
}

/// Where a frame being sent lies in card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// First byte, a card address.
    pub start: u32,
    /// Bytes.
    pub len: u16,
}

impl Ne2000 {
    /// A card just powered on, with this station address in its PROM. Allocates 32 KiB.
    pub fn new(mac: [u8; 6]) -> Self {
        let mut card = Self {
            regs: Registers::default(),
            mac,
            prom: [0; PROM_LEN],
            ram: vec![0; MEMORY_LEN].into_boxed_slice(),
            outgoing: None,
        };
        card.power_on();
        card
    }

    /// Back to the state after power-on, memory cleared. Allocates nothing.
    pub fn power_on(&mut self) {
        self.regs = Registers { cmd: (Command::STOP | Command::NO_DMA).bits(), ..Registers::default() };
        self.ram.fill(0);
        self.prom.fill(0);
        self.outgoing = None;
        self.reset();
    }

    /// The station address it was built with.
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// What reading the reset port does. The PROM is rebuilt in place, so that bytes 12-27 show what
    /// bytes 6-13 were: nothing at first, later not.
    pub fn reset(&mut self) {
        self.regs.isr = Interrupt::RESET.bits();
        let mut half = [0; PROM_LEN / 2];
        half.iter_mut().zip(self.prom).for_each(|(to, from)| *to = from);
        half.iter_mut().zip(self.mac).for_each(|(to, from)| *to = from);
        half.iter_mut().skip(14).for_each(|to| *to = 0x57);
        self.prom.chunks_mut(2).zip(half).for_each(|(pair, byte)| pair.fill(byte));
    }

    /// Level of the interrupt line.
    pub const fn interrupt(&self) -> bool {
        self.regs.isr & self.regs.imr & 0x7f != 0
    }

    /// IN of `width` bytes; what does not answer reads as ones. An access that is not aligned is
    /// several that are, the lowest port first.
    pub fn read(&mut self, offset: u16, width: u8) -> u32 {
        if let Some((first, rest)) = split(offset, width) {
            let low = self.read(offset, first);
            let high = self.read(offset.wrapping_add(u16::from(first)), rest);
            return low | high.checked_shl(8 * u32::from(first)).unwrap_or(0);
        }
        match (offset, width) {
            (0..=0x0f, 1) => u32::from(self.register(offset)),
            (port::DATA, 1 | 2 | 4) => self.data_read(width),
            (port::RESET, 1) => {
                self.reset();
                0
            }
            _ => ones(width),
        }
    }

    /// OUT of `width` bytes; see [`Self::read`] for accesses that are not aligned.
    pub fn write(&mut self, offset: u16, width: u8, value: u32) {
        if let Some((first, rest)) = split(offset, width) {
            self.write(offset, first, value);
            let high = value.checked_shr(8 * u32::from(first)).unwrap_or(0);
            return self.write(offset.wrapping_add(u16::from(first)), rest, high);
        }
        match (offset, width) {
            (0..=0x0f, 1) => self.set_register(offset, value as u8),
            (port::DATA, 1 | 2 | 4) => self.data_write(width, value),
            _ => {}
        }
    }

    /// `rep ins`; `into` holds elements of `width` bytes.
    pub fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        if offset == port::DATA && matches!(width, 1 | 2 | 4) {
            return self.data_read_string(width, into);
        }
        for element in into.chunks_mut(usize::from(width).max(1)) {
            let value = self.read(offset, width).to_le_bytes();
            element.iter_mut().zip(value).for_each(|(to, from)| *to = from);
        }
    }

    /// `rep outs`.
    pub fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        if offset == port::DATA && matches!(width, 1 | 2 | 4) {
            return self.data_write_string(width, from);
        }
        for element in from.chunks(usize::from(width).max(1)) {
            let mut value = [0; 4];
            value.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
            self.write(offset, width, u32::from_le_bytes(value));
        }
    }

    fn register(&self, offset: u16) -> u8 {
        let regs = &self.regs;
        match (regs.page(), offset) {
            (_, port::CMD) => regs.cmd,
            (0, port::BNRY) => regs.bnry,
            (0, port::TPSR) => regs.tsr,
            (0, port::ISR) => regs.isr,
            (0, port::RSAR0) => regs.rsar as u8,
            (0, port::RSAR1) => (regs.rsar >> 8) as u8,
            // The RTL8029's signature, "PC".
            (0, port::RBCR0) => 0x50,
            (0, port::RBCR1) => 0x43,
            (0, port::RCR) => regs.rsr,
            (1, 1..=6) => regs.par.get(usize::from(offset) - 1).copied().unwrap_or(0),
            (1, 7) => regs.curr,
            (1, 8..=15) => regs.mar.get(usize::from(offset) - 8).copied().unwrap_or(0),
            (2, port::PSTART) => regs.pstart,
            (2, port::PSTOP) => regs.pstop,
            // CONFIG2 and CONFIG3: 10BASE-T, full duplex.
            (3, 5 | 6) => 0x40,
            _ => 0,
        }
    }

    fn set_register(&mut self, offset: u16, value: u8) {
        let page = self.regs.page();
        let regs = &mut self.regs;
        match (page, offset) {
            (_, port::CMD) => self.command(value),
            (0, port::PSTART) => regs.pstart = value,
            (0, port::PSTOP) => regs.pstop = value,
            (0, port::BNRY) => regs.bnry = value,
            (0, port::TPSR) => regs.tpsr = value,
            (0, port::TBCR0) => regs.tbcr = regs.tbcr & 0xff00 | u16::from(value),
            (0, port::TBCR1) => regs.tbcr = regs.tbcr & 0x00ff | u16::from(value) << 8,
            (0, port::ISR) => regs.isr &= !(value & 0x7f),
            (0, port::RSAR0) => regs.rsar = regs.rsar & 0xff00 | u32::from(value),
            (0, port::RSAR1) => regs.rsar = regs.rsar & 0x00ff | u32::from(value) << 8,
            (0, port::RBCR0) => regs.rbcr = regs.rbcr & 0xff00 | u16::from(value),
            (0, port::RBCR1) => regs.rbcr = regs.rbcr & 0x00ff | u16::from(value) << 8,
            (0, port::RCR) => regs.rcr = value,
            (0, port::TCR) => regs.tcr = value,
            (0, port::DCR) => regs.dcr = value,
            (0, port::IMR) => regs.imr = value,
            (1, 1..=6) => {
                if let Some(byte) = regs.par.get_mut(usize::from(offset) - 1) {
                    *byte = value;
                }
            }
            (1, 7) => regs.curr = value,
            (1, 8..=15) => {
                if let Some(byte) = regs.mar.get_mut(usize::from(offset) - 8) {
                    *byte = value;
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, value: u8) {
        self.regs.cmd = value;
        let command = Command::from_bits_retain(value);
        if command.contains(Command::STOP) {
            return;
        }
        self.regs.isr &= !Interrupt::RESET.bits();
        if command.intersects(Command::REMOTE_READ | Command::REMOTE_WRITE) && self.regs.rbcr == 0 {
            self.regs.isr |= Interrupt::DMA_DONE.bits();
        }
        if command.contains(Command::TRANSMIT) {
            self.outgoing = self.transmit_range();
            self.regs.tsr = SendStatus::SENT.bits();
            self.regs.isr |= Interrupt::SENT.bits();
            self.regs.cmd &= !Command::TRANSMIT.bits();
        }
    }

    /// What a transmit command would send now; `None` if the range leaves memory, in which case
    /// the card reports success and sends nothing.
    pub fn transmit_range(&self) -> Option<Outgoing> {
        let mut start = u32::from(self.regs.tpsr) << 8;
        if start >= MEMORY_END {
            start -= MEMORY_LEN as u32;
        }
        let end = start + u32::from(self.regs.tbcr);
        (end <= MEMORY_END).then_some(Outgoing { start, len: self.regs.tbcr })
    }

    /// Copies the frame sent by the last transmit command into `into` and forgets it. Call after
    /// each write: a second command replaces the first. `None`: nothing sent, or no room for it.
    pub fn take_transmitted(&mut self, into: &mut [u8]) -> Option<usize> {
        let Outgoing { start, len } = self.outgoing.take()?;
        let frame = into.get_mut(..usize::from(len))?;
        for (index, byte) in (0u32..).zip(frame) {
            // Below packet memory only the PROM is there; the card sends zeros for the gap.
            *byte = self.byte(start.wrapping_add(index)).unwrap_or(0);
        }
        Some(usize::from(len))
    }
}

/// Widths of the first aligned access and of what follows, if `width` bytes at `offset` are more
/// than one aligned access.
const fn split(offset: u16, width: u8) -> Option<(u8, u8)> {
    let mut first = if width >= 4 { 4 } else { width };
    while first > 1 && (first == 3 || offset & (first as u16 - 1) != 0) {
        first -= 1;
    }
    if first < width { Some((first, width - first)) } else { None }
}

/// All ones of a width in bytes.
const fn ones(width: u8) -> u32 {
    match width {
        1 => 0xff,
        2 => 0xffff,
        _ => u32::MAX,
    }
}
