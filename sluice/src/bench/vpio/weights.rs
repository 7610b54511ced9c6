//! Two guests of which one has three times the weight, where a card is what they wait for.
//!
//! Each has a physical processor of its own. On one they would share that first: who waited for the card has had less of it, runs next, and has
//! the card to itself meanwhile. QEMU's network takes at once whatever a bus master sends, so that one has a wire of a `rate`; an
//! NE2000 is slow enough by itself.
//!
//! They tell of each part on their consoles, and what is compared is what they moved in the same time of the host: the count of instructions
//! cannot tell whose a step is where two processors run, and no count is needed for a ratio.

use super::cards::{CARDS, Card, SLOW};
use super::sharing::Window;
use super::{Bench, note};
use crate::bench::fairness::jain;
use crate::bench::partner::Partner;
use crate::bench::record::{Aim, Record};
use crate::bench::{Clock, run_watched};
use crate::observer::Observer;
use crate::outcome::{Finding, Status};
use anyhow::{Context, Result, ensure};
use sluice_abi::report::Report;
use std::time::Instant;

const WEIGHTS: [u8; 2] = [1, 3];

/// The cards that are shared in different ways; bus masters all by the same code.
const SHARED: [&str; 2] = ["ne2000", "e1000"];

/// Measures them.
pub fn measure(bench: &Bench, record: &mut Record) {
    let is_wanted = |card: &&Card| SHARED.contains(&card.id) && bench.wants("weights", card);
    for card in CARDS.iter().filter(is_wanted) {
        let what = format!("{} vpio, weights 1 and 3", card.id);
        bench.parts.say(&what);
        let result = one(bench, record, card);
        note(record, &what, result);
    }
}

fn one(bench: &Bench, record: &mut Record, card: &Card) -> Result<()> {
    let partner = Partner::start(WEIGHTS.len())?;
    let options =
        format!("sluice.partner=10.0.2.2:{} sluice.job={}", partner.port, card.stream(",steps=told"));
    let text = card.apart(&WEIGHTS, &options, bench);
    let mut steps = Steps { began: Instant::now(), told: WEIGHTS.map(|_| Vec::new()) };
    let name = format!("vpio-{}-weights", card.id);
    let (_, outcome) = run_watched(&name, &text, Clock::Mixed, Vec::new(), &mut steps)?;
    ensure!(outcome.status == Status::Ok, "{}", outcome.problems.join("\n"));
    let window = Window::of(&steps.told.each_ref().map(Vec::as_slice));
    let window = window.context("the guests were never busy at the same time")?;
    let [light, heavy] = window.moved[..] else { return Ok(()) };
    let report = outcome.report.context("the hypervisor sent no report")?;
    let how = if card.masters { format!("to a wire of {SLOW}") } else { waits(&report) };
    let note = format!(
        "KiB moved at once with weights 1 and 3, each guest on a processor of its own: {:.0}, {:.0}; {how}",
        light / 1024.0,
        heavy / 1024.0,
    );
    let id = |what: &str| format!("fairness.{}.weights_1_3.{what}", card.id);
    record.row(id("ratio"), heavy / light.max(1.0), "ratio", note.clone());
    let value = jain(&[light, heavy / 3.0]);
    let note = format!("{note}; each divided by its weight");
    record.aimed(id("jain"), value, "index", Some(Aim::AtLeast(0.95)), note);
    Ok(())
}

/// How often each guest waited for a card that they have in turn, and how long.
fn waits(report: &Report) -> String {
    let mut shares: Vec<_> = report.devices.iter().flat_map(|device| &device.shares).collect();
    shares.sort_by_key(|share| &share.domain);
    let waits =
        shares.iter().map(|share| format!("{} times, {:.0} ms", share.waits, share.wait_ns as f64 / 1e6));
    format!("they waited for the card {}", waits.collect::<Vec<_>>().join("; "))
}

/// When each guest told of a part, in nanoseconds of the host.
struct Steps {
    began: Instant,
    told: [Vec<u64>; WEIGHTS.len()],
}

impl Observer for Steps {
    fn finding(&mut self, domain: usize, finding: &Finding) {
        if let Some(steps) = self.told.get_mut(domain)
            && finding.iter().any(|pair| pair.0 == "step")
        {
            steps.push(self.began.elapsed().as_nanos() as u64);
        }
    }
}
