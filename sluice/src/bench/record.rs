//! What a benchmark found: rows, and what is needed to judge and repeat them.

use crate::table::Table;
use crate::workspace::{root, write_whole};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::Command;

/// One benchmark's rows, versions and machine.
pub struct Record {
    name: &'static str,
    rows: Vec<(String, f64, &'static str, String)>,
    versions: Map<String, Value>,
}

impl Record {
    /// An empty record.
    pub fn new(name: &'static str) -> Self {
        let mut record = Self { name, rows: Vec::new(), versions: Map::new() };
        let qemu = first_line(Command::new(crate::qemu::program()).arg("--version"));
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

    /// Adds a row. The value is kept with six significant digits.
    pub fn row(&mut self, id: impl Into<String>, value: f64, unit: &'static str, note: impl Into<String>) {
        self.rows.push((id.into(), rounded(value), unit, note.into()));
    }

    /// The value of a row that is there already.
    pub fn value(&self, id: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.0 == id).map(|row| row.1)
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

    /// The rows for people.
    pub fn table(&self) -> String {
        let mut table = Table::new(&["", "value", "unit"]);
        for (id, value, unit, _) in &self.rows {
            table.row(vec![id.clone(), shown(*value), (*unit).to_owned()]);
        }
        table.render()
    }

    /// Writes `bench/results/NAME.json`.
    pub fn write(&self) -> Result<PathBuf> {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|(id, value, unit, note)| json!({ "id": id, "value": value, "unit": unit, "note": note }))
            .collect();
        let document = json!({
            "benchmark": self.name,
            "command": format!("cargo sluice bench {}", self.name),
            "measured": first_line(Command::new("date").args(["-u", "+%Y-%m-%d"])),
            "machine": {
                "emulated": "QEMU TCG, q35, -cpu EPYC,+svm,+npt, 1 physical processor",
                "host": host(),
            },
            "versions": self.versions,
            "rows": rows,
        });
        let path = root().join("bench/results").join(format!("{}.json", self.name));
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

fn shown(value: f64) -> String {
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
    fn values_keep_six_digits() {
        assert_eq!(rounded(123_456_789.0), 123_456_789.0);
        assert_eq!(rounded(1.234_567_89), 1.23457);
        assert_eq!(rounded(0.001_234_567_8), 0.001_234_57);
        assert_eq!(rounded(f64::NAN), 0.0);
    }
}
