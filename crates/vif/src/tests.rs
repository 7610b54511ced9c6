//! Networks whose VIFs have the drivers of `tests::driver`.

mod cards;
pub mod cutter;
mod driver;
mod engines;
mod isolation;
mod limits;
mod model;
mod native;
pub mod offloads;
mod shares;
mod signals;
mod streams;

use crate::offload::Header;
use crate::vif::LOOKS;
use crate::{Active, Attributes, Counters, Engine, Layout, Mac, Next, Outcome, VifId, VifSet, Wire};
use driver::{Card, Driver, Ram, frame};
use std::vec::Vec;

/// The engines of a network, which take turns.
pub struct Network<M>(Vec<Engine<M>>);

impl<M: crate::Memory + Clone> Network<M> {
    fn new((layout, count): (Layout, usize)) -> Self {
        Self(crate::engines(layout, count).into_iter().collect())
    }

    fn all(&mut self) -> crate::Network<&mut Engine<M>> {
        crate::Network::new(self.0.iter_mut())
    }

    fn join(&mut self, attributes: Attributes, memory: M, now: u64) -> Option<VifId> {
        self.all().join(attributes, memory, None, now)
    }

    fn leave(&mut self, id: VifId) -> Option<Counters> {
        self.all().leave(id)
    }

    fn activate(&mut self, id: VifId, active: Option<Active>) -> bool {
        self.all().activate(id, active)
    }

    fn set(&mut self, id: VifId, attributes: Attributes, now: u64) -> bool {
        self.all().set(id, attributes, now)
    }

    fn doze(&mut self) {
        self.0.iter_mut().for_each(Engine::doze);
    }

    fn wake(&mut self) {
        self.0.iter_mut().for_each(Engine::wake);
    }

    fn round(&mut self, mut wire: Option<&mut (dyn Wire + '_)>, now: u64) -> Outcome {
        let nothing = VifSet::default();
        let mut all = Outcome { sent: nothing, received: nothing, broken: nothing, next: Next::Idle };
        for engine in &mut self.0 {
            let wire = wire.as_mut().map(|wire| &mut **wire as &mut dyn Wire);
            let Outcome { sent, received, broken, next } = engine.round(wire, now);
            assert!(broken.iter().all(|id| !all.broken.contains(id)), "two engines tell of it");
            all.sent.0 |= sent.0;
            all.received.0 |= received.0;
            all.broken.0 |= broken.0;
            all.next = all.next.min(next);
        }
        all
    }
}

/// One engine, and several in either way.
const LAYOUTS: [(Layout, usize); 5] =
    [(Layout::Split, 1), (Layout::Split, 2), (Layout::Split, 3), (Layout::Spread, 2), (Layout::Spread, 3)];

/// A network, and the drivers of its VIFs.
struct Lab {
    network: Network<Ram>,
    drivers: Vec<Driver>,
    card: Option<Card>,
    now: u64,
}

fn mac(nth: u8) -> Mac {
    [0x52, 0x54, 0, 0, 0, nth]
}

const EVERYBODY: Mac = [0xff; 6];
/// Somebody beyond the wire.
const STRANGER: Mac = [0x52, 0x54, 0, 0, 1, 0];

impl Lab {
    /// So many VIFs without a wire, whose drivers accept these features.
    fn new(count: u8, features: u64) -> Self {
        Self::with(LAYOUTS[0], count, features)
    }

    fn with(layout: (Layout, usize), count: u8, features: u64) -> Self {
        let drivers = (0..count).map(|nth| Driver::new(mac(nth), features)).collect();
        let mut lab = Self { network: Network::new(layout), drivers, card: None, now: 0 };
        lab.drivers.iter_mut().for_each(|driver| driver.join(&mut lab.network));
        lab
    }

    fn wired(count: u8, features: u64, room: usize) -> Self {
        Self { card: Some(Card::new(room)), ..Self::new(count, features) }
    }

    fn round(&mut self) -> crate::Outcome {
        let rung = crate::Rung::default();
        for driver in &mut self.drivers {
            let tells = std::mem::take(&mut driver.tells);
            driver.id.filter(|_| tells).into_iter().for_each(|id| rung.ring(id));
        }
        let rung = rung.take();
        self.network.0.iter_mut().for_each(|engine| engine.ring(rung));
        let wire = self.card.as_mut().map(|card| card as &mut dyn crate::Wire);
        self.network.round(wire, self.now)
    }

    /// Rounds until there is nothing to do.
    fn settle(&mut self) {
        while self.round().next == Next::Now {}
    }

    /// What the drivers have received since the last call.
    fn received(&mut self) -> Vec<Vec<Vec<u8>>> {
        self.drivers.iter_mut().map(Driver::received).collect()
    }

    fn counters(&mut self, nth: u8) -> crate::Counters {
        let id = self.drivers[usize::from(nth)].id.unwrap();
        self.network.all().counters(id).unwrap()
    }
}

#[test]
fn a_frame_arrives_where_it_is_to_be_and_nowhere_else() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(3, features);
        let sent = frame(mac(1), mac(0), 777);
        lab.drivers[0].send(&sent);
        lab.settle();
        assert_eq!(lab.received(), [vec![], vec![sent.clone()], vec![]]);
        assert_eq!(lab.drivers[0].sent(), 1);
        let to_all = frame(EVERYBODY, mac(1), 60);
        lab.drivers[1].send(&to_all);
        lab.settle();
        assert_eq!(lab.received(), [vec![to_all.clone()], vec![], vec![to_all]]);
        let counters = lab.counters(1);
        assert_eq!(
            (counters.sent, counters.sent_bytes, counters.received, counters.received_bytes),
            (1, 60, 1, 777)
        );
    }
}

#[test]
fn frames_in_pieces_are_put_together() {
    let mut lab = Lab::new(2, 0);
    let sent = frame(mac(1), mac(0), 1514);
    for pieces in [&[12usize][..], &[5, 7, 1, 1, 100], &[13], &[12, 6, 8, 200, 200], &[1; 31]] {
        lab.drivers[0].send_in(&sent, pieces);
        lab.settle();
        assert_eq!(lab.received()[1], std::slice::from_ref(&sent), "{pieces:?}");
    }
}

#[test]
fn a_long_frame_takes_several_buffers_if_they_may_be_merged() {
    let sent = frame(mac(1), mac(0), 1514);
    let mut lab = Lab::new(2, crate::FEATURES);
    lab.drivers[1].offer_only(&[100, 600, 600, 600, 600]);
    lab.drivers[0].send(&sent);
    lab.settle();
    assert_eq!(lab.received()[1], std::slice::from_ref(&sent));
    assert_eq!(lab.drivers[1].headers[0], Header { num_buffers: 4, ..Header::default() });
    // What is there is too little.
    let mut lab = Lab::new(2, crate::FEATURES);
    lab.drivers[1].offer_only(&[600]);
    lab.drivers[0].send(&sent);
    lab.settle();
    assert_eq!(lab.counters(1).missed, 1);
    lab.drivers[0].send(&sent[..500]);
    lab.settle();
    assert_eq!(lab.received()[1], [sent[..500].to_vec()], "a buffer that was too small is still there");
    let mut lab = Lab::new(2, 0);
    lab.drivers[1].offer_only(&[600, 600, 600]);
    lab.drivers[0].send(&sent);
    lab.settle();
    assert_eq!((lab.received()[1].len(), lab.counters(1).missed), (0, 1));
}

#[test]
fn the_wire_has_what_is_for_nobody_here_and_what_is_for_all() {
    let mut lab = Lab::wired(2, crate::FEATURES, usize::MAX);
    let (out, here, all) =
        (frame(STRANGER, mac(0), 60), frame(mac(1), mac(0), 61), frame(EVERYBODY, mac(0), 62));
    for frame in [&out, &here, &all] {
        lab.drivers[0].send(frame);
    }
    lab.settle();
    assert_eq!(lab.card.as_ref().unwrap().sent, [out, all.clone()]);
    assert_eq!(lab.received(), [vec![], vec![here, all]]);
    let (to_one, to_all, to_nobody) =
        (frame(mac(1), STRANGER, 60), frame(EVERYBODY, STRANGER, 1514), frame(mac(9), STRANGER, 60));
    let pretended = frame(mac(1), mac(0), 60);
    lab.card.as_mut().unwrap().coming.extend([to_one.clone(), to_all.clone(), to_nobody, pretended]);
    lab.settle();
    assert_eq!(lab.received(), [vec![to_all.clone()], vec![to_one, to_all]]);
    assert_eq!(lab.network.all().unclaimed(), 2, "of nobody's, and of one's own that comes from outside");
}

#[test]
fn a_vlan_is_seen_on_the_wire_only() {
    let mut lab = Lab::wired(4, crate::FEATURES, usize::MAX);
    for (nth, vlan) in [(0, Some(7)), (1, Some(7)), (2, Some(8))] {
        lab.drivers[nth].set(&mut lab.network, |attributes| attributes.vlan = vlan);
    }
    let all = frame(EVERYBODY, mac(0), 100);
    lab.drivers[0].send(&all);
    lab.drivers[0].send(&frame(mac(2), mac(0), 60));
    lab.settle();
    assert_eq!(lab.received(), [vec![], vec![all.clone()], vec![], vec![]]);
    let tagged = |frame: &[u8], vlan: u8| [&frame[..12], &[0x81, 0, 0x20, vlan], &frame[12..]].concat();
    let wire = lab.card.as_mut().unwrap();
    let mut expected = tagged(&all, 7);
    expected[14] = 0;
    assert_eq!(wire.sent[0], expected);
    assert_eq!(wire.sent.len(), 2, "who is in another VLAN is beyond the wire");
    let from_outside = frame(EVERYBODY, STRANGER, 80);
    // A priority is no part of the VLAN, and VLAN 0 is none.
    wire.coming.extend([tagged(&from_outside, 8), tagged(&from_outside, 9), tagged(&from_outside, 0)]);
    wire.coming.push_back(tagged(&frame(mac(0), STRANGER, 80), 8));
    lab.settle();
    assert_eq!(lab.received(), [vec![], vec![], vec![from_outside.clone()], vec![from_outside]]);
}

#[test]
fn a_full_wire_delays_and_loses_nothing() {
    let mut lab = Lab::wired(2, crate::FEATURES, 3);
    let frames: Vec<_> = (0..10).map(|nth| frame(STRANGER, mac(0), 60 + nth)).collect();
    for frame in &frames {
        lab.drivers[0].send(frame);
    }
    assert_eq!(lab.round().next, Next::Idle, "the card says when it has room");
    assert_eq!((lab.card.as_ref().unwrap().sent.len(), lab.drivers[0].sent()), (3, 3));
    for _ in 0..4 {
        lab.card.as_mut().unwrap().room = 3;
        lab.round();
    }
    assert_eq!(lab.card.as_ref().unwrap().sent, frames);
}

#[test]
fn drivers_are_signalled_as_they_ask() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(2, features);
        let (a, b) = (lab.drivers[0].id.unwrap(), lab.drivers[1].id.unwrap());
        let sent = frame(mac(1), mac(0), 60);
        lab.drivers[0].want_signals(false, false);
        lab.drivers[1].want_signals(true, true);
        lab.drivers[0].send(&sent);
        let outcome = lab.round();
        assert!(outcome.received.contains(b) && outcome.sent.is_empty(), "{outcome:?}");
        lab.drivers[0].want_signals(false, true);
        lab.drivers[1].want_signals(false, true);
        lab.drivers[0].send(&sent);
        let outcome = lab.round();
        assert!(outcome.received.is_empty() && outcome.sent.contains(a), "{outcome:?}");
    }
}

#[test]
fn who_sleeps_is_told_and_who_looks_is_not() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(2, features);
        let sent = frame(mac(1), mac(0), 60);
        lab.settle();
        lab.network.wake();
        assert!(!lab.drivers[0].send(&sent), "somebody looks");
        lab.settle();
        lab.network.doze();
        assert_eq!(lab.round().next, Next::Idle);
        assert!(lab.drivers[0].send(&sent), "nobody looks");
        // Who has something at the last moment is found by the last round.
        lab.settle();
        lab.network.doze();
        lab.drivers[0].send(&sent);
        assert_eq!(lab.round().next, Next::Now);
    }
}

/// Rounds in which nothing comes.
fn wait(lab: &mut Lab, rounds: u8) {
    (0..rounds).for_each(|_| assert_eq!(lab.round().next, Next::Idle));
}

#[test]
fn who_has_had_nothing_to_send_for_long_is_not_looked_at_until_it_tells() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(2, features);
        let sent = frame(mac(1), mac(0), 60);
        let received = |lab: &mut Lab| {
            lab.settle();
            lab.received()[1].len()
        };
        lab.network.wake();
        wait(&mut lab, LOOKS - 1);
        assert!(!lab.drivers[0].send(&sent), "somebody looks");
        assert_eq!(received(&mut lab), 1);
        wait(&mut lab, LOOKS);
        assert!(lab.drivers[0].send(&sent), "nobody looks");
        lab.drivers[0].tells = false;
        assert_eq!(received(&mut lab), 0, "the engine does without a look");
        lab.drivers[0].tells = true;
        assert_eq!(received(&mut lab), 1);
        assert!(!lab.drivers[0].send(&sent), "somebody looks again");
        assert_eq!(received(&mut lab), 1);
    }
}

#[test]
fn what_comes_at_the_last_look_is_found() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(2, features);
        lab.network.wake();
        wait(&mut lab, LOOKS - 1);
        lab.drivers[0].send(&frame(mac(1), mac(0), 60));
        // It is there when the engine has looked, and before it has said that it will not again.
        lab.drivers[0].send_when_looked();
        assert_eq!(lab.round().next, Next::Now);
        lab.settle();
        assert_eq!(lab.received()[1].len(), 1);
        assert!(!lab.drivers[0].send(&frame(mac(1), mac(0), 61)), "it goes on looking");
    }
}

/// A driver that tells of nothing, just before the engine sleeps, is not forgotten.
#[test]
fn who_tells_while_the_engine_falls_asleep_can_tell_again() {
    for features in [0, crate::FEATURES] {
        let mut lab = Lab::new(2, features);
        lab.network.wake();
        wait(&mut lab, LOOKS);
        lab.network.doze();
        lab.drivers[0].tells = true;
        assert_eq!(lab.round().next, Next::Idle);
        assert!(lab.drivers[0].send(&frame(mac(1), mac(0), 60)), "nobody looks");
        lab.network.wake();
        lab.settle();
        assert_eq!(lab.received()[1].len(), 1);
    }
}

#[test]
fn nothing_is_reached_once_a_vif_has_left() {
    let mut lab = Lab::new(2, crate::FEATURES);
    lab.drivers[0].send(&frame(mac(1), mac(0), 60));
    let (gone, before) = (lab.drivers[1].id.unwrap(), lab.drivers[1].ram.bytes());
    assert!(lab.network.leave(gone).is_some());
    lab.settle();
    assert_eq!(lab.drivers[1].ram.bytes(), before);
    assert_eq!(lab.network.leave(gone), None);
    assert_eq!(lab.network.all().counters(gone), None);
    // Its place and its address are free.
    lab.drivers[1] = Driver::new(mac(1), 0);
    let Lab { network, drivers, .. } = &mut lab;
    drivers[1].join(network);
    assert_eq!(drivers[1].id, Some(gone));
}

#[test]
fn an_address_is_one_vifs() {
    let mut network: Network<Ram> = Network::new(LAYOUTS[0]);
    let join = |network: &mut Network<Ram>, mac| network.join(driver::attributes(mac), Ram::new(16), 0);
    assert!(join(&mut network, mac(0)).is_some());
    assert_eq!(join(&mut network, mac(0)), None);
    assert_eq!(join(&mut network, EVERYBODY), None);
    let mut others: Vec<VifId> = (1..64).filter_map(|nth| join(&mut network, mac(nth))).collect();
    assert_eq!((others.len(), join(&mut network, mac(64))), (63, None));
    let id = others.remove(0);
    assert!(!network.set(id, driver::attributes(mac(0)), 0), "another's");
    assert!(network.set(id, driver::attributes(mac(1)), 0), "its own");
    assert!(network.set(id, driver::attributes(mac(99)), 0));
}
