//! The ELF file in a bzImage. A guest that is given the bzImage unpacks it by itself, which takes longer under TCG than all
//! the rest of its start; the ELF file starts by PVH at once. What the kernel does from then on is the same.
//!
//! Source: Linux, Documentation/arch/x86/boot.rst (`setup_sects`, `payload_offset`, `payload_length`) and
//! scripts/Makefile.lib (`size_append`); System V ABI (ELF-64).

use crate::claim::{Claim, Member};
use crate::workspace::{run, scratch};
use anyhow::{Context, Result, bail};
use std::process::Command;

/// Where a bzImage says how many sectors of 512 bytes follow the first before the protected-mode code.
const SETUP_SECTORS: usize = 0x1f1;
/// Where it says where in this code the compressed kernel begins, and how long that is.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// Programs that unpack, by the first bytes of what they take.
const PROGRAMS: [(&[u8], &str); 2] = [(b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// Type of a segment that is loaded.
const PT_LOAD: u32 = 1;

/// The ELF file, as far as it is loaded.
pub fn unpack(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image).context("it is no bzImage with a compressed kernel")?;
    let (_, program) = PROGRAMS
        .iter()
        .find(|(magic, _)| payload.starts_with(magic))
        .context("it is compressed in a way that Sluice does not know")?;
    // The last four bytes are how long the result is, for the self-extractor.
    let (packed, length) = payload.split_last_chunk().context("it is too short")?;
    let files = Claim::take(&scratch()?, &"vmlinux".parse()?)?;
    let file = files.path(Member::Packed);
    std::fs::write(&file, packed).with_context(|| format!("could not write {}", file.display()))?;
    let mut elf = run(Command::new(program).arg("-dc").arg(&file))?.stdout;
    if elf.len() != u32::from_le_bytes(*length) as usize {
        bail!("{program} made {} bytes of it, which is not what it promises", elf.len());
    }
    trim(&mut elf).context("it holds no ELF file")?;
    Ok(elf)
}

/// The compressed kernel in a bzImage.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let sectors = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = ((sectors + 1) * 512).checked_add(u32_at(image, PAYLOAD_OFFSET)? as usize)?;
    image.get(start..start.checked_add(u32_at(image, PAYLOAD_LENGTH)? as usize)?)
}

/// Leaves out what is not loaded, and the zeros at the end of the last segment: memory of a guest is zero when it starts.
fn trim(elf: &mut Vec<u8>) -> Option<()> {
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = usize::try_from(u64_at(elf, 32)?).ok()?;
    let (size, count) = (u16_at(elf, 54)?, u16_at(elf, 56)?);
    let headers = (0..usize::from(count)).map(|index| table.saturating_add(index * usize::from(size)));
    let loaded: Vec<usize> = headers.filter(|at| u32_at(elf, *at) == Some(PT_LOAD)).collect();
    let end = |at: usize| u64_at(elf, at + 8)?.checked_add(u64_at(elf, at + 32)?);
    let last = *loaded.iter().max_by_key(|at| end(**at))?;
    let start = usize::try_from(u64_at(elf, last + 8)?).ok()?;
    let zeros_end = usize::try_from(end(last)?).ok()?;
    let contents = elf.get(start..zeros_end)?;
    let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    elf.get_mut(last + 32..last + 40)?.copy_from_slice(&(used as u64).to_le_bytes());
    elf.truncate(start + used);
    Some(())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;

    /// An ELF file with one segment of 64 bytes at 128, of which `used` are not zero, and sections behind it.
    fn elf(used: usize) -> Vec<u8> {
        let mut elf = vec![0; 256];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64] = 1;
        elf[64 + 8] = 128;
        elf[64 + 32] = 64;
        elf[128..128 + used].fill(7);
        elf[192..].fill(9);
        elf
    }

    /// A bzImage that holds it, and says that it unpacks to so many bytes.
    fn image(elf: &[u8], length: u32) -> Vec<u8> {
        let pipe = || Stdio::piped();
        let mut xz =
            Command::new("xz").args(["-c", "--check=crc32"]).stdin(pipe()).stdout(pipe()).spawn().unwrap();
        xz.stdin.take().unwrap().write_all(elf).unwrap();
        let mut payload = xz.wait_with_output().unwrap().stdout;
        payload.extend(length.to_le_bytes());
        let mut image = vec![0; 1024 + 16];
        image[SETUP_SECTORS] = 1;
        image[PAYLOAD_OFFSET] = 16;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image.extend([0; 8]);
        image
    }

    #[test]
    fn what_is_loaded_comes_out_and_nothing_else() {
        let unpacked = unpack(&image(&elf(10), 256)).unwrap();
        assert_eq!(unpacked.len(), 128 + 10);
        assert_eq!(u64_at(&unpacked, 64 + 32), Some(10));
        assert_eq!(unpacked[128..], [7; 10]);
    }

    #[test]
    fn what_is_no_kernel_is_said_to_be_none() {
        assert!(unpack(&[0; 4096]).is_err());
        assert!(unpack(&image(&elf(10), 255)).unwrap_err().to_string().contains("promises"));
        assert!(
            unpack(&image(b"no ELF file, but long enough", 28)).unwrap_err().to_string().contains("no ELF")
        );
        let whole = image(&elf(10), 256);
        for length in 0..whole.len() - 8 {
            assert!(unpack(&whole[..length]).is_err(), "{length}");
        }
    }
}
