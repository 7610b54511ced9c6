//! The real-time clock: a guest's date before it has asked anybody for it.
//!
//! It is that of the hypervisor plus what the guest has set its own ahead, so that a guest whose clock is wrong puts it right for
//! itself, and for its next lives ([`Rtc`] outlives a domain). The caller says what time it is, in nanoseconds since 1970.
//!
//! Source: Motorola MC146818A datasheet; register 0x32, where the FADT says that the century is, is a PC's.
//!
//! Deviations: it has no interrupt (the DSDT names none: Linux then reads it, and wakes by other timers), so alarms are kept and never ring.
//! A date that there is not (the 31st of April) is the one that comes as many days after the month began. The divider does not stop.

/// The index port (8 bits).
pub const INDEX_PORT: u16 = 0x70;
/// The data port (8 bits).
pub const DATA_PORT: u16 = 0x71;
/// Register with the century, for the FADT.
pub const CENTURY: u8 = 0x32;

const SECONDS: u8 = 0;
const MINUTES: u8 = 2;
const HOURS: u8 = 4;
const WEEKDAY: u8 = 6;
const DAY: u8 = 7;
const MONTH: u8 = 8;
const YEAR: u8 = 9;
const A: u8 = 0x0a;
const B: u8 = 0x0b;
const C: u8 = 0x0c;
const D: u8 = 0x0d;

const A_UPDATE: u8 = 1 << 7;
/// 32,768 Hz, and 1,024 Hz that nobody hears.
const A_INITIAL: u8 = 0x26;
const B_SET: u8 = 1 << 7;
const B_BINARY: u8 = 1 << 2;
const B_24_HOURS: u8 = 1 << 1;
const D_VALID: u8 = 1 << 7;
const PM: u8 = 1 << 7;

const NS: u64 = 1_000_000_000;
/// An update is announced so long before the second ends (t_BUC of the data sheet).
const ANNOUNCED_NS: u64 = 244_000;
const DAY_SECONDS: i64 = 86_400;
const REGISTERS: usize = 128;

/// A point in time by its parts, as they are in the registers when these are binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    second: u8,
    minute: u8,
    hour: u8,
    /// 1 is Sunday. It follows from the others, but is kept while the guest sets the clock.
    weekday: u8,
    day: u8,
    month: u8,
    year: u8,
    century: u8,
}

impl Parts {
    /// Of seconds since 1970 (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    fn of(seconds: i64) -> Self {
        let (days, rest) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Self {
            second: (rest % 60) as u8,
            minute: (rest / 60 % 60) as u8,
            hour: (rest / 3600) as u8,
            weekday: ((days + 4).rem_euclid(7) + 1) as u8,
            day: (of_year - (153 * from_march + 2) / 5 + 1) as u8,
            month: month as u8,
            year: year.rem_euclid(100) as u8,
            century: year.div_euclid(100).rem_euclid(100) as u8,
        }
    }

    /// Seconds since 1970, whatever the parts are.
    fn seconds(&self) -> i64 {
        let month = i64::from(self.month.clamp(1, 12));
        let year = i64::from(self.century) * 100 + i64::from(self.year) - i64::from(month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(self.day) - 1;
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        let days = era * 146_097 + of_era - 719_468;
        days * DAY_SECONDS
            + i64::from(self.hour) * 3600
            + i64::from(self.minute) * 60
            + i64::from(self.second)
    }

    fn part(&mut self, register: u8) -> Option<&mut u8> {
        Some(match register {
            SECONDS => &mut self.second,
            MINUTES => &mut self.minute,
            HOURS => &mut self.hour,
            WEEKDAY => &mut self.weekday,
            DAY => &mut self.day,
            MONTH => &mut self.month,
            YEAR => &mut self.year,
            CENTURY => &mut self.century,
            _ => return None,
        })
    }
}

/// The clock and its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtc {
    index: u8,
    /// Seconds that the guest's clock is ahead of the caller's.
    ahead: i64,
    /// What the guest sets it to, while it does.
    setting: Option<Parts>,
    /// Alarms, A, B and memory; what is not here is computed.
    registers: [u8; REGISTERS],
}

impl Default for Rtc {
    fn default() -> Self {
        let mut registers = [0; REGISTERS];
        registers[usize::from(A)] = A_INITIAL;
        registers[usize::from(B)] = B_24_HOURS;
        Self { index: 0, ahead: 0, setting: None, registers }
    }
}

impl Rtc {
    /// A read of a port at `now`.
    pub fn read(&mut self, port: u16, now: u64) -> u8 {
        if port != DATA_PORT {
            return 0xff;
        }
        let kept = self.registers.get(usize::from(self.index)).copied().unwrap_or_default();
        match self.index {
            A if self.is_updating(now) => kept & !A_UPDATE | A_UPDATE,
            A => kept & !A_UPDATE,
            B => kept,
            C => 0,
            D => D_VALID,
            register => match self.parts(now).part(register) {
                Some(part) => self.encode(register, *part),
                None => kept,
            },
        }
    }

    /// A write to a port at `now`.
    pub fn write(&mut self, port: u16, value: u8, now: u64) {
        if port != DATA_PORT {
            // The top bit of a PC's index port masks NMIs, of which there are none.
            self.index = value & 0x7f;
            return;
        }
        let register = self.index;
        let mut parts = self.parts(now);
        match register {
            C | D => {}
            B => {
                let before = self.registers[usize::from(B)];
                self.registers[usize::from(B)] = value;
                if value & B_SET != 0 {
                    self.setting = Some(parts);
                } else if before & B_SET != 0 {
                    self.set(parts, now);
                }
            }
            _ => match parts.part(register) {
                Some(part) => {
                    *part = self.decode(register, value);
                    if self.setting.is_some() { self.setting = Some(parts) } else { self.set(parts, now) }
                }
                None => {
                    if let Some(kept) = self.registers.get_mut(usize::from(register)) {
                        *kept = value;
                    }
                }
            },
        }
    }

    /// Seconds that the guest has set it ahead.
    pub fn ahead(&self) -> i64 {
        self.ahead
    }

    fn is_updating(&self, now: u64) -> bool {
        self.setting.is_none() && now % NS >= NS - ANNOUNCED_NS
    }

    fn parts(&self, now: u64) -> Parts {
        self.setting.unwrap_or_else(|| Parts::of((now / NS) as i64 + self.ahead))
    }

    fn set(&mut self, parts: Parts, now: u64) {
        self.ahead = parts.seconds() - (now / NS) as i64;
        self.setting = None;
    }

    fn has(&self, bit: u8) -> bool {
        self.registers[usize::from(B)] & bit != 0
    }

    /// A part as its register has it.
    fn encode(&self, register: u8, part: u8) -> u8 {
        let number = |part: u8| if self.has(B_BINARY) { part } else { part / 10 % 10 * 16 + part % 10 };
        if register != HOURS || self.has(B_24_HOURS) {
            return number(part);
        }
        let pm = if part >= 12 { PM } else { 0 };
        number((part % 12 + 11) % 12 + 1) | pm
    }

    /// The part that a register's value is.
    fn decode(&self, register: u8, value: u8) -> u8 {
        let number = |value: u8| if self.has(B_BINARY) { value } else { (value >> 4) * 10 + (value & 15) };
        if register != HOURS || self.has(B_24_HOURS) {
            return number(value);
        }
        number(value & !PM) % 12 + if value & PM != 0 { 12 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-11-22 14:06:55 UTC, a Sunday.
    const NOW: u64 = 1_795_356_415 * NS;

    fn get(rtc: &mut Rtc, register: u8, now: u64) -> u8 {
        rtc.write(INDEX_PORT, register, now);
        rtc.read(DATA_PORT, now)
    }

    fn put(rtc: &mut Rtc, register: u8, value: u8, now: u64) {
        rtc.write(INDEX_PORT, register | 0x80, now);
        rtc.write(DATA_PORT, value, now);
    }

    fn date(rtc: &mut Rtc, now: u64) -> [u8; 8] {
        [CENTURY, YEAR, MONTH, DAY, HOURS, MINUTES, SECONDS, WEEKDAY].map(|register| get(rtc, register, now))
    }

    #[test]
    fn the_date_is_the_callers() {
        let mut rtc = Rtc::default();
        assert_eq!(date(&mut rtc, NOW), [0x20, 0x26, 0x11, 0x22, 0x14, 0x06, 0x55, 1]);
        put(&mut rtc, B, B_BINARY | B_24_HOURS, NOW);
        assert_eq!(date(&mut rtc, NOW + 5 * NS), [20, 26, 11, 22, 14, 7, 0, 1]);
        put(&mut rtc, B, B_BINARY, NOW);
        assert_eq!(get(&mut rtc, HOURS, NOW), 2 | PM);
        assert_eq!(get(&mut rtc, D, NOW), D_VALID);
    }

    #[test]
    fn a_guest_sets_it_as_linux_does() {
        let mut rtc = Rtc::default();
        put(&mut rtc, B, B_SET | B_24_HOURS, NOW);
        let a = get(&mut rtc, A, NOW);
        put(&mut rtc, A, a | 0x70, NOW);
        let wanted = [
            (CENTURY, 0x20),
            (YEAR, 0x24),
            (MONTH, 2),
            (DAY, 0x29),
            (HOURS, 0x23),
            (MINUTES, 0x59),
            (SECONDS, 0x58),
        ];
        for (register, value) in wanted {
            put(&mut rtc, register, value, NOW);
        }
        // It stands while it is set.
        assert_eq!(get(&mut rtc, SECONDS, NOW + 9 * NS), 0x58);
        put(&mut rtc, B, B_24_HOURS, NOW);
        put(&mut rtc, A, a, NOW);
        assert_eq!(date(&mut rtc, NOW + 2 * NS), [0x20, 0x24, 3, 1, 0, 0, 0, 6]);
        // Its next life sees the same clock.
        assert_eq!(date(&mut rtc.clone(), NOW + 3 * NS)[6], 1);
        assert_eq!(rtc.ahead(), 1_709_251_198 - 1_795_356_415);
    }

    #[test]
    fn an_update_is_announced() {
        let mut rtc = Rtc::default();
        assert_eq!(get(&mut rtc, A, NOW), A_INITIAL);
        assert_eq!(get(&mut rtc, A, NOW + NS - 1), A_INITIAL | A_UPDATE);
        put(&mut rtc, A, A_UPDATE | 0x20, NOW);
        assert_eq!(get(&mut rtc, A, NOW), 0x20, "it cannot be written");
    }

    #[test]
    fn memory_keeps_what_is_written() {
        let mut rtc = Rtc::default();
        put(&mut rtc, 0x0e, 0x5a, NOW);
        put(&mut rtc, 0x7f, 0xa5, NOW);
        assert_eq!((get(&mut rtc, 0x0e, NOW), get(&mut rtc, 0x7f, NOW)), (0x5a, 0xa5));
        assert_eq!(rtc.read(INDEX_PORT, NOW), 0xff);
    }

    proptest! {
        #[test]
        fn parts_and_seconds_are_the_same(seconds in 0i64..250_000_000_000) {
            let parts = Parts::of(seconds);
            prop_assert_eq!(parts.seconds(), seconds);
            prop_assert!((1..=12).contains(&parts.month) && (1..=31).contains(&parts.day) && parts.hour < 24);
        }

        #[test]
        fn any_access_is_answered(accesses: Vec<(bool, bool, u8)>, mut now: u64) {
            let mut rtc = Rtc::default();
            for (is_write, data, value) in accesses {
                let port = if data { DATA_PORT } else { INDEX_PORT };
                if is_write { rtc.write(port, value, now) } else { rtc.read(port, now); }
                now = now.wrapping_add(u64::from(value) << 24);
            }
        }
    }
}
