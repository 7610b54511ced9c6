//! What is left to a physical card: checksums of TCP, and segmentation.

use super::{Checksum, IPV6, Segment, Sum, TCP, TCP_CHECKSUM, Tso, flag, put};
use sluice_nic::Offload;
use sluice_nic::offload::{Checksum as CardSum, Segments};

impl Checksum {
    /// What a card is left to do for it, behind so many more bytes. `None`: it is for no card. Of TCP, a sum of zero is as good as any.
    pub(crate) fn offload(&self, behind: u32) -> Option<Offload> {
        let is_tcp = self.field - self.start == TCP_CHECKSUM as u32;
        let start = u8::try_from(self.start + behind).ok().filter(|_| is_tcp)?;
        let offset = u8::try_from(self.field + behind).ok()?;
        let transport = Some(CardSum { start, offset, end: 0 });
        Some(Offload { transport, ..Offload::default() })
    }
}

impl Tso {
    /// How many of them, from one on, a card may be given as one frame: no card clears CWR.
    pub(crate) const fn most_together(&self, first: u32) -> u32 {
        if first == 0 && self.flags & flag::CWR != 0 { 1 } else { self.count.saturating_sub(first) }
    }

    /// Bytes of each of the frames that it becomes, but the last, and of its headers.
    pub(crate) const fn segment_bytes(&self) -> u32 {
        self.header_bytes() + self.size
    }

    /// Bytes of its headers.
    pub(crate) const fn header_bytes(&self) -> u32 {
        self.header_len as u32
    }

    /// Bytes of [`Self::together`].
    pub(crate) fn bytes_together(&self, first: u32, count: u32) -> u32 {
        self.header_bytes() + self.payload_of(first, count).len() as u32
    }

    /// Some of them, from one on, as one frame that a card cuts by [`Self::offload`]. Lengths and IPv4's checksum are the card's to put
    /// in; TCP's holds the sum of the pseudo header without a length.
    pub(crate) fn together(&self, first: u32, count: u32) -> Segment {
        let payload = self.payload_of(first, count);
        let mut header = self.headers(first, count);
        let mut sum = Sum::new();
        sum.word(u16::from(TCP));
        sum.add(&header[if self.v6 { self.ip + 8..self.ip + IPV6 } else { self.ip + 12..self.ip + 20 }]);
        put(&mut header, self.tcp + TCP_CHECKSUM, sum.folded());
        let field = (self.tcp + TCP_CHECKSUM) as u32;
        Segment { header, header_len: self.header_len, payload, field }
    }

    /// What a card is left to do to a frame of [`Self::together`] behind so many more bytes.
    pub(crate) fn offload(&self, behind: u32) -> Offload {
        let [ip, transport, header] = [self.ip, self.tcp, self.header_len].map(|at| at as u8 + behind as u8);
        let packet = CardSum { start: ip, offset: ip + 10, end: u16::from(transport) - 1 };
        let ipv4 = !self.v6;
        let segments = Segments { header, payload: self.size as u16, ip, transport, ipv4, tcp: true };
        Offload {
            ip: ipv4.then_some(packet),
            transport: Some(CardSum { start: transport, offset: transport + TCP_CHECKSUM as u8, end: 0 }),
            segments: Some(segments),
            // The length that the IP header has is the card's to put in.
            is_in_headers: false,
        }
    }
}
