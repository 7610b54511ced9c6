//! A file that has a place: the processor's CPUID leaves, by the device file `cpuid`, whose offset is a leaf.

use crate::result;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Leaves with the processor's name, and before them the number of leaves.
const NAME: [u64; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];

/// Reads the name, after it looked at the first leaf, and says it; once more by offsets, which do not move in the file.
pub fn run(path: &Path) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let leaf = |file: &mut File, number: u64| -> Result<[u8; 16]> {
        let at = file.seek(SeekFrom::Start(number)).context("could not seek")?;
        ensure!(at == number, "a seek to {number:#x} arrived at {at:#x}");
        let mut bytes = [0; 16];
        file.read_exact(&mut bytes).context("could not read")?;
        Ok(bytes)
    };
    leaf(&mut file, 0)?;
    let mut name = Vec::new();
    for number in NAME {
        name.extend(leaf(&mut file, number)?);
    }
    let name = String::from_utf8_lossy(&name).trim_end_matches('\0').trim().replace(' ', "_");
    let mut apart = Vec::new();
    for number in NAME {
        let mut bytes = [0; 16];
        let got = file.read_at(&mut bytes, number).context("could not read from an offset")?;
        ensure!(got == bytes.len(), "a read from an offset got {got} bytes");
        apart.extend(bytes);
    }
    let apart = String::from_utf8_lossy(&apart).trim_end_matches('\0').trim().replace(' ', "_");
    let after = file.stream_position().context("could not ask for the place")?;
    result(&format!("seek={name} seek_at={apart} seek_after={after:#x}"));
    Ok(())
}
