//! The peer KVM: a Debian host with the same controller and disk, and a guest in Debian's QEMU with the controller of its machine `pc`, the PIIX3's. The
//! guest's disk is the host's, past the page cache, by the kernel's asynchronous I/O.
//!
//! Two guests at once, with a partition each, made no progress in two of two runs (ended after 7 and 3 minutes) before one of them was up, the host busy; as two that talk in
//! the benchmark `driver-domain`. The cause was not looked for.

use super::{Bench, CMDLINE, Counted, MEMORY, REGION, System};
use crate::bench::record::Record;
use crate::bench::tally::{Reader, Tally};
use crate::bench::{peer, scratch, transfer};
use crate::rootfs;
use anyhow::{Context, Result};

/// Memory of the machine in MiB: the initramfs, unpacked, takes 400.
const MACHINE: u64 = 1536;
/// Modules of the host, in the order in which they are loaded.
const MODULES: [&str; 3] = ["kvm-amd", "ata_piix", "sd_mod"];

/// Runs the guest.
pub fn run(bench: &Bench, system: &System, record: &mut Record) -> Result<Counted> {
    record.version("kvm_host", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    record.version("kvm_qemu", "the same as qemu");
    let initramfs = scratch()?.join(format!("{}.cpio", system.prefix));
    std::fs::write(&initramfs, archive(bench)?)
        .with_context(|| format!("could not write {}", initramfs.display()))?;
    let reader = Reader::start(&scratch()?, Tally::new(REGION))?;
    let arguments = reader.arguments(false, Some(&bench.plugin));
    let initrd = initramfs.display().to_string();
    let machine = bench.machine(system, MACHINE, initrd, "console=ttyS0 quiet panic=-1", &arguments);
    let ran = machine.run("ended");
    let tally = reader.finish();
    std::fs::remove_file(&initramfs)?;
    Ok(Counted { guests: vec![transfer::guest(ran?)], tally: tally? })
}

fn archive(bench: &Bench) -> Result<Vec<u8>> {
    let modules = MODULES.map(str::to_owned);
    let mut archive = rootfs::base(script().as_bytes(), &modules, &bench.kernel)?;
    archive.directory("guest");
    peer::take_qemu(&mut archive)?;
    peer::take(&mut archive, &bench.unpacked, "guest/kernel", 0o644)?;
    peer::take(&mut archive, &bench.initrd, "guest/initrd", 0o644)?;
    Ok(archive.finish())
}

/// The host's `init`.
fn script() -> String {
    let modules = MODULES.join(" ");
    let memory = MEMORY >> 20;
    // Nothing of it runs on while the guest is measured.
    format!(
        "#!/bin/sh\n\
         export PATH=/bin LD_LIBRARY_PATH=/qemu\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         for module in {modules}; do modprobe $module; done\n\
         until [ -b /dev/sda ]; do sleep 0.1; done\n\
         /qemu/qemu -L /qemu -accel kvm -cpu host -machine pc -smp 1 -m {memory}M \\\n\
         -drive if=ide,file=/dev/sda,format=raw,cache=none,aio=native \\\n\
         -nodefaults -no-user-config -no-reboot -display none -serial stdio \\\n\
         -kernel /guest/kernel -initrd /guest/initrd -append '{CMDLINE}' </dev/null 2>&1\n\
         echo SLUICE-RESULT ended=all\n\
         sleep 1000\n"
    )
}
