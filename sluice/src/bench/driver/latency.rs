//! How long messages there and back take guests that all talk at once, in pairs ([`talking`](super::talking)): by an engine, and by a driver domain that
//! has a processor to itself, as the engine has.
//!
//! Times are the guests', of processors that the host's threads emulate at the same time, and so the host's: runs of both are made in turn, and what is
//! compared is what both took in the same turn.

use super::Bench;
use super::many::By;
use super::talking::{Talk, said};
use crate::bench::Clock;
use crate::bench::record::{Aim, Record};
use anyhow::{Context, Result, ensure};

/// Names of what [`measure`] can do.
pub const PART: &str = "latency";

/// Guests.
const COUNTS: [usize; 4] = [2, 4, 8, 16];
/// Trips of each pair in a run, and turns.
const TRIPS: usize = 1000;
const TURNS: usize = 3;
/// Where the spread is looked at: names in rows, and per mille of trips that take no longer.
const POINTS: [(&str, usize); 3] = [("p50", 500), ("p90", 900), ("p99", 990)];

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    bench.pieces(record, PART, COUNTS, usize::to_string, |record, guests| one(bench, record, *guests));
}

/// Times of a run's trips in microseconds, the shortest first.
struct Times(Vec<u32>);

impl Times {
    fn take(bench: &Bench, talk: &Talk) -> Result<Self> {
        let outcome = talk.run(bench, PART, Clock::Host, Vec::new())?;
        let texts = outcome.guests.iter().flat_map(|guest| said(guest, "trips_us"));
        let times = texts.flat_map(|text| text.raw().split(',')).map(|time| time.parse::<u32>());
        let mut times = times.collect::<Result<Vec<_>, _>>().context("a guest reported what is no time")?;
        let expected = talk.guests / 2 * talk.trips;
        ensure!(times.len() == expected, "{} times came of {expected}", times.len());
        times.sort_unstable();
        Ok(Self(times))
    }

    /// What so many per mille take no longer than.
    fn at(&self, per_mille: usize) -> f64 {
        f64::from(self.0[(self.0.len() * per_mille).div_ceil(1000).saturating_sub(1)].max(1))
    }
}

fn one(bench: &Bench, record: &mut Record, guests: usize) -> Result<()> {
    let talks = [By::Engine, By::Apart].map(|by| Talk { guests, by, trips: TRIPS });
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        bench.parts.say(&format!("{PART}, {guests}: turn {} of {TURNS}", turn + 1));
        // Neither is always the first one.
        let order = if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        let mut taken = [None, None];
        for which in order {
            taken[which] = Some(Times::take(bench, &talks[which])?);
        }
        let [Some(ours), Some(theirs)] = taken else { continue };
        turns.push([ours, theirs]);
    }
    for (which, talk) in talks.iter().enumerate() {
        let prefix = format!("{}.rtt.time", talk.prefix());
        for (name, per_mille) in POINTS.into_iter().chain([("worst", 1000)]) {
            let each: Vec<f64> = turns.iter().map(|turn| turn[which].at(per_mille)).collect();
            let note = format!(
                "the median of {TURNS} runs: {}; {guests} guests, all of which talk, in pairs; the host's time, of a busy host",
                list(&each, 0)
            );
            record.row(format!("{prefix}.{name}_us"), median(&each), "µs", note);
        }
    }
    for (name, per_mille) in POINTS {
        let ratios: Vec<f64> =
            turns.iter().map(|[ours, theirs]| ours.at(per_mille) / theirs.at(per_mille)).collect();
        let note = format!(
            "{name} of a message there and back, the engine's to the driver domain's, each on a processor of its own; the median of {TURNS} turns: {}",
            list(&ratios, 2)
        );
        let (id, aim) = if name == "p50" {
            (format!("vif.latency_ratio_to_driver_domain.{guests}"), Some(Aim::AtMost(0.4)))
        } else {
            (format!("vif.latency_ratio_to_driver_domain.{guests}.{name}"), None)
        };
        record.aimed(id, median(&ratios), "ratio", aim, note);
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Values in the order of the runs.
fn list(values: &[f64], digits: usize) -> String {
    values.iter().map(|value| format!("{value:.digits$}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_what_so_many_take_no_longer_than() {
        let times = Times((1..=200).collect());
        assert_eq!(POINTS.map(|(_, per_mille)| times.at(per_mille)), [100.0, 180.0, 198.0]);
        assert_eq!((times.at(1000), median(&[3.0, 1.0, 2.0])), (200.0, 2.0));
    }
}
