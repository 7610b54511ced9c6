//! What becomes of a guest's command for its namespace.

use crate::command::io;
use crate::{Command, Memory, Offer, PAGE, Status, prp};

/// Bytes of a range of Dataset Management.
const RANGE: usize = 16;
/// Ranges fit a page.
const RANGES: usize = PAGE as usize / RANGE;
/// Dataset Management: the blocks are not needed any more.
const DEALLOCATE: u32 = 1 << 2;
/// Write Zeroes: the blocks may be given back.
const GIVE_BACK: u32 = 1 << 25;
/// Read and Write: limited retry, and force unit access. The protection bits between them go with metadata, of which there are none; what
/// stands below is a hint.
const OPTIONS: u32 = 0b11 << 30;
const PROTECTION: u32 = 0b1111 << 26;

/// A page of the hypervisor's for a command's list of pages or ranges, which the physical disk does not read yet.
#[derive(Debug)]
pub struct List<'a> {
    /// The page.
    pub bytes: &'a mut [u8],
    /// Where the physical disk finds it.
    pub bus: u64,
}

/// The command that the physical disk gets for one of a guest's, but for its number. It names nothing that is not in the guest's range and in the guest's
/// memory as `memory` says now, whatever the guest changes afterwards: its list of pages is a copy in `list`.
///
/// # Errors
/// What the guest is told instead; the physical disk gets nothing.
pub fn vet(
    command: &Command,
    offer: &Offer,
    memory: &impl Memory,
    list: &mut List<'_>,
) -> Result<Command, Status> {
    if command.is_fused_or_listed() {
        return Err(Status::FIELD);
    }
    let everywhere = command.opcode() == io::FLUSH && command.namespace() == u32::MAX;
    if command.namespace() != 1 && !everywhere {
        return Err(Status::NAMESPACE);
    }
    let issue = Command::new(command.opcode(), offer.namespace());
    match command.opcode() {
        io::FLUSH => Ok(issue),
        io::READ | io::WRITE => {
            let options = command.0[12];
            let (first, blocks) = range(command, offer)?;
            let bytes = u64::from(blocks) << offer.block_shift();
            if options & PROTECTION != 0 || bytes > offer.most_bytes() {
                return Err(Status::FIELD);
            }
            let (one, two) = pages(command.prp(), bytes, memory, list)?;
            Ok(issue.with_prp(one, two).with_wide(10, first).with(12, options & OPTIONS | (blocks - 1)))
        }
        io::ZEROES if offer.has_zeroes() => {
            let options = command.0[12];
            let (first, blocks) = range(command, offer)?;
            if options & PROTECTION != 0 {
                return Err(Status::FIELD);
            }
            Ok(issue.with_wide(10, first).with(12, options & (OPTIONS | GIVE_BACK) | (blocks - 1)))
        }
        io::DATASET if offer.has_dataset() => {
            let count = ranges(command, offer, memory, list)?;
            // What else it says of the blocks is advice, which is not passed on.
            Ok(issue.with_prp(list.bus, 0).with(10, count as u32 - 1).with(11, command.0[11] & DEALLOCATE))
        }
        _ => Err(Status::OPCODE),
    }
}

/// The physical disk's first block, and how many.
fn range(command: &Command, offer: &Offer) -> Result<(u64, u32), Status> {
    let blocks = (command.0[12] & 0xffff) + 1;
    let first = offer.slice().translate(command.wide(10), blocks).map_err(|_| Status::RANGE)?;
    Ok((first, blocks))
}

/// What the physical disk is told for a guest's pages: the two entries, with the list that the second may lead to.
fn pages(
    named: (u64, u64),
    bytes: u64,
    memory: &impl Memory,
    list: &mut List<'_>,
) -> Result<(u64, u64), Status> {
    let (mut first, mut second, mut count) = (0, 0, 0);
    prp::each(named, bytes, memory, |at, len| {
        let bus = memory.bus(at, len).ok_or(Status::TRANSFER)?;
        match count {
            0 => first = bus,
            _ => {
                if count == 1 {
                    second = bus;
                }
                let place = list.bytes.as_chunks_mut().0.get_mut(count - 1).ok_or(Status::FIELD)?;
                *place = bus.to_le_bytes();
            }
        }
        count += 1;
        Ok(())
    })?;
    Ok((first, if count > 2 { list.bus } else { second }))
}

/// Copies the ranges of Dataset Management, translated. Returns how many.
fn ranges(
    command: &Command,
    offer: &Offer,
    memory: &impl Memory,
    list: &mut List<'_>,
) -> Result<usize, Status> {
    let count = (command.0[10] & 0xff) as usize + 1;
    let bytes = list.bytes.get_mut(..count.min(RANGES) * RANGE).ok_or(Status::FIELD)?;
    prp::gather(command.prp(), bytes, memory)?;
    for range in bytes.as_chunks_mut::<RANGE>().0 {
        let word = u128::from_le_bytes(*range);
        let (blocks, first) = ((word >> 32) as u32, (word >> 64) as u64);
        let first = offer.slice().translate(first, blocks).map_err(|_| Status::RANGE)?;
        // Attributes are advice.
        *range = (u128::from(blocks) << 32 | u128::from(first) << 64).to_le_bytes();
    }
    Ok(count)
}
