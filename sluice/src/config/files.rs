//! What a configuration names, looked at before anything starts: kernels and initial ramdisks as the hypervisor will load
//! them, and QEMU's devices as QEMU knows them.
//!
//! Only files of the user's are opened; what Sluice builds by name is known to be good.

use super::diagnostic::Source;
use super::walk::suggestion;
use super::{Device, Domain, Image, Setup, added_words, human_size, server_words};
use crate::workspace;
use sluice_abi::config::{Dma, Kind};
use sluice_loader::{GuestWrite, LoadError, Parameters, RamRange};
use sluice_memory::{Gpa, OutOfRange};
use std::process::{Command, Stdio};
use toml::Spanned;

/// Guest-physical addresses: the end of low RAM, the beginning of what follows, the hole for devices, and what is above it
/// (docs/architecture.md, "Memory").
const LOW_RAM_END: u64 = 0xa_0000;
const HIGH_RAM: u64 = 0x10_0000;
const HOLE: u64 = 0xc000_0000;
const ABOVE_HOLE: u64 = 1 << 32;

/// How an initial ramdisk begins that Linux unpacks: a cpio archive in the format newc, or what it can decompress
/// (Linux, init/initramfs.c and lib/decompress.c).
const RAMDISK_MAGICS: [&[u8]; 10] = [
    b"070701",
    b"070702",
    &[0x1f, 0x8b],
    &[0x1f, 0x9e],
    b"BZh",
    &[0x5d, 0x00, 0x00],
    &[0xfd, b'7', b'z', b'X', b'Z', 0x00],
    &[0x89, b'L', b'Z', b'O'],
    &[0x02, 0x21, 0x4c, 0x18],
    &[0x28, 0xb5, 0x2f, 0xfd],
];

/// Looks at everything.
pub fn check(setup: &Setup, source: &mut Source) {
    for domain in &setup.domains {
        let initrd = domain.initrd.as_ref().and_then(|initrd| ramdisk(initrd, source));
        kernel(setup, domain, initrd.as_deref(), source);
    }
    devices(&setup.devices, source);
}

fn read(image: &Spanned<Image>, source: &mut Source) -> Option<Vec<u8>> {
    let Image::File(path) = image.get_ref() else { return None };
    match std::fs::read(path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            source.complain(image.span(), format!("could not read {}: {error}", path.display()), None);
            None
        }
    }
}

fn ramdisk(image: &Spanned<Image>, source: &mut Source) -> Option<Vec<u8>> {
    let bytes = read(image, source)?;
    if !RAMDISK_MAGICS.iter().any(|magic| bytes.starts_with(magic)) {
        let Image::File(path) = image.get_ref() else { return None };
        let message = format!("{} is no initial ramdisk", path.display());
        let help = "it must be a cpio archive (find . | cpio -o -H newc), or one that is compressed with gzip, xz, zstd, bzip2, \
                    lzma, lzo or lz4";
        source.complain(image.span(), message, help.to_owned());
        return None;
    }
    Some(bytes)
}

/// Memory that takes everything within it and keeps nothing.
struct Nothing(Vec<RamRange>);

impl GuestWrite for Nothing {
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        let (start, len) = (gpa.as_u64(), bytes.len() as u64);
        let holds = |range: &RamRange| {
            let from = range.start.as_u64();
            start >= from && start.checked_add(len).is_some_and(|end| end <= from + range.len)
        };
        if self.0.iter().any(holds) { Ok(()) } else { Err(OutOfRange) }
    }
}

/// RAM of a guest with so many bytes of memory.
fn ram(memory: u64) -> Vec<RamRange> {
    let low = 0..memory.min(LOW_RAM_END);
    let middle = HIGH_RAM..memory.min(HOLE);
    let high = ABOVE_HOLE..ABOVE_HOLE + memory.saturating_sub(HOLE);
    let ranges = [low, middle, high].into_iter().filter(|range| range.start < range.end);
    ranges.map(|range| RamRange { start: Gpa::new(range.start), len: range.end - range.start }).collect()
}

/// Loads the kernel as the hypervisor will, into no memory at all.
fn kernel(setup: &Setup, domain: &Domain, initrd: Option<&[u8]>, source: &mut Source) {
    let Some(kernel) = read(&domain.kernel, source) else { return };
    let Image::File(path) = domain.kernel.get_ref() else { return };
    if *domain.kind.get_ref() == Kind::Paravirtual {
        return;
    }
    let (name, memory) = (domain.name.get_ref(), *domain.memory.get_ref());
    let added = added_words(setup, domain);
    let cmdline = format!("{} {}{added}", server_words(u16::MAX), domain.cmdline.get_ref());
    let ram = ram(memory);
    let parameters = Parameters { initrd, cmdline: &cmdline, ram: &ram, rsdp: None };
    // Where a domain's memory is where it physically is, only the hypervisor knows what fits.
    let loaded = if domain.shares.iter().any(|share| share.dma == Dma::Unprotected) {
        sluice_loader::check(&kernel).map(drop)
    } else {
        sluice_loader::load(&kernel, &parameters, &mut Nothing(ram.clone())).map(drop)
    };
    let Err(error) = loaded else { return };
    let (place, message, help) = match error {
        LoadError::KernelTooLarge | LoadError::InitrdTooLarge | LoadError::OutOfRange => (
            domain.memory.span(),
            format!("{} is too little for the kernel of '{name}': {error}", human_size(memory)),
            "give it more memory".to_owned(),
        ),
        LoadError::CmdlineTooLong => (
            domain.cmdline.span(),
            format!("the command line of '{name}' is longer than its kernel takes"),
            format!("`run` puts {} bytes in front of it", server_words(u16::MAX).len() + 1),
        ),
        _ => (
            domain.kernel.span(),
            format!("{} is no kernel that Sluice can start: {error}", path.display()),
            "give a 64-bit Linux bzImage (such as /boot/vmlinuz-*), or an ELF file with a PVH note or a multiboot header"
                .to_owned(),
        ),
    };
    source.complain(place, message, help);
}

/// Asks QEMU for the devices that it has. Where there is no QEMU, nothing will run anyway.
fn devices(devices: &[Device], source: &mut Source) {
    let wanted: Vec<&Spanned<String>> = devices.iter().filter_map(|device| device.qemu.as_ref()).collect();
    if wanted.is_empty() {
        return;
    }
    let Some(list) = ask("help") else { return };
    let known: Vec<(&str, bool)> = list.lines().flat_map(names).collect();
    for qemu in wanted {
        let (driver, properties) = qemu.get_ref().split_once(',').unwrap_or((qemu.get_ref(), ""));
        match known.iter().find(|(name, _)| *name == driver) {
            None => {
                let names: Vec<&str> =
                    known.iter().filter_map(|(name, is_pci)| is_pci.then_some(*name)).collect();
                let help = Some(suggestion(driver, &names)).filter(|help| help.starts_with("did"));
                let help = help.unwrap_or_else(|| "qemu-system-x86_64 -device help lists them".to_owned());
                source.complain(qemu.span(), format!("QEMU has no device '{driver}'"), help);
            }
            Some((_, false)) => {
                let message = format!("QEMU's '{driver}' is no PCI device");
                source.complain(
                    qemu.span(),
                    message,
                    "guests share PCI functions, such as \"e1000\"".to_owned(),
                );
            }
            Some(_) if properties.is_empty() => {}
            Some(_) => {
                let Some(list) = ask(&format!("{driver},help")) else { continue };
                let known: Vec<&str> =
                    list.lines().filter_map(|line| Some(line.trim().split_once('=')?.0)).collect();
                for key in properties.split(',').filter_map(|property| property.split('=').next()) {
                    if !known.contains(&key) && !matches!(key, "bus" | "id") {
                        let message = format!("QEMU's '{driver}' has no property '{key}'");
                        source.complain(qemu.span(), message, suggestion(key, &known));
                    }
                }
            }
        }
    }
}

/// What QEMU prints for `-device` with this value.
fn ask(device: &str) -> Option<String> {
    let mut command = Command::new("timeout");
    command.arg("20").arg(workspace::qemu()).args(["-device", device]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The name and the alias in a line such as `name "e1000", bus PCI, alias "e1000-82540em"`, and whether it is a PCI device.
fn names(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let is_pci = line.contains("bus PCI");
    let quoted = |key: &str| line.split_once(&format!("{key} \""))?.1.split('"').next();
    let name = line.starts_with("name ").then(|| [quoted("name"), quoted("alias")]);
    name.into_iter().flatten().flatten().map(move |name| (name, is_pci))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemus_list_is_read() {
        let read = |line| names(line).collect::<Vec<_>>();
        assert_eq!(
            read("name \"e1000\", bus PCI, alias \"e1000-82540em\", desc \"Intel\""),
            [("e1000", true), ("e1000-82540em", true)]
        );
        assert_eq!(read("name \"isa-serial\", bus ISA"), [("isa-serial", false)]);
        assert_eq!(read("Network devices:"), []);
    }

    #[test]
    fn memory_is_where_guests_have_it() {
        let ends = |memory| {
            let ranges = ram(memory).into_iter();
            ranges.map(|range| (range.start.as_u64(), range.start.as_u64() + range.len)).collect::<Vec<_>>()
        };
        assert_eq!(ends(64 << 20), [(0, 0xa_0000), (0x10_0000, 64 << 20)]);
        assert_eq!(ends(4 << 30), [(0, 0xa_0000), (0x10_0000, HOLE), (ABOVE_HOLE, 5 << 30)]);
    }
}
