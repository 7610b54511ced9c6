//! The IOMMUs: what a change of a space costs, which devices work behind which of them, what a passed-through NIC costs with
//! and without, what was flushed, and what hostile drivers achieve.
//!
//! Costs come from the hypervisor's own self-test (`selftest=iommu-cost`) under `-icount shift=0`, where the
//! time-stamp counter counts instructions. Exits are counted from outside ([`tally`](super::tally)), instructions per MiB with
//! the plugin ([`plugin`](super::plugin)): a long transfer less a short one.

use super::plugin;
use super::record::Record;
use super::tally::{Reader, Tally};
use super::transfer::{self, BULK};
use super::{Clock, good, run_text, say, scratch};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// As the configuration and as rows call a unit.
const UNITS: [(&str, &str); 2] = [("amd", "amdvi"), ("intel", "vtd")];

/// Measures all.
pub fn measure(record: &mut Record) -> Result<()> {
    for (unit, name) in UNITS {
        costs(record, unit, name)?;
    }
    for (unit, name) in UNITS {
        for remapping in [true, false] {
            devices(record, unit, name, remapping)?;
        }
    }
    for nic in ["e1000", "rtl8139"] {
        passed_through(record, nic)?;
    }
    throughput(record)?;
    for (unit, name) in UNITS {
        attacks(record, unit, name)?;
    }
    Ok(())
}

fn machine(unit: &str, remapping: bool) -> String {
    format!("[machine]\nmemory = \"768MiB\"\niommu = \"{unit}\"\ninterrupt_remapping = {remapping}\n")
}

/// Instructions of issuing and revoking.
fn costs(record: &mut Record, unit: &str, name: &str) -> Result<()> {
    let text = machine(unit, true)
        + "[domain.unused]\nkernel = \"bare\"\ncmdline = \"job=null\"\nmemory = \"16MiB\"\n";
    let run_name = format!("iommu-cost-{unit}");
    // The self-test ends the machine itself: no guest ever runs.
    let arguments = ["-append", "selftest=iommu-cost"].map(str::to_owned).to_vec();
    say(&run_name);
    run_text(&run_name, &text, Clock::Instructions, arguments)?;
    let log = std::fs::read_to_string(scratch()?.join(&run_name).join("sluice.log"))
        .context("the hypervisor wrote no log")?;
    if !log.contains("selftest iommu-cost passed") {
        bail!("the self-test did not pass: {run_name}/sluice.log");
    }
    for change in ["map", "unmap"] {
        for (size, about) in [
            ("1", "one page of 4 KiB, its invalidation waited for"),
            ("64", "64 pages that do not touch, changed one by one, forgotten in one batch"),
            ("2m", "2 MiB in one page"),
        ] {
            let value = cost(&log, change, size)
                .with_context(|| format!("{run_name}/sluice.log does not say what {change} {size} costs"))?;
            record.row(format!("iommu.{name}.{change}.{size}.instructions"), value, "instructions", about);
        }
    }
    Ok(())
}

/// What "cost of UNIT CHANGE SIZE: N" says.
fn cost(log: &str, change: &str, size: &str) -> Option<f64> {
    let wanted = format!(" {change} {size}: ");
    let line = log.lines().find(|line| line.contains("cost of ") && line.contains(&wanted))?;
    line.split_once(&wanted)?.1.trim().parse().ok()
}

const DISK: &str =
    "if=none,id=disk0,file=null-co://,file.size=67108864,file.read-zeroes=on,format=raw,snapshot=on";

/// Four devices, two kernels: two guests at once, one with a NIC, the other with a disk.
fn devices(record: &mut Record, unit: &str, name: &str, remapping: bool) -> Result<()> {
    let pairs = [("rtl8139", "nvme"), ("e1000", "ahci")];
    let unprotected = if remapping { "" } else { ", interrupts = \"unprotected\"" };
    for (nic, disk) in pairs {
        for (nic_kernel, disk_kernel) in [("debian-6.1", "debian-6.12"), ("debian-6.12", "debian-6.1")] {
            let (nic_id, disk_device) = (pci(nic), disk_device(disk));
            let ahci = if disk == "ahci" { ", \"-device\", \"ide-hd,drive=disk0,bus=ide.0\"" } else { "" };
            let text = format!(
                "{}qemu_args = [\"-drive\", \"{DISK}\"{ahci}]\n\
                 [device.nic0]\npci = \"{nic_id}\"\nqemu = \"{nic}\"\nnet = \"user\"\n\
                 [device.disk0]\n{disk_device}\n\
                 [domain.net]\nkernel = \"{nic_kernel}\"\ninitrd = \"nic-test\"\nmemory = \"192MiB\"\n\
                 cmdline = \"console=ttyS0 quiet sluice.job=transfer:down=2M,up=2M\"\n\
                 devices = [{{ use = \"nic0\", mode = \"passthrough\"{unprotected} }}]\n\
                 [domain.disk]\nkernel = \"{disk_kernel}\"\ninitrd = \"disk-test\"\nmemory = \"192MiB\"\n\
                 cmdline = \"console=ttyS0 quiet sluice.job=disk:size=8M,rounds=1\"\n\
                 devices = [{{ use = \"disk0\", mode = \"passthrough\"{unprotected} }}]\n",
                machine(unit, remapping)
            );
            let how = if remapping { "remapped" } else { "plain" };
            let run_name = format!("iommu-{unit}-{how}-{nic}-{nic_kernel}");
            say(&run_name);
            let (_, outcome) = good(&run_name, &text, Clock::Host, Vec::new())?;
            record.kernels(&outcome.kernels);
            for (guest, device, kernel, keys) in [
                ("net", nic, nic_kernel, &["download_sha256", "upload_sha256"][..]),
                ("disk", disk, disk_kernel, &["disk_sha256"][..]),
            ] {
                let found = outcome.guests.iter().find(|found| found.name == guest);
                let right =
                    keys.iter().all(|key| found.is_some_and(|found| found.verdict(key) == Some("ok")));
                record.row(
                    format!("iommu.{name}.{how}.{device}.{}.hashes_right", kernel.replace('.', "_")),
                    f64::from(u8::from(right)),
                    "1 or 0",
                    format!(
                        "its native driver; at the same time another guest had {}",
                        if device == nic { disk } else { nic }
                    ),
                );
            }
            let faults = outcome.report.as_ref().map_or(0, |report| crate::iommu::total(&report.iommu));
            let id = format!("iommu.{name}.{how}.{nic}-{disk}.{}.faults", nic_kernel.replace('.', "_"));
            record.row(id, faults as f64, "faults", "requests refused in that run");
        }
    }
    Ok(())
}

fn pci(nic: &str) -> &'static str {
    if nic == "e1000" { "8086:100e" } else { "10ec:8139" }
}

fn disk_device(disk: &str) -> &'static str {
    match disk {
        "nvme" => "pci = \"1b36:0010\"\nqemu = \"nvme,serial=sluice,drive=disk0\"",
        _ => "pci = \"00:1f.2\"",
    }
}

/// A guest that owns a NIC and transfers.
fn owner(nic: &str, unit: &str, amounts: &str) -> String {
    let dma = if unit == "none" { ", dma = \"unprotected\"" } else { "" };
    format!(
        "{}[device.nic0]\npci = \"{}\"\nqemu = \"{nic}\"\nnet = \"user\"\n\
         [domain.alice]\nkernel = \"debian-6.1\"\ninitrd = \"nic-test\"\nmemory = \"192MiB\"\n\
         cmdline = \"console=ttyS0 quiet sluice.marks=1 sluice.job=transfer:{amounts}\"\n\
         devices = [{{ use = \"nic0\", mode = \"passthrough\"{dma} }}]\n",
        machine(unit, true),
        pci(nic),
    )
}

/// Protections to compare: none, and each unit.
const PROTECTIONS: [(&str, &str); 3] = [("none", "none"), UNITS[0], UNITS[1]];

/// Exits per packet, and flushes.
fn passed_through(record: &mut Record, nic: &str) -> Result<()> {
    for (unit, name) in PROTECTIONS {
        let reader = Reader::start(&scratch()?, Tally::new(nic))?;
        let text = owner(nic, unit, "down=2M,up=2M");
        let run_name = format!("iommu-{nic}-{unit}");
        say(&run_name);
        let ran = good(&run_name, &text, Clock::Host, reader.arguments(false, None));
        let tally = reader.finish();
        let ((_, outcome), tally) = (ran?, tally?);
        for (phase, direction, mark) in BULK {
            let frames = transfer::frames(&outcome.guests, mark)?;
            let exits = tally.phase(phase).all_exits().count;
            record.row(
                format!("{nic}.passthrough.{name}.{direction}.exits_per_packet"),
                exits as f64 / frames.all(),
                "exits/packet",
                format!("all {exits} exits during the transfer / {frames}"),
            );
        }
        let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
        for count in report.iommu.units.iter().flat_map(|unit| &unit.flushes) {
            record.row(
                format!("iotlb.flushes.{name}.{nic}.{}", count.name),
                count.value as f64,
                "flushes",
                "of the whole run, start and end included, by kind and cause",
            );
        }
    }
    for (_, direction, _) in BULK {
        for (_, name) in UNITS {
            let value =
                |who: &str| record.value(&format!("{nic}.passthrough.{who}.{direction}.exits_per_packet"));
            if let (Some(with), Some(without)) = (value(name), value("none")) {
                let id = format!("{nic}.passthrough.{name}.{direction}.exits_ratio_to_none");
                record.row(id, with / without, "ratio", "exits per packet behind the IOMMU / without one");
            }
        }
    }
    Ok(())
}

/// Instructions of the whole machine per MiB.
fn throughput(record: &mut Record) -> Result<()> {
    const MIB: f64 = 6.0;
    let library = plugin::build()?;
    let mut without = None;
    for (unit, name) in PROTECTIONS {
        let count = |amounts: &str| -> Result<u64> {
            let log: PathBuf = scratch()?.join(format!("iommu-{unit}.count"));
            let text = owner("e1000", unit, amounts);
            let run_name = format!("iommu-e1000-{unit}-work");
            say(&run_name);
            good(&run_name, &text, Clock::Instructions, plugin::arguments(&library, &log))?;
            plugin::end(&log)
        };
        let work = count("down=4M,up=4M")?.saturating_sub(count("down=1M,up=1M")?) as f64 / MIB;
        record.row(
            format!("e1000.passthrough.{name}.instructions_per_mib"),
            work,
            "instructions/MiB",
            "of the whole machine, guest and hypervisor: 8 MiB less 2 MiB, half of each way",
        );
        let without = *without.get_or_insert(work);
        record.row(
            format!("throughput.e1000.passthrough.{name}.ratio_to_none"),
            without / work,
            "ratio",
            "data per instruction, compared with no IOMMU",
        );
    }
    Ok(())
}

/// What hostile drivers tried, and what came of it.
fn attacks(record: &mut Record, unit: &str, name: &str) -> Result<()> {
    let outcome = crate::scenario::outcome(&format!("dma-{unit}"))?;
    let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
    for device in ["rtl8139", "e1000", "nvme", "ahci"] {
        let sum = |what: &str| {
            let key = format!("dma.{device}.{what}");
            let mut counts = outcome.guests.iter().filter_map(|guest| guest.sum(&key)).peekable();
            counts.peek()?;
            Some(counts.sum::<u64>() as f64)
        };
        let about = "requests of a hostile driver for what is not its guest's, reads and writes";
        let tried = sum("tried").with_context(|| format!("no guest attacked with {device}"))?;
        record.row(format!("attacks.dma.{device}.{name}.tried"), tried, "requests", about);
        let about = "of them that changed or read anything";
        let succeeded =
            sum("succeeded").with_context(|| format!("{device}: nothing is known of successes"))?;
        record.row(format!("attacks.dma.{device}.{name}.succeeded"), succeeded, "requests", about);
        let own = report.iommu.faults.iter().filter(|fault| fault.device.as_deref() == Some(device));
        let faults: u64 = own.map(|fault| fault.count).sum();
        let about = "recorded by the unit and attributed to the device (QEMU's AMD-Vi records none)";
        record.row(format!("attacks.dma.{device}.{name}.faults"), faults as f64, "faults", about);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn costs_are_read_from_the_log() {
        let log = "[ 1.0] cpu0 info  iommu::cost: cost of AMD-Vi map 1: 512\n\
                   [ 1.0] cpu0 info  iommu::cost: cost of AMD-Vi unmap 1: 3210\n";
        assert_eq!(cost(log, "map", "1"), Some(512.0));
        assert_eq!(cost(log, "unmap", "1"), Some(3210.0));
        assert_eq!(cost(log, "map", "64"), None);
    }

    #[test]
    fn configurations_are_valid() {
        for (unit, _) in PROTECTIONS {
            let text = owner("e1000", unit, "down=1M,up=1M");
            config::load_text(&crate::workspace::root().join("bench/x.toml"), &text).unwrap();
        }
    }
}
