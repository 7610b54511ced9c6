//! Virtual passthrough beside what it is between: the tables and figures of Xia et al., *Investigating Virtual
//! Passthrough I/O on Commodity Devices*, for each card in each mode, with Linux alone and KVM with QEMU on the same emulated
//! machine.
//!
//! | part | what runs | figures of the paper |
//! |---|---|---|
//! | [`sole`] | one guest, every mode | 7-12 |
//! | [`peers`] | the same guest natively, and under KVM | 7, 8, 12 |
//! | [`sharing`] | several guests at once: `contended` and `fairness` | 4; the others' second question |
//! | [`weights`] | two guests with different ones | |
//! | [`attacks`] | the hostile scenarios of `tests/` | |
//!
//! [`rows`] turns counts into rows, [`figures`] rows into ratios, tables and pictures. A run that fails is noted and the
//! others go on.

mod attacks;
mod cards;
mod figures;
mod peers;
mod rows;
mod sharing;
mod sole;
mod weights;

use super::partner::Partner;
use super::parts::Parts;
use super::record::Record;
use super::tally::{Reader, Tally};
use super::{Clock, good, kernel, plugin, scratch};
use crate::kernels::Kernel;
use crate::outcome::Outcome;
use crate::{image, kernels, rootfs};
use anyhow::{Result, anyhow};
use cards::{Card, Mode};
use std::path::PathBuf;

/// What can be measured by itself.
pub const PARTS: [&str; 6] = ["sole", "peers", "contended", "fairness", "weights", "attacks"];

/// Functions of the hypervisor whose instructions are counted: their names in rows, and what their symbols have.
const FUNCTIONS: [(&str, &str); 2] = [("model_update", "Tracker>::step"), ("handoff", ">::hand_over")];

/// Measures the parts that are wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let bench = Bench::new(only)?;
    let steps: [fn(&Bench, &mut Record); 6] = [
        |bench, record| sole::measure(bench, record),
        |bench, record| peers::measure(bench, record),
        |bench, record| sharing::contended(bench, record),
        |bench, record| sharing::fairness(bench, record),
        |bench, record| weights::measure(bench, record),
        |_, record| attacks::measure(record),
    ];
    for (part, step) in PARTS.iter().zip(steps) {
        if !only.is_empty() && !only.iter().any(|wanted| wanted.split('.').next() == Some(*part)) {
            continue;
        }
        crate::output::note(format_args!("part {part}, after {:.0} s", bench.parts.seconds()));
        step(&bench, record);
        record.write()?;
    }
    figures::ratios(record);
    figures::tables(record)?;
    figures::plots(record)
}

/// What all runs have in common.
struct Bench {
    /// With cards as their pieces.
    parts: Parts,
    /// The plugin with its arguments.
    plugin: String,
    kernel: Kernel,
    /// The same kernel as it is after it has unpacked itself.
    unpacked: PathBuf,
    initrd: PathBuf,
    /// The same with Sluice's module for e1000.
    symbiotic: PathBuf,
}

impl Bench {
    fn new(only: &[String]) -> Result<Self> {
        let kernel = kernels::get("debian-6.1")?;
        let functions = plugin::functions(&image::hypervisor(&[])?, &FUNCTIONS)?;
        Ok(Self {
            parts: Parts::new(only),
            plugin: plugin::exits(&plugin::build()?, &functions),
            unpacked: kernel::unpacked(&kernel)?,
            initrd: rootfs::get("nic-test", &kernel)?,
            symbiotic: rootfs::get("symbiotic", &kernel)?,
            kernel,
        })
    }

    /// The card is to be measured in this part.
    fn wants(&self, part: &str, card: &Card) -> bool {
        self.parts.wants(part, Some(card.id))
    }

    /// Runs guests that share a card in a mode, and counts from outside: exits and instructions, and accesses to the card if
    /// there is only one guest, since the log of them takes longer than all else. `job` is what each of them does; those
    /// that wait for each other wait for all.
    fn observe(&self, card: &Card, mode: Mode, weights: &[u8], job: &str) -> Result<(Outcome, Tally)> {
        let partner = Partner::start(weights.len())?;
        let options = format!("sluice.marks=1 sluice.partner=10.0.2.2:{} sluice.job={job}", partner.port);
        let text = card.configuration(mode, weights, &options, self);
        let reader = Reader::start(&scratch()?, Tally::new(card.region))?;
        let name = format!("vpio-{}-{}-{}", card.id, mode.name(), weights.len());
        let ran = good(&name, &text, Clock::Mixed, reader.arguments(weights.len() == 1, Some(&self.plugin)));
        let tally = reader.finish();
        let ((_, outcome), tally) = (ran?, tally?);
        Ok((outcome, tally))
    }
}

/// What went wrong is in the last of many lines of a log, or in the first.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let line = text.lines().rfind(|line| line.contains("error") || line.contains("panic"));
    line.or(text.lines().next()).unwrap_or_default().trim_start_matches([' ', '|']).to_owned()
}

/// Notes that a run failed, if it did; the others go on.
fn note(record: &mut Record, what: &str, result: Result<()>) {
    super::note(record, what, result.map_err(|error| anyhow!(reason(&error))));
}
