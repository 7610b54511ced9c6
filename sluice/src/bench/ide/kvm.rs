//! The peer KVM: a Debian host with the same controller and disk, and guests in Debian's QEMU with the controller of its machine `pc`, the PIIX3's. A
//! guest's disk is the host's, or a partition of it, past the page cache, by the kernel's asynchronous I/O.

use super::{Bench, CMDLINE, Counted, MEMORY, MIDDLE, REGION, SECTORS, System};
use crate::bench::record::Record;
use crate::bench::tally::{Reader, Tally};
use crate::bench::{peer, scratch, transfer};
use crate::rootfs;
use anyhow::{Context, Result};
use std::fmt::Write;

/// Memory of the machine in MiB: the initramfs, unpacked, takes 400.
const MACHINE: u64 = 1536;
/// Modules of the host, in the order in which they are loaded.
const MODULES: [&str; 3] = ["kvm-amd", "ata_piix", "sd_mod"];
/// First sector and number of the sectors of each partition. The first one begins where partitioning programs have it begin.
const PARTITIONS: [(u32, u32); 2] = [(2048, MIDDLE - 2048), (MIDDLE, SECTORS - MIDDLE)];

/// Runs the guests.
pub fn run(bench: &Bench, system: &System, record: &mut Record) -> Result<Counted> {
    record.version("kvm_host", &format!("{}, package {}", bench.kernel.release, bench.kernel.version));
    record.version("kvm_qemu", "the same as qemu");
    let initramfs = scratch()?.join(format!("{}.cpio", system.prefix));
    std::fs::write(&initramfs, archive(bench, system.guests)?)
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

fn archive(bench: &Bench, guests: usize) -> Result<Vec<u8>> {
    let modules = MODULES.map(str::to_owned);
    let mut archive = rootfs::base(script(guests).as_bytes(), &modules, &bench.kernel)?;
    archive.directory("guest");
    peer::take_qemu(&mut archive)?;
    peer::take(&mut archive, &bench.unpacked, "guest/kernel", 0o644)?;
    peer::take(&mut archive, &bench.initrd, "guest/initrd", 0o644)?;
    archive.file("guest/partitions", 0o644, &partitions());
    Ok(archive.finish())
}

/// A disk's first sector: the table of partitions of a PC (type 83h: Linux).
fn partitions() -> [u8; 512] {
    let mut sector = [0; 512];
    for (entry, (first, count)) in sector[446..510].chunks_exact_mut(16).zip(PARTITIONS) {
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// The host's `init`.
fn script(guests: usize) -> String {
    let mut text = format!(
        "#!/bin/sh\n\
         export PATH=/bin LD_LIBRARY_PATH=/qemu\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         for module in {}; do modprobe $module; done\n\
         until [ -b /dev/sda ]; do sleep 0.1; done\n",
        MODULES.join(" ")
    );
    if guests > 1 {
        text += "dd if=/guest/partitions of=/dev/sda conv=fsync 2>/dev/null\n\
                 blockdev --rereadpt /dev/sda\n\
                 until [ -b /dev/sda2 ]; do sleep 0.1; done\n";
    }
    for number in 0..guests {
        let disk = if guests > 1 { format!("/dev/sda{}", number + 1) } else { "/dev/sda".to_owned() };
        // Each writes whole lines, so that they do not mix.
        let _ = writeln!(
            text,
            "/qemu/qemu -L /qemu -accel kvm -cpu host -machine pc -smp 1 -m {}M -drive if=ide,file={disk},format=raw,cache=none,aio=native \
             -nodefaults -no-user-config -no-reboot -display none -serial stdio -kernel /guest/kernel -initrd /guest/initrd \
             -append '{CMDLINE}' </dev/null 2>&1 | sed 's/^/guest{number}: /' &",
            MEMORY >> 20,
        );
    }
    // Nothing of it runs on while guests are measured.
    text + "wait\necho SLUICE-RESULT ended=all\nsleep 1000\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_two_guests_has_a_partition() {
        let table = partitions();
        let word = |at: usize| u32::from_le_bytes(table[at..at + 4].try_into().unwrap());
        assert_eq!((word(454), word(458)), (2048, 63_488));
        assert_eq!((word(470), word(474)), (65_536, 65_536));
        assert_eq!((table[450], table[466], table[482], &table[510..]), (0x83, 0x83, 0, &[0x55, 0xaa][..]));
        let (one, two) = (script(1), script(2));
        assert!(one.contains("file=/dev/sda,") && !one.contains("partitions"));
        assert!(
            two.contains("file=/dev/sda1,") && two.contains("file=/dev/sda2,") && two.contains("rereadpt")
        );
    }
}
