//! What a card finishes of a packet: checksums, and the cutting into segments.
//!
//! Key type: [`Offload`]. A software card reads it off its guest's descriptors, and whoever drives a physical card that can do the
//! same has that card do it. All that it names lies inside of the packet, and no packet becomes more than [`MOST_SEGMENTS`]
//! frames: a card need not be asked what it makes of anything else.
//!
//! Source: RFC 1071 (checksum); manual 317453, section 3.5 (segmentation), whose terms the fields have.

/// Most frames that one packet becomes.
pub const MOST_SEGMENTS: usize = 256;
/// Least payload of a segment but the last. Links have no smaller ones (RFC 791, section 3.2: 576 bytes less headers).
const LEAST_PAYLOAD: usize = 256;
/// Longest frame, with a VLAN tag and without CRC.
const MAX_FRAME: usize = 1518;
/// Bytes before the IP header, and of the shortest headers of IP, TCP and UDP.
const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
const UDP: usize = 8;

/// A checksum to be put into each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The first byte that is summed.
    pub start: u8,
    /// Where the sum goes; what is there counts, such as a pseudo-header's sum.
    pub offset: u8,
    /// The last byte that is summed; 0: that of the frame.
    pub end: u16,
}

impl Checksum {
    /// All of it lies in the first `len` bytes, and the sum does not go where addresses are: those were checked before.
    const fn is_within(self, len: usize) -> bool {
        let (start, offset, end) = (self.start as usize, self.offset as usize, self.end as usize);
        offset >= ETHERNET
            && start <= offset
            && offset + 2 <= len
            && (end == 0 || (end > offset && end < len))
    }
}

/// How a packet is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Bytes of headers, which each segment repeats.
    pub header: u8,
    /// Bytes of payload of each segment but the last.
    pub payload: u16,
    /// Where the IP header begins.
    pub ip: u8,
    /// Where the header of TCP or UDP begins.
    pub transport: u8,
    /// IPv4, not IPv6.
    pub ipv4: bool,
    /// TCP, not UDP.
    pub tcp: bool,
}

/// What is left to be done to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The IP header's checksum.
    pub ip: Option<Checksum>,
    /// That of TCP or UDP.
    pub transport: Option<Checksum>,
    /// Cutting: lengths, identifications and sequence numbers are put in, too. The sum of the pseudo-header is that of one
    /// without length.
    pub segments: Option<Segments>,
    /// All of it can be found in the packet: its headers are IPv4's and TCP's, the length that the former has is the packet's, and it is
    /// their checksums that are wanted. A card that looks for headers itself, such as an RTL8139C+, then does the same.
    pub is_in_headers: bool,
}

impl Offload {
    /// The frames that a packet of this length becomes; `None` if it is not for a card to finish: something lies outside of it, a
    /// frame would be longer than Ethernet's, or there would be more than [`MOST_SEGMENTS`].
    pub fn frames(&self, len: usize) -> Option<usize> {
        self.frames_of(len, MAX_FRAME)
    }

    /// As [`Self::frames`], where frames have at most so many bytes.
    pub fn frames_of(&self, len: usize, longest: usize) -> Option<usize> {
        let are_within = |len| [self.ip, self.transport].map(|sum| sum.is_none_or(|sum| sum.is_within(len)));
        let Some(segments) = self.segments else {
            return (len <= longest && are_within(len) == [true; 2]).then_some(1);
        };
        let [header, ip, transport] = [segments.header, segments.ip, segments.transport].map(usize::from);
        let payload = usize::from(segments.payload);
        let is_sound = payload >= LEAST_PAYLOAD
            && header + payload <= longest
            && ip >= ETHERNET
            && transport >= ip + IP
            && header >= transport + if segments.tcp { TCP } else { UDP }
            && len > header
            && are_within(header) == [true; 2];
        let frames = if is_sound { (len - header).div_ceil(payload) } else { return None };
        (frames <= MOST_SEGMENTS).then_some(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSPORT: Checksum = Checksum { start: 34, offset: 50, end: 0 };
    const SEGMENTS: Segments =
        Segments { header: 54, payload: 1460, ip: 14, transport: 34, ipv4: true, tcp: true };

    #[test]
    fn a_packet_becomes_as_many_frames_as_its_payload_fills() {
        let offload = Offload { transport: Some(TRANSPORT), segments: Some(SEGMENTS), ..Offload::default() };
        for (len, frames) in [(54, None), (55, Some(1)), (1514, Some(1)), (1515, Some(2)), (65535, Some(45))]
        {
            assert_eq!(offload.frames(len), frames, "{len}");
        }
        let plain = Offload { segments: None, ..offload };
        assert_eq!([51, 52, 1518, 1519].map(|len| plain.frames(len)), [None, Some(1), Some(1), None]);
        let addresses = |offset| Offload { ip: Some(Checksum { start: 0, offset, end: 0 }), ..plain };
        assert_eq!([0, 6, 13, 14].map(|at| addresses(at).frames(100)), [None, None, None, Some(1)]);
    }

    #[test]
    fn what_lies_outside_of_its_header_is_for_no_card() {
        let with = |segments| Offload { segments: Some(segments), ..Offload::default() }.frames(60_000);
        assert_eq!(with(SEGMENTS), Some(42));
        let wrong = [
            Segments { payload: 255, ..SEGMENTS },
            Segments { payload: 1465, ..SEGMENTS },
            Segments { ip: 13, ..SEGMENTS },
            Segments { ip: 255, ..SEGMENTS },
            Segments { transport: 33, ..SEGMENTS },
            Segments { transport: 255, ..SEGMENTS },
            Segments { header: 53, ..SEGMENTS },
        ];
        wrong.iter().for_each(|segments| assert_eq!(with(*segments), None, "{segments:?}"));
        let sums = [
            Checksum { start: 0, offset: 13, end: 0 },
            Checksum { offset: 53, ..TRANSPORT },
            Checksum { start: 51, ..TRANSPORT },
            Checksum { end: 54, ..TRANSPORT },
            Checksum { end: 50, ..TRANSPORT },
        ];
        for sum in sums {
            let offload = Offload { transport: Some(sum), segments: Some(SEGMENTS), ..Offload::default() };
            assert_eq!(offload.frames(60_000), None, "{sum:?}");
        }
        let sum = Checksum { end: 53, ..TRANSPORT };
        assert_eq!(
            Offload { ip: Some(sum), segments: Some(SEGMENTS), ..Offload::default() }.frames(60_000),
            Some(42)
        );
    }
}
