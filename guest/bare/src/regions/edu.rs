//! QEMU's `edu`: a device that copies between memory and a buffer of its own, and translates each time.
//!
//! Source: QEMU, docs/specs/edu.rst.

use super::LEN;
use crate::machine::{pause, wait_for};
use crate::pci;

/// Vendor and device.
const IDENTIFIERS: u32 = 0x11e8_1234;
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
/// Its buffer, by the addresses that it knows.
const BUFFER: u64 = 0x4_0000;
const START: u32 = 1;
/// Out of the buffer, not into it.
const OUT: u32 = 2;
/// It takes a tenth of a second for everything.
const PATIENCE: u64 = 20_000_000_000;

pub struct Edu {
    registers: u64,
    pub slot: u64,
}

impl Edu {
    pub fn find() -> Option<Self> {
        let function = pci::find(|function| function.read(0) == IDENTIFIERS)?;
        function.enable();
        Some(Self { registers: function.memory(0), slot: function.slot().into() })
    }

    fn write(&self, register: u64, value: u64) {
        unsafe { ((self.registers + register) as *mut u64).write_volatile(value) };
    }

    fn go(&self, from: u64, to: u64, command: u32) {
        self.write(SOURCE, from);
        self.write(DESTINATION, to);
        self.write(COUNT, LEN);
        let register = (self.registers + COMMAND) as *mut u32;
        unsafe { register.write_volatile(START | command) };
        wait_for(PATIENCE, || {
            pause(1_000_000);
            unsafe { register.read_volatile() & START == 0 }
        });
    }

    /// Copies [`LEN`] bytes from an address that it is to find into its buffer.
    pub fn load(&self, from: u64) {
        self.go(from, BUFFER, 0);
    }

    /// Copies what is in its buffer.
    pub fn store(&self, to: u64) {
        self.go(BUFFER, to, OUT);
    }

    /// Copies by way of its buffer.
    pub fn copy(&self, from: u64, to: u64) {
        self.load(from);
        self.store(to);
    }
}
