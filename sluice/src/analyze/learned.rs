//! Tables that were learned (daemons/sluice-learn) against the front end's hand-written ones.

use super::clang::Compiler;
use crate::kernels::Kernel;
use anyhow::{Context, Result, ensure};
use sluice_slice::{Comparison, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Classes of devices, and their tables.
const CLASSES: [(&str, &str); 7] = [
    ("drm", "graphics_leads"),
    ("video4linux", "video_leads"),
    ("media", "media_leads"),
    ("sound", "sound_leads"),
    ("input", "input_leads"),
    ("tty", "terminal_leads"),
    ("misc", "packet_leads"),
];

/// What was learned of a class, by command.
pub struct Learned {
    /// The class.
    pub class: &'static str,
    commands: Vec<(u32, Comparison)>,
}

impl Learned {
    /// Compares all classes that there are in what the program wrote.
    ///
    /// # Errors
    /// It is no C, or there are no tables in it.
    pub fn read(text: &str, kernel: &Kernel) -> Result<Vec<Self>> {
        let compiler = Compiler::new(kernel)?;
        let mut found = Vec::new();
        for (class, table) in CLASSES {
            let name = format!("learned_{class}");
            if !text.contains(&format!(" {name}[]")) {
                continue;
            }
            let lines = compiler.lines(&name, text).context("what was learned is no C")?;
            let table = compiler.lines(table, "")?;
            let numbers: BTreeSet<u32> = lines.iter().map(|line| line.number).collect();
            let compare = |number| (number, Comparison::of_learned(number, &lines, &table));
            found.push(Self { class, commands: numbers.into_iter().map(compare).collect() });
        }
        ensure!(!found.is_empty(), "there is no table in it that was learned of a class with a table");
        Ok(found)
    }

    /// How many commands have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.commands.iter().filter(|(_, compared)| compared.verdict == verdict).count()
    }

    /// A line for each command, with what differs as C.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (number, compared) in &self.commands {
            let command = format!("{} {number:#010x}", self.class);
            let _ = writeln!(text, "{command}: {}", compared.verdict.word());
            text += &compared.differences(&command, "learned, and not in the table", "in the table");
        }
        text
    }
}
