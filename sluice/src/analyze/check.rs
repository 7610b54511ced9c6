//! The front end's hand-written table (guest/linux/sluice-devfile/tables.h) against what is found in a driver.

use super::Found;
use sluice_slice::{Comparison, From, Line, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What the table may lack.
#[derive(Clone, Copy, Debug)]
struct Exception {
    /// Of this command.
    command: &'static str,
    /// What is there.
    from: From,
    /// If an element has no more bytes.
    size: i64,
    why: &'static str,
}

const EXCEPTIONS: [Exception; 4] = [
    Exception {
        command: "DRM_IOCTL_MODE_ATOMIC",
        from: From::Pointer(32),
        size: 8,
        why: "the value of OUT_FENCE_PTR is an address; the front end knows it by the property's name (fence.c)",
    },
    Exception {
        command: "DRM_IOCTL_MODE_SETPROPERTY",
        from: From::Pointer(0),
        size: 4,
        why: "the value of WRITEBACK_OUT_FENCE_PTR, where -1 is written; only DRM_IOCTL_MODE_ATOMIC makes a fence",
    },
    Exception {
        command: "DRM_IOCTL_MODE_OBJ_SETPROPERTY",
        from: From::Pointer(0),
        size: 4,
        why: "the value of OUT_FENCE_PTR, where -1 is written; only DRM_IOCTL_MODE_ATOMIC makes a fence",
    },
    Exception {
        command: "RADEON_INFO",
        from: From::Pointer(8),
        size: 128,
        why: "the largest answer is found for all requests; the table has each request's, from radeon_info_ioctl",
    },
];

/// Type of the ioctls of graphics cards (`DRM_IOCTL_BASE`), and which of their numbers are a driver's own (`DRM_COMMAND_BASE`,
/// `DRM_COMMAND_END`).
const GRAPHICS: u32 = b'd' as u32;
const OF_DRIVERS: std::ops::Range<u32> = 0x40..0xa0;

/// How many commands of a driver have which verdict, without those that lead nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The table leads to what was found.
    pub same: usize,
    /// It leads to more.
    pub wider: usize,
    /// Something is not in the table.
    pub missing: usize,
    /// Of these, it is known why.
    pub excepted: usize,
    /// Something could not be found.
    pub not_known: usize,
    /// Only in the table.
    pub alone: usize,
}

/// A driver's commands, each with its lines of the table.
pub struct Check<'a> {
    commands: Vec<(&'a Found, Comparison)>,
    /// Numbers that the table has lines for, and the driver no command.
    alone: BTreeSet<u32>,
    exceptions: &'a [Exception],
}

impl<'a> Check<'a> {
    /// Compares all.
    pub fn new(found: &'a [Found], table: &[Line]) -> Self {
        Self::with(found, table, &EXCEPTIONS)
    }

    fn with(found: &'a [Found], table: &[Line], exceptions: &'a [Exception]) -> Self {
        let compare = |command: &'a Found| (command, Comparison::of(command.number, &command.slice, table));
        // Other drivers have other commands by the same numbers.
        let numbers: BTreeSet<u32> = found.iter().map(|command| command.number).collect();
        let kinds: BTreeSet<(u32, bool)> = numbers.iter().map(|&number| owner(number)).collect();
        let alone = table.iter().map(|line| line.number);
        let alone =
            alone.filter(|number| !numbers.contains(number) && kinds.contains(&owner(*number))).collect();
        Self { commands: found.iter().map(compare).collect(), alone, exceptions }
    }

    /// How many are what.
    pub fn counts(&self) -> Counts {
        let count = |is: Verdict| self.commands.iter().filter(|(_, found)| found.verdict == is).count();
        let missing = self.commands.iter().filter(|(_, found)| found.verdict == Verdict::Missing);
        Counts {
            same: count(Verdict::Same),
            wider: count(Verdict::Wider),
            missing: count(Verdict::Missing),
            excepted: missing.filter(|(command, found)| !self.why(command, found).is_empty()).count(),
            not_known: count(Verdict::NotKnown),
            alone: self.alone.len(),
        }
    }

    /// Why all that is missing of a command is; none: nobody knows of some of it.
    fn why(&self, command: &Found, found: &Comparison) -> Vec<&'static str> {
        let why = |line: &Line| {
            let is = |known: &&Exception| {
                known.command == command.name
                    && known.from == line.from
                    && line.size.is_some_and(|size| size <= known.size)
            };
            self.exceptions.iter().find(is).map(|known| known.why)
        };
        found.missing.iter().map(why).collect::<Option<_>>().unwrap_or_default()
    }

    /// All commands that lead anywhere, a line each, with what differs as C.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (command, found) in &self.commands {
            let Found { name, number, slice } = command;
            if found.verdict == Verdict::Nowhere {
                continue;
            }
            let _ = writeln!(text, "{name} {number:#010x}: {}", found.verdict.word());
            for why in self.why(command, found) {
                let _ = writeln!(text, "  an exception: {why}");
            }
            for reason in &slice.reasons {
                let _ = writeln!(text, "  not known: {reason}");
            }
            text += &found.differences(name, "found, and not in the table", "in the table, and not found");
        }
        for number in &self.alone {
            let same = self.commands.iter().find(|(command, _)| command.number & 0xffff == number & 0xffff);
            let what = same
                .map_or_else(String::new, |(command, _)| format!(", as another size of {}", command.name));
            let _ = writeln!(text, "{number:#010x}: only in the table{what}");
        }
        text
    }
}

/// The type of an ioctl's number, and whether it is a driver's own.
fn owner(number: u32) -> (u32, bool) {
    let kind = number >> 8 & 0xff;
    (kind, kind == GRAPHICS && OF_DRIVERS.contains(&(number & 0xff)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_slice::{Lead, Slice};

    const fn lead(size: i64) -> Lead {
        Lead::read(From::Pointer(0), size)
    }

    fn command(name: &str, number: u32, leads: &[Lead], reasons: &[&str]) -> Found {
        let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        let slice = Slice { leads: leads.to_vec(), reasons, ..Slice::default() };
        Found { name: name.to_owned(), number, slice }
    }

    fn found() -> [Found; 6] {
        [
            command("NOWHERE", 0x6400, &[], &[]),
            command("SAME", 0x6401, &[lead(8)], &[]),
            command("WIDER", 0x6402, &[lead(8)], &[]),
            command("MISSING", 0x6403, &[lead(8)], &[]),
            command("REFUSED", 0x6404, &[lead(8)], &[]),
            command("UNKNOWN", 0x6405, &[], &["f: the length: why"]),
        ]
    }

    fn exceptions() -> [Exception; 4] {
        let of = |command, pointer, size| Exception {
            command,
            from: From::Pointer(pointer),
            size,
            why: "nobody may",
        };
        [of("REFUSED", 0, 8), of("SAME", 0, 8), of("MISSING", 8, 8), of("MISSING", 0, 7)]
    }

    fn table() -> Vec<Line> {
        let lines = [(0x6401, 8), (0x6402, 16), (0x6403, 4), (0x1_6401, 8), (0x6440, 8), (0x3e00, 8)];
        lines.map(|(number, size)| Line::of(number, &lead(size))).into()
    }

    #[test]
    fn each_command_that_leads_anywhere_has_a_verdict() {
        let (found, table, exceptions) = (found(), table(), exceptions());
        let check = Check::with(&found, &table, &exceptions);
        let counts = Counts { same: 1, wider: 1, missing: 2, excepted: 1, not_known: 1, alone: 1 };
        assert_eq!(check.counts(), counts);
    }

    #[test]
    fn what_differs_is_shown_as_c_with_reasons() {
        let (found, table, exceptions) = (found(), table(), exceptions());
        let check = Check::with(&found, &table, &exceptions);
        let lead = |number: &str, size: u32, name: &str| {
            format!(
                "\t{{ LEAD({number}, IN), .pointer = 0, .pointer_bytes = 8, .size = {size} }}, /* {name} */\n"
            )
        };
        let expected = [
            "SAME 0x00006401: same\nWIDER 0x00006402: wider\n  in the table, and not found:\n",
            &lead("0x00006402", 16, "WIDER"),
            "MISSING 0x00006403: missing\n  found, and not in the table:\n",
            &lead("0x00006403", 8, "MISSING"),
            "REFUSED 0x00006404: missing\n  an exception: nobody may\n  found, and not in the table:\n",
            &lead("0x00006404", 8, "REFUSED"),
            "UNKNOWN 0x00006405: not known\n  not known: f: the length: why\n",
            "0x00016401: only in the table, as another size of SAME\n",
        ];
        assert!(check.report() == expected.concat(), "{}", check.report());
    }
}
