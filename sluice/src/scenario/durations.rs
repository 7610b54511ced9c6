//! How long scenarios took when they were last recorded (`cargo sluice test --record`): `tests/durations.toml`. Only the
//! order and the packing of the suite depend on it, never a verdict.

use crate::workspace::{root, write_whole};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One scenario's run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Duration {
    /// Seconds from start to end.
    pub wall: f64,
    /// Seconds of processor time that QEMU took, in all its threads.
    pub cpu: f64,
}

/// Durations by the names of scenarios.
pub type Durations = BTreeMap<String, Duration>;

fn path() -> PathBuf {
    root().join("tests/durations.toml")
}

/// What was recorded; nothing if there is no file.
pub fn load() -> Result<Durations> {
    let path = path();
    match std::fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("{}", path.display())),
        Err(_) => Ok(Durations::new()),
    }
}

/// Records `fresh` beside what is known of others; forgets scenarios that are not among `known`.
pub fn record(fresh: &Durations, known: impl Fn(&str) -> bool) -> Result<()> {
    let mut all = load()?;
    all.extend(fresh.iter().map(|(name, duration)| (name.clone(), *duration)));
    all.retain(|name, _| known(name));
    write_whole(&path(), text(&all).as_bytes())
}

fn text(durations: &Durations) -> String {
    let mut text = String::from(
        "# Seconds, and seconds of processor time, of each scenario's last recorded run: the longest start first.\n\
         # Written by `cargo sluice test --record`; worth repeating on an idle machine when much has changed.\n\n",
    );
    for (name, Duration { wall, cpu }) in durations {
        text += &format!("{name} = {{ wall = {wall:.1}, cpu = {cpu:.1} }}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let some = Durations::from([("boot-6-1".to_owned(), Duration { wall: 12.5, cpu: 10.25 })]);
        let read: Durations = toml::from_str(&text(&some)).unwrap();
        assert_eq!(read["boot-6-1"], Duration { wall: 12.5, cpu: 10.2 });
    }
}
