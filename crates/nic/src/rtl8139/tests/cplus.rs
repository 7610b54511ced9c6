//! C+ mode: descriptor rings, offloads, tags, tally.

use super::*;
use crate::rtl8139::crc::frame_check;

const OWN: u32 = 1 << 31;
const END: u32 = 1 << 30;
const FIRST: u32 = 1 << 29;
const LAST: u32 = 1 << 28;
const LARGE: u32 = 1 << 27;
const WHOLE: u32 = OWN | FIRST | LAST;

impl Bench {
    fn poll(&mut self) -> Vec<Vec<u8>> {
        self.write(reg::TPPOLL, 1, 0x40);
        self.sent()
    }

    /// Sends one frame from the next descriptor.
    fn send_with(&mut self, frame: &[u8], bits: u32, vlan: u32) -> Vec<Vec<u8>> {
        self.put(BUFFERS, frame);
        let at = SEND_RING + 16 * self.card.regs.next_send;
        self.descriptor(at, WHOLE | END | bits | frame.len() as u32, vlan, BUFFERS);
        self.poll()
    }
}

#[test]
fn frames_are_gathered_from_descriptors() {
    let mut bench = Bench::cplus(0);
    let one = frame([7; 6], 200);
    bench.put(BUFFERS, &one);
    bench.descriptor(SEND_RING, OWN | FIRST | 50, 0, BUFFERS);
    bench.descriptor(SEND_RING + 16, OWN | 100, 0, BUFFERS + 50);
    bench.descriptor(SEND_RING + 32, OWN | LAST | 50 | 1 << 23, 0, BUFFERS + 150);
    bench.descriptor(SEND_RING + 48, WHOLE | END | 60, 0, BUFFERS);
    assert_eq!(bench.poll(), [one.clone(), one[..60].to_vec()]);
    // The card's no more, errors cleared, the rest as it was.
    assert_eq!(bench.word(SEND_RING), FIRST | 50);
    assert_eq!(bench.word(SEND_RING + 32), LAST | 50);
    assert_eq!(bench.word(SEND_RING + 48), FIRST | LAST | END | 60);
    assert_eq!(bench.read(reg::ISR, 2), 0x04);
    assert_eq!(bench.card.regs.next_send, 0);
    assert_eq!(bench.card.regs.tally.sent, 2);
    // Nothing there: no interrupt.
    bench.write(reg::ISR, 2, 0xffff);
    assert!(bench.poll().is_empty());
    assert_eq!(bench.read(reg::ISR, 2), 0);
    // TE and the C+ enable are both needed.
    for (offset, width, off, on) in [(reg::CR, 1, 0x08, 0x0c), (reg::CPCR, 2, 2, 3)] {
        bench.descriptor(SEND_RING, WHOLE | END | 60, 0, BUFFERS);
        bench.write(offset, width, off);
        assert!(bench.poll().is_empty());
        bench.write(offset, width, on);
        assert_eq!(bench.poll().len(), 1);
    }
    // One begun and never ended is forgotten.
    bench.descriptor(SEND_RING, OWN | FIRST | 60, 0, BUFFERS);
    bench.descriptor(SEND_RING + 16, WHOLE | 70, 0, BUFFERS);
    assert_eq!(bench.poll(), [&one[..70]]);
    // TE starts the ring anew.
    assert_eq!(bench.card.regs.next_send, 2);
    bench.write(reg::CR, 1, 0x0c);
    assert_eq!(bench.card.regs.next_send, 0);
    // The high priority ring does nothing.
    bench.descriptor(SEND_RING, WHOLE | END | 60, 0, BUFFERS);
    bench.write(reg::TPPOLL, 1, 0x80);
    assert!(!bench.card.busy());
}

#[test]
fn a_poll_takes_64_descriptors_and_the_ring_has_64() {
    let mut bench = Bench::cplus(0);
    for index in 0..80 {
        bench.descriptor(SEND_RING + 16 * index, WHOLE | (60 + index), 0, BUFFERS);
    }
    let lengths: Vec<usize> = bench.poll().iter().map(Vec::len).collect();
    assert_eq!(lengths, (60..124).collect::<Vec<_>>());
    assert_eq!(bench.card.regs.next_send, 0);
    assert!(bench.poll().is_empty());
    // One descriptor that always stays the card's, by memory that does not take what is written.
    struct Stubborn(VecMemory);
    impl crate::dma::Dma for Stubborn {
        fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), crate::dma::DmaError> {
            self.0.read(address, buffer)
        }
        fn write(&mut self, _: u64, _: &[u8]) -> Result<(), crate::dma::DmaError> {
            Err(crate::dma::DmaError)
        }
    }
    bench.descriptor(SEND_RING, WHOLE | END | 60, 0, BUFFERS);
    let mut memory = Stubborn(bench.memory.clone());
    bench.write(reg::TPPOLL, 1, 0x40);
    let (mut calls, mut frames) = (0, 0);
    while bench.card.busy() {
        calls += 1;
        frames += usize::from(bench.card.transmit(&mut memory, &mut Budget::default()).is_some());
    }
    assert_eq!((calls, frames), (65, 64));
    assert_eq!((bench.card.refused(), bench.read(reg::ISR, 2)), (64, 0x8004));
}

/// Sums a packet as receivers do: right if all ones.
fn sums_to_ones(parts: &[&[u8]]) -> bool {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum == 0xffff
}

/// An IPv4 frame; `protocol` 6 with options, else 17.
fn datagram(protocol: u8, data: usize) -> Vec<u8> {
    let mut bytes = frame([7; 6], 12);
    bytes.extend([8, 0, 0x45, 0]);
    let payload = data + if protocol == 6 { 24 } else { 8 };
    bytes.extend((20 + payload as u16).to_be_bytes());
    bytes.extend([0xff, 0xfe, 0x40, 0, 64, protocol, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2]);
    if protocol == 6 {
        bytes.extend([
            1, 2, 3, 4, 0xff, 0xff, 0xff, 0x00, 5, 6, 7, 8, 0x60, 0x19, 1, 0, 9, 9, 0, 0, 1, 1, 1, 1,
        ]);
    } else {
        bytes.extend([1, 2, 3, 4]);
        bytes.extend((payload as u16).to_be_bytes());
        bytes.extend([9, 9]);
    }
    bytes.extend((0..data).map(|index| (index * 7) as u8));
    bytes
}

fn header_right(frame: &[u8]) -> bool {
    sums_to_ones(&[&frame[14..34]])
}

fn payload_right(frame: &[u8]) -> bool {
    let payload = &frame[34..];
    sums_to_ones(&[&frame[26..34], &[0, frame[23]], &(payload.len() as u16).to_be_bytes(), payload])
}

#[test]
fn checksums_are_put_in_as_asked() {
    for (protocol, own, other) in [(6, 1 << 16, 1 << 17), (17, 1 << 17, 1 << 16)] {
        for data in [0, 1, 33, 1000] {
            let mut bench = Bench::cplus(0);
            let one = datagram(protocol, data);
            assert_eq!(bench.send_with(&one, 0, 0), core::slice::from_ref(&one));
            assert_eq!(bench.send_with(&one, other, 0), core::slice::from_ref(&one), "the other protocol's");
            let sent = bench.send_with(&one, 1 << 18, 0).remove(0);
            assert!(header_right(&sent) && !payload_right(&sent) && sent[34..] == one[34..]);
            let sent = bench.send_with(&one, own, 0).remove(0);
            assert!(!header_right(&sent) && payload_right(&sent));
            let sent = bench.send_with(&one, own | 1 << 18, 0).remove(0);
            assert!(header_right(&sent) && payload_right(&sent));
            // Not IPv4, a header too short or too long, a datagram longer than the frame: untouched.
            for (at, value) in [(12, 0x86), (14, 0x65), (14, 0x44), (16, 0xff)] {
                let mut bad = one.clone();
                bad[at] = value;
                assert_eq!(bench.send_with(&bad, 7 << 16, 0), core::slice::from_ref(&bad));
            }
            let mut bad = one.clone();
            bad[16..18].copy_from_slice(&[0, 19]);
            assert_eq!(bench.send_with(&bad, 7 << 16, 0), core::slice::from_ref(&bad));
            assert_eq!(bench.send_with(&one[..33], 7 << 16, 0), [one[..33].to_vec()]);
        }
    }
    // A UDP checksum of 0 means none.
    let mut bench = Bench::cplus(0);
    let mut one = datagram(17, 2);
    let sent = bench.send_with(&one, 1 << 17, 0).remove(0);
    let check = u16::from_be_bytes([sent[40], sent[41]]);
    let data = u16::from_be_bytes([one[42], one[43]]);
    // With what the checksum was as data, the sum is all ones.
    one[42..44].copy_from_slice(&fold(u32::from(check) + u32::from(data)).to_be_bytes());
    assert_eq!(bench.send_with(&one, 1 << 17, 0)[0][40..42], [0xff, 0xff]);
}

fn fold(sum: u32) -> u16 {
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[test]
fn large_frames_go_out_in_segments() {
    let mut bench = Bench::cplus(0);
    let one = datagram(6, 2500);
    let segments = bench.send_with(&one, LARGE | 1000 << 16, 1 << 17 | 0x3412);
    let mut data = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        assert_eq!(segment[..12], one[..12]);
        assert_eq!(segment[12..16], [0x81, 0, 0x12, 0x34], "tagged each");
        let segment = [&segment[..12], &segment[16..]].concat();
        assert!(header_right(&segment) && payload_right(&segment));
        let length = u16::from_be_bytes([segment[16], segment[17]]);
        assert_eq!(usize::from(length), segment.len() - 14);
        let number = u16::from_be_bytes([segment[18], segment[19]]);
        assert_eq!(number, 0xfffeu16.wrapping_add(index as u16));
        let sequence = u32::from_be_bytes(segment[38..42].try_into().unwrap());
        assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(1000 * index as u32));
        assert_eq!(segment[47], if index == 2 { 0x19 } else { 0x10 }, "PSH and FIN in the last");
        data.extend_from_slice(&segment[58..]);
    }
    assert_eq!(segments.len(), 3);
    assert_eq!(data, one[58..]);
    assert_eq!(bench.card.regs.tally.sent, 1);
    // Without data, nothing. Without a size, or not TCP, as it is.
    assert!(bench.send_with(&datagram(6, 0), LARGE | 1000 << 16, 0).is_empty());
    for (one, bits) in [(datagram(6, 100), LARGE), (datagram(17, 100), LARGE | 10 << 16)] {
        assert_eq!(bench.send_with(&one, bits, 0), core::slice::from_ref(&one));
    }
    assert_eq!(bench.send_with(&datagram(6, 50), LARGE | 1 << 16, 0).len(), 50);
    // A TCP header that cannot be, too short or longer than the datagram.
    for words in [4, 15] {
        let mut one = datagram(6, 20);
        one[46] = words << 4;
        assert_eq!(bench.send_with(&one, LARGE | 10 << 16, 0), core::slice::from_ref(&one));
    }
}

#[test]
fn reset_stops_a_large_send_and_keeps_what_is_gathered() {
    let mut bench = Bench::cplus(0);
    bench.put(BUFFERS, &datagram(6, 2500));
    bench.descriptor(SEND_RING, WHOLE | END | LARGE | 100 << 16 | 2558, 0, BUFFERS);
    bench.write(reg::TPPOLL, 1, 0x40);
    while bench.card.transmit(&mut bench.memory, &mut Budget::default()).is_none() {}
    assert!(bench.card.busy());
    bench.write(reg::CR, 1, 0x10);
    assert!(!bench.card.busy());
    let mut bench = Bench::cplus(0);
    bench.put(BUFFERS, &[0x11; 60]);
    bench.descriptor(SEND_RING, OWN | FIRST | END | 60, 0, BUFFERS);
    assert!(bench.poll().is_empty());
    bench.write(reg::CR, 1, 0x10);
    bench.write(reg::CPCR, 2, 3);
    bench.write(reg::CR, 1, 0x0c);
    bench.descriptor(SEND_RING, OWN | LAST | END | 2, 0, BUFFERS);
    assert_eq!(bench.poll(), [[0x11; 62]]);
}

#[test]
fn tags_go_in_and_out() {
    let mut bench = Bench::cplus(0x40);
    let one = frame([7; 6], 60);
    let sent = bench.send_with(&one, 0, 1 << 17 | 0x3412).remove(0);
    assert_eq!(sent, [&one[..12], &[0x81, 0, 0x12, 0x34], &one[12..]].concat());
    assert_eq!(bench.send_with(&one[..11], 0, 1 << 17), [one[..11].to_vec()]);

    for (tagged, index) in [(true, 0), (false, 1)] {
        let at = RECEIVE_RING + 16 * index;
        bench.descriptor(at, OWN | 2048, 0x1_5555, BUFFERS + 0x1000 * index);
        bench.put(BUFFERS + 0x1000 * index, &[0x77; 0x100]);
        let mut one = frame(MAC, 62);
        one[12..16].copy_from_slice(if tagged { &[0x81, 0, 0x12, 0x34] } else { &[8, 0, 0x12, 0x34] });
        assert_eq!(bench.receive(&one), Reception::Stored);
        let stored = bench.at(BUFFERS + 0x1000 * index, 67);
        let (status, vlan) = (bench.word(at), bench.word(at + 4));
        if tagged {
            assert_eq!(stored, [&one[..12], &one[16..], &[0, 0], &check(&one), &[0x77; 3]].concat());
            assert_eq!((status & 0x1fff, vlan), (64, 0x1_3412));
        } else {
            assert_eq!(stored, [&one[..], &check(&one), &[0x77]].concat());
            assert_eq!((status & 0x1fff, vlan), (66, 0x5555));
        }
    }
}

fn check(frame: &[u8]) -> [u8; 4] {
    frame_check(frame).to_le_bytes()
}

#[test]
fn frames_fill_descriptors() {
    let mut bench = Bench::cplus(0);
    let sizes = [2048, 104, 103, 2048];
    for (index, size) in (0u32..).zip(sizes) {
        let end = if index == 3 { END } else { 0 };
        bench.descriptor(RECEIVE_RING + 16 * index, OWN | end | size, 0, BUFFERS + 0x1000 * index);
    }
    let one = frame([0xff; 6], 100);
    assert_eq!(bench.receive(&one), Reception::Stored);
    assert_eq!(bench.word(RECEIVE_RING), FIRST | LAST | 1 << 24 | 104);
    assert_eq!(bench.at(BUFFERS, 104), [&one[..], &check(&one)].concat());
    assert_eq!(bench.read(reg::ISR, 2), 0x01);
    assert_eq!(bench.receive(&frame(MAC, 100)), Reception::Stored);
    assert_eq!(bench.word(RECEIVE_RING + 16), FIRST | LAST | 1 << 25 | 104);
    // One byte too small: lost, and the descriptor stays where it is.
    assert_eq!(bench.receive(&one), Reception::Missed);
    assert_eq!(bench.read(reg::ISR, 2), 0x11);
    assert_eq!(bench.read(reg::MPC, 4), 1);
    bench.descriptor(RECEIVE_RING + 32, OWN | 2048, 0, BUFFERS);
    bench.write(reg::MAR, 4, 0xffff_ffff);
    bench.write(reg::MAR + 4, 4, 0xffff_ffff);
    assert_eq!(bench.receive(&frame([1; 6], 100)), Reception::Stored);
    assert_eq!(bench.word(RECEIVE_RING + 32) >> 24 & 7, 4);
    assert_eq!(bench.receive(&one), Reception::Stored);
    // The first again, which is the driver's.
    assert_eq!(bench.receive(&one), Reception::Missed);
    // RE starts the ring anew; no ring, no reception.
    bench.descriptor(RECEIVE_RING, OWN | 2048, 0, BUFFERS);
    assert_eq!(bench.receive(&one), Reception::Stored);
    bench.write(reg::CR, 1, 0x0c);
    assert_eq!(bench.card.regs.next_receive, 0);
    bench.write(reg::RDSAR, 4, 0);
    assert_eq!(bench.receive(&one), Reception::Stopped);
}

#[test]
fn tally_counters_are_dumped() {
    let mut bench = Bench::c_mode(0);
    // In C mode the same write sends.
    bench.write(reg::TSD, 4, DUMP | 8);
    assert_eq!(bench.at(DUMP, 64), [0; 64]);

    let mut bench = Bench::cplus(0);
    bench.descriptor(RECEIVE_RING, OWN | END | 2048, 0, BUFFERS);
    bench.receive(&frame(MAC, 60));
    bench.receive(&frame([0xff; 6], 60));
    bench.receive(&frame([2; 6], 60));
    bench.send_with(&frame([2; 6], 60), 0, 0);
    bench.write(reg::TSD + 4, 4, 0);
    bench.write(reg::TSD, 4, DUMP | 0x28);
    assert_eq!(bench.read(reg::TSD, 4), DUMP | 0x20, "done");
    let mut expected = [0; 64];
    for (at, value) in [(0, 1), (8, 1), (24, 2), (28, 1), (40, 1), (48, 1)] {
        expected[at] = value;
    }
    assert_eq!(bench.at(DUMP, 64), expected);
    // Any write to CPCR makes it so, and only a reset ends it.
    let mut bench = Bench::c_mode(0);
    bench.write(reg::CPCR, 2, 0);
    assert!(bench.send(0, &frame([1; 6], 60)).is_empty());
    bench.write(reg::CR, 1, 0x10);
    bench.write(reg::CR, 1, 0x0c);
    assert_eq!(bench.send(0, &frame([1; 6], 60)).len(), 1);
}

#[test]
fn a_quiet_card_says_nothing_of_what_it_is_refused() {
    let mut bench = Bench::cplus(0);
    bench.card.keep_quiet();
    bench.write(reg::TSAD + 4, 4, 1);
    assert!(bench.poll().is_empty());
    assert_eq!((bench.card.refused(), bench.read(reg::ISR, 2)), (1, 0));
}

#[test]
fn what_cannot_be_read_is_not_the_cards() {
    let mut bench = Bench::cplus(0);
    bench.write(reg::TSAD + 4, 4, 1);
    assert!(bench.poll().is_empty());
    assert_eq!((bench.card.refused(), bench.read(reg::ISR, 2)), (1, 0x8000));
    bench.write(reg::RDSAR + 4, 4, 1);
    assert_eq!(bench.receive(&frame(MAC, 60)), Reception::Missed);
    assert_eq!((bench.card.refused(), bench.read(reg::ISR, 2)), (2, 0x8010));
    bench.write(reg::TSD + 4, 4, 1);
    bench.write(reg::TSD, 4, 8);
    assert_eq!(bench.card.refused(), 3);
}

/// The same ring of 64 descriptors of 64 KiB, as packets and as pieces without an end.
#[test]
fn a_call_moves_less_than_its_budget_and_one_piece() {
    const PIECE: usize = 0xffff;
    for kind in [WHOLE, OWN | FIRST] {
        for budget in [Budget::new(1000, usize::MAX), Budget::default(), Budget::new(usize::MAX, 7)] {
            let mut bench = Bench::cplus(0);
            bench.memory.bytes.resize(0x4_0000, 0);
            for index in 0..64 {
                bench.descriptor(SEND_RING + 16 * index, kind | 0xffff, 0, BUFFERS);
            }
            bench.write(reg::TPPOLL, 1, 0x40);
            let (mut sent, mut taken) = (0, 0);
            while bench.card.busy() {
                let mut memory = crate::dma::Recorded::new(&mut bench.memory);
                let mut left = budget;
                while bench.card.busy() && !left.is_spent() {
                    sent += usize::from(bench.card.transmit(&mut memory, &mut left).is_some());
                }
                let reads = memory.log.iter().filter(|transfer| !transfer.write);
                let descriptors = reads.clone().filter(|transfer| transfer.len == 16).count();
                let bytes = reads.map(|transfer| transfer.len).sum::<usize>() - 16 * descriptors;
                match budget {
                    _ if budget == Budget::new(1000, usize::MAX) => assert!(bytes < 1000 + PIECE, "{bytes}"),
                    _ if budget == Budget::default() => assert!(bytes < Budget::BYTES + PIECE, "{bytes}"),
                    _ => assert!(descriptors <= 7, "{descriptors}"),
                }
                taken += descriptors;
            }
            assert_eq!((sent, taken), (if kind == WHOLE { 64 } else { 0 }, 64), "all, once");
        }
    }
}
