//! A build, as a whole: `make` of the kernel's own selftests of the processor, a compiler, an assembler and a linker for each, in a paravirtual guest, on the
//! machine alone and in Xen's dom0.

use super::super::driver::xen;
use super::super::marks::{Entries, Mark, marks};
use super::super::peer::Machine;
use super::super::record::Record;
use super::super::{Clock, good, plugin, quoted, scratch, scratch_file};
use super::{Bench, CMDLINE, loaded, within, xen_cmdline};
use crate::outcome::Finding;
use crate::qemu::NATIVE_CPU;
use crate::rootfs::{self, Additions};
use crate::selftests;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Memory of the guest, and of the machine with a hypervisor, in MiB: the compiler is in the ramdisk.
const MEMORY: u32 = 512;
const MACHINE: u32 = 1280;

/// Systems by their prefixes, and what is an entry into the guest.
const SYSTEMS: [(&str, Entries); 4] = [
    ("native", Entries::None),
    ("pv", Entries::Vmruns),
    ("pv.cache", Entries::Vmruns),
    ("peer.xen.default", Entries::Returns),
];

/// Measures all of them.
pub fn measure(bench: &Bench, record: &mut Record) -> Result<()> {
    let kernel = &bench.kernel;
    let more = Additions { files: selftests::sources(&kernel.release)?, ..Additions::default() };
    let initrd = rootfs::get_with("compiler", kernel, &more)?;
    for (prefix, entries) in SYSTEMS {
        super::super::say(&format!("a build, {prefix}"));
        let log = scratch()?.join(format!("paravirtual-{prefix}.build.count"));
        let found = match prefix {
            "native" => native(bench, &initrd, &log),
            "peer.xen.default" => dom0(bench, &initrd, &log, record),
            _ => guest(bench, &initrd, &log, prefix == "pv.cache", record),
        }?;
        let text =
            std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
        rows(record, prefix, entries, &found, &marks(&text, entries))?;
        record.write()?;
    }
    figures(record);
    Ok(())
}

/// What the guest is to do.
fn cmdline(console: &str, with_cache: bool) -> String {
    let cache = if with_cache { "yes" } else { "no" };
    format!("console={console} {CMDLINE} sluice.job=build:cache={cache}")
}

fn counting(bench: &Bench, range: Option<(u64, u64)>, log: &Path) -> Vec<String> {
    let functions = range.map(within);
    let functions = functions.as_ref().map_or(&[][..], |one| one.as_slice());
    loaded(&plugin::with_functions(&bench.plugin, functions), log)
}

fn native(bench: &Bench, initrd: &Path, log: &Path) -> Result<Vec<Finding>> {
    let (arguments, cmdline) = (counting(bench, None, log), cmdline("ttyS0", false));
    let machine = Machine {
        name: "paravirtual-build-native",
        clock: Clock::Instructions,
        cpu: NATIVE_CPU,
        memory: MEMORY,
        kernel: &bench.unpacked,
        initrd: initrd.display().to_string(),
        cmdline: &cmdline,
        devices: Vec::new(),
        qemu_args: &arguments,
    };
    machine.run("done")
}

fn guest(
    bench: &Bench,
    initrd: &Path,
    log: &Path,
    with_cache: bool,
    record: &mut Record,
) -> Result<Vec<Finding>> {
    let [kernel, initrd] = [&*bench.unpacked, initrd].map(quoted);
    let cmdline = cmdline("hvc0", with_cache);
    let text = format!(
        "[machine]\nmemory = \"{MACHINE}MiB\"\n[domain.guest]\nkind = \"paravirtual\"\nkernel = {kernel}\ninitrd = {initrd}\n\
         cmdline = \"{cmdline}\"\nmemory = \"{MEMORY}MiB\"\n"
    );
    let arguments = counting(bench, Some(plugin::IMAGE), log);
    let (_, outcome) = good("paravirtual-build", &text, Clock::Instructions, arguments)?;
    record.kernels(&outcome.kernels);
    Ok(outcome.guests.into_iter().next().map(|guest| guest.findings).unwrap_or_default())
}

fn dom0(bench: &Bench, initrd: &Path, log: &Path, record: &mut Record) -> Result<Vec<Finding>> {
    let packages = xen::Packages::unpack()?;
    record.version("xen", &format!("package {}", packages.version()?));
    let hypervisor: PathBuf = scratch_file("xen", &packages.hypervisor()?)?;
    let arguments = counting(bench, Some(xen::TEXT), log);
    let machine = Machine {
        name: "paravirtual-build-xen",
        clock: Clock::Instructions,
        cpu: xen::CPU,
        memory: MACHINE,
        kernel: &hypervisor,
        initrd: format!("{} {},{}", bench.unpacked.display(), cmdline("hvc0", false), initrd.display()),
        cmdline: &xen_cmdline(MEMORY),
        devices: Vec::new(),
        qemu_args: &arguments,
    };
    machine.run("done")
}

fn rows(
    record: &mut Record,
    prefix: &str,
    entries: Entries,
    found: &[Finding],
    marks: &[Mark],
) -> Result<()> {
    let said = found.iter().flatten().find(|pair| pair.0 == "built");
    let built: u32 =
        said.and_then(|pair| pair.1.raw().parse().ok()).context("the guest did not say what it built")?;
    ensure!(built > 0, "the guest built nothing");
    let [begin, end] = marks else { anyhow::bail!("the guest set {} marks", marks.len()) };
    let note = format!("make of {built} of the kernel's selftests with gcc, from its start to its end");
    let count = |of: fn(&Mark) -> u64| (of(end) - of(begin)) as f64;
    record.row(format!("{prefix}.build.instructions"), count(|mark| mark.instructions), "instructions", note);
    if entries == Entries::None {
        return Ok(());
    }
    let id = format!("{prefix}.build.hypervisor.instructions");
    record.row(id, count(|mark| mark.hypervisor), "instructions", "of these the hypervisor's");
    let note = match entries {
        Entries::Returns => "entries into the guest: iretq and sysretq of the hypervisor's",
        _ => "entries into the guest: VMRUN",
    };
    record.row(format!("{prefix}.build.exits"), count(|mark| mark.entries), "exits", note);
    Ok(())
}

/// Ratios.
fn figures(record: &mut Record) {
    for (of, to, name) in [
        ("pv", "native", "pv.build.ratio_to_native"),
        ("pv", "peer.xen.default", "pv.build.ratio_to_xen"),
        ("pv.cache", "pv", "pv.cache.build.ratio_to_nocache"),
        ("peer.xen.default", "native", "peer.xen.default.build.ratio_to_native"),
    ] {
        let value = |prefix: &str| record.value(&format!("{prefix}.build.instructions"));
        if let Some((of, to)) = value(of).zip(value(to)) {
            record.row(name, of / to, "ratio", "instructions of the whole build");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn a_build_is_what_lies_between_two_marks() {
        let found = [parse_finding("SLUICE-RESULT built=23").unwrap()];
        let mut record = Record::new("paravirtual-build");
        let counted = marks("count mark 100 5 20 1\ncount mark 1100 45 220 9\n", Entries::Vmruns);
        rows(&mut record, "pv", Entries::Vmruns, &found, &counted).unwrap();
        assert_eq!(record.value("pv.build.instructions"), Some(1000.0));
        assert_eq!(record.value("pv.build.hypervisor.instructions"), Some(200.0));
        assert_eq!(record.value("pv.build.exits"), Some(40.0));
        rows(&mut record, "native", Entries::None, &found, &counted).unwrap();
        figures(&mut record);
        assert_eq!(record.value("pv.build.ratio_to_native"), Some(1.0));
        assert!(rows(&mut record, "pv", Entries::Vmruns, &found, &counted[..1]).is_err());
        assert!(rows(&mut record, "pv", Entries::Vmruns, &[], &counted).is_err());
    }
}
