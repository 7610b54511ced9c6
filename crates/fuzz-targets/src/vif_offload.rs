//! Virtual interfaces of a network card: what a guest's driver writes before and into its frames.

use crate::Input;
use sluice_vif::offload::{Header, MAX_SEGMENTS, Plan, Sum, Work};

/// The longest frame that may leave.
const LONGEST: u32 = 1518;

/// The header and the beginning of a frame, half of them valid but for some bytes. Asserts that what leaves has a length that the link
/// takes, that segments have each byte of the payload once, in order, with a checksum that is right, and that nothing is written
/// into the Ethernet header or behind the frame.
pub fn offload(data: &[u8]) {
    let mut input = Input::new(data);
    let v6 = input.flag();
    let mut header: [u8; Header::BYTES] = if input.flag() {
        let (kind, start) = if v6 { (Header::GSO_TCPV6, 54) } else { (Header::GSO_TCPV4, 34) };
        let gso_type = input.choose(&[kind, kind, Header::GSO_NONE]);
        let gso_size = if input.flag() { input.choose(&[1448, 1464, 536, 200]) } else { input.u16() };
        Header { flags: 1, gso_type, gso_size, csum_start: start, csum_offset: 16, ..Header::default() }
            .bytes()
    } else if input.flag() {
        let (csum_start, csum_offset) = (u16::from(input.u8() % 32), u16::from(input.u8() % 32));
        Header { flags: 1, csum_start, csum_offset, ..Header::default() }.bytes()
    } else {
        core::array::from_fn(|_| input.u8())
    };
    if input.flag() {
        let at = usize::from(input.u8()) % header.len();
        header[at] = input.u8();
    }
    let len = usize::from(input.u16() >> (input.u8() % 8)) + 66;
    let mut frame: Vec<u8> = if v6 {
        let ip = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64], &[3; 32]].concat();
        [&ip[..], &[4; 12], &[0x50]].concat()
    } else {
        let ip = [&[2; 12][..], &[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6], &[3; 10]].concat();
        [&ip[..], &[4; 12], &[0x50]].concat()
    };
    frame.extend((frame.len()..256).map(|_| input.u8()));
    input.damage(&mut frame);
    // A frame of which the queue has less than the engine wants to see is all there is.
    let len = if frame.len() < 256 { frame.len() } else { len };
    frame.resize(len, 0xa5);
    let start = &frame[..len.min(Plan::START)];
    let Ok(plan) = Plan::new(&Header::parse(&header), start, len as u32, LONGEST) else { return };
    let segmented = plan.segments().count() as u32;
    match plan.work() {
        Work::Nothing => assert!(len as u32 <= LONGEST && segmented == 0),
        Work::Checksum(checksum) => {
            assert!(len as u32 <= LONGEST && segmented == 0);
            let range = checksum.range();
            let mut sum = Sum::new();
            sum.add(&frame[range.start as usize..range.end as usize]);
            let field = checksum.finish(sum);
            assert!(field.at >= 14 && field.at as usize + 2 <= len, "a checksum outside the packet");
        }
        Work::Segments(_) => {
            assert!(segmented > 0 && segmented <= MAX_SEGMENTS);
            let mut next = None;
            for segment in plan.segments() {
                assert!(segment.bytes() <= LONGEST, "a segment is too long");
                assert!(next.is_none_or(|next| next == segment.payload.start), "a gap in the payload");
                next = Some(segment.payload.end);
                let payload = &frame[segment.payload.start as usize..segment.payload.end as usize];
                let mut sum = Sum::new();
                sum.add(payload);
                let mut sent = [segment.headers(), payload].concat();
                let field = segment.finish(sum);
                assert!(field.at >= 34, "a checksum in front of TCP");
                sent[field.at as usize..][..2].copy_from_slice(&field.bytes);
                is_right(&sent);
            }
            assert_eq!(next, Some(len as u32), "the end of the payload");
        }
    }
}

/// Asserts that TCP's checksum is right, by the plainest sum there is.
fn is_right(frame: &[u8]) {
    let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let (tcp, addresses) = if frame[ip] >> 4 == 6 {
        (ip + 40, &frame[ip + 8..ip + 40])
    } else {
        (ip + usize::from(frame[ip] & 15) * 4, &frame[ip + 12..ip + 20])
    };
    let len = ((frame.len() - tcp) as u16).to_be_bytes();
    let mut sum = 0u64;
    for pair in [addresses, &[0, 6], &len, &frame[tcp..]].concat().chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff, "a segment's checksum is wrong");
}
