//! `cargo sluice mutate`: takes one named check out of the sources, builds, runs the tests that should notice, and says
//! whether one did. A check whose loss nobody notices is not tested.
//!
//! `tests/mutations.toml` is the list ([`list`]). The sources are changed in a copy below `target/mutate` ([`copy`]), never in
//! the checkout. What was found is kept in `bench/results/mutation.json`.

mod copy;
mod list;

use crate::bench::record::{Aim, Record};
use crate::outcome::Status;
use crate::workspace::{cache, not_found};
use crate::{output, printable};
use anyhow::{Context, Result, bail};
use copy::Copy;
use list::{Mutation, Ring};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Seconds after which a test of the host, or a scenario, that goes round for ever has noticed something. Building takes
/// a part of it.
const PATIENCE: [&str; 2] = ["600", "1200"];

/// Those whose names contain one of `names` (all if none is given).
fn choose<'m>(all: &'m [Mutation], names: &[String]) -> Result<Vec<&'m Mutation>> {
    let wanted = |mutation: &&Mutation| {
        names.is_empty() || names.iter().any(|part| mutation.row().contains(part.as_str()))
    };
    let chosen: Vec<&Mutation> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no mutation is called like that; --list lists them");
    }
    Ok(chosen)
}

/// Lists the mutations whose names contain one of `names`.
pub fn list(names: &[String], as_json: bool) -> Result<()> {
    let all = list::load()?;
    let chosen = choose(&all, names)?;
    if as_json {
        let entry = |mutation: &&Mutation| {
            let Mutation { name, ring, about, file, .. } = mutation;
            json!({ "name": name, "ring": ring.to_string(), "about": about, "file": file })
        };
        return output::print(printable::json(&chosen.iter().map(entry).collect::<Vec<_>>())?);
    }
    for Mutation { name, ring, about, .. } in chosen {
        output::print(format_args!("{name:28} {ring:10} {about}\n"))?;
    }
    Ok(())
}

/// Tries the mutations whose names contain one of `names` (all if none is given).
pub fn run(names: &[String]) -> Result<Status> {
    let all = list::load()?;
    let chosen = choose(&all, names)?;
    let copy = Copy::make()?;
    let mut record = Record::new("mutation");
    record.made_by("cargo sluice mutate");
    record.keep_others();
    record.retain(|id| all.iter().any(|mutation| mutation.row() == id));
    let mut sound = BTreeMap::new();
    let mut status = Status::Ok;
    for mutation in &chosen {
        let started = Instant::now();
        let verdict = attempt(&copy, mutation, &mut sound)?;
        let seconds = started.elapsed().as_secs_f64();
        output::print(format!("{:7} {} ({seconds:.0} s): {verdict}\n", verdict.word(), mutation.name))?;
        match &verdict {
            Verdict::Noticed(_) | Verdict::Unnoticed(_) => {
                let noticed = f64::from(u8::from(matches!(verdict, Verdict::Noticed(_))));
                record.row(mutation.row(), noticed, "noticed", format!("{}: {verdict}", mutation.about));
                record.solved(&mutation.name);
            }
            Verdict::Broken(why) => record.problem(&mutation.name, why),
        }
        if !matches!(verdict, Verdict::Noticed(_)) {
            status = Status::Trouble;
        }
        sum_up(&mut record, &all);
        record.write()?;
    }
    for ring in Ring::ALL {
        let value = |what: &str| record.value(&format!("mutation.{ring}.{what}")).unwrap_or(0.0);
        output::print(format!("{ring}: {} of {} noticed\n", value("noticed"), value("tried")))?;
    }
    Ok(status)
}

/// The sums of each ring, over all mutations that were ever tried and are still in the list.
fn sum_up(record: &mut Record, all: &[Mutation]) {
    for ring in Ring::ALL {
        let results = all.iter().filter(|mutation| mutation.ring == ring);
        let results: Vec<f64> = results.filter_map(|mutation| record.value(&mutation.row())).collect();
        let tried = results.len() as f64;
        record.row(format!("mutation.{ring}.tried"), tried, "checks", "taken out one at a time");
        let noticed = results.iter().sum();
        let aim = Some(Aim::AtLeast(tried));
        record.aimed(
            format!("mutation.{ring}.noticed"),
            noticed,
            "checks",
            aim,
            "by the tests that the list names",
        );
    }
}

/// What became of a mutation.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// This test failed.
    Noticed(String),
    /// These passed.
    Unnoticed(String),
    /// It says nothing about the tests: why.
    Broken(String),
}

impl Verdict {
    const fn word(&self) -> &'static str {
        match self {
            Self::Noticed(_) => "noticed",
            Self::Unnoticed(_) => "MISSED",
            Self::Broken(_) => "BROKEN",
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Noticed(test) => write!(f, "by {test}"),
            Self::Unnoticed(tests) => write!(f, "not by {tests}"),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Something that may notice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Probe {
    /// Arguments of `cargo test`.
    Host(String),
    /// A scenario.
    Scenario(String),
}

impl Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Host(arguments) => write!(f, "cargo test {arguments}"),
            Self::Scenario(name) => write!(f, "the scenario {name}"),
        }
    }
}

impl Probe {
    /// Builds what it runs. Its failure is no answer.
    fn build(&self, tree: &Path) -> Result<()> {
        let built = match self {
            Self::Host(arguments) => cargo(tree, &format!("test --quiet --no-run {arguments}"))?,
            // The command, and with it the hypervisor and the bare guest.
            Self::Scenario(_) => cargo(tree, "run --quiet --package sluice -- build")?,
        };
        match built {
            Ran { passed: true, .. } => Ok(()),
            Ran { said, .. } => bail!("does not build:\n{said}"),
        }
    }

    fn run(&self, tree: &Path) -> Result<Ran> {
        match self {
            Self::Host(arguments) => cargo(tree, &format!("test --quiet {arguments}")),
            Self::Scenario(name) => {
                cargo(tree, &format!("run --quiet --package sluice -- test --jobs 1 {name}"))
            }
        }
    }
}

/// Takes the check out, lets the tests run until one fails, and puts it back.
fn attempt(copy: &Copy, mutation: &Mutation, sound: &mut BTreeMap<Probe, bool>) -> Result<Verdict> {
    let probes = mutation.probes();
    for probe in &probes {
        if !is_sound(copy, probe, sound)? {
            return Ok(Verdict::Broken(format!("{probe} fails with the check in place")));
        }
    }
    let original = copy.read(&mutation.file)?;
    let mutated = match mutation.apply(&original) {
        Ok(mutated) => mutated,
        Err(why) => return Ok(Verdict::Broken(why)),
    };
    copy.write(&mutation.file, &mutated)?;
    let verdict = ask(copy.tree(), &probes);
    copy.write(&mutation.file, &original)?;
    verdict
}

/// The test passes on sources that nothing was taken out of.
fn is_sound(copy: &Copy, probe: &Probe, sound: &mut BTreeMap<Probe, bool>) -> Result<bool> {
    if let Some(known) = sound.get(probe) {
        return Ok(*known);
    }
    probe.build(copy.tree())?;
    let passed = probe.run(copy.tree())?.passed;
    sound.insert(probe.clone(), passed);
    Ok(passed)
}

fn ask(tree: &Path, probes: &[Probe]) -> Result<Verdict> {
    for probe in probes {
        if let Err(why) = probe.build(tree) {
            return Ok(Verdict::Broken(format!("{why:#}")));
        }
        let ran = probe.run(tree)?;
        if !ran.passed {
            return Ok(Verdict::Noticed(format!("{probe}{}", ran.first_failure())));
        }
    }
    let names: Vec<String> = probes.iter().map(Probe::to_string).collect();
    Ok(Verdict::Unnoticed(names.join(", ")))
}

/// What a command did.
struct Ran {
    passed: bool,
    said: String,
}

impl Ran {
    /// The test that failed, or what was wrong, if that can be told.
    fn first_failure(&self) -> String {
        let mut lines = self.said.lines();
        let host =
            |line: &str| line.strip_prefix("---- ")?.split(' ').next().map(|test| format!(" ({test})"));
        lines.find_map(host).unwrap_or_default()
    }
}

/// Runs cargo in the tree; it ends when the calling thread does.
fn cargo(tree: &Path, arguments: &str) -> Result<Ran> {
    let patience = PATIENCE[usize::from(arguments.starts_with("run"))];
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=10", patience, "cargo"])
        .args(arguments.split_whitespace())
        .current_dir(tree)
        .env("SLUICE_CACHE", cache())
        .env_remove("SLUICE_HOME")
        .env_remove("SLUICE_HYPERVISOR")
        .env_remove("CARGO_TARGET_DIR")
        .stdin(Stdio::null())
        .output()
        .with_context(|| not_found("setpriv"))?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said += &String::from_utf8_lossy(&output.stderr);
    Ok(Ran { passed: output.status.success(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failed_test_is_named() {
        let said = "running 2 tests\n---- guest::tests::holes stdout ----\npanicked\n";
        let ran = Ran { passed: false, said: said.to_owned() };
        assert_eq!(ran.first_failure(), " (guest::tests::holes)");
        assert_eq!(Ran { passed: false, said: String::new() }.first_failure(), "");
    }
}
