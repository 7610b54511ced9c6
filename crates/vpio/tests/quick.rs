//! What is served in a few steps is what the long way serves: a string of one byte on a register goes the long way.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{OUTSIDE, TIMING, World, frame, mac, mark, start};
use proptest::prelude::*;
use sluice_vpio::{ClientCounters, RegisterAccess};

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Read(u16),
    Write(u16, u8),
    /// A frame of this length arrives for that client.
    Arrives(usize, usize),
    /// Nanoseconds pass.
    Passes(u64),
    /// The other client, which waits for the card, tries again.
    OtherTries,
}

fn event() -> impl Strategy<Value = Event> {
    let port = prop_oneof![8 => 0u16..8, 1 => Just(0x0f), 1 => 8u16..16];
    let value = prop_oneof![3 => prop::sample::select(vec![0x22u8, 0x62, 0x26, 0x3f, 0x40, 0x4d, 60, 0, 1]), 1 => any::<u8>()];
    prop_oneof![
        6 => port.clone().prop_map(Event::Read),
        6 => (port, value).prop_map(|(port, value)| Event::Write(port, value)),
        1 => (0..2usize, 60..1500usize).prop_map(|(to, len)| Event::Arrives(to, len)),
        1 => prop::sample::select(vec![100, TIMING.min_hold, TIMING.max_wait]).prop_map(Event::Passes),
        1 => Just(Event::OtherTries),
    ]
}

/// Two clients that share; the first holds the card.
fn shared() -> Rc<RefCell<World>> {
    let world = World::new(2, 1, TIMING);
    world.borrow_mut().hw.pace = u64::MAX;
    start(&world, 0);
    start(&world, 1);
    // The second asks; after the longest wait it has the card, and then the first again.
    for index in [1, 0] {
        while world.borrow_mut().io(index, RegisterAccess::Read { offset: 7, width: 1 }).is_none() {
            world.borrow_mut().pass(TIMING.max_wait);
        }
    }
    // What it sends is vetted, so that its commands need not be seen.
    for (offset, value) in [(0, 0x22), (5, 60), (6, 0), (4, 0x40)] {
        assert!(world.borrow_mut().io(0, RegisterAccess::Write { offset, width: 1, value }).is_some());
    }
    assert!(!world.borrow().hooks[0].catches(0, 1));
    world
}

/// Lets it happen; returns what the first client sees.
fn happen(world: &RefCell<World>, event: &Event, long: bool) -> Option<u32> {
    let world = &mut *world.borrow_mut();
    match *event {
        Event::Read(offset @ (3..=7 | 0x0f)) if long => {
            let mut byte = [0];
            world.io(0, RegisterAccess::ReadString { offset, width: 1, into: &mut byte })?;
            Some(byte[0].into())
        }
        Event::Write(offset @ (3..=7 | 0x0f), value) if long => {
            world.io(0, RegisterAccess::WriteString { offset, width: 1, from: &[value] })
        }
        Event::Read(offset) => world.io(0, RegisterAccess::Read { offset, width: 1 }),
        Event::Write(offset, value) => {
            world.io(0, RegisterAccess::Write { offset, width: 1, value: value.into() })
        }
        Event::Arrives(to, len) => {
            world.hw.arriving.push_back(frame(mac(to), OUTSIDE, 0, mark(to), len));
            world.hw.arrive();
            // The interrupt that it raises is taken with the next access.
            None
        }
        Event::Passes(nanoseconds) => {
            world.pass(nanoseconds);
            None
        }
        Event::OtherTries => world.io(1, RegisterAccess::Read { offset: 7, width: 1 }),
    }
}

fn counters(world: &RefCell<World>, index: usize) -> ClientCounters {
    let world = world.borrow();
    // How often the card is looked at is what differs.
    let counters = world.monitor.counters(world.clients[index]).unwrap();
    ClientCounters { forwarded_elements: 0, ..counters }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_in_a_few_steps_is_what_the_long_way_serves(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let (quick, long) = (shared(), shared());
        for (step, event) in events.iter().enumerate() {
            let (one, two) = (happen(&quick, event, false), happen(&long, event, true));
            prop_assert_eq!(one.is_some(), two.is_some(), "step {}: {:?}", step, event);
            if !matches!(event, Event::Write(..)) {
                prop_assert_eq!(one, two, "step {}: {:?}", step, event);
            }
            let (one, two) = (quick.borrow(), long.borrow());
            prop_assert_eq!(one.monitor.holder(), two.monitor.holder(), "step {}: {:?}", step, event);
            prop_assert_eq!(&one.hooks, &two.hooks, "step {}: {:?}", step, event);
            prop_assert_eq!(&one.lines, &two.lines, "step {}: {:?}", step, event);
            prop_assert!(one.hw.nic == two.hw.nic, "another card after step {}: {:?}", step, event);
            prop_assert_eq!(&one.hw.sent, &two.hw.sent);
        }
        for index in [0, 1] {
            prop_assert_eq!(counters(&quick, index), counters(&long, index));
        }
    }
}

/// Whether the first client's read of BNRY is served in a few steps.
fn is_quick(world: &RefCell<World>) -> bool {
    let World { monitor, hw, clients, now, .. } = &mut *world.borrow_mut();
    monitor.quick(hw, clients[0], *now, 3, None).is_some()
}

#[test]
fn who_is_followed_or_stopped_the_card_or_loses_it_now_goes_the_long_way() {
    let world = shared();
    assert!(is_quick(&world));
    assert_eq!(happen(&world, &Event::OtherTries, false), None, "it waits");
    assert!(is_quick(&world));
    world.borrow_mut().now += TIMING.min_hold;
    assert!(!is_quick(&world), "it is time to follow");
    world.borrow_mut().pass(0);
    let is_due = |world: &World| world.monitor.is_due(world.now);
    assert!(!is_due(&world.borrow()) && !is_quick(&world), "it is followed");
    let stopped = shared();
    stopped.borrow_mut().hw.nic.write(0, 1, 0x21);
    assert!(!is_quick(&stopped));
}
