//! The kernel and the initial ramdisk that a guest has in its own `/boot`, read from its disk without mounting it.
//!
//! Which one: what the link `/vmlinuz` names, which Debian keeps at the kernel to boot, else the newest. A kernel without its ramdisk
//! is being installed, so the next best one is taken that has one.
//!
//! The guest wrote the disk. What reads it is written in Rust without `unsafe` (`ext4-view`), links lead nowhere but within the image,
//! and sizes are bounded here.

use super::extent::Extent;
use crate::packages::natural_order;
use anyhow::{Context, Result, bail};
use ext4_view::{Ext4, FileType};
use std::path::Path;

/// The largest kernel, and the largest initial ramdisk, in bytes.
const LARGEST_KERNEL: u64 = 64 << 20;
const LARGEST_RAMDISK: u64 = 512 << 20;

/// So many files of a folder are looked at.
const MOST_FILES: usize = 10_000;

/// How a kernel's file is called, before its release.
const KERNEL: &str = "vmlinuz-";

/// Where distributions keep a link to the kernel that is to be booted, best first.
const LINKS: [&str; 2] = ["/vmlinuz", "/boot/vmlinuz"];

/// Where kernels are: the second where `/boot` is a file system of its own.
const FOLDERS: [&str; 2] = ["/boot", "/"];

/// What a guest boots with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFiles {
    /// As the kernel's file says: `6.1.0-56-amd64`.
    pub release: String,
    /// The kernel.
    pub kernel: Vec<u8>,
    /// Its initial ramdisk.
    pub ramdisk: Option<Vec<u8>>,
}

/// Finds the files in the image of a disk.
pub fn read(image: &Path) -> Result<BootFiles> {
    let shown = image.display();
    let places = Extent::find(image)?;
    if places.is_empty() {
        bail!(
            "{shown} has no ext4 file system, in which a kernel could be\n\
             help: give the guest a kernel by name or by path"
        );
    }
    let mut why = None;
    for place in places {
        match look(place) {
            Ok(found) => return Ok(found),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.context("there was a place")?).with_context(|| format!("{shown} has no kernel to boot with"))
}

/// A kernel and what belongs to it, by their paths in the image.
struct Candidate {
    release: String,
    kernel: String,
    ramdisk: String,
}

impl Candidate {
    fn new(kernel: &str) -> Option<Self> {
        let (folder, file) = kernel.rsplit_once('/')?;
        let release = file.strip_prefix(KERNEL)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_~".contains(&byte);
        if release.is_empty() || release.len() > 128 || !release.bytes().all(is_plain) {
            return None;
        }
        let ramdisk = format!("{folder}/initrd.img-{release}");
        Some(Self { release: release.to_owned(), kernel: kernel.to_owned(), ramdisk })
    }
}

fn look(place: Extent) -> Result<BootFiles> {
    let system = Ext4::load(Box::new(place)).context("its file system cannot be read")?;
    let linked = LINKS.iter().filter_map(|link| {
        let path = system.canonicalize(*link).ok()?;
        Candidate::new(path.to_str().ok()?)
    });
    let mut candidates: Vec<Candidate> = linked.collect();
    for folder in FOLDERS {
        candidates.extend(newest_first(&system, folder));
    }
    let with_ramdisk = candidates.iter().find(|candidate| is_file(&system, &candidate.ramdisk));
    let chosen = with_ramdisk
        .or_else(|| candidates.iter().find(|candidate| is_file(&system, &candidate.kernel)))
        .context("there is neither a link /vmlinuz nor a file /boot/vmlinuz-*")?;
    let kernel = content(&system, &chosen.kernel, LARGEST_KERNEL)?;
    let ramdisk =
        with_ramdisk.map(|chosen| content(&system, &chosen.ramdisk, LARGEST_RAMDISK)).transpose()?;
    Ok(BootFiles { release: chosen.release.clone(), kernel, ramdisk })
}

fn newest_first(system: &Ext4, folder: &str) -> Vec<Candidate> {
    let Ok(entries) = system.read_dir(folder) else { return Vec::new() };
    let mut found: Vec<Candidate> = entries
        .take(MOST_FILES)
        .map_while(Result::ok)
        .filter_map(|entry| Candidate::new(entry.path().to_str().ok()?))
        .collect();
    found.sort_by(|a, b| natural_order(&b.release, &a.release));
    found
}

fn is_file(system: &Ext4, path: &str) -> bool {
    system.metadata(path).is_ok_and(|metadata| metadata.file_type() == FileType::Regular)
}

fn content(system: &Ext4, path: &str, most: u64) -> Result<Vec<u8>> {
    let metadata = system.metadata(path).with_context(|| format!("{path} cannot be found"))?;
    if metadata.file_type() != FileType::Regular {
        bail!("{path} is no file");
    }
    if metadata.len() == 0 || metadata.len() > most {
        bail!("{path} has {} bytes, and 1 to {most} can be", metadata.len());
    }
    system.read(path).with_context(|| format!("{path} cannot be read"))
}
