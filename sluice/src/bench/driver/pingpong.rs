//! A word that two processors pass to each other, as the source measures it: who waits looks at memory, or sleeps until an interrupt.
//!
//! The processors are one guest's, each on a processor of the machine: between domains there is no interrupt that any guest may send. Exits and the
//! hypervisor's instructions are counted with `-icount`; times are of another run, in which the host's threads are the processors, and mean
//! something only beside each other.

use super::Bench;
use crate::bench::marks::{Entries, cost, marks};
use crate::bench::record::Record;
use crate::bench::{Clock, note, plugin, scratch, sluice};
use crate::outcome::{Finding, Outcome};
use anyhow::{Context, Result, ensure};

/// Names of what [`measure`] can do.
pub const PART: &str = "pingpong";

/// Ways, and about them. The first is what the others are compared with.
const WAYS: [(&str, &str); 3] = [
    ("poll_poll", "both look at memory"),
    ("poll_interrupt", "one looks at memory, the other sleeps until an interrupt"),
    ("interrupt_interrupt", "both sleep until an interrupt"),
];

/// What the guest says of a way in a turn.
struct Turn {
    few: f64,
    many: f64,
    /// Ticks of a trip that half of them take no longer than, and nine of ten.
    median: f64,
    most: f64,
}

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    if bench.parts.wants(PART, None) {
        bench.parts.say(PART);
        let result = counts(bench, record).and_then(|()| times(record));
        note(record, PART, result);
    }
}

fn counts(bench: &Bench, record: &mut Record) -> Result<()> {
    let log = scratch()?.join("pingpong.count");
    let (first, size) = plugin::IMAGE;
    let library = plugin::with_functions(&bench.plugin, &[("within".to_owned(), first, size)]);
    let (_, outcome) = sluice(PART, Clock::Instructions, plugin::arguments(library.as_ref(), &log))?;
    record.kernels(&outcome.kernels);
    let text =
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    let marks = marks(&text, Entries::Vmruns);
    for (number, (way, about)) in WAYS.into_iter().enumerate() {
        let turn = turns(&outcome, way)?.into_iter().next().context("the guest measured nothing")?;
        let marks = marks.get(3 * number..3 * number + 3).and_then(|marks| marks.try_into().ok());
        let cost = cost(marks.with_context(|| format!("the guest did not mark {way}"))?, turn.few, turn.many);
        let note =
            format!("for a word there and back, difference of {} and {}; {about}", turn.few, turn.many);
        record.row(format!("vif.pingpong.{way}.exits"), cost.exits, "exits/trip", note.clone());
        let id = format!("vif.pingpong.{way}.hypervisor.instructions");
        record.row(id, cost.hypervisor, "instructions/trip", note);
    }
    Ok(())
}

fn times(record: &mut Record) -> Result<()> {
    let (_, outcome) = sluice(PART, Clock::Host, Vec::new())?;
    let base = turns(&outcome, WAYS[0].0)?;
    for (way, about) in WAYS {
        let turns = turns(&outcome, way)?;
        ensure!(
            !turns.is_empty() && turns.len() == base.len(),
            "the guest did not measure {way} in each turn"
        );
        for (suffix, of) in
            [("time_ratio", (|turn| turn.median) as fn(&Turn) -> f64), ("time_ratio.p90", |turn| turn.most)]
        {
            let mut ratios: Vec<f64> =
                turns.iter().zip(&base).map(|(turn, base)| of(turn) / of(base)).collect();
            ratios.sort_by(f64::total_cmp);
            let texts: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
            let note = format!(
                "time of a word there and back to that where both look at memory, in the same turn: {}; {about}; processors are the host's threads",
                texts.join(", ")
            );
            record.row(format!("vif.pingpong.{way}.{suffix}"), ratios[ratios.len() / 2], "ratio", note);
        }
    }
    Ok(())
}

/// All turns of a way.
fn turns(outcome: &Outcome, way: &str) -> Result<Vec<Turn>> {
    let is_of = |finding: &&Finding| finding.iter().any(|pair| pair.0 == "way" && pair.1 == way);
    let findings = outcome.guests.iter().flat_map(|guest| &guest.findings).filter(is_of);
    let turn = |finding: &Finding| {
        let number = |key: &str| {
            let found = finding.iter().find(|pair| pair.0 == key);
            let value = found.and_then(|pair| pair.1.raw().parse::<f64>().ok());
            value.with_context(|| format!("the guest did not say '{key}' of {way}"))
        };
        let wrong = number("wrong")?;
        ensure!(wrong == 0.0, "{wrong} interrupts of {way} came before their word");
        Ok(Turn {
            few: number("few")?,
            many: number("many")?,
            median: number("median")?,
            most: number("p90")?,
        })
    };
    findings.map(turn).collect()
}
