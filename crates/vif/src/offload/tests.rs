//! Segments put together again are the frame, checksums are what a naive sum says, and hostile headers are refused.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const MTU: u32 = 1518;
const ALL: u8 = 0xff;

/// The sum of RFC 1071, 4.1, word by word: 0xffff over what holds a right checksum.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A kind of frame.
#[derive(Clone, Copy, Debug)]
struct Shape {
    v6: bool,
    tagged: bool,
    /// Words of options of IPv4 and TCP.
    options: (usize, usize),
    flags: u8,
    sequence: u32,
    id: u16,
}

impl Shape {
    const PLAIN: Self = Self { v6: false, tagged: false, options: (0, 3), flags: ALL, sequence: 7, id: 9 };

    fn ip(&self) -> usize {
        if self.tagged { 18 } else { 14 }
    }

    fn tcp(&self) -> usize {
        self.ip() + if self.v6 { 40 } else { 20 + self.options.0 * 4 }
    }

    fn payload(&self) -> usize {
        self.tcp() + 20 + self.options.1 * 4
    }

    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x5a; 12];
        if self.tagged {
            frame.extend([0x81, 0, 0x20, 5]);
        }
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x6b, 1, 2, 3, 0xee, 0xee, 6, 64]);
            frame.extend(0x10..0x30);
        } else {
            let [i0, i1] = self.id.to_be_bytes();
            frame.extend([8, 0, 0x45 + self.options.0 as u8, 0, 0xee, 0xee, i0, i1, 0x40, 0, 64, 6]);
            frame.extend([0xee, 0xee, 10, 0, 2, 15, 10, 0, 2, 2]);
            frame.resize(self.tcp(), 1);
        }
        frame.extend([0x12, 0x34, 0, 80]);
        frame.extend(self.sequence.to_be_bytes());
        frame.extend([9, 8, 7, 6, 0x50 + (self.options.1 as u8) * 16, self.flags, 1, 2, 0xee, 0xee, 0, 3]);
        frame.resize(self.payload(), 1);
        frame.extend(payload);
        frame
    }

    fn header(&self, gso_size: u16) -> Header {
        let gso_type = if self.v6 { Header::GSO_TCPV6 } else { Header::GSO_TCPV4 };
        let csum_start = self.tcp() as u16;
        Header {
            flags: 1,
            gso_type,
            hdr_len: 0xffff,
            gso_size,
            csum_start,
            csum_offset: 16,
            num_buffers: 0xffff,
        }
    }
}

fn plan(header: &Header, frame: &[u8]) -> Result<Plan, Refused> {
    Plan::new(header, &frame[..frame.len().min(Plan::START)], frame.len() as u32, MTU)
}

/// A segment as it leaves, its payload added in pieces.
fn send(frame: &[u8], segment: &Segment, piece: usize) -> Vec<u8> {
    let payload = &frame[segment.payload.start as usize..segment.payload.end as usize];
    let mut sum = Sum::new();
    payload.chunks(piece).for_each(|piece| sum.add(piece));
    let mut sent = [segment.headers(), payload].concat();
    let field = segment.finish(sum);
    sent[field.at as usize..][..2].copy_from_slice(&field.bytes);
    assert_eq!(sent.len() as u32, segment.bytes());
    sent
}

/// Asserts that lengths and checksums of a frame are right.
fn is_sound(shape: &Shape, sent: &[u8]) {
    let (ip, tcp) = (shape.ip(), shape.tcp());
    let number = |at: usize| usize::from(u16::from_be_bytes([sent[at], sent[at + 1]]));
    let addresses = if shape.v6 {
        assert_eq!(number(ip + 4), sent.len() - tcp, "the packet's length");
        &sent[ip + 8..ip + 40]
    } else {
        assert_eq!(number(ip + 2), sent.len() - ip, "the packet's length");
        assert_eq!(naive(&sent[ip..tcp]), 0xffff, "IPv4's checksum");
        &sent[ip + 12..ip + 20]
    };
    let len = ((sent.len() - tcp) as u16).to_be_bytes();
    assert_eq!(naive(&[addresses, &[0, 6], &len, &sent[tcp..]].concat()), 0xffff, "TCP's checksum");
}

prop_compose! {
    fn shape()(v6: bool, tagged: bool, options in (0usize..=10, 0usize..=10), flags: u8, sequence: u32, id: u16) -> Shape {
        Shape { v6, tagged, options, flags, sequence, id }
    }
}

proptest! {
    #[test]
    fn segments_put_together_are_the_frame(shape in shape(), payload in prop::collection::vec(any::<u8>(), 0..9000),
                                           size in 36u16..1380, piece in 1usize..70) {
        let frame = shape.frame(&payload);
        let plan = plan(&shape.header(size), &frame).unwrap();
        let sent: Vec<_> = plan.segments().map(|segment| send(&frame, &segment, piece)).collect();
        prop_assert_eq!(sent.len(), payload.len().div_ceil(usize::from(size)).max(1));
        let mut again = Vec::<u8>::new();
        for (number, bytes) in sent.iter().enumerate() {
            is_sound(&shape, bytes);
            prop_assert!(bytes.len() as u32 <= MTU);
            let (last, flags) = (number + 1 == sent.len(), bytes[shape.tcp() + 13]);
            let cleared = if last { 0 } else { 0x09 } | if number == 0 { 0 } else { 0x80 };
            prop_assert_eq!(flags, shape.flags & !cleared);
            let sequence = shape.sequence.wrapping_add(again.len() as u32);
            prop_assert_eq!(&bytes[shape.tcp() + 4..shape.tcp() + 8], &sequence.to_be_bytes());
            if !shape.v6 {
                let id = shape.id.wrapping_add(number as u16);
                prop_assert_eq!(&bytes[shape.ip() + 4..shape.ip() + 6], &id.to_be_bytes());
            }
            // What has no reason to change has not changed.
            let mut header = bytes[..shape.payload()].to_vec();
            let (ip, tcp) = (shape.ip(), shape.tcp());
            let changed = if shape.v6 { [ip + 4..ip + 6, 0..0] } else { [ip + 2..ip + 6, ip + 10..ip + 12] };
            for range in changed.into_iter().chain([tcp + 4..tcp + 8, tcp + 13..tcp + 14, tcp + 16..tcp + 18]) {
                header[range.clone()].copy_from_slice(&frame[range]);
            }
            prop_assert_eq!(&header, &frame[..shape.payload()]);
            again.extend(&bytes[shape.payload()..]);
        }
        prop_assert_eq!(again, payload);
    }

    #[test]
    fn a_card_cuts_as_segments_are_made(shape in shape(), payload in prop::collection::vec(any::<u8>(), 1..9000),
                                        size in 256u16..1380, parts in prop::collection::vec(1u32..9, 0..9)) {
        let frame = shape.frame(&payload);
        let plan = plan(&shape.header(size), &frame).unwrap();
        let Work::Segments(tso) = plan.work() else { panic!("no segments") };
        let expected: Vec<_> = plan.segments().map(|segment| send(&frame, &segment, 64)).collect();
        let (mut cut, mut parts) = (Vec::new(), parts.into_iter());
        while cut.len() < expected.len() {
            let first = cut.len() as u32;
            let count = parts.next().unwrap_or(u32::MAX).min(tso.most_together(first));
            let together = tso.together(first, count);
            let packet = [together.headers(), &frame[together.payload.start as usize..together.payload.end as usize]].concat();
            prop_assert_eq!(packet.len() as u32, tso.bytes_together(first, count));
            let offload = tso.offload(0);
            prop_assert_eq!(offload.frames(packet.len()), Some(count as usize));
            let made = crate::tests::cutter::cut(&packet, &offload);
            made.iter().for_each(|frame| is_sound(&shape, frame));
            cut.extend(made);
        }
        prop_assert_eq!(cut, expected);
    }

    #[test]
    fn a_sum_does_not_depend_on_the_pieces(bytes in prop::collection::vec(any::<u8>(), 0..600), cuts in prop::collection::vec(0usize..70, 0..20)) {
        let (mut sum, mut rest) = (Sum::new(), &bytes[..]);
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            sum.add(piece);
            rest = behind;
        }
        sum.add(rest);
        prop_assert_eq!(sum.folded(), naive(&bytes).to_be_bytes());
        prop_assert_eq!(sum.checksum(), (!naive(&bytes)).to_be_bytes());
    }

    #[test]
    fn a_checksum_is_completed(bytes in prop::collection::vec(any::<u8>(), 40..1518), start in 14u16..30, offset in (0u16..8).prop_map(|half| half * 2)) {
        let mut frame = bytes;
        (frame[12], frame[13]) = (8, 0);
        let header = Header { flags: 1, csum_start: start, csum_offset: offset, ..Header::default() };
        let plan = plan(&header, &frame);
        if usize::from(start + offset) + 2 > frame.len() {
            prop_assert_eq!(plan, Err(Refused::Checksum));
        } else {
            let plan = plan.unwrap();
            let &Work::Checksum(checksum) = plan.work() else { panic!("no checksum") };
            let (at, pseudo) = (usize::from(start + offset), u16::from_be_bytes([frame[usize::from(start + offset)], frame[usize::from(start + offset) + 1]]));
            let mut sum = Sum::new();
            sum.add(&frame[checksum.range().start as usize..checksum.range().end as usize]);
            let field = checksum.finish(sum);
            prop_assert_eq!(field.at as usize, at);
            frame[at..at + 2].copy_from_slice(&field.bytes);
            let all = [&pseudo.to_be_bytes()[..], &frame[usize::from(start)..]].concat();
            prop_assert_eq!(naive(&all), 0xffff);
            prop_assert_ne!(field.bytes, [0; 2]);
        }
    }

    #[test]
    fn headers_are_written_as_they_were_read(bytes: [u8; 12]) {
        prop_assert_eq!(Header::parse(&bytes).bytes(), bytes);
    }

    #[test]
    fn no_header_is_too_strange(bytes: [u8; 12], shape in shape(), damage in prop::collection::vec((0usize..140, any::<u8>()), 0..6),
                                len in 0u32..140_000, cut in 0usize..200, longest in 0u32..70_000) {
        let mut frame = shape.frame(&[0; 80]);
        for (at, value) in damage {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut);
        for header in [Header::parse(&bytes), Header { gso_size: u16::from_le_bytes([bytes[6], bytes[7]]), ..shape.header(0) }] {
            if let Ok(plan) = Plan::new(&header, &frame, len, longest) {
                prop_assert!(plan.segments().count() <= MAX_SEGMENTS as usize);
                prop_assert!(plan.segments().all(|segment| segment.bytes() <= longest && segment.payload.end <= len));
            }
        }
    }
}

#[test]
fn words_of_a_virtio_header_are_where_linux_has_them() {
    let header = Header::parse(&[3, 0x84, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let expected = Header {
        flags: Header::NEEDS_CSUM | Header::DATA_VALID,
        gso_type: Header::GSO_TCPV6 | Header::GSO_ECN,
        hdr_len: 0x0201,
        gso_size: 0x0403,
        csum_start: 0x0605,
        csum_offset: 0x0807,
        num_buffers: 0x0a09,
    };
    assert_eq!(header, expected);
}

#[test]
fn frames_that_are_not_tcp_right_behind_ip_are_refused() {
    let try_with = |shape: Shape, at: usize, value: u8| {
        let mut frame = shape.frame(&[0; 4000]);
        frame[at] = value;
        plan(&shape.header(1400), &frame).map(|_| ())
    };
    let (v4, v6) = (Shape::PLAIN, Shape { v6: true, ..Shape::PLAIN });
    for (about, shape, at, value) in [
        ("another type", v4, 12, 9),
        ("version 6 in IPv4", v4, 14, 0x65),
        ("a header of 16 bytes", v4, 14, 0x44),
        ("more fragments", v4, 20, 0x20),
        ("a fragment", v4, 21, 1),
        ("a fragment far behind", v4, 20, 0x10),
        ("UDP", v4, 23, 17),
        ("a TCP header of 16 bytes", v4, 46, 0x40),
        ("another type", v6, 12, 8),
        ("version 4 in IPv6", v6, 14, 0x45),
        ("an extension header", v6, 20, 0),
        ("a TCP header of no bytes", v6, 66, 0),
    ] {
        assert_eq!(try_with(shape, at, value), Err(Refused::NotTcp), "{about}");
    }
    assert_eq!(try_with(v4, 20, 0x40), Ok(()), "what may not be fragmented may be segmented");
    assert_eq!(try_with(v4, 14, 0x46), Err(Refused::Checksum), "TCP is elsewhere than the checksum");
    let tag_in_tag = Shape { tagged: true, ..v4 };
    assert_eq!(try_with(tag_in_tag, 16, 0x81), Err(Refused::NotTcp));
}

#[test]
fn what_a_header_claims_is_compared_with_the_frame() {
    let (shape, frame) = (Shape::PLAIN, Shape::PLAIN.frame(&[0; 4000]));
    let good = shape.header(1400);
    assert_eq!(plan(&good, &frame).map(|plan| plan.segments().count()), Ok(3));
    for (header, refused) in [
        (Header { gso_size: 0, ..good }, Refused::GsoSize),
        (Header { gso_size: 15, ..good }, Refused::GsoSize),
        (Header { gso_size: 1453, ..good }, Refused::TooLong),
        (Header { gso_type: 4, ..good }, Refused::NotTcp),
        (Header { gso_type: 3, ..good }, Refused::GsoType),
        (Header { gso_type: 5, ..good }, Refused::GsoType),
        (Header { gso_type: Header::GSO_ECN, ..good }, Refused::GsoType),
        (Header { gso_type: 0, ..good }, Refused::TooLong),
        (Header { flags: 0, ..good }, Refused::Checksum),
        (Header { csum_start: 36, ..good }, Refused::Checksum),
        (Header { csum_offset: 6, ..good }, Refused::Checksum),
        (Header { csum_offset: 0xffff, ..good }, Refused::Checksum),
    ] {
        assert_eq!(plan(&header, &frame).map(|_| ()), Err(refused), "{header:?}");
    }
    let allowed = Header { gso_size: 1452, ..good };
    assert!(plan(&allowed, &frame).is_ok(), "as long as the link takes");
    assert_eq!(Plan::new(&good, &frame, 66 + MAX_PAYLOAD + 1, MTU).map(|_| ()), Err(Refused::GsoSize));
    assert_eq!(Plan::new(&good, &frame, 66 + MAX_PAYLOAD, MTU).map(|plan| plan.segments().count()), Ok(47));
    assert_eq!(
        Plan::new(&good, &frame[..65], 4000, MTU).map(|_| ()),
        Err(Refused::NotTcp),
        "headers are cut"
    );
    assert_eq!(Plan::new(&good, &frame, 65, MTU).map(|_| ()), Err(Refused::NotTcp), "the frame is cut");
    assert_eq!(plan(&Header::default(), &frame[..13]).map(|_| ()), Err(Refused::TooShort));
}

#[test]
fn no_checksum_is_written_where_addresses_were_checked() {
    let mut frame = vec![0; 100];
    let mut header = Header { flags: 1, csum_start: 6, csum_offset: 40, ..Header::default() };
    assert_eq!(plan(&header, &frame).map(|_| ()), Err(Refused::Checksum));
    (header.csum_start, header.csum_offset) = (14, 84);
    assert!(plan(&header, &frame).is_ok());
    header.csum_offset = 85;
    assert_eq!(plan(&header, &frame).map(|_| ()), Err(Refused::Checksum));
    (header.csum_offset, frame[12]) = (0, 0x81);
    assert_eq!(plan(&header, &frame).map(|_| ()), Err(Refused::Checksum), "the tag says which VLAN");
}

#[test]
fn a_receiver_gets_what_was_checked_and_nothing_else() {
    let shape = Shape::PLAIN;
    let strange = Header { flags: 0xff, gso_type: 0x81, ..shape.header(1400) };
    let segments = plan(&strange, &shape.frame(&[0; 4000])).unwrap();
    let passed = Header { flags: 1, hdr_len: 66, num_buffers: 3, ..strange };
    assert_eq!(segments.pass(3), passed);
    let (csum, tso4, tso6, ecn) = (1 << 1, 1 << 7, 1 << 8, 1 << 9);
    assert!(segments.suits(csum | tso4 | ecn));
    assert!(
        !segments.suits(csum | tso4) && !segments.suits(csum | tso6 | ecn) && !segments.suits(tso4 | ecn)
    );
    let frame = shape.frame(&[]);
    let checksum = plan(&Header { gso_type: 0, ..shape.header(9) }, &frame).unwrap();
    let passed = Header { flags: 1, csum_start: 34, csum_offset: 16, num_buffers: 1, ..Header::default() };
    assert_eq!(checksum.pass(1), passed);
    assert!(checksum.suits(csum) && !checksum.suits(tso4) && checksum.segments().next().is_none());
    let valid = Header { flags: Header::DATA_VALID, csum_start: 9, gso_size: 7, ..Header::default() };
    let nothing = plan(&valid, &frame).unwrap();
    assert_eq!(
        nothing.pass(1),
        Header { num_buffers: 1, ..Header::default() },
        "a sender's word is no check"
    );
    assert!(nothing.suits(0));
}
