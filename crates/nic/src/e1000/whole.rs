//! A packet at once: taken from the ring as it is, for who has a physical card finish it.
//!
//! Key type: [`Whole`]. [`E1000::transmit`] collects, cuts and sums in software, piece by piece, whatever a driver thinks up. What
//! drivers do all the time is simpler: all descriptors of a packet are there when the doorbell rings, and what the card is to do
//! makes sense. Such a packet is read off the ring ([`E1000::whole`]), its bytes are copied to where the physical card
//! finds them ([`E1000::gather`]), and its descriptors are done with ([`E1000::complete`]). Registers, descriptors and frames are then as
//! they would have been the other way (`tests/whole.rs`), but for what the packet before has left behind in the buffer, and for a packet that sends
//! the very descriptors that report it. Everything
//! else is `None`, and nothing has happened.
//!
//! Every descriptor is read once, and so is every byte: a guest that alters either meanwhile has sent what was read.

use super::E1000;
use super::packet::{Context, IXSM, TXSM};
use super::registers::reg;
use super::transmit::{DESCRIPTOR, command};
use crate::dma::Dma;
use crate::packets::{HEAD, Packets, Size};
use crate::{Budget, Offload};
use arrayvec::ArrayVec;

/// Most descriptors of a packet. Linux' drivers use one for a context, one for the headers, and one for each of 17 pages.
pub const MOST_DESCRIPTORS: usize = 24;
/// Descriptors that are read together: a context, and a packet of up to three.
const AHEAD: u32 = 4;
/// Longest packet.
const MAX_LEN: usize = 0xffff;

/// A descriptor, as it was read.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    lower: u32,
    upper: u32,
}

impl Descriptor {
    fn new(bytes: &[u8; DESCRIPTOR as usize]) -> Self {
        let words = u128::from_le_bytes(*bytes);
        Self { address: words as u64, lower: (words >> 64) as u32, upper: (words >> 96) as u32 }
    }

    const fn has(self, bits: u32) -> bool {
        self.lower & bits == bits
    }

    /// Of its buffer.
    const fn bytes(self) -> usize {
        (self.lower & 0xffff) as usize
    }

    const fn is_context(self) -> bool {
        self.lower & (command::DEXT | command::DATA) == command::DEXT
    }
}

/// A packet that lies whole in the ring.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Its descriptors and the contexts before them.
    descriptors: ArrayVec<Descriptor, MOST_DESCRIPTORS>,
    /// Contexts after them: without segmentation, and with it.
    plain: Context,
    segmentation: Context,
    /// Where it lies: the ring, and TDH.
    ring: u64,
    head: u32,
    len: usize,
    frames: usize,
    offload: Offload,
}

impl Whole {
    /// Adds the next descriptor. True if it was the last one; `None`: this is no packet that another card can finish.
    fn add(
        &mut self,
        bytes: &[u8; DESCRIPTOR as usize],
        first: &mut Option<Descriptor>,
        tags: bool,
    ) -> Option<bool> {
        let descriptor = Descriptor::new(bytes);
        self.descriptors.try_push(descriptor).ok()?;
        if descriptor.is_context() {
            let is_cut = descriptor.has(command::TSE);
            let context = if is_cut { &mut self.segmentation } else { &mut self.plain };
            // In mid-packet it would be the end of the one and the beginning of another.
            *context = first.is_none().then(|| Context::new(bytes))?;
            return Some(false);
        }
        let first = *first.get_or_insert(descriptor);
        let kind = command::DEXT | command::TSE;
        if (descriptor.lower ^ first.lower) & kind != 0 || tags && descriptor.has(command::VLE) {
            return None;
        }
        self.len += descriptor.bytes();
        if !descriptor.has(command::EOP) {
            return Some(false);
        }
        let (options, cut) = match first.has(command::DEXT) {
            true => ((first.upper >> 8) as u8, first.has(command::TSE)),
            false => (0, false),
        };
        let context = if cut { &self.segmentation } else { &self.plain };
        self.offload = context.offload(options & (IXSM | TXSM), cut.then_some(self.len))?;
        self.frames = self.offload.frames(self.len).filter(|_| (HEAD..=MAX_LEN).contains(&self.len))?;
        Some(true)
    }

    /// Its length in bytes, [`HEAD`] to 65,535.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Where its first [`HEAD`] bytes are, if they are in one piece.
    pub fn begins_at(&self) -> Option<u64> {
        let first = self.descriptors.iter().find(|one| !one.is_context())?;
        (first.bytes() >= HEAD).then_some(first.address)
    }

    /// The frames that it becomes, 1 to [`MOST_SEGMENTS`](crate::offload::MOST_SEGMENTS).
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// What is left to be done to it.
    pub const fn offload(&self) -> &Offload {
        &self.offload
    }
}

impl Packets for E1000 {
    type Whole = Whole;

    fn has_packets(&self) -> bool {
        self.transmitting()
    }

    fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<Whole> {
        let run = self.tx.run.filter(|_| self.tx.is_between_packets() && self.regs.transmitter_on())?;
        if self.loops_back() || !self.cable {
            return None;
        }
        let ring = self.regs.get(reg::TDLEN) / DESCRIPTOR as u32;
        let (head, tail) = (self.regs.get(reg::TDH), self.regs.get(reg::TDT));
        if [head, tail, run.start].iter().any(|place| *place >= ring) || head == tail {
            return None;
        }
        // A run goes no further than where it began.
        let distance = |to: u32| if to > head { to - head } else { ring - head + to };
        let mut left = distance(tail).min(distance(run.start)).min(MOST_DESCRIPTORS as u32);
        let base = self.regs.transmit_ring();
        let mut whole = Whole {
            descriptors: ArrayVec::new(),
            plain: self.tx.packet.plain,
            segmentation: self.tx.packet.segmentation,
            ring: base,
            head,
            len: 0,
            frames: 0,
            offload: Offload::default(),
        };
        let (mut first, mut place) = (None, head);
        loop {
            let count = AHEAD.min(left).min(ring - place);
            let mut bytes = [[0; DESCRIPTOR as usize]; AHEAD as usize];
            let block = bytes.get_mut(..count as usize).filter(|block| !block.is_empty())?;
            budget.bytes(block.as_flattened().len());
            let at = base.wrapping_add(DESCRIPTOR * u64::from(place));
            memory.read(at, block.as_flattened_mut()).ok()?;
            for bytes in block {
                if whole.add(bytes, &mut first, self.regs.vlan())? {
                    return Some(whole);
                }
            }
            left -= count;
            place = if place + count < ring { place + count } else { 0 };
        }
    }

    fn size(whole: &Whole) -> Size<'_> {
        Size { len: whole.len, frames: whole.frames, offload: &whole.offload }
    }

    fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        let mut at = 0;
        let mut asked = false;
        for descriptor in whole.descriptors.iter().filter(|one| !one.is_context()) {
            let len = descriptor.bytes();
            let Some(part) = into.get_mut(at..at + len) else { return false };
            budget.bytes(len);
            if memory.read(descriptor.address, part).is_err() {
                return false;
            }
            at += len;
            if at >= HEAD && !asked {
                asked = true;
                if !into.first_chunk().is_some_and(&mut *accept) {
                    return false;
                }
            }
        }
        asked
    }

    fn complete(&mut self, memory: &mut dyn Dma, whole: &Whole, head: &[u8; HEAD], budget: &mut Budget) {
        let Some(mut run) = self.tx.run else { return };
        let ring = self.regs.get(reg::TDLEN) / DESCRIPTOR as u32;
        let base = self.regs.transmit_ring();
        let mut place = self.regs.get(reg::TDH);
        for descriptor in &whole.descriptors {
            budget.step();
            self.line.delay_transmit |= descriptor.has(command::IDE);
            let address = base.wrapping_add(DESCRIPTOR * u64::from(place));
            run.causes |= self.report(address, descriptor.lower, descriptor.upper, memory);
            place = if place + 1 >= ring { 0 } else { place + 1 };
        }
        self.regs.set(reg::TDH, place);
        let packet = &mut self.tx.packet;
        (packet.plain, packet.segmentation) = (whole.plain, whole.segmentation);
        self.count_whole(whole, head, budget);
        self.tx.run = Some(run);
        if place == run.start {
            self.end_run(run);
        }
    }
}

impl E1000 {
    /// A packet is the next yet: its driver has neither moved the ring since nor switched the transmitter off.
    pub fn is_next(&self, whole: &Whole) -> bool {
        let place = (self.regs.transmit_ring(), self.regs.get(reg::TDH));
        let sends = self.tx.run.is_some() && self.tx.is_between_packets() && self.regs.transmitter_on();
        sends && place == (whole.ring, whole.head)
    }

    fn count_whole(&mut self, whole: &Whole, head: &[u8; HEAD], budget: &mut Budget) {
        let destination = head.first_chunk();
        let Some(segments) = whole.offload.segments else {
            budget.step();
            return self.count_sent(destination, whole.len, 1);
        };
        let (header, payload) = (usize::from(segments.header), usize::from(segments.payload));
        let before = whole.frames - 1;
        self.count_sent(destination, header + payload, before as u32);
        self.count_sent(destination, whole.len - before * payload, 1);
        (0..whole.frames).for_each(|_| budget.step());
        if segments.tcp && before > 0 {
            self.regs.count(reg::TSCTC, 1);
        }
    }
}
