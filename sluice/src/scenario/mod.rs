//! Test scenarios as data: `tests/*.toml` name a configuration, steps to take while it runs, and what must
//! come of it.
//!
//! [`format`] is what the files say, [`load`] finds them. [`execute`] runs one: [`steps`] takes the steps, [`judge`]
//! compares with what is expected, [`native`] with the same guest without Sluice, [`kernel`] knows a guest's kernel that went wrong, [`signature`] what is QEMU's fault.
//! [`suite`] runs many, each in a process of its own ([`worker`]), in the order of the [`schedule`] that the recorded
//! [`durations`] give, with an eye on the [`host`]. `tests/README.md` describes the keys.

mod durations;
mod execute;
mod format;
mod host;
mod judge;
mod kernel;
mod load;
mod native;
mod schedule;
mod signature;
mod steps;
mod suite;
mod worker;

use crate::outcome::Outcome;
use anyhow::{Result, bail};

pub use suite::{Options, list, run_all};
pub use worker::run_one;

/// Runs a scenario, for who wants to know more of it than whether it passed; it must.
pub fn outcome(name: &str) -> Result<Outcome> {
    let run = execute::run(&load::one(name)?)?;
    let problems: Vec<String> = run.problems().map(|problem| problem.text.clone()).collect();
    match run.outcome {
        Some(outcome) if problems.is_empty() => Ok(outcome),
        _ => bail!("the scenario {name} failed:\n{}", problems.join("\n")),
    }
}

/// All names, for who names some elsewhere.
#[cfg(test)]
pub fn names() -> Vec<String> {
    load::all().expect("the scenarios are readable").into_iter().map(|named| named.name).collect()
}
