//! `cargo sluice threshold`: what bounds of the cache of page-table pages (docs/paravirtual.md) cost and save during a trace that a guest recorded. The best of the fixed
//! ones is what a training tool in the guest would find; beside it is the rule that adapts itself.
//!
//! - [`trace`] is what was recorded, [`mod@replay`] what a cache makes of it, [`adapt`] the rule.
//!
//! Source: PiBooster, 6.2. Deviations: thresholds are trained by number and not by share, on the host.

mod adapt;
mod replay;
mod trace;

use crate::table::{Table, grouped};
use anyhow::{Context, Result, ensure};
use replay::{Outcome, Rule, replay};
use std::path::Path;
use trace::Event;

/// Fixed thresholds that are tried: each a quarter more than the one before, until nothing is given back any more.
fn thresholds(most: u32) -> Vec<u32> {
    let next = |at: &u32| (*at < most).then(|| at + (at / 4).max(1));
    std::iter::successors(Some(1), next).collect()
}

/// What the rules make of a trace.
struct Comparison {
    none: Outcome,
    fixed: Vec<(u32, Outcome)>,
    unbounded: Outcome,
    adaptive: Outcome,
}

impl Comparison {
    fn of(events: &[(Event, u32)]) -> Self {
        let unbounded = replay(events, Rule::Unbounded);
        let fixed = thresholds(unbounded.most).into_iter();
        Self {
            none: replay(events, Rule::None),
            fixed: fixed.map(|threshold| (threshold, replay(events, Rule::Fixed(threshold)))).collect(),
            unbounded,
            adaptive: replay(events, Rule::Adaptive),
        }
    }

    /// The smallest threshold of those with the fewest misses.
    fn trained(&self) -> Option<&(u32, Outcome)> {
        self.fixed.iter().min_by_key(|(_, outcome)| outcome.misses)
    }

    /// The first threshold that keeps no fewer pages than the rule that adapts itself.
    fn as_many(&self) -> Option<&(u32, Outcome)> {
        self.fixed.iter().find(|(_, outcome)| outcome.page_seconds >= self.adaptive.page_seconds)
    }

    fn table(&self) -> String {
        let headings = ["spare pages", "misses", "of all", "page-seconds", "mean", "most", "given back"];
        let mut table = Table::new(&headings);
        let mut row = |name: String, outcome: &Outcome| {
            table.row(vec![
                name,
                grouped(outcome.misses),
                format!("{:.1} %", outcome.miss_percent()),
                grouped(outcome.page_seconds),
                format!("{:.1}", outcome.mean()),
                grouped(outcome.most.into()),
                grouped(outcome.given_back),
            ]);
        };
        row("no cache".into(), &self.none);
        let (trained, as_many) = (self.trained().map(|row| row.0), self.as_many().map(|row| row.0));
        for (threshold, outcome) in &self.fixed {
            let mut name = format!("at most {threshold}");
            if trained == Some(*threshold) {
                name += ", trained";
            }
            if as_many == Some(*threshold) {
                name += ", as many as adaptive";
            }
            row(name, outcome);
        }
        row("unbounded".into(), &self.unbounded);
        row("adaptive".into(), &self.adaptive);
        table.render()
    }
}

/// The table for a trace.
pub fn command(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("could not read {}", file.display()))?;
    let events = trace::read(&bytes).with_context(|| format!("{} is no trace", file.display()))?;
    let all = Comparison::of(&events);
    ensure!(all.none.allocated > 0, "{}: no page table was allocated", file.display());
    let (tables, seconds) = (grouped(all.none.allocated), grouped(all.none.seconds));
    Ok(format!("{tables} page tables allocated in {seconds} seconds\n\n{}", all.table()))
}

#[cfg(test)]
mod tests;
