//! A wire that is limited to a rate.

use super::*;

/// Bits per second.
const RATE: u64 = 20_000_000;
/// What the limit lets go ahead of its time, and the last frame, in bytes.
const AHEAD: u64 = RATE / 8 * 4 / 1000 + 1514;

/// A physical card and two like it, one with three times the weight, behind a limit.
fn machine(model: NicModel, policy: DirectPolicy) -> Machine {
    let mut machine = Machine::shared(model, &[model; 2], policy);
    machine.with(|shared, _| {
        shared.set_weight(PortId::from_index(1).unwrap(), 3);
        shared.limit(RATE);
    });
    machine
}

#[test]
fn guests_divide_a_limited_wire_by_their_weights() {
    for model in [NicModel::E1000, NicModel::Rtl8139] {
        let mut machine = machine(model, DirectPolicy::Never);
        let mut drivers = [machine.driver(0), machine.driver(1)];
        machine.physical.wire.clear();
        let (began, mut mark) = (machine.now, 0);
        for _ in 0..400 {
            for (guest, driver) in drivers.iter_mut().enumerate() {
                // More than either can send in a millisecond.
                for _ in 0..64 {
                    let frame = frame(ROUTER, mac(guest), 1514, mark);
                    if machine.send(guest, &mut **driver, &frame) != Sent::Done {
                        break;
                    }
                    mark += 1;
                }
            }
            machine.step();
        }
        let sent = |guest: usize| {
            let own = machine.physical.wire.iter().filter(move |frame| frame[6..12] == mac(guest));
            own.map(|frame| frame.len() as u64).sum::<u64>()
        };
        let (light, heavy) = (sent(0), sent(1));
        let (all, allowed) = (light + heavy, RATE / 8 * (machine.now - began) / 1_000_000_000);
        assert!((allowed * 95 / 100..=allowed + AHEAD).contains(&all), "{model:?}: {all} of {allowed}");
        let ratio = heavy as f64 / light as f64;
        assert!((ratio - 3.0).abs() < 0.2, "{model:?}: {light} and {heavy}");
        // What waits at the end goes out with nothing but time, and nothing is lost.
        machine.settle();
        assert_eq!(machine.physical.wire.len(), mark as usize, "{model:?}");
        assert_eq!([0, 1].map(|guest| machine.counters(guest).tx_dropped), [0; 2]);
        assert_eq!(machine.shared.switch.held_until(), None);
    }
}

/// A guest that finds the wire free each time does not go past the limit either, and is slowed no more than it says.
#[test]
fn a_guest_alone_is_held_to_the_rate() {
    let mut machine = machine(NicModel::E1000, DirectPolicy::Never);
    let mut driver = machine.driver(0);
    machine.physical.wire.clear();
    let began = machine.now;
    for mark in 0..300 {
        for _ in 0..2 {
            assert_eq!(machine.send(0, &mut *driver, &frame(ROUTER, mac(0), 1514, mark)), Sent::Done);
        }
        machine.step();
    }
    let sent: u64 = machine.physical.wire.iter().map(|frame| frame.len() as u64).sum();
    let allowed = RATE / 8 * (machine.now - began) / 1_000_000_000;
    assert!((allowed * 95 / 100..=allowed + AHEAD).contains(&sent), "{sent} of {allowed}");
}

/// In its own hands a card is held to no rate.
#[test]
fn no_guest_has_a_limited_card_in_its_own_hands() {
    let mut machine = machine(NicModel::E1000, DirectPolicy::Open);
    let mut alone = machine.driver(0);
    machine.wait();
    machine.check(0, &mut *alone, 1);
    assert_eq!(machine.holder(), None);
}
