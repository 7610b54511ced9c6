//! VIFs with the native face, alone and beside others.

use super::driver::{Ram, attributes, frame};
use super::offloads::long;
use super::{EVERYBODY, LAYOUTS, Lab, STRANGER, mac};
use crate::native::PAGE;
use crate::offload::Header;
use crate::{Active, Counters, FEATURES, Next, Outcome, Rung, VifId};
use sluice_hypercall::vif::{
    VIF_DESCRIPTOR, VIF_DESCRIPTOR_MORE, VIF_DOORBELL_WANTED, VIF_ENTRIES, VIF_OFFERED, VIF_OFFERED_ENTRY,
    VIF_OFFERED_RING, VIF_RECEIVED, VIF_RECEIVED_RING, VIF_SEND_RING, VIF_SENT, VIF_STRUCTURE, VIF_TO_SEND,
    VIF_WANTS_RECEIVED, VIF_WANTS_SENT,
};
use std::vec::Vec;

/// Pages of a pool: the first are for sending.
const PAGES: u16 = 64;
const SENDING: u16 = 32;
/// Number of the VIF's address.
const NATIVE: u8 = 9;
const MORE: u16 = VIF_DESCRIPTOR_MORE;

/// A driver of the native face.
struct Native {
    ram: Ram,
    id: VifId,
    to_send: u16,
    offered: u16,
    received: u16,
    /// Headers of what it has received.
    headers: Vec<Header>,
    /// The engine wanted to hear of what was sent, and has not been told yet.
    tells: bool,
}

fn page(number: u16) -> u64 {
    u64::from(VIF_STRUCTURE) + u64::from(number) * u64::from(PAGE)
}

impl Native {
    /// One that has started, and offers all its pages.
    fn join(lab: &mut Lab, nth: u8) -> Self {
        let ram = Ram::native(PAGES);
        let id = lab.network.join(attributes(mac(nth)), ram.clone(), 0).unwrap();
        let mut native =
            Self { ram, id, to_send: 0, offered: 0, received: 0, headers: Vec::new(), tells: false };
        native.start(lab);
        native
    }

    fn put(&self, at: u32, value: u16) {
        self.ram.put(at.into(), &value.to_le_bytes());
    }

    fn look(&self, at: u32) -> u16 {
        self.ram.u16(at.into())
    }

    fn start(&mut self, lab: &mut Lab) {
        assert!(lab.network.activate(self.id, None));
        let told = [VIF_SENT, VIF_RECEIVED, VIF_DOORBELL_WANTED];
        for word in told.into_iter().chain([VIF_TO_SEND, VIF_OFFERED, VIF_WANTS_SENT, VIF_WANTS_RECEIVED]) {
            self.put(word, 0);
        }
        (self.to_send, self.offered, self.received) = (0, 0, 0);
        assert!(lab.network.activate(self.id, Some(Active::NATIVE)));
        (SENDING..PAGES).for_each(|number| self.offer(number));
    }

    fn offer(&mut self, number: u16) {
        let index = u32::from(self.offered % VIF_ENTRIES);
        self.put(VIF_OFFERED_RING + VIF_OFFERED_ENTRY * index, number);
        self.offered = self.offered.wrapping_add(1);
        self.put(VIF_OFFERED, self.offered);
    }

    /// Only these pages are on offer.
    fn offer_only(&mut self, numbers: &[u16]) {
        self.offered = self.look(VIF_RECEIVED);
        numbers.iter().for_each(|number| self.offer(*number));
        self.put(VIF_OFFERED, self.offered);
    }

    /// Writes a descriptor, which is not handed over yet.
    fn describe(&mut self, (page, len, flags): (u16, u16, u16), header: Header) {
        let at = VIF_SEND_RING + VIF_DESCRIPTOR * u32::from(self.to_send % VIF_ENTRIES);
        let words = [page, len, flags].map(u16::to_le_bytes);
        self.ram.put(at.into(), &[words.as_flattened(), &header.bytes()[..10]].concat());
        self.to_send = self.to_send.wrapping_add(1);
    }

    /// Hands over what was described. Returns whether the engine wants to hear of it.
    fn show(&mut self) -> bool {
        self.put(VIF_TO_SEND, self.to_send);
        let is_wanted = self.look(VIF_DOORBELL_WANTED) != 0;
        self.tells |= is_wanted;
        is_wanted
    }

    /// Hands over such descriptors.
    fn send_raw(&mut self, descriptors: &[(u16, u16, u16)]) {
        descriptors.iter().for_each(|descriptor| self.describe(*descriptor, Header::default()));
        self.show();
    }

    /// Sends a frame in pieces of these sizes, and a last one of what is left. Returns whether the engine wants to hear of it.
    fn send_in(&mut self, header: Header, frame: &[u8], pieces: &[usize]) -> bool {
        let mut rest = frame;
        let last = frame.len() - pieces.iter().sum::<usize>();
        let count = pieces.len() + 1;
        for (nth, len) in pieces.iter().copied().chain([last]).enumerate() {
            let number = self.to_send % SENDING;
            let (piece, after) = rest.split_at(len);
            self.ram.put(page(number), piece);
            self.describe((number, len as u16, if nth + 1 < count { MORE } else { 0 }), header);
            rest = after;
        }
        self.show()
    }

    /// Sends a frame, in as many pages as it needs.
    fn send(&mut self, header: Header, frame: &[u8]) -> bool {
        let whole = (frame.len() - 1) / PAGE as usize;
        self.send_in(header, frame, &[PAGE as usize; 16][..whole])
    }

    /// What has been received since the last call; the pages are offered again.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut goes_on = false;
        while self.received != self.look(VIF_RECEIVED) {
            let at = VIF_RECEIVED_RING + VIF_DESCRIPTOR * u32::from(self.received % VIF_ENTRIES);
            let [number, len, flags] = [0, 2, 4].map(|offset| self.look(at + offset));
            let bytes = self.ram.get(page(number), len.into());
            if goes_on {
                let frame: &mut Vec<u8> = frames.last_mut().unwrap();
                frame.extend(bytes);
            } else {
                let mut header = [0; Header::BYTES];
                header[..10].copy_from_slice(&self.ram.get(u64::from(at) + 6, 10));
                self.headers.push(Header::parse(&header));
                frames.push(bytes);
            }
            goes_on = flags & MORE != 0;
            self.received = self.received.wrapping_add(1);
            self.offer(number);
        }
        assert!(!goes_on);
        frames
    }

    fn counters(&self, lab: &mut Lab) -> Counters {
        lab.network.all().counters(self.id).unwrap()
    }
}

/// A round, before which drivers tell of what they have sent.
fn round(lab: &mut Lab, natives: &mut [&mut Native]) -> Outcome {
    let rung = Rung::default();
    for native in natives {
        if std::mem::take(&mut native.tells) {
            rung.ring(native.id);
        }
    }
    let rung = rung.take();
    lab.network.0.iter_mut().for_each(|engine| engine.ring(rung));
    lab.round()
}

fn settle(lab: &mut Lab, natives: &mut [&mut Native]) {
    while round(lab, natives).next == Next::Now {}
}

#[test]
fn frames_come_and_go() {
    for layout in LAYOUTS {
        let mut lab = Lab::with(layout, 1, FEATURES);
        let (mut a, mut b) = (Native::join(&mut lab, NATIVE), Native::join(&mut lab, NATIVE + 1));
        // Rings go round and round, and the indices with them.
        for nth in 0..700u16 {
            let len = 60 + usize::from(nth) % 1455;
            let (there, here) = (frame(mac(0), mac(NATIVE), len), frame(mac(NATIVE), mac(0), len));
            let beside = frame(mac(NATIVE + 1), mac(NATIVE), len);
            a.send(Header::default(), &there);
            a.send_in(Header::default(), &beside, &[1, 6, 30]);
            lab.drivers[0].send(&here);
            settle(&mut lab, &mut [&mut a, &mut b]);
            assert_eq!(lab.received(), [vec![there]], "{layout:?} {nth}");
            assert_eq!((a.received(), b.received()), (vec![here], vec![beside]), "{layout:?} {nth}");
            assert_eq!(a.look(VIF_SENT), a.to_send);
        }
        let Counters { sent, received, faults, missed, .. } = a.counters(&mut lab);
        assert_eq!((sent, received, faults, missed), (1400, 700, 0, 0));
    }
}

#[test]
fn a_frame_for_all_goes_to_all_and_to_the_wire() {
    let mut lab = Lab::wired(2, FEATURES, usize::MAX);
    let (mut a, mut b) = (Native::join(&mut lab, NATIVE), Native::join(&mut lab, NATIVE + 1));
    let all = frame(EVERYBODY, mac(NATIVE), 300);
    a.send(Header::default(), &all);
    settle(&mut lab, &mut [&mut a, &mut b]);
    assert_eq!(lab.received(), [vec![all.clone()], vec![all.clone()]]);
    assert_eq!((a.received(), b.received()), (vec![], vec![all.clone()]));
    let card = lab.card.as_mut().unwrap();
    assert_eq!(card.sent, [all]);
    let from_outside = frame(mac(NATIVE), STRANGER, 1514);
    card.coming.push_back(from_outside.clone());
    settle(&mut lab, &mut [&mut a, &mut b]);
    assert_eq!(a.received(), [from_outside]);
    assert_eq!(a.headers, [Header::default()]);
}

#[test]
fn a_long_frame_is_handed_over_whole_whatever_the_faces() {
    for layout in LAYOUTS {
        let mut lab = Lab::with(layout, 1, FEATURES);
        let (mut a, mut b) = (Native::join(&mut lab, NATIVE), Native::join(&mut lab, NATIVE + 1));
        for payload in [4042, 4043, 9001, 20_000] {
            let (asks, out) = long(mac(0), mac(NATIVE), payload);
            let (_, over) = long(mac(NATIVE + 1), mac(NATIVE), payload);
            let (_, back) = long(mac(NATIVE), mac(0), payload);
            a.send(asks, &out);
            a.send(asks, &over);
            settle(&mut lab, &mut [&mut a, &mut b]);
            assert!(lab.received() == [vec![out]], "{payload}");
            assert!(b.received() == [over], "{payload}");
            let passed = Header { hdr_len: 54, ..asks };
            let virtio = lab.drivers[0].headers.pop().unwrap();
            assert_eq!(Header { num_buffers: 0, ..virtio }, passed);
            assert_eq!(b.headers.pop(), Some(passed));
            lab.drivers[0].send_in_place(asks, &back);
            settle(&mut lab, &mut [&mut a, &mut b]);
            assert!(a.received() == [back], "{payload}");
            assert_eq!(a.headers.pop(), Some(passed));
        }
    }
}

#[test]
fn segments_of_a_long_frame_are_on_the_wire() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    let mut native = Native::join(&mut lab, NATIVE);
    let (asks, whole) = long(STRANGER, mac(NATIVE), 9001);
    native.send(asks, &whole);
    settle(&mut lab, &mut [&mut native]);
    let sent = lab.card.take().unwrap().sent;
    let payload: Vec<u8> = sent.iter().flat_map(|frame| frame[54..].to_vec()).collect();
    assert!(sent.len() == 7 && payload == whole[54..]);
}

/// A driver of the native face does something in a network of two more. It breaks the rules, and nobody else suffers.
#[track_caller]
fn is_broken(what: &str, act: impl FnOnce(&mut Native, &mut Lab)) {
    let mut lab = Lab::new(2, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    settle(&mut lab, &mut [&mut native]);
    act(&mut native, &mut lab);
    native.tells = true;
    let outcome = round(&mut lab, &mut [&mut native]);
    assert!(outcome.broken.contains(native.id), "{what}: it goes on");
    assert_eq!(outcome.broken.iter().count(), 1, "{what}: others are broken");
    assert_eq!(native.counters(&mut lab).faults, 1, "{what}");
    lab.received();
    // Nothing is done for it any more, and the others go on as before.
    let before = native.ram.bytes();
    let all = frame(EVERYBODY, mac(1), 100);
    lab.drivers[1].send(&all);
    native.tells = true;
    settle(&mut lab, &mut [&mut native]);
    assert!(native.ram.bytes() == before, "{what}: its memory is reached");
    assert_eq!(lab.received()[0], [all], "{what}");
    assert_eq!((lab.counters(0).faults, lab.counters(1).faults), (0, 0), "{what}: others suffer");
    native.start(&mut lab);
    let sent = frame(mac(1), mac(NATIVE), 60);
    native.send(Header::default(), &sent);
    lab.drivers[1].send(&frame(mac(NATIVE), mac(1), 99));
    settle(&mut lab, &mut [&mut native]);
    assert_eq!(lab.received()[1], [sent], "{what}: a start does not mend it");
    assert_eq!(native.received().len(), 1, "{what}: a start does not mend it");
}

#[test]
fn a_sender_that_breaks_the_rules_stops() {
    let sends = |what: &str, descriptors: &[(u16, u16, u16)]| {
        is_broken(what, |native, _| native.send_raw(descriptors));
    };
    sends("the first page that is not in the pool", &[(PAGES, 60, 0)]);
    sends("the last number", &[(u16::MAX, 60, 0)]);
    sends("the second page is not in the pool", &[(0, 60, MORE), (PAGES, 60, 0)]);
    sends("no bytes", &[(0, 0, 0)]);
    sends("no bytes in the second page", &[(0, 60, MORE), (1, 0, 0)]);
    sends("more than a page", &[(0, 4097, 0)]);
    sends("as many as there can be", &[(0, u16::MAX, 0)]);
    sends("no end", &[(0, 60, MORE)]);
    sends("no end of what waits", &[(0, 60, MORE); 20]);
    sends("one piece too many", &[[(0, 1, MORE); 32].as_slice(), &[(0, 60, 0)]].concat());
    sends("no end of the ring", &[(0, 60, MORE); VIF_ENTRIES as usize]);
    is_broken("more than there are", |native, _| {
        (0..=VIF_ENTRIES).for_each(|_| native.describe((0, 60, 0), Header::default()));
        native.show();
    });
    is_broken("backwards", |native, _| {
        native.to_send = native.to_send.wrapping_sub(1);
        native.show();
    });
}

#[test]
fn a_receiver_that_breaks_the_rules_stops_and_not_the_sender() {
    let offers = |what: &str, act: fn(&mut Native)| {
        is_broken(what, |native, lab| {
            act(native);
            lab.drivers[1].send(&frame(EVERYBODY, mac(1), 1000));
        });
    };
    offers("the first page that is not in the pool", |native| native.offer_only(&[PAGES]));
    offers("the last number", |native| native.offer_only(&[u16::MAX]));
    offers("more than there are", |native| native.put(VIF_OFFERED, VIF_ENTRIES + 1));
    offers("backwards", |native| native.put(VIF_OFFERED, u16::MAX));
    is_broken("the second page is not in the pool", |native, lab| {
        native.offer_only(&[SENDING, PAGES]);
        let (asks, whole) = long(mac(NATIVE), mac(1), 4100);
        lab.drivers[1].send_in_place(asks, &whole);
    });
}

#[test]
fn a_frame_of_as_many_pieces_as_there_may_be_is_sent() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    let sent = frame(mac(0), mac(NATIVE), 100);
    native.send_in(Header::default(), &sent, &[1; 31]);
    settle(&mut lab, &mut [&mut native]);
    assert_eq!(lab.received()[0], [sent]);
}

#[test]
fn a_page_may_be_on_offer_twice() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    native.offer_only(&[SENDING; 2]);
    for len in [100, 200] {
        lab.drivers[0].send(&frame(mac(NATIVE), mac(0), len));
    }
    settle(&mut lab, &mut [&mut native]);
    assert_eq!((native.look(VIF_RECEIVED), native.counters(&mut lab).faults), (2, 0));
    assert_eq!(native.ram.get(page(SENDING), 200), frame(mac(NATIVE), mac(0), 200));
}

#[test]
fn a_frame_that_finds_too_few_pages_is_missed_and_changes_nothing() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    let (asks, whole) = long(mac(NATIVE), mac(0), 9001);
    native.offer_only(&[SENDING, SENDING + 1]);
    settle(&mut lab, &mut [&mut native]);
    let before = native.ram.bytes();
    lab.drivers[0].send_in_place(asks, &whole);
    settle(&mut lab, &mut [&mut native]);
    assert!(native.ram.bytes() == before);
    let Counters { missed, received, faults, .. } = native.counters(&mut lab);
    assert_eq!((missed, received, faults), (1, 0, 0));
    // Those are there yet.
    let short = long(mac(NATIVE), mac(0), 5000).1;
    lab.drivers[0].send_in_place(asks, &short);
    settle(&mut lab, &mut [&mut native]);
    assert!(native.received() == [short]);
}

#[test]
fn a_frame_that_no_station_sends_is_dropped() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    let mut tagged = frame(mac(0), mac(NATIVE), 60);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let asks = Header { flags: Header::NEEDS_CSUM, csum_start: 0, csum_offset: 6, ..Header::default() };
    native.send(Header::default(), &tagged);
    native.send(Header::default(), &frame(mac(0), mac(NATIVE), 14)[..13]);
    native.send(Header::default(), &frame(mac(0), mac(NATIVE), 1515));
    native.send(Header::default(), &frame(mac(0), mac(NATIVE), 20_000));
    native.send(asks, &frame(mac(0), mac(NATIVE), 60));
    native.send(Header::default(), &frame(mac(0), mac(1), 60));
    settle(&mut lab, &mut [&mut native]);
    let Counters { sent, forged, refused, faults, .. } = native.counters(&mut lab);
    assert_eq!((sent, forged, refused, faults), (0, 1, 5, 0));
    assert_eq!(native.look(VIF_SENT), native.to_send);
    assert!(lab.received()[0].is_empty());
}

#[test]
fn what_was_looked_at_is_what_arrives() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    let sent = frame(mac(0), mac(NATIVE), 600);
    // The source address becomes another's once it has been looked at; the descriptor, too.
    let entry = u64::from(VIF_SEND_RING);
    for (at, other) in [(page(0) + 6, mac(7)), (entry, [0xff; 6])] {
        native.start(&mut lab);
        native.ram.tamper.set(Some((at, other)));
        native.send(Header::default(), &sent);
        settle(&mut lab, &mut [&mut native]);
        assert_eq!(lab.received()[0], std::slice::from_ref(&sent));
        assert_eq!(native.ram.get(at, 6), other, "it was tampered with");
    }
}

#[test]
fn a_driver_is_signalled_as_it_asks() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    for (sent, received) in [(false, false), (true, false), (false, true), (true, true)] {
        native.put(VIF_WANTS_SENT, sent.into());
        native.put(VIF_WANTS_RECEIVED, received.into());
        native.send(Header::default(), &frame(mac(0), mac(NATIVE), 60));
        lab.drivers[0].send(&frame(mac(NATIVE), mac(0), 60));
        let outcome = round(&mut lab, &mut [&mut native]);
        let told = (outcome.sent.contains(native.id), outcome.received.contains(native.id));
        assert_eq!(told, (sent, received));
        settle(&mut lab, &mut [&mut native]);
        assert_eq!((native.received().len(), lab.received()[0].len()), (1, 1));
    }
}

#[test]
fn the_doorbell_is_wanted_while_the_engine_does_not_look() {
    let mut lab = Lab::new(1, FEATURES);
    let mut native = Native::join(&mut lab, NATIVE);
    let sent = frame(mac(0), mac(NATIVE), 60);
    settle(&mut lab, &mut [&mut native]);
    lab.network.wake();
    assert!(!native.send(Header::default(), &sent), "somebody looks");
    settle(&mut lab, &mut [&mut native]);
    lab.network.doze();
    assert_eq!(round(&mut lab, &mut [&mut native]).next, Next::Idle);
    assert!(native.send(Header::default(), &sent), "nobody looks");
    lab.network.wake();
    settle(&mut lab, &mut [&mut native]);
    // It has nothing to send for long.
    for _ in 0..crate::vif::LOOKS {
        assert_eq!(round(&mut lab, &mut [&mut native]).next, Next::Idle);
    }
    assert!(native.send(Header::default(), &sent), "nobody looks");
    native.tells = false;
    settle(&mut lab, &mut [&mut native]);
    assert_eq!(lab.received()[0].len(), 2, "the engine does without a look");
    native.tells = true;
    settle(&mut lab, &mut [&mut native]);
    assert_eq!(lab.received()[0].len(), 1);
    assert!(!native.send(Header::default(), &sent), "somebody looks again");
}

#[test]
fn who_starts_while_the_engine_does_not_look_is_to_ring() {
    let mut lab = Lab::new(1, FEATURES);
    settle(&mut lab, &mut []);
    lab.network.doze();
    assert_eq!(lab.round().next, Next::Idle);
    let mut native = Native::join(&mut lab, NATIVE);
    let sent = frame(mac(0), mac(NATIVE), 60);
    assert!(native.send(Header::default(), &sent), "nobody looks");
    native.start(&mut lab);
    assert!(native.send(Header::default(), &sent), "nobody looks");
    lab.network.wake();
    native.start(&mut lab);
    assert!(!native.send(Header::default(), &sent), "somebody looks");
}

#[test]
fn nothing_is_reached_of_who_has_stopped() {
    for layout in LAYOUTS {
        let mut lab = Lab::with(layout, 2, FEATURES);
        let mut native = Native::join(&mut lab, NATIVE);
        (0..20).for_each(|_| _ = native.send(Header::default(), &frame(mac(0), mac(NATIVE), 60)));
        lab.drivers[1].send(&frame(mac(NATIVE), mac(1), 500));
        round(&mut lab, &mut [&mut native]);
        lab.drivers[1].send(&frame(mac(NATIVE), mac(1), 600));
        assert!(lab.network.activate(native.id, None));
        let before = native.ram.bytes();
        native.tells = true;
        settle(&mut lab, &mut [&mut native]);
        lab.drivers[1].send(&frame(EVERYBODY, mac(1), 700));
        settle(&mut lab, &mut [&mut native]);
        lab.network.doze();
        lab.network.wake();
        assert!(native.ram.bytes() == before, "{layout:?}");
    }
}
