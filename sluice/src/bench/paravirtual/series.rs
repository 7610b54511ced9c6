//! How often the IOMMU before a guest's card is told to forget pages while processes come and go: interval by interval, without a cache of page-table
//! pages, with one from the beginning, and with one that begins empty in the middle.
//!
//! Source: PiBooster, 5.2.1 and figure 8: flushes per minute for 30 minutes, and the time until there are none.

use super::super::plot;
use super::super::record::{Aim, Record};
use super::{INVALIDATION, events_at_marks};
use anyhow::{Result, ensure};

/// Intervals of the load, and the one before which the cache begins that comes later (daemons/sluice-processes).
const INTERVALS: usize = 24;
const SWITCH: usize = 8;

/// How the guest has its cache, as rows and the picture say it, and its command line.
pub const GUESTS: [(&str, &str, &str); 3] = [
    ("none", "without a cache", "sluice.series=none"),
    ("preset", "with a cache that is filled before", "sluice.series=preset"),
    ("dynamic", "with a cache that begins empty", "sluice.series=dynamic"),
];

/// Invalidations of each interval.
pub fn intervals(text: &str) -> Result<Vec<f64>> {
    let counts = events_at_marks(text, INVALIDATION);
    ensure!(counts.len() == INTERVALS + 1, "the guest marked {} intervals", counts.len().saturating_sub(1));
    Ok(counts.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

/// Intervals from `begin` until there is none any more; None if the last one has some.
fn to_zero(series: &[f64], begin: usize) -> Option<usize> {
    let last = series.iter().rposition(|count| *count > 0.0);
    let quiet = last.map_or(0, |last| last + 1);
    (quiet < series.len()).then(|| quiet.saturating_sub(begin))
}

/// Rows of one series.
pub fn rows(record: &mut Record, prefix: &str, guest: &str, series: &[f64], processes: f64) {
    let each = processes / INTERVALS as f64;
    let list: Vec<String> = series.iter().map(|count| format!("{count:.0}")).collect();
    let about = format!("by interval of {each:.0} processes: {}", list.join(" "));
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let id = |what: &str| format!("{prefix}.{guest}.{what}");
    record.row(
        id("first"),
        mean(&series[..SWITCH]),
        "invalidations per interval",
        format!("mean of the first {SWITCH}; {about}"),
    );
    let aim = (prefix == "pv.iotlb.series" && guest != "none").then_some(Aim::AtMost(0.0));
    let tail = &series[2 * SWITCH..];
    record.aimed(
        id("last"),
        mean(tail),
        "invalidations per interval",
        aim,
        format!("mean of the last {}", tail.len()),
    );
    let begin = if guest == "dynamic" { SWITCH } else { 0 };
    if let Some(intervals) = to_zero(series, begin) {
        let note = format!(
            "intervals of {each:.0} processes from the cache's beginning until the last invalidation"
        );
        record.row(id("to_zero"), intervals as f64, "intervals", note);
    }
}

/// The picture.
pub fn picture(series: &[(String, Vec<f64>)]) -> Result<()> {
    plot::lines(
        "paravirtual-iotlb",
        "IOTLB invalidations per interval while processes come and go",
        "interval",
        series,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_zero_counts_from_the_caches_beginning() {
        assert_eq!(to_zero(&[9.0, 9.0, 4.0, 0.0, 1.0, 0.0], 2), Some(3));
        assert_eq!(to_zero(&[9.0, 0.0], 0), Some(1));
        assert_eq!(to_zero(&[0.0, 0.0], 0), Some(0));
        assert_eq!(to_zero(&[0.0, 1.0], 0), None, "it does not come to an end");
    }

    #[test]
    fn an_interval_is_what_lies_between_two_marks() {
        let mut text = "count mark 1 1 1\n".to_owned();
        for interval in 0..INTERVALS {
            text += &format!("{INVALIDATION} domid 1\n").repeat(interval);
            text += "count mark 2 2 2\n";
        }
        let series = intervals(&text).unwrap();
        assert_eq!((series.len(), series[0], series[23]), (INTERVALS, 0.0, 23.0));
        assert!(intervals("count mark 1 1 1\n").is_err());
        let mut record = Record::new("paravirtual-series");
        rows(&mut record, "pv.iotlb.series", "none", &series, 240.0);
        assert_eq!(record.value("pv.iotlb.series.none.first"), Some(3.5));
        assert_eq!(record.value("pv.iotlb.series.none.to_zero"), None);
    }
}
