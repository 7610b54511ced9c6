//! Tables of physical region descriptors (PRD): where in memory a bus master moves data.
//!
//! A guest's table is read once, each entry in one copy, and what was read is translated into a table that
//! the guest cannot reach. What the guest writes to its own table afterwards reaches nobody.
//!
//! Source: SFF-8038i, section 1.2. Deviation: the physical bus master gets a table that ends with the
//! command's last byte even if the guest's would go on.

use sluice_memory::{Gpa, GuestMemory, PhysicalMemory};

/// A region cannot cross a multiple of this, nor can a table.
const BOUNDARY: u64 = 1 << 16;
/// Bytes of a descriptor.
const ENTRY: u64 = 8;
/// Descriptors that fit into a table.
pub const LONGEST: usize = (BOUNDARY / ENTRY) as usize;

/// A descriptor for the physical bus master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Host-physical address, below 4 GiB, even.
    pub base: u32,
    /// Bytes, even, 2 to 65,536.
    pub len: u32,
    /// It is the last.
    pub last: bool,
}

impl Region {
    /// As it stands in memory.
    pub const fn to_bytes(&self) -> [u8; 8] {
        // 65,536 bytes are written as 0.
        let length = self.len & 0xffff | if self.last { 1 << 31 } else { 0 };
        (self.base as u64 | (length as u64) << 32).to_le_bytes()
    }
}

/// Why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table is not at a multiple of four, or goes on beyond 64 KiB.
    Table,
    /// The table is not in the guest's memory.
    TableOutside,
    /// A region is at an odd address, or has an odd length.
    Odd,
    /// A region crosses a boundary of 64 KiB.
    Crosses,
    /// A region is not all in the guest's memory.
    Outside,
    /// Memory of the guest's that the bus master cannot address.
    High,
    /// The regions have fewer bytes than the command.
    Short,
    /// The translated table would have more entries than there is room for.
    Long,
}

/// Translates the table at `table` for a command of `bytes` bytes into `shadow`, and returns the entries used.
/// Nothing of `shadow` may be given to the bus master if it fails.
///
/// # Errors
/// See [`Refusal`].
pub fn translate<'a>(
    guest: &GuestMemory,
    memory: &impl PhysicalMemory,
    table: Gpa,
    bytes: u64,
    shadow: &'a mut [Region],
) -> Result<&'a [Region], Refusal> {
    let start = table.as_u64();
    if !start.is_multiple_of(4) {
        return Err(Refusal::Table);
    }
    let room = shadow.len().min(LONGEST);
    let (mut used, mut left, mut offset) = (0, bytes, 0);
    while left > 0 {
        if start % BOUNDARY + offset + ENTRY > BOUNDARY {
            return Err(Refusal::Table);
        }
        let mut raw = [0; ENTRY as usize];
        let at = start.checked_add(offset).ok_or(Refusal::TableOutside)?;
        guest.read(memory, Gpa::new(at), &mut raw).map_err(|_| Refusal::TableOutside)?;
        offset += ENTRY;
        let raw = u64::from_le_bytes(raw);
        let (base, last) = (raw & 0xffff_ffff, raw >> 63 != 0);
        let len = match raw >> 32 & 0xffff {
            0 => BOUNDARY,
            len => len,
        };
        if (base | len) & 1 != 0 {
            return Err(Refusal::Odd);
        }
        if base % BOUNDARY + len > BOUNDARY {
            return Err(Refusal::Crosses);
        }
        // All of the region must be the guest's, also what the command does not reach.
        guest.translate(Gpa::new(base), len).map_err(|_| Refusal::Outside)?;
        let len = len.min(left);
        for (hpa, piece) in guest.translate(Gpa::new(base), len).map_err(|_| Refusal::Outside)? {
            let (mut from, end) = (hpa.as_u64(), hpa.as_u64() + piece);
            if end > 1 << 32 {
                return Err(Refusal::High);
            }
            while from < end {
                let part = (BOUNDARY - from % BOUNDARY).min(end - from);
                if used >= room {
                    return Err(Refusal::Long);
                }
                shadow[used] = Region { base: from as u32, len: part as u32, last: false };
                used += 1;
                from += part;
            }
        }
        left -= len;
        if last && left > 0 {
            return Err(Refusal::Short);
        }
    }
    let shadow = &mut shadow[..used];
    if let Some(end) = shadow.last_mut() {
        end.last = true;
    }
    Ok(shadow)
}

#[cfg(test)]
mod tests;
