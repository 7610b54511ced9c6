//! Disks that guests share by virtual passthrough: an IDE disk and an NVMe disk. Beside them the kernel alone on the machine, a guest that owns the disk,
//! and KVM with QEMU's emulated controller, or a paravirtual one, on the same disk. A guest that owns an IDE controller finds no disk: passthrough gives
//! it what is in base address registers, and the ports of a channel in compatibility mode are not. All have the same kernel, the same load
//! (daemons/sluice-load) and the same emulated machine with one processor.
//!
//! [`kvm`] makes the KVM host, [`rows`] rows of the counts. A guest's exits, and what is executed between each and the next entry, are counted by
//! [`tally`](super::tally), for each guest in its own parts of the load.

mod kvm;
mod rows;

use super::attack::Attack;
use super::driver::{DRIVE, check};
use super::parts::Parts;
use super::peer::{self, Machine};
use super::record::{Aim, Record};
use super::tally::{Reader, Tally};
use super::{Clock, kernel, note, plugin, quoted, run_text, scratch, transfer};
use crate::kernels::{self, Kernel};
use crate::outcome::Guest;
use crate::rootfs;
use anyhow::Result;
use rows::Ratio;
use std::fmt::Write;
use std::path::PathBuf;

/// Parts of the benchmark of an IDE disk: the systems, and the attack.
pub const IDE_PARTS: [&str; 5] = {
    let [native, vpio, shared, kvm] = IDE_SYSTEMS;
    [native.part, vpio.part, shared.part, kvm.part, ATTACKS]
};
/// Those of an NVMe disk.
pub const NVME_PARTS: [&str; 7] = {
    let [native, passthrough, vpio, shared, kvm, virtio] = NVME_SYSTEMS;
    [native.part, passthrough.part, vpio.part, shared.part, kvm.part, virtio.part, ATTACKS]
};
const ATTACKS: &str = "attacks";

/// A kind of disk, and what is compared of it.
struct Disk {
    /// How rows, scenarios and results are called.
    name: &'static str,
    title: &'static str,
    /// The controller and the disk, as arguments for a machine on which there is no Sluice.
    bare: &'static [&'static str],
    /// The controller, as a configuration names it, and what else QEMU is told.
    controller: &'static str,
    disk: &'static [&'static str],
    /// Modules of a host, in the order in which they are loaded, and what the host's kernel calls the disk.
    modules: &'static [&'static str],
    node: &'static str,
    /// How the names of the controller's registers begin in QEMU's trace, and what they are called in notes.
    region: &'static str,
    registers: &'static str,
    systems: &'static [System],
    ratios: &'static [Ratio],
    /// A guest wants sectors, memory and effects on the disk that are not its own; sectors come first.
    attack: Attack,
}

/// How guests have the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// There is no hypervisor.
    Native,
    /// One guest owns it.
    Passthrough,
    /// A range of sectors each.
    Vpio,
    /// KVM, with this for the guest in QEMU's arguments, and a root file system that has its driver.
    Kvm { device: &'static str, initrd: &'static str },
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
struct System {
    /// Its name on the command line and in the picture.
    part: &'static str,
    /// How its rows begin.
    prefix: &'static str,
    way: Way,
    /// Guests that have the disk at once.
    guests: usize,
    about: &'static str,
}

const VPIO: &str = "one guest, whose range is the whole disk, behind AMD-Vi";
const SHARED: &str = "two guests at once, a half of the disk each, behind AMD-Vi: the sum of both";

const IDE_SYSTEMS: [System; 4] = [
    System {
        part: "native",
        prefix: "ide.native",
        way: Way::Native,
        guests: 1,
        about: "Linux alone on the machine",
    },
    System { part: "vpio", prefix: "ide.vpio", way: Way::Vpio, guests: 1, about: VPIO },
    System { part: "vpio-shared", prefix: "ide.vpio.shared", way: Way::Vpio, guests: 2, about: SHARED },
    System {
        part: "kvm",
        prefix: "peer.kvm.ide",
        way: Way::Kvm {
            device: "-drive if=ide,file=/dev/sda,format=raw,cache=none,aio=native",
            initrd: "disk-load",
        },
        guests: 1,
        about: "a Debian host with KVM, QEMU's piix3-ide on the host's disk, cache=none,aio=native; handicaps: the emulated processor has no NRIP save, \
                the host has its default mitigations; advantage: no IOMMU",
    },
];

const NVME_SYSTEMS: [System; 6] = [
    System {
        part: "native",
        prefix: "nvme.native",
        way: Way::Native,
        guests: 1,
        about: "Linux alone on the machine",
    },
    System {
        part: "passthrough",
        prefix: "nvme.passthrough",
        way: Way::Passthrough,
        guests: 1,
        about: "one guest, which owns the disk, behind AMD-Vi",
    },
    System { part: "vpio", prefix: "nvme.vpio", way: Way::Vpio, guests: 1, about: VPIO },
    System { part: "vpio-shared", prefix: "nvme.vpio.shared", way: Way::Vpio, guests: 2, about: SHARED },
    System {
        part: "kvm",
        prefix: "peer.kvm.nvme",
        way: Way::Kvm {
            device: "-drive if=none,id=d0,file=/dev/nvme0n1,format=raw,cache=none,aio=native -device nvme,serial=guest,drive=d0",
            initrd: "disk-load",
        },
        guests: 1,
        about: "a Debian host with KVM, QEMU's nvme on the host's disk, cache=none,aio=native; handicaps: the emulated processor has no NRIP save, \
                the host has its default mitigations; advantage: no IOMMU",
    },
    System {
        part: "kvm-virtio",
        prefix: "peer.kvm.virtio",
        way: Way::Kvm {
            device: "-drive if=none,id=d0,file=/dev/nvme0n1,format=raw,cache=none,aio=native -device virtio-blk-pci,drive=d0",
            initrd: "virtio-load",
        },
        guests: 1,
        about: "as kvm, with virtio-blk, which is what its users take; by QEMU's main thread, as it is by itself",
    },
];

const IDE: Disk = Disk {
    name: "ide",
    title: "An IDE disk: shared by virtual passthrough, alone, and emulated by QEMU with KVM",
    bare: &["-device", "piix3-ide,id=dev0", "-device", IDE_DISK],
    controller: "piix3-ide",
    disk: &["-device", IDE_DISK],
    modules: &["kvm-amd", "ata_piix", "sd_mod"],
    node: "/dev/sda",
    region: "ide",
    registers: "the controller's ports",
    systems: &IDE_SYSTEMS,
    ratios: &rows::IDE,
    attack: Attack {
        id: "ide",
        scenario: "hostile-ide",
        tried: &["sectors_tried", "memory_tried", "codes_tried", "silent_tried"],
        succeeded: &["sectors_succeeded", "memory_succeeded", "codes_succeeded", "silent_succeeded"],
    },
};
const IDE_DISK: &str = "ide-hd,drive=disk0,bus=dev0.0,unit=0";

const NVME: Disk = Disk {
    name: "nvme",
    title: "An NVMe disk: shared by virtual passthrough, owned, alone, and by QEMU with KVM",
    bare: &["-device", "nvme,serial=sluice,drive=disk0"],
    controller: "nvme,serial=sluice,drive=disk0",
    disk: &[],
    modules: &["kvm-amd", "nvme"],
    node: "/dev/nvme0n1",
    region: "nvme",
    registers: "the controller's registers",
    systems: &NVME_SYSTEMS,
    ratios: &rows::NVME,
    attack: Attack {
        id: "nvme",
        scenario: "hostile-nvme-none",
        tried: &[
            "blocks_tried",
            "memory_tried",
            "misaligned_tried",
            "rewritten_tried",
            "raced_tried",
            "queues_tried",
            "nowhere_tried",
            "codes_tried",
            "secrets_tried",
            "features_tried",
            "resets_tried",
            "silent_tried",
        ],
        succeeded: &[
            "blocks_succeeded",
            "memory_succeeded",
            "misaligned_succeeded",
            "rewritten_succeeded",
            "raced_succeeded",
            "queues_succeeded",
            "nowhere_succeeded",
            "codes_succeeded",
            "secrets_succeeded",
            "features_succeeded",
            "resets_succeeded",
            "silent_succeeded",
        ],
    },
};

/// Memory of each guest in bytes, and of the machine of [`Way::Native`].
const MEMORY: u64 = 192 << 20;
/// What a guest does.
const CMDLINE: &str = "console=ttyS0 quiet sluice.job=load:disk,mib=16,requests=2048";

/// The disk's sectors, and the first one of its second half.
const SECTORS: u32 = 1 << 17;
const MIDDLE: u32 = SECTORS / 2;

/// What all runs have in common.
struct Bench {
    disk: &'static Disk,
    parts: Parts,
    /// The plugin with its arguments.
    plugin: String,
    kernel: Kernel,
    /// The same kernel as it is after it has unpacked itself.
    unpacked: PathBuf,
}

/// What came of a run.
struct Counted {
    /// What its guests reported.
    guests: Vec<Guest>,
    tally: Tally,
}

/// Measures what is wanted of an IDE disk.
pub fn measure_ide(record: &mut Record, only: &[String]) -> Result<()> {
    measure(&IDE, record, only)
}

/// The same of an NVMe disk.
pub fn measure_nvme(record: &mut Record, only: &[String]) -> Result<()> {
    measure(&NVME, record, only)
}

fn measure(disk: &'static Disk, record: &mut Record, only: &[String]) -> Result<()> {
    let kernel = kernels::get("debian-6.1")?;
    let bench = Bench {
        disk,
        parts: Parts::new(only),
        plugin: plugin::exits(&plugin::build()?, &[]),
        unpacked: kernel::unpacked(&kernel)?,
        kernel,
    };
    for system in disk.systems.iter().filter(|system| bench.parts.wants(system.part, None)) {
        bench.parts.say(system.part);
        let result = bench.system(system, record);
        note(record, system.part, result);
    }
    if bench.parts.wants(ATTACKS, None) {
        bench.parts.say(disk.attack.scenario);
        let result = attack(disk, record);
        note(record, disk.attack.scenario, result);
    }
    rows::figures(disk, record)
}

fn attack(disk: &Disk, record: &mut Record) -> Result<()> {
    let guests = disk.attack.guests(record)?;
    let touched = guests.iter().filter_map(|guest| guest.sum(disk.attack.succeeded[0])).sum::<u64>();
    let tried = guests.iter().filter_map(|guest| guest.sum(disk.attack.tried[0])).sum::<u64>();
    let note = format!(
        "commands beyond its range that a hostile driver had executed, of {tried}; by the scenario {}, in which a neighbour's data stay as they are",
        disk.attack.scenario
    );
    let aim = Some(Aim::AtMost(0.0));
    record.aimed(format!("{}.sectors_outside.touched", disk.name), touched as f64, "commands", aim, note);
    Ok(())
}

impl Bench {
    fn system(&self, system: &System, record: &mut Record) -> Result<()> {
        let counted = match system.way {
            Way::Native => self.native(system)?,
            Way::Passthrough | Way::Vpio => self.sluice(system, record)?,
            Way::Kvm { device, initrd } => kvm::run(self, system, device, initrd, record)?,
        };
        rows::counts(record, self.disk, system, &counted)
    }

    fn sluice(&self, system: &System, record: &mut Record) -> Result<Counted> {
        let reader = Reader::start(&scratch()?, Tally::new(self.disk.region))?;
        let text = configuration(self, system)?;
        let arguments = reader.arguments(false, Some(&self.plugin));
        let ran = run_text(&format!("{}-{}", self.disk.name, system.part), &text, Clock::Mixed, arguments);
        let tally = reader.finish();
        let ((_, outcome), tally) = (ran?, tally?);
        check(&outcome)?;
        record.kernels(&outcome.kernels);
        Ok(Counted { guests: outcome.guests, tally })
    }

    fn native(&self, system: &System) -> Result<Counted> {
        let reader = Reader::start(&scratch()?, Tally::bare(self.disk.region))?;
        let arguments = reader.arguments(true, Some(&self.plugin));
        let initrd = self.initrd("disk-load")?.display().to_string();
        let ran = self.machine(system, MEMORY >> 20, initrd, CMDLINE, &arguments);
        let ran = ran.run("done");
        let tally = reader.finish();
        Ok(Counted { guests: vec![transfer::guest(ran?)], tally: tally? })
    }

    fn initrd(&self, name: &str) -> Result<PathBuf> {
        rootfs::get(name, &self.kernel)
    }

    /// A machine of so many MiB with the disk, on which there is no Sluice.
    fn machine<'a>(
        &'a self,
        system: &'a System,
        memory: u64,
        initrd: String,
        cmdline: &'a str,
        qemu_args: &'a [String],
    ) -> Machine<'a> {
        Machine {
            name: system.prefix,
            clock: Clock::Mixed,
            cpu: peer::CPU,
            memory: memory as u32,
            kernel: &self.unpacked,
            initrd,
            cmdline,
            devices: [&["-drive", DRIVE], self.disk.bare].concat(),
            qemu_args,
        }
    }
}

/// The machine for Sluice.
fn configuration(bench: &Bench, system: &System) -> Result<String> {
    let Disk { controller, disk, .. } = bench.disk;
    let initrd = bench.initrd("disk-load")?;
    let [kernel, initrd] = [&bench.unpacked, &initrd].map(|path| quoted(path));
    let arguments: String =
        [&["-drive", DRIVE], *disk].concat().iter().map(|word| format!("\"{word}\", ")).collect();
    let mut text = format!(
        "[machine]\nmemory = \"1GiB\"\niommu = \"amd\"\nqemu_args = [{arguments}]\n\
         [device.disk]\nqemu = \"{controller}\"\n"
    );
    for number in 0..system.guests {
        let _ = write!(
            text,
            "[domain.guest{number}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncmdline = \"{CMDLINE}\"\n\
             devices = [{{ use = \"disk\", {} }}]\n",
            MEMORY >> 20,
            entry(system, number)
        );
    }
    Ok(text)
}

/// How a guest has the disk, as a configuration has it.
fn entry(system: &System, number: usize) -> String {
    if system.way == Way::Passthrough {
        return "mode = \"passthrough\"".to_owned();
    }
    let sectors = match (system.guests, number) {
        (1, _) => 0..SECTORS,
        (_, 0) => 0..MIDDLE,
        _ => MIDDLE..SECTORS,
    };
    format!("mode = \"vpio\", sectors = \"{}..{}\"", sectors.start, sectors.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_share_have_a_half_of_the_disk_each() {
        let entries = |part: &str| {
            let system = NVME_SYSTEMS.iter().find(|system| system.part == part).unwrap();
            (0..system.guests).map(|number| entry(system, number)).collect::<Vec<_>>()
        };
        assert_eq!(entries("passthrough"), ["mode = \"passthrough\""]);
        assert_eq!(entries("vpio"), ["mode = \"vpio\", sectors = \"0..131072\""]);
        let halves =
            ["mode = \"vpio\", sectors = \"0..65536\"", "mode = \"vpio\", sectors = \"65536..131072\""];
        assert_eq!(entries("vpio-shared"), halves);
    }

    #[test]
    fn the_disk_is_as_large_as_qemu_is_told() {
        assert!(DRIVE.contains(&format!("file.size={},", u64::from(SECTORS) * 512)));
    }
}
