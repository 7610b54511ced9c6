//! Sending: descriptors, checksums, segmentation, VLAN tags.
//!
//! A doorbell (TDT or TCTL) only starts a run; [`E1000::transmit`] carries it on, a frame or a bounded amount of work at
//! a time, so that no access takes long, whatever the ring holds. Interrupts are raised at the end of the run.
//!
//! Source: manual 317453, sections 3.3 (descriptors), 3.4 (ring), 3.5 (segmentation), 9.3 (VLAN); behaviour as QEMU's
//! card shows it. Quirks kept: a data descriptor's length has 16 bits, not 20; IC of a legacy descriptor does
//! nothing; the options of a packet are those of its first data descriptor; a ring without a length is one
//! descriptor; TDH and TDT beyond the ring are followed, and a run ends after one descriptor or one circle; a
//! segmented packet whose data fill the last segment is followed by a segment without data; 64 KiB of
//! packet wrap to none.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

use super::E1000;
use super::phy::{LOOPBACK, mii};
use super::registers::{Cause, reg};
use crate::dma::{BusMaster, Dma};

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR: u64 = 16;
/// Bytes that the card collects for a frame, tag not included.
const FRAME: usize = 0x1_0000;
/// Longest frame that may come out of [`E1000::transmit`].
pub const MAX_OUTGOING: usize = FRAME - 1 + TAG;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes of a frame's head that segmentation repeats.
const HEADER: usize = 256;
/// Work of one call of [`E1000::transmit`]: a descriptor is one, and so is a KiB.
const WORK: u32 = 256;

/// Command bits of descriptors, in their third long word.
mod command {
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
    /// Context: TCP, not UDP.
    pub const TCP: u32 = 1 << 24;
    /// Context: IPv4, not IPv6.
    pub const IP: u32 = 1 << 25;
    /// Segmentation.
    pub const TSE: u32 = 1 << 26;
}
/// Status: done.
const DD: u32 = 1 << 0;
/// Status: excess collisions, late collision, underrun.
const FAILURES: u32 = 0xe;
/// Options: insert the IP checksum, the TCP or UDP checksum.
const IXSM: u8 = 1 << 0;
const TXSM: u8 = 1 << 1;

/// What became of a call of [`E1000::transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// A frame of this many bytes went out.
    Frame(usize),
    /// No frame yet, but there is more to do.
    Busy,
    /// Nothing is left to do.
    Idle,
}

/// What became of a frame, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Nothing,
    /// To the wire, so many bytes.
    Out(usize),
    /// To the receiver.
    Back,
}

/// A context descriptor's contents (sections 3.3.6 and 3.5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Context {
    ip_start: u8,
    ip_offset: u8,
    ip_end: u16,
    transport_start: u8,
    transport_offset: u8,
    transport_end: u16,
    payload: u32,
    header: u8,
    segment: u16,
    ipv4: bool,
    tcp: bool,
}

impl Context {
    fn new(descriptor: &[u8; 16]) -> Self {
        let [ip_start, ip_offset, e0, e1, transport_start, transport_offset, f0, f1, ..] = *descriptor;
        let [.., c0, c1, c2, c3, _, header, m0, m1] = *descriptor;
        let command = u32::from_le_bytes([c0, c1, c2, c3]);
        Self {
            ip_start,
            ip_offset,
            ip_end: u16::from_le_bytes([e0, e1]),
            transport_start,
            transport_offset,
            transport_end: u16::from_le_bytes([f0, f1]),
            payload: command & 0xf_ffff,
            header,
            segment: u16::from_le_bytes([m0, m1]),
            ipv4: command & command::IP != 0,
            tcp: command & command::TCP != 0,
        }
    }
}

/// A run through the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// TDH at its beginning.
    start: u32,
    causes: Cause,
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
    /// A place for the tag, then the frame being collected.
    buffer: Box<[u8]>,
    header: [u8; HEADER],
    tag: [u8; TAG],
    /// Bytes collected.
    size: u16,
    options: u8,
    segmenting: bool,
    tagging: bool,
    /// Segments sent of the packet.
    segments: u16,
    plain: Context,
    segmentation: Context,
    run: Option<Run>,
    current: Option<Current>,
}

impl Transmitter {
    /// Allocates 64 KiB.
    pub(super) fn new() -> Self {
        Self::with(vec![0; TAG + FRAME].into_boxed_slice())
    }

    /// As new, without allocating.
    pub(super) fn reset(&mut self) {
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.fill(0);
        *self = Self::with(buffer);
    }

    fn with(buffer: Box<[u8]>) -> Self {
        Self {
            buffer,
            header: [0; HEADER],
            tag: [0; TAG],
            size: 0,
            options: 0,
            segmenting: false,
            tagging: false,
            segments: 0,
            plain: Context::default(),
            segmentation: Context::default(),
            run: None,
            current: None,
        }
    }

    /// Bytes of the frame; what is beyond the buffer is left out.
    fn frame(&mut self, range: Range<usize>) -> &mut [u8] {
        let range = range.start.saturating_add(TAG)..range.end.saturating_add(TAG);
        self.buffer.get_mut(range).unwrap_or(&mut [])
    }

    fn word(&mut self, at: usize) -> u16 {
        self.frame(at..at + 2).first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
    }

    fn set_word(&mut self, at: usize, value: u16) {
        self.frame(at..at + 2).iter_mut().zip(value.to_be_bytes()).for_each(|(to, from)| *to = from);
    }

    /// Repeats the header kept from the packet's beginning.
    fn repeat_header(&mut self) {
        let len = usize::from(self.segmentation.header);
        let header = self.header;
        self.frame(0..len).copy_from_slice(&header[..len]);
        self.size = len as u16;
    }

    /// Puts the numbers of this segment into its headers (section 3.5.9). Returns whether it ends a TCP packet of
    /// several.
    fn number_segment(&mut self) -> bool {
        let mut last = false;
        let context = self.segmentation;
        let ip = usize::from(context.ip_start);
        let length = self.size.wrapping_sub(u16::from(context.ip_start));
        if context.ipv4 {
            self.set_word(ip + 2, length);
            let identification = self.word(ip + 4).wrapping_add(self.segments);
            self.set_word(ip + 4, identification);
        } else {
            self.set_word(ip + 4, length);
        }
        let transport = usize::from(context.transport_start);
        let length = self.size.wrapping_sub(u16::from(context.transport_start));
        if context.tcp {
            let sent = u32::from(self.segments) * u32::from(context.segment);
            let at = transport + 4;
            let sequence = u32::from(self.word(at)) << 16 | u32::from(self.word(at + 2));
            let sequence = sequence.wrapping_add(sent);
            self.set_word(at, (sequence >> 16) as u16);
            self.set_word(at + 2, sequence as u16);
            if context.payload.wrapping_sub(sent) > u32::from(context.segment) {
                // PSH and FIN are the last segment's.
                self.frame(transport + 13..transport + 14).iter_mut().for_each(|flags| *flags &= !9);
            } else {
                last = self.segments != 0;
            }
        } else {
            self.set_word(transport + 4, length);
        }
        if self.options & TXSM != 0 {
            // The pseudo-header's sum is there already, but for the length.
            let at = usize::from(context.transport_offset);
            let sum = u32::from(self.word(at)) + u32::from(length);
            self.set_word(at, ((sum >> 16) + (sum & 0xffff)) as u16);
        }
        self.segments = self.segments.wrapping_add(1);
        last
    }

    /// Puts the Internet checksum of `start..=end` at `offset`; `end` 0 is the frame's end.
    fn insert_checksum(&mut self, offset: u8, start: u8, end: u16) {
        let size = u32::from(self.size);
        let end = if end != 0 && u32::from(end) < size { u32::from(end) + 1 } else { size };
        if u32::from(offset) >= end.wrapping_sub(1) {
            return;
        }
        let bytes = self.frame(usize::from(start)..end as usize);
        let sum = bytes.chunks(2).fold(0u64, |sum, pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            sum + u64::from(pair[0]) * 256 + u64::from(low)
        });
        let sum = (0..4).fold(sum, |sum, _| (sum >> 16) + (sum & 0xffff));
        let sum = !(sum as u16);
        self.set_word(usize::from(offset), if sum == 0 { 0xffff } else { sum });
    }

    /// Moves the frame's addresses forward to make room for the tag.
    fn insert_tag(&mut self) {
        self.buffer.copy_within(TAG..TAG + 12, 0);
        let tag = self.tag;
        self.frame(8..12).copy_from_slice(&tag);
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

    /// There is something to send, or an end of sending to report: call [`Self::transmit`].
    pub const fn transmitting(&self) -> bool {
        self.tx.run.is_some()
    }

    /// Carries on sending. After each write call this until it is idle, or later: the card is as patient as the owner.
    /// `into` should hold [`MAX_OUTGOING`] bytes; a frame that does not fit counts as sent and is lost.
    pub fn transmit(&mut self, memory: &mut dyn Dma, into: &mut [u8]) -> Transmission {
        let mut work = WORK;
        while work > 0 {
            let Some(run) = self.tx.run else { return Transmission::Idle };
            let (cost, sent) = match self.tx.current {
                Some(current) => self.carry_on(current, run, memory, into),
                None if self.regs.transmitter_on() && self.regs.get(reg::TDH) != self.regs.get(reg::TDT) => {
                    (1, self.begin_descriptor(run, memory))
                }
                None => {
                    self.end_run(run);
                    return Transmission::Idle;
                }
            };
            match sent {
                Sent::Out(len) => return Transmission::Frame(len),
                // The receiver may have had much to do.
                Sent::Back => return Transmission::Busy,
                Sent::Nothing => work = work.saturating_sub(cost),
            }
        }
        Transmission::Busy
    }

    fn end_run(&mut self, run: Run) {
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
        let tx = &mut self.tx;
        match (lower & command::DEXT != 0, lower & command::DATA != 0) {
            (true, false) => {
                let context = Context::new(&bytes);
                if lower & command::TSE != 0 {
                    (tx.segmentation, tx.segments) = (context, 0);
                } else {
                    tx.plain = context;
                }
                self.end_descriptor(current, run, memory);
                return Sent::Nothing;
            }
            (true, true) => {
                if tx.size == 0 {
                    tx.options = (current.upper >> 8) as u8;
                }
                tx.segmenting = lower & command::TSE != 0;
            }
            (false, _) => tx.segmenting = false,
        }
        if self.regs.vlan() && lower & command::VLE != 0 && (tx.segmenting || lower & command::EOP != 0) {
            tx.tagging = true;
            let [e0, e1, ..] = self.regs.get(reg::VET).to_le_bytes();
            let [.., t0, t1] = current.upper.to_le_bytes();
            tx.tag = [e1, e0, t1, t0];
        }
        tx.current = Some(current);
        Sent::Nothing
    }

    /// A piece of a descriptor's buffer, or its end. Returns the work done, too.
    fn carry_on(
        &mut self,
        mut current: Current,
        run: Run,
        memory: &mut dyn Dma,
        into: &mut [u8],
    ) -> (u32, Sent) {
        if current.read {
            let sent = self.end_packet(current, memory, into);
            self.end_descriptor(current, run, memory);
            return (1, sent);
        }
        let size = u32::from(self.tx.size);
        let context = self.tx.segmentation;
        let full = u32::from(context.header) + u32::from(context.segment);
        let space = FRAME as u32 - size;
        let len = match self.tx.segmenting {
            true => current.left.min(full.saturating_sub(size)).min(space),
            false => current.left.min(space),
        };
        let end = size + len;
        if len > 0 {
            let mut buffer = core::mem::take(&mut self.tx.buffer);
            if let Some(part) = buffer.get_mut(TAG + size as usize..TAG + end as usize) {
                self.fetch(memory, current.address, part);
            }
            self.tx.buffer = buffer;
        }
        current.address = current.address.wrapping_add(u64::from(len));
        current.left -= len;
        let mut sent = Sent::Nothing;
        if !self.tx.segmenting {
            self.tx.size = end as u16;
            current.read = true;
        } else if size >= full {
            current.read = true;
        } else {
            let header = u32::from(context.header);
            if size < header && header <= end {
                let mut kept = self.tx.header;
                let head = self.tx.frame(0..header as usize);
                kept.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
                self.tx.header = kept;
            }
            self.tx.size = end as u16;
            if end == full {
                sent = self.send(memory, into);
                self.tx.repeat_header();
            }
            current.read = len == 0 || current.left == 0;
        }
        self.tx.current = Some(current);
        (1 + len / 1024, sent)
    }

    /// All of a descriptor's buffer was read: the packet ends with EOP.
    fn end_packet(&mut self, current: Current, memory: &mut dyn Dma, into: &mut [u8]) -> Sent {
        if current.lower & command::EOP == 0 {
            return Sent::Nothing;
        }
        let headless = self.tx.segmenting && self.tx.size < u16::from(self.tx.segmentation.header);
        let sent = if headless { Sent::Nothing } else { self.send(memory, into) };
        let tx = &mut self.tx;
        (tx.segments, tx.options, tx.size) = (0, 0, 0);
        (tx.tagging, tx.segmenting) = (false, false);
        sent
    }

    /// Reports a descriptor done and moves on, or ends the run.
    fn end_descriptor(&mut self, current: Current, mut run: Run, memory: &mut dyn Dma) {
        self.tx.current = None;
        if current.lower & command::REPORT != 0 {
            let status = (current.upper | DD) & !FAILURES;
            BusMaster::new(memory, &mut self.refused).write_u32(current.base.wrapping_add(12), status);
            run.causes |= Cause::SENT;
        }
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
    fn send(&mut self, memory: &mut dyn Dma, into: &mut [u8]) -> Sent {
        let tx = &mut self.tx;
        let context = if tx.segmenting { tx.segmentation } else { tx.plain };
        if tx.segmenting && tx.number_segment() {
            self.regs.count(reg::TSCTC);
        }
        if tx.options & TXSM != 0 {
            tx.insert_checksum(context.transport_offset, context.transport_start, context.transport_end);
        }
        if tx.options & IXSM != 0 {
            tx.insert_checksum(context.ip_offset, context.ip_start, context.ip_end);
        }
        let collected = usize::from(tx.size);
        let range = if tx.tagging {
            tx.insert_tag();
            0..collected + TAG
        } else {
            TAG..TAG + collected
        };
        let buffer = core::mem::take(&mut self.tx.buffer);
        let destination = buffer.get(range.start..).and_then(|frame| frame.first_chunk());
        let frame = buffer.get(range).unwrap_or(&[]);
        let sent = self.deliver(frame, memory, into);
        self.count_sent(destination, frame.len(), collected);
        self.tx.buffer = buffer;
        sent
    }

    /// To the wire, or back to the receiver.
    fn deliver(&mut self, frame: &[u8], memory: &mut dyn Dma, into: &mut [u8]) -> Sent {
        if self.phy[mii::BMCR] & LOOPBACK != 0 {
            self.receive(memory, frame);
            return Sent::Back;
        }
        match into.get_mut(..frame.len()) {
            Some(into) if self.cable && !frame.is_empty() => {
                into.copy_from_slice(frame);
                Sent::Out(frame.len())
            }
            _ => Sent::Nothing,
        }
    }

    /// `destination` is taken for one even if the frame ends before it.
    fn count_sent(&mut self, destination: Option<&[u8; 6]>, len: usize, collected: usize) {
        match destination {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => self.regs.count(reg::BPTC),
            Some([first, ..]) if first & 1 != 0 => self.regs.count(reg::MPTC),
            _ => {}
        }
        self.regs.count_length(reg::PTC64, len as u32 + 4);
        self.regs.count(reg::TPT);
        self.regs.count(reg::GPTC);
        self.regs.count_octets(reg::TOTL, collected as u64 + 4);
        self.regs.count_octets(reg::GOTCL, collected as u64 + 4);
    }
}
