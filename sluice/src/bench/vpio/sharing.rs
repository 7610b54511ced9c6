//! Several guests that want the card at once: exits while two contend, and what each of two, four and eight gets.
//!
//! All upload the same amount, begin together, and set a mark after each part of it. Compared is what each
//! moved between the last one's first mark and the first one's last mark: while all were busy.

use super::cards::{CARDS, Card, Mode};
use super::{Bench, note, rows};
use crate::bench::fairness::jain;
use crate::bench::record::{Aim, Record};
use crate::outcome::Outcome;
use anyhow::{Context, Result};

/// A part of what is uploaded.
const CHUNK: f64 = 32.0 * 1024.0;

/// Two guests at once, by virtual passthrough and with software cards.
pub fn contended(bench: &Bench, record: &mut Record) {
    for card in CARDS.iter().filter(|card| bench.wants("contended", card)) {
        for mode in [Mode::Vpio, Mode::Emulated] {
            let what = format!("{} {}, two guests", card.id, mode.name());
            bench.parts.say(&what);
            let result = two(bench, record, card, mode);
            note(record, &what, result);
        }
    }
}

fn two(bench: &Bench, record: &mut Record, card: &Card, mode: Mode) -> Result<()> {
    let (outcome, tally) = bench.observe(card, mode, &[1, 1], &card.stream(",down=1M"))?;
    let who = format!("{}.{}", card.id, mode.name());
    rows::contended(record, &who, &outcome.guests, &tally)?;
    if mode.is_vpio() {
        rows::functions(record, card, &outcome, &tally, "two guests at once, without an IOMMU");
        rows::agreement(record, &format!("{who}.contended"), &outcome, &tally)?;
        let moved = Window::new(&outcome, &tally.progress())?;
        shares(record, card, &moved);
        let handoffs: u64 =
            outcome.report.iter().flat_map(|report| &report.devices).map(|one| one.handoffs).sum();
        let note = "how often the card changed hands in the run";
        record.row(format!("{who}.contended.handoffs"), handoffs as f64, "handoffs", note);
    }
    Ok(())
}

/// One, four and eight guests.
pub fn fairness(bench: &Bench, record: &mut Record) {
    for card in CARDS.iter().filter(|card| card.is_plain() && bench.wants("fairness", card)) {
        for count in [1, 4, 8] {
            let what = format!("{} vpio, {count} guests upload", card.id);
            bench.parts.say(&what);
            let result = bench.observe(card, Mode::Vpio, &vec![1; count], &card.stream("")).and_then(
                |(outcome, tally)| {
                    shares(record, card, &Window::new(&outcome, &tally.progress())?);
                    Ok(())
                },
            );
            note(record, &what, result);
        }
    }
}

/// What each guest moved while all were busy.
pub struct Window {
    /// Bytes, in the order of the configuration.
    pub moved: Vec<f64>,
    /// Instructions of the machine in that time.
    instructions: f64,
}

impl Window {
    /// `progress` as a tally has it.
    fn new(outcome: &Outcome, progress: &[(u64, &[u64])]) -> Result<Self> {
        let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
        // Outside nobody knows a guest's name: it is the one that had as many exits as our counters say.
        let mut steps = Vec::new();
        for domain in &report.domains {
            let exits: u64 = domain.exits.iter().map(|count| count.value).sum();
            let own = progress.iter().min_by_key(|(seen, _)| seen.abs_diff(exits));
            steps.push(own.with_context(|| format!("{} set no marks", domain.name))?.1);
        }
        Self::of(&steps).context("the guests were never busy at the same time")
    }

    /// `steps`: when each guest had done each of its parts.
    pub fn of(steps: &[&[u64]]) -> Option<Self> {
        let from = steps
            .iter()
            .map(|steps| steps.first().copied())
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()?;
        let to = steps.iter().filter_map(|steps| steps.last().copied()).min()?;
        if to <= from {
            return None;
        }
        let moved = steps.iter().map(|steps| (at(steps, to) - at(steps, from)) * CHUNK).collect();
        Some(Self { moved, instructions: (to - from) as f64 })
    }

    fn sum(&self) -> f64 {
        self.moved.iter().sum()
    }
}

/// How many steps were done at a time, parts of one included.
fn at(steps: &[u64], time: u64) -> f64 {
    let done = steps.partition_point(|step| *step <= time);
    match (done.checked_sub(1).and_then(|last| steps.get(last)), steps.get(done)) {
        (Some(last), Some(next)) => done as f64 + (time - last) as f64 / (next - last) as f64,
        _ => done as f64,
    }
}

fn shares(record: &mut Record, card: &Card, window: &Window) {
    let count = window.moved.len();
    let each: Vec<String> = window.moved.iter().map(|bytes| format!("{:.0}", bytes / 1024.0)).collect();
    let note = format!(
        "KiB moved by each in the same {:.0} M instructions: {}",
        window.instructions / 1e6,
        each.join(", ")
    );
    let id = |what: &str| format!("fairness.{}.{count}.{what}", card.id);
    if count > 1 {
        record.aimed(id("jain"), jain(&window.moved), "index", Some(Aim::AtLeast(0.95)), note.clone());
    }
    let value = window.sum() / 1024.0 / (window.instructions / 1e6);
    record.row(id("throughput"), value, "KiB/M instructions", note);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_moved_at_the_same_time_counts() {
        let window = Window::of(&[&[100, 200, 300, 400, 500], &[50, 250, 450]]).unwrap();
        assert_eq!(window.instructions, 350.0);
        assert_eq!(window.moved, [3.5 * CHUNK, 1.75 * CHUNK]);
        assert!(Window::of(&[&[100, 200], &[300, 400]]).is_none());
        assert!(Window::of(&[&[100, 200], &[]]).is_none());
    }
}
