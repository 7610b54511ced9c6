//! Card memory and the remote DMA engine behind the data port.
//!
//! The 16-bit address space of the card holds a 32-byte PROM at 0 and 32 KiB of packet memory at
//! 0x4000; the rest reads as ones. Quirks kept from QEMU's card because drivers see them:
//! reads ignore the direction in CMD and go on when the byte count is used up; writes stop then;
//! four-byte accesses move four bytes in byte mode too; the PROM can be written; the address wraps
//! from the end of the receive ring to its start only when it hits it exactly. Not kept: a
//! four-byte write at the last word of memory spills two bytes past it in QEMU; here they vanish.

use super::registers::{DCR_WORD, Interrupt};
use super::{MEMORY_END, MEMORY_START, Ne2000, PROM_LEN};

impl Ne2000 {
    /// One byte of card memory, if there is memory at this address.
    pub fn byte(&self, address: u32) -> Option<u8> {
        if address < PROM_LEN as u32 {
            return self.prom.get(address as usize).copied();
        }
        self.ram.get(address.checked_sub(MEMORY_START)? as usize).copied()
    }

    /// Sets one byte of card memory; nothing happens where there is none.
    pub fn set_byte(&mut self, address: u32, value: u8) {
        let cell = if address < PROM_LEN as u32 {
            self.prom.get_mut(address as usize)
        } else {
            address.checked_sub(MEMORY_START).and_then(|at| self.ram.get_mut(at as usize))
        };
        if let Some(cell) = cell {
            *cell = value;
        }
    }

    /// Packet memory, 32 KiB from card address 0x4000.
    pub fn ram(&self) -> &[u8] {
        &self.ram
    }

    /// Packet memory, for loading a saved card.
    pub fn ram_mut(&mut self) -> &mut [u8] {
        &mut self.ram
    }

    /// The PROM.
    pub const fn prom(&self) -> &[u8; PROM_LEN] {
        &self.prom
    }

    /// The PROM, for loading a saved card.
    pub const fn prom_mut(&mut self) -> &mut [u8; PROM_LEN] {
        &mut self.prom
    }

    /// Bytes one access of `width` moves in the present mode.
    fn step(&self, width: u8) -> u16 {
        match width {
            4 => 4,
            _ if self.regs.dcr & DCR_WORD != 0 => 2,
            _ => 1,
        }
    }

    fn advance(&mut self, bytes: u16) {
        self.regs.rsar = self.regs.rsar.wrapping_add(u32::from(bytes));
        if self.regs.rsar == u32::from(self.regs.pstop) << 8 {
            self.regs.rsar = u32::from(self.regs.pstart) << 8;
        }
        if self.regs.rbcr <= bytes {
            self.regs.rbcr = 0;
            self.regs.isr |= Interrupt::DMA_DONE.bits();
        } else {
            self.regs.rbcr -= bytes;
        }
    }

    /// The memory an access at the remote address falls on: words and longs start even, and exist
    /// if their first byte does.
    fn base(&self, step: u16) -> Option<u32> {
        let base = if step == 1 { self.regs.rsar } else { self.regs.rsar & !1 };
        self.byte(base).map(|_| base)
    }

    pub(super) fn data_read(&mut self, width: u8) -> u32 {
        let step = self.step(width);
        let mut value = u32::MAX;
        if let Some(base) = self.base(step) {
            value = 0;
            for index in 0..u32::from(step) {
                value |= u32::from(self.byte(base.wrapping_add(index)).unwrap_or(0)) << (8 * index);
            }
        }
        self.advance(step);
        match width {
            1 => value & 0xff,
            2 if step == 1 => value & 0xff,
            2 => value & 0xffff,
            _ => value,
        }
    }

    pub(super) fn data_write(&mut self, width: u8, value: u32) {
        if self.regs.rbcr == 0 {
            return;
        }
        let step = self.step(width);
        // A narrow access still moves a whole word in word mode; its upper byte is zero.
        let value = if width == 1 { value & 0xff } else { value };
        if let Some(base) = self.base(step) {
            for index in 0..u32::from(step) {
                self.set_byte(base.wrapping_add(index), (value >> (8 * index)) as u8);
            }
        }
        self.advance(step);
    }

    /// Offset in packet memory if a whole transfer is one plain copy: element size as the width,
    /// even address, inside memory, not across the ring's end.
    fn plain(&self, width: u8, bytes: usize) -> Option<usize> {
        if u16::from(width) != self.step(width) || (width != 1 && self.regs.rsar & 1 != 0) {
            return None;
        }
        let bytes = u32::try_from(bytes).ok()?;
        let end = self.regs.rsar.checked_add(bytes)?;
        let stop = u32::from(self.regs.pstop) << 8;
        if self.regs.rsar < MEMORY_START || end > MEMORY_END || (self.regs.rsar < stop && stop < end) {
            return None;
        }
        Some((self.regs.rsar - MEMORY_START) as usize)
    }

    /// Bytes of a string of whole elements that come before the end of the ring, where the address wraps; all if it does not.
    fn until_wrap(&self, width: u8, bytes: usize) -> usize {
        let left = (u32::from(self.regs.pstop) << 8).saturating_sub(self.regs.rsar) as usize;
        let whole = left - left % usize::from(width).max(1);
        if whole == 0 { bytes } else { bytes.min(whole) }
    }

    /// `rep ins` from the data port: as that many single reads, but fast.
    pub(super) fn data_read_string(&mut self, width: u8, into: &mut [u8]) {
        let (first, rest) = into.split_at_mut(self.until_wrap(width, into.len()));
        self.read_run(width, first);
        if !rest.is_empty() {
            self.read_run(width, rest);
        }
    }

    fn read_run(&mut self, width: u8, into: &mut [u8]) {
        let (Some(at), Ok(bytes)) = (self.plain(width, into.len()), u16::try_from(into.len())) else {
            for element in into.chunks_mut(usize::from(width).max(1)) {
                let value = self.data_read(width).to_le_bytes();
                element.iter_mut().zip(value).for_each(|(to, from)| *to = from);
            }
            return;
        };
        if bytes == 0 {
            return;
        }
        if let Some(from) = self.ram.get(at..at.wrapping_add(into.len())) {
            into.copy_from_slice(from);
        }
        self.advance(bytes);
    }

    /// `rep outs` to the data port.
    pub(super) fn data_write_string(&mut self, width: u8, from: &[u8]) {
        let plain = match (self.plain(width, from.len()), u16::try_from(from.len())) {
            (Some(at), Ok(bytes)) if bytes <= self.regs.rbcr => Some((at, bytes)),
            _ => None,
        };
        let Some((at, bytes)) = plain else {
            for element in from.chunks(usize::from(width).max(1)) {
                let mut value = [0; 4];
                value.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
                self.data_write(width, u32::from_le_bytes(value));
            }
            return;
        };
        if bytes == 0 {
            return;
        }
        if let Some(to) = self.ram.get_mut(at..at.wrapping_add(from.len())) {
            to.copy_from_slice(from);
        }
        self.advance(bytes);
    }
}
