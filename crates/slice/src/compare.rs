//! Whether the lines of a hand-written table lead to all that was found of a command, and to what else.

use crate::lead::Slice;
use crate::line::{Count, Line};
use crate::table::Table;

/// What came of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Neither leads anywhere, and all is known.
    Nowhere,
    /// The table leads to what was found.
    Same,
    /// It leads to that, and to more.
    Wider,
    /// Something was found that it does not lead to.
    Missing,
    /// It leads to what was found, but something is not known.
    NotKnown,
}

impl Verdict {
    /// In reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nowhere => "nowhere",
            Self::Same => "same",
            Self::Wider => "wider",
            Self::Missing => "missing",
            Self::NotKnown => "not known",
        }
    }
}

/// A command, in the table and as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What came of it.
    pub verdict: Verdict,
    /// Found, and not in the table.
    pub missing: Vec<Line>,
    /// In the table, and not found.
    pub more: Vec<Line>,
}

impl Comparison {
    /// Compares what was found of a command with a table.
    pub fn of(number: u32, slice: &Slice, table: &[Line]) -> Self {
        let found: Vec<Line> = slice.leads.iter().map(|lead| Line::of(number, lead)).collect();
        let known = if slice.reasons.is_empty() { Known::Whole } else { Known::OneRound };
        Self::of_lines(number, &found, known, table)
    }

    /// What differs as C, behind what is said of either side where it has something.
    pub fn differences(&self, command: &str, missing: &str, more: &str) -> String {
        let mut text = String::new();
        for (title, lines) in [(missing, &self.missing), (more, &self.more)] {
            if !lines.is_empty() {
                let mut table = Table::default();
                table.add_lines(command, lines);
                text += &format!("  {title}:\n{table}");
            }
        }
        text
    }

    /// Compares lines of a command with a table, where something of it may be not known.
    fn of_lines(number: u32, found: &[Line], known: Known, table: &[Line]) -> Self {
        let table: Vec<Line> = table.iter().filter(|line| line.number == number).cloned().collect();
        let left = |from: &[Line], by: &[Line], known: Known| -> Vec<Line> {
            from.iter().filter(|line| !is_covered(line, by, known)).cloned().collect()
        };
        let (missing, more) = (left(found, &table, known), left(&table, found, Known::Whole));
        let verdict = if !missing.is_empty() {
            Verdict::Missing
        } else if known == Known::OneRound {
            Verdict::NotKnown
        } else if found.is_empty() && table.is_empty() {
            Verdict::Nowhere
        } else if more.is_empty() {
            Verdict::Same
        } else {
            Verdict::Wider
        };
        Self { verdict, missing, more }
    }

    /// Compares what was learned of a command ([`learn`](crate::learn)) with a table. Of what was seen with one number of elements only
    /// nobody knows whether there can be others.
    pub fn of_learned(number: u32, learned: &[Line], table: &[Line]) -> Self {
        let found: Vec<Line> = learned.iter().filter(|line| line.number == number).cloned().collect();
        Self::of_lines(number, &found, Known::OneNumber, table)
    }
}

/// What something is that leads to one element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// One element.
    Whole,
    /// One, or what was found of a round of a loop.
    OneRound,
    /// One, or all of an array that was seen with no other number of elements.
    OneNumber,
}

/// Do lines lead to all that one does? Each kind, and each way, may be another's.
fn is_covered(wanted: &Line, by: &[Line], known: Known) -> bool {
    let kinds: Vec<Option<(i64, i64)>> = match &wanted.kind {
        Some((at, values)) => values.iter().map(|&value| Some((*at, value))).collect(),
        None => vec![None],
    };
    let ways = [(wanted.is_read, false), (wanted.is_written, true)];
    ways.iter().filter(|(is_wanted, _)| *is_wanted).all(|&(_, is_write)| {
        kinds.iter().all(|&kind| {
            by.iter().any(|line| {
                let goes = if is_write { line.is_written } else { line.is_read };
                goes && applies(line, kind) && reaches(line, wanted, known)
            })
        })
    })
}

/// Does a line count for this kind (none: for all)?
fn applies(line: &Line, kind: Option<(i64, i64)>) -> bool {
    match (&line.kind, kind) {
        (None, _) => true,
        (Some((at, values)), Some((field, value))) => *at == field && values.contains(&value),
        (Some(_), None) => false,
    }
}

/// Does a line lead to as much as another, from the same place?
fn reaches(line: &Line, wanted: &Line, known: Known) -> bool {
    let is_same_place = line.from == wanted.from && line.pointer_bytes == wanted.pointer_bytes;
    let is_same_count = match (wanted.count, line.count) {
        (Count::One, Count::Field(..) | Count::Computed) => known != Known::Whole,
        (Count::Computed, _) => false,
        (wanted, count) => wanted == count,
    };
    let (Some(size), Some(least)) = (line.size, wanted.size) else { return false };
    // Where an element begins, and what it leads to, depends on how large one is.
    let is_one = wanted.count == Count::One && line.count != Count::One;
    let is_several = known == Known::OneNumber && is_one && size > 0 && least % size == 0;
    let is_large = if wanted.elements.is_empty() { size >= least || is_several } else { size == least };
    is_same_place
        && is_same_count
        && is_large
        && wanted.elements.iter().all(|element| is_covered(element, &line.elements, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lead::{From, Lead};

    fn lead(pointer: i64, count: Option<(i64, u8)>, size: i64) -> Lead {
        Lead { count, ..Lead::read(From::Pointer(pointer), size) }
    }

    fn compare(found: &[Lead], table: &[Lead]) -> Verdict {
        let slice = Slice { leads: found.to_vec(), ..Slice::default() };
        let table: Vec<Line> = table.iter().map(|lead| Line::of(7, lead)).collect();
        Comparison::of(7, &slice, &table).verdict
    }

    /// The verdict, and that of the two in each other's place.
    fn both(found: &Lead, table: &Lead) -> [Verdict; 2] {
        [(found, table), (table, found)]
            .map(|(found, table)| compare(std::slice::from_ref(found), std::slice::from_ref(table)))
    }

    const NARROWER: [Verdict; 2] = [Verdict::Wider, Verdict::Missing];
    const UNLIKE: [Verdict; 2] = [Verdict::Missing, Verdict::Missing];

    #[test]
    fn a_table_that_leads_to_what_was_found_is_the_same() {
        let leads = [lead(0, Some((8, 4)), 4), lead(16, None, 24)];
        assert_eq!(compare(&leads, &leads), Verdict::Same);
        assert_eq!(compare(&[], &[]), Verdict::Nowhere);
    }

    #[test]
    fn what_was_seen_with_one_number_is_of_a_table_that_counts() {
        let table = [Line::of(7, &lead(0, Some((8, 4)), 4))];
        let learned = |found: &Lead| Comparison::of_learned(7, &[Line::of(7, found)], &table).verdict;
        assert_eq!(learned(&lead(0, Some((8, 4)), 4)), Verdict::Same);
        assert_eq!(learned(&lead(0, None, 12)), Verdict::Wider);
        assert_eq!(learned(&lead(0, None, 10)), Verdict::Missing, "no whole elements");
        assert_eq!(learned(&lead(0, Some((12, 4)), 4)), Verdict::Missing, "another field counts");
        assert_eq!(learned(&lead(16, None, 12)), Verdict::Missing);
    }

    #[test]
    fn a_table_that_leads_to_more_is_wider_and_to_less_lacks_something() {
        let array = lead(0, Some((8, 4)), 4);
        assert_eq!(compare(&[], std::slice::from_ref(&array)), Verdict::Wider);
        assert_eq!(compare(std::slice::from_ref(&array), &[]), Verdict::Missing);
        assert_eq!(both(&array, &lead(0, Some((8, 4)), 8)), NARROWER);
        assert_eq!(both(&array, &Lead { is_written: true, ..array.clone() }), NARROWER);
        assert_eq!(both(&Lead { kind: Some((12, vec![1])), ..array.clone() }, &array), NARROWER);
        let two = Lead { kind: Some((12, vec![1, 2])), ..array.clone() };
        assert_eq!(both(&Lead { kind: Some((12, vec![1])), ..array }, &two), NARROWER);
    }

    #[test]
    fn what_leads_from_elsewhere_or_by_another_count_is_unlike() {
        let array = lead(0, Some((8, 4)), 4);
        for other in [
            lead(16, Some((8, 4)), 4),
            lead(0, Some((12, 4)), 4),
            lead(0, Some((8, 8)), 4),
            lead(0, None, 4),
            Lead { from: From::Follows(0), ..array.clone() },
        ] {
            assert_eq!(both(&array, &other), UNLIKE, "{other:?}");
        }
        let kinds = [12, 16].map(|at| Lead { kind: Some((at, vec![1])), ..array.clone() });
        assert_eq!(both(&kinds[0], &kinds[1]), UNLIKE);
    }

    #[test]
    fn a_structure_may_be_larger_unless_its_elements_would_begin_elsewhere() {
        let of =
            |size, elements: &[Lead]| Lead { elements: elements.to_vec(), ..lead(0, Some((8, 4)), size) };
        let inner = lead(8, None, 4);
        assert_eq!(both(&of(16, &[]), &of(16, std::slice::from_ref(&inner))), NARROWER);
        assert_eq!(both(&of(16, std::slice::from_ref(&inner)), &of(16, &[lead(8, None, 8)])), NARROWER);
        let (small, large) = (of(16, std::slice::from_ref(&inner)), of(24, &[inner]));
        assert_eq!(both(&small, &large), UNLIKE);
    }

    #[test]
    fn several_lines_may_cover_one_by_kinds_and_ways() {
        let kinds = |kinds: &[i64]| Lead { kind: Some((12, kinds.to_vec())), ..lead(0, None, 8) };
        assert_eq!(compare(&[kinds(&[1, 2])], &[kinds(&[1]), kinds(&[2])]), Verdict::Same);
        assert_eq!(compare(&[kinds(&[1, 2, 3])], &[kinds(&[1]), kinds(&[2])]), Verdict::Missing);
    }

    #[test]
    fn of_what_is_not_known_only_what_is_found_is_compared() {
        let mut slice = Slice { reasons: ["why".to_owned()].into(), ..Slice::default() };
        assert_eq!(Comparison::of(7, &slice, &[]).verdict, Verdict::NotKnown);
        slice.leads.push(lead(0, None, 8));
        let found = Comparison::of(7, &slice, &[]);
        assert_eq!((found.verdict, found.missing), (Verdict::Missing, vec![Line::of(7, &slice.leads[0])]));
    }

    #[test]
    fn what_is_known_of_a_loop_in_part_may_be_one_element_of_an_array() {
        let of = |reasons: &[&str], count| {
            let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            let slice = Slice { leads: vec![lead(0, None, 4)], reasons, ..Slice::default() };
            let array = Line { count, ..Line::of(7, &slice.leads[0]) };
            let small = Line { size: Some(2), ..array.clone() };
            [array, small].map(|line| Comparison::of(7, &slice, &[line]).verdict)
        };
        for count in [Count::Field(8, 4), Count::Computed] {
            assert_eq!(of(&["a loop that is never known"], count), [Verdict::NotKnown, Verdict::Missing]);
            assert_eq!(of(&[], count), [Verdict::Missing; 2]);
        }
    }

    #[test]
    fn lines_of_other_commands_and_computed_numbers_cover_nothing() {
        let slice = Slice { leads: vec![lead(0, Some((8, 4)), 4)], ..Slice::default() };
        let line = Line::of(7, &slice.leads[0]);
        for line in [
            Line { number: 8, ..line.clone() },
            Line { count: Count::Computed, ..line.clone() },
            Line { size: None, ..line.clone() },
            Line { pointer_bytes: 4, ..line },
        ] {
            assert_eq!(Comparison::of(7, &slice, &[line]).verdict, Verdict::Missing);
        }
    }
}
