//! Drivers that break the rules: it is they who stop, and nobody else.

use super::driver::{Driver, SIZE, frame};
use super::{EVERYBODY, Lab, STRANGER, mac};
use crate::FEATURES;
use std::vec::Vec;

/// What a driver does to a network of three, of which it has the first VIF. Returns what became of the frames that it sent.
#[track_caller]
fn attack(what: &str, act: impl FnOnce(&mut Driver)) {
    let mut lab = Lab::new(3, FEATURES);
    act(&mut lab.drivers[0]);
    let outcome = lab.round();
    let id = lab.drivers[0].id.unwrap();
    assert!(outcome.broken.contains(id), "{what}: it goes on");
    assert_eq!(outcome.broken.iter().count(), 1, "{what}: others are broken");
    assert_eq!(lab.counters(0).faults, 1, "{what}");
    assert_eq!(lab.received()[1..], [Vec::<Vec<u8>>::new(), vec![]], "{what}: others got something");
    // The others go on as before.
    let sent = frame(mac(2), mac(1), 100);
    lab.drivers[1].send(&sent);
    lab.drivers[1].send(&frame(EVERYBODY, mac(1), 100));
    lab.settle();
    assert_eq!(lab.received()[2].len(), 2, "{what}");
    assert!(lab.round().broken.is_empty(), "{what}: it is broken twice");
    // A reset mends it.
    let mut fresh = Driver::new(mac(0), FEATURES);
    fresh.ram = lab.drivers[0].ram.clone();
    for index in 0..SIZE {
        fresh.offer_raw(index, 0x1_0000 + 0x800 * u64::from(index), 0x800, 2);
    }
    fresh.ram.put(0x5000, &[0; 4]);
    fresh.ram.put(0x2000, &[0; 4]);
    fresh.id = Some(id);
    assert!(lab.network.activate(id, None) && lab.network.activate(id, Some(fresh.active())), "{what}");
    lab.drivers[0] = fresh;
    lab.drivers[0].send(&frame(mac(1), mac(0), 60));
    lab.settle();
    assert_eq!(lab.received()[1].len(), 1, "{what}: a reset does not mend it");
}

#[test]
fn a_driver_that_breaks_the_rules_stops() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    attack("memory that is not there", |driver| driver.send_raw(&[(0xffff_0000, 100, 0, 0)]));
    attack("memory at the end of all addresses", |driver| driver.send_raw(&[(u64::MAX - 4, 100, 0, 0)]));
    attack("memory whose end is not there", |driver| driver.send_raw(&[(0x7_fff0, 100, 0, 0)]));
    attack("the second piece is not there", |driver| {
        driver.send_raw(&[(0x4_0000, 40, NEXT, 1), (0xffff_0000, 100, 0, 0)]);
    });
    attack("a buffer to write to", |driver| driver.send_raw(&[(0x4_0000, 100, WRITE, 0)]));
    attack("a table of descriptors, which is not offered", |driver| {
        driver.send_raw(&[(0x4_0000, 96, INDIRECT, 0)])
    });
    attack("a chain beyond the queue", |driver| driver.send_raw(&[(0x4_0000, 100, NEXT, SIZE)]));
    attack("more chains than there are", |driver| driver.claim_available(SIZE + 1));
    attack("a head beyond the queue", |driver| {
        driver.ram.put(0x4004, &SIZE.to_le_bytes());
        driver.claim_available(1);
    });
}

/// The first VIF offers these buffers, and the others send.
#[track_caller]
fn offer(what: &str, act: impl FnOnce(&mut Driver)) {
    let mut lab = Lab::new(3, FEATURES);
    lab.drivers[0].offer_only(&[]);
    act(&mut lab.drivers[0]);
    let all = frame(EVERYBODY, mac(1), 1000);
    lab.drivers[1].send(&all);
    let outcome = lab.round();
    assert!(outcome.broken.contains(lab.drivers[0].id.unwrap()), "{what}: it goes on");
    assert_eq!(outcome.broken.iter().count(), 1, "{what}: others are broken");
    assert_eq!(lab.received()[2], [all], "{what}");
    assert_eq!((lab.drivers[1].sent(), lab.counters(1).faults), (1, 0), "{what}: the sender suffers");
}

#[test]
fn a_receiver_that_breaks_the_rules_stops_and_not_the_sender() {
    offer("memory that is not there", |driver| driver.offer_raw(0, 0xffff_0000, 2000, 2));
    offer("memory whose end is not there", |driver| driver.offer_raw(0, 0x7_ff00, 2000, 2));
    offer("memory at the end of all addresses", |driver| driver.offer_raw(0, u64::MAX - 8, 2000, 2));
    offer("a buffer to read from", |driver| driver.offer_raw(0, 0x1_0000, 2000, 0));
    offer("no room for the header", |driver| driver.offer_raw(0, 0x1_0000, 11, 2));
    offer("an empty buffer", |driver| {
        driver.offer_raw(0, 0x1_0000, 20, 2);
        driver.offer_raw(1, 0x1_0800, 0, 2);
    });
}

#[test]
fn crumbs_are_not_looked_at_without_end() {
    for chained in [false, true] {
        let mut lab = Lab::new(3, FEATURES);
        lab.drivers[0].offer_only(&[]);
        match chained {
            true => lab.drivers[0].offer_chain(&[12; SIZE as usize]),
            false => (0..SIZE).for_each(|index| lab.drivers[0].offer_raw(index, 0x1_0000, 12, 2)),
        }
        let all = frame(EVERYBODY, mac(1), 1000);
        lab.drivers[1].send(&all);
        lab.settle();
        assert_eq!((lab.counters(0).missed, lab.counters(0).received, lab.counters(0).faults), (1, 0, 0));
        assert_eq!(lab.received()[2], [all]);
    }
}

#[test]
fn a_frame_is_put_into_so_many_pieces_and_no_more() {
    // Of 64 pieces in chains of 16, each with room for a header first, 16 bytes are in the first chain and 28 in each other.
    for (bytes, fits) in [(100, true), (101, false)] {
        let mut lab = Lab::new(2, FEATURES);
        lab.drivers[0].offer_only(&[]);
        let chain: Vec<u32> = [13].into_iter().chain([1; 15]).collect();
        (0..8).for_each(|_| lab.drivers[0].offer_chain(&chain));
        lab.drivers[1].send(&frame(mac(0), mac(1), bytes));
        lab.settle();
        let expected = if fits { (0, 1) } else { (1, 0) };
        assert_eq!((lab.counters(0).missed, lab.counters(0).received), expected, "{bytes} bytes");
    }
}

#[test]
fn nobody_sends_as_another() {
    let mut lab = Lab::wired(3, FEATURES, usize::MAX);
    lab.drivers[0].send(&frame(mac(1), mac(2), 60));
    lab.drivers[0].send(&frame(STRANGER, mac(2), 60));
    lab.drivers[0].send(&frame(STRANGER, STRANGER, 60));
    // What bridges keep to a link, and switches of ours too.
    lab.drivers[0].send(&frame([1, 0x80, 0xc2, 0, 0, 0], mac(0), 60));
    lab.drivers[0].send(&frame(mac(0), mac(0), 60));
    lab.settle();
    assert!(lab.received().concat().is_empty() && lab.card.as_ref().unwrap().sent.is_empty());
    assert_eq!((lab.counters(0).forged, lab.counters(0).refused, lab.counters(0).faults), (3, 2, 0));
    assert_eq!(lab.drivers[0].sent(), 5, "its buffers are its own again");
}

#[test]
fn what_was_checked_is_what_arrives() {
    let mut lab = Lab::wired(2, FEATURES, usize::MAX);
    for to in [mac(1), STRANGER] {
        let (at, sent) = (lab.drivers[0].next_frame(), frame(to, mac(0), 600));
        // The source address becomes another's once it has been looked at.
        lab.drivers[0].ram.tamper.set(Some((at + 6, mac(7))));
        lab.drivers[0].send(&sent);
        lab.settle();
        let arrived =
            [lab.received().swap_remove(1), std::mem::take(&mut lab.card.as_mut().unwrap().sent)].concat();
        assert_eq!(arrived, [sent]);
        assert_eq!(lab.drivers[0].ram.get(at + 6, 6), mac(7), "it was tampered with");
    }
}

#[test]
fn frames_that_no_station_sends_are_dropped() {
    let mut lab = Lab::new(2, FEATURES);
    lab.drivers[0].send(&frame(mac(1), mac(0), 1514 + 1));
    lab.drivers[0].send(&frame(mac(1), mac(0), 14)[..13]);
    lab.drivers[0].send_raw(&[(0x4_0000, 11, 0, 0)]);
    // In more pieces than a sender's frame ever is, or without an end.
    lab.drivers[0].send_in(&frame(mac(1), mac(0), 60), &[1; 40]);
    lab.settle();
    assert_eq!((lab.counters(0).refused, lab.counters(0).faults, lab.drivers[0].sent()), (4, 0, 4));
    let mut lab = Lab::new(2, FEATURES);
    lab.drivers[0].send_raw(&[(0x4_0000, 10, 1, 0)]);
    lab.settle();
    assert_eq!((lab.counters(0).refused, lab.drivers[0].sent()), (1, 1));
    assert!(lab.received()[1].is_empty());
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.mtu = 600);
    lab.drivers[0].send(&frame(mac(1), mac(0), 615));
    lab.drivers[0].send(&frame(mac(1), mac(0), 614));
    lab.settle();
    assert_eq!(lab.received()[1].len(), 1);
}
