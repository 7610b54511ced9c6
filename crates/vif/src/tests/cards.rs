//! VIFs whose drivers have a card in place of queues, beside those with queues.

use super::driver::{Ram, attributes, frame};
use super::{EVERYBODY, Lab, STRANGER, limits, mac, offloads};
use crate::{Card, FEATURES, Filter, Next, Packet, VifId};
use sluice_nic::Offload;
use sluice_nic::e1000::{Reception, Transmission};
use sluice_nic::offload::{Checksum, Segments};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

const CUT: Offload = Offload {
    ip: Some(Checksum { start: 14, offset: 24, end: 33 }),
    transport: Some(Checksum { start: 34, offset: 50, end: 0 }),
    segments: Some(Segments { header: 54, payload: 1000, ip: 14, transport: 34, ipv4: true, tcp: true }),
    is_in_headers: false,
};

/// What a card is made to do.
#[derive(Default)]
struct Script {
    /// Frames that it sends, and packets that another card is to finish.
    sends: VecDeque<(Vec<u8>, Option<Offload>)>,
    received: Vec<Vec<u8>>,
    /// It has no room, or it is off.
    answers: Option<Reception>,
    /// When it is to be settled again, and how often it was.
    due: Option<u64>,
    settled: usize,
    listened: Vec<bool>,
    /// What each call for a frame costs, though none comes of it.
    stalls: u32,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Script>>);

impl Card<Ram> for Fake {
    fn is_sending(&self) -> bool {
        let script = self.0.lock().unwrap();
        !script.sends.is_empty() || script.stalls > 0
    }

    fn peek(&self, _: &Ram) -> Option<[u8; 14]> {
        let script = self.0.lock().unwrap();
        script.sends.front()?.0.first_chunk().copied()
    }

    fn next_packet(&self, _: &Ram, longest: u32) -> Option<Packet> {
        let script = self.0.lock().unwrap();
        let (packet, offload) = script.sends.front()?;
        let offload = offload.as_ref()?;
        let cut = offload.segments.map(|cut| u32::from(cut.header) + u32::from(cut.payload));
        let packet = Packet::new(packet.len(), offload)?;
        (cut.unwrap_or(packet.len) <= longest).then_some(packet)
    }

    fn take_packet(&self, _: &Ram, into: &mut [u8], accept: &mut dyn FnMut(&[u8; 14]) -> bool) -> bool {
        let mut script = self.0.lock().unwrap();
        let (packet, _) = script.sends.front().unwrap();
        into.copy_from_slice(packet);
        let is_accepted = accept(packet.first_chunk().unwrap());
        if is_accepted {
            script.sends.pop_front();
        }
        is_accepted
    }

    /// A packet that nobody else finishes is sent as it is.
    fn send(&self, _: &Ram, into: &mut [u8], work: &mut u32) -> Transmission {
        let mut script = self.0.lock().unwrap();
        if script.stalls > 0 {
            *work += script.stalls;
            return Transmission::Busy;
        }
        let Some((frame, _)) = script.sends.pop_front() else { return Transmission::Idle };
        let len = frame.len().min(into.len());
        into[..len].copy_from_slice(&frame[..len]);
        Transmission::Frame(len)
    }

    fn receive(&self, _: &Ram, frame: &[u8]) -> Reception {
        let mut script = self.0.lock().unwrap();
        script.answers.unwrap_or_else(|| {
            script.received.push(frame.to_vec());
            Reception::Stored
        })
    }

    fn settle(&self, _: u64) -> Option<u64> {
        let mut script = self.0.lock().unwrap();
        script.settled += 1;
        script.due
    }

    fn listen(&self, wanted: bool) {
        self.0.lock().unwrap().listened.push(wanted);
    }
}

impl Fake {
    fn send(&self, frame: &[u8]) {
        self.0.lock().unwrap().sends.push_back((frame.to_vec(), None));
    }

    fn send_packet(&self, packet: &[u8]) {
        self.0.lock().unwrap().sends.push_back((packet.to_vec(), Some(CUT)));
    }

    fn received(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap().received)
    }
}

/// The address of the card's VIF.
const OWN: u8 = 40;

impl Lab {
    /// Another VIF, with a card.
    fn with_card(&mut self, change: impl FnOnce(&mut crate::Attributes)) -> (Fake, VifId) {
        let fake = Fake::default();
        let mut attributes = attributes(mac(OWN));
        change(&mut attributes);
        let card: Arc<dyn Card<Ram>> = Arc::new(fake.clone());
        let id = self.network.all().join(attributes, Ram::new(16), Some(card), self.now);
        (fake, id.unwrap())
    }

    fn counts(&mut self, id: VifId) -> crate::Counters {
        self.network.all().counters(id).unwrap()
    }
}

fn packet(to: crate::Mac, payload: usize) -> Vec<u8> {
    let mut packet = frame(to, mac(OWN), 54);
    packet.extend((0..payload).map(|at| at as u8));
    packet
}

#[test]
fn frames_go_between_cards_queues_and_the_wire() {
    for layout in super::LAYOUTS {
        let mut lab = Lab::with(layout, 2, FEATURES);
        lab.card = Some(super::Card::new(usize::MAX));
        let (fake, id) = lab.with_card(|_| {});
        let (here, out, all) =
            (frame(mac(1), mac(OWN), 1514), frame(STRANGER, mac(OWN), 60), frame(EVERYBODY, mac(OWN), 70));
        [&here, &out, &all].into_iter().for_each(|frame| fake.send(frame));
        let back = frame(mac(OWN), mac(0), 900);
        lab.drivers[0].send(&back);
        let from_wire = frame(mac(OWN), STRANGER, 1000);
        lab.card.as_mut().unwrap().coming.push_back(from_wire.clone());
        lab.settle();
        assert_eq!(lab.received(), [vec![all.clone()], vec![here, all.clone()]]);
        assert_eq!(lab.card.as_ref().unwrap().sent, [out, all]);
        let mut got = fake.received();
        got.sort_by_key(Vec::len);
        assert_eq!(got, [back, from_wire]);
        let counts = lab.counts(id);
        assert_eq!((counts.sent, counts.sent_bytes, counts.segments), (3, 1514 + 60 + 70, 3));
        assert_eq!((counts.received, counts.received_bytes, counts.missed), (2, 1900, 0));
    }
}

#[test]
fn a_card_gets_what_was_to_be_segmented_in_frames_that_are_finished() {
    let mut lab = Lab::new(1, FEATURES);
    let (fake, id) = lab.with_card(|_| {});
    let (header, packet) = super::offloads::long(mac(OWN), mac(0), 2800);
    lab.drivers[0].send_asking(header, &packet);
    lab.settle();
    assert_eq!(fake.received().iter().map(Vec::len).collect::<Vec<_>>(), [1454; 2]);
    assert_eq!(lab.counts(id).received, 2);
}

#[test]
fn nobody_sends_by_a_card_what_a_station_may_not() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.card.as_mut().unwrap().cuts = true;
    let (fake, id) = lab.with_card(|_| {});
    let tagged = {
        let mut frame = frame(STRANGER, mac(OWN), 100);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame
    };
    let for_the_link = [1, 0x80, 0xc2, 0, 0, 2];
    for bad in [
        frame(STRANGER, mac(0), 60),
        frame(mac(OWN), mac(OWN), 60),
        frame(for_the_link, mac(OWN), 60),
        tagged,
    ] {
        fake.send(&bad);
        fake.send_packet(&[&bad[..54], &[0; 500]].concat());
    }
    fake.send(&[0; 13]);
    lab.settle();
    let counts = lab.counts(id);
    assert_eq!((counts.sent, counts.forged, counts.refused), (0, 2, 7));
    // What its frames would be longer than.
    let attributes = crate::Attributes { mtu: 900, ..attributes(mac(OWN)) };
    assert!(lab.network.set(id, attributes, 0));
    fake.send(&frame(STRANGER, mac(OWN), 915));
    fake.send_packet(&packet(STRANGER, 2500));
    lab.settle();
    assert!(lab.card.as_ref().unwrap().sent.is_empty());
    let counts = lab.counts(id);
    assert_eq!((counts.sent, counts.forged, counts.refused), (0, 2, 9));
    fake.send(&frame(STRANGER, mac(OWN), 914));
    lab.settle();
    assert_eq!(lab.counts(id).sent, 1);
}

#[test]
fn the_physical_card_cuts_packets_for_the_wire_and_for_nobody_else() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.card.as_mut().unwrap().cuts = true;
    let (fake, id) = lab.with_card(|_| {});
    fake.send_packet(&packet(STRANGER, 2500));
    lab.settle();
    let Lab { card: Some(card), .. } = &lab else { unreachable!() };
    assert_eq!((card.finished, card.sent.len()), (1, 3));
    let counts = lab.counts(id);
    assert_eq!((counts.sent, counts.sent_bytes, counts.segments), (1, 2554, 3));
    // For a neighbour, for all, and in a VLAN, whose tag is the engine's: as the card itself has it.
    fake.send_packet(&packet(mac(0), 500));
    fake.send_packet(&packet(EVERYBODY, 501));
    lab.settle();
    let mut attributes = attributes(mac(OWN));
    attributes.vlan = Some(5);
    assert!(lab.network.set(id, attributes, 0));
    fake.send_packet(&packet(STRANGER, 502));
    lab.settle();
    assert_eq!(lab.received()[0].iter().map(Vec::len).collect::<Vec<_>>(), [554, 555]);
    let card = lab.card.as_ref().unwrap();
    assert_eq!(card.sent.len(), 5);
    assert_eq!(card.sent[4][12..16], [0x81, 0, 0, 5]);
}

#[test]
fn a_frame_waits_for_the_wire_and_is_sent_once() {
    for cuts in [false, true] {
        let mut lab = Lab::wired(1, FEATURES, 1);
        lab.card.as_mut().unwrap().cuts = cuts;
        let (fake, id) = lab.with_card(|_| {});
        let sent: Vec<_> = (0..3).map(|nth| frame(STRANGER, mac(OWN), 100 + nth)).collect();
        for frame in &sent {
            if cuts {
                let whole = Offload { segments: None, ..CUT };
                fake.0.lock().unwrap().sends.push_back((frame.clone(), Some(whole)));
            } else {
                fake.send(frame);
            }
        }
        for room in 0..3 {
            lab.settle();
            lab.settle();
            assert_eq!(lab.counts(id).sent, room + 1);
            lab.card.as_mut().unwrap().room = 1;
        }
        assert_eq!(lab.card.as_ref().unwrap().sent.len(), 3);
        if !cuts {
            assert_eq!(lab.card.as_ref().unwrap().sent, sent);
        }
    }
}

/// A packet of 64 KiB is four turns; who has queues has as many.
#[test]
fn the_wire_is_shared_with_queues_by_bytes() {
    let mut lab = Lab::wired(1, FEATURES, 0);
    lab.card.as_mut().unwrap().cuts = true;
    let (fake, id) = lab.with_card(|_| {});
    for _ in 0..400 {
        let mut queued = fake.0.lock().unwrap().sends.len();
        while queued < 4 {
            fake.send_packet(&packet(STRANGER, 60_000));
            queued += 1;
        }
        while lab.drivers[0].sent() > 0 {}
        (0..8).for_each(|_| _ = lab.drivers[0].send(&frame(STRANGER, mac(0), 1514)));
        lab.card.as_mut().unwrap().room = 64;
        lab.round();
    }
    let id0 = lab.drivers[0].id.unwrap();
    let bytes = [id, id0].map(|id| lab.counts(id).sent_bytes as f64);
    let share = bytes[0] / (bytes[0] + bytes[1]);
    assert!((0.4..0.6).contains(&share), "{bytes:?}");
}

#[test]
fn a_packet_waits_for_its_turn_and_is_not_cut_in_software_meanwhile() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.card.as_mut().unwrap().cuts = true;
    let (fake, id) = lab.with_card(|_| {});
    (0..3).for_each(|_| fake.send_packet(&packet(STRANGER, 60_000)));
    assert_eq!(lab.round().next, Next::Now);
    assert_eq!(lab.counts(id).sent, 1, "it is longer than a turn");
    lab.settle();
    let card = lab.card.as_ref().unwrap();
    assert_eq!((card.finished, card.sent.len()), (3, 180));
}

#[test]
fn a_limit_holds_for_a_card() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    let (fake, id) = lab.with_card(|attributes| attributes.limit = Some(8_000_000));
    let mut sent = 0;
    for ms in 0..1000 {
        lab.now = ms * 1_000_000;
        (0..4).for_each(|_| fake.send(&frame(STRANGER, mac(OWN), 1014)));
        lab.settle();
        sent = lab.counts(id).sent_bytes;
    }
    // A second at 8 Mbit/s, and what the bucket holds.
    assert!((1_000_000..1_010_000).contains(&sent), "{sent}");
    fake.0.lock().unwrap().sends.clear();
}

/// A card that works and works, and sends nothing, has its time and no more.
#[test]
fn work_that_comes_to_nothing_is_charged() {
    let mut lab = Lab::new(2, FEATURES);
    let (fake, _) = lab.with_card(|_| {});
    fake.0.lock().unwrap().stalls = 1_000_000;
    for _ in 0..100 {
        lab.drivers[0].send(&frame(mac(1), mac(0), 60));
        assert_eq!(lab.round().next, Next::Now);
        assert_eq!(lab.received()[1].len(), 1);
    }
    let debt = |lab: &Lab, id: VifId| lab.network.0[0].senders[id.index()].as_ref().unwrap().credit;
    let id = lab.network.0[0].directory.find(mac(OWN)).unwrap();
    assert!(debt(&lab, id) < -500_000);
}

#[test]
fn what_a_card_cannot_take_is_counted_if_it_wanted_it() {
    let mut lab = Lab::new(1, FEATURES);
    let (fake, id) = lab.with_card(|_| {});
    for (answer, missed) in
        [(Reception::Lost, 1), (Reception::Filtered, 1), (Reception::Full, 2), (Reception::Stopped, 2)]
    {
        fake.0.lock().unwrap().answers = Some(answer);
        lab.drivers[0].send(&frame(mac(OWN), mac(0), 60));
        lab.settle();
        assert_eq!((lab.counts(id).missed, lab.counts(id).received), (missed, 0));
    }
}

#[test]
fn a_card_is_settled_when_it_is_due_and_after_what_it_received() {
    for layout in super::LAYOUTS {
        let mut lab = Lab::with(layout, 1, FEATURES);
        let (fake, id) = lab.with_card(|_| {});
        fake.0.lock().unwrap().due = Some(77);
        assert_eq!(lab.round().next, Next::At(77));
        fake.0.lock().unwrap().settled = 0;
        lab.drivers[0].send(&frame(mac(OWN), mac(0), 60));
        lab.round();
        assert!(fake.0.lock().unwrap().settled >= 2, "by who serves it, and by who brought it something");
        lab.network.doze();
        lab.network.wake();
        assert_eq!(fake.0.lock().unwrap().listened, [true, false]);
        assert!(lab.network.leave(id).is_some());
        fake.send(&frame(mac(0), mac(OWN), 60));
        lab.drivers[0].send(&frame(mac(OWN), mac(0), 60));
        lab.settle();
        assert!(fake.received().len() == 1 && lab.received()[0].is_empty(), "it has left");
        assert_eq!(Arc::strong_count(&fake.0), 1, "nobody has the card any more");
    }
}

#[test]
fn a_card_of_who_has_addresses_speaks_for_no_others() {
    let mut lab = Lab::wired(1, FEATURES, usize::MAX);
    lab.card.as_mut().unwrap().cuts = true;
    let (fake, id) = lab.with_card(|attributes| attributes.filter = Filter::new(&[limits::OWN]));
    let (_, mut whole) = offloads::long(STRANGER, mac(OWN), 1000);
    fake.send_packet(&whole);
    whole[29] = 2;
    fake.send_packet(&whole);
    fake.send(&limits::arp(STRANGER, mac(OWN), 1));
    fake.send(&limits::arp(STRANGER, mac(OWN), 2));
    lab.settle();
    assert_eq!((lab.card.as_ref().unwrap().sent.len(), lab.counts(id).spoofed), (2, 2));
}
