//! What the attackers of a scenario tried, and what they achieved. The scenario judges whether others were left alone.

use super::record::{Aim, Record};
use crate::outcome::Guest;
use anyhow::{Result, ensure};

/// An attack, and how the attackers' counts are called.
pub struct Attack {
    /// Its rows, after `attacks.`.
    pub id: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// Counts of what was tried.
    pub tried: &'static [&'static str],
    /// Counts of what succeeded.
    pub succeeded: &'static [&'static str],
}

impl Attack {
    /// Runs the scenario.
    pub fn measure(&self, record: &mut Record) -> Result<()> {
        self.guests(record).map(drop)
    }

    /// Runs the scenario, and returns what its guests reported.
    pub fn guests(&self, record: &mut Record) -> Result<Vec<Guest>> {
        let outcome = crate::scenario::outcome(self.scenario)?;
        let sum = |keys: &[&str]| {
            let of = |guest: &Guest| keys.iter().filter_map(|key| guest.sum(key)).sum::<u64>();
            outcome.guests.iter().map(of).sum::<u64>() as f64
        };
        let tried = sum(self.tried);
        ensure!(tried > 0.0, "nobody attacked in {}", self.scenario);
        let note = format!("by the scenario {}, in which others are left alone", self.scenario);
        record.row(format!("attacks.{}.tried", self.id), tried, "attempts", note);
        let (id, aim) = (format!("attacks.{}.succeeded", self.id), Some(Aim::AtMost(0.0)));
        record.aimed(id, sum(self.succeeded), "attempts", aim, format!("of those of {}", self.scenario));
        Ok(outcome.guests)
    }
}
