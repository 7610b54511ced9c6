//! What it costs two guests that others are on their network, too; and that all share identifiers by which they are signalled. [`peers`](super::peers) has
//! the same guests under other hypervisors.
//!
//! Two exchange messages, the others have their interfaces up and wait. Instructions are those of the whole machine, one after the other in any order: what a
//! trip costs, not how long it takes.

use super::plan::{Device, Peer, Plan, Planned};
use super::rows::{codes, moved, parts, sums};
use super::{Bench, Load, Measured};
use crate::bench::record::{Aim, Record};
use crate::bench::split::{Part, Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, plugin, quoted, run_watched, scratch};
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use crate::rootfs;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Names of what [`measure`] can do.
pub const PART: &str = "many";

/// The domain by which signals go.
const CONTROLLER: &str = "controller";

/// Bytes of a guest's memory.
const MEMORY: u64 = 96 << 20;

/// Who serves the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// An engine.
    Engine,
    /// The same, by identifiers of so many bits that guests share.
    Bits(u8),
    /// The same, with signals by way of a controller domain, the first of the domains.
    Controller,
    /// A driver domain with a bridge, the first of the domains.
    Domain,
    /// The same, which has a processor to itself, as an engine has.
    Apart,
}

impl By {
    /// A driver domain does.
    pub const fn is_domain(self) -> bool {
        matches!(self, Self::Domain | Self::Apart)
    }
}

/// Guests, and who serves them.
struct Case {
    guests: usize,
    by: By,
}

impl Case {
    fn name(&self) -> String {
        match self.by {
            By::Engine => self.guests.to_string(),
            By::Bits(bits) => format!("bits{bits}"),
            By::Controller => "controller".to_owned(),
            By::Domain => format!("domain{}", self.guests),
            By::Apart => format!("apart{}", self.guests),
        }
    }

    /// How its rows begin.
    fn prefix(&self) -> String {
        match self.by {
            By::Engine => format!("vif.virtio.{}", self.guests),
            By::Bits(bits) => format!("vif.signal_bits.{bits}"),
            By::Controller => "vif.controller".to_owned(),
            By::Domain => format!("base.driver_domain.{}", self.guests),
            By::Apart => format!("base.driver_domain_apart.{}", self.guests),
        }
    }

    /// Domains before the first guest.
    fn first(&self) -> u16 {
        u16::from(self.by.is_domain() || self.by == By::Controller)
    }
}

/// How many guests there are, of which two talk.
const COUNTS: [usize; 5] = [2, 4, 8, 16, 32];

/// Devices for which a driver domain's bus has slots.
const MOST_SERVED: usize = 28;

/// Bits of identifiers that eight guests share, as many as the source's register has.
const BITS: [u8; 4] = [1, 2, 4, 8];

fn cases() -> impl Iterator<Item = Case> {
    let serves = |by: By, guests: usize| !by.is_domain() || guests <= MOST_SERVED;
    let by = move |by: By| {
        COUNTS.into_iter().filter(move |guests| serves(by, *guests)).map(move |guests| Case { guests, by })
    };
    let signals = BITS.into_iter().map(By::Bits).chain([By::Controller]).map(|by| Case { guests: 8, by });
    by(By::Engine).chain(by(By::Domain)).chain(by(By::Apart)).chain(signals)
}

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    bench.pieces(record, PART, cases(), Case::name, |record, case| one(bench, record, case));
    figures(record);
}

/// Measures so many guests that an engine serves.
pub fn engine(bench: &Bench, record: &mut Record, guests: usize) -> Result<()> {
    one(bench, record, &Case { guests, by: By::Engine })
}

fn one(bench: &Bench, record: &mut Record, case: &Case) -> Result<()> {
    let is_engine = !case.by.is_domain();
    let reader =
        Reader::start(&scratch()?, Split::new(if is_engine { Third::Apart } else { Third::Nothing }))?;
    let apart = if is_engine { ",apart=2" } else { "" };
    let plugin = format!("{}{apart}", plugin::exits(&bench.plugin, &[]));
    let mut watch = Watch { case, waiting: 0, is_up: false, started: false };
    let ran = run_watched(
        &format!("vif-many-{}", case.name()),
        &configuration(bench, case)?,
        Clock::Mixed,
        reader.arguments(false, Some(&plugin)),
        &mut watch,
    );
    let split = reader.finish();
    let ((_, outcome), split) = (ran?, split?);
    record.kernels(&outcome.kernels);
    let ended = |guest: usize| outcome.guests.get(guest + usize::from(case.first())).map(|guest| guest.state);
    let both = [0, 1].map(ended) == [Some(DomainState::PoweredOff); 2];
    ensure!(both, "the two that talk did not end well: {}", outcome.problems.join("\n"));
    let servers: BTreeSet<u64> = match case.by {
        By::Engine | By::Bits(_) => BTreeSet::new(),
        By::Domain | By::Apart => [super::sluice::server(&outcome, &split, "driver")?].into(),
        By::Controller => [super::sluice::server(&outcome, &split, CONTROLLER)?].into(),
    };
    let counts = || {
        let report = outcome.report.as_ref().context("the hypervisor made no report")?;
        let network = report.networks.first().context("there is no network")?;
        let counts = network.counts.iter().map(|count| (count.name.clone(), count.value));
        anyhow::Ok(counts.collect::<BTreeMap<_, _>>())
    };
    let count = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
    if case.by == By::Controller {
        let counts = counts()?;
        let [signals, passed, refused] =
            ["signals", "controller_passed", "controller_refused"].map(|name| count(&counts, name));
        let note = format!(
            "{passed} signals by the controller / {signals} in all, {refused} that it would have passed on for nothing, from the boot on"
        );
        record.row(
            format!("{}.passed", case.prefix()),
            passed as f64 / signals.max(1) as f64,
            "signals/signal",
            note,
        );
    }
    if let By::Bits(_) = case.by {
        let counts = counts()?;
        let (signals, redundant) = (count(&counts, "signals"), count(&counts, "redundant_signals"));
        let note = format!(
            "{redundant} signals for another / {signals} that were meant, {} guests, from their boot on",
            case.guests
        );
        let id = format!("{}.redundant_signals", case.prefix());
        record.row(id, redundant as f64 / signals.max(1) as f64, "signals/signal", note);
    }
    let measured = Measured { guests: outcome.guests, split, servers, report: outcome.report };
    let (server, beside) = match case.by {
        By::Domain | By::Apart => ("driver", None),
        By::Controller => (CONTROLLER, Some("engine")),
        By::Engine | By::Bits(_) => ("engine", None),
    };
    shares(record, &Served { beside, ..Served::new(case.prefix(), server, case.guests) }, &measured)
}

/// Guests that talk, in rows.
pub struct Served {
    /// How the rows begin.
    pub prefix: String,
    /// How who serves them is called.
    pub server: &'static str,
    /// How the engine is called, if who serves them is a domain beside one.
    pub beside: Option<&'static str>,
    /// Who of them talks.
    pub about: String,
}

impl Served {
    /// So many, of which two talk.
    pub fn new(prefix: String, server: &'static str, guests: usize) -> Self {
        Self { prefix, server, beside: None, about: format!("of {guests} guests two talk to each other") }
    }
}

/// Rows of what the two exchanged.
pub fn shares(record: &mut Record, served: &Served, measured: &Measured) -> Result<()> {
    let trips = moved("trips", measured)?.operations as f64;
    let part = measured.split.part(1).context("no guest set the marks of its messages")?;
    rows(record, served, "rtt", ["instructions/trip", "exits/trip"], trips, (part, measured));
    let (name, mark, reported) = parts(Load::Inter)[0];
    let bytes = moved(reported, measured)?.bytes as f64;
    let part = measured.split.part(mark).with_context(|| format!("no guest set the marks of {name}"))?;
    rows(record, served, "tcp", ["instructions/KB", "exits/KB"], bytes / 1024.0, (part, measured));
    Ok(())
}

/// Rows of one thing that they did so many times.
pub fn rows(
    record: &mut Record,
    by: &Served,
    what: &str,
    units: [&'static str; 2],
    count: f64,
    (part, measured): (&Part, &Measured),
) {
    let (guests, exits, served) = sums(part, measured);
    let apart = part.beside + part.apart.iter().sum::<u64>();
    let serving = if by.beside.is_some() { served } else { served + apart };
    let prefix = format!("{}.{what}", by.prefix);
    let about = &by.about;
    let parts =
        [("guests", guests), (by.server, serving), ("hypervisor", part.hypervisor), ("total", part.total())];
    for (whose, instructions) in parts.into_iter().chain(by.beside.map(|engine| (engine, apart))) {
        let id = if whose == "total" {
            format!("{prefix}.instructions")
        } else {
            format!("{prefix}.{whose}.instructions")
        };
        let note = format!("{instructions} instructions / {count:.0}; {about}");
        record.row(id, instructions as f64 / count, units[0], note);
    }
    record.row(
        format!("{prefix}.exits"),
        exits as f64 / count,
        units[1],
        format!("of all guests: {}; {about}", codes(part, measured)),
    );
    if by.beside.is_some() {
        let own: u64 = part
            .guests
            .iter()
            .filter(|(vmcb, _)| measured.servers.contains(vmcb))
            .map(|(_, own)| own.exits)
            .sum();
        let id = format!("{prefix}.{}.exits", by.server);
        record.row(id, own as f64 / count, units[1], format!("of that domain; {about}"));
    }
}

/// How much dearer it is with others, and beside the driver domain.
pub fn figures(record: &mut Record) {
    for what in ["rtt", "tcp"] {
        let of = |by: By, guests: usize| {
            record.value(&format!("{}.{what}.instructions", Case { guests, by }.prefix()))
        };
        let mut found = Vec::new();
        if let [Some(few), Some(many)] = [2, 32].map(|guests| of(By::Engine, guests)) {
            let note = "instructions of the whole machine with 32 guests, of which 30 are idle, to those with two alone";
            found.push((format!("vif.{what}.ratio_of_32_to_2"), many / few, Some(Aim::AtMost(1.2)), note));
        }
        for guests in COUNTS {
            if guests == 8
                && let [Some(direct), Some(controlled)] =
                    [By::Engine, By::Controller].map(|by| of(by, guests))
            {
                let note = "instructions of the whole machine, eight guests of which two talk, with signals by way of a controller domain to those without";
                found.push((
                    format!("vif.controller.{what}.ratio_to_direct"),
                    controlled / direct,
                    None,
                    note,
                ));
            }
            for (by, suffix, note) in [
                (
                    By::Domain,
                    "",
                    "instructions of the whole machine, the engine's to the driver domain's; all but two guests are idle",
                ),
                (
                    By::Apart,
                    "_apart",
                    "the same, where the driver domain has a processor to itself, as the engine has",
                ),
            ] {
                if let [Some(ours), Some(theirs)] = [By::Engine, by].map(|by| of(by, guests)) {
                    let id = format!("vif.{guests}.{what}.ratio_to_driver_domain{suffix}");
                    found.push((id, ours / theirs, None, note));
                }
            }
        }
        for (id, ratio, aim, note) in found {
            record.aimed(id, ratio, "ratio", aim, note);
        }
    }
}

/// The command line of a guest: the first two talk, the others wait.
fn cmdline(nth: usize) -> String {
    let job = match nth {
        0 => "sluice.marks=1 sluice.job=load:talk,at=10.9.0.2,to=10.9.0.1,mib=4".to_owned(),
        1 => "sluice.job=load:listen,at=10.9.0.1,mib=4".to_owned(),
        _ => format!("sluice.job=load:wait,at=10.9.0.{}", nth + 1),
    };
    format!("console=ttyS0 quiet {job}")
}

fn mac(nth: usize) -> String {
    format!("52:54:00:00:0a:{nth:02x}")
}

/// So many guests as a peer starts them, who have no wire either.
pub fn plan(peer: Peer, guests: usize) -> Plan {
    let guest = |nth: usize| Planned {
        cmdline: cmdline(nth),
        device: Device::Net(mac(nth)),
        waits: (nth > 1).then_some("waiting=yes"),
    };
    Plan {
        name: format!("vif-peers-{}-{guests}", peer.name()),
        guests: (0..guests).map(guest).collect(),
        memory: MEMORY,
        has_wire: false,
        last: Load::Inter.last(),
    }
}

fn configuration(bench: &Bench, case: &Case) -> Result<String> {
    let guests: Vec<Started> =
        (0..case.guests).map(|nth| Started { cmdline: cmdline(nth), is_paused: nth < 2 }).collect();
    machine(bench, case.by, &guests)
}

/// A guest of a [`machine`].
pub struct Started {
    /// Its kernel's command line.
    pub cmdline: String,
    /// It waits until it is told to start.
    pub is_paused: bool,
}

/// A machine without a wire: who serves the guests, which have the first processor.
pub fn machine(bench: &Bench, by: By, guests: &[Started]) -> Result<String> {
    let [kernel, initrd, serving] = [&bench.unpacked, &bench.initrd, &bench.serving].map(|path| quoted(path));
    let memory = 768 + guests.len() as u64 * ((MEMORY >> 20) + 8);
    let cpus = if by == By::Domain { 1 } else { 2 };
    let mut text = format!("[machine]\nmemory = \"{memory}MiB\"\ncpus = {cpus}\n");
    text += &match by {
        By::Engine => "[network.lan]\ncores = [1]\n".to_owned(),
        By::Bits(bits) => format!("[network.lan]\ncores = [1]\nsignal_bits = {bits}\n"),
        By::Controller => format!(
            "[network.lan]\ncores = [1]\ncontroller = \"controller\"\n\
             [domain.controller]\nkernel = {kernel}\ninitrd = {}\nmemory = \"128MiB\"\ncpus = [0]\n\
             cmdline = \"console=ttyS0 quiet sluice.job=signals\"\n",
            quoted(&rootfs::get("signals", &bench.kernel)?)
        ),
        By::Domain | By::Apart => format!(
            "[domain.driver]\nkernel = {kernel}\ninitrd = {serving}\nmemory = \"256MiB\"\ncpus = [{}]\n\
             cmdline = \"console=ttyS0 quiet sluice.job=serve:bridge=br0\"\n",
            cpus - 1
        ),
    };
    for (nth, Started { cmdline, is_paused }) in guests.iter().enumerate() {
        let (more, device) = match by {
            By::Domain | By::Apart => {
                ("grants = \"all\"\n", "mode = \"virtio\", type = \"net\", by = \"driver\", source = \"br0\"")
            }
            _ => ("", "mode = \"vif\", network = \"lan\""),
        };
        let _ = write!(
            text,
            "[domain.guest{nth}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncpus = [0]\n{more}\
             paused = {is_paused}\ncmdline = \"{cmdline}\"\n\
             devices = [{{ {device}, mac = \"{}\" }}]\n",
            MEMORY >> 20,
            mac(nth),
        );
    }
    Ok(text)
}

/// Starts the two when all others wait, and ends these when the two have ended.
struct Watch<'a> {
    case: &'a Case,
    waiting: usize,
    /// The hypervisor takes commands.
    is_up: bool,
    started: bool,
}

impl Watch<'_> {
    /// All that wait, and the controller, if there is one.
    fn wanted(&self) -> usize {
        self.case.guests - 2 + usize::from(self.case.by == By::Controller)
    }
}

impl Observer for Watch<'_> {
    fn hello(&mut self, _: &[String]) {
        self.is_up = true;
    }

    fn finding(&mut self, _: usize, finding: &Finding) {
        self.waiting += usize::from(finding.iter().any(|(key, _)| key == "waiting" || key == "signals"));
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.is_up && !self.started && self.waiting == self.wanted() {
            self.started = true;
            // Who listens is there first.
            [1, 0].into_iter().for_each(|nth| steer.send(Command::Start(DomainId(self.case.first() + nth))));
        }
    }

    fn state(&mut self, domain: usize, state: DomainState, _: &GuestText, steer: &mut Steer) {
        if domain == usize::from(self.case.first()) && state == DomainState::PoweredOff {
            let (first, all) = (self.case.first(), self.case.first() + self.case.guests as u16);
            let others = (0..first).chain(first + 2..all);
            others.for_each(|nth| steer.send(Command::Destroy(DomainId(nth))));
        }
    }
}
