//! What the guest's module records: when page tables of each level were allocated and freed (guest/linux/sluice-pibooster/trace.c).
//!
//! A byte is a run of equal events: one less than how many in the upper four bits, which events in the lower four.

use anyhow::{Result, bail};

/// Levels of page tables: PGD, that of a program's own addresses, PUD, PMD, PTE.
pub const LEVELS: usize = 5;
/// Events that are a level's: a table of it is allocated, or is freed.
const FREED: u8 = 1;
/// A second has passed.
const SECOND: u8 = 2 * LEVELS as u8;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A table of this level was allocated.
    Allocated(usize),
    /// A table of this level was freed.
    Freed(usize),
    /// A second passed.
    Second,
}

/// Events of a trace, with how often each comes in a row.
pub fn read(bytes: &[u8]) -> Result<Vec<(Event, u32)>> {
    let mut events = Vec::with_capacity(bytes.len());
    for (place, byte) in bytes.iter().enumerate() {
        let (kind, count) = (byte & 0xf, u32::from(byte >> 4) + 1);
        let level = usize::from(kind / 2);
        let event = match kind {
            SECOND => Event::Second,
            _ if kind > SECOND => bail!("byte {place} is {byte:#04x}, which is no event of a trace"),
            _ if kind & FREED != 0 => Event::Freed(level),
            _ => Event::Allocated(level),
        };
        events.push((event, count));
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_a_run_of_events() {
        let events = read(&[0x00, 0xf9, 0x3a, 0x15]).unwrap();
        let expected =
            [(Event::Allocated(0), 1), (Event::Freed(4), 16), (Event::Second, 4), (Event::Freed(2), 2)];
        assert_eq!(events, expected);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        assert!(read(&[0x00, 0x0b]).unwrap_err().to_string().contains("byte 1 is 0x0b"));
    }
}
