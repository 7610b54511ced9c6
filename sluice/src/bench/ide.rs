//! An IDE disk: the kernel alone on the machine, guests that share the disk by virtual passthrough, and KVM with QEMU's emulated controller on the same
//! disk. A guest that owns the controller finds no disk: passthrough gives it what is in base address registers, and the ports of a channel in
//! compatibility mode are not. All have the same kernel, the same load (daemons/sluice-load) and the same emulated machine with one
//! processor.
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
use std::fmt::Write;
use std::path::PathBuf;

/// Its parts: the systems, and the attack.
pub const PARTS: [&str; 5] = {
    let [native, vpio, shared, kvm] = SYSTEMS;
    [native.part, vpio.part, shared.part, kvm.part, ATTACKS]
};
const ATTACKS: &str = "attacks";

/// A guest wants sectors, memory and effects on the disk that are not its own.
const ATTACK: Attack = Attack {
    id: "ide",
    scenario: "hostile-ide",
    tried: &["sectors_tried", "memory_tried", "codes_tried", "silent_tried"],
    succeeded: &["sectors_succeeded", "memory_succeeded", "codes_succeeded", "silent_succeeded"],
};

/// How guests have the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// There is no hypervisor.
    Native,
    /// A range of sectors each.
    Vpio,
    /// KVM with QEMU's controller.
    Kvm,
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

const SYSTEMS: [System; 4] = [
    System {
        part: "native",
        prefix: "ide.native",
        way: Way::Native,
        guests: 1,
        about: "Linux alone on the machine",
    },
    System {
        part: "vpio",
        prefix: "ide.vpio",
        way: Way::Vpio,
        guests: 1,
        about: "one guest, whose range is the whole disk, behind AMD-Vi",
    },
    System {
        part: "vpio-shared",
        prefix: "ide.vpio.shared",
        way: Way::Vpio,
        guests: 2,
        about: "two guests at once, a half of the disk each, behind AMD-Vi: the sum of both",
    },
    System {
        part: "kvm",
        prefix: "peer.kvm.ide",
        way: Way::Kvm,
        guests: 1,
        about: "a Debian host with KVM, QEMU's piix3-ide on the host's disk, cache=none,aio=native; handicaps: the emulated processor has no NRIP save, \
                the host has its default mitigations; advantage: no IOMMU",
    },
];

/// Memory of each guest in bytes, and of the machine of [`Way::Native`].
const MEMORY: u64 = 192 << 20;
/// What a guest does.
const CMDLINE: &str = "console=ttyS0 quiet sluice.job=load:disk,mib=16,requests=2048";
/// How the names of the controller's registers begin in QEMU's trace.
const REGION: &str = "ide";
/// The disk on its controller.
const DISK: &str = "ide-hd,drive=disk0,bus=dev0.0,unit=0";

/// The disk's sectors, and the first one of its second half.
const SECTORS: u32 = 1 << 17;
const MIDDLE: u32 = SECTORS / 2;

/// What all runs have in common.
struct Bench {
    parts: Parts,
    /// The plugin with its arguments.
    plugin: String,
    kernel: Kernel,
    /// The same kernel as it is after it has unpacked itself.
    unpacked: PathBuf,
    initrd: PathBuf,
}

/// What came of a run.
struct Counted {
    /// What its guests reported.
    guests: Vec<Guest>,
    tally: Tally,
}

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let kernel = kernels::get("debian-6.1")?;
    let bench = Bench {
        parts: Parts::new(only),
        plugin: plugin::exits(&plugin::build()?, &[]),
        unpacked: kernel::unpacked(&kernel)?,
        initrd: rootfs::get("disk-load", &kernel)?,
        kernel,
    };
    for system in SYSTEMS.iter().filter(|system| bench.parts.wants(system.part, None)) {
        bench.parts.say(system.part);
        let result = bench.system(system, record).or_else(|error| {
            // As with the scenarios: QEMU's emulation has faults that come once in many runs.
            crate::output::note(format_args!("  again, because: {error:#}"));
            bench.system(system, record)
        });
        note(record, system.part, result);
    }
    if bench.parts.wants(ATTACKS, None) {
        bench.parts.say(ATTACK.scenario);
        let result = attack(record);
        note(record, ATTACK.scenario, result);
    }
    rows::figures(record)
}

fn attack(record: &mut Record) -> Result<()> {
    let guests = ATTACK.guests(record)?;
    let touched = guests.iter().filter_map(|guest| guest.sum("sectors_succeeded")).sum::<u64>();
    let tried = guests.iter().filter_map(|guest| guest.sum("sectors_tried")).sum::<u64>();
    let note = format!(
        "commands beyond its range that a hostile driver had executed, of {tried}; by the scenario hostile-ide, in which a neighbour's data stay as they are"
    );
    let aim = Some(Aim::AtMost(0.0));
    record.aimed("ide.sectors_outside.touched", touched as f64, "commands", aim, note);
    Ok(())
}

impl Bench {
    fn system(&self, system: &System, record: &mut Record) -> Result<()> {
        let counted = match system.way {
            Way::Native => self.native(system)?,
            Way::Vpio => self.sluice(system, record)?,
            Way::Kvm => kvm::run(self, system, record)?,
        };
        rows::counts(record, system, &counted)
    }

    fn sluice(&self, system: &System, record: &mut Record) -> Result<Counted> {
        let reader = Reader::start(&scratch()?, Tally::new(REGION))?;
        let text = configuration(self, system);
        let arguments = reader.arguments(false, Some(&self.plugin));
        let ran = run_text(&format!("ide-{}", system.part), &text, Clock::Mixed, arguments);
        let tally = reader.finish();
        let ((_, outcome), tally) = (ran?, tally?);
        check(&outcome)?;
        record.kernels(&outcome.kernels);
        Ok(Counted { guests: outcome.guests, tally })
    }

    fn native(&self, system: &System) -> Result<Counted> {
        let reader = Reader::start(&scratch()?, Tally::bare(REGION))?;
        let arguments = reader.arguments(true, Some(&self.plugin));
        let ran = self.machine(system, MEMORY >> 20, self.initrd.display().to_string(), CMDLINE, &arguments);
        let ran = ran.run("done");
        let tally = reader.finish();
        Ok(Counted { guests: vec![transfer::guest(ran?)], tally: tally? })
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
            devices: vec!["-drive", DRIVE, "-device", "piix3-ide,id=dev0", "-device", DISK],
            qemu_args,
        }
    }
}

/// The machine for Sluice.
fn configuration(bench: &Bench, system: &System) -> String {
    let [kernel, initrd] = [&bench.unpacked, &bench.initrd].map(|path| quoted(path));
    let mut text = format!(
        "[machine]\nmemory = \"1GiB\"\niommu = \"amd\"\nqemu_args = [\"-drive\", \"{DRIVE}\", \"-device\", \"{DISK}\"]\n\
         [device.disk]\nqemu = \"piix3-ide\"\n"
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
    text
}

/// How a guest has the disk, as a configuration has it.
fn entry(system: &System, number: usize) -> String {
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
            let system = SYSTEMS.iter().find(|system| system.part == part).unwrap();
            (0..system.guests).map(|number| entry(system, number)).collect::<Vec<_>>()
        };
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
