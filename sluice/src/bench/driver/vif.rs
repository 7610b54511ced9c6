//! Guests whose network cards an engine serves, beside a driver domain.
//!
//! The engine's processor is counted apart. QEMU runs the processors in turn (`-icount`), so that how work comes in batches is the emulator's doing;
//! what an engine executes while it looks for work is counted with the rest.

use super::plan::PEERS;
use super::rows::{WHOSE, moved, parts, sums};
use super::sluice::{self, check};
use super::{ALL, Bench, Load, MEMORY, Measured};
use crate::bench::plot::{self, Panel};
use crate::bench::record::{Aim, Record};
use crate::bench::split::{Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, good, plugin, quoted, scratch};
use crate::outcome::Outcome;
use anyhow::{Context, Result};
use sluice_abi::config::Face;
use std::collections::BTreeSet;
use std::fmt::Write;

/// QEMU's index of the first engine's processor: the first does the hypervisor's own work, the second runs guests.
const APART_FROM: u8 = 2;
/// Instructions of a round that finds nothing, at most, where those are not counted.
const LOOKS: u64 = 900;

/// Engines that share a network in one of two ways.
pub struct Engines {
    /// As in rows.
    name: &'static str,
    /// As in the configuration.
    layout: &'static str,
    count: u8,
    /// QEMU's card.
    card: &'static str,
    about: &'static str,
}

impl Engines {
    /// Indices of their processors, from that of the first on.
    fn indices(&self, first: u8, between: &str) -> String {
        (0..self.count).map(|nth| (first + nth).to_string()).collect::<Vec<_>>().join(between)
    }
}

const NONE: Engines = Engines { count: 0, about: "no engine", ..ONE };
/// One, as in all but the comparison of engines.
pub const ONE: Engines =
    Engines { name: "one", layout: "split", count: 1, card: "e1000", about: "one engine" };
const SPLIT: Engines = Engines {
    name: "split",
    layout: "split",
    count: 2,
    card: "e1000",
    about: "one engine receives from the wire, the other sends",
};
const SPREAD: Engines = Engines {
    name: "spread",
    layout: "spread",
    count: 2,
    card: "e1000",
    about: "each engine sends for a guest, the first receives from the wire",
};

/// One, and two in both ways, whose looking for work is not counted.
pub const ENGINES: [Engines; 3] = [ONE, SPLIT, SPREAD];

/// Two with an 82574L, of which each that sends has a queue. What is sent is compared among these only, as for [`CHECKING`].
pub const QUEUES: [Engines; 2] = [
    Engines { name: "82574.split", card: "e1000e", ..SPLIT },
    Engines { name: "82574.spread", card: "e1000e", ..SPREAD },
];

/// A system: how its rows begin, what its part beside guest and hypervisor is called, and what is to be known of it.
pub struct System {
    prefix: &'static str,
    server: &'static str,
    /// How rows of its engine begin, if it has one.
    engine: Option<&'static str>,
    /// QEMU's card.
    card: &'static str,
    /// How guests come to it.
    way: Way,
    /// Parts of loads that are compared with others'.
    compared: &'static [&'static str],
    note: &'static str,
}

/// How guests come to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By an engine, with such a face.
    Vif(Face),
    /// They share it in a mode in which nobody but the hypervisor serves them.
    Shared(&'static str),
    /// By a driver domain, on the last of so many processors.
    Domain(u32),
}

impl Way {
    /// Its name in those of files.
    const fn word(self) -> &'static str {
        match self {
            Self::Vif(face) => face.word(),
            Self::Shared(mode) => mode,
            Self::Domain(_) => "domain",
        }
    }

    /// What a guest's entry has, but for the address.
    fn device(self) -> String {
        match self {
            Self::Vif(face) => format!("mode = \"vif\", network = \"lan\", face = \"{}\"", face.word()),
            Self::Shared(mode) => format!("use = \"nic0\", mode = \"{mode}\""),
            Self::Domain(_) => {
                "mode = \"virtio\", type = \"net\", by = \"driver\", source = \"br0\"".to_owned()
            }
        }
    }

    /// Guests drive an 82540EM.
    fn is_e1000(self) -> bool {
        matches!(self, Self::Vif(Face::E1000) | Self::Shared(_))
    }
}

impl System {
    /// What a guest's entry has, but for the address.
    pub fn device(&self) -> String {
        self.way.device()
    }

    /// How its rows begin.
    pub const fn prefix(&self) -> &'static str {
        self.prefix
    }
}

/// Served by an engine, which drives an 82540EM.
pub const ENGINE: System = System {
    prefix: "vif.virtio",
    server: "engine",
    engine: Some("vif.engine"),
    card: "e1000",
    way: Way::Vif(Face::Virtio),
    compared: &NAMES,
    note: "two processors, run in turn by the emulator; the engine's looking for work is counted",
};

/// The same with an 82574L, which says of received frames whether their checksums are right. Of what is sent QEMU's makes fragments in place of segments,
/// which the other end answers less often: that is not compared.
pub const CHECKING: System = System {
    prefix: "vif.virtio.82574",
    engine: Some("vif.engine.82574"),
    card: "e1000e",
    compared: &["rx"],
    ..ENGINE
};

/// As the first, but guests have an 82540EM in place of a virtio card.
pub const CARD: System =
    System { prefix: "vif.e1000", engine: Some("vif.engine.e1000"), way: Way::Vif(Face::E1000), ..ENGINE };

/// As the first, but guests have the interface as it is, and Sluice's driver.
pub const NATIVE: System =
    System { prefix: "vif.native", engine: Some("vif.engine.native"), way: Way::Vif(Face::Native), ..ENGINE };

/// Served by a driver domain.
pub const DOMAIN: System = System {
    prefix: "base.driver_domain",
    server: "driver",
    engine: None,
    card: "e1000",
    way: Way::Domain(1),
    compared: &NAMES,
    note: "one processor, which spares it interrupts from one to another",
};

/// The same, which has a processor to itself.
pub const APART: System = System {
    prefix: "base.driver_domain_apart",
    way: Way::Domain(2),
    note: "two processors, run in turn by the emulator; the driver domain has one of them",
    ..DOMAIN
};

/// Sharing the card by virtual passthrough: nobody serves the guests but the hypervisor.
pub const VPIO: System = System {
    prefix: "base.vpio",
    way: Way::Shared("vpio"),
    note: "one processor; behind the IOMMU the card moves the guest's own memory",
    ..DOMAIN
};

/// Sharing the card by software ones.
pub const EMULATED: System = System {
    prefix: "base.emulated",
    way: Way::Shared("emulated"),
    note: "one processor; a card in software for each guest",
    ..DOMAIN
};

/// Parts of the loads.
const NAMES: [&str; 3] = ["rx", "tx", "inter"];

/// Runs a load, and makes rows of it.
pub fn load(bench: &Bench, load: Load, system: &System, record: &mut Record) -> Result<()> {
    let measured = match system.way {
        Way::Domain(cpus) => sluice::run(bench, load, ALL, cpus, record)?,
        Way::Vif(_) => measure(bench, load, record, system, &ONE, "")?,
        Way::Shared(_) => measure(bench, load, record, system, &NONE, "")?,
    };
    shares(record, system, load, &measured)?;
    if load == Load::Inter { trips(record, system, &measured) } else { Ok(()) }
}

/// Runs a load with some engines.
pub fn run_engines(bench: &Bench, load: Load, engines: &Engines, record: &mut Record) -> Result<Measured> {
    let system = System { card: engines.card, ..ENGINE };
    measure(bench, load, record, &system, engines, &format!(",looks={LOOKS}"))
}

/// Runs a load. `more` is for the plugin, beside the engines' processors.
fn measure(
    bench: &Bench,
    load: Load,
    record: &mut Record,
    system: &System,
    engines: &Engines,
    more: &str,
) -> Result<Measured> {
    let (third, apart) = if engines.count == 0 {
        (Third::Nothing, String::new())
    } else {
        (Third::Apart, format!(",apart={}{more}", engines.indices(APART_FROM, ":")))
    };
    let reader = Reader::start(&scratch()?, Split::new(third))?;
    let plugin = format!("{}{apart}", plugin::exits(&bench.plugin, &[]));
    let ran = good(
        &format!("vif-{}-{}-{}", system.card, system.way.word(), load.name()),
        &configuration(bench, load, system, engines, 1024, false),
        Clock::Mixed,
        reader.arguments(false, Some(&plugin)),
    );
    let split = reader.finish();
    let ((_, outcome), split) = (ran?, split?);
    record.kernels(&outcome.kernels);
    check(&outcome)?;
    if system.way == Way::Vif(Face::E1000) {
        interrupts(record, system, load, &outcome);
    }
    Ok(Measured { guests: outcome.guests, split, servers: BTreeSet::new(), report: None })
}

/// How many frames an interrupt is for: exits are by interrupts, since sending takes none.
fn interrupts(record: &mut Record, system: &System, load: Load, outcome: &Outcome) {
    let links = outcome.report.iter().flat_map(|report| &report.links);
    let (mut packets, mut raised) = (0, 0);
    for link in links.filter(|link| link.kind == system.way.word()) {
        let moved = link.vif.iter().filter(|count| ["tx_segments", "rx_packets"].contains(&&*count.name));
        packets += moved.map(|count| count.value).sum::<u64>();
        raised += link.used;
    }
    let note =
        format!("{packets} frames, sent and received, / {raised} interrupts, from the boot of the guests on");
    let id = format!("{}.{}.packets_per_interrupt", system.prefix, load.name());
    record.row(id, packets as f64 / raised.max(1) as f64, "packets/interrupt", note);
}

/// The machine of the driver domain, with engines, or nobody, in its place, and so many MiB of memory. Guests start at once, unless
/// they are `paused`.
pub fn configuration(
    bench: &Bench,
    load: Load,
    system: &System,
    engines: &Engines,
    memory: u64,
    paused: bool,
) -> String {
    let initrd = if system.way.is_e1000() { &bench.cards } else { &bench.initrd };
    let [kernel, initrd] = [&bench.unpacked, initrd].map(|path| quoted(path));
    let mut text = format!(
        "[machine]\nmemory = \"{memory}MiB\"\niommu = \"amd\"\ncpus = {}\n\
         [device.nic0]\nqemu = \"{}\"\nnet = \"user\"\n",
        1 + engines.count,
        system.card
    );
    if engines.count > 0 {
        let cores = engines.indices(1, ", ");
        let _ = write!(
            text,
            "[network.lan]\ncores = [{cores}]\nlayout = \"{}\"\nnic = \"nic0\"\n",
            engines.layout
        );
    }
    let device = system.way.device();
    for number in 0..load.jobs().len() {
        let _ = write!(
            text,
            "[domain.guest{number}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncpus = [0]\npaused = {paused}\n\
             cmdline = \"{}\"\ndevices = [{{ {device}, mac = \"52:54:00:00:00:{:02x}\" }}]\n",
            MEMORY >> 20,
            load.cmdline(number, ""),
            0x0a + number
        );
    }
    text
}

fn id(system: &System, name: &str, whose: &str) -> String {
    format!("{}.{name}.{whose}.instructions_per_kb", system.prefix)
}

fn shares(record: &mut Record, system: &System, load: Load, measured: &Measured) -> Result<()> {
    for (name, mark, reported) in parts(load).iter().filter(|(name, ..)| system.compared.contains(name)) {
        let part = measured.split.part(*mark).with_context(|| format!("no guest set the marks of {name}"))?;
        let moved = moved(reported, measured)?;
        let kb = moved.bytes as f64 / 1024.0;
        let (guest, exits, served) = sums(part, measured);
        let serving = served + part.beside + part.apart.iter().sum::<u64>();
        let counts = [
            ("guest", guest),
            (system.server, serving),
            ("hypervisor", part.hypervisor),
            ("total", part.total()),
        ];
        for (whose, instructions) in counts {
            let note = format!("{instructions} instructions / {kb:.0} KB; {}", system.note);
            record.row(id(system, name, whose), instructions as f64 / kb, "instructions/KB", note);
        }
        let packets = moved.operations as f64;
        let aim = system.engine.map(|_| Aim::Under(0.05));
        let note = format!("{exits} exits of guests, all causes / {packets} {}", load.operations());
        let exits_id = format!("{}.{name}.exits_per_packet", system.prefix);
        record.aimed(exits_id, exits as f64 / packets, "exits/packet", aim, note);
        if let Some(engine) = system.engine {
            let note = format!("{serving} instructions / {packets} {}; {}", load.operations(), system.note);
            let aim = Some(Aim::AtMost(1000.0));
            let engine_id = format!("{engine}.{name}.instructions_per_packet");
            record.aimed(engine_id, serving as f64 / packets, "instructions/packet", aim, note);
        }
    }
    Ok(())
}

/// Rows of messages between two guests, each of which waits for the one before.
fn trips(record: &mut Record, system: &System, measured: &Measured) -> Result<()> {
    let part = measured.split.part(1).context("no guest set the marks of its messages")?;
    let trips = moved("trips", measured)?.operations as f64;
    let (guest, exits, served) = sums(part, measured);
    let serving = served + part.beside + part.apart.iter().sum::<u64>();
    let rest = guest + part.hypervisor;
    for (whose, instructions) in [
        ("guest", guest),
        (system.server, serving),
        ("hypervisor", part.hypervisor),
        ("total", rest + serving),
    ] {
        let note = format!("{instructions} instructions / {trips} messages there and back; {}", system.note);
        let id = trip_id(system, whose);
        record.row(id, instructions as f64 / trips, "instructions/trip", note);
    }
    let id = format!("{}.rtt.exits", system.prefix);
    record.row(id, exits as f64 / trips, "exits/trip", "exits of both guests, all causes");
    Ok(())
}

/// Rows of a load with some engines: what each executed, and the one that executed most, which bounds the throughput of the network.
pub fn engine_rows(record: &mut Record, engines: &Engines, load: Load, measured: &Measured) -> Result<()> {
    let mut row = |name: &str, mark: u16, operations: f64, unit: &str| {
        let part = measured.split.part(mark).with_context(|| format!("no guest set the marks of {name}"))?;
        let busiest = part.apart.iter().copied().max().context("no engine was counted")?;
        let each: Vec<String> = part.apart.iter().map(u64::to_string).collect();
        let note = format!(
            "{}: {} instructions / {operations} {}; rounds that found nothing are not counted",
            engines.about,
            each.join(" and "),
            load.operations()
        );
        let id = format!("vif.engines.{}.{name}.busiest.{unit}", engines.name);
        record.row(id, busiest as f64 / operations, "instructions", note.clone());
        let id = format!("vif.engines.{}.{name}.all.{unit}", engines.name);
        record.row(id, part.apart.iter().sum::<u64>() as f64 / operations, "instructions", note);
        anyhow::Ok(())
    };
    for (name, mark, reported) in parts(load) {
        row(name, *mark, moved(reported, measured)?.operations as f64, "instructions_per_packet")?;
    }
    if load == Load::Inter {
        row("rtt", 1, moved("trips", measured)?.operations as f64, "instructions_per_trip")?;
    }
    Ok(())
}

fn trip_id(system: &System, whose: &str) -> String {
    format!("{}.rtt.{whose}.instructions", system.prefix)
}

/// Ratios with their aims, and the picture.
pub fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for (system, prefix) in [(ENGINE, "vif"), (NATIVE, NATIVE.prefix)] {
        let totals = [&system, &DOMAIN].map(|system| record.value(&trip_id(system, "total")));
        if let [Some(ours), Some(theirs)] = totals {
            let note = "instructions of the whole machine for a message there and back, the engine's machine to the driver domain's";
            record.row(format!("{prefix}.rtt.ratio_to_driver_domain"), ours / theirs, "ratio", note);
        }
        for name in NAMES {
            let totals = [&system, &DOMAIN].map(|system| record.value(&id(system, name, "total")));
            if let [Some(ours), Some(theirs)] = totals {
                let note =
                    "instructions of the whole machine per KB, the engine's machine to the driver domain's";
                let ratio_id = format!("{prefix}.{name}.ratio_to_driver_domain");
                record.aimed(ratio_id, ours / theirs, "ratio", Some(Aim::AtMost(0.5)), note);
            }
        }
    }
    for name in NAMES {
        let mut bars = Vec::new();
        for system in [ENGINE, NATIVE, DOMAIN] {
            for whose in ["guest", system.server, "hypervisor", "total"] {
                let value = record.value(&id(&system, name, whose));
                bars.extend(value.map(|value| (format!("{} {whose}", system.prefix), value)));
            }
        }
        for peer in PEERS {
            for whose in WHOSE {
                let value = record.value(&format!("{}.{name}.{whose}.instructions_per_kb", peer.prefix()));
                bars.extend(value.map(|value| (format!("{} {whose}", peer.name()), value)));
            }
        }
        if !bars.is_empty() {
            panels.push(Panel { title: format!("{name}, instructions per KB"), bars });
        }
    }
    plot::write(
        "vif",
        "Network cards that an engine serves, a driver domain, KVM and Xen: who executes how much",
        &panels,
    )
}
