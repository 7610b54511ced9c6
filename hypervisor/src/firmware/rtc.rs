//! The time of day at start-up, from the CMOS clock.
//!
//! Source: Motorola MC146818A datasheet (registers 0-9, A, B); the century is taken to be 20xx.

use crate::sync::Once;
use crate::x86::port::{inb, outb};
use crate::x86::tsc;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
/// So often an update is waited for, which takes 2 ms; a read takes a microsecond.
const PATIENCE: u32 = 100_000;

fn register(index: u8) -> u8 {
    outb(INDEX, index | 0x80);
    inb(DATA)
}

fn read() -> [u8; 6] {
    [0, 2, 4, 7, 8, 9].map(register)
}

/// Nanoseconds from 1970-01-01 UTC to now.
pub fn time_ns() -> u64 {
    boot_time_ns().saturating_add(tsc::uptime_ns())
}

/// Nanoseconds from 1970-01-01 UTC to the moment when [`tsc::uptime_ns`] was zero.
pub fn boot_time_ns() -> u64 {
    static BOOT: Once<u64> = Once::new();
    *BOOT.call_once(|| {
        // Two equal readings outside of an update cannot be torn.
        let mut fields = read();
        for _ in 0..1000 {
            // A machine without this clock reads as one that is always busy.
            if (0..PATIENCE).all(|_| register(0x0a) & 0x80 != 0) {
                log::warn!("the machine has no clock: its date is 2000-01-01");
                return 946_684_800 * 1_000_000_000;
            }
            let again = read();
            if again == fields {
                break;
            }
            fields = again;
        }
        let format = register(0x0b);
        let value = |byte: u8| -> u64 {
            if format & 4 != 0 { u64::from(byte) } else { u64::from(byte >> 4) * 10 + u64::from(byte & 15) }
        };
        let hour = value(fields[2] & 0x7f);
        let hour =
            if format & 2 == 0 { hour % 12 + if fields[2] & 0x80 != 0 { 12 } else { 0 } } else { hour };
        let days = days_from_civil(2000 + value(fields[5]), value(fields[4]), value(fields[3]));
        let seconds = ((days * 24 + hour) * 60 + value(fields[1])) * 60 + value(fields[0]);
        (seconds * 1_000_000_000).saturating_sub(tsc::uptime_ns())
    })
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, 2000-2099.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_days = (year - 1969) / 4;
    let month_days = BEFORE.get((month as usize).wrapping_sub(1)).copied().unwrap_or(0);
    let leap_now = u64::from(year.is_multiple_of(4) && month > 2);
    (year - 1970) * 365 + leap_days + month_days + leap_now + day.saturating_sub(1)
}
