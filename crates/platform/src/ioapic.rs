//! The I/O APIC: 24 pins, each with a redirection entry, global interrupts 0-23.
//!
//! [`IoApic::set_line`] says how a device drives its line; a [`Message`] comes back when that interrupts
//! somebody. A level-triggered pin then waits for [`IoApic::eoi`] (its remote IRR is set) and delivers again
//! if the line is still asserted, so several devices may share a pin if the caller passes the OR of them.
//!
//! Source: Intel 82093AA datasheet (290566-001), chapter 3; version 0x20 with the EOI register as in the
//! ICH and later.
//!
//! Deviations: the polarity bit is kept but means nothing, as [`IoApic::set_line`] takes the logical state; SMI,
//! NMI, INIT and ExtINT entries deliver nothing; delivery is instant, so the delivery status reads idle. A real one
//! takes a while to deliver a level again that is still there when its interrupt ends, in which a guest that does not
//! silence it gets on a little; here it is held back after [`STORM`] times, until [`IoApic::release`].

use crate::Message;
use crate::message::widen;
use arrayvec::ArrayVec;

/// Where the registers are.
pub const BASE: u64 = 0xFEC0_0000;
/// Pins.
pub const PINS: usize = 24;

/// Deliveries of a level in a row, with its line up all the time, after which it is held back.
pub const STORM: u16 = 2000;

const VERSION: u32 = 0x20 | (PINS as u32 - 1) << 16;

/// Offsets of the directly addressed registers.
mod direct {
    pub const SELECT: u32 = 0x00;
    pub const WINDOW: u32 = 0x10;
    pub const EOI: u32 = 0x40;
}

/// Numbers of the registers behind the window (table 3-1).
mod indirect {
    pub const ID: u8 = 0x00;
    pub const VERSION: u8 = 0x01;
    pub const ARBITRATION: u8 = 0x02;
    pub const TABLE: u8 = 0x10;
    pub const TABLE_LAST: u8 = 0x3F;
}

/// A redirection entry (3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const REMOTE_IRR: u64 = 1 << 14;
    const LEVEL: u64 = 1 << 15;
    const MASKED: u64 = 1 << 16;
    /// Vector, delivery and destination mode, polarity, trigger mode, mask, destination.
    const WRITABLE: u64 = 0xFF00_0000_0001_AFFF;

    fn vector(self) -> u8 {
        self.0 as u8
    }

    fn is_level(self) -> bool {
        self.0 & Self::LEVEL != 0
    }

    fn is_masked(self) -> bool {
        self.0 & Self::MASKED != 0
    }

    fn message(self) -> Option<Message> {
        let dest = widen((self.0 >> 56) as u8);
        Message::new(dest, self.0 & 1 << 11 != 0, (self.0 >> 8 & 7) as u8, self.vector(), self.is_level())
    }
}

/// What an end of interrupt did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Eois {
    /// Pins, by bit, whose level-triggered interrupt ended.
    pub pins: u32,
    /// Interrupts of those pins whose line is asserted still.
    pub redeliver: ArrayVec<Message, PINS>,
    /// One of those is held back: call [`IoApic::release`] after a while.
    pub held: bool,
}

/// What a register write asks of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteEffect {
    /// Nothing.
    None,
    /// Deliver this: a pin was unmasked whose line is asserted.
    Deliver(Message),
    /// The EOI register was written: call [`IoApic::eoi`] for this vector, as for a local APIC's.
    Eoi(u8),
}

/// The I/O APIC.
#[derive(Clone, Debug)]
pub struct IoApic {
    id: u8,
    select: u8,
    lines: u32,
    table: [Entry; PINS],
    /// Pins whose level-triggered interrupt has not ended, by bit: the remote IRRs, which entries show where they are read.
    in_service: u32,
    /// By pin: how often it was delivered again since its line went up.
    again: [u16; PINS],
    /// Pins that are held back, by bit.
    held: u32,
}

impl IoApic {
    /// An I/O APIC after reset: all pins masked (3.2.4).
    pub fn new(id: u8) -> Self {
        Self {
            id: id & 0xF,
            select: 0,
            lines: 0,
            table: [Entry(Entry::MASKED); PINS],
            in_service: 0,
            again: [0; PINS],
            held: 0,
        }
    }

    /// A read of any width at `offset` in the register page.
    ///
    /// Registers are accessed by 32-bit loads and stores (82093AA, chapter 3). Of a read that begins elsewhere or is
    /// shorter or longer, each byte is the one that is there, zero where no register is.
    pub fn mmio_load(&self, offset: u32, buffer: &mut [u8]) {
        if let (Ok(word), 0) = (<&mut [u8; 4]>::try_from(&mut *buffer), offset & 3) {
            *word = self.mmio_read(offset).to_le_bytes();
            return;
        }
        for (index, byte) in (0..).zip(buffer) {
            let at = offset.wrapping_add(index);
            let word = self.mmio_read(at & !3).to_le_bytes();
            *byte = word.get((at & 3) as usize).copied().unwrap_or(0);
        }
    }

    /// A write of any width at `offset` in the register page.
    ///
    /// Four bytes are a register. Of more, the lower four count: no register has another beside it. The register select
    /// has eight bits, so that fewer bytes write all of it. Fewer bytes of another register do nothing, since software
    /// has to read it, change it and write it back as a whole (82093AA, chapter 3). QEMU does the same
    /// (`ioapic_mem_write`); Linux KVM fills up with zeros, which can unmask a pin.
    pub fn mmio_store(&mut self, offset: u32, bytes: &[u8]) -> WriteEffect {
        let mut word = [0; 4];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        if bytes.len() >= 4 || (offset == direct::SELECT && !bytes.is_empty()) {
            self.mmio_write(offset, u32::from_le_bytes(word))
        } else {
            WriteEffect::None
        }
    }

    /// A 32-bit read at `offset` in the register page.
    pub fn mmio_read(&self, offset: u32) -> u32 {
        match offset {
            direct::SELECT => self.select.into(),
            direct::WINDOW => self.read(),
            _ => 0,
        }
    }

    /// A 32-bit write at `offset` in the register page.
    pub fn mmio_write(&mut self, offset: u32, value: u32) -> WriteEffect {
        match offset {
            direct::SELECT => {
                self.select = value as u8;
                WriteEffect::None
            }
            direct::WINDOW => self.write(value),
            direct::EOI => WriteEffect::Eoi(value as u8),
            _ => WriteEffect::None,
        }
    }

    /// The line of `pin` is now asserted or not; an interrupt to deliver, if that raises one. An edge on a
    /// masked pin is lost (3.2.4, bit 16).
    pub fn set_line(&mut self, pin: u8, asserted: bool) -> Option<Message> {
        let entry = *self.table.get(usize::from(pin))?;
        let bit = 1 << pin;
        if !asserted && (self.lines | self.held) & bit == 0 {
            return None;
        }
        let rose = asserted && self.lines & bit == 0;
        if asserted {
            self.lines |= bit
        } else {
            self.lines &= !bit;
            self.held &= !bit;
            if let Some(again) = self.again.get_mut(usize::from(pin)) {
                *again = 0;
            }
        }
        if entry.is_level() {
            self.service(pin)
        } else {
            entry.message().filter(|_| rose && !entry.is_masked())
        }
    }

    /// Holds back a level that rises from now on, until [`Self::release`] or until it falls.
    pub fn hold(&mut self, pin: u8) {
        self.held |= 1u32.checked_shl(pin.into()).unwrap_or(0) & !self.lines;
    }

    /// A local APIC ended a level-triggered interrupt of `vector`.
    #[inline]
    pub fn eoi(&mut self, vector: u8) -> Eois {
        // What `Default` makes is copied.
        let mut eois = Eois { pins: 0, redeliver: ArrayVec::new(), held: false };
        for pin in pins(self.serving(vector)) {
            self.in_service &= !(1 << pin);
            eois.pins |= 1 << pin;
            let again = self.again.get_mut(usize::from(pin)).filter(|_| self.lines & 1 << pin != 0);
            if let Some(again) = again {
                *again += 1;
                if *again >= STORM {
                    *again = 0;
                    self.held |= 1 << pin;
                    eois.held = true;
                }
            }
            if let Some(message) = self.service(pin) {
                // One message per pin at most: it cannot be full.
                let _ = eois.redeliver.try_push(message);
            }
        }
        eois
    }

    /// Pins, by bit, whose level-triggered interrupt of `vector` has not ended. There is hardly ever more than one in service.
    pub fn serving(&self, vector: u8) -> u32 {
        let has = |pin: &u8| self.table.get(usize::from(*pin)).is_some_and(|entry| entry.vector() == vector);
        pins(self.in_service).filter(has).fold(0, |serving, pin| serving | 1 << pin)
    }

    /// Delivers what was held back; what is to be delivered now.
    pub fn release(&mut self) -> ArrayVec<Message, PINS> {
        let held = core::mem::take(&mut self.held);
        pins(held).filter_map(|pin| self.service(pin)).collect()
    }

    /// Is `pin` masked? (A pin that does not exist is.)
    pub fn is_masked(&self, pin: u8) -> bool {
        self.table.get(usize::from(pin)).is_none_or(|entry| entry.is_masked())
    }

    /// Is `pin` level-triggered?
    pub fn is_level(&self, pin: u8) -> bool {
        self.table.get(usize::from(pin)).is_some_and(|entry| entry.is_level())
    }

    /// Has `pin` delivered a level-triggered interrupt that has not ended yet?
    pub fn is_in_service(&self, pin: u8) -> bool {
        self.in_service.checked_shr(pin.into()).is_some_and(|pins| pins & 1 != 0)
    }

    /// The lines asserted, by bit.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// Delivers a level-triggered pin that is asserted, unmasked and not waiting for an EOI.
    fn service(&mut self, pin: u8) -> Option<Message> {
        let entry = self.table.get(usize::from(pin))?;
        let ready = self.lines & !self.held & !self.in_service & 1 << pin != 0;
        if !ready || !entry.is_level() || entry.is_masked() {
            return None;
        }
        let message = entry.message()?;
        self.in_service |= 1 << pin;
        Some(message)
    }

    fn read(&self) -> u32 {
        match self.select {
            indirect::ID | indirect::ARBITRATION => u32::from(self.id) << 24,
            indirect::VERSION => VERSION,
            indirect::TABLE..=indirect::TABLE_LAST => {
                let (pin, shift) = Self::slot(self.select);
                let remote_irr = if self.is_in_service(pin as u8) { Entry::REMOTE_IRR } else { 0 };
                self.table.get(pin).map_or(0, |entry| ((entry.0 | remote_irr) >> shift) as u32)
            }
            _ => 0,
        }
    }

    fn write(&mut self, value: u32) -> WriteEffect {
        match self.select {
            indirect::ID => self.id = (value >> 24) as u8 & 0xF,
            indirect::TABLE..=indirect::TABLE_LAST => {
                let (pin, shift) = Self::slot(self.select);
                let Some(entry) = self.table.get_mut(pin) else { return WriteEffect::None };
                let writable = Entry::WRITABLE & 0xFFFF_FFFF << shift;
                entry.0 = entry.0 & !writable | u64::from(value) << shift & writable;
                if !entry.is_level() {
                    // Going through edge mode is how software forgets an interrupt that nobody will end.
                    self.in_service &= !(1 << pin);
                }
                return self.service(pin as u8).map_or(WriteEffect::None, WriteEffect::Deliver);
            }
            _ => {}
        }
        WriteEffect::None
    }

    /// Pin, and shift of the half of its entry, of a register of the table.
    fn slot(select: u8) -> (usize, u32) {
        let index = select.saturating_sub(indirect::TABLE);
        (usize::from(index >> 1), u32::from(index & 1) * 32)
    }
}

/// The pins of a mask, lowest first.
fn pins(mut mask: u32) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || {
        let pin = (mask != 0).then(|| mask.trailing_zeros() as u8)?;
        mask &= mask - 1;
        Some(pin)
    })
}

#[cfg(test)]
mod tests;
