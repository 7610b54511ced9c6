//! What the ioctl analyzer finds in the drivers that it knows, and what differs between the two kernels that guests run.

use super::record::Record;
use super::{note, say};
use crate::analyze::{self, Check, Counts, Found, Learned, Sums};
use crate::kernels::{self, Kernel};
use crate::{scenario, workspace};
use anyhow::{Context, Result};
use sluice_slice::Verdict;
use std::collections::BTreeSet;

/// Drivers that the front end's table has lines for.
const CHECKED: [&str; 5] = ["drm", "virtio-gpu", "radeon", "evdev", "alsa-pcm"];

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
    say("learned");
    let result = learned(record, &old);
    note(record, "learned", result);
    Ok(())
}

/// The scenario in which programs are watched, and its domains.
const LEARNED: &str = "device-files-learn";
const DOMAINS: [(&str, &str); 2] = [("driver", "modetest and sluice-files"), ("camera", "v4l2-compliance")];

/// How what was learned compares with the front end's tables.
fn learned(record: &mut Record, kernel: &Kernel) -> Result<()> {
    record.kernels(&scenario::outcome(LEARNED)?.kernels);
    let consoles = workspace::consoles(&format!("test-{LEARNED}").parse()?);
    for (domain, programs) in DOMAINS {
        let log = consoles.join(format!("{domain}.log"));
        let text = std::fs::read_to_string(&log).with_context(|| format!("no {}", log.display()))?;
        let mut all = Vec::new();
        // What one program made comes behind its status.
        for said in text.split("learned_status_").skip(1) {
            let tables: Vec<&str> =
                said.lines().filter_map(|line| line.strip_prefix("learned: ")).map(str::trim_end).collect();
            all.extend(Learned::read(&tables.join("\n"), kernel)?);
        }
        let classes: BTreeSet<&str> = all.iter().map(|learned| learned.class).collect();
        for class in classes {
            for (verdict, name) in
                [(Verdict::Same, "same"), (Verdict::Wider, "wider"), (Verdict::Missing, "missing")]
            {
                let of_class = all.iter().filter(|learned| learned.class == class);
                let sum: usize = of_class.map(|learned| learned.count(verdict)).sum();
                let about = format!("{programs} were watched; what they made against the front end's table");
                record.row(format!("analyzer.learned.{class}.{name}"), sum as f64, "commands", about);
            }
        }
    }
    Ok(())
}

fn compare(record: &mut Record, driver: &str, old: &Kernel, new: &Kernel) -> Result<()> {
    let before = analyze::driver(driver, old)?;
    rows(record, driver, old, &before)?;
    let after = analyze::driver(driver, new)?;
    rows(record, &format!("{driver}.6_12"), new, &after)?;
    let changed: BTreeSet<String> = analyze::changes(&before, &after)
        .iter()
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    let note = "commands that are new, gone, or of which something else is found in the later kernel";
    record.row(format!("analyzer.{driver}.changed"), changed.len() as f64, "commands", note);
    Ok(())
}

fn rows(record: &mut Record, what: &str, kernel: &Kernel, found: &[Found]) -> Result<()> {
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
    let driver = what.split('.').next().unwrap_or(what);
    if CHECKED.contains(&driver) {
        verdicts(record, what, kernel, Check::new(found, &analyze::table(driver, kernel)?).counts());
    }
    Ok(())
}

fn verdicts(record: &mut Record, what: &str, kernel: &Kernel, counts: Counts) {
    let Counts { same, wider, missing, excepted, not_known, alone } = counts;
    let lacks = format!("something that is found is not in the table; exceptions: {excepted}");
    for (name, count, about) in [
        ("same", same, "the front end's table leads to what is found"),
        ("wider", wider, "the table leads to that and to more"),
        ("missing", missing, lacks.as_str()),
        ("not_known", not_known, "what is found is in the table, and something is not known"),
        ("alone", alone, "of no command of the driver's, but in the table"),
    ] {
        let note = format!("Linux {}: {about}", kernel.release);
        record.row(format!("analyzer.{what}.{name}"), count as f64, "commands", note);
    }
}
