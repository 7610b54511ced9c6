//! Frames of a stream are put together, and nothing else is.

use super::driver::frame;
use super::offloads::{PLAIN, long, sum};
use super::{Lab, STRANGER, mac};
use crate::offload::{Header, Plan, Sum};
use crate::{FEATURES, feature};
use proptest::prelude::*;
use std::vec::Vec;

/// The segments of a TCP frame for a VIF, as a station sends them.
fn segments(to: u8, bytes: usize, size: u16) -> Vec<Vec<u8>> {
    let (asks, whole) = long(mac(to), STRANGER, bytes);
    let asks = Header { gso_size: size, ..asks };
    let plan = Plan::new(&asks, &whole[..whole.len().min(Plan::START)], whole.len() as u32, 1514).unwrap();
    let finish = |segment: crate::offload::Segment| {
        let payload = &whole[segment.payload.start as usize..segment.payload.end as usize];
        let mut frame = [segment.headers(), payload].concat();
        let mut sum = Sum::new();
        sum.add(payload);
        let field = segment.finish(sum);
        frame[field.at as usize..][..2].copy_from_slice(&field.bytes);
        frame
    };
    plan.segments().map(finish).collect()
}

fn come(lab: &mut Lab, frames: &[Vec<u8>]) {
    lab.card.as_mut().unwrap().coming.extend(frames.iter().cloned());
    lab.settle();
}

/// What a frame that was put together says, and its payload; the field of its checksum as its receiver completes it.
fn completed(frame: &[u8], header: Header) -> Vec<u8> {
    assert_eq!((header.flags, header.gso_type, header.csum_start, header.csum_offset), (1, 1, 34, 16));
    assert_eq!(sum(&frame[14..34]), 0xffff, "IPv4's checksum");
    let len = ((frame.len() - 34) as u16).to_be_bytes();
    assert_eq!(frame[16..18], ((frame.len() - 14) as u16).to_be_bytes());
    let mut frame = frame.to_vec();
    let rest = !sum(&frame[34..]);
    frame[50..52].copy_from_slice(&rest.to_be_bytes());
    assert_eq!(sum(&[&frame[26..34], &[0, 6], &len, &frame[34..]].concat()), 0xffff, "TCP's checksum");
    frame
}

#[test]
fn a_stream_arrives_in_one_piece() {
    let mut lab = Lab::wired(2, FEATURES, 0);
    let frames = segments(1, 20_000, 1448);
    come(&mut lab, &frames);
    let received = lab.received().swap_remove(1);
    assert_eq!(received.len(), 1);
    let header = lab.drivers[1].headers[0];
    assert_eq!((header.gso_size, header.hdr_len), (1448, 54));
    let whole = completed(&received[0], header);
    assert!(whole[54..] == long(mac(1), STRANGER, 20_000).1[54..]);
    assert_eq!(whole[47], 0x18, "the last one's PSH is there");
    assert_eq!(lab.counters(1).received, 1);
}

#[test]
fn more_than_ip_can_count_is_two_pieces() {
    let mut lab = Lab::wired(1, FEATURES, 0);
    let mut frames = segments(0, 60_000, 1400);
    frames.pop();
    // They go on where the others end.
    let more: Vec<Vec<u8>> = frames.iter().map(|frame| resequenced(frame, frames.len() * 1400)).collect();
    frames.extend(more);
    lab.card.as_mut().unwrap().is_generous = true;
    come(&mut lab, &frames);
    let received = lab.received().swap_remove(0);
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|frame| frame.len() <= 14 + 65_535));
    assert_eq!(received.iter().map(|frame| frame.len() - 54).sum::<usize>(), frames.len() * 1400);
}

/// The same segment, so much further on.
fn resequenced(frame: &[u8], further: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap()).wrapping_add(further as u32);
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    with_checksum(frame)
}

/// The same with the checksums that it should have.
fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let ip = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&ip.to_be_bytes());
    frame[50..52].fill(0);
    let len = ((frame.len() - 34) as u16).to_be_bytes();
    let tcp = !sum(&[&frame[26..34], &[0, 6], &len, &frame[34..]].concat());
    frame[50..52].copy_from_slice(&tcp.to_be_bytes());
    frame
}

#[test]
fn what_differs_stays_apart_and_in_order() {
    let frames = segments(0, 1448 * 3, 1448);
    for (what, change) in [
        ("another port", (34, 7)),
        ("another service", (15, 4)),
        ("another life", (22, 9)),
        ("another source", (26, 11)),
        ("another place", (41, 1)),
        ("another acknowledgement", (45, 1)),
        ("another window", (49, 9)),
        ("urgent", (53, 1)),
        ("a reset", (47, 0x14)),
        ("a fragment", (20, 0x20)),
        ("another protocol", (23, 17)),
    ] {
        let mut lab = Lab::wired(1, FEATURES, 0);
        let mut changed = frames.clone();
        changed[1][change.0] = change.1;
        changed[1] = with_checksum(changed[1].clone());
        come(&mut lab, &changed);
        let received = lab.received().swap_remove(0);
        assert_eq!(received.len(), 3, "{what}");
        assert_eq!(received[1], changed[1], "{what}");
    }
}

#[test]
fn what_is_damaged_arrives_as_it_is() {
    let frames = segments(0, 1448 * 3, 1448);
    for at in [25, 51, 100] {
        let mut lab = Lab::wired(1, FEATURES, 0);
        let mut damaged = frames.clone();
        damaged[1][at] ^= 1;
        come(&mut lab, &damaged);
        assert_eq!(lab.received()[0], damaged, "at {at}");
        let flags: Vec<u8> = lab.drivers[0].headers.iter().map(|header| header.flags).collect();
        assert_eq!(flags, [2, 0, 2], "nobody says that it is right");
    }
}

#[test]
fn what_the_card_has_looked_at_is_not_looked_at_again() {
    let mut lab = Lab::wired(1, FEATURES, 0);
    lab.card.as_mut().unwrap().checks = true;
    let mut frames = segments(0, 1448 * 3, 1448);
    // The card says that it is right, and so it is.
    frames[1][100] ^= 1;
    come(&mut lab, &frames);
    assert_eq!(lab.received()[0].len(), 1, "they are put together");
    let alone = frame(mac(0), STRANGER, 200);
    for (features, checks, flags) in [(FEATURES, true, 2), (FEATURES, false, 0), (PLAIN, true, 0)] {
        let mut lab = Lab::wired(1, features, 0);
        lab.card.as_mut().unwrap().checks = checks;
        come(&mut lab, std::slice::from_ref(&alone));
        assert_eq!(lab.received()[0], std::slice::from_ref(&alone));
        assert_eq!(lab.drivers[0].headers[0].flags, flags, "{features:#x} {checks}");
    }
}

#[test]
fn who_does_not_take_it_gets_each_frame() {
    for missing in [feature::GUEST_CSUM, feature::GUEST_TSO4, feature::MERGEABLE] {
        let mut lab = Lab::wired(1, FEATURES & !missing, 0);
        let frames = segments(0, 1448 * 3, 1448);
        come(&mut lab, &frames);
        assert_eq!(lab.received()[0], frames);
        assert!(lab.drivers[0].headers.iter().all(|header| header.flags == 0));
    }
}

#[test]
fn padding_is_no_payload() {
    let mut lab = Lab::wired(1, FEATURES, 0);
    let mut frames = segments(0, 3, 1);
    frames.iter_mut().for_each(|frame| frame.resize(60, 0));
    come(&mut lab, &frames);
    let received = lab.received().swap_remove(0);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0][54..], long(mac(0), STRANGER, 3).1[54..]);
}

proptest! {
    #[test]
    fn streams_keep_their_bytes_and_their_order(
        lengths in prop::collection::vec((0u8..6, 1usize..9000, 1u16..1448), 1..12),
        cuts in prop::collection::vec(0usize..200, 0..4),
    ) {
        let mut lab = Lab::wired(6, FEATURES, 0);
        let mut wanted = vec![Vec::new(); 6];
        let mut frames = Vec::new();
        for (to, bytes, size) in lengths {
            let size = size.max((bytes / 200) as u16 + 1);
            frames.extend(segments(to, bytes, size));
            wanted[usize::from(to)].extend_from_slice(&long(mac(to), STRANGER, bytes).1[54..]);
        }
        // Something else in between.
        for cut in cuts {
            let cut = cut % (frames.len() + 1);
            frames.insert(cut, super::driver::frame(super::EVERYBODY, STRANGER, 60));
        }
        come(&mut lab, &frames);
        for (nth, received) in lab.received().into_iter().enumerate() {
            let payloads = received.iter().filter(|frame| frame[0] != 0xff).map(|frame| {
                let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
                frame[54..14 + len].to_vec()
            });
            prop_assert!(payloads.collect::<Vec<_>>().concat() == wanted[nth], "VIF {}", nth);
        }
    }
}
