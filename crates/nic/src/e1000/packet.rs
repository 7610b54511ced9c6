//! The packet being collected for sending: segmentation, checksums, the VLAN tag.
//!
//! Key types: [`Packet`], [`Context`]. `transmit.rs` fills and sends it. Source: manual 317453, sections 3.3
//! and 3.5 (context, segmentation), chapter 9 (VLAN); behaviour as QEMU's card shows it. Offsets in a context
//! are the driver's: they may point behind the packet, into what the buffer held before.

use crate::checksum::{fold, sum};
use crate::offload::{Checksum, Offload, Segments};
use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

/// Bytes that the card collects for a frame, tag not included.
pub(super) const FRAME: usize = 0x1_0000;
/// Bytes of a VLAN tag.
pub(super) const TAG: usize = 4;
/// Bytes of a frame's head that segmentation can repeat, and one.
const HEADER: usize = 256;

/// Options: insert the IP checksum.
pub(super) const IXSM: u8 = 1 << 0;
/// Insert the TCP or UDP checksum.
pub(super) const TXSM: u8 = 1 << 1;
/// Command of a context: TCP, not UDP.
const TCP: u32 = 1 << 24;
/// IPv4, not IPv6.
const IP: u32 = 1 << 25;
/// A descriptor of the extended kind; a context, unless it says that it is data.
const DEXT: u32 = 1 << 29;

/// A context descriptor's contents (sections 3.3 and 3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) ip_start: u8,
    pub(super) ip_offset: u8,
    pub(super) ip_end: u16,
    pub(super) transport_start: u8,
    pub(super) transport_offset: u8,
    pub(super) transport_end: u16,
    payload: u32,
    pub(super) header: u8,
    pub(super) segment: u16,
    ipv4: bool,
    tcp: bool,
}

impl Context {
    pub(super) fn new(descriptor: &[u8; 16]) -> Self {
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
            ipv4: command & IP != 0,
            tcp: command & TCP != 0,
        }
    }

    /// What it has a card do to a packet with these options; `cut`: its length, if it is to be cut into segments. `None` if the
    /// context is another packet's.
    pub(super) fn offload(&self, options: u8, cut: Option<usize>) -> Option<Offload> {
        let ip = Checksum { start: self.ip_start, offset: self.ip_offset, end: self.ip_end };
        let (start, offset, end) = (self.transport_start, self.transport_offset, self.transport_end);
        let transport = Checksum { start, offset, end };
        let segments = Segments {
            header: self.header,
            payload: self.segment,
            ip: self.ip_start,
            transport: self.transport_start,
            ipv4: self.ipv4,
            tcp: self.tcp,
        };
        let is_its_own = |len| usize::from(self.header) + self.payload as usize == len;
        cut.is_none_or(is_its_own).then_some(Offload {
            ip: (options & IXSM != 0).then_some(ip),
            transport: (options & TXSM != 0).then_some(transport),
            segments: cut.is_some().then_some(segments),
            is_in_headers: false,
        })
    }

    /// The descriptor that sets it, but for its kind.
    pub(super) fn descriptor(&self) -> [u8; 16] {
        let [e0, e1] = self.ip_end.to_le_bytes();
        let [f0, f1] = self.transport_end.to_le_bytes();
        let kinds = if self.ipv4 { IP } else { 0 } | if self.tcp { TCP } else { 0 };
        let [c0, c1, c2, c3] = (self.payload | kinds | DEXT).to_le_bytes();
        let [m0, m1] = self.segment.to_le_bytes();
        let (ip, transport) =
            ([self.ip_start, self.ip_offset], [self.transport_start, self.transport_offset]);
        [ip[0], ip[1], e0, e1, transport[0], transport[1], f0, f1, c0, c1, c2, c3, 0, self.header, m0, m1]
    }
}

/// The context descriptor by which a card does what is left to be done to a packet of `len` bytes, without TSE and RS.
pub fn context_for(offload: &Offload, len: usize) -> [u8; 16] {
    let (ip, transport) = (offload.ip, offload.transport);
    let segments = offload.segments;
    let start = |sum: Option<Checksum>| sum.map_or(0, |sum| sum.start);
    Context {
        ip_start: segments.map_or(start(ip), |segments| segments.ip),
        ip_offset: ip.map_or(0, |sum| sum.offset),
        ip_end: ip.map_or(0, |sum| sum.end),
        transport_start: segments.map_or(start(transport), |segments| segments.transport),
        transport_offset: transport.map_or(0, |sum| sum.offset),
        transport_end: transport.map_or(0, |sum| sum.end),
        payload: segments.map_or(0, |segments| len.saturating_sub(segments.header.into()) as u32),
        header: segments.map_or(0, |segments| segments.header),
        segment: segments.map_or(0, |segments| segments.payload),
        ipv4: segments.is_some_and(|segments| segments.ipv4),
        tcp: segments.is_some_and(|segments| segments.tcp),
    }
    .descriptor()
}

/// The packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// A place for the tag, then the bytes collected.
    pub(super) buffer: Box<[u8]>,
    pub(super) header: [u8; HEADER],
    /// The tag to insert.
    pub(super) tag: [u8; TAG],
    /// Bytes collected.
    pub(super) size: u16,
    /// IXSM and TXSM.
    pub(super) options: u8,
    /// To be cut into segments.
    pub(super) segmenting: bool,
    /// To be tagged.
    pub(super) tagging: bool,
    /// Segments sent.
    pub(super) segments: u16,
    /// The last context without segmentation.
    pub(super) plain: Context,
    /// The last one with it.
    pub(super) segmentation: Context,
}

impl Packet {
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
        }
    }

    /// The context that holds for this packet.
    pub(super) const fn context(&self) -> Context {
        if self.segmenting { self.segmentation } else { self.plain }
    }

    /// Was sent: the next one begins.
    pub(super) fn end(&mut self) {
        (self.segments, self.options, self.size) = (0, 0, 0);
        (self.tagging, self.segmenting) = (false, false);
    }

    /// Keeps the header for the segments after this one.
    pub(super) fn keep_header(&mut self) {
        let len = usize::from(self.segmentation.header);
        let mut kept = self.header;
        kept.iter_mut().zip(self.frame(0..len)).for_each(|(to, from)| *to = *from);
        self.header = kept;
    }

    /// Bytes of the frame; what is beyond the buffer is left out.
    pub(super) fn frame(&mut self, range: Range<usize>) -> &mut [u8] {
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
    pub(super) fn repeat_header(&mut self) {
        let len = usize::from(self.segmentation.header);
        let header = self.header;
        self.frame(0..len).copy_from_slice(&header[..len]);
        self.size = len as u16;
    }

    /// Puts the numbers of this segment into its headers (section 3.5). Returns whether it ends a TCP packet of
    /// several.
    pub(super) fn number_segment(&mut self) -> bool {
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
    pub(super) fn insert_checksum(&mut self, offset: u8, start: u8, end: u16) {
        let size = u32::from(self.size);
        let end = if end != 0 && u32::from(end) < size { u32::from(end) + 1 } else { size };
        if u32::from(offset) >= end.wrapping_sub(1) {
            return;
        }
        let sum = !fold(sum(self.frame(usize::from(start)..end as usize)));
        self.set_word(usize::from(offset), if sum == 0 { 0xffff } else { sum });
    }

    /// Moves the frame's addresses forward to make room for the tag.
    pub(super) fn insert_tag(&mut self) {
        self.buffer.copy_within(TAG..TAG + 12, 0);
        let tag = self.tag;
        self.frame(8..12).copy_from_slice(&tag);
    }
}
