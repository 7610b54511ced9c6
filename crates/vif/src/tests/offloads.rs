//! What a sender leaves to do is done by its receiver, or before.

use super::driver::{Driver, frame};
use super::{EVERYBODY, Lab, STRANGER, mac};
use crate::offload::Header;
use crate::{FEATURES, Mac, feature};
use std::vec::Vec;

/// Everything but what a receiver does itself.
pub const PLAIN: u64 = FEATURES & !(feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6);
const SIZE: u16 = 1400;

/// A TCP frame over IPv4 without options, and the header that asks for its segmentation.
pub fn long(to: Mac, from: Mac, payload: usize) -> (Header, Vec<u8>) {
    let mut bytes = [&to[..], &from, &[8, 0, 0x45, 0, 0xee, 0xee, 0, 1, 0x40, 0, 64, 6, 0xee, 0xee]].concat();
    bytes.extend([
        10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x18, 1, 0, 0xee, 0xee, 0, 0,
    ]);
    bytes.extend((0..payload).map(|nth| (nth * 13) as u8));
    let asks = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCPV4,
        gso_size: SIZE,
        csum_start: 34,
        csum_offset: 16,
        ..Header::default()
    };
    (asks, bytes)
}

pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Asserts that these frames are the segments of a long one: checksums, sequence, payload.
#[track_caller]
fn are_segments(frames: &[Vec<u8>], whole: &[u8]) {
    let mut payload = Vec::new();
    for segment in frames {
        assert!(segment.len() <= 54 + usize::from(SIZE));
        assert_eq!(segment[..14], whole[..14]);
        assert_eq!(sum(&segment[14..34]), 0xffff, "IPv4's checksum");
        let len = ((segment.len() - 34) as u16).to_be_bytes();
        assert_eq!(
            sum(&[&segment[26..34], &[0, 6], &len, &segment[34..]].concat()),
            0xffff,
            "TCP's checksum"
        );
        assert_eq!(segment[38..42], (7 + payload.len() as u32).to_be_bytes());
        payload.extend_from_slice(&segment[54..]);
    }
    assert!(payload == whole[54..], "the payload is another");
}

#[test]
fn a_long_frame_is_whole_for_who_takes_it() {
    let mut lab = Lab::new(2, FEATURES);
    let (asks, whole) = long(mac(1), mac(0), 9001);
    lab.drivers[0].send_asking(asks, &whole);
    lab.settle();
    assert_eq!(lab.received()[1], std::slice::from_ref(&whole));
    let passed = lab.drivers[1].headers.pop().unwrap();
    assert_eq!(passed, Header { hdr_len: 54, num_buffers: 5, ..asks });
    assert_eq!((lab.counters(0).sent, lab.counters(0).segments), (1, 7));
}

#[test]
fn who_does_not_take_it_gets_segments() {
    let mut lab = Lab::new(3, FEATURES);
    lab.drivers[1].accept(&mut lab.network, PLAIN);
    let (asks, whole) = long(mac(1), mac(0), 9001);
    lab.drivers[0].send_asking(asks, &whole);
    lab.settle();
    let received = lab.received().swap_remove(1);
    assert_eq!(received.len(), 7);
    are_segments(&received, &whole);
    assert!(
        lab.drivers[1].headers.iter().all(|header| *header == Header { num_buffers: 1, ..Header::default() })
    );
    // To all, each as it takes it.
    let (asks, whole) = long(EVERYBODY, mac(0), 3000);
    lab.drivers[0].send_asking(asks, &whole);
    lab.settle();
    let received = lab.received();
    are_segments(&received[1], &whole);
    assert_eq!(received[2], [whole]);
}

#[test]
fn segments_go_out_by_a_wire_that_is_full_now_and_then() {
    for (cuts, room) in [(false, 2), (true, 12), (true, 13)] {
        let mut lab = Lab::wired(2, FEATURES, 3);
        lab.card.as_mut().unwrap().cuts = cuts;
        let (asks, whole) = long(STRANGER, mac(0), 20_000);
        lab.drivers[0].send_asking(asks, &whole);
        for _ in 0..40 {
            lab.round();
            lab.card.as_mut().unwrap().room = room;
        }
        let after = frame(STRANGER, mac(0), 99);
        lab.drivers[0].send(&after);
        lab.settle();
        let card = lab.card.unwrap();
        let mut sent = card.sent;
        assert_eq!(sent.pop(), Some(after));
        assert_eq!(sent.len(), 15);
        are_segments(&sent, &whole);
        // A turn's worth, and the rest; and then the frame.
        assert_eq!(card.finished, if cuts { 3 } else { 0 });
    }
}

#[test]
fn a_card_that_cuts_sends_what_the_engine_would() {
    let send = |cuts: bool, vlan: Option<u16>, asks: Header, whole: &[u8]| {
        let mut lab = Lab::wired(1, FEATURES, usize::MAX);
        lab.card.as_mut().unwrap().cuts = cuts;
        lab.drivers[0].set(&mut lab.network, |attributes| attributes.vlan = vlan);
        lab.drivers[0].send_asking(asks, whole);
        lab.settle();
        let counters = lab.counters(0);
        let card = lab.card.unwrap();
        (card.sent, (counters.sent, counters.sent_bytes, counters.segments), card.finished)
    };
    let tcp = long(STRANGER, mac(0), 900);
    let checksum = (Header { gso_type: 0, gso_size: 0, ..tcp.0 }, tcp.1.clone());
    let plain = (Header::default(), frame(STRANGER, mac(0), 1514));
    let short = (Header::default(), frame(STRANGER, mac(0), 59));
    let mut small = long(STRANGER, mac(0), 900);
    small.0.gso_size = 100;
    let mut of_udp = checksum.clone();
    of_udp.0.csum_offset = 6;
    let mut congested = long(STRANGER, mac(0), 5000);
    congested.1[47] |= 0x80;
    for vlan in [None, Some(7)] {
        for (asks, whole, finished) in [
            (tcp.0, &tcp.1, 1),
            (checksum.0, &checksum.1, 1),
            (plain.0, &plain.1, 1),
            (short.0, &short.1, usize::from(vlan.is_some())),
            (small.0, &small.1, 0),
            (of_udp.0, &of_udp.1, 0),
            // The first by itself.
            (congested.0, &congested.1, 2),
        ] {
            let (sent, counts, _) = send(false, vlan, asks, whole);
            assert!(!sent.is_empty());
            assert_eq!(send(true, vlan, asks, whole), (sent, counts, finished), "{vlan:?} {asks:?}");
        }
    }
}

#[test]
fn headers_that_were_checked_are_those_that_a_card_gets() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.card.as_mut().unwrap().cuts = true;
    let at = lab.drivers[0].next_frame();
    let (asks, whole) = long(STRANGER, mac(0), 2000);
    lab.drivers[0].ram.tamper.set(Some((at, [0xbb; 6])));
    lab.drivers[0].send_asking(asks, &whole);
    lab.settle();
    let plain = frame(STRANGER, mac(0), 700);
    lab.drivers[0].ram.tamper.set(Some((lab.drivers[0].next_frame() + 6, [0xbb; 6])));
    lab.drivers[0].send(&plain);
    lab.settle();
    let card = lab.card.unwrap();
    assert_eq!((card.sent.len(), card.finished), (3, 2));
    assert!(card.sent.iter().all(|frame| frame[..12] == [STRANGER, mac(0)].concat()));
}

#[test]
fn a_segment_has_the_tag_of_its_senders_vlan() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.vlan = Some(7));
    let (asks, whole) = long(STRANGER, mac(0), 3000);
    lab.drivers[0].send_asking(asks, &whole);
    lab.settle();
    let sent = lab.card.unwrap().sent;
    assert!(sent.iter().all(|frame| frame[12..16] == [0x81, 0, 0, 7]));
    let plain: Vec<Vec<u8>> = sent.iter().map(|frame| [&frame[..12], &frame[16..]].concat()).collect();
    are_segments(&plain, &whole);
}

#[test]
fn a_checksum_is_completed_for_who_does_not() {
    let mut lab = Lab::wired(3, FEATURES, usize::MAX);
    lab.drivers[2].accept(&mut lab.network, PLAIN);
    let mut bytes = frame(EVERYBODY, mac(0), 301);
    bytes[40..42].copy_from_slice(&[0x12, 0x34]);
    let asks = Header { flags: Header::NEEDS_CSUM, csum_start: 30, csum_offset: 10, ..Header::default() };
    lab.drivers[0].send_asking(asks, &bytes);
    lab.settle();
    let received = lab.received();
    assert_eq!(received[1], [bytes.clone()]);
    assert_eq!(lab.drivers[1].headers, [Header { num_buffers: 1, ..asks }]);
    for completed in [&received[2][0], &lab.card.as_ref().unwrap().sent[0]] {
        // What was in the field is part of the sum.
        let mut expected = bytes.clone();
        expected[40..42].copy_from_slice(&(!sum(&bytes[30..])).to_be_bytes());
        assert_eq!(completed, &expected);
    }
    assert_eq!(lab.drivers[2].headers, [Header { num_buffers: 1, ..Header::default() }]);
}

#[test]
fn what_asks_for_nonsense_is_dropped() {
    let mut lab = Lab::wired(2, FEATURES, usize::MAX);
    let (asks, whole) = long(mac(1), mac(0), 9001);
    for wrong in [
        Header { gso_size: 0, ..asks },
        Header { gso_size: 20_000, ..asks },
        Header { gso_type: Header::GSO_TCPV6, ..asks },
        Header { gso_type: 9, ..asks },
        Header { csum_start: 8, ..asks },
        Header { csum_offset: 9100, ..asks },
        Header { flags: 0, ..asks },
        Header { gso_type: Header::GSO_NONE, ..asks },
        Header::default(),
    ] {
        lab.drivers[0].send_asking(wrong, &whole);
        lab.settle();
    }
    assert_eq!((lab.counters(0).refused, lab.counters(0).sent, lab.counters(0).faults), (9, 0, 0));
    assert!(lab.received().concat().is_empty() && lab.card.unwrap().sent.is_empty());
}

#[test]
fn headers_that_were_checked_are_those_that_arrive() {
    for features in [FEATURES, PLAIN] {
        let mut lab = Lab::new(2, FEATURES);
        lab.drivers[1].accept(&mut lab.network, features);
        let at = lab.drivers[0].next_frame();
        let (asks, whole) = long(mac(1), mac(0), 2000);
        // A fragment, once it has been looked at.
        lab.drivers[0].ram.tamper.set(Some((at + 20, [0x20, 0, 64, 6, 0, 0])));
        lab.drivers[0].send_asking(asks, &whole);
        lab.settle();
        let received = lab.received().swap_remove(1);
        assert!(received.iter().all(|frame| frame[20..22] == [0x40, 0]), "{features:x}");
        assert!(!received.is_empty());
    }
}

#[test]
fn tags_are_not_a_guests_to_write() {
    let mut lab = Lab::wired(2, FEATURES, usize::MAX);
    for kind in [[0x81, 0], [0x88, 0xa8], [0x91, 0]] {
        let mut bytes = frame(EVERYBODY, mac(0), 100);
        bytes[12..14].copy_from_slice(&kind);
        Driver::send(&mut lab.drivers[0], &bytes);
    }
    lab.settle();
    assert_eq!(lab.counters(0).refused, 3);
    assert!(lab.received().concat().is_empty() && lab.card.unwrap().sent.is_empty());
}
