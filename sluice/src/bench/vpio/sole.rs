//! One guest that has the card to itself, in every mode: what each mode costs its only user.

use super::cards::{CARDS, Card, Mode};
use super::{Bench, note, rows};
use crate::bench::record::Record;
use anyhow::Result;

/// Measures every card in every mode.
pub fn measure(bench: &Bench, record: &mut Record) {
    for card in &CARDS {
        for mode in card.modes() {
            let what = format!("{} {}, one guest", card.id, mode.name());
            let result = one(bench, record, card, *mode, &what);
            note(record, &what, result);
        }
    }
}

fn one(bench: &Bench, record: &mut Record, card: &Card, mode: Mode, what: &str) -> Result<()> {
    bench.say(what);
    let job = if mode.is_vpio() { card.all_jobs() } else { card.bulk_job(card.bulk()) };
    let (outcome, tally) = bench.observe(card, mode, &[1], &job)?;
    record.version("guest_kernel", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    let who = format!("{}.{}", card.id, mode.name());
    rows::transfers(record, &who, &outcome.guests, &tally)?;
    if mode.is_vpio() {
        rows::hooked_shares(record, &who, &outcome.guests, &tally)?;
        rows::agreement(record, &who, &outcome, &tally)?;
    }
    Ok(())
}
