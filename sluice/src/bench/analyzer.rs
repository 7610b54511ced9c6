//! What the ioctl analyzer finds in the drivers that it knows, and what differs between the two kernels that guests run.

use super::record::Record;
use super::{note, say};
use crate::analyze::{self, Found, Sums};
use crate::kernels::{self, Kernel};
use anyhow::Result;
use std::collections::BTreeSet;

/// Analyzes all.
pub fn measure(record: &mut Record) -> Result<()> {
    let names = ["debian-6.1", "debian-6.12"];
    let [old, new] = names.map(kernels::get);
    let (old, new) = (old?, new?);
    for (name, kernel) in names.iter().zip([&old, &new]) {
        record.version(name, &format!("{}, package {}", kernel.release, kernel.version));
    }
    for driver in analyze::drivers() {
        say(driver);
        let result = compare(record, driver, &old, &new);
        note(record, driver, result);
    }
    Ok(())
}

fn compare(record: &mut Record, driver: &str, old: &Kernel, new: &Kernel) -> Result<()> {
    let before = analyze::driver(driver, old)?;
    rows(record, driver, old, &before);
    let after = analyze::driver(driver, new)?;
    rows(record, &format!("{driver}.6_12"), new, &after);
    let changed: BTreeSet<String> = analyze::changes(&before, &after)
        .iter()
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    let note = "commands that are new, gone, or of which something else is found in the later kernel";
    record.row(format!("analyzer.{driver}.changed"), changed.len() as f64, "commands", note);
    Ok(())
}

fn rows(record: &mut Record, what: &str, kernel: &Kernel, found: &[Found]) {
    let Sums { commands, nested, sliced, unsliced } = Sums::of(found);
    for (name, count, about) in [
        ("commands", commands, "those that the driver still has"),
        ("nested", nested, "copy what their argument leads to"),
        ("sliced", sliced, "of these all is known"),
        ("unsliced", unsliced, "of them something is not known, nested or not; it is said of each"),
    ] {
        record.row(
            format!("analyzer.{what}.{name}"),
            count as f64,
            "commands",
            format!("Linux {}: {about}", kernel.release),
        );
    }
}
