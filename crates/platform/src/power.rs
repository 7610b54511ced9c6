//! Power-off and reset: the two ports that the hardware-reduced FADT names.
//!
//! Source: ACPI 6.4, 4.8.3.7 (sleep control and status registers), 4.8.3.6 (reset register).

/// Sleep control register (8 bits).
pub const SLEEP_CONTROL_PORT: u16 = 0x600;
/// Sleep status register (8 bits). It reads zero: the platform never wakes from anything.
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// Reset register (8 bits).
pub const RESET_PORT: u16 = 0x602;
/// What to write to the reset register.
pub const RESET_VALUE: u8 = 0x01;
/// The sleep type of S5 (soft off), the only one that \_S5 announces.
pub const SLEEP_TYPE_OFF: u8 = 5;

const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 7;
const SLEEP_ENABLE: u8 = 1 << 5;

/// How a guest ended its own run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// It powered itself off.
    PowerOff,
    /// It asked for a restart.
    Reset,
}

/// Does this file answer for `port`?
pub fn claims(port: u16) -> bool {
    (SLEEP_CONTROL_PORT..=RESET_PORT).contains(&port)
}

/// A write of the low byte `value` to `port`.
pub fn write(port: u16, value: u8) -> Option<PowerEvent> {
    let sleep_type = value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK;
    match port {
        SLEEP_CONTROL_PORT if value & SLEEP_ENABLE != 0 && sleep_type == SLEEP_TYPE_OFF => {
            Some(PowerEvent::PowerOff)
        }
        RESET_PORT if value == RESET_VALUE => Some(PowerEvent::Reset),
        _ => None,
    }
}

/// A read of `port`: nothing is ever pending.
pub fn read(_port: u16) -> u8 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acpi_4_8_3_7_sleep_control() {
        assert_eq!(write(SLEEP_CONTROL_PORT, 0x34), Some(PowerEvent::PowerOff));
        assert_eq!(write(SLEEP_CONTROL_PORT, 0x14), None, "no SLP_EN");
        assert_eq!(write(SLEEP_CONTROL_PORT, 0x2C), None, "S3 is not offered");
        assert_eq!(write(SLEEP_STATUS_PORT, 0x80), None, "clearing WAK_STS does nothing");
    }

    #[test]
    fn acpi_4_8_3_6_reset() {
        assert_eq!(write(RESET_PORT, RESET_VALUE), Some(PowerEvent::Reset));
        assert_eq!(write(RESET_PORT, 0), None);
    }
}
