//! What the table in the crate's documentation says, and whom a full queue hurts.

use super::*;
use alloc::vec;
use alloc::vec::Vec;

const ALICE: Mac = [0x52, 0x54, 0, 0, 0, 0x0a];
const BOB: Mac = [0x52, 0x54, 0, 0, 0, 0x0b];
const OUTSIDE: Mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const ALL: Mac = [0xff; 6];

fn frame(to: Mac, from: Mac, mark: u8) -> Vec<u8> {
    [&to[..], &from[..], &[0x08, 0, mark]].concat()
}

fn pair() -> (Switch, PortId, PortId) {
    let mut switch = Switch::new();
    let (alice, bob) = (switch.attach(ALICE).unwrap(), switch.attach(BOB).unwrap());
    (switch, alice, bob)
}

fn take(switch: &mut Switch, port: PortId) -> Vec<u8> {
    let mut marks = Vec::new();
    while let Some(frame) = switch.inbox(port) {
        marks.push(frame[14]);
        switch.pop_inbox(port);
    }
    marks
}

fn take_out(switch: &mut Switch) -> Vec<u8> {
    let mut marks = Vec::new();
    while let Some(frame) = switch.outbox() {
        marks.push(frame[14]);
        switch.pop_outbox();
    }
    marks
}

#[test]
fn frames_reach_whom_they_are_for() {
    let (mut switch, alice, bob) = pair();
    for (mark, to) in (1..).zip([BOB, ALICE, OUTSIDE, ALL]) {
        assert_eq!(switch.send(alice, &frame(to, ALICE, mark)), Verdict::Forwarded);
    }
    assert_eq!(switch.waiting(), bob.bit());
    assert_eq!(take(&mut switch, bob), [1, 4]);
    assert_eq!(take(&mut switch, alice), [], "nothing comes back to where it came from");
    assert_eq!(take_out(&mut switch), [3, 4], "the wire does not see what stays inside");
    for (mark, to) in (1..).zip([BOB, ALICE, [2; 6], ALL]) {
        assert_eq!(switch.receive(&frame(to, OUTSIDE, mark)), mark != 3);
    }
    assert_eq!(take(&mut switch, alice), [2, 4]);
    assert_eq!(take(&mut switch, bob), [1, 4]);
    assert_eq!(take_out(&mut switch), [], "the uplink does not get its own frames back");
    assert_eq!(switch.uplink_counters(), UplinkCounters { unclaimed: 1, ..UplinkCounters::default() });
    assert_eq!(switch.waiting(), 0);
}

#[test]
fn a_forged_source_gains_nothing() {
    let (mut switch, alice, bob) = pair();
    for n in 0..=255 {
        assert_eq!(switch.send(alice, &frame(ALL, [2, 0, 0, 0, n, 1], 1)), Verdict::Forged);
    }
    assert_eq!(switch.send(alice, &frame(OUTSIDE, BOB, 2)), Verdict::Forged);
    assert!(take_out(&mut switch).is_empty() && take(&mut switch, bob).is_empty());
    assert_eq!(switch.counters(alice).unwrap(), Counters { forged: 257, ..Counters::default() });
    // Bob's frames still come to Bob alone.
    assert!(switch.receive(&frame(BOB, OUTSIDE, 3)));
    assert_eq!((take(&mut switch, alice), take(&mut switch, bob)), (vec![], vec![3]));
    // From outside neither.
    assert!(!switch.receive(&frame(ALICE, BOB, 4)));
    assert_eq!(switch.uplink_counters().forged, 1);
    assert_eq!(take(&mut switch, alice), []);
}

#[test]
fn what_is_for_the_link_stays_off_the_wire() {
    let (mut switch, alice, bob) = pair();
    let mut pause = frame(OUTSIDE, ALICE, 1);
    pause[12..14].copy_from_slice(&[0x88, 0x08]);
    let long = [frame(OUTSIDE, ALICE, 1), vec![0; MAX_FRAME]].concat();
    let bad = [
        frame([1, 0x80, 0xc2, 0, 0, 1], ALICE, 1),
        frame([1, 0x80, 0xc2, 0, 0, 0x0f], ALICE, 1),
        pause,
        long,
        vec![0; 13],
        vec![],
    ];
    for frame in &bad {
        assert_eq!(switch.send(alice, frame), Verdict::Refused);
        assert!(!switch.receive(frame));
    }
    assert_eq!(switch.send(alice, &frame([1, 0x80, 0xc2, 0, 0, 0x10], ALICE, 7)), Verdict::Forwarded);
    assert_eq!((take_out(&mut switch), take(&mut switch, bob)), (vec![7], vec![7]));
    assert_eq!(switch.counters(alice).unwrap().refused, bad.len() as u64);
    assert_eq!(switch.uplink_counters().refused, bad.len() as u64);
}

#[test]
fn a_full_queue_hurts_its_own_port_only() {
    let (mut switch, alice, bob) = pair();
    for n in 0..100 {
        switch.send(alice, &frame(OUTSIDE, ALICE, n));
        switch.receive(&frame(ALICE, OUTSIDE, n));
    }
    assert!(!switch.has_room(alice) && switch.has_room(bob));
    let counters = switch.counters(alice).unwrap();
    assert_eq!(counters.dropped_out, 100 - OUTBOX as u64);
    assert_eq!(counters.dropped_in, 100 - INBOX as u64);
    switch.send(bob, &frame(OUTSIDE, BOB, 200));
    switch.send(bob, &frame(ALL, BOB, 201));
    let sent = take_out(&mut switch);
    let mut others = sent.clone();
    others.retain(|mark| *mark >= 200);
    assert!(!others.is_empty(), "ports take turns");
    assert_eq!(sent.len(), OUTBOX + 2);
    assert_eq!(take(&mut switch, alice), (0..INBOX as u8).collect::<Vec<_>>(), "in order");
}

#[test]
fn addresses_are_one_port_s_each() {
    let (mut switch, alice, _) = pair();
    assert_eq!(switch.attach(ALICE), Err(AttachError::Address));
    assert_eq!(switch.attach(ALL), Err(AttachError::Address));
    switch.receive(&frame(ALICE, OUTSIDE, 1));
    switch.detach(alice);
    assert_eq!((switch.waiting(), switch.inbox(alice)), (0, None));
    assert_eq!(switch.attach(ALICE), Ok(alice));
    assert_eq!(switch.inbox(alice), None, "nothing of the last owner is left");
    for n in 2..MAX_PORTS as u8 {
        switch.attach([2, n, 0, 0, 0, 0]).unwrap();
    }
    assert_eq!(switch.attach([4; 6]), Err(AttachError::Full));
}

/// Ports that always have something get the wire by their weights, in bytes, however long their frames are.
#[test]
fn busy_ports_have_shares_of_the_wire() {
    let (mut switch, alice, bob) = pair();
    let carol = switch.attach([0x52, 0x54, 0, 0, 0, 0x0c]).unwrap();
    switch.set_weight(bob, 3);
    let frames = [(alice, ALICE, 60), (bob, BOB, 1514), (carol, [0x52, 0x54, 0, 0, 0, 0x0c], 700)];
    let mut bytes = [0; 3];
    for _ in 0..20_000 {
        for (port, mac, len) in frames {
            while switch.has_room(port) {
                let mut full = frame(OUTSIDE, mac, port.index() as u8);
                full.resize(len, 0);
                switch.send(port, &full);
            }
        }
        let sent = switch.outbox().unwrap();
        bytes[usize::from(sent[14])] += sent.len();
        switch.pop_outbox();
    }
    let [light, heavy, third] = bytes.map(|bytes| bytes as f64);
    assert!((heavy / light - 3.0).abs() < 0.01, "{bytes:?}");
    assert!((third / light - 1.0).abs() < 0.01, "{bytes:?}");
}

/// A check sequence that a card told of stays with its frame, and no other frame gets one.
#[test]
fn a_check_sequence_stays_with_its_frame() {
    let (mut switch, alice, bob) = pair();
    for (mark, fcs) in [(1, Some(0)), (2, None), (3, Some(u32::MAX))] {
        let frame = frame(ALICE, OUTSIDE, mark);
        let target = switch.sort(&frame);
        assert!(target.is_some());
        target.into_iter().for_each(|target| switch.keep(target, &frame, fcs));
    }
    switch.send(bob, &frame(ALICE, BOB, 4));
    for (mark, fcs) in [(1, Some(0)), (2, None), (3, Some(u32::MAX)), (4, None)] {
        let source = if mark == 4 { BOB } else { OUTSIDE };
        assert_eq!(switch.inbox_with_fcs(alice), Some((&*frame(ALICE, source, mark), fcs)));
        switch.pop_inbox(alice);
    }
}
