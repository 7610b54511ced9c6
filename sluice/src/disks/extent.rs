//! Where in an image a file system can be: all of it, or a partition of a GUID partition table (UEFI specification 2.10, section 5.3).

use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a sector, of which partition tables count in images.
const SECTOR: u64 = 512;

/// Partitions that are looked at: tables have room for so many.
const MOST_PARTITIONS: u32 = 128;

/// Bytes of an entry of the table: 128 times a power of two.
const ENTRY: u32 = 128;

/// Where the magic number of ext2, ext3 and ext4 is, from the beginning of the file system.
const MAGIC_AT: u64 = 1024 + 0x38;
const MAGIC: [u8; 2] = [0x53, 0xef];

/// A part of an image.
pub struct Extent {
    file: File,
    /// Where it begins, in bytes.
    pub start: u64,
    length: u64,
}

impl Extent {
    /// The parts of an image that look like an ext4 file system.
    pub fn find(image: &Path) -> Result<Vec<Self>> {
        let shown = image.display();
        let file = File::open(image).with_context(|| format!("could not open {shown}"))?;
        let length = file.metadata().with_context(|| format!("could not look at {shown}"))?.len();
        let mut places = vec![(0, length)];
        places.extend(partitions(&file, length));
        let mut found = Vec::new();
        for (start, length) in places {
            let extent = Self { file: file.try_clone()?, start, length };
            let mut magic = [0; 2];
            if extent.read(MAGIC_AT, &mut magic).is_ok() && magic == MAGIC {
                found.push(extent);
            }
        }
        Ok(found)
    }

    /// Reads at a place of this part. Nothing outside it can be reached.
    fn read(&self, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let end = at.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.file.read_exact_at(bytes, self.start + at)
    }
}

impl ext4_view::Ext4Read for Extent {
    fn read(
        &mut self,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        Ok(Self::read(self, at, bytes)?)
    }
}

/// Where partitions begin and how long they are, in bytes.
fn partitions(file: &File, length: u64) -> Vec<(u64, u64)> {
    let mut header = [0; 92];
    if file.read_exact_at(&mut header, SECTOR).is_err() || &header[..8] != b"EFI PART" {
        return Vec::new();
    }
    let (table, count, size) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    if !(ENTRY..=SECTOR as u32 * 8).contains(&size) {
        return Vec::new();
    }
    let entry = |index: u32| {
        let mut entry = [0; ENTRY as usize];
        let at = table.checked_mul(SECTOR)?.checked_add(u64::from(index) * u64::from(size))?;
        file.read_exact_at(&mut entry, at).ok()?;
        let is_used = entry[..16].iter().any(|byte| *byte != 0);
        let (first, last) = (u64_at(&entry, 32), u64_at(&entry, 40));
        let start = first.checked_mul(SECTOR)?;
        let end = last.checked_add(1)?.checked_mul(SECTOR)?;
        (is_used && start < end && end <= length).then(|| (start, end - start))
    };
    (0..count.min(MOST_PARTITIONS)).filter_map(entry).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}
