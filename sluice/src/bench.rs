//! The benchmarks: `cargo sluice bench`, `make bench`.
//!
//! Each measures Sluice and its peer, Linux KVM with QEMU ([`peer`]), on the same emulated machine, and counts
//! from outside both: exits and device accesses from QEMU's own log ([`tally`]), instructions with a plugin
//! ([`plugin`]) or the emulated time-stamp counter. [`record`] writes `bench/results/NAME.json` as rows come,
//! [`plot`] the pictures in `bench/plots`.
//!
//! docs/benchmarks.md says how each number comes about.

mod analyzer;
mod attack;
mod boot;
mod devfile;
mod driver;
mod fairness;
mod first_ssh;
mod grants;
mod iommu;
mod kernel;
mod marks;
mod null;
mod paravirtual;
mod partner;
mod parts;
mod peer;
mod plot;
mod plugin;
pub mod record;
mod shared_disk;
mod split;
mod tally;
mod transfer;
mod vpio;

use crate::config::{self, Setup};
use crate::observer::Observer;
use crate::outcome::{Outcome, Status};
use crate::session::{self, Options};
use crate::workspace::root;
use crate::{output, printable};
use anyhow::{Context, Result, bail};
use record::Record;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A run of Sluice that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(900);

/// A benchmark: its name, what it measures, its parts if it has any, and how.
struct Benchmark {
    name: &'static str,
    about: &'static str,
    parts: &'static [&'static str],
    /// Takes the parts that are wanted, all if none is named.
    measure: fn(&mut Record, &[String]) -> Result<()>,
}

static ALL: [Benchmark; 13] = [
    Benchmark {
        name: "null-exit",
        about: "instructions from guest to guest for one exit, beside KVM",
        parts: &[],
        measure: |record, _| null::measure(record),
    },
    Benchmark {
        name: "boot",
        about: "instructions from guest entry to init, beside KVM",
        parts: &[],
        measure: |record, _| boot::measure(record),
    },
    Benchmark {
        name: "iommu",
        about: "the IOMMUs: cost of changes, devices behind them, flushes, hostile drivers",
        parts: &[],
        measure: |record, _| iommu::measure(record),
    },
    Benchmark {
        name: "vpio",
        about: "NICs passed through, shared by virtual passthrough and emulated: exits, instructions, fairness, \
                beside native Linux and KVM",
        parts: &vpio::PARTS,
        measure: vpio::measure,
    },
    Benchmark {
        name: "driver-domain",
        about: "virtio disks and network cards that a driver domain serves: instructions of guest, driver domain and hypervisor, \
                exits, restarts, beside KVM with vhost and Xen",
        parts: &driver::PARTS,
        measure: driver::measure,
    },
    Benchmark {
        name: "paravirtual",
        about: "processes, page faults and system calls of a paravirtual guest: instructions and exits, beside native Linux and Xen",
        parts: &paravirtual::PARTS,
        measure: paravirtual::measure,
    },
    Benchmark {
        name: "grants",
        about: "instructions of issuing and revoking pages, with 10^3 to 10^6 granted; virtio devices that reach single pages, beside all memory",
        parts: &grants::PARTS,
        measure: grants::measure,
    },
    Benchmark {
        name: "vif",
        about: "network cards that an engine serves: instructions of guest, engine and hypervisor, exits, beside a driver domain, KVM with vhost-net and Xen",
        parts: &driver::SERVED,
        measure: driver::measure_vif,
    },
    Benchmark {
        name: "devfile",
        about: "device files of another domain: instructions and exits of operations that do nothing, of random numbers and frames, beside the domain \
                that has the devices",
        parts: &devfile::PARTS,
        measure: devfile::measure,
    },
    Benchmark {
        name: "ide",
        about: "an IDE disk that guests share: exits and instructions per request, beside native Linux and KVM with QEMU's controller",
        parts: &shared_disk::IDE_PARTS,
        measure: shared_disk::measure_ide,
    },
    Benchmark {
        name: "nvme",
        about: "an NVMe disk that guests share: exits and instructions per request, beside native Linux, the disk passed through, and KVM with QEMU's \
                and with virtio-blk",
        parts: &shared_disk::NVME_PARTS,
        measure: shared_disk::measure_nvme,
    },
    Benchmark {
        name: "analyzer",
        about: "what the ioctl analyzer finds in drivers of two kernels, and whether the front end's table has it",
        parts: &[],
        measure: |record, _| analyzer::measure(record),
    },
    Benchmark {
        name: "first-ssh",
        about: "from power-on to the sshd of a fresh Debian: commands and seconds, beside QEMU alone and Xen",
        parts: &first_ssh::PARTS,
        measure: first_ssh::measure,
    },
];

/// Those whose names contain one of `names` (all if none is given), and which have these `parts`.
fn choose(names: &[String], parts: &[String]) -> Result<Vec<&'static Benchmark>> {
    let wanted = |benchmark: &&Benchmark| {
        (names.is_empty() || names.iter().any(|part| benchmark.name.contains(part.as_str())))
            && (parts.is_empty() || !benchmark.parts.is_empty())
    };
    let chosen: Vec<&'static Benchmark> = ALL.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no benchmark is called like that; --list lists them");
    }
    for part in parts {
        let name = part.split('.').next().unwrap_or_default();
        if !chosen.iter().any(|benchmark| benchmark.parts.contains(&name)) {
            bail!("no benchmark has a part '{part}'; --list lists them");
        }
    }
    Ok(chosen)
}

/// Lists the benchmarks whose names contain one of `names`, and their parts.
pub fn list(names: &[String], parts: &[String], as_json: bool) -> Result<()> {
    let chosen = choose(names, parts)?;
    if as_json {
        let entry = |Benchmark { name, about, parts, .. }: &&Benchmark| json!({ "name": name, "about": about, "parts": parts });
        return output::print(printable::json(&chosen.iter().map(entry).collect::<Vec<_>>())?);
    }
    for Benchmark { name, about, parts, .. } in chosen {
        output::print(format_args!("{name}: {about}\n"))?;
        for part in *parts {
            output::print(format_args!("  --only {part}\n"))?;
        }
    }
    Ok(())
}

/// Runs the benchmarks whose names contain one of `names` (all if none is given), or only those `parts` of
/// theirs, and writes their results.
pub fn run(names: &[String], parts: &[String]) -> Result<Status> {
    let mut status = Status::Ok;
    for benchmark in choose(names, parts)? {
        output::print(format!("{}: {}\n", benchmark.name, benchmark.about))?;
        let started = Instant::now();
        let mut record = Record::new(benchmark.name);
        if !parts.is_empty() {
            record.keep_others();
        }
        // The others may still succeed, and what was found until then is kept.
        if let Err(error) = (benchmark.measure)(&mut record, parts) {
            record.problem(benchmark.name, &format!("{error:#}"));
        }
        let path = record.write()?;
        output::print(record.table() + "\n")?;
        for problem in record.problems() {
            output::note(format_args!("sluice: not measured: {problem}"));
            status = Status::Trouble;
        }
        output::print(format!("  {} ({:.0} s)\n\n", path.display(), started.elapsed().as_secs_f64()))?;
    }
    Ok(status)
}

/// Notes that a run failed, if it did; the others go on.
fn note(record: &mut Record, what: &str, result: Result<()>) {
    record.solved(what);
    if let Err(error) = result.and_then(|()| record.write().map(drop)) {
        record.problem(what, &format!("{error:#}"));
        output::note(format_args!("  {}", record.problems().last().map_or("", String::as_str)));
    }
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

/// What the emulated machine takes for time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// The host's time.
    Host,
    /// Instructions, one a nanosecond; when all processors wait, the next timer is at once due.
    Instructions,
    /// Instructions while they run, the host's time while they wait: for those who talk to the host.
    Mixed,
}

impl Clock {
    /// QEMU's arguments, after those that `-icount` of a run comes with.
    fn arguments(self) -> Vec<String> {
        let mixed = ["-icount", "shift=0,sleep=on"].map(str::to_owned);
        if self == Self::Mixed { mixed.to_vec() } else { Vec::new() }
    }

    /// Instructions are time.
    fn icount(self) -> bool {
        self != Self::Host
    }
}

/// Runs a configuration to its end, whatever that is.
fn run_text(name: &str, text: &str, clock: Clock, qemu_args: Vec<String>) -> Result<(Setup, Outcome)> {
    run_watched(name, text, clock, qemu_args, &mut Silent)
}

/// The same, while somebody watches and steers.
fn run_watched(
    name: &str,
    text: &str,
    clock: Clock,
    qemu_args: Vec<String>,
    observer: &mut dyn Observer,
) -> Result<(Setup, Outcome)> {
    run_built(name, text, clock, qemu_args, &[], observer)
}

/// The same with a hypervisor that has these features.
fn run_built(
    name: &str,
    text: &str,
    clock: Clock,
    qemu_args: Vec<String>,
    features: &[&str],
    observer: &mut dyn Observer,
) -> Result<(Setup, Outcome)> {
    let setup = config::load_text(&root().join("bench").join(format!("{name}.toml")), text)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let options = Options {
        consoles: Some(scratch()?.join(name)),
        timeout: Some(PATIENCE),
        accel: crate::qemu::Accel::Tcg,
        icount: clock.icount(),
        qemu_args: [clock.arguments(), qemu_args].concat(),
        features: features.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
        ..Options::new("bench".parse()?)
    };
    let outcome = session::run(&setup, &options, observer)?;
    Ok((setup, outcome))
}

/// The same, which must end well.
fn good(name: &str, text: &str, clock: Clock, qemu_args: Vec<String>) -> Result<(Setup, Outcome)> {
    good_built(name, text, clock, qemu_args, &[])
}

/// The same with a hypervisor that has these features.
fn good_built(
    name: &str,
    text: &str,
    clock: Clock,
    qemu_args: Vec<String>,
    features: &[&str],
) -> Result<(Setup, Outcome)> {
    let (setup, outcome) = run_built(name, text, clock, qemu_args, features, &mut Silent)?;
    if outcome.status != Status::Ok {
        bail!("{name}: {}", outcome.problems.join("\n"));
    }
    Ok((setup, outcome))
}

/// Runs `bench/NAME.toml` to its end, which must be a good one.
fn sluice(name: &str, clock: Clock, qemu_args: Vec<String>) -> Result<(Setup, Outcome)> {
    say(&format!("bench/{name}.toml under Sluice"));
    let path = root().join("bench").join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    good(name, &text, clock, qemu_args)
}

/// Says what is running now.
fn say(what: &str) {
    output::note(format_args!("  running {what}"));
}

/// A file with these bytes, in the scratch directory.
fn scratch_file(name: &str, content: &[u8]) -> Result<PathBuf> {
    let path = scratch()?.join(name);
    std::fs::write(&path, content).with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}

/// A path in a configuration's text.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}
