//! The peer KVM: a Debian host with the same card and disk, guests in Debian's QEMU; a network card is vhost-net on a tap on a bridge with the
//! card, a disk is virtio-blk on the NVMe, past the page cache, by the kernel's asynchronous I/O.
//!
//! The hypervisor is what lies in the modules `kvm` and `kvm_amd`. Without address space randomization they are where they were in a start
//! before, which says where.
//!
//! The machine has one processor: QEMU's threads, those of vhost-net and the guests take turns on it.

use super::plan::{Device, Plan};
use super::{Bench, DEVICES, Measured};
use crate::bench::peer::{self, Machine};
use crate::bench::record::Record;
use crate::bench::split::{Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, plugin, scratch, scratch_file, transfer};
use crate::outcome::Finding;
use crate::rootfs;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::path::Path;

/// MiB for the host, whose initramfs, unpacked, takes 400, and for each guest's QEMU.
const HOST: u32 = 1024;
const BESIDE: u32 = 64;
/// Modules of the host. Those of KVM are loaded first.
const MODULES: [&str; 6] = ["kvm-amd", "e1000", "nvme", "bridge", "tun", "vhost_net"];

/// Runs guests.
pub fn run(bench: &Bench, plan: &Plan, record: &mut Record) -> Result<Measured> {
    record.version("kvm_host", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    record.version("kvm_qemu", "the same as qemu");
    let initramfs = scratch_file(&format!("{}.cpio", plan.name), &archive(bench, plan)?)?;
    let result = measured(bench, plan, &initramfs);
    std::fs::remove_file(&initramfs)?;
    result
}

fn measured(bench: &Bench, plan: &Plan, initramfs: &Path) -> Result<Measured> {
    let range = modules(&machine(bench, plan, initramfs, &[]).run("kvm_modules")?)?;
    let reader = Reader::start(&scratch()?, Split::new(Third::Within))?;
    let counter = plugin::peer(&bench.plugin, (range.first, range.size));
    let arguments = reader.arguments(false, Some(&counter));
    let ran = machine(bench, plan, initramfs, &arguments).run(plan.last);
    let split = reader.finish();
    let (found, split) = (ran?, split?);
    ensure!(modules(&found)? == range, "KVM's modules were not where they had been before");
    Ok(Measured { guests: vec![transfer::guest(found)], split, servers: [].into(), report: None })
}

fn machine<'a>(bench: &'a Bench, plan: &'a Plan, initramfs: &Path, qemu_args: &'a [String]) -> Machine<'a> {
    Machine {
        name: &plan.name,
        clock: Clock::Mixed,
        cpu: peer::CPU,
        memory: plan.machine(HOST, BESIDE),
        kernel: &bench.unpacked,
        initrd: initramfs.display().to_string(),
        cmdline: "console=ttyS0 quiet panic=-1 nokaslr",
        devices: DEVICES.to_vec(),
        qemu_args,
    }
}

/// Where KVM's modules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    size: u64,
}

/// What the host said of them: `kvm_modules=ADDRESS+SIZE,ADDRESS+SIZE`.
fn modules(found: &[Finding]) -> Result<Range> {
    let said = found
        .iter()
        .flatten()
        .find(|pair| pair.0 == "kvm_modules")
        .context("the host did not say where KVM is")?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let one = |text: &str| {
        let (address, size) = text.split_once('+')?;
        Some((number(address)?, size.parse::<u64>().ok()?))
    };
    let all: Option<Vec<_>> = said.1.raw().split(',').map(one).collect();
    let all = all.with_context(|| format!("the host says '{}' of KVM's modules", said.1.raw()))?;
    let first = all.iter().map(|module| module.0).min().context("KVM has no modules")?;
    let end = all.iter().map(|module| module.0 + module.1).max().unwrap_or(first);
    if end - first > 4 << 20 {
        bail!("KVM's modules lie apart, at {}", said.1.raw());
    }
    Ok(Range { first, size: end - first })
}

fn archive(bench: &Bench, plan: &Plan) -> Result<Vec<u8>> {
    let modules = MODULES.map(str::to_owned);
    let mut archive = rootfs::base(script(plan).as_bytes(), &modules, &bench.kernel)?;
    archive.directory("guest");
    peer::take_qemu(&mut archive)?;
    archive.file("bin/tap-up", 0o755, TAP.as_bytes());
    peer::take(&mut archive, &bench.unpacked, "guest/kernel", 0o644)?;
    peer::take(&mut archive, &bench.initrd, "guest/initrd", 0o644)?;
    Ok(archive.finish())
}

/// Guests notify by a port: on a processor without decode assists KVM emulates an instruction that writes to a register in memory, which costs
/// more. Two of two runs of the network's load with modern virtio ended before their time, which was not looked into.
const PORTS: &str = "disable-legacy=off,disable-modern=on";

/// What QEMU runs with the name of a tap that it made.
const TAP: &str = "#!/bin/sh\nbrctl addif br0 \"$1\"\nip link set \"$1\" up\n";

/// The host's `init`.
fn script(plan: &Plan) -> String {
    let mut text = format!(
        "#!/bin/sh\n\
         export PATH=/bin LD_LIBRARY_PATH=/qemu\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mkdir -p /tmp\n\
         modprobe kvm-amd\n\
         echo \"SLUICE-RESULT kvm_modules=$(awk '$1 == \"kvm\" || $1 == \"kvm_amd\" {{ printf \"%s%s+%s\", comma, $6, $2; comma = \",\" }}' /proc/modules)\"\n\
         for module in e1000 nvme bridge tun vhost_net; do modprobe $module; done\n\
         until [ -e /sys/class/net/eth0 ] && [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         brctl addbr br0\n\
         ip link set lo up\n\
         {}ip link set br0 up\n",
        plan.uplink()
    );
    let log = |number: usize| format!("/tmp/guest{number}");
    for (number, guest) in plan.guests.iter().enumerate().rev() {
        let device = match &guest.device {
            Device::Disk => format!(
                "-drive if=none,id=disk,file=/dev/nvme0n1,format=raw,cache=none,aio=native -device \
                 virtio-blk-pci,drive=disk,{PORTS}"
            ),
            Device::Net(mac) => format!(
                "-netdev tap,id=net,script=/bin/tap-up,downscript=no,vhost=on -device \
                 virtio-net-pci,netdev=net,{PORTS},romfile=,mac={mac}"
            ),
        };
        // Each writes whole lines, so that they do not mix. One after the other: two of KVM's guests that boot side by side in this emulator may
        // not come up.
        let after = match number {
            0 => String::new(),
            _ => format!("&\nuntil [ -e {0} ] && grep -q SLUICE-RESULT {0}; do sleep 1; done", log(number)),
        };
        if number == 0 {
            text += &plan.settled(log);
        }
        let _ = writeln!(
            text,
            "/qemu/qemu -L /qemu -accel kvm -cpu host -machine q35 -smp 1 -m {}M {device} -nodefaults -no-user-config -no-reboot \
             -display none -serial stdio -kernel /guest/kernel -initrd /guest/initrd -append '{}' </dev/null 2>&1 | tee {} | \
             sed 's/^/guest{number}: /' {after}",
            plan.mib(),
            guest.cmdline,
            log(number),
        );
    }
    text + "wait\nsleep 3\npoweroff -f\nsleep 60\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn the_range_is_from_the_first_modules_begin_to_the_last_ones_end() {
        let found =
            |text: &str| modules(&[parse_finding(&format!("SLUICE-RESULT kvm_modules={text}")).unwrap()]);
        let range = Range { first: 0xffff_ffff_c000_0000, size: 0x3000 };
        assert_eq!(found("0xffffffffc0002000+4096,0xffffffffc0000000+8192").unwrap(), range);
        assert!(found("").is_err() && found("0x0+1,0xffffffffc0000000+1").is_err());
    }
}
