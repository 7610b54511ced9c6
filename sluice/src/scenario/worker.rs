//! A scenario in a process of its own. Its output cannot get between that of others, what it takes of the host's
//! processors can be told apart, and it ends when whoever wants to know of it does.

use super::load::Named;
use super::{execute, load};
use crate::outcome::Status;
use crate::workspace::not_found;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a worker says when it is done, as one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
pub struct Report {
    /// Seconds that it took.
    pub wall: f64,
    /// Seconds of processor time that QEMU took.
    pub cpu: f64,
    /// The scenario itself, then its cases.
    pub tests: Vec<Test>,
    /// The fault of QEMU's that explains the failure: its name and the line that shows it.
    pub excuse: Option<(String, String)>,
}

/// One test.
#[derive(Debug, Deserialize, Serialize)]
pub struct Test {
    /// SCENARIO or SCENARIO::CASE.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// Expectations compared.
    pub checks: usize,
    /// Those not met; it passed if there are none.
    pub problems: Vec<String>,
}

impl Report {
    /// All tests passed.
    pub fn passed(&self) -> bool {
        self.tests.iter().all(|test| test.problems.is_empty())
    }
}

/// What the worker does: runs the scenario and prints the report.
pub fn run_one(name: &str) -> Result<Status> {
    let named = load::one(name)?;
    let started = Instant::now();
    let run = execute::attempt(&named);
    let abouts =
        std::iter::once(&named.scenario.about).chain(named.scenario.case.iter().map(|case| &case.about));
    let tests = named.tests().zip(abouts).zip(&run.verdicts).map(|((name, about), verdict)| Test {
        name,
        about: about.clone(),
        checks: verdict.checks,
        problems: verdict.problems.iter().map(|problem| problem.text.clone()).collect(),
    });
    let report = Report {
        wall: started.elapsed().as_secs_f64(),
        cpu: processor_time_of_children(),
        tests: tests.collect(),
        excuse: run.excuse.map(|found| (found.name.to_owned(), format!("{}: {}", found.domain, found.line))),
    };
    // For the program that started this one, which shows it to people.
    std::io::stdout().write_all((serde_json::to_string(&report)? + "\n").as_bytes())?;
    Ok(if report.passed() { Status::Ok } else { Status::Trouble })
}

/// Starts a worker and waits for its report. `hypervisor` is built with the scenario's features.
pub fn start(named: &Named, hypervisor: &Path) -> Report {
    let started = Instant::now();
    ask(&named.name, hypervisor).unwrap_or_else(|error| Report {
        wall: started.elapsed().as_secs_f64(),
        cpu: 0.0,
        tests: named
            .tests()
            .map(|name| Test {
                name,
                about: named.scenario.about.clone(),
                checks: 0,
                problems: vec![format!("{error:#}")],
            })
            .collect(),
        excuse: None,
    })
}

fn ask(name: &str, hypervisor: &Path) -> Result<Report> {
    // This very program, also when a newer one was built meanwhile in its place.
    let program = format!("/proc/{}/exe", std::process::id());
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", &program])
        .args(["test", "--worker", name])
        .env("SLUICE_HYPERVISOR", hypervisor)
        .stdin(Stdio::null())
        .output()
        .with_context(|| not_found("setpriv"))?;
    let Ok(report) = serde_json::from_slice(&output.stdout) else {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("the scenario's process ended without a report ({}):\n{}", output.status, said.trim_end());
    };
    Ok(report)
}

/// Seconds of processor time, user's and system's, of all processes that this one has waited for.
fn processor_time_of_children() -> f64 {
    /// proc(5): times are in clock ticks, of which Linux shows 100 a second on x86.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; cutime and cstime are the 16th and 17th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_counted() {
        let before = processor_time_of_children();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        let took = processor_time_of_children() - before;
        assert!(took > 0.0 && took < 60.0, "{took}");
    }
}
