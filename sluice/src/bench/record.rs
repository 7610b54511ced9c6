//! What a benchmark found: rows, and what is needed to judge and repeat them.

use crate::table::Table;
use crate::workspace::{root, write_whole};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::Command;

/// What a row should come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Under(f64),
    /// This or more.
    AtLeast(f64),
}

impl Aim {
    /// The value, as it is shown, is what it should be.
    pub fn met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Under(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit}"),
            Self::Under(limit) => format!("under {limit}"),
            Self::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

struct Row {
    id: String,
    value: f64,
    unit: &'static str,
    note: String,
    aim: Option<Aim>,
}

impl Row {
    fn json(&self) -> Value {
        let mut row = json!({ "id": self.id, "value": self.value, "unit": self.unit, "note": self.note });
        if let Some(aim) = self.aim {
            row["aim"] = json!(aim.text());
            row["met"] = json!(aim.met(self.value));
        }
        row
    }
}

/// One benchmark's rows, versions and machine.
pub struct Record {
    name: &'static str,
    command: String,
    rows: Vec<Row>,
    /// Rows of an earlier measurement that are not measured again.
    kept: Vec<Value>,
    versions: Map<String, Value>,
    problems: Vec<String>,
}

impl Record {
    /// An empty record.
    pub fn new(name: &'static str) -> Self {
        let mut record = Self {
            name,
            command: format!("cargo sluice bench {name}"),
            rows: Vec::new(),
            kept: Vec::new(),
            versions: Map::new(),
            problems: Vec::new(),
        };
        let qemu = first_line(Command::new(crate::workspace::qemu()).arg("--version"));
        record.version("qemu", &qemu);
        // Only what ends up in the image makes it another hypervisor.
        let image = ["hypervisor", "crates", "Cargo.lock"];
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(arguments).arg("--").args(image).current_dir(root());
            git
        };
        let commit = first_line(&mut git(&["log", "-1", "--format=%H"]));
        let changed = git(&["diff", "--quiet", "HEAD"]).status().is_ok_and(|status| !status.success());
        record.version("hypervisor", &format!("{commit}{}", if changed { " with changes" } else { "" }));
        record
    }

    /// It is not `cargo sluice bench` that finds this.
    pub fn made_by(&mut self, command: &str) {
        command.clone_into(&mut self.command);
    }

    /// Forgets kept rows.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.kept.retain(|row| row["id"].as_str().is_some_and(&keep));
    }

    /// Keeps the rows of the last measurement that will not come again, with the hypervisor they were measured on.
    pub fn keep_others(&mut self) {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let mut document: Value = serde_json::from_str(&text).unwrap_or_default();
        self.kept = document["rows"].as_array_mut().map(std::mem::take).unwrap_or_default();
        // What is measured again may be so on another hypervisor.
        for row in &mut self.kept {
            if row["hypervisor"].is_null() {
                row["hypervisor"] = document["versions"]["hypervisor"].clone();
            }
        }
        let problems = document["problems"].as_array_mut().map(std::mem::take).unwrap_or_default();
        self.problems = problems.iter().filter_map(|problem| Some(problem.as_str()?.to_owned())).collect();
    }

    /// Adds a row. The value is kept with six significant digits.
    pub fn row(&mut self, id: impl Into<String>, value: f64, unit: &'static str, note: impl Into<String>) {
        self.add(Row { id: id.into(), value: rounded(value), unit, note: note.into(), aim: None });
    }

    /// Adds a row that should come to something.
    pub fn aimed(
        &mut self,
        id: impl Into<String>,
        value: f64,
        unit: &'static str,
        aim: Option<Aim>,
        note: impl Into<String>,
    ) {
        self.add(Row { id: id.into(), value: rounded(value), unit, note: note.into(), aim });
    }

    /// A row replaces one of the same name.
    fn add(&mut self, row: Row) {
        self.kept.retain(|kept| kept["id"] != row.id.as_str());
        self.rows.retain(|earlier| earlier.id != row.id);
        self.rows.push(row);
    }

    /// The value of a row that is there already.
    pub fn value(&self, id: &str) -> Option<f64> {
        let fresh = self.rows.iter().find(|row| row.id == id).map(|row| row.value);
        fresh.or_else(|| self.kept.iter().find(|row| row["id"] == id)?["value"].as_f64())
    }

    /// Notes what was measured.
    pub fn version(&mut self, what: &str, version: &str) {
        self.versions.insert(what.to_owned(), json!(version));
    }

    /// Notes the kernels of a run.
    pub fn kernels(&mut self, kernels: &[(String, String, String)]) {
        for (name, release, version) in kernels {
            self.version(name, &format!("{release}, package {version}"));
        }
    }

    /// Notes what could not be measured.
    pub fn problem(&mut self, what: &str, text: &str) {
        self.solved(what);
        let root = format!("{}/", root().display());
        self.problems.push(format!("{what}: {}", text.replace(&root, "")));
    }

    /// It could be measured now.
    pub fn solved(&mut self, what: &str) {
        self.problems.retain(|problem| !problem.starts_with(&format!("{what}: ")));
    }

    /// What could not be measured.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The rows for people.
    pub fn table(&self) -> String {
        let mut table = Table::new(&["", "value", "unit", "aim", ""]);
        for row in &self.rows {
            let (aim, verdict) = match row.aim {
                None => (String::new(), ""),
                Some(aim) => (aim.text(), if aim.met(row.value) { "met" } else { "MISSED" }),
            };
            table.row(vec![row.id.clone(), shown(row.value), row.unit.to_owned(), aim, verdict.to_owned()]);
        }
        table.render()
    }

    fn path(&self) -> PathBuf {
        root().join("bench/results").join(format!("{}.json", self.name))
    }

    /// Writes `bench/results/NAME.json`: all that is known until now.
    pub fn write(&self) -> Result<PathBuf> {
        let rows: Vec<Value> = self.kept.iter().cloned().chain(self.rows.iter().map(Row::json)).collect();
        let document = json!({
            "benchmark": self.name,
            "command": self.command,
            "measured": first_line(Command::new("date").args(["-u", "+%Y-%m-%d"])),
            "machine": {
                "emulated": "QEMU TCG, q35, -cpu EPYC,+svm,+npt, 1 physical processor",
                "host": host(),
            },
            "versions": self.versions,
            "problems": self.problems,
            "rows": rows,
        });
        let path = self.path();
        write_whole(&path, (serde_json::to_string_pretty(&document)? + "\n").as_bytes())?;
        Ok(crate::workspace::shortened(&path))
    }
}

fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = (6.0 - value.abs().log10().ceil()).clamp(0.0, 9.0);
    let scale = 10_f64.powf(digits);
    (value * scale).round() / scale
}

/// A value for people.
pub fn shown(value: f64) -> String {
    if value.fract() == 0.0 { crate::table::grouped(value as u64) } else { format!("{value}") }
}

fn host() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = text.lines().filter(|line| line.starts_with("processor")).count();
    format!("{processors} processors, {}", model.map_or("unknown", |(_, name)| name))
}

fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_met_by_what_is_shown() {
        let mut record = Record {
            name: "test",
            command: String::new(),
            rows: Vec::new(),
            kept: vec![json!({ "id": "a", "value": 1.0 }), json!({ "id": "b", "value": 2.0 })],
            versions: Map::new(),
            problems: Vec::new(),
        };
        record.aimed("a", 0.95, "ratio", Some(Aim::AtLeast(0.95)), "");
        record.aimed("c", 1.21, "ratio", Some(Aim::AtMost(1.2)), "");
        assert_eq!(record.rows[0].json()["met"], json!(true));
        assert_eq!(record.rows[1].json()["met"], json!(false));
        assert_eq!((record.value("a"), record.value("b")), (Some(0.95), Some(2.0)));
        assert_eq!(record.kept.len(), 1, "what is measured again replaces what was");
    }

    #[test]
    fn values_keep_six_digits() {
        assert_eq!(rounded(123_456_789.0), 123_456_789.0);
        assert_eq!(rounded(1.234_567_89), 1.23457);
        assert_eq!(rounded(0.001_234_567_8), 0.001_234_57);
        assert_eq!(rounded(f64::NAN), 0.0);
    }
}
