//! Sending.

use super::*;
use crate::dma::Recorded;

/// A TCP frame's headers over IPv4, 54 bytes, with `len` bytes of data.
fn tcp(len: usize) -> Vec<u8> {
    let mut bytes = frame([2, 0, 0, 0, 0, 1], 54 + len);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[18..20].copy_from_slice(&[0x10, 0xfe]);
    bytes[24..26].fill(0);
    bytes[38..42].copy_from_slice(&[0xff, 0xff, 0xff, 0xf0]);
    // FIN, PSH, ACK; then the pseudo-header's sum.
    bytes[47] = 0x19;
    bytes[50..52].copy_from_slice(&[0x12, 0x34]);
    bytes
}

/// The Internet checksum's sum, folded: 0xffff over data with a good checksum.
fn sum(bytes: &[u8]) -> u32 {
    let sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b))).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff)
}

#[test]
fn legacy_frame_of_two_descriptors() {
    let mut machine = Machine::started();
    let bytes = frame([2, 0, 0, 0, 0, 1], 300);
    machine.memory.write(OUT, &bytes).unwrap();
    machine.push(OUT, 100, 0xe);
    machine.push(OUT + 100, EOP | RS | 200, 0xe);
    machine.set(reg::TDT, 2);
    assert!(machine.card.transmitting());
    assert!(!machine.card.interrupt());
    assert_eq!(machine.run(), [bytes]);
    // Only the one with RS is reported; the failures it claimed are gone.
    assert_eq!((machine.status(0), machine.status(1)), (0xe, 1));
    assert_eq!(machine.get(reg::TDH), 2);
    assert!(machine.card.interrupt());
    assert_eq!(machine.get(reg::ICR), 3);
}

#[test]
fn transmitter_that_is_off_waits() {
    let mut machine = Machine::started();
    machine.set(reg::TCTL, 0);
    machine.push(OUT, EOP | 60, 0);
    assert!(machine.ring().is_empty());
    assert_eq!(machine.get(reg::TDH), 0);
    machine.set(reg::TCTL, 2);
    assert_eq!(machine.run().len(), 1);
}

#[test]
fn checksums_are_inserted() {
    let mut machine = Machine::started();
    let bytes = tcp(101);
    machine.memory.write(OUT, &bytes).unwrap();
    machine.context(0, 0, 0, 0);
    // Options count in the first descriptor of a frame only.
    machine.push(OUT, DATA | 54, 3 << 8);
    machine.push(OUT + 54, DATA | EOP | RS | 101, 0);
    let frames = machine.ring();
    assert_eq!(frames.len(), 1);
    assert_eq!(sum(&frames[0][14..34]), 0xffff);
    // The pseudo-header's sum was in the field, so the whole adds up to its complement.
    let mut whole = frames[0][34..].to_vec();
    whole.extend([0; 1]);
    whole.extend([0x12, 0x34]);
    assert_eq!(sum(&whole), 0xffff);
    assert_eq!(frames[0][..24], bytes[..24]);
}

#[test]
fn segments_are_numbered() {
    let mut machine = Machine::started();
    let bytes = tcp(2500);
    machine.memory.write(OUT, &bytes).unwrap();
    machine.context(TSE | 1 << 25 | 1 << 24, 2500, 54, 1000);
    machine.push(OUT, DATA | TSE | 1200, 3 << 8);
    machine.push(OUT + 1200, DATA | TSE | EOP | RS | 1354, 0);
    let frames = machine.ring();
    let lens: Vec<usize> = frames.iter().map(Vec::len).collect();
    assert_eq!(lens, [1054, 1054, 554]);
    for (index, segment) in (0u16..).zip(&frames) {
        let len = segment.len() as u16;
        assert_eq!(segment[16..18], (len - 14).to_be_bytes());
        assert_eq!(segment[18..20], (0x10fe + index).to_be_bytes());
        let sequence = 0xffff_fff0u32.wrapping_add(1000 * u32::from(index));
        assert_eq!(segment[38..42], sequence.to_be_bytes());
        assert_eq!(segment[47], if index == 2 { 0x19 } else { 0x10 });
        assert_eq!(sum(&segment[14..34]), 0xffff);
        let mut whole = segment[34..].to_vec();
        whole.extend((0x1234 + len - 34).to_be_bytes());
        assert_eq!(sum(&whole), 0xffff);
        let at = 54 + 1000 * usize::from(index);
        assert_eq!(segment[54..], bytes[at..at + segment.len() - 54]);
    }
    assert_eq!(machine.get(reg::TSCTC), 1);
}

#[test]
fn full_segments_are_followed_by_nothing_but_as_qemu_does() {
    for like_qemu in [false, true] {
        let mut machine = Machine::started();
        let trailing: &[usize] = match like_qemu {
            true => {
                machine.card.follow_qemu();
                &[54]
            }
            false => &[],
        };
        machine.context(TSE | 1 << 24, 2000, 54, 1000);
        machine.push(OUT, DATA | TSE | EOP | 2054, 0);
        let lens: Vec<usize> = machine.ring().iter().map(Vec::len).collect();
        assert_eq!(lens, [&[1054, 1054], trailing].concat());
        // The end of the packet, and not before, sets it back: the next begins with its own header.
        machine.push(OUT, DATA | TSE | EOP | 554, 0);
        let lens: Vec<usize> = machine.ring().iter().map(Vec::len).collect();
        assert_eq!(lens, [554]);
        // A packet of a header alone is one.
        machine.push(OUT, DATA | TSE | EOP | 54, 0);
        assert_eq!(machine.ring().len(), 1);
    }
}

#[test]
fn vlan_tag_goes_behind_the_addresses() {
    let mut machine = Machine::started();
    let bytes = frame([2, 0, 0, 0, 0, 1], 60);
    machine.memory.write(OUT, &bytes).unwrap();
    machine.push(OUT, EOP | VLE | 60, 0x2042 << 16);
    // Not without CTRL.VME.
    assert_eq!(machine.ring(), core::slice::from_ref(&bytes));
    machine.set(reg::CTRL, 1 << 30);
    machine.push(OUT, EOP | VLE | 60, 0x2042 << 16);
    let tagged = [&bytes[..12], &[0x81, 0, 0x20, 0x42], &bytes[12..]].concat();
    assert_eq!(machine.ring(), [tagged]);
    machine.push(OUT, EOP | 60, 0);
    assert_eq!(machine.ring(), [bytes]);
}

#[test]
fn rings_end() {
    let mut machine = Machine::started();
    for _ in 0..16 {
        machine.push(OUT, EOP | RS | 60, 0);
    }
    // TDT where TDH never comes: one circle.
    machine.set(reg::TDT, 0xffff);
    assert_eq!(machine.run().len(), 16);
    assert_eq!(machine.get(reg::TDH), 0);
    // No length: one descriptor.
    machine.set(reg::TDLEN, 0);
    machine.set(reg::TDT, 9);
    assert_eq!(machine.run().len(), 1);
    assert_eq!(machine.get(reg::TDH), 0);
    // TDH beyond the ring: one descriptor, and it is followed there.
    machine.set(reg::TDLEN, 128);
    machine.set(reg::TDH, 15);
    machine.set(reg::TDT, 9);
    assert_eq!(machine.run().len(), 1);
    assert_eq!(machine.get(reg::TDH), 0);
}

/// Carries a run on with a budget of its own for each call, which is asked for work until it is spent; returns what each
/// call read and wrote, in bytes and in descriptors, and the frames.
fn run_by(machine: &mut Machine, budget: Budget) -> (Vec<(usize, usize)>, usize) {
    let mut buffer = vec![0; MAX_OUTGOING];
    let (mut calls, mut frames) = (Vec::new(), 0);
    loop {
        let mut memory = Recorded::new(&mut machine.memory);
        let mut left = budget;
        let idle = loop {
            match machine.card.transmit(&mut memory, &mut buffer, &mut left) {
                Transmission::Frame(_) => frames += 1,
                Transmission::Busy => break false,
                Transmission::Idle => break true,
            }
        };
        let descriptors = memory.log.iter().filter(|transfer| !transfer.write && transfer.len == 16).count();
        calls.push((
            memory.log.iter().map(|transfer| transfer.len).sum::<usize>() - 16 * descriptors,
            descriptors,
        ));
        if idle {
            return (calls, frames);
        }
    }
}

#[test]
fn a_call_takes_no_more_descriptors_than_its_budget_has_steps() {
    let mut machine = Machine::started();
    // 248 descriptors of context and no frame.
    machine.set(reg::TDLEN, 0xf80);
    for entry in 0..248 {
        machine.memory.write(TX_RING + 16 * entry + 8, &DEXT.to_le_bytes()).unwrap();
    }
    machine.set(reg::TDT, 247);
    let (calls, frames) = run_by(&mut machine, Budget::new(usize::MAX, 10));
    assert_eq!(frames, 0);
    assert!(calls.iter().all(|call| *call <= (0, 10)), "{calls:?}");
    assert_eq!(calls.iter().map(|call| call.1).sum::<usize>(), 247, "all were taken, once");
    assert_eq!(calls.len(), 25);
}

#[test]
fn a_call_moves_less_than_its_budget_and_one_piece() {
    const PIECE: usize = 0xffff;
    let mut machine = Machine::started();
    // Of 16 times 64 KiB, with an end each and then without one, nothing fits a wire; it takes its time all the same.
    for (command, sent) in [(EOP, 3 * 15), (0, 0)] {
        for entry in 0..16 {
            machine.memory.write(TX_RING + 16 * entry, &MEMORY.to_le_bytes()).unwrap();
            machine.memory.write(TX_RING + 16 * entry + 8, &(command | 0xffff).to_le_bytes()).unwrap();
        }
        machine.set(reg::TDLEN, 256);
        machine.set(reg::TDH, 0);
        machine.set(reg::TDT, 15);
        for bytes in [1, 1000, Budget::BYTES] {
            let (calls, _) = run_by(&mut machine, Budget::new(bytes, usize::MAX));
            assert!(calls.iter().all(|call| call.0 < bytes + PIECE), "{bytes}: {calls:?}");
            machine.set(reg::TDH, 0);
            machine.set(reg::TDT, 15);
        }
        assert_eq!(machine.get(reg::GPTC), sent);
        machine.set(reg::TDT, 0);
    }
}

#[test]
fn segments_of_a_packet_count_one_by_one() {
    let mut machine = Machine::started();
    machine.memory.write(OUT, &MAC).unwrap();
    machine.context(TSE, 0xf_ffff, 14, 1);
    machine.push(OUT, DATA | TSE | EOP | 1000, 0);
    machine.set(reg::TDT, 2);
    let (calls, frames) = run_by(&mut machine, Budget::new(usize::MAX, 100));
    // One byte each behind a header of 14.
    assert_eq!(frames, 986);
    assert_eq!(calls.len(), 10, "986 frames and two descriptors, a hundred in a call");
}

#[test]
fn work_of_looping_back_is_bounded() {
    let mut machine = Machine::started();
    // Segments of 64 bytes, each of which goes through a ring without buffers.
    machine.memory.at_mut(RX_RING, 0xf80).unwrap().fill(0);
    machine.memory.write(OUT, &MAC).unwrap();
    machine.set(reg::RDLEN, 0xf80);
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x5140);
    machine.context(TSE, 0xf_ffff, 14, 50);
    machine.push(OUT, DATA | TSE | EOP | 10_000, 0);
    machine.set(reg::TDT, 2);
    let (calls, _) = run_by(&mut machine, Budget::new(usize::MAX, 100));
    assert!(calls.iter().all(|call| call.1 <= 99 + 248), "{calls:?}");
    assert_eq!(calls.len(), 200, "a frame each");
    assert_eq!(machine.get(reg::RNBC), 200);
}

#[test]
fn doorbell_in_a_run_carries_it_on() {
    let mut machine = Machine::started();
    let mut buffer = vec![0; MAX_OUTGOING];
    // The driver is always one frame ahead: more than a circle, and no end.
    for entry in 0..40 {
        machine.push(OUT, EOP | 60, 0);
        machine.set(reg::TDT, machine.tail);
        if entry > 0 {
            let sent = machine.card.transmit(&mut machine.memory, &mut buffer, &mut Budget::default());
            assert_eq!(sent, Transmission::Frame(60));
        }
    }
    assert_eq!(machine.run().len(), 1);
}

#[test]
fn doorbell_in_a_run_keeps_its_causes() {
    let mut machine = Machine::started();
    machine.push(OUT, EOP | RS | 60, 0);
    machine.push(OUT, EOP | 60, 0);
    machine.set(reg::TDT, 1);
    let mut buffer = vec![0; MAX_OUTGOING];
    assert_eq!(
        machine.card.transmit(&mut machine.memory, &mut buffer, &mut Budget::default()),
        Transmission::Frame(60)
    );
    machine.set(reg::TDT, 2);
    assert_eq!(machine.run().len(), 1);
    assert_eq!(machine.get(reg::ICR), 3);
}

#[test]
fn reports_may_wait() {
    const IDE: u32 = 1 << 31;
    let mut machine = Machine::started();
    machine.set(reg::TADV, 1000);
    // Not without IDE; and it counts once.
    for (flags, delay) in [(0, 128_000), (IDE, 1_024_000), (0, 128_000)] {
        let now = machine.card.deadline().map_or(5_000_000_000, |time| time + 1);
        machine.card.advance(now);
        machine.push(OUT, EOP | RS | flags | 60, 0);
        machine.ring();
        assert_eq!(machine.card.deadline(), Some(now + delay));
        machine.get(reg::ICR);
    }
}

#[test]
fn phy_loops_back() {
    let mut machine = Machine::started();
    machine.memory.write(OUT, &frame(MAC, 80)).unwrap();
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x5140);
    machine.push(OUT, EOP | RS | 80, 0);
    assert!(machine.ring().is_empty());
    assert_eq!(machine.received(0), (84, 7, 0));
    assert_eq!(machine.memory.at(IN, 80), Some(&frame(MAC, 80)[..]));
    assert_eq!(machine.get(reg::ICR) & 0x83, 0x83);
}

#[test]
fn memory_that_is_not_there_is_zeros() {
    let mut machine = Machine::started();
    machine.memory.write(OUT, &[7; 60]).unwrap();
    machine.push(OUT, EOP | RS | 60, 0);
    machine.push(0xdead_0000_0000, EOP | RS | 60, 0);
    // Nothing of the frame before.
    assert_eq!(machine.ring(), [vec![7; 60], vec![0; 60]]);
    assert_eq!(machine.card.refused(), 1);
    // A ring that is not there: nothing is sent, and nothing reported.
    machine.set(reg::TDBAH, 1);
    machine.set(reg::TDT, 1);
    assert!(machine.run().is_empty());
    assert_eq!(machine.card.refused(), 16);
    machine.set(reg::RDBAH, 1);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Lost);
}
