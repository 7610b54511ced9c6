//! What processes, page faults and system calls cost a paravirtual guest, beside the same kernel alone on the machine, and as Xen's paravirtual
//! dom0: instructions and exits per operation, as the difference of two counts.
//!
//! One program is the whole system in each (daemons/sluice-processes); its marks are instructions that no hypervisor sees, which the plugin
//! (bench/instructions.rs) counts at.

mod build;
mod flushes;
mod series;
mod storm;
mod tables;

use super::driver::xen;
use super::marks::{Entries, Mark, cost, marks};
use super::parts::Parts;
use super::peer::Machine;
use super::plot::{self, Panel};
use super::record::{Aim, Record};
use super::{Clock, good_built, kernel, plugin, quoted, scratch, scratch_file};
use crate::kernels::{self, Kernel};
use crate::outcome::{Finding, Outcome};
use crate::qemu::NATIVE_CPU;
use crate::rootfs;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use tables::Symbols;

/// Its parts.
pub const PARTS: [&str; 13] = [
    "native", "sluice", "cache", "xen", "strict", "build", "iotlb", "adapt", "series", "net", "disk",
    "flushes", "attacks",
];

/// The operations, in the order of their marks.
const WORKS: [&str; 7] = ["fork_exit", "execve", "sh", "fault", "syscall", "mmap", "context"];

/// The guest's cache of page-table pages, which is filled before the first process; the program is not `init`, so that what the cache did can be told at the end.
const WITH_CACHE: &str = "#!/bin/busybox sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
cache=/sys/kernel/sluice_pibooster
series=$(sed -n 's/.*sluice.series=\\([a-z]*\\).*/\\1/p' /proc/cmdline)
if [ \"$series\" = none ]; then
    /bin/processes series
    poweroff -f
fi
storm=$(sed -n 's/.*sluice.storm=\\([^ ]*\\).*/\\1/p' /proc/cmdline | tr , ' ')
if [ -n \"$storm\" ]; then
    mount -t devtmpfs dev /dev
    case $storm in
    net*)
        modprobe e1000
        until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
        ip addr add 10.0.2.15/24 dev eth0
        ip link set eth0 up
        ;;
    disk*)
        modprobe nvme
        until [ -b /dev/nvme0n1 ]; do sleep 0.1; done
        ;;
    esac
    /bin/processes storm $storm
fi
[ \"$series\" != dynamic ] || prefill=prefill=0,0,0,0,0
modprobe sluice-pibooster $prefill
until [ \"$(cat $cache/enabled)\" = 1 ]; do sleep 0.1; done
if grep -q sluice.calls /proc/cmdline; then
    awk 'NR == FNR { wanted[$1]; next } $3 in wanted { print \"SLUICE-RESULT\", $3 \"=\" $1 }' /functions /proc/kallsyms
    poweroff -f
fi
if [ -n \"$storm\" ] && [ \"$series\" = both ]; then
    /bin/processes storm $storm
    echo 0 >$cache/cached
fi
[ -z \"$storm\" ] || exec /bin/processes storm $storm
! grep -q sluice.adapt /proc/cmdline || echo auto >$cache/threshold
case \"$series\" in
preset) /bin/processes series ;;
dynamic)
    echo 0 >$cache/enabled
    /bin/processes series $cache/enabled
    ;;
*) /bin/processes ;;
esac
# So that some seconds pass for the threshold.
! grep -q sluice.adapt /proc/cmdline || sleep 4
sum() { cat $cache/*/\"$1\" | awk '{ sum += $1 } END { print sum }'; }
echo SLUICE-RESULT hits=$(sum hits) misses=$(sum misses) cached=$(cat $cache/cached) tops=$(cat $cache/pgd/cached)
poweroff -f
";

/// The guest only says where the functions of `/functions` are.
const FUNCTIONS: &str = "sluice.calls";

/// The guest's cache keeps what was needed lately.
const ADAPTS: &str = "sluice.adapt";

/// Of its devices.
const DRIVERS: [&str; 2] = ["e1000", "nvme"];

/// The scenario with the hostile kernel, and what it prints before its counts.
const ATTACKS: (&str, &str) = ("hostile-paravirtual-many", "paravirtual.");

/// What QEMU's IOMMU of AMD's logs when it is told to forget pages.
const INVALIDATION: &str = "amdvi_pages_inval";

/// A card behind it, which nobody uses: what pages of tables cost a guest that has one.
const CARD: Beside<'static> = Beside {
    machine: "iommu = \"amd\"\n[device.nic0]\npci = \"8086:100e\"\nqemu = \"e1000\"\n",
    domain: "devices = [{ use = \"nic0\", mode = \"passthrough\" }]\n",
    ..PLAIN
};

/// What more there is in a machine, in its guest, and on the guest's command line, and the hypervisor's features.
struct Beside<'a> {
    machine: &'a str,
    domain: &'a str,
    cmdline: &'a str,
    features: &'a [&'a str],
}

/// Nothing more.
const PLAIN: Beside<'static> = Beside { machine: "", domain: "", cmdline: "", features: &[] };

/// Memory of the guest in MiB.
const MEMORY: u32 = 256;

/// What the kernel is told under every hypervisor: without large pages for programs, since a paravirtual guest has none.
const CMDLINE: &str = "quiet panic=-1 transparent_hugepage=never norandmaps";

/// What all runs have in common.
struct Bench {
    plugin: PathBuf,
    kernel: Kernel,
    /// The kernel after it has unpacked itself.
    unpacked: PathBuf,
    initrd: PathBuf,
    /// The same with the cache of page-table pages.
    with_cache: PathBuf,
    /// Where the kernel's functions are, and the cache's in that system.
    symbols: Symbols,
}

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let kernel = kernels::get("debian-6.1")?;
    let parts = Parts::new(only);
    let mut bench = Bench {
        plugin: plugin::build()?,
        unpacked: kernel::unpacked(&kernel)?,
        initrd: scratch_file("paravirtual.cpio", &archive(&kernel)?)?,
        with_cache: scratch_file("paravirtual-cache.cpio", &archive_with_cache(&kernel)?)?,
        kernel,
        symbols: Symbols::new(),
    };
    if PARTS.iter().any(|part| {
        !["native", "build", "series", "net", "disk", "flushes", "attacks"].contains(part)
            && parts.wants(part, None)
    }) {
        bench.symbols = symbols(&bench, record)?;
    }
    type Run = fn(&Bench, &mut Record, &Path) -> Result<Vec<Finding>>;
    let systems: [(&str, &str, Entries, Run); 5] = [
        ("native", "native", Entries::None, native),
        ("sluice", "pv", Entries::Vmruns, |bench, record, log| {
            sluice(bench, &bench.initrd, record, counting(bench, Some(plugin::IMAGE), false, log), &PLAIN)
        }),
        ("cache", "pv.cache", Entries::Vmruns, cached),
        ("xen", "peer.xen.default", Entries::Returns, |bench, record, log| xen(bench, record, log, false)),
        ("strict", "peer.xen.strict", Entries::Returns, |bench, record, log| xen(bench, record, log, true)),
    ];
    for (part, prefix, entries, run) in systems.into_iter().filter(|(part, ..)| parts.wants(part, None)) {
        super::say(part);
        let log = scratch()?.join(format!("paravirtual-{part}.count"));
        let measured = run(&bench, record, &log).and_then(|found| {
            let text = std::fs::read_to_string(&log)
                .with_context(|| format!("QEMU did not write {}", log.display()))?;
            rows(record, prefix, entries, &found, &marks(&text, entries))?;
            if let Some(boot) = tables::boot(&text) {
                let note = "from the kernel's own first steps (setup_arch) to its first program's";
                record.row(format!("{prefix}.boot.instructions"), boot, "instructions", note);
            }
            match part {
                "native" => Ok(()),
                "sluice" => tables::rows(record, "pv", tables::PLAIN, &text),
                "cache" => tables::rows(record, "pv", tables::CACHED, &text),
                _ => tables::rows(record, prefix, "", &text),
            }
        });
        record.solved(part);
        if let Err(error) = measured.and_then(|()| record.write().map(drop)) {
            record.problem(part, &format!("{error:#}"));
        }
    }
    if parts.wants("build", None) {
        record.solved("build");
        if let Err(error) = build::measure(&bench, record).and_then(|()| record.write().map(drop)) {
            record.problem("build", &format!("{error:#}"));
        }
    }
    if parts.wants("iotlb", None) {
        record.solved("iotlb");
        if let Err(error) = invalidations(&bench, record).and_then(|()| record.write().map(drop)) {
            record.problem("iotlb", &format!("{error:#}"));
        }
    }
    if parts.wants("adapt", None) {
        record.solved("adapt");
        if let Err(error) = adapting(&bench, record).and_then(|()| record.write().map(drop)) {
            record.problem("adapt", &format!("{error:#}"));
        }
    }
    if parts.wants("series", None) {
        record.solved("series");
        if let Err(error) = all_series(&bench, record).and_then(|()| record.write().map(drop)) {
            record.problem("series", &format!("{error:#}"));
        }
    }
    for kind in storm::KINDS.iter().filter(|kind| parts.wants(kind.name, None)) {
        super::say(kind.name);
        record.solved(kind.name);
        if let Err(error) = stormed(&bench, record, kind).and_then(|()| record.write().map(drop)) {
            record.problem(kind.name, &format!("{error:#}"));
        }
    }
    for unit in flushes::UNITS.iter().filter(|unit| parts.wants("flushes", Some(unit.name))) {
        for how in flushes::GRANULARITIES {
            let what = format!("flushes.{}.{}", unit.name, how.0);
            super::say(&what);
            record.solved(&what);
            if let Err(error) = flushed(&bench, record, unit, how).and_then(|()| record.write().map(drop)) {
                record.problem(&what, &format!("{error:#}"));
            }
        }
    }
    if parts.wants("attacks", None) {
        super::say(&format!("the scenario {}", ATTACKS.0));
        record.solved("attacks");
        if let Err(error) = attacks(record).and_then(|()| record.write().map(drop)) {
            record.problem("attacks", &format!("{error:#}"));
        }
    }
    figures(record)
}

/// How often the IOMMU before a guest's card is told to forget a page, with and without the guest's cache of page-table pages.
fn invalidations(bench: &Bench, record: &mut Record) -> Result<()> {
    let guests = [
        ("pv.iotlb", &bench.initrd, None, tables::PLAIN),
        ("pv.cache.iotlb", &bench.with_cache, Some(0.0), tables::CACHED),
    ];
    for (prefix, initrd, wanted, how) in guests {
        super::say(prefix);
        let log = scratch()?.join(format!("paravirtual-{prefix}.count"));
        let mut arguments = counting(bench, Some(plugin::IMAGE), wanted.is_some(), &log);
        arguments.extend(["-trace", INVALIDATION].map(str::to_owned));
        let found = sluice(bench, initrd, record, arguments, &CARD)?;
        let text =
            std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
        tables::rows(record, "pv.card", how, &text)?;
        let counts = events_at_marks(&text, INVALIDATION);
        ensure!(counts.last().is_some_and(|all| *all > 0.0), "QEMU logged no invalidation");
        for (number, work) in WORKS.into_iter().enumerate() {
            let (_, many) = few_and_many(&found, work)?;
            let Some([_, second, third]) = counts.get(3 * number..3 * number + 3) else {
                anyhow::bail!("the guest did not mark {work}");
            };
            // No difference to the few: while these were done, the cache had yet to grow.
            let each = (third - second) / many;
            let note = format!(
                "commands to forget pages per operation, of {many}, by the log of QEMU's AMD-Vi, which wants one as well for a page that comes back"
            );
            let aim = wanted.map(Aim::AtMost).filter(|_| work != "fault" && work != "syscall");
            record.aimed(format!("{prefix}.{work}"), each, "invalidations", aim, note);
        }
    }
    Ok(())
}

/// What the threshold that adapts itself costs the cache's functions: two guests, one of which has it.
fn adapting(bench: &Bench, record: &mut Record) -> Result<()> {
    let counted = |record: &mut Record, name: &str, cmdline: &str| {
        super::say(name);
        let log = scratch()?.join(format!("paravirtual-{name}.count"));
        let arguments = counting(bench, Some(plugin::IMAGE), true, &log);
        sluice(bench, &bench.with_cache, record, arguments, &Beside { cmdline, ..PLAIN })?;
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))
    };
    let without = counted(record, "adapt-off", "")?;
    let with = counted(record, "adapt-on", ADAPTS)?;
    tables::adapt_rows(record, &without, &with)
}

/// Invalidations while processes come and go, with a cache from the beginning, one that comes later, and none.
fn all_series(bench: &Bench, record: &mut Record) -> Result<()> {
    let mut drawn = Vec::new();
    for (guest, name, cmdline) in series::GUESTS {
        super::say(name);
        let log = scratch()?.join(format!("paravirtual-series-{guest}.count"));
        let mut arguments = counting(bench, None, false, &log);
        arguments.extend(["-trace", INVALIDATION].map(str::to_owned));
        let found = sluice(bench, &bench.with_cache, record, arguments, &Beside { cmdline, ..CARD })?;
        let text =
            std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
        let processes = found.iter().flatten().find(|pair| pair.0 == "processes");
        let processes = processes.and_then(|pair| pair.1.raw().parse().ok());
        let intervals = series::intervals(&text)?;
        let processes = processes.context("the guest did not tell how many processes it made")?;
        series::rows(record, "pv.iotlb.series", guest, &intervals, processes);
        drawn.push((name.to_owned(), intervals));
    }
    series::picture(&drawn)
}

/// Data of a device while processes come and go, before the cache is there and with it.
fn stormed(bench: &Bench, record: &mut Record, kind: &storm::Kind) -> Result<()> {
    let log = scratch()?.join(format!("paravirtual-{}.count", kind.name));
    let mut arguments = counting(bench, None, false, &log);
    arguments.extend(["-trace", INVALIDATION, "-trace", storm::WALK].map(str::to_owned));
    let place = match kind.place {
        Some(place) => place.to_owned(),
        None => format!("10.0.2.2:{}", storm::server()?),
    };
    let cmdline = format!("sluice.storm={},{place},{},{}", kind.name, storm::MIB, storm::PROCESSES);
    let beside = Beside { machine: kind.machine, domain: kind.domain, cmdline: &cmdline, features: &[] };
    // The network's other end is in the host's time.
    guest(bench, &bench.with_cache, record, arguments, &beside, Clock::Mixed)?;
    let text =
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    storm::rows(record, kind.name, &text)
}

/// What forgetting pages, or the whole domain, does to a card that moves data.
fn flushed(
    bench: &Bench,
    record: &mut Record,
    unit: &flushes::Unit,
    (granularity, features, has, has_not): (&str, &[&str], &str, &str),
) -> Result<()> {
    let log = scratch()?.join(format!("paravirtual-flushes-{}-{granularity}.count", unit.name));
    let mut arguments = counting(bench, None, false, &log);
    arguments.extend(unit.traces());
    let [net, _] = &storm::KINDS;
    let machine = net.machine.replace("\"amd\"", &format!("\"{}\"", unit.machine));
    let cmdline = flushes::cmdline(&format!("10.0.2.2:{}", storm::server()?));
    let beside = Beside { machine: &machine, domain: net.domain, cmdline: &cmdline, features };
    let outcome = ended(bench, &bench.with_cache, record, arguments, &beside, Clock::Mixed)?;
    let report = outcome.report.context("the hypervisor sent no report")?.iommu;
    let told =
        |kind: &str| report.units.iter().flat_map(|unit| &unit.flushes).any(|count| count.name == kind);
    ensure!(told(has) && !told(has_not), "the hypervisor forgot by another granularity: {:?}", report.units);
    ensure!(crate::iommu::total(&report) == 0, "the card was refused something");
    let text =
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    flushes::rows(record, unit, granularity, &text)
}

/// How often an event had been logged at each mark.
fn events_at_marks(text: &str, event: &str) -> Vec<f64> {
    let mut events = 0.0;
    let mut counts = Vec::new();
    for line in text.lines() {
        if line.starts_with("count mark ") {
            counts.push(events);
        } else if line.contains(event) {
            events += 1.0;
        }
    }
    counts
}

/// What a hostile kernel tried, and what it achieved. The scenario judges whether its neighbour was left alone.
fn attacks(record: &mut Record) -> Result<()> {
    let (scenario, prefix) = ATTACKS;
    let outcome = crate::scenario::outcome(scenario)?;
    let sum = |what: &str| {
        let key = format!("{prefix}{what}");
        outcome.guests.iter().filter_map(|guest| guest.sum(&key)).sum::<u64>() as f64
    };
    ensure!(sum("tried") > 0.0, "nobody attacked");
    let about = format!("by the kernel of the scenario {scenario}, one by one and at random");
    record.row("attacks.paravirtual.tried", sum("tried"), "attempts", about);
    let note = "of these: a mapping, a table, a descriptor or a privilege that it must not have, or one that it found in its page tables";
    record.aimed("attacks.paravirtual.succeeded", sum("succeeded"), "attempts", Some(Aim::AtMost(0.0)), note);
    Ok(())
}

/// The system: busybox as its shell, and the program as `init` and as the one that ends at once.
fn archive(kernel: &Kernel) -> Result<Vec<u8>> {
    let program = program()?;
    let mut archive = rootfs::base(&program, &[], kernel)?;
    archive.file("bin/nothing", 0o755, &program);
    Ok(archive.finish())
}

fn program() -> Result<Vec<u8>> {
    let path = crate::image::guest_program("sluice-processes")?;
    std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))
}

/// The same, started by a script that switches the cache on.
fn archive_with_cache(kernel: &Kernel) -> Result<Vec<u8>> {
    let program = program()?;
    let mut archive = rootfs::base_with_own(
        WITH_CACHE.as_bytes(),
        &DRIVERS.map(str::to_owned),
        "sluice-pibooster",
        kernel,
    )?;
    archive.file("functions", 0o644, tables::wanted().collect::<Vec<_>>().join("\n").as_bytes());
    archive.file("bin/processes", 0o755, &program);
    archive.file("bin/nothing", 0o755, &program);
    Ok(archive.finish())
}

fn within((first, size): (u64, u64)) -> [(String, u64, u64); 1] {
    [("within".to_owned(), first, size)]
}

/// Where the functions are that allocate and free page tables. The kernel is where it was linked, and modules of the same system have the same places.
fn symbols(bench: &Bench, record: &mut Record) -> Result<Symbols> {
    super::say("functions");
    let beside = Beside { cmdline: FUNCTIONS, ..PLAIN };
    tables::symbols(&guest(bench, &bench.with_cache, record, Vec::new(), &beside, Clock::Host)?)
}

/// QEMU's arguments that make it count, and say so in `log`; with calls of those functions if a guest's tables are a hypervisor's concern.
fn counting(bench: &Bench, range: Option<(u64, u64)>, with_cache: bool, log: &Path) -> Vec<String> {
    let functions = range.map(within);
    let mut library =
        plugin::with_functions(&bench.plugin, functions.as_ref().map_or(&[], |one| one.as_slice()));
    if range.is_some() && !bench.symbols.is_empty() {
        library += &tables::arguments(&bench.symbols, with_cache);
    }
    loaded(&library, log)
}

/// QEMU's arguments that load the plugin so and have it write to `log`.
fn loaded(library: &str, log: &Path) -> Vec<String> {
    ["-plugin", library, "-d", "plugin", "-D", &log.display().to_string()].map(str::to_owned).to_vec()
}

/// What Xen is told, with a dom0 of so many MiB.
fn xen_cmdline(memory: u32) -> String {
    format!(
        "console=com1 com1=115200,8n1 dom0_mem={memory}M,max:{memory}M dom0_max_vcpus=1 cpuidle=0 loglvl=warning guest_loglvl=none"
    )
}

fn native(bench: &Bench, _: &mut Record, log: &Path) -> Result<Vec<Finding>> {
    let arguments = counting(bench, None, false, log);
    let cmdline = format!("console=ttyS0 {CMDLINE}");
    let machine = Machine {
        name: "paravirtual-native",
        clock: Clock::Instructions,
        cpu: NATIVE_CPU,
        memory: MEMORY,
        kernel: &bench.unpacked,
        initrd: bench.initrd.display().to_string(),
        cmdline: &cmdline,
        devices: Vec::new(),
        qemu_args: &arguments,
    };
    machine.run("done")
}

fn cached(bench: &Bench, record: &mut Record, log: &Path) -> Result<Vec<Finding>> {
    let found =
        sluice(bench, &bench.with_cache, record, counting(bench, Some(plugin::IMAGE), true, log), &PLAIN)?;
    let said = |key: &str| {
        let mut pairs = found.iter().flatten();
        pairs.find(|pair| pair.0 == key).and_then(|pair| pair.1.raw().parse::<f64>().ok())
    };
    let (hits, misses) = said("hits").zip(said("misses")).context("the guest did not tell of its cache")?;
    ensure!(hits > 0.0, "the cache was not used");
    let note = format!("of {} pages of tables that were wanted, of all levels", hits + misses);
    record.row("pv.cache.miss_rate", misses / (hits + misses), "ratio", note);
    let (pages, tops) =
        said("cached").zip(said("tops")).context("the guest did not tell how much its cache has")?;
    record.row("pv.cache.pages", pages, "pages", "that the cache keeps at the end");
    // A table of the top level comes with a second page (PGD_ALLOCATION_ORDER); the module knows a byte of each frame.
    let (kept, known) = ((pages + tops) * 4.0, f64::from(MEMORY) * 1024.0 / 4096.0);
    let note =
        format!("{kept} of tables that it keeps at the end, {known} of a byte for each page of the guest");
    record.row("pv.cache.memory", kept + known, "KiB", note);
    Ok(found)
}

/// A paravirtual guest in a machine whose time is its instructions.
fn sluice(
    bench: &Bench,
    initrd: &Path,
    record: &mut Record,
    arguments: Vec<String>,
    beside: &Beside<'_>,
) -> Result<Vec<Finding>> {
    guest(bench, initrd, record, arguments, beside, Clock::Instructions)
}

/// A paravirtual guest, with what more its configuration says of the machine and of it: what it found.
fn guest(
    bench: &Bench,
    initrd: &Path,
    record: &mut Record,
    arguments: Vec<String>,
    beside: &Beside<'_>,
    clock: Clock,
) -> Result<Vec<Finding>> {
    let outcome = ended(bench, initrd, record, arguments, beside, clock)?;
    Ok(outcome.guests.into_iter().next().map(|guest| guest.findings).unwrap_or_default())
}

/// The same: all that came of it.
fn ended(
    bench: &Bench,
    initrd: &Path,
    record: &mut Record,
    arguments: Vec<String>,
    Beside { machine, domain, cmdline, features }: &Beside<'_>,
    clock: Clock,
) -> Result<Outcome> {
    let [kernel, initrd] = [&*bench.unpacked, initrd].map(quoted);
    let text = format!(
        "[machine]\nmemory = \"768MiB\"\n{machine}[domain.guest]\nkind = \"paravirtual\"\nkernel = {kernel}\ninitrd = {initrd}\n\
         cmdline = \"console=hvc0 {CMDLINE} {cmdline}\"\nmemory = \"{MEMORY}MiB\"\n{domain}"
    );
    let (_, outcome) = good_built("paravirtual-sluice", &text, clock, arguments, features)?;
    record.kernels(&outcome.kernels);
    Ok(outcome)
}

/// Xen with the kernel as its dom0; `strict`: behind an IOMMU, which shows its devices what is its own and writable, and no more.
fn xen(bench: &Bench, record: &mut Record, log: &Path, strict: bool) -> Result<Vec<Finding>> {
    let packages = xen::Packages::unpack()?;
    record.version("xen", &format!("package {}", packages.version()?));
    record.version("xen_dom0", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    let hypervisor = scratch_file("xen", &packages.hypervisor()?)?;
    let arguments = counting(bench, Some(xen::TEXT), false, log);
    let unit = if strict { "iommu=on dom0-iommu=strict" } else { "" };
    let cmdline = format!("{} {unit}", xen_cmdline(MEMORY));
    let machine = Machine {
        name: if strict { "paravirtual-strict" } else { "paravirtual-xen" },
        clock: Clock::Instructions,
        cpu: xen::CPU,
        memory: if strict { 1536 } else { 768 },
        kernel: &hypervisor,
        initrd: format!("{} console=hvc0 {CMDLINE},{}", bench.unpacked.display(), bench.initrd.display()),
        cmdline: &cmdline,
        devices: if strict { vec!["-device", "amd-iommu"] } else { Vec::new() },
        qemu_args: &arguments,
    };
    machine.run("done")
}

/// How often the guest did an operation.
fn few_and_many(found: &[Finding], work: &str) -> Result<(f64, f64)> {
    let said = |key: &str| {
        let finding =
            found.iter().find(|finding| finding.iter().any(|pair| pair.0 == "at" && pair.1 == work));
        finding?.iter().find(|pair| pair.0 == key)?.1.raw().parse::<f64>().ok()
    };
    said("few").zip(said("many")).with_context(|| format!("the guest did not report {work}"))
}

fn rows(
    record: &mut Record,
    prefix: &str,
    entries: Entries,
    found: &[Finding],
    marks: &[Mark],
) -> Result<()> {
    for (number, work) in WORKS.into_iter().enumerate() {
        let (few, many) = few_and_many(found, work)?;
        let marks = marks.get(3 * number..3 * number + 3).and_then(|marks| marks.try_into().ok());
        let cost = cost(marks.with_context(|| format!("the guest did not mark {work}"))?, few, many);
        let note = format!("per operation, difference of {few} and {many}");
        record.row(format!("{prefix}.{work}.instructions"), cost.instructions, "instructions", note);
        if entries == Entries::None {
            continue;
        }
        let note = format!("of these the hypervisor's; {} operations", cost.operations);
        let limit = match (prefix, work) {
            ("pv", "fork_exit") => Some(Aim::AtMost(166_000.0)),
            ("pv", "execve") => Some(Aim::AtMost(563_000.0)),
            _ => None,
        };
        let id = format!("{prefix}.{work}.hypervisor.instructions");
        record.aimed(id, cost.hypervisor, "instructions", limit, note);
        let note = match entries {
            Entries::Returns => "entries into the guest: iretq and sysretq of the hypervisor's",
            _ => "entries into the guest: VMRUN",
        };
        record.row(format!("{prefix}.{work}.exits"), cost.exits, "exits", note);
    }
    Ok(())
}

/// Ratios with their aims, and the picture.
fn figures(record: &mut Record) -> Result<()> {
    tables::comparisons(record);
    let boot = |prefix: &str| record.value(&format!("{prefix}.boot.instructions"));
    if let Some((ours, xen)) = boot("pv").zip(boot("peer.xen.default")) {
        let note = "instructions, Sluice's to Xen's; Xen's kernel is its dom0, which finds a machine and its ACPI tables, and ours has no devices";
        record.row("pv.boot.ratio_to_xen", ours / xen, "ratio", note);
    }
    let mut panels = Vec::new();
    for work in WORKS {
        let value = |prefix: &str| record.value(&format!("{prefix}.{work}.instructions"));
        let (ours, native, xen) = (value("pv"), value("native"), value("peer.xen.default"));
        if let Some((ours, cached)) = ours.zip(value("pv.cache")) {
            let note = "instructions, with the cache of page-table pages to without";
            record.row(format!("pv.cache.{work}.ratio_to_nocache"), cached / ours, "ratio", note);
        }
        if let Some((ours, native)) = ours.zip(native) {
            let aim = (work == "fork_exit").then_some(Aim::AtMost(2.5));
            let note = "instructions, Sluice's to those of the kernel alone on the machine";
            record.aimed(format!("pv.{work}.ratio_to_native"), ours / native, "ratio", aim, note);
        }
        if let Some((ours, xen)) = ours.zip(xen) {
            let aim = match work {
                "execve" => Some(Aim::AtMost(0.7)),
                "fault" | "syscall" => Some(Aim::AtMost(1.0)),
                _ => None,
            };
            record.aimed(
                format!("pv.{work}.ratio_to_xen"),
                ours / xen,
                "ratio",
                aim,
                "instructions, Sluice's to Xen's",
            );
        }
        let mut bars = Vec::new();
        let systems =
            [("native", "native"), ("sluice", "pv"), ("with cache", "pv.cache"), ("xen", "peer.xen.default")];
        for (system, prefix) in systems {
            let total = record.value(&format!("{prefix}.{work}.instructions"));
            let hypervisor = record.value(&format!("{prefix}.{work}.hypervisor.instructions"));
            bars.extend(total.map(|total| (format!("{system} total"), total)));
            bars.extend(hypervisor.map(|hypervisor| (format!("{system} hypervisor"), hypervisor)));
        }
        if !bars.is_empty() {
            panels.push(Panel { title: format!("{work}, instructions"), bars });
        }
    }
    plot::write("paravirtual", "Processes, faults and system calls of a paravirtual guest", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_up_to_each_mark() {
        let text = "amdvi_pages_inval a\ncount mark 1 2 3\nnoise\n12@3:amdvi_pages_inval b\namdvi_pages_inval c\ncount mark 4 5 6\n";
        assert_eq!(events_at_marks(text, INVALIDATION), [1.0, 3.0]);
    }

    #[test]
    fn a_guest_that_did_not_finish_has_no_rows() {
        let found =
            [crate::outcome::parse_finding("SLUICE-RESULT at=fork_exit few=1 many=5 marks=3").unwrap()];
        let mut record = Record::new("paravirtual-test");
        let three = [Mark::default(); 3];
        assert!(rows(&mut record, "pv", Entries::Vmruns, &found, &three).is_err(), "no execve");
        assert!(record.value("pv.fork_exit.exits").is_some());
        assert!(rows(&mut record, "pv", Entries::Vmruns, &found, &three[1..]).is_err(), "no marks");
    }
}
