//! Rows of guests that lend their memory page by page, and what that costs them and others beside a guest that lends all of it.

use super::rows::{NAMES, WHOSE, moved, parts, sums};
use super::{ALL, BY_PAGE, Lends, Load, Measured};
use crate::bench::plot::{self, Panel};
use crate::bench::record::{Aim, Record};
use anyhow::{Context, Result};

/// Exit code of VMMCALL (AMD APM volume 2, appendix C).
const VMMCALL: u32 = 0x81;
/// What is left of the cost of lending each page for each use.
const OF_DEAREST: f64 = 0.1;

fn id(name: &str, lends: Lends, what: &str) -> String {
    format!("grants.{name}.{}.{what}", lends.name)
}

/// Rows of a load.
pub fn shares(record: &mut Record, lends: Lends, load: Load, measured: &Measured) -> Result<()> {
    for (name, mark, reported) in parts(load) {
        let part = measured.split.part(*mark).with_context(|| format!("no guest set the marks of {name}"))?;
        let moved = moved(reported, measured)?;
        let kb = moved.bytes as f64 / 1024.0;
        let (guest, _, served) = sums(part, measured);
        let counts = [guest, served + part.beside, part.hypervisor, part.total()];
        for (whose, instructions) in WHOSE.into_iter().zip(counts) {
            let note = format!("{instructions} instructions / {kb:.0} KB; {}", lends.about);
            let id = id(name, lends, &format!("{whose}.instructions_per_kb"));
            record.row(id, instructions as f64 / kb, "instructions/KB", note);
        }
        let of_guests = part.codes.iter().filter(|((vmcb, _), _)| !measured.servers.contains(vmcb));
        let calls: u64 = of_guests.filter(|((_, code), _)| *code == VMMCALL).map(|(_, count)| count).sum();
        let note = format!(
            "{calls} hypercalls of guests / {} {}; each is one flush of the driver domain's processors and IOMMU at most",
            moved.operations,
            load.operations()
        );
        let aim = (lends.name == "new").then_some(Aim::AtMost(0.01));
        record.aimed(
            id(name, lends, "hypercalls_per_operation"),
            calls as f64 / moved.operations as f64,
            "hypercalls/operation",
            aim,
            note,
        );
    }
    Ok(())
}

/// What grants cost beyond a guest that lends all, and the picture.
pub fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for name in NAMES {
        let total = |record: &Record, lends| record.value(&id(name, lends, "total.instructions_per_kb"));
        let mut dearest = Vec::new();
        for lends in BY_PAGE {
            let Some((own, all)) = total(record, lends).zip(total(record, ALL)) else { continue };
            let note = "total beyond that of a guest that lends all its memory";
            record.row(id(name, lends, "grant.instructions_per_kb"), own - all, "instructions/KB", note);
            record.row(id(name, lends, "ratio_to_all"), own / all, "ratio", "totals");
            if lends.name == "new" {
                for (dear, instructions) in &dearest {
                    record.aimed(
                        format!("grants.{name}.new_over_{dear}"),
                        (own - all) / instructions,
                        "ratio",
                        Some(Aim::AtMost(OF_DEAREST)),
                        "instructions that grants cost, of those with which each page is lent for each use",
                    );
                }
            } else if matches!(lends.name, "old" | "each") {
                dearest.push((lends.name, own - all));
            }
        }
        let mut bars = Vec::new();
        for lends in [ALL].into_iter().chain(BY_PAGE) {
            let row = |whose: &&str| {
                let value = record.value(&id(name, lends, &format!("{whose}.instructions_per_kb")))?;
                Some((format!("{} {whose}", lends.name), value))
            };
            bars.extend(WHOSE.iter().filter_map(row));
        }
        if !bars.is_empty() {
            panels.push(Panel { title: format!("{name}, instructions per KB"), bars });
        }
    }
    plot::write(
        "grants",
        "Guests that lend all their memory, and single pages: who executes how much",
        &panels,
    )
}
