//! The serial console at COM1, polled.

use crate::machine::{inb, outb};
use core::fmt;

const COM1: u16 = 0x3f8;
const LINE_STATUS: u16 = COM1 + 5;
const TRANSMITTER_EMPTY: u8 = 0x20;
const DATA_READY: u8 = 1;

/// Where `print!` writes to.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while inb(LINE_STATUS) & TRANSMITTER_EMPTY == 0 {}
            outb(COM1, byte);
        }
        Ok(())
    }
}

/// A byte that was typed, if one was.
pub fn typed() -> Option<u8> {
    (inb(LINE_STATUS) & DATA_READY != 0).then(|| inb(COM1))
}

/// Puts the port back in order after somebody wrote anything to its registers: 8 bits, no interrupts.
pub fn reset() {
    outb(COM1 + 3, 3);
    outb(COM1 + 1, 0);
    outb(COM1 + 2, 0);
    outb(COM1 + 4, 3);
}

/// Prints to the console.
macro_rules! print {
    ($($arg:tt)*) => {{
        use core::fmt::Write;
        let _ = write!(crate::console::Console, $($arg)*);
    }};
}

/// Prints a line to the console.
macro_rules! println {
    () => { crate::console::print!("\n") };
    ($($arg:tt)*) => {{
        crate::console::print!($($arg)*);
        crate::console::print!("\n");
    }};
}

pub(crate) use {print, println};
