//! What it does to a card at work that an IOMMU forgets translations while processes come and go: hits and misses of its IOTLB, told to forget pages,
//! and told to forget the whole domain, on both units.
//!
//! The load is that of [`super::storm`], by a network card, three times: without the cache of page-table pages, with one that is filled before, and with one that
//! begins empty. Everything is counted in QEMU's log. A lookup is a translation of an access of the card's; QEMU remembers 1024 translations in each unit
//! and forgets all when they are more.
//!
//! Source: PiBooster, 6.1: domain-selective invalidation inevitably costs misses, page-selective one affects transfers in the near future.
//! What QEMU 7.2 does (hw/i386): its VT-d forgets the pages that a descriptor names, by its mask, or the domain (`vtd_process_iotlb_desc`); its AMD-Vi looks at no
//! address of an INVALIDATE_IOMMU_PAGES and forgets the domain (`amdvi_inval_pages`). So both granularities are one there.

use super::super::record::Record;
use super::storm::{self, MIB, PROCESSES, ROUNDS, spread};
use anyhow::{Result, ensure};

/// A unit: as rows and configurations call it, and its events.
pub struct Unit {
    /// As rows and pieces call it.
    pub name: &'static str,
    /// As configurations do.
    pub machine: &'static str,
    hit: &'static str,
    /// It walked its tables, and remembers what it found.
    miss: &'static str,
    /// Commands to forget translations.
    invalidations: &'static [&'static str],
    /// It has forgotten all, since they were too many.
    reset: &'static str,
}

/// QEMU's.
pub const UNITS: [Unit; 2] = [
    Unit {
        name: "amd",
        machine: "amd",
        hit: "amdvi_iotlb_hit",
        miss: "amdvi_cache_update",
        invalidations: &["amdvi_pages_inval", "amdvi_all_inval"],
        reset: "amdvi_iotlb_reset",
    },
    Unit {
        name: "vtd",
        machine: "intel",
        hit: "vtd_iotlb_page_hit",
        miss: "vtd_iotlb_page_update",
        invalidations: &[
            "vtd_inv_desc_iotlb_pages",
            "vtd_inv_desc_iotlb_domain",
            "vtd_inv_desc_iotlb_global",
        ],
        reset: "vtd_iotlb_reset",
    },
];

/// What units are told to forget, as rows call it, the features of the hypervisor that does so, and a kind of command that its own report has then, and one
/// that it has not.
pub const GRANULARITIES: [(&str, &[&str], &str, &str); 2] = [
    ("page", &[], "page.revoke", "space.revoke"),
    ("domain", &["flush-spaces"], "space.revoke", "page.revoke"),
];

/// What the guest has for its page tables each time that the load runs.
const CACHES: [&str; 3] = ["nocache", "preset", "dynamic"];

/// How the guest is told so, and of the load.
pub fn cmdline(place: &str) -> String {
    format!("sluice.series=both sluice.storm=net,{place},{MIB},{PROCESSES}")
}

impl Unit {
    /// QEMU's arguments that have it log what is counted here.
    pub fn traces(&self) -> impl Iterator<Item = String> {
        let events = [self.hit, self.miss, self.reset].into_iter().chain(self.invalidations.iter().copied());
        events.flat_map(|event| ["-trace".to_owned(), event.to_owned()])
    }
}

/// What was logged between two marks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    hits: f64,
    misses: f64,
    resets: f64,
    invalidations: f64,
    /// Those between the first lookup and the last: while the card was at work.
    during: f64,
    /// Those before the first lookup.
    before: f64,
}

impl Part {
    fn count(&mut self, unit: &Unit, line: &str) {
        // QEMU may put `PROCESS@TIME:` before an event.
        let name = line.split(' ').next().and_then(|word| word.rsplit(':').next());
        let is = |event: &str| name == Some(event);
        let hit = is(unit.hit);
        if hit || is(unit.miss) {
            if self.hits + self.misses == 0.0 {
                self.before = self.invalidations;
            }
            *(if hit { &mut self.hits } else { &mut self.misses }) += 1.0;
            self.during = self.invalidations - self.before;
        } else if unit.invalidations.iter().any(|event| is(event)) {
            self.invalidations += 1.0;
        } else if is(unit.reset) {
            self.resets += 1.0;
        }
    }

    fn miss_rate(&self) -> f64 {
        self.misses / (self.hits + self.misses)
    }
}

/// What lies between marks, one after the other.
fn parts(unit: &Unit, text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut part = Part::default();
    for line in text.lines() {
        if line.starts_with("count mark ") {
            parts.push(std::mem::take(&mut part));
        } else {
            part.count(unit, line);
        }
    }
    // What came before the first mark is nobody's.
    parts.into_iter().skip(1).collect()
}

/// Rows of a unit that is told to forget by that granularity.
pub fn rows(record: &mut Record, unit: &Unit, granularity: &str, text: &str) -> Result<()> {
    let parts = parts(unit, text);
    let runs = storm::runs(parts.len() + 1)?;
    ensure!(runs.len() == CACHES.len(), "the load ran {} times", runs.len());
    let [data, processes, both] =
        [0, 1, 2].map(|part| runs.iter().map(move |run| run.map(|first| first + part)));
    let states = data.zip(processes).zip(both).map(|((data, processes), both)| {
        let taken = |places: [usize; ROUNDS]| places.map(|place| parts[place]);
        (taken(data), median(&taken(processes), |part| part.invalidations), taken(both))
    });
    let id = |what: &str| format!("pv.flush.{}.{granularity}.{what}", unit.name);
    let mut misses = Vec::new();
    for (cache, (quiet, alone, storm)) in CACHES.into_iter().zip(states) {
        for (when, rounds) in [("quiet", quiet), ("storm", storm)] {
            ensure!(rounds.iter().all(|part| part.hits > 0.0), "{cache}, {when}: the card did nothing");
            let about = match when {
                "quiet" => "the data alone".to_owned(),
                _ => format!(
                    "the data and {PROCESSES} processes at once, which alone cost {alone:.0} invalidations"
                ),
            };
            let kinds: [(&str, &'static str, &str, Of); 4] = [
                (
                    "invalidations",
                    "invalidations/MiB",
                    "commands to forget, while the card was at work",
                    |part| part.during / MIB as f64,
                ),
                ("hits", "hits/MiB", "translations that the unit remembered", |part| part.hits / MIB as f64),
                ("misses", "misses/MiB", "walks of its tables", |part| part.misses / MIB as f64),
                ("miss_rate", "ratio", "walks of all translations", Part::miss_rate),
            ];
            for (what, of_what, note, of) in kinds {
                let (least, median, most) = spread(&rounds.map(|part| of(&part)));
                let note = format!("{note}; {about}; {least:.4} to {most:.4} in {ROUNDS} rounds");
                record.row(id(&format!("{cache}.{when}.{what}")), median, of_what, note);
            }
            ensure!(
                rounds.iter().all(|part| part.resets == 0.0),
                "the unit forgot since it remembered too much"
            );
        }
        misses.push((median(&quiet, |part| part.misses), median(&storm, |part| part.misses), storm));
    }
    let [(_, with, storm), (without, ..), _] = &misses[..] else {
        unreachable!("as many as there are caches")
    };
    let forgotten = median(storm, |part| part.during);
    ensure!(forgotten > 0.0, "nothing was to be forgotten while the card was at work");
    let note = "walks of its tables for each command to forget that comes while the card is at work: beside the storm without a cache, less those of the data alone after none";
    record.row(id("misses_by_invalidation"), (with - without) / forgotten, "misses", note);
    Ok(())
}

type Of = fn(&Part) -> f64;

fn median(rounds: &[Part; ROUNDS], of: Of) -> f64 {
    spread(&rounds.map(|part| of(&part))).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three runs, the data of which make `misses` walks, and with processes of the first one as many invalidations as are said.
    fn log(unit: &Unit, misses: usize, forgotten: usize) -> String {
        let line = |event: &str, times: usize| format!("17@4.5:{event} domid 1\n").repeat(times);
        let command = unit.invalidations[0];
        let data = line(unit.hit, 12) + &line(unit.miss, misses);
        let mut text = line(command, 99);
        for run in 0..CACHES.len() {
            let forgotten = if run == 0 { forgotten } else { 0 };
            for _ in 0..ROUNDS {
                text += "count mark 1 1 1\n";
                text += &data;
                text += "count mark 2 1 1\n";
                text += &line(command, forgotten);
                text += "count mark 3 1 1\n";
                // Half of them come when the data is there already, and one before it.
                text += &line(command, 1);
                text += &line(unit.hit, 12);
                text += &line(command, forgotten / 2);
                text += &line(unit.miss, misses + forgotten);
                text += &line(command, forgotten / 2);
                text += "count mark 4 1 1\n";
            }
        }
        text
    }

    #[test]
    fn invalidations_count_while_the_card_is_at_work() {
        for unit in &UNITS {
            let mut record = Record::new("paravirtual-flushes");
            rows(&mut record, unit, "page", &log(unit, 4, 8)).unwrap();
            let value = |id: &str| record.value(&format!("pv.flush.{}.page.{id}", unit.name)).unwrap();
            assert_eq!(value("nocache.quiet.invalidations"), 0.0);
            assert_eq!(value("preset.quiet.misses"), 1.0);
            assert_eq!(value("nocache.quiet.miss_rate"), 0.25);
            assert_eq!(value("nocache.storm.invalidations"), 1.0, "4 of 9, for 4 MiB");
            assert_eq!(value("nocache.storm.misses"), 3.0);
            assert_eq!(value("nocache.storm.miss_rate"), 0.5);
            assert_eq!(value("preset.storm.invalidations"), 0.0);
            assert_eq!(value("dynamic.storm.misses"), 1.0);
            assert_eq!(value("misses_by_invalidation"), 2.0);
        }
    }

    #[test]
    fn events_are_whole_words() {
        let mut part = Part::default();
        part.count(&UNITS[1], "1@2.3:vtd_inv_desc_iotlb_pages_more domain 1");
        part.count(&UNITS[1], "1@2.3:vtd_inv_desc wait vtd_iotlb_page_hit");
        part.count(&UNITS[1], "1@2.3:amdvi_iotlb_hit devid");
        assert_eq!(part, Part::default());
        part.count(&UNITS[1], "1@2.3:vtd_iotlb_page_hit IOTLB page hit sid 0x10");
        part.count(&UNITS[1], "1@2.3:vtd_iotlb_reset IOTLB reset (reason: iotlb exceeds size limit)");
        assert_eq!((part.hits, part.resets), (1.0, 1.0));
    }

    #[test]
    fn a_load_that_did_not_run_as_it_should_has_no_rows() {
        let mut record = Record::new("paravirtual-flushes");
        let whole = log(&UNITS[0], 4, 8);
        assert!(rows(&mut record, &UNITS[1], "page", &whole).is_err(), "another unit's log");
        assert!(rows(&mut record, &UNITS[0], "page", &whole[..whole.len() / 2]).is_err());
        assert!(rows(&mut record, &UNITS[0], "page", "").is_err());
        let reset = whole.replace("count mark 4", "17@4.5:amdvi_iotlb_reset IOTLB\ncount mark 4");
        assert!(rows(&mut record, &UNITS[0], "page", &reset).is_err(), "it forgot by itself");
        assert!(
            rows(&mut record, &UNITS[0], "page", &log(&UNITS[0], 4, 0)).is_err(),
            "nothing was forgotten"
        );
    }
}
