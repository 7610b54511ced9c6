//! Receiving: filters and the descriptor ring.
//!
//! Source: manual 317453, section 3.2 (ring), chapter 9 (VLAN), section 13.5 (filters); behaviour as QEMU's
//! card shows it. Quirks kept: checksums are never checked (IXSM is set); the CRC counts in the length but is
//! not stored; nothing is received for a second after RCTL is written; descriptors without a buffer are used
//! up, RDT or not; RDH beyond the ring is followed for one descriptor; RCTL.MPE lets broadcasts pass, too;
//! what the multicast table lets pass counts as multicast, and frames count as multicast or broadcast even if
//! there is no room for them. Deviation: of descriptors without a buffer at most [`SKIPPED`] are used up for
//! a frame, then it is lost as if the ring had been gone through.

use super::E1000;
use super::phy::MILLISECOND;
use super::registers::{Cause, Receive, reg};
use super::transmit::DESCRIPTOR;
use crate::Budget;
use crate::dma::{BusMaster, Dma};

/// Most descriptors without a buffer that one frame uses up.
pub const SKIPPED: u32 = 256;
/// Shorter frames are padded to this.
const MIN_FRAME: usize = 60;
/// Longest frame, without CRC, if RCTL.LPE is clear; a VLAN tag always fits.
const MAX_FRAME: usize = 1522;
/// Longest frame at all.
const MAX_LONG_FRAME: usize = 16384;
/// How long nothing is received after RCTL was written, in nanoseconds.
const SETTLING: u64 = 1000 * MILLISECOND;

/// Descriptor status: done.
const DD: u8 = 1 << 0;
/// Last of a frame.
const EOP: u8 = 1 << 1;
/// Checksums were not checked.
const IXSM: u8 = 1 << 2;
/// A VLAN tag was stripped.
const VP: u8 = 1 << 3;
/// Where what the card writes of a descriptor begins.
const REPORT: u64 = 8;

/// What became of a frame offered to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// In memory, RXT0 raised.
    Stored,
    /// Not for this card, or too long.
    Filtered,
    /// No descriptor is free, or RCTL was just written; the sender may try again later.
    Full,
    /// The receiver is off or the link is down.
    Stopped,
    /// It needs more descriptors than are free: lost and counted, RXO raised.
    Lost,
}

/// What the filters say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    Rejects,
    Passes,
    /// And is counted here, whether or not there is room for it.
    PassesAs(u32),
}

/// A descriptor: where its buffer is; then length (16 bits), checksum (16), status (8), errors (8), and special (16), the lowest first.
#[derive(Clone, Copy)]
struct Descriptor {
    buffer: u64,
    rest: u64,
}

impl Descriptor {
    const STATUS: u32 = 32;
    const TAG: u32 = 48;

    const fn new(bytes: [u8; DESCRIPTOR as usize]) -> Self {
        let words = u128::from_le_bytes(bytes);
        Self { buffer: words as u64, rest: (words >> 64) as u64 }
    }

    /// Writes what has become of the one at `base`: all of it at once, so that a driver that sees DD sees the rest.
    fn report(self, bus: &mut BusMaster<'_>, base: u64) {
        bus.write(base.wrapping_add(REPORT), &self.rest.to_le_bytes());
    }

    const fn status(self) -> u8 {
        (self.rest >> Self::STATUS) as u8
    }

    const fn set_status(&mut self, status: u8) {
        self.rest = self.rest & !(0xff << Self::STATUS) | (status as u64) << Self::STATUS;
    }

    const fn set_length(&mut self, length: u16) {
        self.rest = self.rest & !0xffff | length as u64;
    }

    const fn set_tag(&mut self, tag: u16) {
        self.rest = self.rest & !(0xffff << Self::TAG) | (tag as u64) << Self::TAG;
    }
}

/// A frame as it is stored: without its VLAN tag if that is stripped.
#[derive(Clone, Copy)]
struct Stored<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    tag: Option<u16>,
}

impl<'a> Stored<'a> {
    fn new(frame: &'a [u8], strip: bool) -> Self {
        match (strip, frame.split_at_checked(12)) {
            (true, Some((head, [_, _, t0, t1, tail @ ..]))) => {
                Self { head, tail, tag: Some(u16::from_be_bytes([*t0, *t1])) }
            }
            _ => Self { head: frame, tail: &[], tag: None },
        }
    }

    const fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Writes `len` bytes from `from` on to `address`.
    fn store(&self, bus: &mut BusMaster<'_>, address: u64, from: usize, len: usize) {
        let split = self.head.len();
        let head = self.head.get(from..(from + len).min(split)).unwrap_or(&[]);
        let start = from.max(split) - split;
        let tail = self.tail.get(start..(from + len).max(split) - split).unwrap_or(&[]);
        let mut address = address;
        for part in [head, tail] {
            if !part.is_empty() {
                bus.write(address, part);
            }
            address = address.wrapping_add(part.len() as u64);
        }
    }
}

impl E1000 {
    /// RCTL written.
    pub(super) fn control_receiver(&mut self, value: u32) {
        self.regs.set(reg::RCTL, value);
        self.receive_from = Some((self.now / MILLISECOND * MILLISECOND).saturating_add(SETTLING));
    }

    /// The free descriptors have room for this many bytes, by the card's own reckoning.
    fn has_room(&self, len: u32) -> bool {
        let (head, tail) = (self.regs.get(reg::RDH), self.regs.get(reg::RDT));
        let size = self.regs.buffer_size();
        if len <= size {
            return head != tail;
        }
        let around = if head > tail { self.regs.get(reg::RDLEN) / DESCRIPTOR as u32 } else { 0 };
        // RDH beyond the ring makes this a huge number, not a negative one.
        let free = around.wrapping_add(tail).wrapping_sub(head);
        head != tail && len <= free.wrapping_mul(size)
    }

    /// The receiver is on, the link is up and a descriptor is free. The owner also asks whether bus mastering is on.
    pub fn can_receive(&self) -> bool {
        self.receiving() && self.receive_from.is_none() && self.has_room(1)
    }

    fn receiving(&self) -> bool {
        self.regs.link_up() && self.regs.receive().contains(Receive::ENABLE)
    }

    /// The frame carries a tag of the type in VET.
    fn is_tagged(&self, frame: &[u8]) -> bool {
        frame.get(12..14).is_some_and(|kind| kind == (self.regs.get(reg::VET) as u16).to_be_bytes())
    }

    /// RCTL's filters, the addresses, the multicast table and the VLAN table let this frame pass.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        self.filter(frame) != Filter::Rejects
    }

    fn filter(&self, frame: &[u8]) -> Filter {
        let Some(destination) = frame.first_chunk::<6>() else { return Filter::Rejects };
        let control = self.regs.receive();
        if control.contains(Receive::VLAN_FILTER) && self.is_tagged(frame) {
            let tag = frame.get(14..16).map_or(0, |tag| u32::from(tag[0]) << 8 | u32::from(tag[1]));
            let row = self.regs.get(reg::VFTA + (tag >> 5 & 0x7f) * 4);
            if row >> (tag & 31) & 1 == 0 {
                return Filter::Rejects;
            }
        }
        let group = destination[0] & 1 != 0;
        if control.contains(Receive::UNICAST) && !group {
            Filter::Passes
        } else if control.contains(Receive::MULTICAST) && group {
            Filter::PassesAs(reg::MPRC)
        } else if control.contains(Receive::BROADCAST) && *destination == [0xff; 6] {
            Filter::PassesAs(reg::BPRC)
        } else if self.is_own(*destination) {
            Filter::Passes
        } else if self.is_in_table(*destination) {
            Filter::PassesAs(reg::MPRC)
        } else {
            Filter::Rejects
        }
    }

    /// One of the sixteen receive addresses.
    fn is_own(&self, [d0, d1, d2, d3, d4, d5]: [u8; 6]) -> bool {
        const VALID: u32 = 1 << 31;
        const LAST: u32 = 0xffff;
        let (low, high) = (u32::from_le_bytes([d0, d1, d2, d3]), u32::from_le_bytes([d4, d5, 0, 0]) | VALID);
        (0..16).any(|entry| {
            self.regs.get(reg::RAL + entry * 8) == low
                && self.regs.get(reg::RAH + entry * 8) & (VALID | LAST) == high
        })
    }

    /// Twelve bits of the address, chosen by RCTL.MO, select a bit of the multicast table. It holds for all addresses.
    fn is_in_table(&self, destination: [u8; 6]) -> bool {
        let shift = [4, 3, 2, 0][(self.regs.get(reg::RCTL) >> 12 & 3) as usize];
        let hash = u32::from(u16::from_le_bytes([destination[4], destination[5]])) >> shift & 0xfff;
        self.regs.get(reg::MTA + (hash >> 5) * 4) >> (hash & 31) & 1 != 0
    }

    /// Offers a frame (without CRC) to the receiver. A frame is stored whole or not at all, whatever is left of `budget`: ask
    /// before.
    pub fn receive(&mut self, memory: &mut dyn Dma, frame: &[u8], budget: &mut Budget) -> Reception {
        if !self.receiving() {
            return Reception::Stopped;
        }
        if !self.can_receive() {
            return Reception::Full;
        }
        let mut padded = [0; MIN_FRAME];
        let mut frame = frame;
        if let Some(start) = padded.get_mut(..frame.len()).filter(|start| start.len() < MIN_FRAME) {
            start.copy_from_slice(frame);
            frame = &padded;
        }
        if self.is_oversized(frame.len()) {
            self.regs.count(reg::ROC, 1);
            return Reception::Filtered;
        }
        match self.filter(frame) {
            Filter::Rejects => return Reception::Filtered,
            Filter::Passes => {}
            Filter::PassesAs(counter) => self.regs.count(counter, 1),
        }
        let stored = Stored::new(frame, self.regs.vlan() && self.is_tagged(frame));
        let crc = if self.regs.receive().contains(Receive::STRIP_CRC) { 0 } else { 4 };
        let total = stored.len() + crc;
        let is_stored = self.fill_one(&stored, total, memory, budget)
            || self.has_room(total as u32) && self.fill_ring(stored, total, memory, budget);
        if !is_stored {
            self.regs.count(reg::RNBC, 1);
            self.regs.count(reg::MPC, 1);
            self.raise(Cause::OVERRUN);
            return Reception::Lost;
        }
        self.count_received(stored.len(), total);
        self.raise(Cause::RECEIVED | self.threshold());
        Reception::Stored
    }

    fn is_oversized(&self, len: usize) -> bool {
        let control = self.regs.receive();
        let most = if control.contains(Receive::LONG) { MAX_LONG_FRAME } else { MAX_FRAME };
        len > most && !control.contains(Receive::STORE_BAD)
    }

    /// Puts the frame into the next buffer as [`Self::fill_ring`] does, if it fits there whole and nothing is out of the ordinary: so
    /// it is with nearly all. `false`: it is not, and nothing has happened.
    fn fill_one(
        &mut self,
        frame: &Stored<'_>,
        total: usize,
        memory: &mut dyn Dma,
        budget: &mut Budget,
    ) -> bool {
        let head = self.regs.get(reg::RDH);
        let after = head + 1;
        let last = self.regs.get(reg::RDLEN) / DESCRIPTOR as u32;
        if frame.tag.is_some() || total > self.regs.buffer_size() as usize || after >= last {
            return false;
        }
        let base = self.regs.receive_ring().wrapping_add(DESCRIPTOR * u64::from(head));
        let mut bytes = [0; DESCRIPTOR as usize];
        self.fetch(memory, base, &mut bytes);
        let mut descriptor = Descriptor::new(bytes);
        if descriptor.buffer == 0 {
            return false;
        }
        budget.step();
        budget.bytes(total);
        descriptor.set_tag(0);
        descriptor.set_length(total as u16);
        descriptor.set_status(descriptor.status() | DD | EOP | IXSM);
        let mut bus = BusMaster::new(memory, &mut self.refused);
        bus.write(descriptor.buffer, frame.head);
        descriptor.report(&mut bus, base);
        self.regs.set(reg::RDH, after);
        true
    }

    /// Puts the frame into as many buffers as it needs. `false`: the ring ended first.
    fn fill_ring(
        &mut self,
        frame: Stored<'_>,
        total: usize,
        memory: &mut dyn Dma,
        budget: &mut Budget,
    ) -> bool {
        budget.bytes(total);
        let size = self.regs.buffer_size() as usize;
        let start = self.regs.get(reg::RDH);
        let mut skipped = 0;
        let mut done = 0;
        loop {
            let piece = (total - done).min(size);
            let head = self.regs.get(reg::RDH);
            let base = self.regs.receive_ring().wrapping_add(DESCRIPTOR * u64::from(head));
            let mut bytes = [0; DESCRIPTOR as usize];
            budget.step();
            self.fetch(memory, base, &mut bytes);
            let mut bus = BusMaster::new(memory, &mut self.refused);
            let mut descriptor = Descriptor::new(bytes);
            descriptor.set_tag(frame.tag.unwrap_or(0));
            let mut status = descriptor.status() & !DD;
            if descriptor.buffer != 0 {
                let part = piece.min(frame.len().saturating_sub(done));
                frame.store(&mut bus, descriptor.buffer, done, part);
                done += piece;
                descriptor.set_length(piece as u16);
                status = if done >= total { status | EOP | IXSM } else { status & !EOP };
            } else {
                skipped += 1;
            }
            descriptor.set_status(status | DD | if frame.tag.is_some() { VP } else { 0 });
            descriptor.report(&mut bus, base);
            let descriptors = self.regs.get(reg::RDLEN) / DESCRIPTOR as u32;
            let head = head.wrapping_add(1);
            let head = if head >= descriptors { 0 } else { head };
            self.regs.set(reg::RDH, head);
            if head == start || start >= descriptors || skipped == SKIPPED {
                return false;
            }
            if done >= total {
                return true;
            }
        }
    }

    /// RXDMT0 if few descriptors are left: a half, a quarter or an eighth of the ring, by RCTL.RDMTS.
    fn threshold(&self) -> Cause {
        let (head, tail) = (self.regs.get(reg::RDH), self.regs.get(reg::RDT));
        let len = self.regs.get(reg::RDLEN);
        let around = if tail < head { len / DESCRIPTOR as u32 } else { 0 };
        let free = tail.wrapping_add(around).wrapping_sub(head);
        let shift = (self.regs.get(reg::RCTL) >> 8 & 3) + 1;
        if u64::from(free) * DESCRIPTOR <= u64::from(len >> shift) {
            Cause::THRESHOLD
        } else {
            Cause::empty()
        }
    }

    fn count_received(&mut self, len: usize, total: usize) {
        self.regs.count_length(reg::PRC64, total as u32, 1);
        self.regs.count(reg::TPR, 1);
        self.regs.count(reg::GPRC, 1);
        self.regs.count_octets(reg::TORL, len as u64 + 4);
        self.regs.count_octets(reg::GORCL, len as u64 + 4);
    }
}
