//! How long Debian's kernel needs from its first instruction to its `init`, in instructions of the whole
//! machine: under Sluice, and under Linux KVM with QEMU. Same kernel, initrd, command line and memory;
//! bench/instructions.rs counts both in the same way.

use super::peer::{Guest, Peer};
use super::plugin::{self, Moments};
use super::record::Record;
use super::{Clock, say, scratch, sluice};
use crate::cpio::Archive;
use crate::kernels;
use anyhow::{Context, Result};

/// What `init` says.
const MESSAGE: &[u8] = b"SLUICE-RESULT done=ok\n";
/// Where the program is loaded.
const BASE: u64 = 0x40_0000;
/// Size of an ELF header with one program header.
const HEADERS: usize = 64 + 56;

/// Measures all.
pub fn measure(record: &mut Record) -> Result<()> {
    let library = plugin::build()?;
    let directory = scratch()?;
    std::fs::write(directory.join("init.cpio"), initrd()).context("could not write the initrd")?;

    let log = directory.join("boot-sluice.count");
    let (setup, outcome) = sluice("boot", Clock::Instructions, plugin::arguments(&library, &log))?;
    let ours = plugin::moments(&log)?;
    record.kernels(&outcome.kernels);

    let domain = setup.domains.first().context("bench/boot.toml has a domain")?;
    let kernel = kernels::get("debian-6.1")?;
    let mut theirs = Vec::new();
    for (machine, about) in [("q35", "the usual machine"), ("microvm", "no PCI, no BIOS: QEMU's smallest")] {
        let log = directory.join(format!("boot-kvm-{machine}.count"));
        let peer = Peer {
            name: format!("boot-kvm-{machine}"),
            clock: Clock::Instructions,
            network: false,
            qemu_args: plugin::arguments(&library, &log),
        };
        let guest = Guest {
            kernel: &kernel.image,
            initrd: Some(&directory.join("init.cpio")),
            cmdline: domain.cmdline.get_ref().clone(),
            memory: *domain.memory.get_ref(),
            arguments: format!("-machine {machine}"),
        };
        say(&format!("{} under KVM", peer.name));
        peer.run(&guest, "done", record)?;
        theirs.push((machine, about, plugin::moments(&log)?));
    }

    let note =
        "from the kernel's 64-bit entry to the first instruction of init, guest and hypervisor together";
    record.row("boot.6_1.sluice.instructions", total(&ours), "instructions", note);
    for (machine, about, moments) in &theirs {
        record.row(format!("boot.6_1.kvm.{machine}.instructions"), total(moments), "instructions", *about);
    }
    record.row("boot.6_1.sluice.unpacked.instructions", unpacked(&ours), "instructions", "without unpacking");
    for (machine, _, moments) in &theirs {
        let id = format!("boot.6_1.kvm.{machine}.unpacked.instructions");
        record.row(id, unpacked(moments), "instructions", "without unpacking");
    }
    record.row("boot.6_1.sluice.entries", entries(&ours), "VMRUNs", "in that time");
    for (machine, _, moments) in &theirs {
        record.row(format!("boot.6_1.kvm.{machine}.entries"), entries(moments), "VMRUNs", "in that time");
    }
    for (machine, _, moments) in &theirs {
        let suffix = if *machine == "q35" { String::new() } else { format!("_{machine}") };
        let firmware = moments.kernel.instructions - moments.entry.instructions;
        let note = format!(
            "Sluice / KVM, {machine}; aim: at most 1.5; KVM's {firmware} instructions of firmware before the \
             kernel are not counted"
        );
        record.row(format!("boot.6_1.ratio_to_kvm{suffix}"), total(&ours) / total(moments), "ratio", note);
        let note = format!("the same without the kernel's unpacking of itself, {machine}");
        let id = format!("boot.6_1.unpacked.ratio_to_kvm{suffix}");
        record.row(id, unpacked(&ours) / unpacked(moments), "ratio", note);
    }
    Ok(())
}

fn total(moments: &Moments) -> f64 {
    moments.init.instructions.saturating_sub(moments.kernel.instructions) as f64
}

fn unpacked(moments: &Moments) -> f64 {
    moments.init.instructions.saturating_sub(moments.unpacked.instructions) as f64
}

fn entries(moments: &Moments) -> f64 {
    moments.init.entries.saturating_sub(moments.kernel.entries) as f64
}

/// A root file system that holds nothing but `init`.
fn initrd() -> Vec<u8> {
    let mut archive = Archive::new();
    archive.directory("dev");
    archive.character("dev/console", 0o600, (5, 1));
    archive.file("init", 0o755, &init());
    archive.finish()
}

/// A program that executes the marker the plugin looks for, says that all is well, and powers off.
fn init() -> Vec<u8> {
    let message = u32::try_from(BASE).unwrap_or(0) + u32::try_from(HEADERS).unwrap_or(0);
    let code_at = HEADERS + MESSAGE.len();
    let mut code = b"\x0f\x1f\x80SLUI".to_vec();
    let mut system_call = |number: u32, arguments: [u32; 3]| {
        // mov eax, edi, esi, edx; syscall
        for (opcode, value) in
            [0xb8, 0xbf, 0xbe, 0xba].into_iter().zip([[number].as_slice(), &arguments].concat())
        {
            code.push(opcode);
            code.extend_from_slice(&value.to_le_bytes());
        }
        code.extend_from_slice(&[0x0f, 0x05]);
    };
    // write(1, message); reboot(LINUX_REBOOT_MAGIC1, MAGIC2, POWER_OFF)
    system_call(1, [1, message, u32::try_from(MESSAGE.len()).unwrap_or(0)]);
    system_call(169, [0xfee1_dead, 0x2812_1969, 0x4321_fedc]);
    code.extend_from_slice(&[0xeb, 0xfe]);

    let size = (code_at + code.len()) as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // ET_EXEC, EM_X86_64
    elf.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [BASE + code_at as u64, 64, 0] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    // Flags; sizes of the headers; one program header, no sections.
    elf.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // PT_LOAD, readable and executable.
    elf.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, BASE, BASE, size, size, 4096] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(MESSAGE);
    elf.extend_from_slice(&code);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_is_a_program() {
        let elf = init();
        assert_eq!(elf.len(), HEADERS + MESSAGE.len() + 7 + 2 * 22 + 2);
        let entry = usize::from_le_bytes(elf[24..32].try_into().unwrap()) - BASE as usize;
        assert_eq!(&elf[entry..entry + 3], b"\x0f\x1f\x80");
        assert_eq!(&elf[HEADERS..entry], MESSAGE);
    }
}
