//! A queue of the native face: indices, and descriptors that name pages of a pool.
//!
//! What is in the memory of the VIF, and where, is [`sluice_hypercall::vif`]'s. There are no addresses in it: what a driver writes is the number of
//! a page, and one that is not in its pool is a fault.

use crate::chain::{Chain, Memory};
use crate::frame::Frame;
use crate::offload::Header;
use core::sync::atomic::{Ordering, fence};
use sluice_hypercall::vif::{
    VIF_DESCRIPTOR, VIF_DESCRIPTOR_MORE, VIF_DOORBELL_WANTED, VIF_ENTRIES, VIF_OFFERED, VIF_OFFERED_ENTRY,
    VIF_OFFERED_RING, VIF_RECEIVED, VIF_RECEIVED_RING, VIF_SEND_RING, VIF_SENT, VIF_TO_SEND,
    VIF_WANTS_RECEIVED, VIF_WANTS_SENT,
};
use sluice_virtio::Fault;

/// Address of the pool in the memory of a native VIF: page n is n pages after it. The structure is at address 0.
pub const POOL: u64 = 1 << 32;
/// Bytes of a page.
pub const PAGE: u32 = 4096;

/// Bytes of a header that are in a descriptor: not the number of buffers.
const HEADER: usize = 10;
/// And of what is before it.
const PLACE: usize = VIF_DESCRIPTOR as usize - HEADER;

/// Which of a VIF's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

impl Side {
    /// Where the driver counts what it has handed over.
    const fn given(self) -> u64 {
        (match self {
            Self::Send => VIF_TO_SEND,
            Self::Receive => VIF_OFFERED,
        }) as u64
    }

    /// Where the engine counts what it has done with.
    const fn done(self) -> u64 {
        (match self {
            Self::Send => VIF_SENT,
            Self::Receive => VIF_RECEIVED,
        }) as u64
    }

    /// Where the driver says that it wants to hear of that.
    const fn wanted(self) -> u64 {
        (match self {
            Self::Send => VIF_WANTS_SENT,
            Self::Receive => VIF_WANTS_RECEIVED,
        }) as u64
    }
}

/// How far the engine has come with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    side: Side,
    /// Descriptors that it has done with, and that the driver knows to be.
    done: u16,
    shown: u16,
}

/// Address of an entry of a ring.
const fn entry(ring: u32, size: u32, index: u16) -> u64 {
    (ring + size * (index % VIF_ENTRIES) as u32) as u64
}

/// Address of a page of the pool.
fn page(number: u16) -> u64 {
    POOL + u64::from(number) * u64::from(PAGE)
}

impl Ring {
    /// Of a driver that has just started.
    pub const fn new(side: Side) -> Self {
        Self { side, done: 0, shown: 0 }
    }

    /// Descriptors that the driver has handed over.
    ///
    /// # Errors
    /// They are more than there are entries.
    pub fn waiting<M: Memory>(&self, memory: &M) -> Result<u16, Fault> {
        let waiting = memory.read_u16(self.side.given())?.wrapping_sub(self.done);
        // What the driver wrote before is read after.
        fence(Ordering::Acquire);
        if waiting > VIF_ENTRIES { Err(Fault) } else { Ok(waiting) }
    }

    /// Fills `chain` with the next frame of those that wait. Returns how many descriptors it has.
    ///
    /// # Errors
    /// It has too many or no end, is nowhere in the pool, or has no bytes in one.
    pub fn next<M: Memory>(&self, memory: &M, waiting: u16, chain: &mut Chain) -> Result<u16, Fault> {
        for nth in 0..waiting {
            let mut bytes = [0; VIF_DESCRIPTOR as usize];
            let at = entry(VIF_SEND_RING, VIF_DESCRIPTOR, self.done.wrapping_add(nth));
            memory.read(at, &mut bytes)?;
            let [n0, n1, l0, l1, f0, f1, rest @ ..] = bytes;
            let (address, len) =
                (page(u16::from_le_bytes([n0, n1])), u32::from(u16::from_le_bytes([l0, l1])));
            if !(1..=PAGE).contains(&len) || !memory.holds(address, len) {
                return Err(Fault);
            }
            if nth == 0 {
                let mut header = [0; Header::BYTES];
                header[..HEADER].copy_from_slice(&rest);
                chain.clear(Some(header));
            }
            if !chain.push(address, len) {
                return Err(Fault);
            }
            if u16::from_le_bytes([f0, f1]) & VIF_DESCRIPTOR_MORE == 0 {
                return Ok(nth + 1);
            }
        }
        Err(Fault)
    }

    /// It has done with so many descriptors. The driver sees it once that is shown.
    pub fn finish(&mut self, count: u16) {
        self.done = self.done.wrapping_add(count);
    }

    /// Puts a frame into offered pages. Returns whether there were enough for it, and how many were looked at; the driver sees the frame once that
    /// is shown.
    ///
    /// # Errors
    /// A page is not in the pool, or more are offered than there are entries.
    pub fn put<M: Memory>(&mut self, memory: &M, frame: &Frame<'_, M>) -> Result<(bool, u32), Fault> {
        let count = frame.len().div_ceil(PAGE);
        if u32::from(self.waiting(memory)?) < count {
            return Ok((false, 0));
        }
        let header = frame.header.bytes();
        for nth in 0..count {
            let index = self.done.wrapping_add(nth as u16);
            let number = memory.read_u16(entry(VIF_OFFERED_RING, VIF_OFFERED_ENTRY, index))?;
            let from = nth * PAGE;
            let len = (frame.len() - from).min(PAGE);
            frame.copy(from, memory, page(number), len)?;
            let more = if nth + 1 < count { VIF_DESCRIPTOR_MORE } else { 0 };
            let mut bytes = [0; VIF_DESCRIPTOR as usize];
            let place = [number, len as u16, more].map(u16::to_le_bytes);
            bytes[..PLACE].copy_from_slice(place.as_flattened());
            bytes[PLACE..].copy_from_slice(&header[..HEADER]);
            memory.write(entry(VIF_RECEIVED_RING, VIF_DESCRIPTOR, index), &bytes)?;
        }
        self.finish(count as u16);
        Ok((true, count))
    }

    /// Shows the driver what is done with. Returns how many descriptors that are, modulo 65,536.
    pub fn show<M: Memory>(&mut self, memory: &M) -> Result<u16, Fault> {
        if self.shown != self.done {
            fence(Ordering::Release);
            memory.write_u16(self.side.done(), self.done)?;
            self.shown = self.done;
            // The driver says what it wants to hear of, and then looks whether there is something; here it is the other way round.
            fence(Ordering::SeqCst);
        }
        Ok(self.shown)
    }

    /// Whether the driver wants to hear of what it has been shown after this number of descriptors.
    pub fn is_awaited<M: Memory>(&self, memory: &M, before: u16) -> Result<bool, Fault> {
        Ok(before != self.shown && memory.read_u16(self.side.wanted())? != 0)
    }

    /// Shows the driver what is done with. Returns whether it wants to hear of it.
    pub fn publish<M: Memory>(&mut self, memory: &M) -> Result<bool, Fault> {
        let before = self.shown;
        self.show(memory)?;
        self.is_awaited(memory, before)
    }

    /// Says whether the driver is to tell of what it hands over. After it was asked to, the caller looks once more.
    pub fn listen<M: Memory>(&self, memory: &M, wanted: bool) -> Result<(), Fault> {
        // Offered pages are looked for when there is a frame.
        if self.side == Side::Send {
            memory.write_u16(VIF_DOORBELL_WANTED.into(), wanted.into())?;
            fence(Ordering::SeqCst);
        }
        Ok(())
    }
}
