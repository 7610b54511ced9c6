//! The benchmarks: `cargo sluice bench`, `make bench`.
//!
//! Each measures Sluice and its peer, Linux KVM with QEMU ([`peer`]), on the same emulated machine, and counts
//! from outside both: exits and device accesses from QEMU's own log ([`tally`]), instructions with a plugin
//! ([`plugin`]) or the emulated time-stamp counter. [`record`] writes `bench/results/NAME.json`.
//!
//! docs/benchmarks.md says how each number comes about.

mod boot;
mod iommu;
mod ne2000;
mod null;
mod peer;
mod plugin;
mod record;
mod tally;

use crate::config::{self, Setup};
use crate::outcome::{Outcome, Status};
use crate::session::{self, Observer, Options};
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use record::Record;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A run of Sluice that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// A benchmark: its name, what it measures, and how.
type Benchmark = (&'static str, &'static str, fn(&mut Record) -> Result<()>);

const ALL: [Benchmark; 4] = [
    ("null-exit", "instructions from guest to guest for one exit, beside KVM", null::measure),
    ("boot", "instructions from guest entry to init, beside KVM", boot::measure),
    ("iommu", "the IOMMUs: cost of changes, devices behind them, flushes, hostile drivers", iommu::measure),
    ("ne2000", "exits and hooked accesses per packet of the NE2000, beside KVM", ne2000::measure),
];

/// Runs the benchmarks whose names contain one of `names` (all if none is given) and writes their results.
pub fn run(names: &[String], list: bool) -> Result<Status> {
    let chosen: Vec<&Benchmark> = ALL
        .iter()
        .filter(|(name, ..)| names.is_empty() || names.iter().any(|part| name.contains(part.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no benchmark is called like that; --list lists them");
    }
    let mut status = Status::Ok;
    for (name, about, measure) in chosen {
        crate::print(format!("{name}: {about}\n"))?;
        if list {
            continue;
        }
        let started = Instant::now();
        let mut record = Record::new(name);
        match measure(&mut record) {
            Ok(()) => {
                let path = record.write()?;
                println!("{}", record.table());
                println!("  {} ({:.0} s)\n", path.display(), started.elapsed().as_secs_f64());
            }
            // The others may still succeed.
            Err(error) => {
                eprintln!("sluice: {name}: {error:#}");
                status = Status::Trouble;
            }
        }
    }
    Ok(status)
}

/// Where what is made for a benchmark goes.
fn scratch() -> Result<PathBuf> {
    let directory = root().join("run/bench");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    Ok(directory)
}

/// Watches nothing.
struct Silent;
impl Observer for Silent {}

/// Runs `bench/NAME.toml` to its end, which must be a good one.
fn sluice(name: &str, icount: bool, qemu_args: Vec<String>) -> Result<(Setup, Outcome)> {
    eprintln!("  running bench/{name}.toml under Sluice");
    let setup = config::load(&root().join("bench").join(format!("{name}.toml")))?;
    let options = Options {
        name: format!("bench-{name}"),
        consoles: scratch()?.join(name),
        timeout: Some(PATIENCE),
        accel: crate::qemu::Accel::Tcg,
        icount,
        qemu_args,
        ..Options::default()
    };
    let outcome = session::run(&setup, &options, &mut Silent)?;
    if outcome.status != Status::Ok {
        bail!("bench/{name}.toml: {}", outcome.problems.join("\n"));
    }
    Ok((setup, outcome))
}
