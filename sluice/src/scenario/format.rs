//! What a scenario's file says. `tests/README.md` describes the keys for who writes one.

use crate::name::Name;
use crate::qemu::Boot;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// What it shows, in a sentence.
    pub about: String,
    /// Configuration file, relative to the scenario; or the configuration itself in `setup`.
    pub config: Option<PathBuf>,
    /// Configuration, inline.
    pub setup: Option<toml::Table>,
    /// Changes to the configuration: dotted key to new value.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    #[serde(default = "default_timeout")]
    pub timeout: f64,
    #[serde(default)]
    pub icount: bool,
    #[serde(default)]
    pub boot: Boot,
    #[serde(default)]
    pub features: Vec<Name>,
    #[serde(default)]
    pub qemu_args: Vec<String>,
    /// Not run unless named: why.
    pub skip: Option<String>,
    /// Only run with `--all`, or named: what it adds to the others is not worth its time every time.
    #[serde(default)]
    pub extended: bool,
    #[serde(default)]
    pub step: Vec<Step>,
    /// A domain that is run without Sluice before, for a comparison.
    pub native: Option<Native>,
    pub expect: Expect,
    /// Tests of their own that share this run.
    #[serde(default)]
    pub case: Vec<Case>,
}

/// Expectations under a name of their own, of a run that several share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name: the test is called SCENARIO::NAME.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// What must come of it.
    pub expect: Expectations,
}

fn default_timeout() -> f64 {
    180.0
}

/// A domain whose results are to be those that the same system has on the machine without Sluice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Native {
    /// Its name.
    pub domain: String,
    /// What the keys begin with that are compared.
    pub results: String,
    /// Keys whose values differ, and why.
    #[serde(default)]
    pub differ: BTreeMap<String, String>,
}

/// Something to do when something has happened. Steps are taken in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A line of this domain's console...
    pub domain: Option<String>,
    /// ...that matches this.
    pub console: Option<String>,
    /// The line may have come before this step was the next one.
    #[serde(default)]
    pub earlier: bool,
    /// Or: the domain is in this state.
    pub state: Option<String>,
    /// And then this many seconds.
    #[serde(default)]
    pub after: f64,
    /// "destroy alice", "type alice TEXT", "shutdown"; several are sent at once.
    #[serde(rename = "do")]
    pub actions: Vec<String>,
}

/// What must come of a whole run.
#[derive(Debug, Deserialize)]
#[serde(from = "ExpectKeys")]
pub struct Expect {
    /// Exit status.
    pub status: i32,
    /// The configuration is refused with a message that matches.
    pub refused: Option<String>,
    /// Domains whose devices may make requests that an IOMMU refuses.
    pub faults: Vec<String>,
    /// And what a case may expect, too.
    pub these: Expectations,
}

/// The keys of `[expect]` as they stand in the file: serde cannot refuse unknown keys of flattened structures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectKeys {
    #[serde(default)]
    status: i32,
    refused: Option<String>,
    #[serde(default)]
    faults: Vec<String>,
    #[serde(default)]
    log: Vec<String>,
    #[serde(default)]
    not_log: Vec<String>,
    #[serde(default)]
    domain: BTreeMap<String, ExpectDomain>,
    #[serde(default)]
    counter: Vec<ExpectCounter>,
    #[serde(default)]
    screen: BTreeMap<String, Vec<String>>,
}

impl From<ExpectKeys> for Expect {
    fn from(keys: ExpectKeys) -> Self {
        let ExpectKeys { status, refused, faults, log, not_log, domain, counter, screen } = keys;
        Self { status, refused, faults, these: Expectations { log, not_log, domain, counter, screen } }
    }
}

/// What must be found in logs, results and counters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
    /// Lines of sluice.log.
    #[serde(default)]
    pub log: Vec<String>,
    /// Lines that sluice.log must not have.
    #[serde(default)]
    pub not_log: Vec<String>,
    /// What must be true of a domain.
    #[serde(default)]
    pub domain: BTreeMap<String, ExpectDomain>,
    /// Numbers.
    #[serde(default)]
    pub counter: Vec<ExpectCounter>,
    /// Lines of the pictures that steps take of the screen, by their names.
    #[serde(default)]
    pub screen: BTreeMap<String, Vec<String>>,
}

/// What must be true of a domain at the end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectDomain {
    /// Its last state.
    pub state: Option<String>,
    /// Why it ended, as a pattern.
    pub reason: Option<String>,
    /// Lines of its console.
    #[serde(default)]
    pub console: Vec<String>,
    /// Lines that its console must not have.
    #[serde(default)]
    pub not_console: Vec<String>,
    /// What its kernel is to report of itself when it goes wrong: each matches a line, and no other such line is there.
    #[serde(default)]
    pub kernel_faults: Vec<String>,
    /// Values of SLUICE-RESULT keys (the last of each), as patterns.
    #[serde(default)]
    pub results: BTreeMap<String, String>,
    /// Keys whose values are those of another domain's, DOMAIN.KEY.
    #[serde(default)]
    pub same: BTreeMap<String, String>,
}

/// A number in the JSON document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectCounter {
    /// `/`-separated, as in docs/json.md: "devices/nic0/handoffs". Absent counts as 0.
    pub path: String,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// Or: compared with another number...
    pub at_most: Option<String>,
    /// ...times this.
    #[serde(default = "one")]
    pub times: f64,
}

fn one() -> f64 {
    1.0
}

impl Expectations {
    /// How many there are.
    pub fn count(&self) -> usize {
        let domain = |wanted: &ExpectDomain| {
            usize::from(wanted.state.is_some())
                + usize::from(wanted.reason.is_some())
                + wanted.console.len()
                + wanted.not_console.len()
                + wanted.kernel_faults.len()
                + wanted.results.len()
                + wanted.same.len()
        };
        let domains: usize = self.domain.values().map(domain).sum();
        self.log.len() + self.not_log.len() + domains + self.counter.len()
    }
}

impl Scenario {
    /// How many expectations the file states; the judge adds those that hold of every run.
    pub fn expectations(&self) -> usize {
        let cases: usize = self.case.iter().map(|case| case.expect.count()).sum();
        // Its exit status, or the message of its refusal.
        1 + self.expect.these.count() + cases
    }
}
