//! Single promises of the monitor, one test each.

mod common;

use std::cell::RefCell;

use common::{OUTSIDE, TIMING, World, frame, mac, mark, start};
use sluice_vpio::{
    AttachError, ClientId, Monitor, Outcome, RawDevice, Reaction, Refusal, RegisterAccess, Timing,
};

fn outb(world: &RefCell<World>, index: usize, offset: u16, value: u8) -> Option<u32> {
    world.borrow_mut().io(index, RegisterAccess::Write { offset, width: 1, value: value.into() })
}

fn inb(world: &RefCell<World>, index: usize, offset: u16) -> Option<u8> {
    world.borrow_mut().io(index, RegisterAccess::Read { offset, width: 1 }).map(|value| value as u8)
}

#[test]
fn devices_without_a_model_are_refused() {
    assert!(Monitor::for_device(0x8086, 0x100e, Timing::default()).is_none());
    assert_eq!(Monitor::for_device(0x10ec, 0x8029, Timing::default()).unwrap().model_name(), "ne2000");
}

#[test]
fn addresses_are_unicast_and_unique_and_slots_end() {
    let mut monitor = Monitor::for_device(0x10ec, 0x8029, Timing::default()).unwrap();
    assert_eq!(monitor.attach([1, 0, 0x5e, 0, 0, 1]), Err(AttachError::BadAddress));
    assert_eq!(monitor.attach([0; 6]), Err(AttachError::BadAddress));
    for index in 0..ClientId::MAX {
        assert_eq!(monitor.attach(mac(index)).map(ClientId::index), Ok(index));
        assert_eq!(monitor.attach(mac(index)), Err(AttachError::AddressTaken));
    }
    assert_eq!(monitor.attach(mac(100)), Err(AttachError::Full));
}

#[test]
fn configuring_needs_no_hardware_and_going_on_line_takes_it() {
    let world = World::new(2, 1, TIMING);
    let untouched = world.borrow().hw.nic.clone();
    outb(&world, 0, 0, 0x21);
    assert_eq!(inb(&world, 0, 0), Some(0x21));
    assert!(world.borrow().hw.nic == untouched);
    start(&world, 0);
    assert_eq!(world.borrow().monitor.holder().map(ClientId::index), Some(0));
    assert_eq!(world.borrow().hooks[0].ports(), 0xff00_f002);
    assert_eq!(world.borrow().hooks[1].ports(), u32::MAX);
}

/// Hardware that a call must leave alone.
struct Untouchable;

impl RawDevice for Untouchable {
    fn read(&mut self, offset: u16, _: u8) -> u32 {
        panic!("read of {offset:#x}")
    }
    fn write(&mut self, offset: u16, _: u8, value: u32) {
        panic!("write of {value:#x} to {offset:#x}")
    }
}

/// The owner stops the holder for as long as a call is at the hardware: an off-line client can have that as little as it
/// can have the card, be it that another waits for the holder to come to rest.
#[test]
fn an_off_line_client_stops_no_holder() {
    let world = World::new(3, 1, TIMING);
    start(&world, 0);
    for contended in [false, true] {
        if contended {
            start(&world, 1);
            assert!(inb(&world, 1, 7).is_none(), "it waits");
        }
        let world = &mut *world.borrow_mut();
        let (holder, other) = (world.monitor.holder(), world.clients[2]);
        let hooks = holder.map(|holder| world.monitor.hooks(holder));
        for round in 0..100 {
            // Long enough for any grace to be over.
            world.now += 50_000;
            for offset in 0..0x20 {
                let read = RegisterAccess::Read { offset, width: 1 };
                assert_ne!(world.monitor.access(&mut Untouchable, other, world.now, read), Outcome::Wait);
            }
            for (offset, value) in
                [(0, 0x21), (0x0e, 0x49), (1, round), (7, 0xff), (0x0f, 0x7f), (0, 0x61), (1, 8)]
            {
                let write = RegisterAccess::Write { offset, width: 1, value };
                assert_ne!(world.monitor.access(&mut Untouchable, other, world.now, write), Outcome::Wait);
            }
            world.monitor.end_of_interrupt(other);
            world.monitor.halted(&mut Untouchable, other, world.now);
            let changes = world.monitor.changes();
            assert_eq!((changes.hooks & !other.bit(), changes.wake, changes.poll), (0, 0, false));
        }
        assert_eq!(world.monitor.holder(), holder);
        assert_eq!(holder.map(|holder| world.monitor.hooks(holder)), hooks);
    }
}

#[test]
fn a_sole_holder_cannot_listen_to_all() {
    let world = World::new(1, 1, TIMING);
    start(&world, 0);
    outb(&world, 0, 0x0c, 0x1c);
    assert_eq!(world.borrow().hw.nic.regs.rcr, 0x0c);
    assert_eq!(world.borrow().monitor.counters(world.borrow().clients[0]).unwrap().refused, 1);
    // Nor by asking for it before it goes on-line.
    let world = World::new(1, 1, TIMING);
    outb(&world, 0, 0x0c, 0x1c);
    outb(&world, 0, 0, 0x22);
    assert_eq!(world.borrow().hw.nic.regs.rcr, 0x0c);
}

#[test]
fn a_sole_holders_reset_keeps_its_own_address() {
    let world = World::new(1, 1, TIMING);
    start(&world, 0);
    assert_eq!(inb(&world, 0, 0x1f), Some(0));
    assert_eq!(inb(&world, 0, 7), Some(0x80));
    assert_eq!(inb(&world, 0, 0), Some(0x21));
    let world = world.borrow();
    let prom: Vec<u8> = world.hw.nic.prom().iter().step_by(2).take(6).copied().collect();
    assert_eq!(prom, mac(0));
    assert_eq!(world.hw.nic.regs.dcr, 0x49);
}

#[test]
fn eeprom_and_configuration_stay_shut() {
    let world = World::new(1, 1, TIMING);
    start(&world, 0);
    outb(&world, 0, 0, 0xe2);
    outb(&world, 0, 1, 0xc0);
    let world = world.borrow();
    assert_eq!(world.monitor.counters(world.clients[0]).unwrap().refused, 1);
}

#[test]
fn a_transmission_whose_range_was_lost_fails_visibly() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    // Loaded past the monitor, then interrupted for longer than the grace.
    for (offset, value) in [(5, 100), (6, 0), (4, 0x40)] {
        outb(&world, 0, offset, value);
    }
    start(&world, 1);
    for _ in 0..10 {
        world.borrow_mut().pass(100_000);
    }
    assert_eq!(world.borrow().monitor.holder().map(ClientId::index), Some(1));
    while outb(&world, 0, 0, 0x26).is_none() {
        world.borrow_mut().pass(10_000);
    }
    assert!(world.borrow().hw.sent.is_empty());
    assert_eq!(inb(&world, 0, 7), Some(0x08));
    assert_eq!(inb(&world, 0, 4), Some(0x08));
    assert!(world.borrow().lines[0]);
    // Loaded again it is sent.
    for (offset, value) in [(7, 0x08), (5, 100), (6, 0), (4, 0x40), (0, 0x26)] {
        assert!(outb(&world, 0, offset, value).is_some());
    }
    assert_eq!(world.borrow().hw.sent.len(), 1);
    assert_eq!(inb(&world, 0, 7), Some(0x02));
}

#[test]
fn a_range_outside_its_pages_is_not_sent() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    let ranges = [(0x80u8, 100u16), (0x00, 100), (0x7f, 300), (0x40, 1537), (0xff, 0xffff), (0x40, 0)];
    for (page, len) in ranges {
        for (offset, value) in [(5, len as u8), (6, (len >> 8) as u8), (4, page), (0, 0x26)] {
            while outb(&world, 1, offset, value).is_none() {
                world.borrow_mut().pass(10_000);
            }
        }
        assert!(world.borrow().hw.sent.is_empty(), "{page:#x} {len}");
    }
    let world = world.borrow();
    assert_eq!(world.monitor.counters(world.clients[1]).unwrap().refused, 6);
}

#[test]
fn waiting_clients_are_served_in_the_order_they_asked() {
    let world = World::new(4, 1, TIMING);
    for index in 0..4 {
        start(&world, index);
    }
    for _ in 0..20 {
        world.borrow_mut().pass(200_000);
    }
    let holder = world.borrow().monitor.holder().unwrap().index();
    let asked: Vec<usize> = [2, 0, 3, 1].into_iter().filter(|index| *index != holder).collect();
    for &index in &asked {
        // The holder is busy.
        inb(&world, holder, 7);
        assert_eq!(inb(&world, index, 0), None);
        assert!(!world.borrow().monitor.may_run(world.borrow().clients[index]));
        world.borrow_mut().pass(2_000);
    }
    let mut served = vec![];
    for _ in 0..200 {
        world.borrow_mut().pass(10_000);
        let now = world.borrow().monitor.holder().unwrap().index();
        if served.last() != Some(&now) && now != holder {
            served.push(now);
        }
    }
    assert_eq!(served, asked);
}

#[test]
fn an_idle_holder_gives_way_at_once_when_its_processors_halt() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    for _ in 0..10 {
        world.borrow_mut().pass(100_000);
    }
    let holder = world.borrow().monitor.holder().unwrap();
    let other = 1 - holder.index();
    inb(&world, holder.index(), 7);
    assert_eq!(inb(&world, other, 0), None);
    {
        let world = &mut *world.borrow_mut();
        let now = world.now;
        world.monitor.halted(&mut world.hw, holder, now);
        world.apply_changes();
    }
    assert_eq!(inb(&world, other, 0), Some(0x22));
}

/// The hardware interrupts for what the holder wants, whoever had it before.
#[test]
fn the_interrupt_mask_comes_with_the_card() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    for _ in 0..10 {
        world.borrow_mut().pass(100_000);
    }
    let ask = |index| {
        while inb(&world, index, 0).is_none() {
            world.borrow_mut().pass(100_000);
        }
    };
    let wanted = [0x3f, 0];
    for index in [0, 1] {
        ask(index);
        outb(&world, index, 0x0f, wanted[index]);
    }
    for index in [0, 1, 0] {
        ask(index);
        assert_eq!(world.borrow().monitor.holder().map(ClientId::index), Some(index));
        // The end of its own transmission, good or bad, beside what the monitor itself wants.
        assert_eq!(world.borrow().hw.nic.regs.imr & 0x0a, wanted[index] & 0x0a);
    }
}

/// Who has the card undivided keeps it, be it that nothing is received or sent meanwhile, when another guest leaves.
#[test]
fn a_resting_sole_holder_keeps_the_card_when_another_leaves() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    outb(&world, 0, 0x0c, 0x20);
    let world = &mut *world.borrow_mut();
    let (holder, other, now) = (world.clients[0], world.clients[1], world.now);
    assert!(!world.hw.nic.regs.stopped());
    world.monitor.detach(&mut world.hw, other, now);
    assert_eq!(world.monitor.holder(), Some(holder));
    assert!(!world.hw.nic.regs.stopped());
}

#[test]
fn a_frame_wakes_its_owner_and_nobody_else() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    for _ in 0..10 {
        world.borrow_mut().pass(100_000);
    }
    for index in [1, 0] {
        world.borrow_mut().hw.arriving.push_back(frame(mac(index), OUTSIDE, 1, mark(index), 100));
        world.borrow_mut().pass(1_000);
        assert_eq!(world.borrow().lines, [index == 0, true]);
    }
}

#[test]
fn a_client_that_keeps_stopping_the_card_is_guarded() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    for _ in 0..10 {
        world.borrow_mut().pass(100_000);
    }
    let mut guarded = false;
    for _ in 0..40 {
        for (offset, value) in [(0, 0x22), (5, 60), (6, 0), (4, 0x40)] {
            while outb(&world, 1, offset, value).is_none() {
                world.borrow_mut().pass(10_000);
            }
        }
        guarded |= world.borrow().hooks[1].ports() & 1 != 0;
        outb(&world, 1, 0, 0x21);
        world.borrow_mut().pass(TIMING.watch);
        assert!(!world.borrow().hw.nic.regs.stopped(), "reception goes on for the other");
    }
    assert!(guarded);
}

#[test]
fn an_unknown_client_is_refused() {
    let world = World::new(1, 1, TIMING);
    let world = &mut *world.borrow_mut();
    let nobody = ClientId::from_index(5).unwrap();
    let mut bytes = [0; 8];
    let access = RegisterAccess::ReadString { offset: 0x10, width: 4, into: &mut bytes };
    assert_eq!(
        world.monitor.access(&mut world.hw, nobody, 1, access),
        Outcome::Refused(Refusal { value: u32::MAX, register: None, reaction: Reaction::Discard })
    );
    assert_eq!(bytes, [0xff; 8]);
    assert_eq!(world.monitor.hooks(nobody).ports(), u32::MAX);
    world.monitor.detach(&mut world.hw, nobody, 2);
}

/// Linux takes some frames, acknowledges, and leaves the rest in the ring for the next interrupt. With the ring full,
/// the next frame finds no room, and it is still the one that must interrupt: a download once stood still for good.
#[test]
fn a_frame_that_finds_no_room_interrupts_all_the_same() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    start(&world, 1);
    while world.borrow().monitor.holder() != Some(world.borrow().clients[1]) {
        world.borrow_mut().pass(10_000);
    }
    let send = |number| {
        let frame = frame(mac(1), OUTSIDE, number, mark(1), 1514);
        assert_eq!(world.borrow_mut().hw.nic.receive(&frame), sluice_nic::ne2000::Reception::Stored);
        world.borrow_mut().apply_changes();
    };
    let received = || {
        let world = world.borrow();
        world.monitor.counters(world.clients[1]).unwrap().rx_packets
    };
    // 51 pages, six for a frame.
    (0..8).for_each(send);
    assert_eq!(received(), 8);
    assert!(world.borrow().lines[1]);
    while outb(&world, 1, 7, 0xff).is_none() {
        world.borrow_mut().pass(10_000);
    }
    assert!(!world.borrow().lines[1]);
    send(8);
    assert_eq!(received(), 8, "there is no room");
    assert!(world.borrow().lines[1], "nobody would look again");
}

/// While one works and another waits, most accesses are not the time to look whether the device can change hands.
#[test]
fn the_time_to_look_comes_by_what_changed_or_by_the_clock() {
    let timing = Timing { min_hold: 100_000, grace: 200_000, ..TIMING };
    let world = World::new(2, 1, timing);
    start(&world, 0);
    start(&world, 1);
    let due = || world.borrow().monitor.is_due(world.borrow().now);
    // The second waits to go on; nobody is followed before the first has had its time.
    assert_eq!(outb(&world, 1, 7, 0xff), None);
    let (holder, began) = (world.borrow().monitor.holder(), world.borrow().now);
    assert_eq!(holder.map(ClientId::index), Some(0));
    let mut waits = 0;
    while !due() && world.borrow().monitor.holder() == holder && world.borrow().now < began + 1_000_000 {
        assert!(world.borrow().hooks[0].ports() & 1 == 0, "it is not followed yet");
        world.borrow_mut().now += 1_000;
        waits += 1;
    }
    assert!((50..=200).contains(&waits), "due after {waits} us");
    // Somebody asks: it is time at once, whatever the clock says.
    let client = world.borrow().clients[1];
    let World { monitor, hw, now, .. } = &mut *world.borrow_mut();
    monitor.poll(hw, *now);
    assert!(!monitor.is_due(*now));
    let access = RegisterAccess::Write { offset: 7, width: 1, value: 0xff };
    assert_eq!(monitor.access(hw, client, *now, access), Outcome::Wait);
    assert!(monitor.is_due(*now) && monitor.changes().poll);
}

/// Drivers unmask the card before they take interrupts of its line again.
#[test]
fn who_wrote_the_interrupt_mask_is_told_of_the_line_a_little_later() {
    for guests in [1, 2] {
        let world = World::new(guests, 1, TIMING);
        (0..guests).for_each(|index| start(&world, index));
        let write = |offset, value| {
            while outb(&world, 0, offset, value).is_none() {
                world.borrow_mut().pass(TIMING.max_wait);
            }
        };
        write(0, 0x22);
        world.borrow_mut().pass(TIMING.quiet);
        let quiet = || {
            let world = world.borrow();
            world.monitor.quiet_for(world.clients[0], world.now)
        };
        assert_eq!(quiet(), 0);
        // Neither another register, nor reading this one, nor its port on another page.
        write(7, 0x40);
        inb(&world, 0, 0x0f);
        write(0, 0x62);
        write(0x0f, 0xff);
        write(0, 0x22);
        assert_eq!(quiet(), 0, "{guests} guests");
        write(0x0f, 0);
        write(0x0f, 0x3f);
        assert_eq!(quiet(), TIMING.quiet, "{guests} guests");
        world.borrow_mut().now += TIMING.quiet - 1;
        assert_eq!(quiet(), 1);
        world.borrow_mut().now += 1;
        assert_eq!(quiet(), 0);
    }
}
