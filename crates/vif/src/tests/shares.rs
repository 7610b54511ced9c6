//! Who may send how much.

use super::driver::frame;
use super::{EVERYBODY, Lab, STRANGER, mac};
use crate::{FEATURES, Next};
use std::vec::Vec;

/// Sends on, so that all want to send all the time: frames of these sizes, each to its destination.
fn keep_busy(lab: &mut Lab, sizes: &[usize], to: impl Fn(u8) -> crate::Mac) {
    for (nth, driver) in (0..).zip(&mut lab.drivers) {
        let gone = driver.sent();
        for _ in 0..gone {
            driver.send(&frame(to(nth), mac(nth), sizes[usize::from(nth) % sizes.len()]));
        }
    }
}

fn start(lab: &mut Lab, sizes: &[usize], to: impl Fn(u8) -> crate::Mac) {
    for (nth, driver) in (0..).zip(&mut lab.drivers) {
        for _ in 0..30 {
            driver.send(&frame(to(nth), mac(nth), sizes[usize::from(nth) % sizes.len()]));
        }
    }
}

/// Bytes that each has sent, with what counts for the work.
fn bytes(lab: &mut Lab) -> Vec<f64> {
    (0..lab.drivers.len() as u8).map(|nth| lab.counters(nth).sent_bytes as f64).collect()
}

/// Jain's index of fairness: 1 if all have the same.
fn jain(values: &[f64]) -> f64 {
    let (sum, squares) =
        values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    sum * sum / (values.len() as f64 * squares)
}

#[test]
fn thirty_two_share_a_full_wire_alike() {
    for room in [1, 3, 7, 40] {
        let mut lab = Lab::wired(32, FEATURES, 0);
        start(&mut lab, &[1514], |_| STRANGER);
        for _ in 0..6000 / room {
            lab.card.as_mut().unwrap().room = room;
            lab.round();
            keep_busy(&mut lab, &[1514], |_| STRANGER);
        }
        let fairness = jain(&bytes(&mut lab));
        assert!(fairness > 0.99, "{room} at once: {fairness}");
    }
}

#[test]
fn shares_are_kept_on_a_full_wire_whatever_the_frames() {
    for (sizes, shares) in [(&[1514usize][..], [1, 1, 3]), (&[60], [1, 2, 10]), (&[700], [1, 10, 20])] {
        let mut lab = Lab::wired(3, FEATURES, 0);
        for (nth, share) in shares.into_iter().enumerate() {
            lab.drivers[nth].set(&mut lab.network, |attributes| attributes.share = share);
        }
        start(&mut lab, sizes, |_| STRANGER);
        for _ in 0..12_000 {
            lab.card.as_mut().unwrap().room = 5;
            lab.round();
            keep_busy(&mut lab, sizes, |_| STRANGER);
        }
        let sent = bytes(&mut lab);
        for (nth, share) in shares.into_iter().enumerate() {
            let part = sent[nth] / sent[2] * f64::from(shares[2]) / f64::from(share);
            assert!((0.95..1.05).contains(&part), "{sizes:?} {shares:?}: {sent:?}");
        }
    }
}

#[test]
fn small_frames_and_large_ones_have_the_wire_for_as_long() {
    let mut lab = Lab::wired(2, FEATURES, 0);
    start(&mut lab, &[1514, 60], |_| STRANGER);
    for _ in 0..8_000 {
        lab.card.as_mut().unwrap().room = 5;
        lab.round();
        keep_busy(&mut lab, &[1514, 60], |_| STRANGER);
    }
    let mut busy = |nth, len: f64| lab.counters(nth).sent as f64 * (len + 24.0);
    let ratio = busy(1, 60.0) / busy(0, 1514.0);
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

#[test]
fn who_talks_to_a_neighbour_keeps_nobody_from_the_wire() {
    let mut lab = Lab::wired(4, FEATURES, 0);
    let to = |nth| if nth == 0 { mac(3) } else { STRANGER };
    let sizes = [60, 1514, 1514, 60];
    start(&mut lab, &sizes, to);
    for _ in 0..4000 {
        lab.card.as_mut().unwrap().room = 5;
        lab.round();
        lab.received();
        keep_busy(&mut lab, &sizes, to);
    }
    let mut sent = |nth| lab.counters(nth).sent;
    assert!(sent(0) > 80_000, "{} to the neighbour", sent(0));
    assert!(sent(1) + sent(2) + sent(3) > 19_900, "the wire was idle");
    assert!(jain(&[1, 2].map(|nth| sent(nth) as f64)) > 0.99);
}

#[test]
fn a_frame_to_all_is_charged_for_every_copy() {
    let mut lab = Lab::new(32, FEATURES);
    let to = |nth| if nth == 0 { EVERYBODY } else { mac(nth % 31 + 1) };
    start(&mut lab, &[500], to);
    for _ in 0..200 {
        lab.round();
        lab.received();
        keep_busy(&mut lab, &[500], to);
    }
    let (of_all, of_one) = (lab.counters(0).sent, lab.counters(1).sent);
    assert!(of_all * 15 < of_one, "{of_all} to all, {of_one} to one");
}

#[test]
fn a_limit_holds() {
    for (limit, len) in [(8_000_000, 1514), (100_000_000, 1514), (64_000, 60), (1_000_000_000, 300)] {
        let mut lab = Lab::wired(1, FEATURES, usize::MAX);
        lab.drivers[0].set(&mut lab.network, |attributes| attributes.limit = Some(limit));
        start(&mut lab, &[len], |_| STRANGER);
        let end = 2_000_000_000;
        while lab.now < end {
            lab.now = match lab.round().next {
                // A round takes some time.
                Next::Now => lab.now + 2_000,
                Next::At(then) => {
                    assert!(then > lab.now);
                    then
                }
                Next::Idle => panic!("it has more to send"),
            };
            keep_busy(&mut lab, &[len], |_| STRANGER);
            lab.card.as_mut().unwrap().sent.clear();
        }
        let rate = bytes(&mut lab)[0] * 8.0 / 2.0;
        assert!((0.98..1.02).contains(&(rate / limit as f64)), "{rate} of {limit}");
    }
}

#[test]
fn who_is_held_back_by_a_limit_holds_back_nobody() {
    let mut lab = Lab::wired(2, FEATURES, usize::MAX);
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.limit = Some(1_000_000));
    start(&mut lab, &[1000], |_| STRANGER);
    for _ in 0..100 {
        assert_eq!(lab.round().next, Next::Now);
        lab.now += 10_000;
        keep_busy(&mut lab, &[1000], |_| STRANGER);
    }
    assert!(lab.counters(1).sent > 1000);
}
