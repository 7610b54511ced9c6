//! Puts the module for single pages into a guest's own initial ramdisk.
//!
//! Drivers of virtio devices must find the module's DMA operations when they are bound, which is early in the ramdisk, and a
//! kernel that the guest installed has no module of ours. So it is added to what the kernel unpacks, in a folder of its own, with a
//! program that loads it and then goes on to the ramdisk's `/init`. Nothing is written to the guest's disk.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst: archives that follow each other are unpacked one
//! after the other.

use super::boot::BootFiles;
use crate::cpio::Archive;
use crate::workspace::root;
use crate::{modules, rootfs};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// The module, in `guest/linux`.
const MODULE: &str = "sluice-dma";

/// The word of a kernel's command line that has it start `guest/debian/first` in place of the ramdisk's `/init`.
pub const WORD: &str = "rdinit=/sluice/init";

/// The ramdisk with the module for its kernel.
///
/// # Errors
/// There is no ramdisk, or Debian has no headers of this kernel any more.
pub fn with_module(files: &BootFiles) -> Result<Vec<u8>> {
    let ramdisk = files.ramdisk.as_ref().with_context(|| {
        format!(
            "its Linux {} has no initial ramdisk, into which the module for single pages could be put",
            files.release
        )
    })?;
    let read =
        |path: PathBuf| std::fs::read(&path).with_context(|| format!("could not read {}", path.display()));
    let mut archive = Archive::new();
    archive.directory("sluice");
    archive.directory("sluice/proc");
    archive.file("sluice/init", 0o755, &read(root().join("guest/debian/first"))?);
    archive.file("sluice/busybox", 0o755, &read(rootfs::busybox()?)?);
    archive.file("sluice/module.ko", 0o644, &read(modules::get(MODULE, &files.release)?)?);
    Ok(behind(ramdisk, &archive.finish()))
}

/// Another archive behind a ramdisk. One that is not compressed begins at a multiple of four bytes, and what fills the gap is zero.
fn behind(ramdisk: &[u8], archive: &[u8]) -> Vec<u8> {
    let mut both = ramdisk.to_vec();
    both.resize(both.len().next_multiple_of(4), 0);
    both.extend_from_slice(archive);
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_ramdisk_is_aligned() {
        assert_eq!(behind(b"12345", b"archive"), b"12345\0\0\0archive");
        assert_eq!(behind(b"1234", b"archive"), b"1234archive");
    }

    #[test]
    fn a_kernel_without_a_ramdisk_is_refused() {
        let files = BootFiles { release: "6.1".to_owned(), kernel: Vec::new(), ramdisk: None };
        assert!(with_module(&files).unwrap_err().to_string().contains("6.1 has no initial ramdisk"));
    }
}
