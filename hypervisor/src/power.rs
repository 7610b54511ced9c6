//! Ending the run: switching the machine off, or reporting failure to whoever started it.

use crate::cpu;
use crate::firmware::acpi;
use crate::screen;
use crate::x86::port;
use sluice_screen::Style;

/// Port of QEMU's `isa-debug-exit` device; QEMU ends with status `value << 1 | 1`. Nothing listens there
/// on other machines.
const DEBUG_EXIT: u16 = 0xf4;

/// Codes for [`fail`].
pub mod code {
    /// A panic or an exception in the hypervisor: QEMU ends with status 85.
    pub const PANIC: u8 = 0x2a;
    /// The bundle or its configuration could not be used: status 87.
    pub const CONFIGURATION: u8 = 0x2b;
    /// This machine cannot run guests: status 89.
    pub const MACHINE: u8 = 0x2c;
}

/// Switches the machine off: ACPI state S5.
pub fn off() -> ! {
    cpu::halt_others();
    acpi::enter_s5();
    log::error!("the machine does not switch off: halting");
    cpu::halt()
}

/// Ends the run with a status that is not zero, where that is possible (QEMU); halts otherwise, with the reason on the screen.
pub fn fail(code: u8) -> ! {
    cpu::halt_others();
    let title = match code {
        code::CONFIGURATION => " Sluice cannot run this: the last lines of its log say why",
        code::MACHINE => " Sluice cannot run guests here: the last lines of its log say why",
        _ => " Sluice has failed: the last lines of its log say where",
    };
    screen::show_log(title, Style::FAILURE);
    port::outl(DEBUG_EXIT, code.into());
    cpu::halt()
}
