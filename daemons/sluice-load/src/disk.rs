//! A disk: large requests in order, then small ones at random places, each written and read again. Nothing is answered from a page cache.

use crate::mark::{Part, measured};
use crate::pattern::{self, BLOCK};
use crate::ring::{Buffer, Way, transfer};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A large request.
const LARGE: usize = 1 << 20;

/// How much is moved.
pub struct Amounts {
    /// Bytes in order.
    pub bytes: usize,
    /// Small requests.
    pub requests: usize,
    /// How many of them are under way at once.
    pub depth: usize,
    /// The same of large ones.
    pub large_depth: usize,
}

/// A disk past the page cache.
pub struct Disk {
    file: File,
}

impl Disk {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
        Ok(Self { file: file.with_context(|| format!("could not open {}", path.display()))? })
    }

    /// A file in place of one.
    #[cfg(test)]
    pub fn of(file: File) -> Self {
        Self { file }
    }

    /// Moves parts of `size` bytes between places of the disk and memory, see [`transfer`].
    pub fn transfer(
        &self,
        way: Way,
        memory: &mut Buffer,
        size: usize,
        places: &[usize],
        depth: usize,
    ) -> Result<()> {
        transfer(&self.file, way, memory, size, places, depth)
    }
}

/// Loads it, and compares.
pub fn load(disk: &Disk, amounts: &Amounts) -> Result<()> {
    let blocks = amounts.bytes / BLOCK;
    let mut memory = Buffer::new(amounts.bytes);

    let large: Vec<usize> = (0..amounts.bytes / LARGE).collect();
    pattern::fill(memory.bytes(), 0, 1);
    // Whoever serves the disk has seen this memory once, and filled it once, as in all that lasts.
    disk.transfer(Way::Write, &mut memory, LARGE, &large, amounts.large_depth)?;
    measured(
        Part::WriteLarge,
        amounts.bytes,
        || large.len(),
        || disk.transfer(Way::Write, &mut memory, LARGE, &large, amounts.large_depth),
    )?;
    disk.transfer(Way::Read, &mut memory, LARGE, &large, amounts.large_depth)?;
    memory.bytes().fill(0);
    measured(
        Part::ReadLarge,
        amounts.bytes,
        || large.len(),
        || disk.transfer(Way::Read, &mut memory, LARGE, &large, amounts.large_depth),
    )?;
    verdict("large requests", pattern::wrong(memory.bytes(), 0, 1))?;

    // Those that are not written keep what they had.
    let places = pattern::places(amounts.requests, blocks, 2);
    let moved = places.len() * BLOCK;
    for (block, place) in memory.bytes().chunks_exact_mut(BLOCK).zip(&places) {
        pattern::fill(block, *place, 3);
    }
    measured(
        Part::WriteSmall,
        moved,
        || places.len(),
        || disk.transfer(Way::Write, &mut memory, BLOCK, &places, amounts.depth),
    )?;
    memory.bytes().fill(0);
    measured(
        Part::ReadSmall,
        moved,
        || places.len(),
        || disk.transfer(Way::Read, &mut memory, BLOCK, &places, amounts.depth),
    )?;
    let mut read = memory.bytes().chunks_exact(BLOCK).zip(&places);
    let differs = read.find_map(|(block, place)| pattern::wrong(block, *place, 3));
    verdict("small requests", differs)?;

    disk.transfer(Way::Read, &mut memory, LARGE, &large, amounts.large_depth)?;
    let written: std::collections::BTreeSet<usize> = places.into_iter().collect();
    let differs = (0..).zip(memory.bytes().chunks_exact(BLOCK)).find_map(|(place, block)| {
        pattern::wrong(block, place, if written.contains(&place) { 3 } else { 1 })
    });
    verdict("what was written between others", differs)?;
    println!("SLUICE-RESULT disk_data=ok");
    Ok(())
}

fn verdict(what: &str, wrong: Option<usize>) -> Result<()> {
    match wrong {
        None => Ok(()),
        Some(place) => bail!("{what}: block {place} of the disk does not hold what was written to it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_disk() {
        let path = std::env::temp_dir().join(format!("sluice-load-disk-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let result =
            load(&Disk::of(file), &Amounts { bytes: 2 << 20, requests: 100, depth: 8, large_depth: 2 });
        // Some containers refuse the system calls.
        assert!(
            result.as_ref().map_or_else(|error| format!("{error:#}").contains("io_uring"), |()| true),
            "{result:?}"
        );
    }
}
