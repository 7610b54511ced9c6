//! Chains of buffers, as far as a frame needs them.

use crate::offload::Header;
use arrayvec::ArrayVec;
use sluice_virtio::{Buffer, Fault, Queue, buffers};

/// Most pieces of a frame that is sent: Linux sends none of more than 19.
pub(crate) const MAX_PIECES: usize = 32;

/// Memory of a guest, by the addresses that its driver uses.
pub trait Memory: sluice_virtio::Memory {
    /// Copies from here to another guest's memory, or elsewhere in this one's.
    ///
    /// # Errors
    /// It is not all memory of the guests'.
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault>;

    /// Whether a range is all memory of the guest's. It stays so for as long as the VIF is there.
    fn holds(&self, address: u64, len: u32) -> bool;
}

/// A chain from a send queue: a header and a frame.
///
/// It is too large to be handed from one to the other: who looks at many has one, which is filled again for each.
#[derive(Default)]
pub(crate) struct Chain {
    pieces: ArrayVec<(u64, u32), MAX_PIECES>,
    /// The header, if it is not in front of the frame.
    header: Option<[u8; Header::BYTES]>,
    /// Bytes of the frame.
    len: u32,
}

impl Chain {
    /// Fills it with the chain at `head`. Returns whether it is a frame that can be sent. All of it is memory of the sender's, so that an error on
    /// its way to somebody is not the sender's.
    pub fn read<M: Memory>(&mut self, queue: &Queue, memory: &M, head: u16) -> Result<bool, Fault> {
        self.clear(None);
        for buffer in buffers(queue, memory, head) {
            let Buffer { address, len, writable } = buffer?;
            if writable || !memory.holds(address, len) {
                return Err(Fault);
            }
            if !self.push(address, len) {
                return Ok(false);
            }
        }
        let len = self.len.checked_sub(Header::BYTES as u32);
        self.len = len.unwrap_or(0);
        Ok(len.is_some())
    }

    /// Nothing, behind a header that is not in front of the frame.
    pub fn clear(&mut self, header: Option<[u8; Header::BYTES]>) {
        self.pieces.clear();
        (self.header, self.len) = (header, 0);
    }

    /// Adds a piece. False: it would be too much.
    pub fn push(&mut self, address: u64, len: u32) -> bool {
        let sum = self.len.checked_add(len);
        self.len = sum.unwrap_or(self.len);
        sum.is_some() && self.pieces.try_push((address, len)).is_ok()
    }

    /// Bytes in front of the frame.
    fn before(&self) -> u64 {
        if self.header.is_some() { 0 } else { Header::BYTES as u64 }
    }

    /// Pieces of memory that it is in.
    pub fn pieces(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// Bytes of the frame.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Calls `each` with address and length of the pieces of a range of the chain.
    fn walk(
        &self,
        from: u64,
        len: u32,
        mut each: impl FnMut(u64, u32) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (mut skip, mut left) = (from, len);
        for &(address, bytes) in &self.pieces {
            let Some(there) = u64::from(bytes).checked_sub(skip) else {
                skip -= u64::from(bytes);
                continue;
            };
            let part = u32::try_from(there).unwrap_or(u32::MAX).min(left);
            if part != 0 {
                each(address.checked_add(skip).ok_or(Fault)?, part)?;
            }
            (skip, left) = (0, left - part);
            if left == 0 {
                return Ok(());
            }
        }
        if left == 0 { Ok(()) } else { Err(Fault) }
    }

    /// Reads the header, and the beginning of the frame.
    pub fn start<M: Memory>(&self, memory: &M, into: &mut [u8]) -> Result<(), Fault> {
        let Some(header) = &self.header else { return self.read_from(memory, 0, into) };
        let (first, frame) = into.split_first_chunk_mut().ok_or(Fault)?;
        *first = *header;
        self.read_from(memory, 0, frame)
    }

    /// Reads a range of the frame.
    pub fn read_at<M: Memory>(&self, memory: &M, from: u32, into: &mut [u8]) -> Result<(), Fault> {
        self.read_from(memory, u64::from(from) + self.before(), into)
    }

    fn read_from<M: Memory>(&self, memory: &M, from: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut rest = into;
        self.walk(from, rest.len() as u32, |address, bytes| {
            let (part, after) =
                core::mem::take(&mut rest).split_at_mut_checked(bytes as usize).ok_or(Fault)?;
            rest = after;
            memory.read(address, part)
        })
    }

    /// Copies a range of the frame to another guest.
    pub fn copy<M: Memory>(&self, memory: &M, from: u32, other: &M, to: u64, len: u32) -> Result<(), Fault> {
        let mut done = 0;
        self.walk(u64::from(from) + self.before(), len, |address, bytes| {
            memory.copy(address, other, to.checked_add(done).ok_or(Fault)?, bytes)?;
            done += u64::from(bytes);
            Ok(())
        })
    }
}
