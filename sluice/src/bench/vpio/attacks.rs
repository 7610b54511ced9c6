//! Hostile drivers: what the attacking guests of some scenarios tried, and what they achieved. The scenarios themselves
//! judge whether a neighbour's transfer stayed whole.

use super::note;
use crate::bench::record::{Aim, Record};
use crate::outcome::Outcome;
use crate::workspace::root;
use anyhow::{Result, bail};

/// Cards, the scenarios in which they are attacked with, and how the attackers' counts begin.
const SUITES: [(&str, &str, &str); 5] = [
    ("ne2000", "hostile-card", "card."),
    ("rtl8139", "dma-amd", "dma.rtl8139."),
    ("e1000", "dma-amd", "dma.e1000."),
    ("rtl8139", "vpio-attacks", "dma.rtl8139."),
    ("e1000", "vpio-attacks", "dma.e1000."),
];

/// Runs them.
pub fn measure(record: &mut Record) {
    let mut sums: Vec<(&str, u64, u64, Vec<&str>)> = Vec::new();
    let mut ran: Vec<(&str, Outcome)> = Vec::new();
    for (card, scenario, prefix) in SUITES {
        let path = root().join("tests").join(format!("{scenario}.toml"));
        if !path.exists() {
            continue;
        }
        if !ran.iter().any(|(name, _)| *name == scenario) {
            eprintln!("  running the scenario {scenario}");
            match crate::scenario::outcome(&path) {
                Ok(outcome) => ran.push((scenario, outcome)),
                Err(error) => {
                    note(record, scenario, Err(error));
                    continue;
                }
            }
        }
        let Some((_, outcome)) = ran.iter().find(|(name, _)| *name == scenario) else { continue };
        match count(outcome, prefix) {
            Err(error) => note(record, &format!("{scenario}, {card}"), Err(error)),
            Ok((tried, succeeded)) => match sums.iter_mut().find(|sum| sum.0 == card) {
                Some(sum) => {
                    sum.1 += tried;
                    sum.2 += succeeded;
                    sum.3.push(scenario);
                }
                None => sums.push((card, tried, succeeded, vec![scenario])),
            },
        }
    }
    for (card, tried, succeeded, scenarios) in sums {
        let about = format!("by hostile drivers in the scenario {}", scenarios.join(", "));
        record.row(format!("attacks.{card}.tried"), tried as f64, "attempts", about.clone());
        let id = format!("attacks.{card}.succeeded");
        record.aimed(
            id,
            succeeded as f64,
            "attempts",
            Some(Aim::AtMost(0.0)),
            format!("of those made {about}"),
        );
    }
}

/// How many attempts of a kind all guests together made, and how many succeeded. Where guests cannot tell, the scenario
/// did, which passed.
fn count(outcome: &Outcome, prefix: &str) -> Result<(u64, u64)> {
    let sum = |what: &str| {
        let key = format!("{prefix}{what}");
        outcome.guests.iter().filter_map(|guest| guest.sum(&key)).sum::<u64>()
    };
    let tried = sum("tried");
    if tried == 0 {
        bail!("nobody attacked");
    }
    Ok((tried, sum("succeeded")))
}
