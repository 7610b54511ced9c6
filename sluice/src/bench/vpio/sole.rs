//! One guest that has the card to itself, in every mode: what each mode costs its only user.

use super::cards::{CARDS, Card, Mode};
use super::{Bench, note, rows};
use crate::bench::record::Record;
use anyhow::Result;

/// Measures every card in every mode.
pub fn measure(bench: &Bench, record: &mut Record) {
    for card in CARDS.iter().filter(|card| bench.wants("sole", card)) {
        for mode in card.modes() {
            let what = format!("{} {}, one guest", card.id, mode.name());
            let result = one(bench, record, card, *mode, &what);
            note(record, &what, result);
        }
    }
}

fn one(bench: &Bench, record: &mut Record, card: &Card, mode: Mode, what: &str) -> Result<()> {
    bench.parts.say(what);
    let all = mode.is_vpio() || (card.masters && mode == Mode::Emulated);
    let job = if all { card.all_jobs() } else { card.bulk_job(card.bulk()) };
    let (outcome, tally) = bench.observe(card, mode, &[1], &job)?;
    record.version("guest_kernel", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    let who = format!("{}.{}", card.id, mode.name());
    rows::transfers(record, &who, &outcome.guests, &tally)?;
    if all {
        rows::workloads(record, &who, &outcome.guests, &tally)?;
    }
    if mode.is_vpio() {
        rows::agreement(record, &who, &outcome, &tally)?;
    }
    if mode == Mode::VpioAmd {
        // Here a card may be put into its only user's hands; without an IOMMU it never is.
        rows::functions(record, card, &outcome, &tally, "one guest behind AMD-Vi, its start included");
    }
    Ok(())
}
