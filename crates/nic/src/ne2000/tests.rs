//! The card driven as lib8390 drives it, its quirks, and random accesses.

use super::registers::port;
use super::*;
use proptest::prelude::*;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

fn started() -> Ne2000 {
    let mut card = Ne2000::new(MAC);
    for (at, value) in [
        (port::CMD, 0x21),
        (port::DCR, 0x49),
        (port::RCR, 0x0c),
        (port::TCR, 0),
        (port::PSTART, 0x4c),
        (port::PSTOP, 0x80),
        (port::BNRY, 0x4c),
        (port::CMD, 0x61),
        (port::ISR, 0x4d),
        (port::CMD, 0x22),
        (port::ISR, 0xff),
        (port::IMR, 0x3f),
    ] {
        card.write(at, 1, value);
    }
    card
}

fn program(card: &mut Ne2000, address: u16, count: u16, command: u8) {
    for (at, value) in [
        (port::RBCR0, count),
        (port::RBCR1, count >> 8),
        (port::RSAR0, address),
        (port::RSAR1, address >> 8),
        (port::CMD, u16::from(command)),
    ] {
        card.write(at, 1, u32::from(value & 0xff));
    }
}

fn frame(to: [u8; 6], len: usize) -> alloc::vec::Vec<u8> {
    (0..len).map(|i| to.get(i).copied().unwrap_or(i as u8)).collect()
}

#[test]
fn prom_reads_each_byte_twice_and_reset_restores_it() {
    let mut card = started();
    program(&mut card, 0, 2, 0x12);
    card.write(port::DATA, 2, 0);
    assert_eq!(card.prom()[0], 0);
    assert_eq!(card.read(port::RESET, 1), 0);
    assert_eq!(card.read(port::ISR, 1), 0x80);
    program(&mut card, 0, 32, 0x0a);
    for byte in MAC {
        assert_eq!(card.read(port::DATA, 1), u32::from(byte));
    }
}

#[test]
fn sends_what_was_written_and_interrupts() {
    let mut card = started();
    let sent = frame([1, 2, 3, 4, 5, 6], 64);
    program(&mut card, 0x4000, 64, 0x12);
    card.write_string(port::DATA, 4, &sent);
    assert_eq!(card.read(port::ISR, 1), 0x40);
    card.write(port::TBCR0, 1, 64);
    card.write(port::TPSR, 1, 0x40);
    assert!(!card.interrupt());
    card.write(port::CMD, 1, 0x26);
    assert!(card.interrupt());
    assert_eq!(card.read(port::CMD, 1), 0x22);
    assert_eq!(card.read(port::TPSR, 1), 1);
    let mut buffer = [0; 2048];
    assert_eq!(card.take_transmitted(&mut buffer), Some(64));
    assert_eq!(&buffer[..64], &sent[..]);
    assert_eq!(card.take_transmitted(&mut buffer), None);
}

#[test]
fn filter_and_ring() {
    let mut card = started();
    assert_eq!(card.receive(&frame([9; 6].map(|x: u8| x & !1), 80)), Reception::Filtered);
    assert_eq!(card.receive(&frame([0xff; 6], 80)), Reception::Stored);
    assert_eq!(card.receive(&frame(MAC, 20)), Reception::Stored);
    assert_eq!(card.regs.curr, 0x4f);
    program(&mut card, 0x4e00, 64, 0x0a);
    let mut got = [0; 64];
    card.read_string(port::DATA, 4, &mut got);
    assert_eq!(got[..4], [0x01, 0x4f, 64, 0]);
    assert_eq!(got[4..10], MAC);
    assert_eq!(got[24..], [0; 40]);
    let mut stored = 0;
    while card.receive(&frame(MAC, 1514)) == Reception::Stored {
        stored += 1;
    }
    assert_eq!(stored, 8);
    assert_eq!(card.receive(&frame(MAC, 60)), Reception::Full);
    card.write(port::CMD, 1, 0x21);
    assert_eq!(card.receive(&frame(MAC, 60)), Reception::Stopped);
}

#[test]
fn a_ring_is_filled_exactly_only_by_a_card_that_is_real() {
    let mut card = started();
    let longest = frame(MAC, 1514);
    // Of 51 free pages, three, then six at a time.
    assert_eq!(card.receive_whole(&frame(MAC, 700)), Reception::Stored);
    for _ in 0..7 {
        assert_eq!(card.receive_whole(&longest), Reception::Stored);
    }
    assert_eq!(card.receive_whole(&longest), Reception::Full);
    // What is not for the card needs no room.
    assert_eq!(card.receive_whole(&frame([2; 6], 1514)), Reception::Filtered);
    assert_eq!(card.receive(&longest), Reception::Stored);
    assert_eq!(card.regs.curr, card.regs.bnry);
    card.write(port::CMD, 1, 0x21);
    assert_eq!(card.receive_whole(&longest), Reception::Stopped);
}

#[test]
fn reads_ignore_count_and_direction_writes_stop() {
    let mut card = started();
    card.ram_mut()[..4].copy_from_slice(&[1, 2, 3, 4]);
    program(&mut card, 0x4000, 0, 0x22);
    assert_eq!(card.read(port::DATA, 2), 0x0201);
    assert_eq!(card.read(port::DATA, 4), 0x0403);
    program(&mut card, 0x4000, 2, 0x12);
    card.write_string(port::DATA, 2, &[9, 9, 8, 8]);
    assert_eq!(card.ram()[..4], [9, 9, 3, 4]);
}

#[test]
fn wide_and_unknown_ports_do_not_answer() {
    let mut card = started();
    let before = card.clone();
    assert_eq!(card.read(port::CMD, 2), 0xffff);
    assert_eq!(card.read(0x0c, 4), u32::MAX);
    assert_eq!(card.read(0x11, 1), 0xff);
    assert_eq!(card.read(0x18, 1), 0xff);
    card.write(port::CMD, 4, 0);
    card.write(0x12, 2, 0);
    assert_eq!(card, before);
    // Not aligned: BNRY as a byte, 4-5 as a word, 6 as a byte.
    assert_eq!(card.read(port::BNRY, 4), 0x00ff_ff00 | u32::from(before.regs.bnry));
}

fn reference_string(card: &mut Ne2000, width: u8, bytes: &mut [u8], write: bool) {
    for element in bytes.chunks_mut(usize::from(width)) {
        if write {
            let mut value = [0; 4];
            value[..element.len()].copy_from_slice(element);
            card.write(port::DATA, width, u32::from_le_bytes(value));
        } else {
            let value = card.read(port::DATA, width).to_le_bytes();
            let len = element.len();
            element.copy_from_slice(&value[..len]);
        }
    }
}

proptest! {
    /// Spans are the bytes one by one, wherever the ring is said to lie.
    #[test]
    fn frames_are_stored_as_single_bytes_are(
        at in any::<u16>(), start in any::<u8>(), stop in any::<u8>(), below in prop::option::of(0u32..2000), len in 0usize..2000,
    ) {
        let (start, stop) = (u32::from(start) << 8, u32::from(stop) << 8);
        let at = below.map_or(at.into(), |below| stop.wrapping_sub(below));
        let bytes: alloc::vec::Vec<u8> = (0..len).map(|index| index as u8 | 1).collect();
        let (mut spans, mut single) = (Ne2000::new(MAC), Ne2000::new(MAC));
        let mut next = at;
        for byte in &bytes {
            single.set_byte(next, *byte);
            next = next.wrapping_add(1);
            if next == stop {
                next = start;
            }
        }
        prop_assert_eq!(spans.store(at, start..stop, &bytes), next);
        prop_assert!(spans == single);
    }

    #[test]
    fn strings_equal_single_accesses(
        address in any::<u16>(), count in 0u16..2000, dcr in 0u8..2, width in 0u8..3,
        elements in 0usize..400, write in any::<bool>(), start in 0x3eu8..0x82, stop in 0x3eu8..0xc2,
    ) {
        let width = 1 << width;
        let mut one = started();
        for (index, byte) in one.ram_mut().iter_mut().enumerate() {
            *byte = (index * 7) as u8;
        }
        program(&mut one, address, count, 0x22);
        one.regs.dcr = dcr;
        (one.regs.pstart, one.regs.pstop) = (start, stop);
        let mut two = one.clone();
        let mut a: alloc::vec::Vec<u8> = (0..elements * usize::from(width)).map(|i| i as u8).collect();
        let mut b = a.clone();
        reference_string(&mut one, width, &mut a, write);
        if write {
            two.write_string(port::DATA, width, &b);
        } else {
            two.read_string(port::DATA, width, &mut b);
        }
        prop_assert_eq!(a, b);
        prop_assert!(one == two);
    }

    #[test]
    fn random_accesses_never_panic(
        steps in proptest::collection::vec((0u16..0x24, 0u8..3, any::<u32>(), 0u8..4), 1..300)
    ) {
        let mut card = started();
        let mut buffer = [0u8; 0x1_0000];
        for (offset, width, value, kind) in steps {
            match kind {
                0 => drop(card.read(offset, 1 << width)),
                1 => card.write(offset, 1 << width, value),
                2 => drop(card.receive(&frame(MAC, value as usize % 1600))),
                _ => drop(card.take_transmitted(&mut buffer)),
            }
        }
    }
}
