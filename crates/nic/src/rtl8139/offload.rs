//! What the C+ transmitter does to frames: checksums of IPv4, TCP and UDP, and cutting TCP into segments.
//!
//! Sources: RTL8139C+(L) data sheet 1.6, section 6.2 (LGSEN, IPCS, UDPCS, TCPCS); RFC 791, 793, 768, 1071.
//! A frame that is not what its descriptor claims goes out as it is.

use crate::checksum::{fold, sum};

pub(super) const LARGE_SEND: u32 = 1 << 27;
pub(super) const IP_CHECKSUM: u32 = 1 << 18;
pub(super) const UDP_CHECKSUM: u32 = 1 << 17;
pub(super) const TCP_CHECKSUM: u32 = 1 << 16;
/// With LGSEN, from bit 16 on: bytes of a segment.
pub(super) const SEGMENT: u16 = 0x7ff;
/// Bytes before the IP header.
pub(super) const ETHERNET: usize = 14;
pub(super) const TCP: u8 = 6;
const UDP: u8 = 17;
pub(super) const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// TCP flags that only the last segment carries.
const PUSH_AND_FIN: u8 = 0x09;

/// How a frame goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// As it now is.
    Whole,
    /// In segments.
    Segments(LargeSend),
}

/// Where things are in a large frame, and how far sending it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LargeSend {
    /// Bytes of the IP header.
    ip_header: usize,
    /// Bytes of the TCP header.
    tcp_header: usize,
    /// Bytes behind the headers.
    data: usize,
    /// Bytes of data in a segment, not 0.
    segment: usize,
    /// Bytes of data sent.
    sent: usize,
}

/// Puts in the checksums that the descriptor asks for, or prepares to send segments.
pub(super) fn plan(frame: &mut [u8], status: u32) -> Plan {
    if status & (LARGE_SEND | IP_CHECKSUM | UDP_CHECKSUM | TCP_CHECKSUM) != 0 {
        offload(frame, status).unwrap_or(Plan::Whole)
    } else {
        Plan::Whole
    }
}

fn offload(frame: &mut [u8], status: u32) -> Option<Plan> {
    let (ethernet, packet) = frame.split_at_mut_checked(ETHERNET)?;
    if ethernet.get(12..)? != [0x08, 0x00] || packet.len() < 20 {
        return None;
    }
    let (version, header_len) = (packet.first()? >> 4, usize::from(packet.first()? & 0x0f) * 4);
    let total = usize::from(word(packet, 2)?);
    if version != 4 || header_len < 20 {
        return None;
    }
    let (header, payload) = packet.get_mut(..total)?.split_at_mut_checked(header_len)?;
    let protocol = *header.get(9)?;
    if status & LARGE_SEND != 0 {
        let segment = usize::from((status >> 16) as u16 & SEGMENT);
        if protocol != TCP || payload.len() < TCP_HEADER || segment == 0 {
            return None;
        }
        let tcp_header = usize::from(payload.get(12)? >> 4) * 4;
        let data = payload.len().checked_sub(tcp_header)?;
        return (tcp_header >= TCP_HEADER).then_some(Plan::Segments(LargeSend {
            ip_header: header_len,
            tcp_header,
            data,
            segment,
            sent: 0,
        }));
    }
    if status & IP_CHECKSUM != 0 {
        check_header(header)?;
    }
    match protocol {
        TCP if status & TCP_CHECKSUM != 0 && payload.len() >= TCP_HEADER => check_tcp(header, payload)?,
        UDP if status & UDP_CHECKSUM != 0 && payload.len() >= UDP_HEADER => {
            set_word(payload, 6, 0)?;
            // 0 would mean "no checksum".
            let sum = !fold(pseudo_header(header, payload.len())? + sum(payload));
            set_word(payload, 6, if sum == 0 { 0xffff } else { sum })?;
        }
        _ => {}
    }
    Some(Plan::Whole)
}

impl LargeSend {
    /// Builds the next segment and gives its length; `None` after the last.
    pub(super) fn build(&mut self, whole: &[u8], into: &mut [u8]) -> Option<usize> {
        let left = self.data.checked_sub(self.sent).filter(|left| *left > 0)?;
        let len = left.min(self.segment);
        let headers = ETHERNET + self.ip_header + self.tcp_header;
        let size = headers + len;
        let frame = into.get_mut(..size)?;
        let (front, data) = frame.split_at_mut_checked(headers)?;
        front.copy_from_slice(whole.get(..headers)?);
        let from = headers + self.sent;
        data.copy_from_slice(whole.get(from..from + len)?);

        let (header, payload) = frame.get_mut(ETHERNET..)?.split_at_mut_checked(self.ip_header)?;
        set_word(header, 2, (size - ETHERNET) as u16)?;
        let number = (self.sent / self.segment) as u16;
        set_word(header, 4, word(header, 4)?.wrapping_add(number))?;
        check_header(header)?;
        let place = payload.get_mut(4..8)?.first_chunk_mut::<4>()?;
        *place = u32::from_be_bytes(*place).wrapping_add(self.sent as u32).to_be_bytes();
        if len < left {
            *payload.get_mut(13)? &= !PUSH_AND_FIN;
        }
        check_tcp(header, payload)?;
        self.sent += len;
        Some(size)
    }
}

fn check_header(header: &mut [u8]) -> Option<()> {
    set_word(header, 10, 0)?;
    set_word(header, 10, !fold(sum(header)))
}

fn check_tcp(header: &[u8], payload: &mut [u8]) -> Option<()> {
    set_word(payload, 16, 0)?;
    set_word(payload, 16, !fold(pseudo_header(header, payload.len())? + sum(payload)))
}

/// Sum of what TCP and UDP prepend for their checksum: addresses, protocol, length.
pub(super) fn pseudo_header(header: &[u8], len: usize) -> Option<u64> {
    Some(sum(header.get(12..20)?) + u64::from(*header.get(9)?) + len as u64)
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

pub(super) fn set_word(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
