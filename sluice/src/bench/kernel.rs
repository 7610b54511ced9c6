//! The kernel without its compression. Three quarters of the instructions of a boot are the kernel's unpacking of itself,
//! which tells nothing about cards and takes most of the time where eight guests boot.
//!
//! Source: Linux, Documentation/arch/x86/boot.rst (`setup_sects`, `payload_offset`, `payload_length`).

use crate::bench::{scratch, scratch_file};
use crate::kernels::Kernel;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// Size of a sector of the kernel's setup code.
const SECTOR: usize = 512;
/// How a stream of xz begins.
const XZ: &[u8] = b"\xfd7zXZ\0";

/// The ELF file in a kernel; the kernel itself if it is packed in another way.
pub fn unpacked(kernel: &Kernel) -> Result<PathBuf> {
    let name = format!("vmlinux-{}", kernel.release);
    let path = scratch()?.join(&name);
    if path.exists() {
        return Ok(path);
    }
    let image =
        std::fs::read(&kernel.image).with_context(|| format!("could not read {}", kernel.image.display()))?;
    let Some(payload) = payload(&image).filter(|payload| payload.starts_with(XZ)) else {
        return Ok(kernel.image.clone());
    };
    let packed = scratch_file("payload.xz", payload)?;
    let elf = crate::workspace::run(Command::new("xz").args(["-dc", "--single-stream"]).arg(packed))?.stdout;
    scratch_file(&name, &elf)
}

/// The packed kernel within a bzImage, less the size that is appended to it.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let sectors = usize::from(*image.get(0x1f1)?);
    let start = (if sectors == 0 { 4 } else { sectors } + 1) * SECTOR + word(0x248)?;
    image.get(start..(start + word(0x24c)?).checked_sub(4)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_behind_the_setup_code() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 2;
        image[0x248] = 16;
        image[0x24c] = 8;
        image[3 * SECTOR + 16..][..8].copy_from_slice(b"packed..");
        assert_eq!(payload(&image), Some(b"pack".as_slice()));
        image[0x24d] = 0xff;
        assert_eq!(payload(&image), None);
    }
}
