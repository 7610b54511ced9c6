//! How much a class of devices takes: lines of tables, which say what its ioctls lead to, and of code beyond them, by which it looks in sysfs as programs
//! expect. A class whose ioctls lead to their own structures only, and which nobody looks for, takes none.

use crate::bench::record::{Aim, Record};
use crate::workspace::root;
use anyhow::{Context, Result, ensure};

const TABLES: &str = "guest/linux/sluice-devfile/tables.h";
/// Headings there, names in rows, and the code of the class.
const CLASSES: [(&str, &str, Option<&str>); 7] = [
    ("Cameras", "camera", Some("guest/linux/sluice-devfile-video/video.c")),
    ("Media", "media", None),
    ("Sound", "sound", Some("guest/linux/sluice-devfile-sound/sound.c")),
    ("Input", "input", Some("guest/linux/sluice-devfile/input.c")),
    ("Terminals", "terminal", None),
    ("Graphics", "graphics", Some("guest/linux/sluice-devfile-drm/drm.c")),
    ("Packets", "packets", None),
];

/// Counts them.
pub fn measure(record: &mut Record) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).with_context(|| format!("no {path}"));
    let text = read(TABLES)?;
    for (heading, class, file) in CLASSES {
        let lines = count(&text, heading);
        ensure!(lines > 0, "{TABLES} has no part '{heading}'");
        let note = format!("of {TABLES}, without empty ones and comments");
        record.row(format!("devfile.lines.{class}.table"), lines as f64, "lines", note);
        let (lines, note) = match file {
            Some(file) => (code(read(file)?.lines()), format!("of {file}, without empty ones and comments")),
            None => (0, "nothing beyond the table".to_owned()),
        };
        record.aimed(format!("devfile.lines.{class}"), lines as f64, "lines", Some(Aim::AtMost(50.0)), note);
    }
    for class in ["random", "watchdog"] {
        record.row(format!("devfile.lines.{class}"), 0.0, "lines", "the numbers of its ioctls say all");
    }
    Ok(())
}

/// How many of these lines of C are neither empty nor of a comment alone.
fn code<'t>(lines: impl Iterator<Item = &'t str>) -> usize {
    let mut within = false;
    let mut is_code = |line: &str| {
        let (line, begins) = (line.trim(), !within && line.trim_start().starts_with("/*"));
        let is_comment = within || begins || line.starts_with("//");
        within = (within || begins) && !line.ends_with("*/");
        !is_comment && !line.is_empty()
    };
    lines.filter(|line| is_code(line)).count()
}

/// Lines under a heading, up to the next or to the list of classes.
fn count(text: &str, heading: &str) -> usize {
    let is = |line: &str, heading: &str| line == format!("/* {heading}. */");
    let is_heading = |line: &str| CLASSES.iter().any(|(heading, ..)| is(line, heading));
    let part = text.lines().skip_while(|line| !is(line, heading)).skip(1);
    let part = part.take_while(|line| !is_heading(line) && *line != "static const struct {");
    code(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_those_beside_comments() {
        let text = "// SPDX\n/*\n * Words.\n */\n#include <a>\n\n/* One. */\nint a; /* two */\n";
        assert_eq!(code(text.lines()), 2);
    }

    #[test]
    fn lines_of_a_class_are_those_under_its_heading() {
        let text = "/* Sound. */\n\none\n\t/* not this */\n/* Nor this. */\ntwo\n\n/* Input. */\nthree\nstatic const struct {\nfour\n";
        assert_eq!((count(text, "Sound"), count(text, "Input"), count(text, "Cameras")), (2, 1, 0));
    }
}
