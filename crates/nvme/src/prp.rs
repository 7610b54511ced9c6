//! Physical region pages: where in a guest's memory the data of a command are.
//!
//! Source: NVMe, 4.3.

use crate::{Memory, PAGE, Status};

/// Bytes of an entry.
const ENTRY: u64 = 8;
/// Entries that are read at once.
const CHUNK: u64 = 32;
/// Pages of lists that one command may take: one that begins near its page's end goes on in a second one, and each full page is 511 pages of data.
const LISTS: u32 = 3;

/// Calls `act` with the pages of a command's data, in order: address and bytes of each, which do not cross a page. Stops at its first error.
///
/// # Errors
/// The list is not memory of the guest's, an address has an offset where it must have none, or there are too many lists; or what `act` says.
pub fn each(
    (first, second): (u64, u64),
    len: u64,
    memory: &impl Memory,
    mut act: impl FnMut(u64, u64) -> Result<(), Status>,
) -> Result<(), Status> {
    if first & 3 != 0 {
        return Err(Status::OFFSET);
    }
    let bytes = len.min(PAGE - first % PAGE);
    act(first, bytes)?;
    let mut left = len - bytes;
    if left <= PAGE {
        return if left == 0 { Ok(()) } else { act(page(second)?, left) };
    }
    if second % ENTRY != 0 {
        return Err(Status::OFFSET);
    }
    let (mut at, mut lists) = (second, 1);
    while left > 0 {
        let here = (PAGE - at % PAGE) / ENTRY;
        let wanted = left.div_ceil(PAGE);
        let count = wanted.min(here).min(CHUNK);
        let mut raw = [0; (ENTRY * CHUNK) as usize];
        let raw = raw.get_mut(..(count * ENTRY) as usize).unwrap_or_default();
        if !memory.read(at, raw) {
            return Err(Status::TRANSFER);
        }
        let entries = raw.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        // The last entry of a page leads to the next list, if there is more than it could name itself.
        let leads = count == here && wanted > here;
        let data = if leads { count - 1 } else { count };
        let mut next = at + count * ENTRY;
        for (index, entry) in entries.enumerate() {
            if index as u64 == data {
                lists += 1;
                if lists > LISTS {
                    return Err(Status::TRANSFER);
                }
                next = page(entry)?;
                break;
            }
            let bytes = left.min(PAGE);
            act(page(entry)?, bytes)?;
            left -= bytes;
        }
        at = next;
    }
    Ok(())
}

/// The address of a page.
fn page(entry: u64) -> Result<u64, Status> {
    if entry.is_multiple_of(PAGE) { Ok(entry) } else { Err(Status::OFFSET) }
}

/// Copies into the guest's memory.
///
/// # Errors
/// As [`each`]; some of the bytes may have moved.
pub fn scatter(prp: (u64, u64), bytes: &[u8], memory: &impl Memory) -> Result<(), Status> {
    let mut rest = bytes;
    each(prp, bytes.len() as u64, memory, |at, len| {
        let (part, after) = rest.split_at_checked(len as usize).ok_or(Status::TRANSFER)?;
        rest = after;
        if memory.write(at, part) { Ok(()) } else { Err(Status::TRANSFER) }
    })
}

/// Copies out of the guest's memory.
///
/// # Errors
/// As [`each`].
pub fn gather(prp: (u64, u64), into: &mut [u8], memory: &impl Memory) -> Result<(), Status> {
    let mut start = 0;
    each(prp, into.len() as u64, memory, |at, len| {
        let end = start + len as usize;
        let part = into.get_mut(start..end).ok_or(Status::TRANSFER)?;
        start = end;
        if memory.read(at, part) { Ok(()) } else { Err(Status::TRANSFER) }
    })
}
