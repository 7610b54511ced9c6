//! Hostile drivers: what the attacking guests of some scenarios tried, and what they achieved. The scenarios themselves
//! judge whether a neighbour's transfer stayed whole.

use super::note;
use crate::bench::record::{Aim, Record};
use crate::outcome::Outcome;
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// Cards, the scenarios in which they are attacked with, and how the attackers' counts begin.
const SUITES: [(&str, &str, &str); 5] = [
    ("ne2000", "hostile-card", "card."),
    ("rtl8139", "vpio-hostile-all-rtl8139", "dma.rtl8139."),
    ("e1000", "vpio-hostile-all-e1000", "dma.e1000."),
    ("e1000", "vpio-hostile-all-amd", "dma.e1000."),
    ("e1000", "vpio-hostile-symbiotic", "dma.symbiotic."),
];

/// Runs them: a card's rows are the sums of its scenarios.
pub fn measure(record: &mut Record) {
    let mut sums: BTreeMap<&str, (u64, u64, Vec<&str>)> = BTreeMap::new();
    for (card, scenario, prefix) in SUITES {
        crate::output::note(format_args!("  running the scenario {scenario}"));
        let result = crate::scenario::outcome(scenario).and_then(|outcome| count(&outcome, prefix)).map(
            |(tried, succeeded)| {
                let sum = sums.entry(card).or_default();
                sum.0 += tried;
                sum.1 += succeeded;
                sum.2.push(scenario);
            },
        );
        note(record, scenario, result);
    }
    for (card, (tried, succeeded, scenarios)) in sums {
        let about = format!("by hostile drivers in the scenarios {}", scenarios.join(", "));
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
