//! What operations on a device file of another domain cost, beside the same program in the domain that has the device: instructions of the whole
//! machine, which are those of both domains and the hypervisor, and entries into guests.
//!
//! The program (daemons/sluice-files) marks a few operations and then many, first in the driver domain and, when that serves, in the guest.

mod checkout;
mod gpu;
mod heard;
mod igt;
mod latency;
mod lines;
mod netmap;
mod packets;
mod restarts;
mod screens;
mod start;
mod steps;
mod turns;
mod verdicts;

use super::attack::Attack;
use super::driver::{StopDriver, check};
use super::marks::{Cost, Entries, cost, marks};
use super::parts::Parts;
use super::plot::{self, Panel};
use super::record::{Aim, Record};
use super::{Clock, kernel, plugin, quoted, run_watched, scratch};
use crate::kernels;
use crate::outcome::Finding;
use crate::rootfs;
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What is done, in this order, and what a row has it per.
const WORKS: [(&str, &str); 6] = [
    ("noop", "operation"),
    ("random", "read of 4 KiB"),
    ("sound", "hundredth of a second that is written"),
    ("camera_320x180", "frame"),
    ("camera_640x360", "frame"),
    ("camera_1280x720", "frame"),
];

/// Where and how it is done: the name in rows, and that of the domain.
const PLACES: [(&str, &str); 3] = [("native", "driver"), ("interrupt", "guest0"), ("poll", "guest0")];

/// Its parts.
pub const PARTS: [&str; 11] = [
    "operations",
    "latency",
    "heard",
    "lines",
    "attacks",
    "restarts",
    "gpu",
    "screens",
    "turns",
    "netmap",
    "igt",
];

/// A driver domain that was taken over, a guest, and one by a card's commands.
const ATTACKS: [Attack; 4] = [
    Attack {
        id: "devfile.driver",
        scenario: "hostile-devfile-undeclared",
        tried: &["files_tried", "maps_tried"],
        succeeded: &["files_succeeded", "maps_succeeded"],
    },
    Attack {
        id: "devfile.guest",
        scenario: "hostile-files",
        tried: &["files.tried"],
        succeeded: &["calls_wrong"],
    },
    Attack {
        id: "devfile.card",
        scenario: "hostile-gpu-shadows",
        tried: &["names_tried", "driver_tried", "changing_sent", "wild_sent"],
        succeeded: &[
            "names_succeeded",
            "handles_succeeded",
            "flink_succeeded",
            "maps_succeeded",
            "changing_succeeded",
            "kept_changed",
        ],
    },
    Attack {
        id: "regions",
        scenario: "hostile-region",
        tried: &["regions.tried"],
        succeeded: &["regions.succeeded", "changed", "foreign"],
    },
];

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    type Run = fn(&mut Record) -> Result<()>;
    let runs: [Run; 11] = [
        operations,
        latency::measure,
        heard::measure,
        lines::measure,
        attacks,
        restarts::measure,
        gpu::measure,
        screens::measure,
        turns::measure,
        packets::measure,
        verdicts::measure,
    ];
    let parts = Parts::new(only);
    for (part, run) in PARTS.into_iter().zip(runs).filter(|(part, _)| parts.wants(part, None)) {
        super::say(part);
        record.solved(part);
        if let Err(error) = run(record).and_then(|()| record.write().map(drop)) {
            record.problem(part, &format!("{error:#}"));
        }
    }
    figures(record)
}

fn attacks(record: &mut Record) -> Result<()> {
    ATTACKS.iter().try_for_each(|attack| attack.measure(record))
}

/// Arguments for QEMU by which marks are counted, and the file that they come to be in.
fn counted(name: &str) -> Result<(PathBuf, Vec<String>)> {
    let log = scratch()?.join(format!("{name}.count"));
    let library = format!("{},spins=on", plugin::build()?.display());
    let arguments = ["-plugin", &library, "-d", "plugin", "-D", &log.display().to_string()];
    Ok((log, arguments.map(str::to_owned).to_vec()))
}

fn read(log: &Path) -> Result<String> {
    std::fs::read_to_string(log).with_context(|| format!("QEMU did not write {}", log.display()))
}

fn operations(record: &mut Record) -> Result<()> {
    let (log, arguments) = counted("devfile")?;
    let files = vec!["/dev/entropy", "/dev/video0", "/dev/snd/pcmC0D0p"];
    let guest = (files, "console=ttyS0 quiet sluice.job=files:random=0,measure=2".to_owned());
    let text = configuration("files=entropy+vivid+snd-aloop,measure=20,quiet_keys=yes", &[guest])?;
    let (_, outcome) =
        run_watched("devfile", &text, Clock::Instructions, arguments, &mut StopDriver::new(1))?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    let marks = marks(&read(&log)?, Entries::Vmruns);
    ensure!(marks.len() == 3 * WORKS.len() * PLACES.len(), "{} marks were set", marks.len());
    let mut sets = marks.chunks_exact(3);
    for (place, domain) in PLACES {
        let guest = outcome.guests.iter().find(|guest| guest.name == domain);
        let guest = guest.with_context(|| format!("there is no domain {domain}"))?;
        for (work, per) in WORKS {
            let (few, many) =
                said(&guest.findings, work).with_context(|| format!("{domain} did not report {work}"))?;
            let set = sets.next().and_then(|set| set.try_into().ok()).context("a mark is missing")?;
            row(record, (place, work, per), &cost(set, few, many));
        }
    }
    Ok(())
}

/// How often a guest did something between its marks.
fn said(findings: &[Finding], work: &str) -> Option<(f64, f64)> {
    let finding =
        findings.iter().find(|finding| finding.iter().any(|pair| pair.0 == "at" && pair.1 == work))?;
    number(finding, "few").zip(number(finding, "many"))
}

/// A number that was found.
fn number(finding: &Finding, key: &str) -> Option<f64> {
    finding.iter().find(|pair| pair.0 == key)?.1.raw().parse().ok()
}

fn row(record: &mut Record, (place, work, per): (&str, &str, &str), cost: &Cost) {
    let note = format!("of the whole machine without loops that wait, per {per}, {} more", cost.operations);
    record.row(format!("devfile.{work}.{place}.instructions"), cost.instructions, "instructions", note);
    let note = format!("entries into guests per {per}: VMRUN");
    // The guest's word to the other domain and the answer, and a processor that sleeps on each side.
    let aim = match (work, place) {
        ("noop", "interrupt") => Some(Aim::AtMost(5.0)),
        _ => None,
    };
    record.aimed(format!("devfile.{work}.{place}.exits"), cost.exits, "exits", aim, note);
}

/// Ratios, and the picture.
fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for (work, per) in WORKS {
        let value = |place: &str| record.value(&format!("devfile.{work}.{place}.instructions"));
        let values: Vec<(String, f64)> =
            PLACES.iter().filter_map(|(place, _)| Some(((*place).to_owned(), value(place)?))).collect();
        for way in ["interrupt", "poll"] {
            let of = |place: &str| values.iter().find(|value| value.0 == place).map(|value| value.1);
            let Some((native, ours)) = of("native").zip(of(way)) else { continue };
            let note = "instructions of the whole machine without loops that wait, in the guest to in the driver domain";
            let aim = ((work, way) == ("noop", "poll")).then_some(Aim::AtMost(3.0));
            record.aimed(format!("devfile.{work}.{way}.ratio_to_native"), ours / native, "ratio", aim, note);
        }
        panels.push(Panel { title: format!("{work}, instructions per {per}"), bars: values });
    }
    plot::write(
        "devfile",
        "Operations on device files, in the domain that has the device and in a guest",
        &panels,
    )
}

/// A driver domain with this job, and guests: their device files and command lines.
fn configuration(job: &str, guests: &[(Vec<&str>, String)]) -> Result<String> {
    let kernel = kernels::get("debian-6.1")?;
    let [server, initrd] = ["file-server", "device-files"].map(|name| rootfs::get(name, &kernel));
    let (server, initrd, unpacked) =
        (quoted(&server?), quoted(&initrd?), quoted(&kernel::unpacked(&kernel)?));
    let mut text = format!(
        "[machine]\nmemory = \"1536MiB\"\ncpus = 2\n\
         [domain.driver]\nkernel = {unpacked}\ninitrd = {server}\nmemory = \"256MiB\"\ncpus = [0]\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:{job}\"\n"
    );
    for (number, (files, cmdline)) in guests.iter().enumerate() {
        let device = |file: &&str| format!("{{ mode = \"devfile\", by = \"driver\", source = \"{file}\" }}");
        let devices: Vec<String> = files.iter().map(device).collect();
        let _ = write!(
            text,
            "[domain.guest{number}]\nkernel = {unpacked}\ninitrd = {initrd}\nmemory = \"256MiB\"\ncpus = [1]\ngrants = \"pages\"\n\
             cmdline = \"{cmdline}\"\ndevices = [{}]\n",
            devices.join(", ")
        );
    }
    Ok(text)
}
