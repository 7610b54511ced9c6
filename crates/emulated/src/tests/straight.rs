//! Packets that a guest's card leaves to the physical one to finish.

use super::*;
use sluice_nic::Offload;
use sluice_nic::offload::{Checksum, Segments};

const CUT: Offload = Offload {
    ip: Some(Checksum { start: 14, offset: 24, end: 33 }),
    transport: Some(Checksum { start: 34, offset: 50, end: 0 }),
    segments: Some(Segments { header: 54, payload: 1000, ip: 14, transport: 34, ipv4: true, tcp: true }),
    is_in_headers: false,
};

/// Headers of TCP, and payload that says where it belongs.
fn packet(to: [u8; 6], from: [u8; 6], payload: usize, mark: u16) -> Vec<u8> {
    let mut bytes = [&to[..], &from[..], &[8, 0, 0x45, 0, 0, 0], &mark.to_be_bytes()[..]].concat();
    bytes.resize(54, 0);
    bytes.extend((0..payload).map(|at| (at / 250) as u8 ^ mark as u8));
    bytes
}

/// Two guests with cards like the physical one, and the driver of the first.
fn machine() -> (Machine, Box<dyn Uplink>) {
    let mut machine = Machine::new(NicModel::E1000, &[NicModel::E1000, NicModel::E1000]);
    let driver = machine.driver(0);
    (machine, driver)
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
fn what_is_for_a_neighbour_is_cut_in_software_and_stays_off_the_wire() {
    let (mut machine, mut driver) = machine();
    let mut other = machine.driver(1);
    for (to, on_the_wire) in [(mac(1), 0), (ALL, 3)] {
        machine.physical.wire.clear();
        let packet = packet(to, mac(0), 2500, 7);
        machine.finish(&mut *driver, &packet, &CUT);
        let got = machine.take(1, &mut *other);
        let got: Vec<_> = got.iter().map(|frame| parts(frame)).collect();
        assert_eq!(got, [(7, &packet[54..1054]), (8, &packet[1054..2054]), (9, &packet[2054..])]);
        assert_eq!(machine.physical.wire.len(), on_the_wire);
    }
}

#[test]
fn nobody_sends_under_anothers_name_and_nothing_for_the_link() {
    let (mut machine, mut driver) = machine();
    machine.finish(&mut *driver, &packet(ROUTER, mac(1), 2500, 7), &CUT);
    machine.finish(&mut *driver, &packet([1, 0x80, 0xc2, 0, 0, 2], mac(0), 2500, 7), &CUT);
    let mut pause = packet(ROUTER, mac(0), 100, 7);
    pause[12..14].copy_from_slice(&[0x88, 0x08]);
    machine.finish(&mut *driver, &pause, &Offload { segments: None, ..CUT });
    machine.settle();
    assert!(machine.physical.wire.is_empty());
    let Counters { tx_packets, forged, refused, .. } = machine.counters(0);
    assert_eq!((tx_packets, forged, refused), (0, 3, 4));
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
    let (mut machine, mut driver) = machine();
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
    let (mut machine, mut driver) = machine();
    let plain = Offload { segments: None, ..CUT };
    machine.physical.slow = true;
    for mark in 0..140 {
        machine.finish(&mut *driver, &packet(ROUTER, mac(0), 100, mark), &plain);
        if mark == 130 {
            machine.physical.slow = false;
            machine.physical.after();
        }
    }
    machine.settle();
    let numbers: Vec<u16> = machine.physical.wire.iter().map(|frame| parts(frame).0).collect();
    assert_eq!(numbers, (0..140).collect::<Vec<_>>());
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
