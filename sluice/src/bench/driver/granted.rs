//! Rows of guests that lend their memory page by page, and what that costs them and others beside a guest that lends all of it.

use super::rows::{NAMES, WHOSE, moved, parts, sums};
use super::{BASES, BY_PAGE, Lends, Load, Measured};
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
        let calls_of = |server: bool| -> u64 {
            let own = part.codes.iter().filter(|((vmcb, _), _)| measured.servers.contains(vmcb) == server);
            own.filter(|((_, code), _)| *code == VMMCALL).map(|(_, count)| count).sum()
        };
        if lends.options.contains("table=1") {
            let calls = calls_of(true);
            record.row(
                id(name, lends, "driver_hypercalls_per_operation"),
                calls as f64 / moved.operations as f64,
                "hypercalls/operation",
                format!(
                    "{calls} hypercalls of the driver domain / {} {}",
                    moved.operations,
                    load.operations()
                ),
            );
        }
        let calls = calls_of(false);
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
    if lends.options.contains("table=1") || lends.grants == "all" {
        return Ok(());
    }
    translations(record, lends, load, measured)
}

/// How often an IOMMU that guests drive was told of something, and how often the machine's was told to forget: from the guests' start to their end,
/// for each packet or request of all parts.
fn translations(record: &mut Record, lends: Lends, load: Load, measured: &Measured) -> Result<()> {
    let report = measured.report.as_ref().context("the hypervisor sent no report")?;
    let operations = parts(load).iter().map(|(_, _, reported)| Ok(moved(reported, measured)?.operations));
    let operations: u64 = operations.sum::<Result<u64>>()?;
    let (unit, of) = if load.has_disk() { ("per request", "request") } else { ("per packet", "packet") };
    let per = |what: &str, count: u64| {
        (count as f64 / operations as f64, format!("{count} {what} / {operations} {}", load.operations()))
    };
    if lends.grants == "iommu" {
        let links = report.links.iter().filter(|link| link.kind == "iommu");
        let (value, note) = per("doorbells", links.map(|link| link.kicks).sum());
        record.row(format!("grants.viommu.virtio.{}.doorbells_per_{of}", load.name()), value, unit, note);
    }
    let flushes = report.iommu.units.iter().flat_map(|unit| &unit.flushes).map(|count| count.value).sum();
    let (value, note) =
        per("commands to the machine's IOMMU, those of the guests' start among them", flushes);
    let aim = (lends.name == "new" && !load.has_disk()).then_some(Aim::AtMost(0.001));
    record.aimed(format!("iotlb.{}.{}.flushes_per_{of}", lends.name, load.name()), value, unit, aim, note);
    Ok(())
}

/// What grants cost beyond a guest that lends all, and the picture.
pub fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for name in NAMES {
        let total = |record: &Record, lends| record.value(&id(name, lends, "total.instructions_per_kb"));
        let mut dearest = Vec::new();
        let of_name =
            |lends: &Lends| lends.loads.iter().any(|load| parts(*load).iter().any(|part| part.0 == name));
        for lends in BY_PAGE.into_iter().filter(of_name) {
            let Some(base) = BASES.into_iter().find(|base| base.name == lends.beyond) else { continue };
            let Some((own, all)) = total(record, lends).zip(total(record, base)) else { continue };
            let note = format!("total beyond that of {}", base.name);
            record.row(id(name, lends, "grant.instructions_per_kb"), own - all, "instructions/KB", note);
            record.row(id(name, lends, &format!("ratio_to_{}", base.name)), own / all, "ratio", "totals");
            if matches!(lends.name, "new" | "daemon_new") {
                for (dear, _, instructions) in dearest.iter().filter(|(_, beyond, _)| *beyond == lends.beyond)
                {
                    record.aimed(
                        format!("grants.{name}.new_over_{dear}"),
                        (own - all) / (instructions - all),
                        "ratio",
                        Some(Aim::AtMost(OF_DEAREST)),
                        "instructions that grants cost, of those with which each page is lent for each use",
                    );
                    if *dear == "old" {
                        record.row(
                            format!("grants.{name}.throughput_new_over_old"),
                            instructions / own,
                            "ratio",
                            "KB for as many instructions of the whole machine, all of which are busy with it",
                        );
                    }
                }
            } else if matches!(lends.name, "old" | "copy" | "each") {
                dearest.push((lends.name, lends.beyond, own));
            }
        }
        let mut bars = Vec::new();
        for lends in BASES.into_iter().chain(BY_PAGE).filter(of_name) {
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
