//! `tests/mutations.toml`: the checks that can be taken out.

use super::Probe;
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::{self, Display};

/// A check, and who should notice that it is gone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// What it is called.
    pub name: String,
    /// Where it belongs.
    pub ring: Ring,
    /// What is no longer checked, in a sentence.
    pub about: String,
    /// The file, from the root of the tree.
    pub file: String,
    /// The check, as it stands there, once.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
    /// Arguments of `cargo test`, each for a run of its own.
    #[serde(default)]
    host: Vec<String>,
    /// Scenarios.
    #[serde(default)]
    scenarios: Vec<String>,
}

/// The rings of docs/architecture.md.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// `crates/`.
    Crate,
    /// `hypervisor/`.
    Hypervisor,
    /// `sluice/`.
    Host,
    /// `daemons/`.
    Daemon,
    /// `guest/linux/`: modules.
    Module,
}

impl Ring {
    /// All.
    pub const ALL: [Self; 5] = [Self::Crate, Self::Hypervisor, Self::Host, Self::Daemon, Self::Module];

    /// Where its sources are.
    #[cfg(test)]
    const fn folder(self) -> &'static str {
        match self {
            Self::Crate => "crates/",
            Self::Hypervisor => "hypervisor/",
            Self::Host => "sluice/",
            Self::Daemon => "daemons/",
            Self::Module => "guest/linux/",
        }
    }
}

impl Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::Crate => "crate",
            Self::Hypervisor => "hypervisor",
            Self::Host => "host",
            Self::Daemon => "daemon",
            Self::Module => "module",
        })
    }
}

impl Mutation {
    /// What may notice, the fastest first.
    pub fn probes(&self) -> Vec<Probe> {
        let host = self.host.iter().cloned().map(Probe::Host);
        host.chain(self.scenarios.iter().cloned().map(Probe::Scenario)).collect()
    }

    /// The name of its row in the results.
    pub fn row(&self) -> String {
        format!("mutation.{}.{}", self.ring, self.name)
    }

    /// The text without the check.
    ///
    /// # Errors
    /// The check is not there, or more than once.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            count => Err(format!("{} has the check {count} times, not once:\n{}", self.file, self.find)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutation: Vec<Mutation>,
}

/// All of them, in the order of the file.
pub fn load() -> Result<Vec<Mutation>> {
    let path = root().join("tests/mutations.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let File { mutation: list } = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
    let names: BTreeSet<&str> = list.iter().map(|mutation| mutation.name.as_str()).collect();
    if names.len() < list.len() {
        bail!("{}: two mutations have one name", path.display());
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_where_the_list_says_and_someone_should_notice() {
        let scenarios = crate::scenario::names();
        for mutation in load().unwrap() {
            let name = &mutation.name;
            let text = std::fs::read_to_string(root().join(&mutation.file)).unwrap();
            let mutated = mutation.apply(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_ne!(mutated, text, "{name}");
            assert!(mutation.file.starts_with(mutation.ring.folder()), "{name}");
            assert!(!mutation.probes().is_empty(), "{name}");
            for scenario in &mutation.scenarios {
                assert!(scenarios.contains(scenario), "{name}: no scenario {scenario}");
            }
        }
    }

    #[test]
    fn a_check_that_is_not_there_once_is_an_error() {
        let mutation = Mutation {
            name: "m".into(),
            ring: Ring::Crate,
            about: String::new(),
            file: "crates/x".into(),
            find: "if bad { return }".into(),
            replace: String::new(),
            host: Vec::new(),
            scenarios: Vec::new(),
        };
        assert_eq!(mutation.apply("a; if bad { return } b;").unwrap(), "a;  b;");
        assert!(mutation.apply("a; b;").is_err());
        assert!(mutation.apply("if bad { return } if bad { return }").is_err());
    }
}
