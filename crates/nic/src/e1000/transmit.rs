//! Sending: the descriptor ring. What becomes of a packet on its way is in `packet.rs`.
//!
//! A doorbell (TDT or TCTL) only starts a run; [`E1000::transmit`] carries it on, a frame or a [`Budget`] of work at a
//! time, so that no access takes long, whatever the ring holds. Interrupts are raised at the end
//! of the run.
//!
//! Source: manual 317453, sections 3.3 (descriptors), 3.4 (ring), 3.5 (segmentation); behaviour as QEMU's
//! card shows it. Quirks kept: a data descriptor's length has 16 bits, not 20; IC of a legacy descriptor does
//! nothing; the options of a packet are those of its first data descriptor; a ring without a length is one
//! descriptor; TDH and TDT beyond the ring are followed, and a run ends after one descriptor or one circle; 64 KiB of
//! packet wrap to none. Deviation: QEMU's card has a segmented packet whose data fill the last segment followed by headers
//! without data, which is one frame in five of a busy sender; a real card sends nothing more, and neither does this one.

use super::E1000;
use super::packet::{Context, FRAME, IXSM, Packet, TAG, TXSM};
use super::registers::{Cause, reg};
use crate::Budget;
use crate::dma::{BusMaster, Dma};

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR: u64 = 16;
/// Longest frame that may come out of [`E1000::transmit`].
pub const MAX_OUTGOING: usize = FRAME - 1 + TAG;

/// Command bits of descriptors, in their third long word.
pub(super) mod command {
    /// Last of a packet.
    pub const EOP: u32 = 1 << 24;
    /// Report status; RPS asks for the same here.
    pub const REPORT: u32 = 1 << 27 | 1 << 28;
    /// Not a legacy descriptor.
    pub const DEXT: u32 = 1 << 29;
    /// With DEXT: data and not context.
    pub const DATA: u32 = 1 << 20;
    /// Add a VLAN tag.
    pub const VLE: u32 = 1 << 30;
    /// The interrupt may be delayed.
    pub const IDE: u32 = 1 << 31;
    /// Segmentation.
    pub const TSE: u32 = 1 << 26;
}
/// Status: done.
const DD: u32 = 1 << 0;
/// Status: excess collisions, late collision, underrun.
const FAILURES: u32 = 0xe;

/// What became of a call of [`E1000::transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// A frame of this many bytes went out.
    Frame(usize),
    /// No frame yet, but there is more to do: the budget is spent.
    Busy,
    /// Nothing is left to do.
    Idle,
}

/// What became of a frame, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// Nothing, or to the receiver.
    Nothing,
    /// To the wire, so many bytes.
    Out(usize),
}

/// A run through the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// TDH at its beginning.
    pub(super) start: u32,
    pub(super) causes: Cause,
}

/// The descriptor being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    /// Where it lies.
    base: u64,
    lower: u32,
    upper: u32,
    /// What is left of its buffer.
    address: u64,
    left: u32,
    /// Nothing more is to be read from its buffer.
    read: bool,
}

/// The transmitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transmitter {
    pub(super) packet: Packet,
    pub(super) run: Option<Run>,
    current: Option<Current>,
    /// See [`E1000::follow_qemu`].
    like_qemu: bool,
}

impl Transmitter {
    /// Allocates.
    pub(super) fn new() -> Self {
        Self { packet: Packet::new(), run: None, current: None, like_qemu: false }
    }

    /// As new, without allocating.
    pub(super) fn reset(&mut self) {
        self.packet.reset();
        (self.run, self.current) = (None, None);
    }

    /// No packet has begun that is not sent yet.
    pub(super) const fn is_between_packets(&self) -> bool {
        let Packet { size, options, segments, tagging, .. } = self.packet;
        self.current.is_none() && size == 0 && options == 0 && segments == 0 && !tagging
    }
}

impl E1000 {
    /// TDT or TCTL was written.
    pub(super) fn ring_doorbell(&mut self) {
        if self.regs.transmitter_on() {
            let causes = self.tx.run.map_or(Cause::EMPTY, |run| run.causes);
            self.tx.run = Some(Run { start: self.regs.get(reg::TDH), causes });
        }
    }

    /// Sends headers without data where QEMU's card does, for tests beside that card.
    pub const fn follow_qemu(&mut self) {
        self.tx.like_qemu = true;
    }

    /// There is something to send, or an end of sending to report: call [`Self::transmit`].
    pub const fn transmitting(&self) -> bool {
        self.tx.run.is_some()
    }

    /// Carries on sending, as far as `budget` lasts. After each write call this until it is idle, or later: the card is as
    /// patient as the owner. `into` should hold [`MAX_OUTGOING`] bytes; a frame that does not fit counts as sent and is
    /// lost.
    pub fn transmit(&mut self, memory: &mut dyn Dma, into: &mut [u8], budget: &mut Budget) -> Transmission {
        loop {
            let Some(run) = self.tx.run else { return Transmission::Idle };
            let more = self.regs.transmitter_on() && self.regs.get(reg::TDH) != self.regs.get(reg::TDT);
            if self.tx.current.is_none() && !more {
                self.end_run(run);
                return Transmission::Idle;
            }
            if budget.is_spent() {
                return Transmission::Busy;
            }
            let sent = match self.tx.current {
                Some(current) => self.carry_on(current, run, memory, into, budget),
                None => {
                    budget.step();
                    self.begin_descriptor(run, memory)
                }
            };
            if let Sent::Out(len) = sent {
                return Transmission::Frame(len);
            }
        }
    }

    /// Descriptors that set both contexts as they are: without segmentation, and with it.
    pub fn contexts(&self) -> [[u8; DESCRIPTOR as usize]; 2] {
        let (plain, mut segmentation) =
            (self.tx.packet.plain.descriptor(), self.tx.packet.segmentation.descriptor());
        segmentation[11] |= (command::TSE >> 24) as u8;
        [plain, segmentation]
    }

    /// Sets a context as this descriptor would.
    pub fn set_context(&mut self, descriptor: &[u8; DESCRIPTOR as usize]) {
        let packet = &mut self.tx.packet;
        let context = Context::new(descriptor);
        if u32::from(descriptor[11]) << 24 & command::TSE != 0 {
            (packet.segmentation, packet.segments) = (context, 0);
        } else {
            packet.plain = context;
        }
    }

    pub(super) fn end_run(&mut self, run: Run) {
        self.tx.run = None;
        self.raise(run.causes);
    }

    /// Reads a descriptor; one of context is done with that.
    fn begin_descriptor(&mut self, run: Run, memory: &mut dyn Dma) -> Sent {
        let base = self.regs.transmit_ring().wrapping_add(DESCRIPTOR * u64::from(self.regs.get(reg::TDH)));
        let mut bytes = [0; DESCRIPTOR as usize];
        self.fetch(memory, base, &mut bytes);
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, u0, u1, u2, u3] = bytes;
        let lower = u32::from_le_bytes([l0, l1, l2, l3]);
        let current = Current {
            base,
            lower,
            upper: u32::from_le_bytes([u0, u1, u2, u3]),
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            left: lower & 0xffff,
            read: false,
        };
        self.line.delay_transmit |= lower & command::IDE != 0;
        if lower & (command::DEXT | command::DATA) == command::DEXT {
            self.set_context(&bytes);
            self.end_descriptor(current, run, memory);
            return Sent::Nothing;
        }
        let packet = &mut self.tx.packet;
        let extended = lower & command::DEXT != 0;
        if extended && packet.size == 0 {
            packet.options = (current.upper >> 8) as u8;
        }
        packet.segmenting = extended && lower & command::TSE != 0;
        if self.regs.vlan() && lower & command::VLE != 0 && (packet.segmenting || lower & command::EOP != 0) {
            packet.tagging = true;
            let [e0, e1, ..] = self.regs.get(reg::VET).to_le_bytes();
            let [.., t0, t1] = current.upper.to_le_bytes();
            packet.tag = [e1, e0, t1, t0];
        }
        self.tx.current = Some(current);
        Sent::Nothing
    }

    /// A piece of a descriptor's buffer, or its end.
    fn carry_on(
        &mut self,
        mut current: Current,
        run: Run,
        memory: &mut dyn Dma,
        into: &mut [u8],
        budget: &mut Budget,
    ) -> Sent {
        if current.read {
            let sent = self.end_packet(current, memory, into, budget);
            self.end_descriptor(current, run, memory);
            return sent;
        }
        let size = u32::from(self.tx.packet.size);
        let context = self.tx.packet.segmentation;
        let full = u32::from(context.header) + u32::from(context.segment);
        let space = FRAME as u32 - size;
        let len = match self.tx.packet.segmenting {
            true => current.left.min(full.saturating_sub(size)).min(space),
            false => current.left.min(space),
        };
        let end = size + len;
        if len > 0 {
            let mut buffer = core::mem::take(&mut self.tx.packet.buffer);
            if let Some(part) = buffer.get_mut(TAG + size as usize..TAG + end as usize) {
                self.fetch(memory, current.address, part);
            }
            self.tx.packet.buffer = buffer;
            budget.bytes(len as usize);
        }
        current.address = current.address.wrapping_add(u64::from(len));
        current.left -= len;
        let mut sent = Sent::Nothing;
        if !self.tx.packet.segmenting {
            self.tx.packet.size = end as u16;
            current.read = true;
        } else if size >= full {
            current.read = true;
        } else {
            let header = u32::from(context.header);
            if size < header && header <= end {
                self.tx.packet.keep_header();
            }
            self.tx.packet.size = end as u16;
            if end == full {
                sent = self.send(memory, into, budget);
                self.tx.packet.repeat_header();
            }
            current.read = len == 0 || current.left == 0;
        }
        self.tx.current = Some(current);
        sent
    }

    /// All of a descriptor's buffer was read: the packet ends with EOP.
    fn end_packet(
        &mut self,
        current: Current,
        memory: &mut dyn Dma,
        into: &mut [u8],
        budget: &mut Budget,
    ) -> Sent {
        if current.lower & command::EOP == 0 {
            return Sent::Nothing;
        }
        let packet = &self.tx.packet;
        let header = u16::from(packet.segmentation.header);
        let headless = packet.size < header;
        let all_sent = packet.segments > 0 && packet.size == header && !self.tx.like_qemu;
        let sent = match packet.segmenting && (headless || all_sent) {
            true => Sent::Nothing,
            false => self.send(memory, into, budget),
        };
        self.tx.packet.end();
        sent
    }

    /// Reports a descriptor done that wants it. Returns the cause, if there is one.
    pub(super) fn report(&mut self, base: u64, lower: u32, upper: u32, memory: &mut dyn Dma) -> Cause {
        if lower & command::REPORT == 0 {
            return Cause::empty();
        }
        let status = (upper | DD) & !FAILURES;
        BusMaster::new(memory, &mut self.refused).write_u32(base.wrapping_add(12), status);
        Cause::SENT
    }

    /// Reports a descriptor done and moves on, or ends the run.
    fn end_descriptor(&mut self, current: Current, mut run: Run, memory: &mut dyn Dma) {
        self.tx.current = None;
        run.causes |= self.report(current.base, current.lower, current.upper, memory);
        let descriptors = self.regs.get(reg::TDLEN) / DESCRIPTOR as u32;
        let head = self.regs.get(reg::TDH).wrapping_add(1);
        let head = if head >= descriptors { 0 } else { head };
        self.regs.set(reg::TDH, head);
        self.tx.run = Some(run);
        if head == run.start || run.start >= descriptors {
            self.end_run(run);
        }
    }

    /// Sends what was collected.
    fn send(&mut self, memory: &mut dyn Dma, into: &mut [u8], budget: &mut Budget) -> Sent {
        let packet = &mut self.tx.packet;
        budget.step();
        budget.bytes(packet.size.into());
        let context = packet.context();
        if packet.segmenting && packet.number_segment() {
            self.regs.count(reg::TSCTC, 1);
        }
        if packet.options & TXSM != 0 {
            packet.insert_checksum(context.transport_offset, context.transport_start, context.transport_end);
        }
        if packet.options & IXSM != 0 {
            packet.insert_checksum(context.ip_offset, context.ip_start, context.ip_end);
        }
        let collected = usize::from(packet.size);
        let range = if packet.tagging {
            packet.insert_tag();
            0..collected + TAG
        } else {
            TAG..TAG + collected
        };
        let buffer = core::mem::take(&mut self.tx.packet.buffer);
        let destination = buffer.get(range.start..).and_then(|frame| frame.first_chunk());
        let frame = buffer.get(range).unwrap_or(&[]);
        let sent = self.deliver(frame, memory, into, budget);
        self.count_sent_as(destination, (frame.len(), collected), 1);
        self.tx.packet.buffer = buffer;
        sent
    }

    /// To the wire, or back to the receiver.
    fn deliver(&mut self, frame: &[u8], memory: &mut dyn Dma, into: &mut [u8], budget: &mut Budget) -> Sent {
        if self.loops_back() {
            self.receive(memory, frame, budget);
            return Sent::Nothing;
        }
        match into.get_mut(..frame.len()) {
            Some(into) if self.cable && !frame.is_empty() => {
                into.copy_from_slice(frame);
                Sent::Out(frame.len())
            }
            _ => Sent::Nothing,
        }
    }

    /// Counts frames of a length, without a tag.
    pub(super) fn count_sent(&mut self, destination: Option<&[u8; 6]>, len: usize, frames: u32) {
        self.count_sent_as(destination, (len, len), frames);
    }

    /// `destination` is taken for one even if the frame ends before it.
    fn count_sent_as(
        &mut self,
        destination: Option<&[u8; 6]>,
        (len, collected): (usize, usize),
        frames: u32,
    ) {
        match destination {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => self.regs.count(reg::BPTC, frames),
            Some([first, ..]) if first & 1 != 0 => self.regs.count(reg::MPTC, frames),
            _ => {}
        }
        self.regs.count_length(reg::PTC64, len as u32 + 4, frames);
        self.regs.count(reg::TPT, frames);
        self.regs.count(reg::GPTC, frames);
        let octets = (collected as u64 + 4) * u64::from(frames);
        self.regs.count_octets(reg::TOTL, octets);
        self.regs.count_octets(reg::GOTCL, octets);
    }
}
