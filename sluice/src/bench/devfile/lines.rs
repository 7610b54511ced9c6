//! How much a class of devices takes: lines of what its ioctls lead to. A class whose ioctls lead to their own structures only takes none.

use crate::bench::record::{Aim, Record};
use crate::workspace::root;
use anyhow::{Context, Result, ensure};

const TABLES: &str = "guest/linux/sluice-devfile/tables.h";
/// Headings there, and names in rows.
const CLASSES: [(&str, &str); 5] = [
    ("Cameras", "camera"),
    ("Media", "media"),
    ("Sound", "sound"),
    ("Input", "input"),
    ("Terminals", "terminal"),
];

/// Counts them.
pub fn measure(record: &mut Record) -> Result<()> {
    let text = std::fs::read_to_string(root().join(TABLES)).with_context(|| format!("no {TABLES}"))?;
    for (heading, class) in CLASSES {
        let lines = count(&text, heading);
        ensure!(lines > 0, "{TABLES} has no part '{heading}'");
        let note = format!("of {TABLES}, without empty ones and comments");
        record.aimed(format!("devfile.lines.{class}"), lines as f64, "lines", Some(Aim::AtMost(50.0)), note);
    }
    for class in ["random", "watchdog"] {
        record.row(format!("devfile.lines.{class}"), 0.0, "lines", "the numbers of its ioctls say all");
    }
    Ok(())
}

/// Lines under a heading, up to the next or to the list of classes.
fn count(text: &str, heading: &str) -> usize {
    let is = |line: &str, heading: &str| line == format!("/* {heading}. */");
    let is_heading = |line: &str| CLASSES.iter().any(|(heading, _)| is(line, heading));
    let part = text.lines().skip_while(|line| !is(line, heading)).skip(1);
    let part = part.take_while(|line| !is_heading(line) && *line != "static const struct {");
    part.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("/*")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_class_are_those_under_its_heading() {
        let text = "/* Sound. */\n\none\n\t/* not this */\n/* Nor this. */\ntwo\n\n/* Input. */\nthree\nstatic const struct {\nfour\n";
        assert_eq!((count(text, "Sound"), count(text, "Input"), count(text, "Cameras")), (2, 1, 0));
    }
}
