//! MSI and MSI-X registers of a physical function.
//!
//! Source: PCI Local Bus 3.0, 6.8.1 (MSI), 6.8.2 (MSI-X).

use super::function::{self, Function};
use super::reset::Registers;

/// Bytes of an entry of the MSI-X table.
const ENTRY_BYTES: u64 = 16;

/// Message control of MSI: on.
pub const MSI_ENABLE: u16 = 1;
/// Message control of MSI: several vectors, which are not offered to guests.
pub const MSI_MULTIPLE: u16 = 7 << 4;
/// Message control of MSI-X: on.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Message control of MSI-X: all vectors are masked.
pub const MSIX_MASK_ALL: u16 = 1 << 14;

/// How many messages of MSI-X can be used.
pub fn usable(function: &Function) -> usize {
    let table = |bar: u8| function.bar(bar).is_some_and(|bar| !bar.io && bar.address != 0);
    function.msix.filter(|msix| table(msix.table.0)).map_or(0, |msix| msix.vectors.into())
}

/// Turns MSI-X on, each message masked, and the line off.
pub fn enable(function: &Function) {
    if let Some(msix) = function.msix {
        function.bdf.change16(msix.offset, true, MSIX_ENABLE | MSIX_MASK_ALL, 0);
        (0..msix.vectors).for_each(|message| write_entry(function, message, None));
        function.bdf.change16(msix.offset, true, 0, MSIX_MASK_ALL);
    }
    function.bdf.set_command(function::COMMAND_NO_INTX, 0);
}

/// Turns MSI and MSI-X off.
pub fn disable(function: &Function) {
    if let Some(msi) = function.msi {
        function.bdf.change16(msi.offset, true, 0, MSI_ENABLE);
    }
    if let Some(msix) = function.msix {
        function.bdf.change16(msix.offset, true, 0, MSIX_ENABLE | MSIX_MASK_ALL);
    }
}

/// Writes an entry of the MSI-X table: address (below 4 GiB) and data; `None` masks it.
pub fn write_entry(function: &Function, message: u16, content: Option<(u32, u32)>) {
    const CONTROL: u64 = 12;
    let Some(msix) = function.msix else { return };
    let Some(registers) = Registers::of(function, msix.table.0) else { return };
    let at = u64::from(msix.table.1) + u64::from(message) * ENTRY_BYTES;
    registers.write(at + CONTROL, 1);
    if let Some((address, data)) = content {
        registers.write(at, address);
        registers.write(at + 4, 0);
        registers.write(at + 8, data);
        registers.write(at + CONTROL, 0);
    }
}
