//! Frames of one TCP stream that come from the wire one after the other, put together into one for their receiver.
//!
//! A guest's stack does most of its work for each frame, however long; and what was put together here needs no checksum there. Only what
//! could as well have come in one piece is: in order, whole, with right checksums, alike in all headers but for what counts on.
//!
//! Source: RFC 791, 9293 (headers); Virtio 1.2, 5.1.6.4 (receiving). TCP over IPv4 without options and fragments.

use crate::VifId;
use crate::frame::Frame;
use crate::offload::{Header, Sum};
use alloc::boxed::Box;
use core::ops::Range;

/// Streams from the wire that are put together at once.
pub(crate) const STREAMS: usize = 4;
/// Most bytes: IP counts its own with 16 bits.
const MOST: usize = IP + u16::MAX as usize;
/// Where headers and their fields are.
const IP: usize = 14;
const IP_LENGTH: usize = IP + 2;
const IP_FRAGMENT: usize = IP + 6;
const IP_PROTOCOL: usize = IP + 9;
const IP_CHECKSUM: usize = IP + 10;
const IP_ADDRESSES: Range<usize> = IP + 12..TCP;
const TCP: usize = IP + 20;
const TCP_SEQUENCE: usize = TCP + 4;
const TCP_ACKNOWLEDGED: usize = TCP + 8;
const TCP_OFFSET: usize = TCP + 12;
const TCP_FLAGS: usize = TCP + 13;
const TCP_WINDOW: usize = TCP + 14;
const TCP_CHECKSUM: usize = TCP + 16;
const TCP_URGENT: usize = TCP + 18;
const TCP_OPTIONS: usize = TCP + 20;
/// The type of IPv4, the number of TCP, and flags: more to come at once, acknowledgement.
const IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL: u8 = 6;
const PUSH: u8 = 8;
const ACK: u8 = 16;
/// Fragments: more come, or this is not the first.
const FRAGMENT: u16 = 0x3fff;

/// What a driver has to accept for it: to leave checksums and segmentation to it, and frames over several buffers.
pub(crate) const WANTED: u64 =
    crate::feature::GUEST_CSUM | crate::feature::GUEST_TSO4 | crate::feature::MERGEABLE;

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

/// A frame that can be put together with others.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Without padding.
    frame: &'a [u8],
    /// Bytes of its headers.
    headers: usize,
    /// The card has found its checksums right.
    checked: bool,
}

impl<'a> Part<'a> {
    /// A frame with data, if it is one. Its checksums may be wrong.
    pub fn of(frame: &'a [u8], checked: bool) -> Option<Self> {
        if frame.len() < TCP_OPTIONS || frame[12..IP] != IPV4 || frame[IP] != 0x45 {
            return None;
        }
        let (headers, all) =
            (TCP + usize::from(frame[TCP_OFFSET] >> 4) * 4, IP + usize::from(word(frame, IP_LENGTH)));
        let is_data = headers >= TCP_OPTIONS && headers < all && all <= frame.len();
        let is_plain = frame[IP_PROTOCOL] == PROTOCOL && word(frame, IP_FRAGMENT) & FRAGMENT == 0;
        let flags = frame[TCP_FLAGS];
        let suits = is_data && is_plain && flags & !PUSH == ACK && frame[TCP_OFFSET] & 15 == 0;
        suits.then(|| Self { frame: &frame[..all], headers, checked })
    }
}

/// Whether what does not count on in the headers of two frames is the same: up to lengths, and between identification, checksums, sequence and
/// flags. Each piece is compared by a few instructions, since its length is known here.
fn is_alike(one: &[u8; TCP_OPTIONS], other: &[u8; TCP_OPTIONS]) -> bool {
    fn piece<const AT: usize, const N: usize>(one: &[u8; TCP_OPTIONS], other: &[u8; TCP_OPTIONS]) -> bool {
        one[AT..].first_chunk::<N>() == other[AT..].first_chunk::<N>()
    }
    piece::<0, IP_LENGTH>(one, other)
        && piece::<IP_FRAGMENT, { IP_CHECKSUM - IP_FRAGMENT }>(one, other)
        && piece::<{ IP_ADDRESSES.start }, { TCP_SEQUENCE - IP_ADDRESSES.start }>(one, other)
        && piece::<TCP_ACKNOWLEDGED, { TCP_FLAGS - TCP_ACKNOWLEDGED }>(one, other)
        && piece::<TCP_WINDOW, { TCP_CHECKSUM - TCP_WINDOW }>(one, other)
        && piece::<TCP_URGENT, { TCP_OPTIONS - TCP_URGENT }>(one, other)
}

/// Options, by their words.
fn words(options: &[u8]) -> impl Iterator<Item = &[u8; 4]> {
    options.as_chunks().0.iter()
}

/// The sum of what TCP's checksum covers beside the segment.
fn pseudo_header(frame: &[u8]) -> Sum {
    let mut sum = Sum::new();
    sum.add(&frame[IP_ADDRESSES]);
    sum.word(PROTOCOL.into());
    sum.word((frame.len() - TCP) as u16);
    sum
}

/// Whether the checksums of a frame without padding are right.
fn is_sound(frame: &[u8]) -> bool {
    let mut ip = Sum::new();
    ip.add(&frame[IP..TCP]);
    let mut tcp = pseudo_header(frame);
    tcp.add(&frame[TCP..]);
    ip.folded() == [0xff; 2] && tcp.folded() == [0xff; 2]
}

/// A frame that others may be added to.
#[derive(Default)]
pub(crate) struct Stream {
    bytes: Box<[u8]>,
    len: usize,
    headers: usize,
    /// Payload of the first frame, and how many there are.
    size: usize,
    count: usize,
    /// Nothing can be added.
    is_over: bool,
    target: Option<VifId>,
}

impl Stream {
    pub fn new() -> Self {
        Self { bytes: alloc::vec![0; MOST].into_boxed_slice(), ..Self::default() }
    }

    /// Nothing is there.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes a frame for this VIF, if it can be put together with what is there, or, if that is nothing, with what comes.
    pub fn add(&mut self, Part { frame, headers, checked }: Part<'_>, target: VifId) -> bool {
        let (all, payload) = (frame.len(), &frame[headers..]);
        let is_first = self.is_empty();
        if !is_first && !self.is_continued_by(frame, headers, target) || !checked && !is_sound(frame) {
            return false;
        }
        if is_first {
            self.bytes[..all].copy_from_slice(frame);
            (self.len, self.headers, self.size, self.target) = (all, headers, payload.len(), Some(target));
        } else {
            self.bytes[self.len..self.len + payload.len()].copy_from_slice(payload);
            self.bytes[TCP_FLAGS] |= frame[TCP_FLAGS];
            self.len += payload.len();
        }
        self.count += 1;
        self.is_over = frame[TCP_FLAGS] & PUSH != 0 || payload.len() < self.size;
        true
    }

    /// Whether a frame is what comes next.
    fn is_continued_by(&self, frame: &[u8], headers: usize, target: VifId) -> bool {
        let next = long(&self.bytes, TCP_SEQUENCE).wrapping_add((self.len - self.headers) as u32);
        let payload = frame.len() - headers;
        let Some((own, options)) = self.bytes.split_at_checked(TCP_OPTIONS) else { return false };
        let (Some(own), Some(other)) = (own.first_chunk(), frame.first_chunk()) else { return false };
        !self.is_over
            && self.target == Some(target)
            && headers == self.headers
            && payload <= self.size
            && self.len + payload <= MOST
            && long(frame, TCP_SEQUENCE) == next
            && is_alike(own, other)
            && words(options).zip(words(&frame[TCP_OPTIONS..headers])).all(|(own, other)| own == other)
    }

    /// What has been put together, for whom, if there is something; nothing is there then.
    pub fn take<M>(&mut self) -> Option<(VifId, Frame<'_, M>)> {
        let count = core::mem::take(&mut self.count);
        self.is_over = true;
        let mut header = Header { flags: Header::DATA_VALID, ..Header::default() };
        match count {
            0 => return None,
            1 => {}
            _ => {
                let [high, low] = ((self.len - IP) as u16).to_be_bytes();
                (self.bytes[IP_LENGTH], self.bytes[IP_LENGTH + 1]) = (high, low);
                self.bytes[IP_CHECKSUM..IP_CHECKSUM + 2].fill(0);
                let mut sum = Sum::new();
                sum.add(&self.bytes[IP..TCP]);
                self.bytes[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&sum.checksum());
                // TCP's is left to nobody: its field says so by the sum of the rest (5.1.6.2).
                let rest = pseudo_header(&self.bytes[..self.len]).folded();
                self.bytes[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&rest);
                header = Header {
                    flags: Header::NEEDS_CSUM,
                    gso_type: Header::GSO_TCPV4,
                    hdr_len: self.headers as u16,
                    gso_size: self.size as u16,
                    csum_start: TCP as u16,
                    csum_offset: (TCP_CHECKSUM - TCP) as u16,
                    num_buffers: 0,
                };
            }
        }
        Some((self.target?, Frame { start: &self.bytes[..self.len], rest: None, header }))
    }
}
