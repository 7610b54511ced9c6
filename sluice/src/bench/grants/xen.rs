//! What Xen's grant operations cost on the same machine: the hypercalls of its paravirtual dom0, counted by a module of ours (bench/xen-grants) with the
//! time-stamp counter, as guest/bare counts Sluice's. QEMU's plugin counts the same hypercalls by marks, which shows whether ticks are instructions and how
//! many of them are Xen's own.
//!
//! Source: Xen 4.17, xen/common/grant_table.c, for what notes say of it.

use crate::bench::driver::xen::{CPU, Packages, TEXT};
use crate::bench::marks::{Entries, Mark, marks};
use crate::bench::peer::{self, Machine};
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, plugin, scratch, scratch_file};
use crate::kernels;
use crate::outcome::Finding;
use crate::rootfs;
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The part of the benchmark.
pub const PART: &str = "xen";

/// What is measured: the module's name for it, and about it.
const MEASURED: [(&str, &str); 13] = [
    ("map", MAP),
    ("unmap", UNMAP),
    ("copy", COPY),
    ("copy_64", "GNTTABOP_copy of 64 bytes, from a frame of dom0's to a reference"),
    ("copy_back", BACK),
    ("copy_back_64", "GNTTABOP_copy of 64 bytes, from a reference to a frame of dom0's"),
    ("empty", "for grants, without any operation"),
    ("batch_map", MAP),
    ("batch_unmap", "GNTTABOP_unmap_grant_ref: as a single one, with one flush for 32 operations"),
    ("batch_copy", COPY),
    ("batch_copy_64", "GNTTABOP_copy of 64 bytes, from a frame of dom0's to a reference"),
    ("batch_copy_back", BACK),
    ("batch_copy_back_64", "GNTTABOP_copy of 64 bytes, from a reference to a frame of dom0's"),
];
const MAP: &str = "GNTTABOP_map_grant_ref for the host, writable: Xen looks for the entry of dom0's page tables and writes it";
const UNMAP: &str = "GNTTABOP_unmap_grant_ref: Xen takes the entry out of dom0's page tables and flushes";
const COPY: &str = "GNTTABOP_copy of 4096 bytes, from a frame of dom0's to a reference; eight bytes that Xen moves are an instruction";
const BACK: &str = "GNTTABOP_copy of 4096 bytes, from a reference to a frame of dom0's; eight bytes that Xen moves are an instruction";

/// What all have in common.
const ABOUT: &str = "dom0 is paravirtual, its calls are no VMEXITs; no IOMMU";

/// Whose pages dom0 maps: how rows begin, and what that is for Xen.
const OWN: (&str, &str) =
    ("grants.xen", "pages that dom0 granted to itself, for Xen as those of another paravirtual guest");
const GUESTS: (&str, &str) =
    ("grants.xen.pvh", "pages of a guest of kind PVH, which Xen looks for in that guest's nested tables");

/// The `init` of a dom0 without guests.
const ALONE: &str = "#!/bin/busybox sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
modprobe xen-grants || echo SLUICE-RESULT done=failed
dmesg | sed -n 's/.*xen_grants: //p'
echo SLUICE-RESULT done=ok
sleep 1000
";

/// The `init` of a dom0 with a guest that grants pages to it.
const WITH_GUEST: &str = "#!/bin/busybox sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /run/xen /run/xenstored /run/lock
mount -t devpts devpts /dev/pts
for module in xen-gntdev xen-evtchn xen-privcmd xenfs; do modprobe $module; done
mount -t xenfs xenfs /proc/xen
xenstored --pid-file /run/xenstored.pid
xen-init-dom0
xenconsoled --log=guest --log-dir=/tmp
xl create /guest/guest.cfg || echo SLUICE-RESULT done=failed
log=/tmp/guest-guest.log
until grep -q 'granted=.*[.]' $log; do sleep 0.1; done
modprobe xen-grants owner=$(xl domid guest) refs=$(sed -n 's/.*granted=\\([0-9,]*\\)[.].*/\\1/p' $log) ||
    echo SLUICE-RESULT done=failed
dmesg | sed -n 's/.*xen_grants: //p'
echo SLUICE-RESULT done=ok
sleep 1000
";

/// The `init` of that guest.
const GUEST: &str = "#!/bin/busybox sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
modprobe xen-grants grants=1
dmesg | sed -n 's/.*xen_grants: //p'
sleep 1000
";

/// What `xl` reads of it. Its counter would be emulated otherwise.
const CONFIGURATION: &str = "name = 'guest'
type = 'pvh'
kernel = '/guest/kernel'
ramdisk = '/guest/initrd'
memory = 128
vcpus = 1
cmdline = 'console=hvc0 quiet panic=-1'
tsc_mode = 'native'
";

/// What dom0 and its guest want of the kernel's modules.
const MODULES: [&str; 4] = ["xen-gntdev", "xen-evtchn", "xen-privcmd", "xenfs"];
/// Ours.
const OURS: &str = "xen-grants";

/// MiB of dom0, and of the machine.
const DOM0: u32 = 512;
const MACHINE: u32 = 1024;

/// A loop of the module's may have so many ticks more for each of its instructions, of Xen's interrupts.
const TOLERANCE: f64 = 0.05;
/// The counter and the plugin may differ by so much of what a call costs.
const DIFFERENCE: f64 = 0.01;

/// Runs a dom0 without a guest and one with one, and keeps what the module counted.
pub fn measure(record: &mut Record) -> Result<()> {
    let kernel = kernels::get("debian-6.1")?;
    let packages = Packages::unpack()?;
    record.version("xen", &format!("package {}", packages.version()?));
    record.version("xen_dom0", &format!("{}, package {}", kernel.release, kernel.version));
    let alone = rootfs::base_with_own(ALONE.as_bytes(), &[], OURS, &kernel)?;
    let unpacked = kernel::unpacked(&kernel)?;
    let mut with_guest =
        rootfs::base_with_own(WITH_GUEST.as_bytes(), &MODULES.map(str::to_owned), OURS, &kernel)?;
    packages.take(&mut with_guest)?;
    with_guest.directory("guest");
    peer::take(&mut with_guest, &unpacked, "guest/kernel", 0o644)?;
    let guest = rootfs::base_with_own(GUEST.as_bytes(), &[], OURS, &kernel)?;
    with_guest.file("guest/initrd", 0o644, &guest.finish());
    with_guest.file("guest/guest.cfg", 0o644, CONFIGURATION.as_bytes());
    for (name, archive, whose) in [("grants-xen", alone, OWN), ("grants-xen-pvh", with_guest, GUESTS)] {
        crate::bench::say(whose.1);
        let initrd = scratch_file(&format!("{name}.cpio"), &archive.finish())?;
        let (found, marks) = run(name, &packages, &unpacked, &initrd)?;
        std::fs::remove_file(&initrd)?;
        rows(record, whose, &found, &marks)?;
    }
    Ok(())
}

/// Runs dom0 until it has told what it counted, and returns this and what the plugin counted.
fn run(name: &str, packages: &Packages, kernel: &Path, initrd: &Path) -> Result<(Vec<Finding>, Vec<Mark>)> {
    let cmdline = format!(
        "console=com1 com1=115200,8n1 dom0_mem={DOM0}M,max:{DOM0}M dom0_max_vcpus=1 cpuidle=0 loglvl=warning guest_loglvl=none"
    );
    // Interrupts that Xen injects into its guest are delivered once.
    let mending = format!("{},mend=on", plugin::build()?.display());
    let library = plugin::with_functions(Path::new(&mending), &[("within".to_owned(), TEXT.0, TEXT.1)]);
    let log = scratch()?.join(format!("{name}.count"));
    let machine = Machine {
        name,
        clock: Clock::Instructions,
        cpu: CPU,
        memory: MACHINE,
        kernel: &scratch_file("xen", &packages.hypervisor()?)?,
        initrd: format!("{} console=hvc0 quiet panic=-1,{}", kernel.display(), initrd.display()),
        cmdline: &cmdline,
        devices: Vec::new(),
        qemu_args: &plugin::arguments(Path::new(&library), &log),
    };
    let found = machine.run("done")?;
    let text =
        std::fs::read_to_string(&log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    Ok((found, marks(&text, Entries::Returns)))
}

/// Ticks of calls of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    ticks: f64,
    calls: f64,
    operations: f64,
    least: f64,
    most: f64,
    /// The first call's pair of marks, and how many pairs later the next call's is.
    first: usize,
    step: usize,
}

impl Count {
    fn find(found: &[Finding], name: &str) -> Option<Self> {
        let is_it = |finding: &&Finding| finding.iter().any(|pair| pair.0 == "at" && pair.1 == name);
        let finding = found.iter().find(is_it)?;
        let said = |key: &str| Some(finding.iter().find(|pair| pair.0 == key)?.1.raw());
        let number = |key: &str| said(key)?.parse().ok();
        Some(Self {
            ticks: number("ticks")?,
            calls: number("calls")?,
            operations: number("operations")?,
            least: number("least")?,
            most: number("most")?,
            first: said("first")?.parse().ok()?,
            step: said("step")?.parse().ok()?,
        })
    }

    /// What the plugin counted between the two marks of one call, on average: instructions of the machine, and Xen's.
    fn marked(self, marks: &[Mark]) -> Option<(f64, f64)> {
        let (mut all, mut hypervisor) = (0, 0);
        for call in 0..self.calls as usize {
            let at = 2 * (self.first + call * self.step);
            let [before, after] = marks.get(at..at + 2)? else { return None };
            all += after.instructions - before.instructions;
            hypervisor += after.hypervisor - before.hypervisor;
        }
        Some((all as f64 / self.calls, hypervisor as f64 / self.calls))
    }

    /// Ticks of one call.
    fn mean(self) -> f64 {
        self.ticks / self.calls
    }

    /// Operations of one call; one that has none is counted as one.
    fn each(self) -> f64 {
        (self.operations / self.calls).max(1.0)
    }
}

fn rows(record: &mut Record, (prefix, whose): (&str, &str), found: &[Finding], marks: &[Mark]) -> Result<()> {
    let count =
        |name: &str| Count::find(found, name).with_context(|| format!("dom0 did not say what {name} costs"));
    let said = |key: &str| found.iter().flatten().find(|pair| pair.0 == key).map(|pair| pair.1.raw());
    ensure!(said("failed") == Some("0"), "operations of dom0 failed, or did not do what they should");
    let version = said("version").context("dom0 did not say of which version its table is")?;
    let (none, known) = (count("none")?, count("loop")?);
    // Xen may emulate the counter for others than dom0, and QEMU's may be the host's.
    let tick = (known.mean() - none.mean()) / known.each();
    ensure!((1.0..1.0 + TOLERANCE).contains(&tick), "an instruction is {tick} ticks of dom0's counter");
    let pairs = said("pairs").and_then(|pairs| pairs.parse::<usize>().ok());
    ensure!(pairs.is_some_and(|pairs| 2 * pairs == marks.len()), "not each call of dom0's has its two marks");
    let marked = |name: &str, count: Count| {
        count.marked(marks).with_context(|| format!("the marks of {name} are not there"))
    };
    let (nothing, _) = marked("none", none)?;
    for (name, about) in MEASURED {
        let count = count(name)?;
        let per = |ticks: f64| (ticks - none.least) / count.each();
        let one = match count.each() {
            many if many > 1.0 => format!("one of {many} operations of a hypercall"),
            _ => "a hypercall".to_owned(),
        };
        let note = format!(
            "{one}: {about}; {whose}. {ABOUT}; table of version {version}; mean of {} hypercalls, least {:.0}, most {:.0}",
            count.calls,
            per(count.least),
            per(count.most)
        );
        record.row(format!("{prefix}.{name}.instructions"), per(count.mean()), "instructions", note);
        let (all, hypervisor) = marked(name, count)?;
        let (ticks, all) = (count.mean() - none.least, all - nothing);
        ensure!(
            (ticks - all).abs() <= DIFFERENCE * all,
            "{name} is {ticks} ticks, and {all} instructions for the plugin"
        );
        let note = format!(
            "of these Xen's own, by their addresses; the plugin counts {:.2} of the whole machine between the marks around the same hypercalls",
            all / count.each()
        );
        let id = format!("{prefix}.{name}.hypervisor.instructions");
        record.row(id, hypervisor / count.each(), "instructions", note);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    fn findings(lines: &[&str]) -> Vec<Finding> {
        lines.iter().map(|line| parse_finding(&format!("SLUICE-RESULT {line}")).unwrap()).collect()
    }

    /// So many pairs of marks, each around so many instructions, of which half are the hypervisor's.
    fn pairs(counts: &[u64]) -> Vec<Mark> {
        let mut at = Mark::default();
        let mut all = Vec::new();
        for count in counts {
            all.push(at);
            at.instructions += count;
            at.hypervisor += count / 2;
            all.push(at);
            at.instructions += 1000;
        }
        all
    }

    /// What the module says of two calls of each kind, and the marks of these calls.
    fn told() -> (Vec<Finding>, Vec<Mark>) {
        let kinds = MEASURED.map(|(name, _)| match name {
            "empty" => (name, 100, 0),
            _ if name.starts_with("batch") => (name, 1280, 64),
            _ => (name, 200, 1),
        });
        let mut lines = Vec::new();
        let mut costs = Vec::new();
        for (first, (name, cost, operations)) in
            [("none", 0, 1), ("loop", 100, 100)].into_iter().chain(kinds).enumerate()
        {
            let tick = cost + 4;
            lines.push(format!(
                "at={name} ticks={} calls=2 operations={} least={tick} most={tick} first={first} step={}",
                2 * tick,
                2 * operations,
                MEASURED.len() + 2
            ));
            costs.push(cost + 1);
        }
        lines.push(format!("version=1 failed=0 pairs={}", 2 * costs.len()));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let costs = [costs.clone(), costs].concat();
        (findings(&lines), pairs(&costs))
    }

    #[test]
    fn what_a_count_has_of_itself_is_not_the_operations() {
        let (found, marks) = told();
        let mut record = Record::new("grants-test");
        rows(&mut record, OWN, &found, &marks).unwrap();
        let value = |name: &str| record.value(&format!("grants.xen.{name}.instructions"));
        assert_eq!(value("map"), Some(200.0));
        assert_eq!(value("map.hypervisor"), Some(100.0));
        assert_eq!(value("empty"), Some(100.0));
        assert_eq!(value("batch_copy"), Some(20.0));
        assert_eq!(value("batch_copy.hypervisor"), Some(10.0));
    }

    #[test]
    fn ticks_that_are_no_instructions_and_operations_that_fail_are_no_rows() {
        let emulated = findings(&[
            "at=none ticks=20000 calls=10 operations=10 least=2000 most=2000 first=0 step=2",
            "at=loop ticks=23000 calls=10 operations=1000 least=2300 most=2300 first=1 step=2",
            "version=1 failed=0 pairs=20",
        ]);
        let mut record = Record::new("grants-test");
        let mut refused =
            |found: &[Finding], marks: &[Mark]| rows(&mut record, OWN, found, marks).unwrap_err().to_string();
        assert!(refused(&emulated, &[]).contains("ticks"));
        assert!(refused(&findings(&["version=1 failed=2"]), &[]).contains("failed"));
        let (found, marks) = told();
        assert!(refused(&found, &marks[1..]).contains("marks"), "a mark is missing");
        let other = pairs(&vec![1; marks.len() / 2]);
        assert!(refused(&found, &other).contains("plugin"), "the plugin counts something else");
    }
}
