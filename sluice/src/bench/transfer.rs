//! What guests report of their transfers, between their marks.

use super::tally::Phase;
use crate::outcome::{Finding, Guest};
use anyhow::{Context, Result};
use std::fmt;
use std::ops::RangeInclusive;

/// The two bulk phases: as rows of the IOMMUs call them, and as guests do.
pub const BULK: [(Phase, &str, &str); 2] = [(Phase::Down, "down", "down"), (Phase::Up, "up", "up")];

/// Frames by the guests' drivers' own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
}

impl Frames {
    /// Both, and at least one, to divide by.
    pub fn all(self) -> f64 {
        (self.sent + self.received).max(1) as f64
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} frames sent and {} received", self.sent, self.received)
    }
}

fn value<'a>(finding: &'a Finding, key: &str) -> Option<&'a str> {
    finding.iter().find(|pair| pair.0 == key).map(|pair| pair.1.raw())
}

/// A guest that is known by what it reported only.
pub fn guest(findings: Vec<Finding>) -> Guest {
    Guest { findings, ..Guest::default() }
}

/// Frames that all guests sent and received in a phase.
pub fn frames(guests: &[Guest], phase: &str) -> Result<Frames> {
    let at = |guest: &Guest, moment: &str| {
        let moment = format!("{phase}-{moment}");
        let finding = guest.findings.iter().find(|finding| value(finding, "at") == Some(&moment))?;
        let count = |key| value(finding, key)?.parse::<u64>().ok();
        Some(Frames { sent: count("tx_packets")?, received: count("rx_packets")? })
    };
    let mut sum = Frames::default();
    for guest in guests {
        let (begin, end) =
            at(guest, "begin").zip(at(guest, "end")).context("a guest did not report its frames")?;
        sum.sent += end.sent.saturating_sub(begin.sent);
        sum.received += end.received.saturating_sub(begin.received);
    }
    Ok(sum)
}

/// Where the card's registers are as the guests see them; the same for all.
pub fn regions(guests: &[Guest]) -> Result<Vec<RangeInclusive<u64>>> {
    let text = guests.iter().flat_map(|guest| &guest.findings).find_map(|finding| value(finding, "regions"));
    let parse = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    text.and_then(|text| {
        let region = |text: &str| {
            let (first, last) = text.split_once('-')?;
            Some(parse(first)?..=parse(last)?)
        };
        text.split(',').map(region).collect()
    })
    .context("a guest did not report where the card's registers are")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn frames_are_those_between_the_marks() {
        let lines = [
            "SLUICE-RESULT regions=0x000000000000c000-0x000000000000c01f,0x00000000c0000000-0x00000000c00000ff",
            "SLUICE-RESULT at=up-begin rx_packets=10 tx_packets=5",
            "SLUICE-RESULT at=up-end rx_packets=30 tx_packets=45",
        ];
        let guests = [guest(lines.iter().filter_map(|line| parse_finding(line)).collect())];
        let found = frames(&guests, "up").unwrap();
        assert_eq!((found, found.all()), (Frames { sent: 40, received: 20 }, 60.0));
        assert!(frames(&guests, "down").is_err());
        assert_eq!(regions(&guests).unwrap(), [0xc000..=0xc01f, 0xc000_0000..=0xc000_00ff]);
    }
}
