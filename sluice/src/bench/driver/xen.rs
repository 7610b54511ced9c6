//! The peer Xen: Debian as dom0 with the same card and disk, guests of kind PVH; a network card is netback on a bridge with the card, a disk is
//! blkback on the NVMe.
//!
//! Debian's packages are unpacked into the cache. Two scripts of ours stand for the hotplug scripts, which want bash and more: what they do
//! is done once, before anything is measured. The hypervisor is known by its addresses; dom0, a paravirtual guest that is never entered
//! by `VMRUN`, is the rest.

pub use super::plan::UPLINK;
use super::plan::{Device, Plan, Planned};
use super::{Bench, DEVICES, Measured};
use crate::bench::peer::{self, Machine};
use crate::bench::record::Record;
use crate::bench::split::{Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, plugin, scratch, scratch_file, transfer};
use crate::cpio::Archive;
use crate::kernels::Kernel;
use crate::packages::{Apt, PackageName};
use crate::rootfs;
use crate::workspace::{cache, run as execute};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Xen, its tools, and the libraries that only they need.
const PACKAGES: [&str; 15] = [
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "xenstore-utils",
    "libxenmisc4.17",
    "libxenstore4",
    "libxencall1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxentoollog1",
    "libxentoolcore1",
    "libxendevicemodel1",
    "libxenhypfs1",
    "libyajl2",
    "libgcc-s1",
];
/// What glibc loads when a thread is cancelled.
const CANCEL: (&str, &str) = ("libgcc-s1", "libgcc_s.so.1");
/// Programs of dom0, by package.
const PROGRAMS: [(&str, &str); 6] = [
    ("xen-utils-4.17", "usr/lib/xen-4.17/bin/xl"),
    ("xen-utils-4.17", "usr/lib/xen-4.17/bin/xenstored"),
    ("xen-utils-4.17", "usr/lib/xen-4.17/bin/xenconsoled"),
    ("xen-utils-4.17", "usr/lib/xen-4.17/bin/xen-init-dom0"),
    ("xenstore-utils", "usr/bin/xenstore-read"),
    ("xenstore-utils", "usr/bin/xenstore-write"),
];
/// Where libraries are.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Modules of dom0.
const MODULES: [&str; 9] = [
    "e1000",
    "nvme",
    "bridge",
    "xen-netback",
    "xen-blkback",
    "xen-gntdev",
    "xen-evtchn",
    "xen-privcmd",
    "xenfs",
];
/// QEMU's faults with a paravirtual kernel's IRET and with MONITOR; a PVH guest's RDTSCP is refused by Xen there.
pub const CPU: &str = "EPYC,+svm,+npt,-smap,-monitor,-rdtscp";
/// Xen's command line.
pub const CMDLINE: &str = "console=com1 com1=115200,8n1 dom0_mem=1024M,max:1024M dom0_max_vcpus=1 cpuidle=0 loglvl=warning guest_loglvl=none";
/// MiB for the hypervisor and dom0, and for each guest beside its own.
const HOST: u32 = 1152;
const BESIDE: u32 = 16;
/// Xen's text and its neighbourhood (xen/arch/x86/include/asm/config.h, `XEN_VIRT_START`).
pub const TEXT: (u64, u64) = (0xffff_82d0_0000_0000, 0x8000_0000);

/// Runs guests.
pub(super) fn run(bench: &Bench, plan: &Plan, record: &mut Record) -> Result<Measured> {
    let packages = Packages::unpack()?;
    record.version("xen", &format!("package {}", packages.version()?));
    record.version("xen_dom0", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    let initramfs = scratch_file(&format!("{}.cpio", plan.name), &archive(bench, &packages, plan)?)?;
    let xen = scratch_file("xen", &packages.hypervisor()?)?;
    let reader = Reader::start(&scratch()?, Split::new(Third::Within))?;
    let arguments = reader.arguments(false, Some(&plugin::peer(&bench.plugin, TEXT)));
    let machine = Machine {
        name: &plan.name,
        clock: Clock::Mixed,
        cpu: CPU,
        memory: plan.machine(HOST, BESIDE),
        kernel: &xen,
        initrd: format!("{} console=hvc0 quiet panic=-1,{}", bench.unpacked.display(), initramfs.display()),
        cmdline: CMDLINE,
        devices: DEVICES.to_vec(),
        qemu_args: &arguments,
    };
    let ran = machine.run(plan.last);
    let split = reader.finish();
    std::fs::remove_file(&initramfs)?;
    Ok(Measured { guests: vec![transfer::guest(ran?)], split: split?, servers: [].into(), report: None })
}

/// Debian's packages in the cache.
pub struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Unpacks those that are missing.
    pub fn unpack() -> Result<Self> {
        let folder = cache().join("packages");
        let is_there = |name: &&str| folder.join(name).join("version").exists();
        if !PACKAGES.iter().all(is_there) {
            let apt = Apt::open()?;
            for name in PACKAGES {
                let package = PackageName::parse(name).context("it is the name of a package")?;
                apt.unpack(&package, &folder.join(name))?;
            }
        }
        Ok(Self { folder })
    }

    /// The hypervisor's version.
    pub fn version(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join(PACKAGES[0]).join("version"))?)
    }

    /// The hypervisor as an ELF file.
    pub fn hypervisor(&self) -> Result<Vec<u8>> {
        let packed = self.folder.join(PACKAGES[0]).join("boot/xen-4.17-amd64.gz");
        Ok(execute(Command::new("gzip").arg("-dc").arg(packed))?.stdout)
    }

    /// Adds dom0's programs with their libraries, and the folders that they want.
    pub fn take(&self, archive: &mut Archive) -> Result<()> {
        for folder in ["lib64", "lib/x86_64-linux-gnu", "etc/xen"] {
            archive.directory(folder);
        }
        for folder in ["var", "var/lib", "var/lib/xen", "var/log", "var/log/xen"] {
            archive.directory(folder);
        }
        archive.link("var/run", "/run");
        archive.link("var/lock", "/run");
        let search: Vec<PathBuf> =
            PACKAGES.iter().map(|name| self.folder.join(name).join(LIBRARIES)).collect();
        let mut libraries = std::collections::BTreeMap::new();
        for (package, path) in PROGRAMS {
            let binary = self.folder.join(package).join(path);
            let name = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for library in peer::libraries(&binary, &search)? {
                let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
                libraries.insert(name, library);
            }
            peer::take(archive, &binary, &format!("bin/{name}"), 0o755)?;
        }
        let (package, name) = CANCEL;
        libraries.insert(name.to_owned(), self.folder.join(package).join("lib/x86_64-linux-gnu").join(name));
        for (name, library) in libraries {
            let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
            peer::take(archive, &library, &format!("{folder}/{name}"), 0o755)?;
        }
        Ok(())
    }
}

fn archive(bench: &Bench, packages: &Packages, plan: &Plan) -> Result<Vec<u8>> {
    let guests: Vec<Configured> = plan
        .guests
        .iter()
        .enumerate()
        .rev()
        .map(|(number, guest)| Configured {
            name: format!("guest{number}"),
            text: configuration(plan, number, guest),
            before: if number == 0 {
                plan.settled(|other| log(&format!("guest{other}")))
            } else {
                String::new()
            },
            is_shown: guest.waits.is_none(),
        })
        .collect();
    let read =
        |file: &Path| std::fs::read(file).with_context(|| format!("could not read {}", file.display()));
    let files = (&*read(&bench.unpacked)?, &*read(&bench.initrd)?);
    dom0(packages, &bench.kernel, files, &guests, plan.uplink())
}

/// A guest that dom0 starts.
pub struct Configured {
    /// Its name.
    pub name: String,
    /// What `xl` reads.
    pub text: String,
    /// Lines of a shell that come before its start.
    pub before: String,
    /// Its console is on the machine's, too.
    pub is_shown: bool,
}

/// Where dom0 keeps the console of a guest.
fn log(guest: &str) -> String {
    format!("/tmp/guest-{guest}.log")
}

/// The root file system of a dom0 of this kernel, which starts guests with that kernel and ramdisk, in that order, on a bridge with that uplink.
pub fn dom0(
    packages: &Packages,
    kernel: &Kernel,
    (guest, initrd): (&[u8], &[u8]),
    guests: &[Configured],
    uplink: &str,
) -> Result<Vec<u8>> {
    let mut archive = rootfs::base(script(guests, uplink).as_bytes(), &MODULES.map(str::to_owned), kernel)?;
    packages.take(&mut archive)?;
    for folder in ["guest", "etc/xen/scripts"] {
        archive.directory(folder);
    }
    archive.file("guest/kernel", 0o644, guest);
    archive.file("guest/initrd", 0o644, initrd);
    for guest in guests {
        archive.file(&format!("guest/{}.cfg", guest.name), 0o644, guest.text.as_bytes());
    }
    archive.file("etc/xen/scripts/block", 0o755, BLOCK.as_bytes());
    archive.file("etc/xen/scripts/vif-bridge", 0o755, VIF.as_bytes());
    Ok(archive.finish())
}

/// Tells blkback which disk it is.
const BLOCK: &str = "#!/bin/sh\n\
    [ \"$1\" = add ] || exit 0\n\
    disk=$(xenstore-read \"$XENBUS_PATH/params\")\n\
    xenstore-write \"$XENBUS_PATH/physical-device\" \"$(stat -L -c %t:%T \"$disk\")\"\n\
    xenstore-write \"$XENBUS_PATH/hotplug-status\" connected\n";

/// Puts a card's back end on the bridge.
const VIF: &str = "#!/bin/sh\n\
    [ \"$1\" = online ] || exit 0\n\
    brctl addif br0 \"$vif\"\n\
    ip link set \"$vif\" up\n\
    xenstore-write \"$XENBUS_PATH/hotplug-status\" connected\n";

/// What `xl` reads.
fn configuration(plan: &Plan, number: usize, guest: &Planned) -> String {
    let device = match &guest.device {
        Device::Disk => "disk = ['phy:/dev/nvme0n1,xvda,w']".to_owned(),
        Device::Net(mac) => format!("vif = ['mac={mac},bridge=br0']"),
    };
    let cmdline = guest.cmdline.replace("console=ttyS0", "console=hvc0");
    // Where the emulated processor does not say that its counter is invariant, Xen would emulate it.
    format!(
        "name = 'guest{number}'\ntype = 'pvh'\nkernel = '/guest/kernel'\nramdisk = '/guest/initrd'\nmemory = {}\nvcpus = 1\n\
         cmdline = '{cmdline}'\ntsc_mode = 'native'\non_crash = 'destroy'\n{device}\n",
        plan.mib()
    )
}

/// The `init` of dom0.
fn script(guests: &[Configured], uplink: &str) -> String {
    let mut text = format!(
        "#!/bin/sh\n\
         export PATH=/bin\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mkdir -p /dev/pts /run/xen /run/xenstored /run/lock\n\
         mount -t devpts devpts /dev/pts\n\
         for module in {}; do modprobe $module; done\n\
         mount -t xenfs xenfs /proc/xen\n\
         until [ -e /sys/class/net/eth0 ] && [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         brctl addbr br0\n\
         ip link set lo up\n\
         {uplink}ip link set br0 up\n\
         xenstored --pid-file /run/xenstored.pid\n\
         xen-init-dom0\n\
         xenconsoled --log=guest --log-dir=/tmp\n",
        MODULES.join(" ")
    );
    for Configured { name, before, is_shown, .. } in guests {
        let _ = write!(
            text,
            "{before}xl create /guest/{name}.cfg || echo SLUICE-RESULT done=failed sent=no\n\
             touch {}\n",
            log(name)
        );
        if *is_shown {
            let _ = writeln!(text, "tail -f {} | sed 's/^/{name}: /' &", log(name));
        }
    }
    // Nothing of it runs on while guests are measured.
    text + "sleep 1000\n"
}

#[cfg(test)]
mod tests {
    use super::super::Load;
    use super::*;

    #[test]
    fn a_guest_has_the_device_of_its_load() {
        let text = |load: Load, number: usize| {
            let plan = Plan::of(load, "xen", "");
            configuration(&plan, number, &plan.guests[number])
        };
        let disk = text(Load::Disk, 0);
        assert!(disk.contains("phy:/dev/nvme0n1") && !disk.contains("vif") && disk.contains("console=hvc0"));
        let listener = text(Load::Inter, 1);
        assert!(
            listener.contains("52:54:00:00:00:0b")
                && listener.contains("load:listen")
                && !listener.contains("marks")
        );
    }
}
