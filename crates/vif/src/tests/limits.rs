//! How long frames may be, and in whose name they are sent.

use super::driver::frame;
use super::offloads::long;
use super::{EVERYBODY, Lab, STRANGER, mac};
use crate::offload::Header;
use crate::{Address, FEATURES, Filter, Mac};
use std::vec::Vec;

/// A lab in which the first so many interfaces take long frames.
fn lab(jumbo: usize, count: u8, wire: Option<u32>) -> Lab {
    let mut lab = Lab::wired(count, FEATURES, usize::MAX);
    if let Some(longest) = wire {
        lab.card.as_mut().unwrap().longest = longest;
    } else {
        lab.card = None;
    }
    for driver in &mut lab.drivers[..jumbo] {
        driver.set(&mut lab.network, |attributes| attributes.mtu = 9000);
    }
    lab
}

#[test]
fn a_long_frame_reaches_who_takes_it() {
    let mut lab = lab(2, 3, None);
    let sent = frame(mac(1), mac(0), 9014);
    lab.drivers[0].send_in_place(Header::default(), &sent);
    lab.settle();
    assert_eq!(lab.received(), [vec![], vec![sent], vec![]]);
    lab.drivers[0].send_in_place(Header::default(), &frame(mac(1), mac(0), 9015));
    lab.settle();
    assert_eq!((lab.received()[1].len(), lab.counters(0).refused), (0, 1), "longer than its own");
    lab.drivers[0].send_in_place(Header::default(), &frame(mac(2), mac(0), 1515));
    lab.settle();
    assert_eq!((lab.received()[2].len(), lab.counters(2).missed), (0, 1), "longer than the other's");
    let all = frame(EVERYBODY, mac(0), 5000);
    lab.drivers[0].send_in_place(Header::default(), &all);
    lab.settle();
    assert_eq!(lab.received(), [vec![], vec![all], vec![]]);
    assert_eq!(lab.counters(2).missed, 2);
}

#[test]
fn segments_are_as_long_as_their_receiver_takes() {
    for features in [FEATURES, super::offloads::PLAIN] {
        let mut lab = lab(0, 2, None);
        lab.drivers[1].accept(&mut lab.network, features);
        lab.drivers[1].set(&mut lab.network, |attributes| attributes.mtu = 1439);
        let (asks, whole) = long(mac(1), mac(0), 9001);
        lab.drivers[0].send_asking(asks, &whole);
        lab.settle();
        assert_eq!((lab.received()[1].len(), lab.counters(1).missed), (0, 1));
        lab.drivers[1].set(&mut lab.network, |attributes| attributes.mtu = 1440);
        lab.drivers[0].send_asking(asks, &whole);
        lab.settle();
        assert_ne!(lab.received()[1].len(), 0);
    }
}

#[test]
fn the_wire_carries_what_its_card_does() {
    for (longest, vlan, len, arrives) in [
        (1518, None, 1519, false),
        (1518, None, 1518, true),
        (1518, Some(7), 1514, true),
        (1518, Some(7), 1515, false),
        (9018, None, 9014, true),
        (9018, Some(7), 9014, true),
    ] {
        let mut lab = lab(2, 2, Some(longest));
        for driver in &mut lab.drivers {
            driver.set(&mut lab.network, |attributes| attributes.vlan = vlan);
        }
        lab.drivers[0].send_in_place(Header::default(), &frame(STRANGER, mac(0), len));
        lab.settle();
        let tag = if vlan.is_some() { 4 } else { 0 };
        let sent: Vec<usize> = lab.card.as_ref().unwrap().sent.iter().map(Vec::len).collect();
        let expected: &[usize] = if arrives { &[len + tag] } else { &[] };
        assert_eq!((&*sent, lab.counters(0).refused), (expected, u64::from(!arrives)), "{len} of {longest}");
        // Who is here has it all the same.
        let all = frame(EVERYBODY, mac(0), len);
        lab.drivers[0].send_in_place(Header::default(), &all);
        lab.settle();
        assert_eq!(lab.received()[1], [all]);
    }
}

#[test]
fn what_comes_is_as_long_as_its_receiver_takes() {
    let mut lab = lab(1, 2, Some(9018));
    let frames =
        [frame(mac(0), STRANGER, 9014), frame(mac(1), STRANGER, 1515), frame(EVERYBODY, STRANGER, 2000)];
    lab.card.as_mut().unwrap().coming.extend(frames.clone());
    lab.settle();
    let [to_first, _, to_all] = frames;
    assert_eq!(lab.received(), [vec![to_first, to_all], vec![]]);
    assert_eq!((lab.counters(1).missed, lab.network.all().unclaimed()), (2, 0));
}

/// 10.0.0.1.
pub const OWN: Address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

/// ARP that says that this station has 10.0.0.`of`.
pub fn arp(to: Mac, from: Mac, of: u8) -> Vec<u8> {
    let kind = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
    [&to[..], &from, &kind, &from, &[10, 0, 0, of], &to, &[10, 0, 0, 1]].concat()
}

#[test]
fn who_has_addresses_speaks_for_no_others() {
    let mut lab = lab(0, 2, Some(1518));
    lab.card.as_mut().unwrap().cuts = true;
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.filter = Filter::new(&[OWN]));
    for to in [mac(1), STRANGER, EVERYBODY] {
        lab.drivers[0].send(&arp(to, mac(0), 2));
        // One address is its own in the segments, and the other is not.
        let (asks, mut whole) = long(to, mac(0), 3000);
        whole[29] = 2;
        lab.drivers[0].send_asking(asks, &whole);
    }
    lab.settle();
    assert_eq!((lab.received(), lab.counters(0).spoofed), (vec![vec![], vec![]], 6));
    assert_eq!((lab.card.as_ref().unwrap().sent.len(), lab.counters(0).sent), (0, 0));
    for to in [mac(1), STRANGER, EVERYBODY] {
        lab.drivers[0].send(&arp(to, mac(0), 1));
        let (asks, whole) = long(to, mac(0), 3000);
        lab.drivers[0].send_asking(asks, &whole);
    }
    lab.settle();
    assert_eq!((lab.counters(0).spoofed, lab.counters(0).sent), (6, 6));
    assert_eq!((lab.received()[1].len(), lab.card.as_ref().unwrap().sent.len()), (4, 8));
    // Others say what they like, and it does again without.
    lab.drivers[1].send(&arp(mac(0), mac(1), 9));
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.filter = Filter::default());
    lab.drivers[0].send(&arp(mac(1), mac(0), 9));
    lab.settle();
    assert_eq!(lab.received().iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
}
