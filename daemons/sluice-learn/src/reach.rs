//! What the kernel reaches of the memory of processes that this one traces: the module `sluice-learn` (guest/linux/sluice-learn) tells.

use anyhow::{Context, Result, bail};
use sluice_slice::Copy;
use std::fs::File;
use std::io::{self, Read};

/// Where the module tells it.
const FILE: &str = "/dev/sluice-learn";
/// Bytes of a record, and where its parts are: thread, way, address, bytes; the rest is the function's name.
const RECORD: usize = 48;
const NAME: usize = 24;

/// What was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// So many bytes at an address were read, or written.
    Bytes(Copy),
    /// A text of at most so many bytes was read.
    Text {
        /// Where.
        address: u64,
        /// How many.
        most: u64,
    },
    /// This function took hold of pages.
    Hold(String),
}

/// What the module tells this process.
pub struct Reached(File);

impl Reached {
    /// From now on.
    pub fn open() -> Result<Self> {
        let file = File::open(FILE);
        Ok(Self(file.with_context(|| format!("no {FILE}; root has it, where the module sluice-learn is"))?))
    }

    /// What has been reached since it was asked last, and by which thread.
    pub fn since(&mut self) -> Result<Vec<(i32, Reach)>> {
        let (mut found, mut records) = (Vec::new(), [0; RECORD * 256]);
        loop {
            let count = match self.0.read(&mut records) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count.with_context(|| format!("could not read {FILE}"))?,
            };
            if count == 0 {
                return Ok(found);
            }
            for record in records[..count].as_chunks().0 {
                found.push(decode(record)?);
            }
        }
    }
}

fn decode(record: &[u8; RECORD]) -> Result<(i32, Reach)> {
    let [thread, way] = [0, 4].map(|at| u32::from_le_bytes(*record[at..].first_chunk().unwrap_or(&[0; 4])));
    let [address, bytes] =
        [8, 16].map(|at| u64::from_le_bytes(*record[at..].first_chunk().unwrap_or(&[0; 8])));
    let reach = match way {
        0 | 1 => Reach::Bytes(Copy { address, bytes, is_written: way == 1 }),
        2 => Reach::Text { address, most: bytes },
        3 => {
            let name = record[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
            Reach::Hold(String::from_utf8_lossy(name).into_owned())
        }
        4 => bail!("an ioctl reached memory in more pieces than the module notes"),
        _ => bail!("{FILE} is another version's"),
    };
    Ok((i32::try_from(thread)?, reach))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_who_reached_what() {
        let record = |way: u32, name: &[u8]| {
            let mut record = [0; RECORD];
            record[..4].copy_from_slice(&4711_u32.to_le_bytes());
            record[4..8].copy_from_slice(&way.to_le_bytes());
            record[8..16].copy_from_slice(&0x7ffd_1000_u64.to_le_bytes());
            record[16..24].copy_from_slice(&20_u64.to_le_bytes());
            record[24..24 + name.len()].copy_from_slice(name);
            decode(&record).map_err(|error| error.to_string())
        };
        let bytes =
            |is_written| Ok((4711, Reach::Bytes(Copy { address: 0x7ffd_1000, bytes: 20, is_written })));
        assert_eq!(record(0, b"_copy_from_user"), bytes(false));
        assert_eq!(record(1, b"__put_user_4"), bytes(true));
        assert_eq!(record(2, b""), Ok((4711, Reach::Text { address: 0x7ffd_1000, most: 20 })));
        assert_eq!(record(3, b"pin_user_pages"), Ok((4711, Reach::Hold("pin_user_pages".into()))));
        assert!(record(4, b"").unwrap_err().contains("more pieces"));
        assert!(record(5, b"").unwrap_err().contains("another version"));
    }
}
