//! Test scenarios as data: `tests/*.toml` name a configuration, steps to take while it runs, and what must
//! come of it. One judge for all: the exit status, the consoles, the hypervisor's log and the JSON document.
//!
//! `tests/README.md` describes the keys.

use crate::config::{self, Setup};
use crate::outcome::{Outcome, Status, state_word};
use crate::qemu::{Accel, Boot};
use crate::session::{self, Observer, Options, Steer};
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use regex_lite::Regex;
use serde::Deserialize;
use serde_json::Value;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Scenario {
    /// What it shows, in a sentence.
    about: String,
    /// Configuration file, relative to the scenario; or the configuration itself in `setup`.
    config: Option<PathBuf>,
    /// Configuration, inline.
    setup: Option<toml::Table>,
    /// Changes to the configuration: dotted key to new value.
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
    #[serde(default = "default_timeout")]
    timeout: f64,
    #[serde(default)]
    icount: bool,
    #[serde(default)]
    boot: Boot,
    #[serde(default)]
    features: Vec<String>,
    #[serde(default)]
    qemu_args: Vec<String>,
    /// Not run unless named: why.
    skip: Option<String>,
    #[serde(default)]
    step: Vec<Step>,
    expect: Expect,
}

fn default_timeout() -> f64 {
    180.0
}

/// Something to do when something has happened. Steps are taken in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// A line of this domain's console...
    domain: Option<String>,
    /// ...that matches this.
    console: Option<String>,
    /// Or: the domain is in this state.
    state: Option<String>,
    /// And then this many seconds.
    #[serde(default)]
    after: f64,
    /// "destroy alice", "type alice TEXT", "shutdown"; several are sent at once.
    #[serde(rename = "do")]
    actions: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    /// Exit status.
    #[serde(default)]
    status: i32,
    /// The configuration is refused with a message that matches.
    refused: Option<String>,
    /// Lines of sluice.log.
    #[serde(default)]
    log: Vec<String>,
    /// Lines that sluice.log must not have.
    #[serde(default)]
    not_log: Vec<String>,
    #[serde(default)]
    domain: BTreeMap<String, ExpectDomain>,
    #[serde(default)]
    counter: Vec<ExpectCounter>,
    /// Domains whose devices may make requests that an IOMMU refuses.
    #[serde(default)]
    faults: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDomain {
    state: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    console: Vec<String>,
    #[serde(default)]
    not_console: Vec<String>,
    /// Values of SLUICE-RESULT keys (the last of each), as patterns.
    #[serde(default)]
    results: BTreeMap<String, String>,
}

/// A number in the JSON document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectCounter {
    /// `/`-separated, as in docs/json.md: "devices/nic0/handoffs". Absent counts as 0.
    path: String,
    min: Option<f64>,
    max: Option<f64>,
    /// Or: compared with another number...
    at_most: Option<String>,
    /// ...times this.
    #[serde(default = "one")]
    times: f64,
}

fn one() -> f64 {
    1.0
}

/// Runs the scenarios whose names contain one of `names`.
pub fn run_all(names: &[String], list: bool, jobs: usize) -> Result<Status> {
    let directory = root().join("tests");
    let mut found = Vec::new();
    let entries = std::fs::read_dir(&directory).with_context(|| format!("no {}", directory.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path)?;
            let scenario: Scenario =
                toml::from_str(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
            found.push((crate::run::stem(&path), path, scenario));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    if !names.is_empty() {
        if let Some(lost) = names.iter().find(|name| !found.iter().any(|(known, ..)| known.contains(*name))) {
            bail!("no scenario's name contains '{lost}' (cargo sluice test --list)");
        }
        found.retain(|(known, ..)| names.iter().any(|name| known.contains(name)));
    }
    if list {
        for (name, _, scenario) in &found {
            crate::print(format!("{name:28} {}\n", scenario.about))?;
        }
        return Ok(Status::Ok);
    }
    found.retain(|(name, _, scenario)| {
        let skip = scenario.skip.as_ref().filter(|_| !names.contains(name));
        if let Some(why) = skip {
            println!("skipped {name}: {why}");
        }
        skip.is_none()
    });
    judge_all(found, jobs.max(1))
}

fn judge_all(found: Vec<(String, PathBuf, Scenario)>, jobs: usize) -> Result<Status> {
    // Built once, before the clock of the first scenario starts.
    crate::image::hypervisor(&[])?;
    let queue = Mutex::new(found.into_iter());
    let counts = Mutex::new((0, 0));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some((name, path, scenario)) = queue.lock().ok().and_then(|mut queue| queue.next())
                    else {
                        return;
                    };
                    let started = Instant::now();
                    let attempt =
                        || judge(&name, &path, &scenario).unwrap_or_else(|error| vec![format!("{error:#}")]);
                    let mut problems = attempt();
                    if !problems.is_empty() {
                        println!("again   {name}: it failed, and is run once more");
                        problems.iter().for_each(|problem| println!("        {problem}"));
                        keep(&name);
                        problems = attempt();
                    }
                    let seconds = started.elapsed().as_secs_f64();
                    let Ok(mut counts) = counts.lock() else { return };
                    if problems.is_empty() {
                        counts.0 += 1;
                        println!("ok      {name} ({seconds:.0} s): {}", scenario.about);
                    } else {
                        counts.1 += 1;
                        println!("FAILED  {name} ({seconds:.0} s): {}", scenario.about);
                        for problem in problems {
                            println!("        {problem}");
                        }
                        println!("        logs: run/test-{name}/");
                    }
                }
            });
        }
    });
    let (passed, failed) = counts.into_inner().unwrap_or((0, 1));
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { Status::Ok } else { Status::Trouble })
}

/// Puts the logs of a failure where the second try does not overwrite them.
fn keep(name: &str) {
    let logs = root().join("run").join(format!("test-{name}"));
    let kept = logs.with_file_name(format!("test-{name}-first"));
    let _ = std::fs::remove_dir_all(&kept);
    if std::fs::rename(&logs, &kept).is_ok() {
        println!("        logs: run/test-{name}-first/");
    }
}

/// Runs one scenario; returns what was not as expected.
fn judge(name: &str, path: &Path, scenario: &Scenario) -> Result<Vec<String>> {
    let (file, text) = configuration(path, scenario)?;
    match (config::load_text(&file, &text), &scenario.expect.refused) {
        (Ok(setup), None) => Ok(execute(name, scenario, &setup)?.1),
        (Ok(_), Some(pattern)) => Ok(vec![format!("was not refused with '{pattern}'")]),
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(pattern)) => {
            let message = error.to_string();
            let fits = Regex::new(pattern)?.is_match(&message);
            let problem = format!("refused, but not with '{pattern}':\n{message}");
            Ok(if fits { Vec::new() } else { vec![problem] })
        }
    }
}

/// Runs the scenario in a file, for who wants to know more of it than whether it passed; it must.
pub fn outcome(path: &Path) -> Result<Outcome> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no {}", path.display()))?;
    let scenario: Scenario = toml::from_str(&text)?;
    let (file, text) = configuration(path, &scenario)?;
    let (outcome, problems) = execute(&crate::run::stem(path), &scenario, &config::load_text(&file, &text)?)?;
    if !problems.is_empty() {
        bail!("{}: {}", path.display(), problems.join("\n"));
    }
    Ok(outcome)
}

/// Runs it; what came of it, and what was not as expected.
fn execute(name: &str, scenario: &Scenario, setup: &Setup) -> Result<(Outcome, Vec<String>)> {
    let consoles = root().join("run").join(format!("test-{name}"));
    let options = Options {
        name: format!("test-{name}"),
        consoles: consoles.clone(),
        timeout: Some(Duration::from_secs_f64(scenario.timeout)),
        boot: scenario.boot,
        accel: Accel::Tcg,
        icount: scenario.icount,
        qemu_args: scenario.qemu_args.clone(),
        features: scenario.features.clone(),
    };
    let mut script = Script::new(setup, scenario)?;
    let outcome = session::run(setup, &options, &mut script)?;
    let document = outcome.json(setup);
    let _ = std::fs::write(consoles.join("report.json"), serde_json::to_string_pretty(&document)?);
    let mut problems = compare(&scenario.expect, &outcome, &document, &consoles)?;
    if let Some(step) = scenario.step.get(script.next) {
        problems.push(format!("step {} was never due: {:?}", script.next + 1, step.actions));
    }
    Ok((outcome, problems))
}

/// The configuration's text and the file that its relative paths start from.
fn configuration(path: &Path, scenario: &Scenario) -> Result<(PathBuf, String)> {
    let (file, mut table) = match (&scenario.config, &scenario.setup) {
        (Some(config), None) => {
            let file = path.parent().unwrap_or(Path::new("")).join(config);
            let text = std::fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
            if scenario.set.is_empty() {
                return Ok((file, text));
            }
            let table = text.parse::<toml::Table>().with_context(|| format!("{}", file.display()))?;
            (file, table)
        }
        (None, Some(table)) => (path.to_owned(), table.clone()),
        _ => bail!("give either 'config' or 'setup'"),
    };
    for (key, value) in &scenario.set {
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().context("an empty key")?;
        let mut inner = &mut table;
        for part in parts {
            let entry = inner.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            inner = entry.as_table_mut().with_context(|| format!("'{part}' in '{key}' is no table"))?;
        }
        inner.insert(last.to_owned(), value.clone());
    }
    Ok((file, toml::to_string(&table)?))
}

fn compare(expect: &Expect, outcome: &Outcome, document: &Value, consoles: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if outcome.status as i32 != expect.status {
        problems.push(format!(
            "status {} ({}), expected {}",
            outcome.status as i32,
            outcome.status.word(),
            expect.status
        ));
        problems.extend(outcome.problems.iter().cloned());
    }
    let mut search = |file: &str, patterns: &[String], wanted: bool| -> Result<()> {
        if patterns.is_empty() {
            return Ok(());
        }
        let text = std::fs::read(consoles.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        for pattern in patterns {
            if Regex::new(&format!("(?m){pattern}"))?.is_match(&text) != wanted {
                let verb = if wanted { "lacks" } else { "has" };
                problems.push(format!("{file} {verb} '{pattern}'"));
            }
        }
        Ok(())
    };
    search("sluice.log", &expect.log, true)?;
    search("sluice.log", &expect.not_log, false)?;
    for (name, wanted) in &expect.domain {
        search(&format!("{name}.log"), &wanted.console, true)?;
        search(&format!("{name}.log"), &wanted.not_console, false)?;
    }
    for (name, wanted) in &expect.domain {
        let Some(guest) = outcome.guests.iter().find(|guest| guest.name == *name) else {
            problems.push(format!("no domain is called '{name}'"));
            continue;
        };
        if let Some(state) = wanted.state.as_ref().filter(|state| *state != state_word(guest.state)) {
            problems.push(format!(
                "{name} is {} ({}), expected {state}",
                state_word(guest.state),
                guest.reason
            ));
        }
        if let Some(pattern) = &wanted.reason
            && !Regex::new(pattern)?.is_match(&guest.reason)
        {
            problems.push(format!("{name} ended because of '{}', expected '{pattern}'", guest.reason));
        }
        for (key, pattern) in &wanted.results {
            let value = guest.value(key).unwrap_or("");
            if !Regex::new(&format!("^({pattern})$"))?.is_match(value) {
                problems.push(format!("{name} reported {key}={value}, expected {pattern}"));
            }
        }
    }
    let reported = outcome.report.as_ref().map_or(&[][..], |report| &report.iommu.faults);
    for fault in reported {
        // Where many are expected a unit may have had no room for some: that says so, of nobody.
        let lost = fault.domain.is_none() && fault.kind == "other" && !expect.faults.is_empty();
        if !lost && !fault.domain.as_ref().is_some_and(|domain| expect.faults.contains(domain)) {
            problems.push(format!(
                "the IOMMU refused what nobody should ask: {}",
                crate::iommu::fault_text(fault)
            ));
        }
    }
    let number = |path: &str| document.pointer(&format!("/{path}")).and_then(Value::as_f64).unwrap_or(0.0);
    for counter in &expect.counter {
        let value = number(&counter.path);
        let limit = counter.at_most.as_ref().map(|other| number(other) * counter.times);
        let low = counter.min.is_some_and(|min| value < min);
        let high = counter.max.is_some_and(|max| value > max) || limit.is_some_and(|limit| value > limit);
        if low || high {
            problems.push(format!("{} is {value}, expected {}", counter.path, bounds(counter, limit)));
        }
    }
    Ok(problems)
}

fn bounds(counter: &ExpectCounter, limit: Option<f64>) -> String {
    let mut parts = Vec::new();
    parts.extend(counter.min.map(|min| format!("at least {min}")));
    parts.extend(counter.max.map(|max| format!("at most {max}")));
    parts
        .extend(limit.map(|limit| format!("at most {limit} ({})", counter.at_most.as_deref().unwrap_or(""))));
    parts.join(" and ")
}

/// Takes the steps of a scenario.
struct Script<'s> {
    steps: &'s [Step],
    patterns: Vec<Option<Regex>>,
    actions: Vec<Vec<Command>>,
    names: Vec<String>,
    states: Vec<DomainState>,
    next: usize,
    /// When the condition of the next step was met.
    due: Option<Instant>,
    up: bool,
}

impl<'s> Script<'s> {
    fn new(setup: &Setup, scenario: &'s Scenario) -> Result<Self> {
        let names: Vec<String> = setup.domains.iter().map(|domain| domain.name.get_ref().clone()).collect();
        let mut actions = Vec::new();
        let mut patterns = Vec::new();
        for step in &scenario.step {
            actions.push(step.actions.iter().map(|action| order(action, &names)).collect::<Result<_>>()?);
            patterns.push(step.console.as_deref().map(Regex::new).transpose()?);
        }
        let states = vec![DomainState::Created; names.len()];
        Ok(Self { steps: &scenario.step, patterns, actions, names, states, next: 0, due: None, up: false })
    }

    fn is_about(&self, step: &Step, domain: usize) -> bool {
        step.domain.is_none() || step.domain.as_ref() == self.names.get(domain)
    }

    fn proceed(&mut self, steer: &mut Steer) {
        while let (Some(step), Some(due)) = (self.steps.get(self.next), self.due) {
            if due.elapsed().as_secs_f64() < step.after {
                return;
            }
            for command in std::mem::take(&mut self.actions[self.next]) {
                steer.send(command);
            }
            self.next += 1;
            self.due = None;
            self.look_at_states();
        }
    }

    /// A step without a condition is due at once; one that waits for a state may be due already.
    fn look_at_states(&mut self) {
        let Some(step) = self.steps.get(self.next) else { return };
        let met = match (&step.console, &step.state) {
            (Some(_), _) => false,
            (None, None) => self.up,
            (None, Some(wanted)) => {
                let mut states = self.states.iter().enumerate();
                states.any(|(domain, state)| self.is_about(step, domain) && state_word(*state) == wanted)
            }
        };
        if met && self.due.is_none() {
            self.due = Some(Instant::now());
        }
    }
}

impl Observer for Script<'_> {
    fn hello(&mut self, _domains: &[String]) {
        self.up = true;
        self.look_at_states();
    }

    fn state(&mut self, domain: usize, state: DomainState, _reason: &str, steer: &mut Steer) {
        if let Some(known) = self.states.get_mut(domain) {
            *known = state;
        }
        self.look_at_states();
        self.proceed(steer);
    }

    fn line(&mut self, domain: usize, line: &str, steer: &mut Steer) {
        let Some(step) = self.steps.get(self.next) else { return };
        if let Some(pattern) = &self.patterns[self.next]
            && self.due.is_none()
            && self.is_about(step, domain)
            && pattern.is_match(line)
        {
            self.due = Some(Instant::now());
        }
        self.proceed(steer);
    }

    fn tick(&mut self, steer: &mut Steer) {
        self.proceed(steer);
    }
}

/// "destroy alice" as a command.
fn order(text: &str, names: &[String]) -> Result<Command> {
    let mut words = text.splitn(3, ' ');
    let verb = words.next().unwrap_or_default();
    match verb {
        "shutdown" => return Ok(Command::Shutdown),
        "verify" => return Ok(Command::Verify),
        _ => {}
    }
    let name = words.next().with_context(|| format!("'{text}' names no domain"))?;
    let index = names.iter().position(|known| known == name);
    let index = u16::try_from(index.with_context(|| format!("no domain '{name}'"))?)?;
    Ok(match verb {
        "start" => Command::Start(index),
        "stop" => Command::Stop(index),
        "pause" => Command::Pause(index),
        "resume" => Command::Resume(index),
        "destroy" => Command::Destroy(index),
        "restart" => Command::Restart(index),
        "type" => Command::ConsoleInput(index, format!("{}\n", words.next().unwrap_or("")).into_bytes()),
        other => {
            bail!(
                "a step can start, stop, pause, resume, destroy, restart, type, verify or shutdown, not '{other}'"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_commands() {
        let names = ["alice".to_owned(), "bob".to_owned()];
        assert_eq!(order("destroy bob", &names).unwrap(), Command::Destroy(1));
        assert_eq!(
            order("type alice echo hi", &names).unwrap(),
            Command::ConsoleInput(0, b"echo hi\n".to_vec())
        );
        assert!(order("destroy carol", &names).is_err());
        assert!(order("kick bob", &names).is_err());
    }

    #[test]
    fn all_scenarios_are_readable() {
        for entry in std::fs::read_dir(root().join("tests")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let scenario: Scenario =
                    toml::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                let (file, text) = configuration(&path, &scenario).unwrap();
                let loaded = config::load_text(&file, &text);
                assert_eq!(loaded.is_err(), scenario.expect.refused.is_some(), "{path:?}: {loaded:?}");
                for pattern in scenario.expect.log.iter().chain(&scenario.expect.not_log) {
                    Regex::new(pattern).unwrap();
                }
            }
        }
    }
}
