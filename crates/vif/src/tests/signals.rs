//! When a driver hears of frames that it has sent.

use super::driver::{Driver, frame};
use super::{Lab, mac};
use crate::{FEATURES, Next, Outcome};

/// Microseconds.
const WAIT: u16 = 10;

fn lab(features: u64) -> Lab {
    let mut lab = Lab::new(2, features);
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.moderation = WAIT);
    lab.settle();
    lab
}

/// Sends so many frames and plays a round at this time, in ns. Returns what came of it, and whether the sender is signalled.
fn send(lab: &mut Lab, count: usize, now: u64) -> (Outcome, bool) {
    lab.now = now;
    (0..count).for_each(|_| _ = lab.drivers[0].send(&frame(mac(1), mac(0), 60)));
    let outcome = lab.round();
    let told = outcome.sent.contains(lab.drivers[0].id.unwrap());
    lab.received();
    (outcome, told)
}

#[test]
fn a_few_wait_a_while() {
    for features in [0, FEATURES] {
        let mut lab = lab(features);
        lab.drivers[0].want_signals(true, true);
        let (outcome, told) = send(&mut lab, 1, 5);
        assert!(!told && lab.drivers[0].sent() == 1, "the driver can see it");
        assert_eq!(outcome.next, Next::Now, "there may be more");
        let (outcome, told) = send(&mut lab, 0, 10_004);
        assert_eq!((outcome.next, told), (Next::At(10_005), false));
        let (outcome, told) = send(&mut lab, 0, 10_005);
        assert_eq!((outcome.next, told), (Next::Idle, true));
        let (outcome, told) = send(&mut lab, 0, 20_000);
        assert_eq!((outcome.next, told), (Next::Idle, false), "once");
    }
}

#[test]
fn who_has_seen_them_meanwhile_is_not_told() {
    for features in [0, FEATURES] {
        let mut lab = lab(features);
        lab.drivers[0].want_signals(true, true);
        assert!(!send(&mut lab, 1, 5).1);
        lab.drivers[0].sent();
        lab.drivers[0].want_signals(true, features == FEATURES);
        let (outcome, told) = send(&mut lab, 0, 10_005);
        assert_eq!((outcome.next, told), (Next::Idle, false));
        // The next one is another matter.
        lab.drivers[0].want_signals(true, true);
        assert!(!send(&mut lab, 1, 20_000).1);
        assert!(send(&mut lab, 0, 30_000).1);
    }
}

#[test]
fn many_do_not_wait() {
    let mut lab = lab(FEATURES);
    lab.drivers[0].want_signals(true, true);
    assert!(!send(&mut lab, 20, 5).1);
    assert!(send(&mut lab, 12, 6).1);
    // Nor does who is not to wait.
    lab.drivers[0].want_signals(true, true);
    lab.drivers[0].set(&mut lab.network, |attributes| attributes.moderation = 0);
    assert!(send(&mut lab, 1, 7).1);
}

#[test]
fn a_driver_that_begins_anew_has_heard_nothing() {
    let mut lab = lab(FEATURES);
    lab.drivers[0].want_signals(true, true);
    assert!(!send(&mut lab, 3, 5).1);
    Driver::accept(&mut lab.drivers[0], &mut lab.network, FEATURES);
    // Its queue begins anew, too, with what is in it.
    assert!(!send(&mut lab, 0, 20_000).1);
    assert!(send(&mut lab, 0, 30_000).1);
}
