//! Device files that another domain serves: what a guest asks for, and which of its memory that may reach.
//!
//! Key types: [`Declarations`] (kept by the hypervisor for each device), [`Request`] (read by whoever serves it), [`Lane`] (where both sides look). Numbers and layouts are in
//! [`sluice_hypercall::devfile`]. Neither side is believed: what does not decode is refused whole.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 3.1, 4.1.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod declarations;
mod lane;
mod request;

pub use declarations::{Declarations, Refused};
pub use lane::Lane;
pub use request::{Answer, Descriptor, Map, Operation, Position, Request, Taken};

use arrayvec::ArrayVec;
use sluice_hypercall::devfile::{
    DEVFILE_IN, DEVFILE_MAX_BYTES, DEVFILE_MAX_RANGES, DEVFILE_OUT, DEVFILE_RANGE_SIZE,
};

/// First address that is no program's: the hypervisor copies for processes, never for their kernel.
pub const USER_END: u64 = 1 << 47;

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 0x1000;

/// Ranges of an operation.
pub type Ranges = ArrayVec<Range, { DEVFILE_MAX_RANGES as usize }>;

/// Memory of a process that an operation may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address in the process.
    pub address: u64,
    /// Bytes, at least one.
    pub bytes: u32,
    /// It may be read.
    pub input: bool,
    /// It may be written.
    pub output: bool,
}

impl Range {
    /// Bytes of one in a list.
    pub const SIZE: usize = DEVFILE_RANGE_SIZE as usize;

    /// A range as it stands in a list; `None` if it is empty, not wholly a program's, or says no way or an unknown one.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk::<8>()?;
        let (length, ways) = rest.split_first_chunk::<4>()?;
        let (address, length) = (u64::from_le_bytes(*address), u32::from_le_bytes(*length));
        let ways = u32::from_le_bytes(ways.try_into().ok()?);
        let end = address.checked_add(length.into())?;
        if length == 0 || end > USER_END || ways == 0 || ways & !(DEVFILE_IN | DEVFILE_OUT) != 0 {
            return None;
        }
        let (input, output) = (ways & DEVFILE_IN != 0, ways & DEVFILE_OUT != 0);
        Some(Self { address, bytes: length, input, output })
    }

    /// A whole list; `None` if a range is none, or there are too many of them or too many bytes.
    pub fn decode_list(bytes: &[u8]) -> Option<Ranges> {
        let (entries, []) = bytes.as_chunks::<{ Self::SIZE }>() else { return None };
        let mut ranges = Ranges::new();
        for entry in entries {
            ranges.try_push(Self::decode(entry)?).ok()?;
        }
        let all: u64 = ranges.iter().map(|range| u64::from(range.bytes)).sum();
        (all <= DEVFILE_MAX_BYTES.into()).then_some(ranges)
    }

    /// Whether these bytes lie in it, which exist.
    pub fn holds(&self, address: u64, bytes: u32) -> bool {
        let Some(offset) = address.checked_sub(self.address) else { return false };
        offset.checked_add(bytes.into()).is_some_and(|end| end <= self.bytes.into())
    }
}
