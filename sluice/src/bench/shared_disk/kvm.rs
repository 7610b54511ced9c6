//! The peer KVM: a Debian host with the same controller and disk, and a guest in Debian's QEMU, whose machine `pc` has the PIIX3's IDE controller. The
//! guest's disk is the host's, past the page cache, by the kernel's asynchronous I/O.
//!
//! Two guests at once, with a partition each, made no progress in two of two runs (ended after 7 and 3 minutes) before one of them was up, the host busy; as two that talk in
//! the benchmark `driver-domain`. The cause was not looked for.

use super::{Bench, CMDLINE, Counted, MEMORY, System};
use crate::bench::record::Record;
use crate::bench::tally::{Reader, Tally};
use crate::bench::{peer, scratch, transfer};
use crate::rootfs;
use anyhow::{Context, Result};

/// Memory of the machine in MiB: the initramfs, unpacked, takes 400.
const MACHINE: u64 = 1536;

/// Runs the guest, which has the disk by `device`, in arguments of QEMU's, and a root file system with its driver.
pub fn run(
    bench: &Bench,
    system: &System,
    device: &str,
    initrd: &str,
    record: &mut Record,
) -> Result<Counted> {
    record.version("kvm_host", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    record.version("kvm_qemu", "the same as qemu");
    let initramfs = scratch()?.join(format!("{}.cpio", system.prefix));
    std::fs::write(&initramfs, archive(bench, device, initrd)?)
        .with_context(|| format!("could not write {}", initramfs.display()))?;
    let reader = Reader::start(&scratch()?, Tally::new(bench.disk.region))?;
    let arguments = reader.arguments(false, Some(&bench.plugin));
    let initrd = initramfs.display().to_string();
    let machine = bench.machine(system, MACHINE, initrd, "console=ttyS0 quiet panic=-1", &arguments);
    let ran = machine.run("ended");
    let tally = reader.finish();
    std::fs::remove_file(&initramfs)?;
    Ok(Counted { guests: vec![transfer::guest(ran?)], tally: tally? })
}

fn archive(bench: &Bench, device: &str, initrd: &str) -> Result<Vec<u8>> {
    let modules: Vec<String> = bench.disk.modules.iter().map(|module| (*module).to_owned()).collect();
    let mut archive = rootfs::base(script(bench, device).as_bytes(), &modules, &bench.kernel)?;
    archive.directory("guest");
    peer::take_qemu(&mut archive)?;
    peer::take(&mut archive, &bench.unpacked, "guest/kernel", 0o644)?;
    peer::take(&mut archive, &bench.initrd(initrd)?, "guest/initrd", 0o644)?;
    Ok(archive.finish())
}

/// The host's `init`.
fn script(bench: &Bench, device: &str) -> String {
    let (modules, node) = (bench.disk.modules.join(" "), bench.disk.node);
    let memory = MEMORY >> 20;
    // Nothing of it runs on while the guest is measured.
    format!(
        "#!/bin/sh\n\
         export PATH=/bin LD_LIBRARY_PATH=/qemu\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         for module in {modules}; do modprobe $module; done\n\
         until [ -b {node} ]; do sleep 0.1; done\n\
         /qemu/qemu -L /qemu -accel kvm -cpu host -machine pc -smp 1 -m {memory}M \\\n\
         {device} \\\n\
         -nodefaults -no-user-config -no-reboot -display none -serial stdio \\\n\
         -kernel /guest/kernel -initrd /guest/initrd -append '{CMDLINE}' </dev/null 2>&1\n\
         echo SLUICE-RESULT ended=all\n\
         sleep 1000\n"
    )
}
