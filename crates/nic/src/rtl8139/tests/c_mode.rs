//! C mode: four descriptors out, a ring in.

use super::*;
use crate::dma::NoMemory;
use crate::rtl8139::OVERRUN;
use crate::rtl8139::crc::frame_check;

#[test]
fn sends_in_turn_and_interrupts() {
    let mut bench = Bench::c_mode(0);
    for turn in 0..6 {
        let descriptor = turn % 4;
        let one = frame([turn as u8; 6], 60 + usize::from(turn));
        assert_eq!(bench.send(descriptor, &one), core::slice::from_ref(&one));
        assert_eq!(bench.read(reg::TSD + 4 * descriptor, 4), 0xa000 | one.len() as u32);
        assert!(bench.card.interrupt());
        assert_eq!(bench.read(reg::ISR, 2), 0x04);
        bench.write(reg::ISR, 2, 0x04);
        assert!(!bench.card.interrupt());
    }
    assert_eq!(bench.read(reg::SUMMARY, 2), 0xf00f);
    // Out of turn: waits, and goes when a later write looks at it.
    assert_eq!(bench.send(3, &frame([9; 6], 60)).len(), 0);
    bench.write(reg::TSD + 12, 4, 0xffff_c000 | 60);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.read(reg::TSD + 12, 4), 0x3f_003c, "status is not for the driver to write");
    assert_eq!(bench.read(reg::SUMMARY, 2), 0x7007);
    assert_eq!(bench.send(2, &frame([8; 6], 61)).len(), 1);
    assert_eq!(bench.send(0, &frame([7; 6], 62))[0].len(), 60, "the third's turn");
    bench.write(reg::CR, 1, 0x08);
    assert_eq!(bench.send(0, &frame([1; 6], 60)).len(), 0);
}

#[test]
fn writes_not_followed_by_transmit_are_not_lost() {
    let mut bench = Bench::c_mode(0);
    for descriptor in 0..4 {
        bench.write(reg::TSAD + 4 * descriptor, 4, SEND);
        bench.write(reg::TSD + 4 * descriptor, 4, 60 + u32::from(descriptor));
    }
    let lengths: Vec<usize> = bench.sent().iter().map(Vec::len).collect();
    assert_eq!(lengths, [60, 61, 62, 63]);
    // An empty frame is sent, but nothing goes out.
    assert_eq!(bench.send(0, &[]).len(), 0);
    assert_eq!(bench.read(reg::TSD, 4), 0xa000);
}

#[test]
fn stores_header_frame_and_check() {
    let mut bench = Bench::c_mode(0);
    assert_eq!(bench.read(reg::CR, 1), 0x0d);
    let one = frame(MAC, 61);
    assert_eq!(bench.receive(&one), Reception::Stored);
    assert_eq!(bench.word(RING), 65 << 16 | 0x4001);
    assert_eq!(bench.at(RING + 4, 61), one);
    assert_eq!(bench.at(RING + 65, 4), frame_check(&one).to_le_bytes());
    assert_eq!(bench.read(reg::CBR, 2), 72);
    bench.write(reg::CR, 1, 0xef);
    assert_eq!(bench.read(reg::CR, 1), 0x0c, "BUFE is not for the driver to write");
    assert_eq!(bench.read(reg::ISR, 2), 0x01);
    // Short ones are padded.
    assert_eq!(bench.receive(&frame([0xff; 6], 10)), Reception::Stored);
    assert_eq!(bench.word(RING + 72), 64 << 16 | 0x2001);
    assert_eq!(bench.at(RING + 86, 50), [0; 50]);
    bench.write(reg::CAPR, 2, 0x9008);
    assert_eq!(bench.read(reg::CAPR, 2), 0x1008, "modulo the ring");
    // As a driver that has read both.
    bench.write(reg::CAPR, 2, 72 + 68 - 16);
    assert_eq!(bench.read(reg::CR, 1), 0x0d);
}

#[test]
fn filter() {
    let mut bench = Bench::c_mode(0x1800);
    let group = [1, 0, 0x5e, 0, 0, 1];
    let (bit, row) = {
        let index = crate::multicast_index(&group);
        (1 << (index & 7), reg::MAR + u16::from(index >> 3))
    };
    for (rcr, mar, to, expected) in [
        (0x01, 0, [2; 6], Some(0x0001)),
        (0x01, 0, MAC, Some(0x0001)),
        (0x0e, 0, [2; 6], None),
        (0x02, 0, MAC, Some(0x4001)),
        (0x0c, 0, MAC, None),
        (0x08, 0, [0xff; 6], Some(0x2001)),
        (0x06, bit, [0xff; 6], None),
        (0x04, bit, group, Some(0x8001)),
        (0x04, !bit & 0xff, group, None),
        (0x0a, bit, group, None),
    ] {
        bench.write(reg::RCR, 4, rcr | 0x1800);
        bench.write(row, 1, mar);
        let outcome = bench.receive(&frame(to, 60));
        match expected {
            Some(status) => {
                assert_eq!(outcome, Reception::Stored, "{rcr:#x} {to:x?}");
                assert_eq!(bench.word(RING) & 0xffff, status);
            }
            None => assert_eq!(outcome, Reception::Filtered, "{rcr:#x} {to:x?}"),
        }
    }
    assert_eq!(bench.card.regs.tally.receive_errors, 5);
    // The filter compares with what the driver wrote.
    bench.write(reg::RCR, 4, 0x02);
    bench.write(reg::IDR, 4, 0);
    assert_eq!(bench.receive(&frame(MAC, 60)), Reception::Filtered);
    assert_eq!(bench.receive(&frame([0, 0, 0, 0, 0x34, 0x56], 60)), Reception::Stored);
    bench.write(reg::HLTCLK, 1, b'H'.into());
    assert_eq!(bench.receive(&frame([0, 0, 0, 0, 0x34, 0x56], 60)), Reception::Stopped);
    bench.write(reg::HLTCLK, 1, b'R'.into());
    bench.write(reg::CR, 1, 0x04);
    assert_eq!(bench.receive(&frame([0, 0, 0, 0, 0x34, 0x56], 60)), Reception::Stopped);
}

/// Fills a ring of 8 KiB to `left` bytes before its end, all read.
fn near_the_end(rcr: u32, left: u32) -> Bench {
    let mut bench = Bench::c_mode(rcr);
    for _ in 0..5 {
        assert_eq!(bench.receive(&frame(MAC, 1512)), Reception::Stored);
        let at = bench.read(reg::CBR, 2);
        bench.write(reg::CAPR, 2, at.wrapping_sub(16) & 0xffff);
    }
    let last = 8192 - 5 * 1520 - left;
    assert_eq!(bench.receive(&frame(MAC, last as usize - 8)), Reception::Stored);
    assert_eq!(bench.read(reg::CBR, 2), 8192 - left);
    let at = 8192 - left - 16;
    bench.write(reg::CAPR, 2, at);
    bench.put(RING + 8192, &[0x77; 2048]);
    bench
}

#[test]
fn frames_wrap_around() {
    let one = frame(MAC, 1000);
    for left in [4, 8, 100, 500] {
        let mut bench = near_the_end(0, left);
        assert_eq!(bench.receive(&one), Reception::Stored);
        let before = left as usize - 4;
        assert_eq!(bench.at(RING + 8192 - left + 4, before), &one[..before]);
        assert_eq!(bench.at(RING, 1000 - before), &one[before..]);
        assert_eq!(bench.at(RING + 8192, 2048), [0x77; 2048]);
        assert_eq!(bench.read(reg::CBR, 2), 1008 - left);
    }
    // The check sequence is cut.
    let mut bench = near_the_end(0, 504);
    let one = frame(MAC, 498);
    assert_eq!(bench.receive(&one), Reception::Stored);
    let check = frame_check(&one).to_le_bytes();
    assert_eq!(bench.at(RING + 8190, 2), &check[..2]);
    assert_eq!(bench.at(RING, 2), &check[2..]);
    assert_eq!(bench.read(reg::CBR, 2), 4);
}

#[test]
fn frames_run_over_the_end_with_wrap() {
    let mut bench = near_the_end(0x80, 100);
    let one = frame(MAC, 1000);
    assert_eq!(bench.receive(&one), Reception::Stored);
    assert_eq!(bench.at(RING + 8192 - 96, 1000), one);
    assert_eq!(bench.read(reg::CBR, 2), 908);
    assert_eq!(bench.at(RING + 8192 + 908, 100), [0x77; 100]);
    // 64 KiB rings always wrap.
    let mut bench = Bench::c_mode(0x1880);
    bench.card.regs.write_at = 0xfff0;
    bench.card.regs.read_at = 0xfff0;
    assert_eq!(bench.receive(&one), Reception::Stored);
    assert_eq!(bench.at(RING, 988), &one[12..]);
}

#[test]
fn a_full_ring_overflows() {
    let mut bench = Bench::c_mode(0);
    let mut stored = 0;
    while bench.receive(&frame(MAC, 1514)) == Reception::Stored {
        stored += 1;
    }
    assert_eq!(stored, 5);
    assert_eq!(bench.read(reg::ISR, 2), 0x11);
    assert_eq!(bench.read(reg::MPC, 4), 1);
    // The driver hears of overflows, so frames are still offered.
    assert!(bench.card.has_room());
    bench.write(reg::IMR, 2, 0x01);
    assert!(!bench.card.has_room());
    let read_at = bench.card.regs.read_at;
    for (room, expected) in [(1513, false), (1514, true)] {
        bench.card.regs.read_at = (bench.card.regs.write_at + room) & 8191;
        assert_eq!(bench.card.has_room(), expected, "{room}");
    }
    bench.card.regs.read_at = read_at;
    // A shorter one fits, to the last byte but the one that tells full from empty.
    let left = 8192 - bench.read(reg::CBR, 2) as usize;
    assert_eq!(bench.receive(&frame(MAC, left - 8)), Reception::Full);
    assert_eq!(bench.receive(&frame(MAC, left - 12)), Reception::Stored);
    bench.write(reg::CAPR, 2, 1524 - 16);
    assert!(bench.card.has_room());
    assert_eq!(bench.receive(&frame(MAC, 1500)), Reception::Stored);
    bench.write(reg::MPC, 4, 77);
    assert_eq!(bench.read(reg::MPC, 4), 0);
}

#[test]
fn nothing_is_written_outside_of_the_ring() {
    for (rcr, room) in [(0, 0), (0x80, OVERRUN)] {
        let mut bench = Bench::c_mode(rcr);
        for len in [4000, 8184, 8185, 20_000, 65_535, 70_000] {
            let taken = bench.receive(&frame(MAC, len)) == Reception::Stored;
            assert_eq!(taken, len <= 8184, "{len}");
            (bench.card.regs.write_at, bench.card.regs.read_at) = (0, 0);
        }
        let rest = bench.at(RING + 8192 + room, 0x1_0000);
        assert!(rest.iter().all(|byte| *byte == 0));
        // From anywhere in the ring.
        for at in (0..8192).step_by(444) {
            for len in [1514, 3000, 8000] {
                (bench.card.regs.write_at, bench.card.regs.read_at) = (at, at);
                let _ = bench.receive(&frame(MAC, len));
            }
        }
        let rest = bench.at(RING + 8192 + room, 0x1_0000);
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn loopback_comes_back_and_stays_off_the_wire() {
    let mut bench = Bench::c_mode(0x01);
    bench.write(reg::TCR, 4, 0x0306_0700);
    let one = frame([3; 6], 100);
    assert!(bench.send(0, &one).is_empty());
    assert_eq!(bench.read(reg::ISR, 2), 0x05);
    assert_eq!(bench.at(RING + 4, 100), one);
    assert!(bench.send(1, &frame([3; 6], 20)).is_empty());
    assert_eq!(bench.word(RING + 108) >> 16, 64);
    assert_eq!(bench.at(RING + 112 + 20, 40), [0; 40], "padded");
    // One bit of the two is not loopback.
    bench.write(reg::TCR, 4, 0x0302_0700);
    assert_eq!(bench.send(2, &one).len(), 1);
    // As from the wire, none is offered to a ring without room for the longest.
    let mut bench = Bench::c_mode(0x01);
    while bench.card.regs.available() == 0 || bench.card.regs.available() > 1500 {
        bench.receive(&one);
    }
    bench.write(reg::TCR, 4, 0x0306_0700);
    bench.write(reg::IMR, 2, 0x01);
    let at = bench.read(reg::CBR, 2);
    assert!(bench.send(0, &one).is_empty());
    assert_eq!((bench.read(reg::CBR, 2), bench.read(reg::MPC, 4)), (at, 0));
    bench.write(reg::IMR, 2, 0x10);
    assert!(bench.send(1, &one).is_empty());
    assert_eq!(bench.read(reg::CBR, 2), at + 108);
}

#[test]
fn refused_transfers_are_ones_and_count() {
    let mut bench = Bench::c_mode(0);
    bench.write(reg::TSAD, 4, 0x9000_0000);
    bench.write(reg::TSD, 4, 60);
    assert_eq!(bench.sent(), [[0xff; 60]]);
    assert_eq!(bench.card.refused(), 1);
    assert_eq!(bench.read(reg::ISR, 2), 0x8004);
    assert_eq!(bench.card.receive(&frame(MAC, 60), &mut NoMemory), Reception::Stored);
    assert_eq!(bench.card.refused(), 4);
    assert_eq!(bench.at(RING, 80), [0; 80]);
}

/// What the card that took a frame from the wire says of its check sequence is passed on, in both modes; that of a frame which
/// is padded here is not.
#[test]
fn a_known_check_sequence_is_not_computed_again() {
    const FCS: u32 = 0x0bad_cafe;
    let mut bench = Bench::c_mode(0);
    let mut at = RING;
    for (len, known) in [(100, true), (60, true), (59, false)] {
        let frame = frame(MAC, len);
        let reception = bench.card.receive_with_fcs(&frame, Some(FCS), &mut bench.memory);
        assert_eq!(reception, Reception::Stored);
        let stored = len.max(60) as u32;
        assert_eq!(bench.word(at + 4 + stored) == FCS, known, "{len} bytes");
        at += (4 + stored + 4).next_multiple_of(4);
    }
    let mut bench = Bench::cplus(0);
    bench.descriptor(RECEIVE_RING, 1 << 31 | 0x600, 0, BUFFERS);
    assert_eq!(
        bench.card.receive_with_fcs(&frame(MAC, 100), Some(FCS), &mut bench.memory),
        Reception::Stored
    );
    assert_eq!(bench.word(BUFFERS + 100), FCS);
}
