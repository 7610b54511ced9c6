//! Functions on the guest's own PCI bus, by configuration mechanism 1.
//!
//! Source: PCI Local Bus 3.0, 3.2.2.3.2 (mechanism 1) and 6.2.5 (base addresses).

use crate::machine::{inl, outl};

/// Register with the command in its lower half.
pub const COMMAND: u32 = 4;
/// Answer at ports.
pub const COMMAND_IO: u32 = 1;
/// Answer at memory addresses.
pub const COMMAND_MEMORY: u32 = 2;
/// Master the bus.
pub const COMMAND_MASTER: u32 = 4;
/// Do not raise the interrupt line.
pub const COMMAND_SILENT: u32 = 1 << 10;

/// A function of bus 0.
#[derive(Clone, Copy)]
pub struct Function {
    slot: u32,
    number: u32,
}

impl Function {
    /// Its slot on the bus.
    pub fn slot(self) -> u32 {
        self.slot
    }

    fn select(self, register: u32) {
        outl(0xcf8, 1 << 31 | self.slot << 11 | self.number << 8 | register & 0xfc);
    }

    /// Reads a register of its configuration.
    pub fn read(self, register: u32) -> u32 {
        self.select(register);
        inl(0xcfc)
    }

    /// Writes a register of its configuration.
    pub fn write(self, register: u32, value: u32) {
        self.select(register);
        outl(0xcfc, value);
    }

    /// Class, subclass and programming interface.
    pub fn class(self) -> u32 {
        self.read(8) >> 8
    }

    /// First port of a base address.
    pub fn ports(self, bar: u32) -> u16 {
        (self.read(0x10 + 4 * bar) & 0xfffc) as u16
    }

    /// Start of a base address in memory.
    pub fn memory(self, bar: u32) -> u64 {
        let low = self.read(0x10 + 4 * bar);
        let high = if low & 6 == 4 { self.read(0x14 + 4 * bar) } else { 0 };
        u64::from(high) << 32 | u64::from(low & !0xf)
    }

    /// Offset of the capability with that identifier.
    pub fn capability(self, wanted: u32) -> Option<u32> {
        let mut at = self.read(0x34) & 0xfc;
        while at != 0 {
            let header = self.read(at);
            if header & 0xff == wanted {
                return Some(at);
            }
            at = header >> 8 & 0xfc;
        }
        None
    }

    /// Answers everywhere, masters the bus, raises no interrupts.
    pub fn enable(self) {
        self.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER | COMMAND_SILENT);
    }

    /// Lets it raise interrupts.
    pub fn unmute(self) {
        self.write(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER);
    }
}

/// The function after this one in its slot, behind one that says who the device is.
pub fn next(function: Function) -> Function {
    Function { number: function.number + 1, ..function }
}

/// The first function 0 that fits.
pub fn find(fits: impl Fn(Function) -> bool) -> Option<Function> {
    (0..32)
        .map(|slot| Function { slot, number: 0 })
        .find(|function| function.read(0) != u32::MAX && fits(*function))
}
