//! Rows from counts.

use super::{Load, Measured};
use crate::bench::plot::{self, Panel};
use crate::bench::record::{Aim, Record};
use crate::bench::split::Part;
use crate::outcome::Finding;
use anyhow::{Context, Result};

/// A part of a load: its name in rows, the number of its marks, and how its guests call it. A disk's `read` and `write` are 4 KiB at random
/// places, 32 at once.
pub type Named = (&'static str, u16, &'static str);

pub const fn parts(load: Load) -> &'static [Named] {
    match load {
        Load::Net => &[("rx", 0, "rx"), ("tx", 1, "tx")],
        Load::Disk => &[
            ("write_1m", 0, "write_1m"),
            ("read_1m", 1, "read_1m"),
            ("write", 2, "write_4k"),
            ("read", 3, "read_4k"),
        ],
        Load::Inter => &[("inter", 0, "inter")],
    }
}

/// What was moved in a part, as the guest that marked it reported.
pub struct Moved {
    /// Bytes of data.
    pub bytes: u64,
    /// In so many TCP segments, those of acknowledgements included, or requests.
    pub operations: u64,
}

/// Finds it.
pub fn moved(name: &str, measured: &Measured) -> Result<Moved> {
    let is_said = |finding: &&Finding| finding.iter().any(|pair| pair.0 == "at" && pair.1 == name);
    let said = measured.guests.iter().flat_map(|guest| &guest.findings).find(is_said);
    let number = |key: &str| {
        said?.iter().find(|pair| pair.0 == key)?.1.raw().parse().ok().filter(|number| *number > 0)
    };
    let found = number("bytes").zip(number("operations"));
    let (bytes, operations) =
        found.with_context(|| format!("no guest reported how much it moved in {name}"))?;
    Ok(Moved { bytes, operations })
}

/// Rows of a load under a hypervisor.
pub fn shares(record: &mut Record, who: &str, load: Load, measured: &Measured) -> Result<()> {
    for (name, mark, reported) in parts(load) {
        let part = measured.split.part(*mark).with_context(|| format!("no guest set the marks of {name}"))?;
        let moved = moved(reported, measured)?;
        let kb = moved.bytes as f64 / 1024.0;
        let (guest, exits, served) = sums(part, measured);
        let note = format!("{kb:.0} KB");
        for (whose, instructions) in [
            ("guest", guest),
            ("driver", served + part.beside),
            ("hypervisor", part.hypervisor),
            ("total", part.total()),
        ] {
            let id = format!("{who}.{name}.{whose}.instructions_per_kb");
            record.row(
                id,
                instructions as f64 / kb,
                "instructions/KB",
                format!("{instructions} instructions / {note}"),
            );
        }
        let ours = who == "driver_domain";
        let id = if ours {
            format!("virtio.{name}.exits_per_operation")
        } else {
            format!("{who}.{name}.exits_per_operation")
        };
        // One request of 1 MiB is as long as many packets.
        let aim = (ours && matches!(*name, "rx" | "tx" | "read" | "write")).then_some(Aim::Under(0.1));
        let note = format!(
            "{exits} exits of the guest, all causes / {} {}; {}",
            moved.operations,
            load.operations(),
            codes(part, measured)
        );
        record.aimed(id, exits as f64 / moved.operations as f64, "exits/operation", aim, note);
    }
    Ok(())
}

/// Of the guests that are served: instructions and exits. Of those that serve: instructions.
pub fn sums(part: &Part, measured: &Measured) -> (u64, u64, u64) {
    let (mut guest, mut exits, mut served) = (0, 0, 0);
    for (vmcb, own) in &part.guests {
        if measured.servers.contains(vmcb) {
            served += own.instructions;
        } else {
            (guest, exits) = (guest + own.instructions, exits + own.exits);
        }
    }
    (guest, exits, served)
}

/// The commonest causes of the served guests' exits, by their names in the manual (AMD APM volume 2, appendix C).
pub fn codes(part: &Part, measured: &Measured) -> String {
    let mut counts: Vec<(u32, u64)> = Vec::new();
    for ((vmcb, code), count) in part.codes.iter().filter(|((vmcb, _), _)| !measured.servers.contains(vmcb)) {
        let _ = vmcb;
        match counts.iter_mut().find(|(known, _)| known == code) {
            Some((_, sum)) => *sum += count,
            None => counts.push((*code, *count)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let texts = counts.iter().take(4).map(|(code, count)| format!("{} {count}", cause(*code)));
    texts.collect::<Vec<_>>().join(", ")
}

fn cause(code: u32) -> String {
    let name = match code {
        0x60 => "INTR",
        0x64 => "VINTR",
        0x72 => "CPUID",
        0x78 => "HLT",
        0x7b => "IOIO",
        0x7c => "MSR",
        0x81 => "VMMCALL",
        0x400 => "NPF",
        _ => return format!("{code:#x}"),
    };
    name.to_owned()
}

/// Systems as they are compared: as columns, and how their rows begin.
const SYSTEMS: [(&str, &str); 3] = [("sluice", "driver_domain"), ("kvm", "peer.kvm"), ("xen", "peer.xen")];
/// Parts of loads, as they are compared.
pub const NAMES: [&str; 7] = ["rx", "tx", "inter", "read", "write", "read_1m", "write_1m"];
/// Whose instructions are told apart.
pub const WHOSE: [&str; 4] = ["guest", "driver", "hypervisor", "total"];

/// Ratios with their aims, and the picture.
pub fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for name in NAMES {
        let id = |who: &str, whose: &str| format!("{who}.{name}.{whose}.instructions_per_kb");
        for (peer, prefix) in &SYSTEMS[1..] {
            if let (Some(ours), Some(theirs)) =
                (record.value(&id("driver_domain", "total")), record.value(&id(prefix, "total")))
            {
                let note = "instructions of the whole machine per KB, Sluice's to its";
                record.aimed(
                    format!("driver_domain.{name}.ratio_to_{peer}"),
                    ours / theirs,
                    "ratio",
                    Some(Aim::Under(1.0)),
                    note,
                );
            }
        }
        let mut bars = Vec::new();
        for (system, prefix) in SYSTEMS {
            let row = |whose: &&str| Some((format!("{system} {whose}"), record.value(&id(prefix, whose))?));
            bars.extend(WHOSE.iter().filter_map(row));
        }
        if !bars.is_empty() {
            panels.push(Panel { title: format!("{name}, instructions per KB"), bars });
        }
    }
    plot::write("driver-domain", "Devices that another domain serves: who executes how much", &panels)
}
