//! Sending: the four descriptors of C mode, and the C+ descriptor ring.
//!
//! Sources: RTL8139C(L) data sheet 1.4, sections 5.5 and 7; RTL8139C+(L) data sheet 1.6, section 6.2 (transmit
//! descriptors). Deviations: see the crate's card.

use super::MIN_FRAME;
use super::offload::{LargeSend, Plan};
use super::registers::{Interrupt, TransmitStatus};
use super::{Rtl8139, offload};
use crate::Budget;
use crate::dma::{BusMaster, Dma};

/// Bytes of a C+ frame before segmentation; what descriptors name beyond is left out.
pub const ASSEMBLY_LEN: usize = 0x1_0000;
/// Longest frame that [`Rtl8139::transmit`] returns.
pub const MAX_SENT: usize = ASSEMBLY_LEN + TAG_LEN;
/// Bytes of a VLAN tag.
const TAG_LEN: usize = 4;
/// Bytes of the two addresses, after which a tag goes.
const ADDRESSES: usize = 12;
/// Descriptors of the C+ transmit ring, and how many the card takes for one poll.
pub(super) const RING: u8 = 64;
/// Bytes of a C+ descriptor.
pub(super) const DESCRIPTOR: u64 = 16;

/// Descriptor: the card's.
pub(super) const OWN: u32 = 1 << 31;
/// Descriptor: the last of its ring.
pub(super) const END_OF_RING: u32 = 1 << 30;
/// Descriptor: first of a frame.
pub(super) const FIRST: u32 = 1 << 29;
/// Descriptor: last of a frame.
pub(super) const LAST: u32 = 1 << 28;
/// Bits of the first word that tell of errors after sending.
pub(super) const ERRORS: u32 = 1 << 25 | 1 << 23 | 1 << 22 | 1 << 21 | 1 << 20;
/// Second word: put a VLAN tag in.
pub(super) const INSERT_TAG: u32 = 1 << 17;

/// A C+ descriptor as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) status: u32,
    pub(super) vlan: u32,
    pub(super) buffer: u64,
}

impl Descriptor {
    /// `None` if it cannot be read.
    pub(super) fn read(address: u64, bus: &mut BusMaster<'_>) -> Option<Self> {
        let mut bytes = [0; DESCRIPTOR as usize];
        if !bus.read(address, &mut bytes) {
            return None;
        }
        Some(Self::new(&bytes))
    }

    /// Of its bytes.
    pub(super) const fn new(bytes: &[u8; DESCRIPTOR as usize]) -> Self {
        let all = u128::from_le_bytes(*bytes);
        Self { status: all as u32, vlan: (all >> 32) as u32, buffer: (all >> 64) as u64 }
    }
}

/// What writes have asked for and is not done yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Tries at the next descriptor of C mode.
    kicks: u8,
    /// Descriptors that the C+ transmitter may still take.
    polls: u8,
    /// It took one: TOK is due.
    taken: bool,
    /// Bytes put together of a C+ frame.
    assembled: usize,
    /// The assembled frame goes out in segments, this one next, each with this tag.
    segments: Option<(LargeSend, Option<[u8; 2]>)>,
}

impl Work {
    /// TSD was written.
    pub(super) const fn kick(&mut self) {
        self.kicks = self.kicks.saturating_add(1);
    }

    /// TPPoll was written.
    pub(super) const fn poll(&mut self) {
        self.polls = RING;
    }

    /// Descriptors that the C+ transmitter may still take.
    pub(super) const fn polls(&self) -> u8 {
        self.polls
    }

    /// The C+ transmitter looks at its next descriptor next, which begins a packet.
    pub(super) const fn is_between_packets(&self) -> bool {
        self.polls > 0 && self.kicks == 0 && self.assembled == 0 && self.segments.is_none()
    }

    /// The C+ transmitter found a descriptor that is not the card's.
    pub(super) const fn stop_polling(&mut self) {
        self.polls = 0;
    }

    /// The C+ transmitter took so many descriptors.
    pub(super) const fn take(&mut self, descriptors: u8) {
        self.polls = self.polls.saturating_sub(descriptors);
        self.taken = true;
    }

    /// A reset stops everything, but what was put together stays.
    pub(super) const fn abort(&mut self) {
        *self = Self { kicks: 0, polls: 0, taken: false, segments: None, ..*self };
    }
}

enum Step {
    /// Nothing is left to do.
    Idle,
    /// No frame came of it.
    Done,
    /// A frame of this length is in `outgoing`.
    Frame(usize),
}

impl Rtl8139 {
    /// The next frame that goes out, without CRC; to be called while the card is [`Self::busy`]. `None`: none is left, or
    /// the budget is spent. Frames looped back go to the receiver and are not returned.
    pub fn transmit(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<&[u8]> {
        while !budget.is_spent() {
            match self.step(memory, budget) {
                Step::Idle => return None,
                Step::Frame(len) if len > 0 && self.link() => {
                    if !self.regs.loopback() {
                        return self.outgoing.get(..len);
                    }
                    budget.bytes(len);
                    self.loop_back(len, memory);
                }
                Step::Frame(_) | Step::Done => {}
            }
        }
        None
    }

    /// Sending is not done: [`Self::transmit`] has work.
    pub const fn busy(&self) -> bool {
        let Work { kicks, polls, taken, segments, .. } = &self.work;
        *kicks > 0 || *polls > 0 || *taken || segments.is_some()
    }

    /// Part of a C+ frame is in the card, and the rest is not.
    pub const fn assembling(&self) -> bool {
        self.work.assembled > 0
    }

    fn step(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Step {
        if !self.busy() {
            return Step::Idle;
        }
        budget.step();
        if let Some((segments, tag)) = &mut self.work.segments {
            let size = segments.build(&self.assembly, room_for_tag(&mut self.outgoing, *tag));
            let Some(size) = size else {
                self.work.segments = None;
                return Step::Done;
            };
            budget.bytes(size);
            return Step::Frame(insert_tag(&mut self.outgoing, size, *tag));
        }
        if self.work.kicks > 0 {
            self.work.kicks -= 1;
            return self.send_descriptor(memory, budget);
        }
        if self.work.polls > 0 {
            self.work.polls -= 1;
            return self.poll_descriptor(memory, budget);
        }
        if core::mem::take(&mut self.work.taken) {
            self.regs.isr |= Interrupt::SENT.bits();
        }
        Step::Idle
    }

    /// C mode: the next of the four descriptors, if the driver gave it to the card.
    fn send_descriptor(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Step {
        let next = usize::from(self.regs.next_tsd & 3);
        let (Some(status), Some(address)) = (self.regs.tsd.get_mut(next), self.regs.tsad.get(next)) else {
            return Step::Done;
        };
        if self.regs.cr & super::registers::Command::TRANSMIT.bits() == 0
            || *status & TransmitStatus::OWN.bits() != 0
        {
            return Step::Done;
        }
        let size = (*status & 0x1fff) as usize;
        budget.bytes(size);
        *status |= (TransmitStatus::OWN | TransmitStatus::SENT).bits();
        let done = match self.outgoing.get_mut(..size) {
            Some(frame) => BusMaster::new(memory, &mut self.refused).read(u64::from(*address), frame),
            None => true,
        };
        self.check(done);
        self.regs.next_tsd = (next as u8 + 1) & 3;
        self.regs.isr |= Interrupt::SENT.bits();
        Step::Frame(size)
    }

    /// C+ mode: the next descriptor of the ring, if the driver gave it to the card.
    fn poll_descriptor(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Step {
        let regs = &mut self.regs;
        if !regs.transmitting() || !regs.sends_by_descriptor() {
            self.work.polls = 0;
            return Step::Done;
        }
        let at = regs.tnpds().wrapping_add(DESCRIPTOR.wrapping_mul(regs.next_send.into()));
        let mut bus = BusMaster::new(memory, &mut self.refused);
        let descriptor = Descriptor::read(at, &mut bus);
        let Some(Descriptor { status, vlan, buffer }) = descriptor.filter(|it| it.status & OWN != 0) else {
            self.check(descriptor.is_some());
            self.work.polls = 0;
            return Step::Done;
        };
        if status & FIRST != 0 {
            self.work.assembled = 0;
        }
        let room = self.assembly.get_mut(self.work.assembled..).unwrap_or(&mut []);
        let len = room.len().min((status & 0xffff) as usize);
        budget.bytes(len);
        let mut done = true;
        if let Some(part @ [_, ..]) = room.get_mut(..len) {
            done = bus.read(buffer, part);
        }
        self.work.assembled = self.work.assembled.saturating_add(len);
        regs.next_send = match regs.next_send.wrapping_add(1) {
            next if status & END_OF_RING == 0 && next < u32::from(RING) => next,
            _ => 0,
        };
        done &= bus.write(at, &(status & !OWN & !ERRORS).to_le_bytes());
        self.check(done);
        self.work.taken = true;
        if status & LAST != 0 { self.send_assembled(status, vlan, budget) } else { Step::Done }
    }

    /// A C+ frame is complete: checksums, segments, tag as its last descriptor says.
    fn send_assembled(&mut self, status: u32, vlan: u32, budget: &mut Budget) -> Step {
        let size = core::mem::take(&mut self.work.assembled);
        budget.bytes(size);
        let tag = (vlan & INSERT_TAG != 0).then_some([vlan as u8, (vlan >> 8) as u8]);
        self.regs.tally.sent = self.regs.tally.sent.wrapping_add(1);
        let Some(frame) = self.assembly.get_mut(..size) else { return Step::Done };
        match offload::plan(frame, status) {
            Plan::Segments(segments) => {
                self.work.segments = Some((segments, tag));
                Step::Done
            }
            Plan::Whole => {
                let to = room_for_tag(&mut self.outgoing, tag);
                let len = size.min(to.len());
                if let (Some(to), Some(from)) = (to.get_mut(..len), frame.get(..len)) {
                    to.copy_from_slice(from);
                }
                Step::Frame(insert_tag(&mut self.outgoing, size, tag))
            }
        }
    }

    fn loop_back(&mut self, len: usize, memory: &mut dyn Dma) {
        if !self.has_room() {
            return;
        }
        let mut outgoing = core::mem::take(&mut self.outgoing);
        if let Some(padding) = outgoing.get_mut(len..MIN_FRAME) {
            padding.fill(0);
        }
        if let Some(frame) = outgoing.get(..len.max(MIN_FRAME)) {
            let _ = self.receive(frame, memory);
        }
        self.outgoing = outgoing;
    }
}

/// Where a frame is to be put so that its tag fits in.
fn room_for_tag(outgoing: &mut [u8], tag: Option<[u8; 2]>) -> &mut [u8] {
    outgoing.get_mut(if tag.is_some() { TAG_LEN } else { 0 }..).unwrap_or(&mut [])
}

/// Puts the tag into a frame of this size, and gives its new size.
fn insert_tag(outgoing: &mut [u8], size: usize, tag: Option<[u8; 2]>) -> usize {
    let Some([low, high]) = tag else { return size };
    if size < ADDRESSES {
        // Not even addresses: it goes out as it is.
        outgoing.copy_within(TAG_LEN..TAG_LEN + size, 0);
        return size;
    }
    outgoing.copy_within(TAG_LEN..TAG_LEN + ADDRESSES, 0);
    let place = outgoing.iter_mut().skip(ADDRESSES);
    place.zip([0x81, 0x00, low, high]).for_each(|(to, from)| *to = from);
    size + TAG_LEN
}
