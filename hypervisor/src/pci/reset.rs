//! Bringing a function back to a known state between two owners.
//!
//! In order of preference: function-level reset (PCI Express, or advanced features of conventional PCI), the reset
//! that its programming interface has, a power cycle through D3hot where the function says that this resets it. Bus mastering goes off before anything else.
//!
//! Source: PCI Express 4.0, 6.6.2 and 7.5.3 (function-level reset); Advanced Capabilities for Conventional PCI ECN;
//! PCI Power Management 1.2, 3.2.4 and 5.4.1; Intel 8254x manual, 13.4.1; RTL8139D data sheet, 5.7; NVM Express 1.4,
//! 3.1.5; AHCI 1.3.1, 3.1.2; National application note 729 (NE2000).

use super::function::{self as pci, Function, capability};
use crate::mm::{self, Hpa};
use crate::x86::port::{inb, outb};
use crate::x86::tsc;

const MS: u64 = 1_000;

/// How a function is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Function-level reset by the PCI Express capability at this offset.
    Express(u8),
    /// Function-level reset by the advanced features capability at this offset.
    Advanced(u8),
    /// D3hot and back, by the power-management capability at this offset.
    Power(u8),
    /// NE2000: reset port.
    Ne2000,
    /// RTL8139: RST of the command register.
    Rtl8139,
    /// Intel 8254x and 82574: RST of the device control register.
    E1000,
    /// NVM Express: controller enable.
    Nvme,
    /// AHCI: HBA reset.
    Ahci,
}

/// The best way to reset a function, if there is one.
pub fn method(function: &Function) -> Option<Method> {
    const EXPRESS_FLR: u32 = 1 << 28;
    const ADVANCED_FLR: u32 = 0b11 << 24;
    const NO_SOFT_RESET: u32 = 1 << 3;
    let bdf = function.bdf;
    let express = function.capability(capability::EXPRESS);
    if let Some(at) = express.filter(|at| bdf.read(at + 4) & EXPRESS_FLR != 0) {
        return Some(Method::Express(at));
    }
    let advanced = function.capability(capability::ADVANCED);
    if let Some(at) = advanced.filter(|at| bdf.read(*at) & ADVANCED_FLR == ADVANCED_FLR) {
        return Some(Method::Advanced(at));
    }
    // The interface's own reset is preferred to the power cycle, which some functions take for a wish.
    match (function.vendor, function.device, function.class) {
        (0x10ec, 0x8139, _) => return Some(Method::Rtl8139),
        (0x8086, 0x1004 | 0x100e | 0x100f | 0x10d3, _) => return Some(Method::E1000),
        (_, _, 0x01_0802) => return Some(Method::Nvme),
        (_, _, 0x01_0601) => return Some(Method::Ahci),
        _ if !function.masters_bus() => return Some(Method::Ne2000),
        _ => {}
    }
    let power = function.capability(capability::POWER);
    power.filter(|at| bdf.read(at + 4) & NO_SOFT_RESET == 0).map(Method::Power)
}

/// Takes the bus away and waits until nothing is under way.
pub fn quiet(function: &Function) {
    const TRANSACTIONS_PENDING: u32 = 1 << 21;
    function.bdf.set_command(0, pci::COMMAND_MASTER);
    if let Some(at) = function.capability(capability::EXPRESS) {
        wait(100, || function.bdf.read(at + 8) & TRANSACTIONS_PENDING == 0);
    }
}

/// Resets a function; its decoding is on, its bus mastering off. Returns the TSC from which it may be used:
/// it is not configured then.
pub fn start(function: &Function, method: Method) -> u64 {
    let bdf = function.bdf;
    let after = |ms: u64| tsc::now().saturating_add(tsc::ticks_from_ns(ms * 1_000_000));
    match method {
        Method::Express(at) => {
            bdf.change16(at + 8, false, 1 << 15, 0);
            after(100)
        }
        Method::Advanced(at) => {
            bdf.change16(at + 4, false, 1, 0);
            after(100)
        }
        Method::Power(at) => {
            const STATE: u16 = 0b11;
            bdf.change16(at + 4, false, STATE, 0);
            tsc::delay_us(10 * MS);
            bdf.change16(at + 4, false, 0, STATE);
            after(10)
        }
        Method::Ne2000 => {
            if let Some(ports) = function.bars.iter().find(|bar| bar.io) {
                reset_ne2000(ports.address as u16);
            }
            0
        }
        Method::Rtl8139 => {
            if let Some(ports) = function.bars.iter().find(|bar| bar.io) {
                let command = (ports.address as u16).wrapping_add(0x37);
                outb(command, 1 << 4);
                wait(20, || inb(command) & 1 << 4 == 0);
            }
            0
        }
        Method::E1000 => e1000(function),
        Method::Nvme => {
            const ENABLE: u32 = 1;
            const READY: u32 = 1;
            if let Some(registers) = Registers::of(function, 0) {
                registers.write(0x14, registers.read(0x14) & !ENABLE);
                // At most CAP.TO, in units of 500 ms; a controller that does not obey is not waited for that long.
                wait(2_000, || registers.read(0x1c) & READY == 0);
            }
            0
        }
        Method::Ahci => {
            if let Some(registers) = Registers::of(function, 5) {
                registers.write(0x04, 1 << 31);
                registers.write(0x04, 1 << 31 | 1);
                wait(1_000, || registers.read(0x04) & 1 == 0);
            }
            0
        }
    }
}

/// Rings are emptied too: emulations of this card take the reset bit for a formality.
fn e1000(function: &Function) -> u64 {
    const CONTROL: u64 = 0x0000;
    const MASK_CLEAR: u64 = 0x00d8;
    const RECEIVE: u64 = 0x0100;
    const TRANSMIT: u64 = 0x0400;
    let Some(registers) = Registers::of(function, 0) else { return 0 };
    registers.write(MASK_CLEAR, u32::MAX);
    registers.write(RECEIVE, 0);
    registers.write(TRANSMIT, 0);
    registers.write(CONTROL, registers.read(CONTROL) | 1 << 26);
    tsc::delay_us(2 * MS);
    registers.write(MASK_CLEAR, u32::MAX);
    // Of the 82574, both rings of each kind.
    let all =
        if function.device == 0x10d3 { &[0x2800, 0x3800, 0x2900, 0x3900][..] } else { &[0x2800, 0x3800] };
    for ring in all {
        // Base, length, head and tail.
        for register in [0x00, 0x04, 0x08, 0x10, 0x18] {
            registers.write(ring + register, 0);
        }
    }
    0
}

/// Waits until `done`, at most so many milliseconds.
fn wait(ms: u64, done: impl Fn() -> bool) {
    let end = tsc::now().saturating_add(tsc::ticks_from_ns(ms * 1_000_000));
    while !done() && tsc::now() < end {
        core::hint::spin_loop();
    }
}

/// Registers in a memory BAR of a function.
pub struct Registers {
    start: *mut u8,
    bytes: u64,
}

// SAFETY: the pointer is to registers that are mapped for all processors and for good; who owns this value is who uses
// them.
unsafe impl Send for Registers {}

impl Registers {
    /// Those in BAR `index`; the function decodes memory.
    pub fn of(function: &Function, index: u8) -> Option<Self> {
        let bar = function.bar(index).filter(|bar| !bar.io && bar.address != 0)?;
        Some(Self { start: mm::map_mmio(Hpa::new(bar.address), bar.size), bytes: bar.size })
    }

    /// Reads an aligned register; ones outside the BAR.
    pub fn read(&self, offset: u64) -> u32 {
        match self.at::<u32>(offset) {
            // SAFETY: within the BAR, which is mapped uncached, and aligned.
            Some(register) => unsafe { register.read_volatile() },
            None => u32::MAX,
        }
    }

    /// Writes an aligned register; nothing outside the BAR.
    pub fn write(&self, offset: u64, value: u32) {
        if let Some(register) = self.at::<u32>(offset) {
            // SAFETY: as for `read`; the function has no owner but this code.
            unsafe { register.write_volatile(value) };
        }
    }

    /// Reads 1, 2, 4 or 8 aligned bytes for the guest that owns the function.
    pub fn read_wide(&self, offset: u64, width: u8) -> Option<u64> {
        // SAFETY: each pointer is within the BAR, which is mapped uncached, and aligned.
        unsafe {
            Some(match width {
                1 => self.at::<u8>(offset)?.read_volatile().into(),
                2 => self.at::<u16>(offset)?.read_volatile().into(),
                4 => self.at::<u32>(offset)?.read_volatile().into(),
                8 => self.at::<u64>(offset)?.read_volatile(),
                _ => return None,
            })
        }
    }

    /// Writes 1, 2, 4 or 8 aligned bytes for the guest that owns the function.
    pub fn write_wide(&self, offset: u64, width: u8, value: u64) -> Option<()> {
        // SAFETY: as for `read_wide`; the guest may write these registers directly too.
        unsafe {
            match width {
                1 => self.at::<u8>(offset)?.write_volatile(value as u8),
                2 => self.at::<u16>(offset)?.write_volatile(value as u16),
                4 => self.at::<u32>(offset)?.write_volatile(value as u32),
                8 => self.at::<u64>(offset)?.write_volatile(value),
                _ => return None,
            }
        }
        Some(())
    }

    fn at<T>(&self, offset: u64) -> Option<*mut T> {
        let size = size_of::<T>() as u64;
        let fits = offset.is_multiple_of(size) && offset.checked_add(size)? <= self.bytes;
        // SAFETY: the offset is within the mapped BAR.
        fits.then(|| unsafe { self.start.add(offset as usize) }.cast::<T>())
    }
}

/// Resets an NE2000 by its reset port (offset 0x1F: National DP8390 application note 729).
fn reset_ne2000(base: u16) {
    let reset = base.wrapping_add(0x1f);
    outb(reset, inb(reset));
    // Stop, abort remote DMA, page 0.
    outb(base, 0x21);
}
