//! A 16550 serial port, polled or with its receive interrupt (TL16C550C data sheet, section "Registers").

use crate::x86::port::{inb, outb};

/// Port of the first PC serial port.
pub const COM1: u16 = 0x3f8;
/// Port of the second PC serial port.
pub const COM2: u16 = 0x2f8;

const DATA: u16 = 0;
const INTERRUPT_ENABLE: u16 = 1;
const FIFO_CONTROL: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
const SCRATCH: u16 = 7;

const DATA_READY: u8 = 1 << 0;
const TRANSMIT_EMPTY: u8 = 1 << 5;
const TRANSMITTER_IDLE: u8 = 1 << 6;
/// Bytes that fit once the transmitter reports empty.
const FIFO_BYTES: u8 = 16;
/// Polls before a transmitter that never empties is given up.
const PATIENCE: u32 = 1 << 20;

/// A serial port. It owns nothing: two values for one port would share it.
#[derive(Debug)]
pub struct Uart {
    base: u16,
    /// Bytes that may still be written without asking.
    room: u8,
    present: bool,
}

impl Uart {
    /// Describes the port at `base` without touching it. Call [`Uart::init`] before anything else.
    pub const fn new(base: u16) -> Self {
        Self { base, room: 0, present: false }
    }

    /// Sets 115200 baud, 8 data bits, no parity, one stop bit, FIFOs on, interrupts off. Returns whether a
    /// port answers; one that does not swallows what is written.
    pub fn init(&mut self) -> bool {
        outb(self.base + SCRATCH, 0x5a);
        self.present = inb(self.base + SCRATCH) == 0x5a;
        if self.present {
            outb(self.base + INTERRUPT_ENABLE, 0);
            outb(self.base + LINE_CONTROL, 0x80);
            outb(self.base + DATA, 1);
            outb(self.base + INTERRUPT_ENABLE, 0);
            outb(self.base + LINE_CONTROL, 0x03);
            outb(self.base + FIFO_CONTROL, 0x07);
            // DTR, RTS, and OUT2, which lets the interrupt line through on a PC.
            outb(self.base + MODEM_CONTROL, 0x0b);
        }
        self.present
    }

    /// Takes a received byte, if there is one.
    pub fn try_read(&mut self) -> Option<u8> {
        (self.present && inb(self.base + LINE_STATUS) & DATA_READY != 0).then(|| inb(self.base + DATA))
    }

    /// Sends a byte if there is room this moment; returns whether it did.
    pub fn try_write(&mut self, byte: u8) -> bool {
        if !self.present {
            return true;
        }
        if self.room == 0 && inb(self.base + LINE_STATUS) & TRANSMIT_EMPTY != 0 {
            self.room = FIFO_BYTES;
        }
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        outb(self.base + DATA, byte);
        true
    }

    /// Sends a byte, waiting for room. A port that never has room loses it.
    pub fn write(&mut self, byte: u8) {
        for _ in 0..PATIENCE {
            if self.try_write(byte) {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Waits until everything that was sent is on the wire. Gives up on a port that never gets there.
    pub fn drain(&mut self) {
        for _ in 0..PATIENCE {
            if !self.present || inb(self.base + LINE_STATUS) & TRANSMITTER_IDLE != 0 {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Raises an interrupt for received bytes, or stops it.
    pub fn enable_receive_interrupt(&mut self, enable: bool) {
        if self.present {
            outb(self.base + INTERRUPT_ENABLE, u8::from(enable));
        }
    }
}

impl core::fmt::Write for Uart {
    /// Sends text with each line feed turned into carriage return and line feed.
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.write(b'\r');
            }
            self.write(byte);
        }
        Ok(())
    }
}
