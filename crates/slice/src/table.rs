//! What was found as C for the front end of device files: initializers of `struct lead` in the macros of
//! guest/linux/sluice-devfile/tables.h, and arrays for what elements lead to.

use crate::lead::{From, Slice};
use crate::line::{Count, Line, SPECIAL};
use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

/// Lines of a table, and the arrays that they name.
#[derive(Debug, Default)]
pub struct Table {
    /// What must stand before the lines.
    arrays: String,
    lines: String,
    /// Arrays by the command and what is in them.
    known: Vec<(String, Vec<Line>)>,
}

impl Table {
    /// Adds what is known of a command, and why something is not.
    pub fn add(&mut self, command: &str, number: u32, slice: &Slice) {
        let lines: Vec<Line> = slice.leads.iter().map(|lead| Line::of(number, lead)).collect();
        self.add_lines(command, &lines);
        if !slice.reasons.is_empty() {
            let reasons: Vec<&str> = slice.reasons.iter().map(String::as_str).collect();
            self.lines +=
                &format!("\t/* {} */\n", comment(&format!("{command}: not known: {}", reasons.join("; "))));
        }
    }

    /// Adds lines of a command.
    pub fn add_lines(&mut self, command: &str, lines: &[Line]) {
        for line in lines {
            let text = self.initializers(command, line, &format!(" /* {} */", comment(command)));
            self.lines += &text;
        }
    }

    /// The whole as the definition of a table.
    pub fn definition(&self, name: &str) -> String {
        format!("{}{}", self.arrays, array(&identifier(name), &self.lines))
    }

    /// A line's initializers, each with what is to be said of it: 32 kinds are one.
    fn initializers(&mut self, command: &str, line: &Line, remark: &str) -> String {
        let Some(fields) = fields(line) else {
            return format!(
                "\t/* {}: no numbers of 16 bits: {} */\n",
                comment(command),
                comment(&format!("{line:?}"))
            );
        };
        let elements = self.elements(command, &line.elements);
        let ways = match (line.is_read, line.is_written) {
            (true, false) => "IN",
            (true, true) => "BOTH",
            (false, true) => "SLUICE_DEVFILE_OUT",
            (false, false) => "0",
        };
        let number = if line.number < 2 { line.number.to_string() } else { format!("{:#010x}", line.number) };
        kinds(line)
            .iter()
            .map(|kind| format!("\t{{ LEAD({number}, {ways}){fields}{kind}{elements} }},{remark}\n"))
            .collect()
    }

    /// The field that names an array of these, which is written unless there is one.
    fn elements(&mut self, command: &str, lines: &[Line]) -> String {
        if lines.is_empty() {
            return String::new();
        }
        let same = |(of, known): &(String, Vec<Line>)| of == command && known == lines;
        let number = match self.known.iter().position(same) {
            Some(at) => at,
            None => {
                let text: String = lines.iter().map(|line| self.initializers(command, line, "")).collect();
                let number = self.known.len();
                self.known.push((command.to_owned(), lines.to_vec()));
                self.arrays += &array(&elements_name(command, number), &text);
                number
            }
        };
        format!(", .elements = {}", elements_name(command, number))
    }
}

/// Arrays, and then lines, without what makes a table of them.
impl Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.arrays, self.lines)
    }
}

fn array(name: &str, lines: &str) -> String {
    format!("static const struct lead {name}[] = {{\n{lines}\t{{}}\n}};\n")
}

fn elements_name(command: &str, number: usize) -> String {
    format!("{}_{}", identifier(command), number + 1)
}

/// Where the memory is and how much; none: a number is none of 16 bits, or would mean something else.
fn fields(line: &Line) -> Option<String> {
    let fits = |number: i64| u64::try_from(number).is_ok_and(|number| number < SPECIAL);
    let mut text = String::new();
    let mut say = |name: &str, number: i64| {
        let _ = write!(text, ", .{name} = {number}");
        fits(number).then_some(())
    };
    match line.from {
        From::Pointer(at) => {
            say("pointer", at)?;
            say("pointer_bytes", line.pointer_bytes.into())?;
        }
        From::Follows(at) => say("follows", at)?,
    }
    if let Count::Field(at, bytes) = line.count {
        say("count", at)?;
        say("count_bytes", bytes.into())?;
    }
    match line.size {
        Some(size) => say("size", size)?,
        None => text += " /* frames */",
    }
    if line.count == Count::Computed {
        text += " /* as many as are computed */";
    }
    fits(line.kind.as_ref().map_or(0, |(at, _)| *at)).then_some(text)
}

/// The fields of a kind, once for each 32.
fn kinds(line: &Line) -> Vec<String> {
    let Some((at, values)) = &line.kind else { return vec![String::new()] };
    // The front end reads four bytes without a sign.
    let values: BTreeSet<u32> = values.iter().map(|&value| value as u32).collect();
    let mut found = Vec::new();
    let mut rest = values.into_iter().peekable();
    while let Some(&least) = rest.peek() {
        let first = if least < 32 { 0 } else { least };
        let mut bits = 0_u32;
        while let Some(value) = rest.next_if(|value| value - first < 32) {
            bits |= 1 << (value - first);
        }
        let mut text = format!(", .kind = {at}, .kinds = {bits:#x}");
        if first != 0 {
            let _ = write!(text, ", .first_kind = {first}");
        }
        found.push(text);
    }
    found
}

/// What may be the name of a variable.
fn identifier(name: &str) -> String {
    let part = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
    let begins = if name.starts_with(|first: char| first.is_ascii_digit()) { "_" } else { "" };
    format!("{begins}{}", name.chars().map(part).collect::<String>())
}

/// What neither ends a comment nor begins a line.
fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lead;

    fn text(leads: Vec<Lead>, reasons: &[&str]) -> String {
        let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        let mut table = Table::default();
        table.add("A_COMMAND", 0xc040_64a0, &Slice { leads, reasons, ..Slice::default() });
        table.to_string()
    }

    #[test]
    fn an_array_has_a_count_and_what_is_written_is_read_as_well() {
        let lead = Lead {
            count: Some((32, 4)),
            is_read: false,
            is_written: true,
            ..Lead::read(From::Pointer(0), 4)
        };
        assert_eq!(
            text(vec![lead], &[]),
            "\t{ LEAD(0xc04064a0, BOTH), .pointer = 0, .pointer_bytes = 8, .count = 32, .count_bytes = 4, .size = 4 }, \
             /* A_COMMAND */\n"
        );
    }

    #[test]
    fn one_structure_has_no_count() {
        assert_eq!(
            text(vec![Lead::read(From::Pointer(8), 24)], &[]),
            "\t{ LEAD(0xc04064a0, IN), .pointer = 8, .pointer_bytes = 8, .size = 24 }, /* A_COMMAND */\n"
        );
    }

    #[test]
    fn what_follows_the_structure_has_no_pointer() {
        let lead = Lead { count: Some((4, 4)), ..Lead::read(From::Follows(8), 1) };
        assert_eq!(
            text(vec![lead], &[]),
            "\t{ LEAD(0xc04064a0, IN), .follows = 8, .count = 4, .count_bytes = 4, .size = 1 }, /* A_COMMAND */\n"
        );
    }

    #[test]
    fn kinds_are_bits_of_32_numbers_at_a_time() {
        let of = |kinds: &[i64]| {
            text(vec![Lead { kind: Some((12, kinds.to_vec())), ..Lead::read(From::Pointer(0), 8) }], &[])
        };
        let line = |kinds: &str| {
            format!(
                "\t{{ LEAD(0xc04064a0, IN), .pointer = 0, .pointer_bytes = 8, .size = 8, .kind = 12, {kinds} }}, \
                 /* A_COMMAND */\n"
            )
        };
        assert_eq!(of(&[10, 9]), line(".kinds = 0x600"));
        assert_eq!(
            of(&[0, 31, 32, 63, 64]),
            [
                line(".kinds = 0x80000001"),
                line(".kinds = 0x80000001, .first_kind = 32"),
                line(".kinds = 0x1, .first_kind = 64")
            ]
            .concat()
        );
    }

    #[test]
    fn elements_are_arrays_before_the_line_and_the_same_ones_are_written_once() {
        let words = Lead { count: Some((4, 4)), ..Lead::read(From::Pointer(8), 4) };
        let chunks = Lead { elements: vec![words], ..Lead::read(From::Pointer(0), 16) };
        let list = |at| Lead {
            count: Some((4, 4)),
            elements: vec![chunks.clone()],
            ..Lead::read(From::Pointer(at), 8)
        };
        let mut table = Table::default();
        table.add("A-COMMAND", 2, &Slice { leads: vec![list(16), list(24)], ..Slice::default() });
        assert_eq!(
            table.definition("a-driver_leads"),
            "static const struct lead a_command_1[] = {\n\
             \t{ LEAD(1, IN), .pointer = 8, .pointer_bytes = 8, .count = 4, .count_bytes = 4, .size = 4 },\n\
             \t{}\n};\n\
             static const struct lead a_command_2[] = {\n\
             \t{ LEAD(1, IN), .pointer = 0, .pointer_bytes = 8, .size = 16, .elements = a_command_1 },\n\
             \t{}\n};\n\
             static const struct lead a_driver_leads[] = {\n\
             \t{ LEAD(0x00000002, IN), .pointer = 16, .pointer_bytes = 8, .count = 4, .count_bytes = 4, .size = 8, \
             .elements = a_command_2 }, /* A-COMMAND */\n\
             \t{ LEAD(0x00000002, IN), .pointer = 24, .pointer_bytes = 8, .count = 4, .count_bytes = 4, .size = 8, \
             .elements = a_command_2 }, /* A-COMMAND */\n\
             \t{}\n};\n"
        );
    }

    #[test]
    fn what_is_not_known_is_said_in_a_comment_that_no_reason_ends() {
        assert_eq!(
            text(Vec::new(), &["f: the length: it is too large", "g: a */ b\nc"]),
            "\t/* A_COMMAND: not known: f: the length: it is too large; g: a * / b c */\n"
        );
    }

    #[test]
    fn a_number_that_would_mean_something_else_is_not_written() {
        for (from, size) in [(From::Pointer(0xffff), 4), (From::Follows(-8), 4), (From::Pointer(0), 0xfffe)] {
            assert!(
                text(vec![Lead::read(from, size)], &[])
                    .starts_with("\t/* A_COMMAND: no numbers of 16 bits: Line {")
            );
        }
        assert!(text(vec![Lead::read(From::Pointer(0xfffc), 0xfffc)], &[]).starts_with("\t{ LEAD"));
    }
}
