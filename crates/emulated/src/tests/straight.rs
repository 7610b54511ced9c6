//! Packets that a guest's card leaves to the physical one to finish.

use super::*;
use crate::Description;
use sluice_nic::Offload;
use sluice_nic::checksum::Sum;
use sluice_nic::offload::{Checksum, Segments};

const CUT: Offload = Offload {
    ip: Some(Checksum { start: 14, offset: 24, end: 33 }),
    transport: Some(Checksum { start: 34, offset: 50, end: 0 }),
    segments: Some(Segments { header: 54, payload: 1000, ip: 14, transport: 34, ipv4: true, tcp: true }),
    is_in_headers: true,
};

/// The physical card and the guests' cards, where packets go straight.
const CARDS: [(NicModel, NicModel); 3] = [
    (NicModel::E1000, NicModel::E1000),
    (NicModel::Rtl8139, NicModel::Rtl8139),
    (NicModel::E1000, NicModel::Rtl8139),
];

/// Headers of TCP over IPv4, and payload that says where it belongs.
fn packet(to: [u8; 6], from: [u8; 6], payload: usize, mark: u16) -> Vec<u8> {
    let length = (40 + payload as u16).to_be_bytes();
    let mut bytes = [&to[..], &from[..], &[8, 0, 0x45, 0], &length[..], &mark.to_be_bytes()[..]].concat();
    bytes.extend([0, 0, 64, 6, 0, 0, 10, 0, 2, 15, 10, 0, 2, 2]);
    bytes.resize(54, 0);
    bytes[46] = 0x50;
    bytes.extend((0..payload).map(|at| (at / 250) as u8 ^ mark as u8));
    bytes
}

/// Two guests, and a driver of the first that has its card finish packets.
fn machine_of((physical, guests): (NicModel, NicModel)) -> (Machine, Box<dyn Uplink>) {
    let mut machine = Machine::new(physical, &[guests, guests]);
    let Description { vendor, device, .. } = describe(guests);
    let driver = machine.online(0, for_device(vendor, device, &|_| 0).unwrap());
    (machine, driver)
}

fn machine() -> (Machine, Box<dyn Uplink>) {
    machine_of(CARDS[0])
}

/// The checksums of a segment are right.
fn sums_up(frame: &[u8]) -> bool {
    let sum = |parts: &[&[u8]]| {
        let mut sum = Sum::new();
        parts.iter().for_each(|part| sum.add(part));
        sum.folded() == [0xff; 2]
    };
    let length = (frame.len() as u16 - 34).to_be_bytes();
    sum(&[&frame[14..34]]) && sum(&[&frame[26..34], &[0, 6], &length, &frame[34..]])
}

impl Machine {
    /// The first guest's driver has its card finish a packet.
    fn finish(&mut self, driver: &mut dyn Uplink, packet: &[u8], offload: &Offload) {
        self.drive(0, |card| {
            let at = driver.place(card, packet.len(), offload).at().expect("there is room");
            card.memory.write(at, packet);
            driver.enqueue_placed(card, at, packet.len(), offload);
            driver.flush(card);
        });
    }
}

/// The number that a segment has in its IP header, and its payload.
fn parts(frame: &[u8]) -> (u16, &[u8]) {
    (u16::from_be_bytes([frame[18], frame[19]]), &frame[54..])
}

#[test]
fn a_packet_is_copied_once_and_cut_by_the_physical_card() {
    let (mut machine, mut driver) = machine();
    let packet = packet(ROUTER, mac(0), 2500, 7);
    let before = machine.guests.0[0].1.get();
    machine.finish(&mut *driver, &packet, &CUT);
    let wire: Vec<_> = machine.physical.wire.iter().map(|frame| parts(frame)).collect();
    assert_eq!(wire, [(7, &packet[54..1054]), (8, &packet[1054..2054]), (9, &packet[2054..])]);
    assert_eq!(machine.counters(0).tx_packets, 3);
    let moved = machine.guests.0[0].1.get();
    // Two descriptors at once, the packet, and a report of each.
    assert_eq!(moved.bytes - before.bytes, 2 * 16 + packet.len() + 2 * 4);
    assert_eq!(moved.transfers - before.transfers, 1 + 1 + 2);
}

#[test]
fn so_is_one_of_an_rtl8139_by_either_card() {
    for cards in [CARDS[1], CARDS[2]] {
        let (mut machine, mut driver) = machine_of(cards);
        let packet = packet(ROUTER, mac(0), 2500, 7);
        let before = machine.guests.0[0].1.get();
        machine.finish(&mut *driver, &packet, &CUT);
        let wire: Vec<_> = machine.physical.wire.iter().map(|frame| parts(frame)).collect();
        assert_eq!(wire, [(7, &packet[54..1054]), (8, &packet[1054..2054]), (9, &packet[2054..])]);
        assert!(machine.physical.wire.iter().all(|frame| sums_up(frame)), "{cards:?}");
        assert_eq!(machine.counters(0).tx_packets, 3);
        let moved = machine.guests.0[0].1.get();
        // Four descriptors at once, the headers and the rest, and a report.
        assert_eq!(moved.bytes - before.bytes, 4 * 16 + packet.len() + 4);
        assert_eq!(moved.transfers - before.transfers, 1 + 2 + 1);
        // What is not cut.
        machine.physical.wire.clear();
        for len in [10, 1000] {
            let packet = packet_of(len);
            machine.finish(&mut *driver, &packet, &Offload { segments: None, ..CUT });
            let sent = machine.physical.wire.pop().unwrap();
            assert!(sums_up(&sent) && sent[54..] == packet[54..], "{cards:?}");
        }
    }
}

/// One to the router.
fn packet_of(payload: usize) -> Vec<u8> {
    packet(ROUTER, mac(0), payload, 7)
}

/// FIN is in the last segment, whatever the physical card does with it.
#[test]
fn the_end_of_a_stream_is_cut_in_software() {
    let (mut machine, mut driver) = machine_of(CARDS[1]);
    let mut packet = packet_of(2500);
    packet[47] = 0x19;
    let before = machine.guests.0[0].1.get();
    machine.finish(&mut *driver, &packet, &CUT);
    let flags: Vec<_> = machine.physical.wire.iter().map(|frame| (frame[47], sums_up(frame))).collect();
    assert_eq!(flags, [(0x10, true), (0x10, true), (0x19, true)]);
    let moved = machine.guests.0[0].1.get();
    assert!(moved.bytes - before.bytes > packet.len() + 4 * 16 + 4 + 16, "it went the long way");
}

#[test]
fn what_is_for_a_neighbour_is_cut_in_software_and_stays_off_the_wire() {
    CARDS.into_iter().for_each(for_a_neighbour);
}

fn for_a_neighbour(cards: (NicModel, NicModel)) {
    let (mut machine, mut driver) = machine_of(cards);
    let mut other = machine.driver(1);
    for (to, on_the_wire) in [(mac(1), 0), (ALL, 3)] {
        machine.physical.wire.clear();
        let packet = packet(to, mac(0), 2500, 7);
        machine.finish(&mut *driver, &packet, &CUT);
        // A line that is paced.
        machine.settle();
        let got = machine.take(1, &mut *other);
        let got: Vec<_> = got.iter().map(|frame| parts(frame)).collect();
        assert_eq!(got, [(7, &packet[54..1054]), (8, &packet[1054..2054]), (9, &packet[2054..])]);
        assert_eq!(machine.physical.wire.len(), on_the_wire);
    }
}

#[test]
fn nobody_sends_under_anothers_name_and_nothing_for_the_link() {
    CARDS.into_iter().for_each(under_anothers_name);
}

fn under_anothers_name(cards: (NicModel, NicModel)) {
    let (mut machine, mut driver) = machine_of(cards);
    machine.finish(&mut *driver, &packet(ROUTER, mac(1), 2500, 7), &CUT);
    machine.finish(&mut *driver, &packet([1, 0x80, 0xc2, 0, 0, 2], mac(0), 2500, 7), &CUT);
    let mut pause = packet(ROUTER, mac(0), 100, 7);
    pause[12..14].copy_from_slice(&[0x88, 0x08]);
    machine.finish(&mut *driver, &pause, &Offload { segments: None, ..CUT });
    machine.settle();
    assert!(machine.physical.wire.is_empty());
    let Counters { tx_packets, forged, refused, .. } = machine.counters(0);
    assert_eq!((tx_packets, forged, refused), (0, 3, 4), "{cards:?}");
}

/// A checksum that the card would put where the source address was, after that was looked at.
#[test]
fn nobody_has_the_card_write_another_name() {
    let (mut machine, _) = machine();
    let packet = packet(ROUTER, mac(0), 100, 7);
    let (ring, at) = (0x2_0000, 0x3_0000);
    let data = u128::from(BUS + at) | (packet.len() as u128) << 64 | 0x2b10 << 80 | 1 << 104;
    for offset in [0u8, 6, 10, 11] {
        // A context whose IP checksum is of the whole frame, and a frame that wants it.
        let context = u128::from(offset) << 8 | 0x20 << 88;
        let descriptors = [context.to_le_bytes(), data.to_le_bytes()].concat();
        driver_memory(&machine, ring, &descriptors);
        driver_memory(&machine, at, &packet);
        machine.drive(0, |card| {
            for (register, value) in
                [(0x3818, 0), (0x3800, BUS + ring), (0x3808, 256), (0x3810, 0), (0x3818, 2)]
            {
                card.registers.write(register, 4, value);
            }
        });
        machine.settle();
    }
    let sources: Vec<_> = machine.physical.wire.iter().map(|frame| &frame[6..12]).collect();
    assert_eq!(sources, [mac(0)], "of four the one goes out whose destination is the sum");
    assert_eq!(machine.counters(0).forged, 3);
}

#[test]
fn who_waits_for_the_wire_is_not_overtaken() {
    CARDS.into_iter().for_each(not_overtaken);
}

fn not_overtaken(cards: (NicModel, NicModel)) {
    let (mut machine, mut driver) = machine_of(cards);
    machine.physical.slow = true;
    // As much as the physical card's driver has room for, and some frames that wait for it.
    for mark in 0..8 {
        machine.finish(&mut *driver, &packet(ROUTER, mac(0), 60_000, mark << 8), &CUT);
        if machine.counters(0).tx_packets < 60 * (u64::from(mark) + 1) {
            break;
        }
    }
    machine.physical.slow = false;
    machine.settle();
    let numbers: Vec<u16> = machine.physical.wire.iter().map(|frame| parts(frame).0).collect();
    assert!(numbers.len() >= 180 && numbers.is_sorted(), "{numbers:?}");
    assert_eq!(numbers.len() as u64, machine.counters(0).tx_packets);
}

/// The card is done, and nobody has looked yet.
#[test]
fn nor_by_who_comes_when_the_wire_has_just_become_free() {
    CARDS.into_iter().for_each(|cards| just_free(cards, if cards.0 == NicModel::E1000 { 140 } else { 76 }));
}

/// The physical card's driver has room for some ten frames less.
fn just_free(cards: (NicModel, NicModel), most: u16) {
    let (mut machine, mut driver) = machine_of(cards);
    let plain = Offload { segments: None, ..CUT };
    machine.physical.slow = true;
    for mark in 0..most {
        machine.finish(&mut *driver, &packet(ROUTER, mac(0), 100, mark), &plain);
        if mark == most - 10 {
            machine.physical.slow = false;
            machine.physical.after();
        }
    }
    machine.settle();
    let numbers: Vec<u16> = machine.physical.wire.iter().map(|frame| parts(frame).0).collect();
    assert_eq!(numbers, (0..most).collect::<Vec<_>>());
}

/// One for all, and one for a guest alone, that the physical card has at the same time.
#[test]
fn a_frame_for_one_does_not_overtake_one_for_all() {
    let (mut machine, mut driver) = machine();
    machine.physical.arriving.extend([frame(ALL, ROUTER, 60, 1), frame(mac(0), ROUTER, 60, 2)]);
    (0..4).for_each(|_| machine.physical.after());
    assert!(machine.physical.arriving.is_empty());
    machine.with(|shared, env| shared.interrupt(env));
    assert_eq!(marks(&machine.take(0, &mut *driver)), [1, 2]);
}
