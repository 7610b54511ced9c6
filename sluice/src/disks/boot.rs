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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::{FileExt, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    const MIB: u64 = 1 << 20;

    /// Writes a GUID partition table: where entries are in it, and which bytes are whose.
    fn table(file: &std::fs::File, partitions: &[(u64, std::ops::Range<u64>)]) {
        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[72..80].copy_from_slice(&2_u64.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        file.write_all_at(&header, 512).unwrap();
        for (index, bytes) in partitions {
            let mut entry = [0xff; 48];
            entry[32..40].copy_from_slice(&(bytes.start / 512).to_le_bytes());
            entry[40..48].copy_from_slice(&(bytes.end / 512 - 1).to_le_bytes());
            file.write_all_at(&entry, 1024 + 128 * index).unwrap();
        }
    }

    /// A folder with what is in a guest's file system.
    struct Guest {
        folder: tempfile::TempDir,
    }

    impl Guest {
        fn new() -> Self {
            let guest = Self { folder: tempfile::tempdir().unwrap() };
            std::fs::create_dir_all(guest.root().join("boot")).unwrap();
            guest
        }

        fn root(&self) -> PathBuf {
            self.folder.path().join("root")
        }

        fn file(self, path: &str, content: &str) -> Self {
            std::fs::write(self.root().join(path), content).unwrap();
            self
        }

        fn link(self, path: &str, target: &str) -> Self {
            symlink(target, self.root().join(path)).unwrap();
            self
        }

        /// A kernel that says its release, and its ramdisk.
        fn kernel(self, release: &str) -> Self {
            self.file(&format!("boot/vmlinuz-{release}"), &format!("kernel {release}"))
                .file(&format!("boot/initrd.img-{release}"), &format!("ramdisk {release}"))
        }

        /// Its image, with the file system in a partition that begins at `start`; at 0 there is no table.
        fn image(&self, start: u64) -> PathBuf {
            self.image_with(start, "metadata_csum")
        }

        fn image_with(&self, start: u64, feature: &str) -> PathBuf {
            let image = self.folder.path().join("image");
            let _ = std::fs::remove_file(&image);
            let mut command = Command::new("/usr/sbin/mke2fs");
            command
                .args(["-q", "-t", "ext4", "-O", feature, "-E", &format!("offset={start}"), "-d"])
                .arg(self.root());
            crate::workspace::run(command.arg(&image).arg("4M")).unwrap();
            let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
            file.set_len(start + 4 * MIB).unwrap();
            if start > 0 {
                table(&file, &[(1, start..start + 4 * MIB)]);
            }
            image
        }

        fn boots(&self) -> String {
            let found = read(&self.image(0)).unwrap();
            let ramdisk = found.ramdisk.map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(String::from_utf8(found.kernel).unwrap(), format!("kernel {}", found.release));
            assert_eq!(ramdisk, Some(format!("ramdisk {}", found.release)));
            found.release
        }

        #[track_caller]
        fn is_refused(&self, why: &str) {
            let error = format!("{:#}", read(&self.image(0)).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_link_says_which_kernel_boots_next() {
        let two = || Guest::new().kernel("6.1.0-9-amd64").kernel("6.1.0-10-amd64");
        assert_eq!(two().boots(), "6.1.0-10-amd64", "the newest, by its numbers");
        let relative = two().link("vmlinuz", "boot/vmlinuz-6.1.0-9-amd64");
        assert_eq!(relative.boots(), "6.1.0-9-amd64");
        let absolute = two().link("boot/vmlinuz", "/boot/vmlinuz-6.1.0-9-amd64");
        assert_eq!(absolute.boots(), "6.1.0-9-amd64", "it leads to a file of the image");
    }

    #[test]
    fn a_kernel_that_is_being_installed_does_not_boot_yet() {
        let guest = Guest::new()
            .kernel("6.1")
            .file("boot/vmlinuz-6.2", "kernel 6.2")
            .link("vmlinuz", "boot/vmlinuz-6.2");
        assert_eq!(guest.boots(), "6.1");
    }

    #[test]
    fn a_kernel_needs_no_ramdisk_where_there_is_none() {
        let found = read(&Guest::new().file("boot/vmlinuz-6.1", "kernel").image(0)).unwrap();
        assert_eq!((found.release.as_str(), found.ramdisk), ("6.1", None));
    }

    #[test]
    fn a_partition_is_found() {
        let guest = Guest::new().kernel("6.1");
        assert_eq!(read(&guest.image(MIB)).unwrap().release, "6.1");
    }

    #[test]
    fn a_stock_image_has_its_root_behind_the_partitions_of_loaders() {
        let guest = Guest::new().kernel("6.1");
        let image = guest.image(8 * MIB);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        // As Debian's cloud images: the first partition stands last, the fourteenth is GRUB's, the fifteenth is the EFI system's.
        file.write_all_at(&[0; 128], 1024 + 128).unwrap();
        table(&file, &[(0, 8 * MIB..12 * MIB), (13, MIB..4 * MIB), (14, 4 * MIB..8 * MIB)]);
        // The boot sector of a FAT has no magic number where ext4 has one.
        file.write_all_at(b"\xeb\x58\x90mkfs.fat", 4 * MIB).unwrap();
        assert_eq!(read(&image).unwrap().release, "6.1");
        // A partition before it that only looks like a file system does not hide it.
        file.write_all_at(&[0x53, 0xef], 4 * MIB + 1024 + 0x38).unwrap();
        assert_eq!(read(&image).unwrap().release, "6.1");
    }

    #[test]
    fn a_table_of_overlapping_partitions_is_read_to_its_end() {
        let guest = Guest::new().kernel("6.1");
        let image = guest.image(MIB);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        // All that a table has room for, each with another beginning in the same file system; the last is right.
        let all: Vec<_> = (0..128).map(|index| (index, MIB + (127 - index) * 512..5 * MIB)).collect();
        table(&file, &all);
        assert_eq!(read(&image).unwrap().release, "6.1");
    }

    #[test]
    fn partitions_that_cannot_be_are_none() {
        let guest = Guest::new().kernel("6.1");
        let image = guest.image(MIB);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        let (first, last, table) = (1024 + 128 + 32, 1024 + 128 + 40, 512 + 72);
        for (at, value) in
            [(last, 1 << 40), (last, u64::MAX), (last, 1), (first, u64::MAX - 1), (table, u64::MAX)]
        {
            file.write_all_at(&value.to_le_bytes(), at).unwrap();
            assert!(read(&image).unwrap_err().to_string().contains("has no ext4 file system"), "{at}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_said() {
        Guest::new().is_refused("neither a link /vmlinuz nor a file /boot/vmlinuz-*");
        let elsewhere = std::fs::canonicalize("/etc/hostname").unwrap();
        let out = Guest::new().link("vmlinuz", "../../../../etc/hostname");
        out.is_refused("neither a link");
        Guest::new().link("boot/vmlinuz-1", &elsewhere.display().to_string()).is_refused("neither a link");
        Guest::new().link("vmlinuz", "vmlinuz").is_refused("neither a link");
        Guest::new().file("boot/vmlinuz-6.1", "").is_refused("/boot/vmlinuz-6.1 has 0 bytes");
        Guest::new().file("boot/vmlinuz-$(reboot)", "x").is_refused("neither a link");
        let folder = Guest::new();
        std::fs::create_dir(folder.root().join("boot/vmlinuz-6.1")).unwrap();
        folder.is_refused("neither a link");
    }

    #[test]
    fn sizes_are_bounded() {
        let guest = Guest::new();
        let kernel = std::fs::File::create(guest.root().join("boot/vmlinuz-6.1")).unwrap();
        kernel.set_len(LARGEST_KERNEL + 1).unwrap();
        guest.is_refused("has 67108865 bytes, and 1 to 67108864 can be");
    }

    #[test]
    fn an_image_without_a_file_system_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for length in [0, 100, 1080, MIB] {
            file.as_file().set_len(length).unwrap();
            let error = read(file.path()).unwrap_err().to_string();
            assert!(error.contains("has no ext4 file system"), "{length}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever a guest has written: an answer, no panic, and no more bytes than there can be.
        #[test]
        fn altered_images_are_read_or_refused(changes in prop::collection::vec((0..400_000_u64, any::<u64>()), 1..40)) {
            static IMAGE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let bytes = IMAGE.get_or_init(|| {
                let guest = Guest::new().kernel("6.1").link("vmlinuz", "boot/vmlinuz-6.1");
                // Nothing is believed for its checksum: a guest can compute one.
                std::fs::read(guest.image_with(MIB, "^metadata_csum")).unwrap()
            });
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            for (at, value) in changes {
                // The table, or the first blocks of the file system: superblock, descriptors, inodes.
                let place = if at % 8 == 0 { 512 + at / 8 % 2048 } else { MIB + at };
                file.as_file().write_all_at(&value.to_le_bytes(), place).unwrap();
            }
            if let Ok(found) = read(file.path()) {
                prop_assert!(found.kernel.len() as u64 <= LARGEST_KERNEL);
                prop_assert!(found.ramdisk.is_none_or(|ramdisk| ramdisk.len() as u64 <= LARGEST_RAMDISK));
            }
        }
    }
}
