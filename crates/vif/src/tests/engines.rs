//! Several engines: each VIF is served by one, and nobody sees a difference.

use super::driver::{Card, SIZE, frame};
use super::{EVERYBODY, LAYOUTS, Lab, STRANGER, mac};
use crate::{FEATURES, Layout, Next};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

fn wired(layout: (Layout, usize), vifs: u8, room: usize) -> Lab {
    Lab { card: Some(Card::new(room)), ..Lab::with(layout, vifs, FEATURES) }
}

#[test]
fn vifs_are_spread_over_the_engines_that_send() {
    for (layout, wanted) in LAYOUTS.into_iter().zip([&[6][..], &[0, 6], &[0, 3, 3], &[3, 3], &[2, 2, 2]]) {
        let mut lab = wired(layout, 6, 0);
        let ids: Vec<_> = lab.drivers.iter().map(|driver| driver.id.unwrap()).collect();
        let homes: Vec<_> = ids.iter().map(|id| lab.network.all().home_of(*id).unwrap()).collect();
        let count = |nth| homes.iter().filter(|home| **home == nth).count();
        assert_eq!((0..layout.1).map(count).collect::<Vec<_>>(), wanted, "{layout:?}");
        // Who comes in place of those who leave goes where there are fewest.
        let last = *homes.last().unwrap();
        assert!(lab.network.leave(ids[5]).is_some());
        lab.drivers[5].join(&mut lab.network);
        assert_eq!(lab.network.all().home_of(lab.drivers[5].id.unwrap()), Some(last));
    }
}

#[test]
fn every_engine_does_its_part_and_no_other() {
    let mut lab = wired((Layout::Split, 2), 2, usize::MAX);
    lab.drivers[0].send(&frame(mac(1), mac(0), 100));
    lab.card.as_mut().unwrap().coming.push_back(frame(mac(0), STRANGER, 200));
    let card = lab.card.as_mut().unwrap();
    lab.network.0[0].round(Some(card), 0);
    assert_eq!(lab.drivers[0].sent(), 0, "who takes in does not send");
    assert_eq!(lab.received(), [vec![frame(mac(0), STRANGER, 200)], vec![]]);
    lab.card.as_mut().unwrap().coming.push_back(frame(mac(0), STRANGER, 300));
    lab.network.0[1].round(lab.card.as_mut().map(|card| card as _), 0);
    assert_eq!(lab.drivers[0].sent(), 1);
    assert_eq!(lab.card.as_ref().unwrap().coming.len(), 1, "who sends takes nothing in");
    assert_eq!(lab.received(), [vec![], vec![frame(mac(1), mac(0), 100)]]);
}

#[test]
fn only_the_engine_of_a_vif_asks_its_driver_to_tell() {
    let mut lab = wired((Layout::Spread, 2), 2, 0);
    lab.network.wake();
    lab.network.0[0].doze();
    assert!(lab.drivers[0].send(&frame(STRANGER, mac(0), 60)));
    assert!(!lab.drivers[1].send(&frame(STRANGER, mac(1), 60)));
    lab.network.0[0].wake();
    lab.network.0[1].doze();
    assert!(!lab.drivers[0].send(&frame(STRANGER, mac(0), 60)));
}

#[test]
fn an_engine_looks_again_whether_a_full_card_has_room_that_does_not_tell_it() {
    for layout in LAYOUTS {
        for tells in [true, false] {
            a_full_card(layout, tells);
        }
    }
}

fn a_full_card(layout: (Layout, usize), tells: bool) {
    let mut lab = wired(layout, 1, 0);
    lab.card.as_mut().unwrap().tells = tells;
    lab.drivers[0].send(&frame(STRANGER, mac(0), 60));
    assert_eq!(lab.round().next == Next::Idle, tells, "{layout:?}");
    lab.card.as_mut().unwrap().room = 1;
    lab.settle();
    assert_eq!(lab.drivers[0].sent(), 1);
}

#[test]
fn who_breaks_the_rules_where_it_receives_is_served_by_no_engine() {
    for layout in LAYOUTS {
        let mut lab = wired(layout, 3, usize::MAX);
        let id = lab.drivers[2].id.unwrap();
        lab.drivers[2].offer_only(&[]);
        lab.drivers[2].offer_raw(0, 0xffff_0000, 2000, 2);
        lab.drivers[2].send(&frame(EVERYBODY, mac(2), 100));
        // The engine that takes it from the wire finds out, and all others keep to it.
        lab.card.as_mut().unwrap().coming.push_back(frame(EVERYBODY, STRANGER, 200));
        let outcome = lab.round();
        assert!(outcome.broken.contains(id), "{layout:?}");
        lab.settle();
        assert_eq!((lab.drivers[2].sent(), lab.counters(2).faults), (0, 1), "{layout:?}");
        assert_eq!(lab.received()[1], [frame(EVERYBODY, STRANGER, 200)], "{layout:?}");
        let memory = lab.drivers[2].ram.bytes();
        lab.card.as_mut().unwrap().coming.push_back(frame(mac(2), STRANGER, 200));
        lab.drivers[0].send(&frame(mac(2), mac(0), 100));
        lab.network.doze();
        assert!(lab.round().broken.is_empty(), "{layout:?}");
        assert!(memory == lab.drivers[2].ram.bytes(), "{layout:?}: its memory is reached");
    }
}

#[test]
fn who_breaks_the_rules_at_two_engines_at_once_is_told_once() {
    for layout in LAYOUTS {
        let mut lab = wired(layout, 3, usize::MAX);
        lab.drivers[2].offer_only(&[]);
        lab.drivers[2].offer_raw(0, 0xffff_0000, 2000, 2);
        lab.drivers[2].claim_available(SIZE + 1);
        lab.drivers[0].send(&frame(EVERYBODY, mac(0), 100));
        // The lab asserts that no two engines tell of it.
        assert!(lab.round().broken.contains(lab.drivers[2].id.unwrap()), "{layout:?}");
        lab.settle();
        assert_eq!(lab.counters(2).faults, 1, "{layout:?}: once in each life");
        assert_eq!(lab.received()[1].len(), 1, "{layout:?}");
    }
}

/// Memory that two threads reach.
#[derive(Clone)]
struct Ram(Arc<Mutex<Vec<u8>>>);

impl sluice_virtio::Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), sluice_virtio::Fault> {
        let bytes = self.0.lock().unwrap();
        buffer.copy_from_slice(&bytes[address as usize..][..buffer.len()]);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), sluice_virtio::Fault> {
        self.0.lock().unwrap()[address as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

impl crate::Memory for Ram {
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), sluice_virtio::Fault> {
        let mut bytes = vec![0; len as usize];
        sluice_virtio::Memory::read(self, from, &mut bytes)?;
        sluice_virtio::Memory::write(other, to, &bytes)
    }

    fn holds(&self, address: u64, len: u32) -> bool {
        address as usize + len as usize <= self.0.lock().unwrap().len()
    }
}

#[test]
fn two_engines_at_once_lose_nothing_and_keep_the_order_of_each_sender() {
    const FRAMES: u16 = 60;
    const SENDERS: u8 = 4;
    const SIZE: u16 = 256;
    let queue = |base: u64| sluice_virtio::Queue {
        size: SIZE,
        enabled: true,
        desc: base,
        driver: base + 0x1000,
        device: base + 0x2000,
        vector: 0,
    };
    let active = crate::Active {
        queues: crate::Queues::Virtio { receive: queue(0), send: queue(0x4000) },
        features: 0,
    };
    for layout in [(Layout::Spread, 2), (Layout::Split, 3)] {
        let mut engines = crate::engines(layout.0, layout.1);
        let rams: Vec<Ram> = (0..=SENDERS).map(|_| Ram(Arc::new(Mutex::new(vec![0; 0x5_0000])))).collect();
        for (nth, ram) in (0..).zip(&rams) {
            let mut bytes = ram.0.lock().unwrap();
            let mut describe = |base: usize, count: u16, start: u64, flags: u16| {
                for index in 0..count {
                    let at = start + 128 * u64::from(index);
                    let words = u128::from(at) | 128 << 64 | u128::from(flags) << 96;
                    bytes[base + 16 * usize::from(index)..][..16].copy_from_slice(&words.to_le_bytes());
                    bytes[base + 0x1004 + 2 * usize::from(index)..][..2]
                        .copy_from_slice(&index.to_le_bytes());
                }
                bytes[base + 0x1002..][..2].copy_from_slice(&count.to_le_bytes());
            };
            if nth == SENDERS {
                describe(0, SIZE, 0x1_0000, 2);
            } else {
                describe(0x4000, FRAMES, 0x1_0000, 0);
                for count in 0..FRAMES {
                    let sent =
                        [&mac(SENDERS)[..], &mac(nth), &[0x88, 0xb5], &[nth], &count.to_le_bytes()].concat();
                    bytes[0x1_000c + 128 * usize::from(count)..][..sent.len()].copy_from_slice(&sent);
                }
            }
            drop(bytes);
            let mut network = crate::Network::new(engines.iter_mut());
            let id = network.join(super::driver::attributes(mac(nth)), ram.clone(), None, 0).unwrap();
            assert!(network.activate(id, Some(active)));
        }
        std::thread::scope(|scope| {
            for engine in &mut engines {
                scope.spawn(|| (0..2000).for_each(|now| assert!(engine.round(None, now).broken.is_empty())));
            }
        });
        let bytes = rams[usize::from(SENDERS)].0.lock().unwrap();
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!(word(0x2002), FRAMES * u16::from(SENDERS), "{layout:?}");
        let mut next = [0; SENDERS as usize];
        for slot in 0..FRAMES * u16::from(SENDERS) {
            let index = word(0x2004 + 8 * usize::from(slot));
            let frame = &bytes[0x1_000c + 128 * usize::from(index)..];
            let seen = &mut next[usize::from(frame[14])];
            assert_eq!(u16::from_le_bytes([frame[15], frame[16]]), *seen, "{layout:?}");
            *seen += 1;
        }
    }
}
