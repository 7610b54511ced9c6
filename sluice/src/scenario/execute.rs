//! One scenario, run and judged.

use super::format::Scenario;
use super::judge::{self, Kind, Problem, Remains, Verdict};
use super::load::Named;
use super::native;
use super::signature::{self, Evidence, Match};
use super::steps::{self, Script};
use crate::config::{self, Setup};
use crate::name::Name;
use crate::outcome::{Outcome, Status};
use crate::qemu::Accel;
use crate::qmp::Picture;
use crate::session::{self, Options};
use crate::workspace;
use anyhow::{Context, Result, bail};
use regex_lite::Regex;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What came of a scenario.
pub struct Run {
    /// What the guests and the hypervisor did, unless the configuration was refused.
    pub outcome: Option<Outcome>,
    /// One for the scenario itself and for each of its cases, in order.
    pub verdicts: Vec<Verdict>,
    /// Why a failure is QEMU's, if it is known to be.
    pub excuse: Option<Match>,
}

impl Run {
    /// What was not as expected.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.verdicts.iter().flat_map(|verdict| &verdict.problems)
    }
}

/// Runs a scenario; that it cannot be run is a problem like others, of each of its tests.
pub fn attempt(named: &Named) -> Run {
    run(named).unwrap_or_else(|error| {
        let problem = Problem { domain: None, kind: Kind::Wrong, text: format!("{error:#}") };
        let verdict = || Verdict { checks: 1, problems: vec![problem.clone()] };
        Run { outcome: None, verdicts: named.tests().map(|_| verdict()).collect(), excuse: None }
    })
}

/// Runs a scenario and judges it.
pub fn run(named: &Named) -> Result<Run> {
    let scenario = &named.scenario;
    let (file, text) = configuration(&named.path, scenario)?;
    match (config::load_text(&file, &text), &scenario.expect.refused) {
        (Ok(setup), None) => boot(&named.name, scenario, &setup),
        (Ok(_), Some(pattern)) => bail!("was not refused with '{pattern}'"),
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(pattern)) => {
            let message = error.to_string();
            if !Regex::new(pattern)?.is_match(&message) {
                bail!("refused, but not with '{pattern}':\n{message}");
            }
            let verdict = Verdict { checks: 1, problems: Vec::new() };
            Ok(Run { outcome: None, verdicts: vec![verdict], excuse: None })
        }
    }
}

fn boot(name: &str, scenario: &Scenario, setup: &Setup) -> Result<Run> {
    let instance: Name = format!("test-{name}").parse()?;
    let directory = workspace::consoles(&instance);
    let options = Options {
        name: instance,
        consoles: Some(directory.clone()),
        timeout: Some(Duration::from_secs_f64(scenario.timeout)),
        boot: scenario.boot,
        accel: Accel::Tcg,
        icount: scenario.icount,
        qemu_args: scenario.qemu_args.clone(),
        features: scenario.features.clone(),
        screen: !scenario.expect.these.screen.is_empty(),
    };
    let mut script = Script::new(setup, scenario, &directory)?;
    let without = scenario.native.as_ref().map(|native| native::run(scenario, native, setup, &directory));
    let without = without.transpose()?;
    let outcome = session::run(setup, &options, &mut script)?;
    let document = outcome.json(setup);
    let _ = std::fs::write(directory.join("report.json"), serde_json::to_string_pretty(&document)?);
    let read = |file: String| {
        let bytes = std::fs::read(directory.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    let log = read("sluice.log".to_owned());
    let names = setup.domains.iter().map(|domain| domain.name.get_ref().to_string());
    let consoles: Vec<(String, String)> =
        names.map(|name| (name.clone(), read(format!("{name}.log")))).collect();
    let screens = script.screens().map(|name| Ok((name.to_owned(), screen(&directory, name)?)));
    let screens = screens.collect::<Result<Vec<_>>>()?;
    let remains =
        Remains { outcome: &outcome, document: &document, log: &log, consoles: &consoles, screens: &screens };
    let mut whole = judge::whole(&scenario.expect, &remains)?;
    if !scenario.step.is_empty() {
        whole.check(None, Kind::Missing, script.left().is_none(), || script.left().unwrap_or_default());
    }
    if let Some((native, without)) = scenario.native.as_ref().zip(without.as_ref()) {
        let guest = outcome.guests.iter().find(|guest| guest.name == native.domain);
        native::compare(&mut whole, native, without, guest);
    }
    let cases = scenario.case.iter().map(|case| judge::case(&case.expect, &remains));
    let verdicts = std::iter::once(Ok(whole)).chain(cases).collect::<Result<Vec<_>>>()?;
    let evidence = Evidence { cpus: *setup.machine.cpus.get_ref(), consoles: &consoles };
    let problems: Vec<&Problem> = verdicts.iter().flat_map(|verdict| &verdict.problems).collect();
    let excuse = signature::find(&evidence).filter(|found| excuses(found, &outcome, &problems));
    Ok(Run { outcome: Some(outcome), verdicts, excuse })
}

/// The text of a picture that a step took, and a last line by which it is known.
fn screen(directory: &Path, name: &str) -> Result<String> {
    let file = steps::picture(directory, name);
    let picture = std::fs::read(&file).with_context(|| format!("no picture {}", file.display()))?;
    let picture = Picture::parse(&picture)?;
    Ok(format!("{}\n{}", picture.text(), picture.digest()))
}

/// A fault of QEMU's explains what befell the domain that it struck, and what did not come any more, also of others: the
/// run ended before its steps, or a peer was gone. It explains neither a failure of the hypervisor, nor anything that
/// another domain did wrong, nor what an IOMMU refused.
fn excuses(found: &Match, outcome: &Outcome, problems: &[&Problem]) -> bool {
    let explained = |problem: &Problem| {
        problem.kind == Kind::Missing || problem.domain.as_ref().is_some_and(|domain| *domain == found.domain)
    };
    !problems.is_empty()
        && outcome.status != Status::Hypervisor
        && problems.iter().all(|problem| explained(problem))
}

/// Puts the logs of a run where those of the next do not overwrite them.
pub fn keep(name: &str) {
    let Ok(instance) = format!("test-{name}").parse::<Name>() else { return };
    let logs = workspace::consoles(&instance);
    let kept = logs.with_file_name(format!("{instance}-first"));
    let _ = workspace::remove_logs(&kept);
    let _ = std::fs::rename(&logs, &kept);
}

/// The configuration's text and the file that its relative paths start from.
pub fn configuration(path: &Path, scenario: &Scenario) -> Result<(PathBuf, String)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Guest;
    use sluice_abi::report::DomainState;
    use std::collections::BTreeMap;

    fn excused(status: Status, problems: &[(Option<&str>, Kind)]) -> bool {
        let found = Match { name: "stale-int3", domain: "bob".to_owned(), line: String::new() };
        let outcome = Outcome {
            status,
            problems: Vec::new(),
            consoles: Default::default(),
            guests: Vec::new(),
            report: None,
            wall: Duration::ZERO,
            kernels: Vec::new(),
            machine: BTreeMap::new(),
        };
        let problem = |(domain, kind): &(Option<&str>, Kind)| Problem {
            domain: domain.map(str::to_owned),
            kind: *kind,
            text: String::new(),
        };
        let problems: Vec<Problem> = problems.iter().map(problem).collect();
        excuses(&found, &outcome, &problems.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_configuration_is_refused_with_the_message_that_is_expected() {
        let mut named = crate::scenario::load::one("refused-memory").unwrap();
        assert_eq!(attempt(&named).problems().count(), 0);
        named.scenario.expect.refused = Some("for another reason".to_owned());
        assert_eq!(attempt(&named).problems().count(), 1);
    }

    #[test]
    fn a_fault_of_qemus_excuses_its_own_domain_and_what_did_not_come() {
        use Kind::{Missing, Wrong};
        assert!(excused(Status::TimeOut, &[(Some("bob"), Wrong), (None, Missing)]));
        assert!(excused(Status::Guest, &[(Some("bob"), Wrong), (Some("alice"), Missing)]));
        assert!(!excused(Status::TimeOut, &[(Some("bob"), Wrong), (Some("alice"), Wrong)]));
        assert!(!excused(Status::TimeOut, &[(Some("bob"), Wrong), (None, Wrong)]));
        assert!(!excused(Status::Hypervisor, &[(Some("bob"), Wrong)]));
        assert!(!excused(Status::Ok, &[]));
    }

    /// Bob was to be started again when alice's kernel was struck, and nobody was left to wait for.
    #[test]
    fn a_run_that_ended_before_its_steps_lacks_things() {
        let judged = |value: Option<&str>| {
            let mut guest = Guest { name: "alice".into(), state: DomainState::Destroyed, ..Guest::default() };
            guest.findings.extend(value.map(|value| vec![("done".into(), value.into())]));
            let expect = toml::from_str("state = 'powered-off'\nresults = { done = 'ok' }").unwrap();
            let mut verdict = Verdict::default();
            judge::domain(&mut verdict, &guest, &expect).unwrap();
            verdict.problems.iter().map(|problem| (Some("alice"), problem.kind)).collect::<Vec<_>>()
        };
        assert!(excused(Status::Guest, &judged(None)));
        assert!(!excused(Status::Guest, &judged(Some("sha256-mismatch"))));
    }
}
