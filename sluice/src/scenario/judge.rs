//! The one judge of all scenarios: the exit status, the consoles, the hypervisor's log, the JSON document.

use super::format::{Expect, ExpectCounter, ExpectDomain, Expectations};
use super::kernel;
use crate::outcome::{Guest, Outcome};
use anyhow::Result;
use regex_lite::Regex;
use serde_json::Value;
use sluice_abi::report::DomainState;
use std::collections::BTreeMap;

/// What a run left behind.
pub struct Remains<'a> {
    /// What came of it.
    pub outcome: &'a Outcome,
    /// Its JSON document (docs/json.md).
    pub document: &'a Value,
    /// `sluice.log`.
    pub log: &'a str,
    /// Names and consoles of the domains.
    pub consoles: &'a [(String, String)],
    /// Pictures of the screen, by their names, as text.
    pub screens: &'a [(String, String)],
}

/// How something is not as expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// It did not come: a line, a result, an end. A run that was cut short lacks much.
    Missing,
    /// It came, and should not have, or is another.
    Wrong,
}

/// Something that is not as expected.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The domain it is about, if it is about one.
    pub domain: Option<String>,
    /// How it is not.
    pub kind: Kind,
    /// A sentence.
    pub text: String,
}

/// What was looked at, and what was wrong.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How many expectations were compared.
    pub checks: usize,
    /// Those that were not met.
    pub problems: Vec<Problem>,
}

impl Verdict {
    /// Counts a check; `problem` is what is wrong if it fails.
    pub fn check(&mut self, domain: Option<&str>, kind: Kind, met: bool, problem: impl FnOnce() -> String) {
        self.checks += 1;
        if !met {
            self.problems.push(Problem { domain: domain.map(str::to_owned), kind, text: problem() });
        }
    }
}

/// Judges what holds of a whole run: how it ended, what its IOMMU refused, and the kernels of its guests.
pub fn whole(expect: &Expect, remains: &Remains) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let outcome = remains.outcome;
    verdict.check(None, Kind::Missing, outcome.status as i32 == expect.status, || {
        let (status, word) = (outcome.status as i32, outcome.status.word());
        let mut lines = vec![format!("status {status} ({word}), expected {}", expect.status)];
        lines.extend(outcome.problems.iter().cloned());
        lines.join("\n")
    });
    iommu_faults(&mut verdict, expect, outcome);
    for (domain, console) in remains.consoles {
        let wanted = expect.these.domain.get(domain).map_or(&[][..], |wanted| &wanted.kernel_faults);
        kernel_faults(&mut verdict, domain, console, wanted)?;
    }
    these(&mut verdict, &expect.these, remains)?;
    Ok(verdict)
}

/// Judges what a case expects of the run that it shares with others.
pub fn case(expect: &Expectations, remains: &Remains) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    these(&mut verdict, expect, remains)?;
    Ok(verdict)
}

fn these(verdict: &mut Verdict, expect: &Expectations, remains: &Remains) -> Result<()> {
    search(verdict, None, "sluice.log", remains.log, &expect.log, true)?;
    search(verdict, None, "sluice.log", remains.log, &expect.not_log, false)?;
    for (name, wanted) in &expect.domain {
        let console = remains.consoles.iter().find(|(known, _)| known == name);
        let console = console.map_or("", |(_, console)| console);
        let file = format!("{name}.log");
        search(verdict, Some(name), &file, console, &wanted.console, true)?;
        search(verdict, Some(name), &file, console, &wanted.not_console, false)?;
        match remains.outcome.guests.iter().find(|guest| guest.name == *name) {
            Some(guest) => {
                domain(verdict, guest, wanted)?;
                same(verdict, guest, &wanted.same, &remains.outcome.guests);
            }
            None => verdict.check(None, Kind::Wrong, false, || format!("no domain is called '{name}'")),
        }
    }
    for (name, wanted) in &expect.screen {
        let screen = remains.screens.iter().find(|(known, _)| known == name);
        verdict.check(None, Kind::Missing, screen.is_some(), || {
            format!("no step takes a picture '{name}' of the screen")
        });
        let text = screen.map_or("", |(_, text)| text);
        search(verdict, None, &format!("the screen '{name}'"), text, wanted, true)?;
    }
    for expected in &expect.counter {
        counter(verdict, expected, remains.document);
    }
    Ok(())
}

fn search(
    verdict: &mut Verdict,
    domain: Option<&str>,
    file: &str,
    text: &str,
    patterns: &[String],
    wanted: bool,
) -> Result<()> {
    for pattern in patterns {
        let found = Regex::new(&format!("(?m){pattern}"))?.is_match(text);
        let (verb, kind) = if wanted { ("lacks", Kind::Missing) } else { ("has", Kind::Wrong) };
        verdict.check(domain, kind, found == wanted, || format!("{file} {verb} '{pattern}'"));
    }
    Ok(())
}

pub(super) fn domain(verdict: &mut Verdict, guest: &Guest, wanted: &ExpectDomain) -> Result<()> {
    let name = &guest.name;
    if let Some(state) = &wanted.state {
        let is = guest.state.word();
        // Another crash is of its own making; whoever runs yet, or was ended, did not get to its end.
        let kind = if guest.state == DomainState::Crashed { Kind::Wrong } else { Kind::Missing };
        verdict.check(Some(name), kind, state == is, || {
            format!("{name} is {is} ({}), expected {state}", guest.reason)
        });
    }
    if let Some(pattern) = &wanted.reason {
        let fits = Regex::new(pattern)?.is_match(guest.reason.raw());
        verdict.check(Some(name), Kind::Missing, fits, || {
            format!("{name} ended because of '{}', expected '{pattern}'", guest.reason)
        });
    }
    for (key, pattern) in &wanted.results {
        let kind = if guest.value(key).is_some() { Kind::Wrong } else { Kind::Missing };
        let value = guest.value(key).cloned().unwrap_or_default();
        let fits = Regex::new(&format!("^({pattern})$"))?.is_match(value.raw());
        verdict
            .check(Some(name), kind, fits, || format!("{name} reported {key}={value}, expected {pattern}"));
    }
    Ok(())
}

/// Results of a guest that are to be those of another one, which has to have some.
fn same(verdict: &mut Verdict, guest: &Guest, wanted: &BTreeMap<String, String>, guests: &[Guest]) {
    for (key, model) in wanted {
        let (of, their) = model.split_once('.').unwrap_or((model, key));
        let other = guests.iter().find(|other| other.name == *of).and_then(|other| other.value(their));
        let own = guest.value(key);
        let kind = if own.is_some() && other.is_some() { Kind::Wrong } else { Kind::Missing };
        let alike = own.zip(other).is_some_and(|(own, other)| own.raw() == other.raw());
        verdict.check(Some(&guest.name), kind, alike, || {
            let said = [own, other].map(|value| value.cloned().unwrap_or_default());
            let [own, other] = said;
            format!("{} reported {key}={own}, and {of} {their}={other}", guest.name)
        });
    }
}

/// Each fault of a guest's kernel is expected by one of `wanted`, and each of `wanted` is there.
fn kernel_faults(verdict: &mut Verdict, domain: &str, console: &str, wanted: &[String]) -> Result<()> {
    let wanted = wanted.iter().map(|pattern| Regex::new(pattern)).collect::<Result<Vec<_>, _>>()?;
    let surprise = kernel::faults(console).find(|line| !wanted.iter().any(|pattern| pattern.is_match(line)));
    verdict.check(Some(domain), Kind::Wrong, surprise.is_none(), || {
        format!("{domain}'s kernel went wrong: {}", surprise.unwrap_or_default().trim())
    });
    for pattern in &wanted {
        let found = kernel::faults(console).any(|line| pattern.is_match(line));
        verdict.check(Some(domain), Kind::Missing, found, || {
            format!("{domain}'s kernel did not report '{pattern}'")
        });
    }
    Ok(())
}

fn iommu_faults(verdict: &mut Verdict, expect: &Expect, outcome: &Outcome) {
    let reported = outcome.report.as_ref().map_or(&[][..], |report| &report.iommu.faults);
    let surprise = reported.iter().find(|fault| {
        // Where many are expected a unit may have had no room for some: that says so, of nobody.
        let lost = fault.domain.is_none() && fault.kind == "other" && !expect.faults.is_empty();
        !lost && !fault.domain.as_ref().is_some_and(|domain| expect.faults.contains(domain))
    });
    verdict.check(None, Kind::Wrong, surprise.is_none(), || {
        let text = surprise.map(crate::iommu::fault_text).unwrap_or_default();
        format!("the IOMMU refused what nobody should ask: {text}")
    });
}

fn counter(verdict: &mut Verdict, counter: &ExpectCounter, document: &Value) {
    let number = |path: &str| document.pointer(&format!("/{path}")).and_then(Value::as_f64).unwrap_or(0.0);
    let value = number(&counter.path);
    let limit = counter.at_most.as_ref().map(|other| number(other) * counter.times);
    let low = counter.min.is_some_and(|min| value < min);
    let high = counter.max.is_some_and(|max| value > max) || limit.is_some_and(|limit| value > limit);
    let kind = if high { Kind::Wrong } else { Kind::Missing };
    verdict.check(None, kind, !low && !high, || {
        format!("{} is {value}, expected {}", counter.path, bounds(counter, limit))
    });
}

fn bounds(counter: &ExpectCounter, limit: Option<f64>) -> String {
    let mut parts = Vec::new();
    parts.extend(counter.min.map(|min| format!("at least {min}")));
    parts.extend(counter.max.map(|max| format!("at most {max}")));
    parts
        .extend(limit.map(|limit| format!("at most {limit} ({})", counter.at_most.as_deref().unwrap_or(""))));
    parts.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Status, parse_finding};
    use crate::scenario::kernel::tests::{FINE, MACHINE_CHECK, STALE_INT3};
    use serde_json::json;
    use std::time::Duration;

    fn outcome() -> Outcome {
        let guest = Guest {
            name: "alice".into(),
            state: DomainState::PoweredOff,
            findings: parse_finding("SLUICE-RESULT done=ok").into_iter().collect(),
            ..Guest::default()
        };
        Outcome {
            status: Status::Ok,
            problems: Vec::new(),
            consoles: Default::default(),
            guests: vec![guest],
            report: None,
            wall: Duration::ZERO,
            kernels: Vec::new(),
            machine: BTreeMap::new(),
        }
    }

    fn judged(expect: &str, console: &str, log: &str) -> Vec<String> {
        let expect: Expect = toml::from_str(expect).unwrap();
        let (outcome, document) = (outcome(), json!({ "devices": { "nic0": { "handoffs": 3 } } }));
        let consoles = [("alice".to_owned(), console.to_owned())];
        let screens = [("end".to_owned(), "1 alice   crashed".to_owned())];
        let remains =
            Remains { outcome: &outcome, document: &document, log, consoles: &consoles, screens: &screens };
        let verdict = whole(&expect, &remains).unwrap();
        verdict.problems.into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn what_is_expected_passes() {
        let expect = "log = ['^up']\n[domain.alice]\nstate = 'powered-off'\nresults = { done = 'ok' }\n\
                      same = { done = 'alice.done' }\n[[counter]]\npath = 'devices/nic0/handoffs'\nmin = 3\nmax = 3\n\
                      [screen]\nend = ['^1 alice +crashed']";
        assert_eq!(judged(expect, FINE, "first\nup"), [""; 0]);
    }

    #[test]
    fn each_kind_of_expectation_can_fail() {
        for expect in [
            "status = 4",
            "log = ['down']",
            "not_log = ['^up']",
            "domain.alice.state = 'crashed'",
            "domain.alice.reason = 'triple'",
            "domain.alice.results = { done = 'o' }",
            "domain.alice.results = { more = '.+' }",
            "domain.alice.same = { done = 'alice.more' }",
            "domain.alice.same = { more = 'alice.more' }",
            "domain.alice.same = { done = 'nobody.done' }",
            "domain.alice.console = ['never']",
            "domain.alice.not_console = ['Linux version']",
            "domain.bob.state = 'powered-off'",
            "counter = [{ path = 'devices/nic0/handoffs', min = 4 }]",
            "counter = [{ path = 'devices/nic0/handoffs', max = 2 }]",
            "counter = [{ path = 'devices/nic0/handoffs', at_most = 'devices/nic0/forced' }]",
            "domain.alice.kernel_faults = ['int3']",
            "screen.end = ['running']",
            "screen.begin = []",
        ] {
            assert_eq!(judged(expect, FINE, "up").len(), 1, "{expect}");
        }
    }

    #[test]
    fn a_fault_of_a_guests_kernel_fails_a_run_that_is_fine_otherwise() {
        let problems = judged("domain.alice.results = { done = 'ok' }", STALE_INT3, "");
        assert!(matches!(&problems[..], [only] if only.contains("int3: 0000 [#1]")), "{problems:?}");
    }

    #[test]
    fn an_expected_fault_excuses_no_other() {
        let expect = "domain.alice.kernel_faults = ['Fatal local machine check']";
        assert_eq!(judged(expect, MACHINE_CHECK, ""), [""; 0]);
        assert_eq!(judged(expect, &format!("{MACHINE_CHECK}{STALE_INT3}"), "").len(), 1);
    }
}
