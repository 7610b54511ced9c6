//! Offloads of virtual network interfaces: what a frame's virtio header asks for, and how it is done in software.
//!
//! Key types: [`Header`] (the 12 bytes before a frame), [`Plan`] (a header that was compared with its frame), [`Segments`] (the frames that a
//! long TCP frame becomes), [`Sum`] (the internet checksum). Nothing here knows of queues or memory: bytes come in, bytes and ranges go out.
//!
//! All of a header, and of the frame, is the guest's word. A plan keeps a copy of the frame's headers, so that a guest which
//! changes them meanwhile does not change what was checked. No field that is written lies in the Ethernet header: there are the addresses that
//! the engine has compared with the sender's.
//!
//! Source: Virtio 1.2, 5.1.6 (header, flags); RFC 1071 (checksum); RFC 791, 8200, 9293 (headers); RFC 3168, 6.1.2 (CWR).
//! Deviations: `hdr_len` is not read; the lengths in the IP header of a frame that is to be segmented are not read, since they
//! are written anew; of segmentation there is TCP over IPv4 without fragments and over IPv6 without extension headers.

mod card;
#[cfg(test)]
mod tests;

use crate::feature;
use core::ops::Range;
pub use sluice_nic::checksum::Sum;

/// Bytes of the longest headers of a segment: Ethernet, a tag, IPv4 and TCP with all options.
pub const MAX_HEADER: usize = ETHERNET + TAG + 60 + 60;
/// Most frames that a frame may become.
pub const MAX_SEGMENTS: u32 = 256;
/// Most payload of a frame that is to be segmented.
pub const MAX_PAYLOAD: u32 = 64 * 1024;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV6: usize = 40;
/// Where TCP has its checksum.
const TCP_CHECKSUM: usize = 16;
const TCP: u8 = 6;

/// `struct virtio_net_hdr` of a device that has VIRTIO_F_VERSION_1 (Virtio 1.2, 5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`Header::NEEDS_CSUM`] and [`Header::DATA_VALID`].
    pub flags: u8,
    /// How the frame is to be segmented: [`Header::GSO_NONE`] and so on.
    pub gso_type: u8,
    /// Bytes of the frame's headers, as a hint.
    pub hdr_len: u16,
    /// Most payload of a segment.
    pub gso_size: u16,
    /// Where the checksum begins.
    pub csum_start: u16,
    /// Where it is stored, from there.
    pub csum_offset: u16,
    /// Buffers that a received frame takes.
    pub num_buffers: u16,
}

impl Header {
    /// Its bytes.
    pub const BYTES: usize = 12;
    /// The checksum is not complete: its field holds the pseudo header's sum.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum was found right.
    pub const DATA_VALID: u8 = 2;
    /// The frame stays as it is.
    pub const GSO_NONE: u8 = 0;
    /// It is TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// It is TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// With either: it has CWR set.
    pub const GSO_ECN: u8 = 0x80;

    /// From its bytes.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1] = *bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
            num_buffers: u16::from_le_bytes([n0, n1]),
        }
    }

    /// Its bytes.
    pub const fn bytes(&self) -> [u8; Self::BYTES] {
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        let [n0, n1] = self.num_buffers.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1]
    }
}

/// Why a frame is not sent. Its guest is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The frame is shorter than an Ethernet header.
    TooShort,
    /// The frame, or a segment of it, is longer than the link takes.
    TooLong,
    /// The checksum begins in the Ethernet header, or its field is not all in the frame.
    Checksum,
    /// This kind of segmentation was not offered.
    GsoType,
    /// The frame is not what the kind of segmentation says: an IP packet, not fragmented, with TCP right behind its header.
    NotTcp,
    /// The segments have no payload, or there are too many.
    GsoSize,
}

/// What is to be done with a frame before it may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Nothing,
    /// To complete its checksum.
    Checksum(Checksum),
    /// To send segments in its place.
    Segments(Tso),
}

/// Two bytes of a frame that are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where, from the beginning of the frame.
    pub at: u32,
    /// What.
    pub bytes: [u8; 2],
}

/// A checksum that the sender left to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    start: u32,
    end: u32,
    field: u32,
}

impl Checksum {
    /// The bytes to sum up. The field is one of them: it holds the pseudo header's sum.
    pub const fn range(&self) -> Range<u32> {
        self.start..self.end
    }

    /// The checksum, from the sum of the range as it was copied, before this is written. A zero is written as its other form, since
    /// in UDP it says that there is none (RFC 768).
    pub fn finish(&self, sum: Sum) -> Field {
        let bytes = sum.checksum();
        Field { at: self.field, bytes: if bytes == [0; 2] { [0xff; 2] } else { bytes } }
    }
}

/// A TCP frame that is to be segmented: copies of its headers, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tso {
    /// With zeros where segments differ.
    header: [u8; MAX_HEADER],
    id: u16,
    sequence: u32,
    flags: u8,
    /// The sums of IPv4's header, and of TCP's with the pseudo header, without what differs.
    sums: (u16, u16),
    ip: usize,
    tcp: usize,
    header_len: usize,
    len: u32,
    size: u32,
    count: u32,
    v6: bool,
}

/// What a frame needs, found from its header and its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    header: Header,
    work: Work,
}

impl Plan {
    /// Bytes of a frame that a plan looks at.
    pub const START: usize = 256;

    /// The plan for a frame of `len` bytes that begins with `start`, which is all of it or at least [`MAX_HEADER`] bytes. At most `longest`
    /// bytes of a frame may leave.
    ///
    /// # Errors
    /// What the guest got wrong.
    pub fn new(header: &Header, start: &[u8], len: u32, longest: u32) -> Result<Self, Refused> {
        let start = start.get(..len as usize).unwrap_or(start);
        let link =
            if word(start, 12).ok_or(Refused::TooShort)? == 0x8100 { ETHERNET + TAG } else { ETHERNET };
        let needs = header.flags & Header::NEEDS_CSUM != 0;
        let (first, field) =
            (u32::from(header.csum_start), u32::from(header.csum_start) + u32::from(header.csum_offset));
        if needs && (first < link as u32 || field + 2 > len) {
            return Err(Refused::Checksum);
        }
        let mut passed = Header { flags: header.flags & Header::NEEDS_CSUM, ..Header::default() };
        if needs {
            (passed.csum_start, passed.csum_offset) = (header.csum_start, header.csum_offset);
        }
        if header.gso_type == Header::GSO_NONE {
            if len > longest {
                return Err(Refused::TooLong);
            }
            let checksum = Checksum { start: first, end: len, field };
            let work = if needs { Work::Checksum(checksum) } else { Work::Nothing };
            return Ok(Self { header: passed, work });
        }
        let tso = Tso::new(header, start, link, len)?;
        if tso.header_len as u32 + tso.size.min(tso.payload()) > longest {
            return Err(Refused::TooLong);
        }
        if !needs || header.csum_start as usize != tso.tcp || usize::from(header.csum_offset) != TCP_CHECKSUM
        {
            return Err(Refused::Checksum);
        }
        passed.gso_type = header.gso_type;
        passed.gso_size = header.gso_size;
        passed.hdr_len = tso.header_len as u16;
        Ok(Self { header: passed, work: Work::Segments(tso) })
    }

    /// What is to be done in software, if the receiver does not.
    pub const fn work(&self) -> &Work {
        &self.work
    }

    /// Whether a driver with these features takes the frame as it is, with [`Plan::pass`] before it.
    pub fn suits(&self, features: u64) -> bool {
        let wanted = match &self.work {
            Work::Nothing => 0,
            Work::Checksum(_) => feature::GUEST_CSUM,
            Work::Segments(tso) => {
                let kind = if tso.v6 { feature::GUEST_TSO6 } else { feature::GUEST_TSO4 };
                let ecn = if self.header.gso_type & Header::GSO_ECN != 0 { feature::GUEST_ECN } else { 0 };
                feature::GUEST_CSUM | kind | ecn
            }
        };
        features & wanted == wanted
    }

    /// The header for a receiver that does what there is to do itself. It holds only what was checked: a sender's word that
    /// a checksum is right is not passed on.
    pub const fn pass(&self, num_buffers: u16) -> Header {
        Header { num_buffers, ..self.header }
    }

    /// The frames to send in place of this one: none if it is not to be segmented.
    pub const fn segments(&self) -> Segments<'_> {
        Segments { tso: if let Work::Segments(tso) = &self.work { Some(tso) } else { None }, next: 0 }
    }
}

impl Tso {
    fn new(header: &Header, start: &[u8], link: usize, len: u32) -> Result<Self, Refused> {
        let v6 = match header.gso_type & !Header::GSO_ECN {
            Header::GSO_TCPV4 => false,
            Header::GSO_TCPV6 => true,
            _ => return Err(Refused::GsoType),
        };
        let tcp =
            if v6 { after_ipv6(start, link) } else { after_ipv4(start, link) }.ok_or(Refused::NotTcp)?;
        let options = usize::from(start.get(tcp + 12).ok_or(Refused::NotTcp)? >> 4) * 4;
        let header_len = tcp + options;
        let from = start.get(..header_len).filter(|_| options >= 20).ok_or(Refused::NotTcp)?;
        let mut copy = [0; MAX_HEADER];
        copy.get_mut(..header_len).ok_or(Refused::NotTcp)?.copy_from_slice(from);
        let (size, payload) = (u32::from(header.gso_size), len - header_len as u32);
        if size == 0 || payload > MAX_PAYLOAD || payload.div_ceil(size) > MAX_SEGMENTS {
            return Err(Refused::GsoSize);
        }
        // What IP's fields of 16 bits can say, whatever the link takes.
        if header_len as u32 + size.min(payload) > u32::from(u16::MAX) {
            return Err(Refused::TooLong);
        }
        let count = payload.div_ceil(size).max(1);
        let (ip, mut id) = (link, 0);
        let mut sums = (Sum::new(), Sum::new());
        if v6 {
            put(&mut copy, ip + 4, [0; 2]);
            sums.1.add(&copy[ip + 8..ip + IPV6]);
        } else {
            id = u16::from_be_bytes([copy[ip + 4], copy[ip + 5]]);
            put(&mut copy, ip + 2, [0; 4]);
            put(&mut copy, ip + 10, [0; 2]);
            sums.0.add(&copy[ip..tcp]);
            sums.1.add(&copy[ip + 12..ip + 20]);
        }
        let sequence = u32::from_be_bytes([4, 5, 6, 7].map(|at| copy[tcp + at]));
        let flags = copy[tcp + 13];
        put(&mut copy, tcp + 4, [0; 4]);
        put(&mut copy, tcp + 13, [0]);
        put(&mut copy, tcp + TCP_CHECKSUM, [0; 2]);
        sums.1.word(u16::from(TCP));
        sums.1.add(&copy[tcp..header_len]);
        let [packet, segment] = [sums.0, sums.1].map(|sum| u16::from_be_bytes(sum.folded()));
        let sums = (packet, segment);
        Ok(Self { header: copy, id, sequence, flags, sums, ip, tcp, header_len, len, size, count, v6 })
    }

    /// Bytes of payload.
    pub const fn payload(&self) -> u32 {
        self.len - self.header_len as u32
    }

    /// How many frames it becomes.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Which bytes follow the headers of some segments, from one on.
    fn payload_of(&self, first: u32, count: u32) -> Range<u32> {
        let from = self.header_len as u32 + first * self.size;
        from..(from + count * self.size).min(self.len)
    }

    /// The headers of some segments, from one on, as if they were one frame: without lengths and checksums.
    fn headers(&self, first: u32, count: u32) -> [u8; MAX_HEADER] {
        let mut header = self.header;
        if !self.v6 {
            put(&mut header, self.ip + 4, self.id.wrapping_add(first as u16).to_be_bytes());
        }
        let sequence = self.sequence.wrapping_add(first * self.size);
        let middle = if first + count < self.count { flag::FIN | flag::PSH } else { 0 };
        let later = if first > 0 { flag::CWR } else { 0 };
        put(&mut header, self.tcp + 4, sequence.to_be_bytes());
        put(&mut header, self.tcp + 13, [self.flags & !(middle | later)]);
        header
    }

    /// One of them.
    pub(crate) fn segment(&self, number: u32) -> Segment {
        let payload = self.payload_of(number, 1);
        let (ip, tcp, end) = (self.ip, self.tcp, self.header_len);
        let mut header = self.headers(number, 1);
        let word = |header: &[u8; MAX_HEADER], at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let bytes = (payload.end - payload.start) as u16 + (end - tcp) as u16;
        if self.v6 {
            put(&mut header, ip + 4, bytes.to_be_bytes());
        } else {
            let packet = bytes + (tcp - ip) as u16;
            let mut sum = Sum::new();
            [self.sums.0, packet, word(&header, ip + 4)].into_iter().for_each(|word| sum.word(word));
            put(&mut header, ip + 2, packet.to_be_bytes());
            put(&mut header, ip + 10, sum.checksum());
        }
        let mut sum = Sum::new();
        let [high, low] = [tcp + 4, tcp + 6].map(|at| word(&header, at));
        let words = [self.sums.1, bytes, high, low, u16::from(header[tcp + 13])];
        words.into_iter().for_each(|word| sum.word(word));
        put(&mut header, tcp + TCP_CHECKSUM, sum.folded());
        Segment { header, header_len: end, payload, field: (tcp + TCP_CHECKSUM) as u32 }
    }
}

/// Flags of TCP.
mod flag {
    pub const FIN: u8 = 1;
    pub const PSH: u8 = 8;
    pub const CWR: u8 = 0x80;
}

/// Where TCP begins in an IPv4 packet.
fn after_ipv4(start: &[u8], ip: usize) -> Option<usize> {
    let first = *start.get(ip + 20 - 1).and(start.get(ip))?;
    let (version, len) = (first >> 4, usize::from(first & 15) * 4);
    let fragment = word(start, ip + 6)? & 0x3fff != 0;
    let right = word(start, ip - 2)? == 0x0800 && version == 4 && len >= 20 && !fragment;
    (right && start[ip + 9] == TCP).then_some(ip + len)
}

/// Where TCP begins in an IPv6 packet.
fn after_ipv6(start: &[u8], ip: usize) -> Option<usize> {
    let first = *start.get(ip + IPV6 - 1).and(start.get(ip))?;
    (word(start, ip - 2)? == 0x86dd && first >> 4 == 6 && start[ip + 6] == TCP).then_some(ip + IPV6)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn put<const N: usize>(header: &mut [u8; MAX_HEADER], at: usize, bytes: [u8; N]) {
    header[at..at + N].copy_from_slice(&bytes);
}

/// The segments of a frame, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    tso: Option<&'a Tso>,
    next: u32,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let tso = self.tso.filter(|tso| self.next < tso.count)?;
        self.next += 1;
        Some(tso.segment(self.next - 1))
    }
}

/// A frame in place of a longer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its headers, as many bytes as `header_len`. TCP's checksum holds the sum of pseudo header and header.
    pub header: [u8; MAX_HEADER],
    /// Bytes of its headers.
    pub header_len: usize,
    /// Which bytes of the long frame follow.
    pub payload: Range<u32>,
    field: u32,
}

impl Segment {
    /// The headers' bytes.
    pub fn headers(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Bytes of the frame.
    pub const fn bytes(&self) -> u32 {
        self.header_len as u32 + (self.payload.end - self.payload.start)
    }

    /// TCP's checksum, from the sum of the payload as it was copied.
    pub fn finish(&self, mut payload: Sum) -> Field {
        let at = self.field as usize;
        payload.word(u16::from_be_bytes([self.header[at], self.header[at + 1]]));
        Field { at: self.field, bytes: payload.checksum() }
    }
}
