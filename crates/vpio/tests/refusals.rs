//! What a client sees of an access that is refused.

mod common;

use common::{TIMING, World};
use sluice_model::RegisterId;
use sluice_model::models::ne2000::id;
use sluice_vpio::{ClientId, Outcome, Reaction, Refusal, RegisterAccess};
use std::cell::RefCell;

const CMD: u16 = 0;
const TSR: u16 = 4;
const ISR: u16 = 7;
const RCR: u16 = 0x0c;
/// ISR: transmit error.
const TXE: u8 = 0x08;
/// TSR: collision out of its window.
const OWC: u32 = 0x80;
/// TSR: aborted.
const ABT: u32 = 0x08;
const PROMISCUOUS: u8 = 0x1c;

fn access(world: &RefCell<World>, index: usize, access: RegisterAccess<'_>) -> Outcome {
    let world = &mut *world.borrow_mut();
    let (client, now) = (world.clients[index], world.now);
    let outcome = world.monitor.access(&mut world.hw, client, now, access);
    world.apply_changes();
    outcome
}

fn write(world: &RefCell<World>, index: usize, offset: u16, value: u8) -> Outcome {
    access(world, index, RegisterAccess::Write { offset, width: 1, value: value.into() })
}

fn read(world: &RefCell<World>, index: usize, offset: u16) -> u32 {
    world.borrow_mut().io(index, RegisterAccess::Read { offset, width: 1 }).expect("it has the card")
}

/// A client that is on the network, with an interrupt for everything.
fn start(world: &RefCell<World>, index: usize) {
    let setup = [(0x0e, 0x49), (1, 0x4c), (2, 0x80), (3, 0x7f), (CMD, 0x61), (ISR, 0x4c), (CMD, 0x22)];
    for (offset, value) in
        [(CMD, 0x21)].into_iter().chain(setup).chain([(0x0d, 0), (0x0f, 0x3f), (RCR, 0x0c)])
    {
        while world.borrow_mut().io(index, RegisterAccess::Write { offset, width: 1, value }).is_none() {
            world.borrow_mut().pass(10_000);
        }
    }
}

fn react(world: &RefCell<World>, reaction: impl Fn(&str) -> Option<Reaction> + Copy) {
    let world = &mut *world.borrow_mut();
    world.clients.iter().for_each(|client| world.monitor.set_reactions(*client, reaction));
}

fn refused(register: RegisterId, reaction: Reaction) -> Outcome {
    Outcome::Refused(Refusal { value: 0xff, register: Some(register), reaction })
}

/// A world in which this many clients are on the network and the first has the card.
fn online(count: usize) -> std::rc::Rc<RefCell<World>> {
    let world = World::new(count, 1, TIMING);
    (0..count).rev().for_each(|index| start(&world, index));
    while world.borrow().monitor.holder().map(ClientId::index) != Some(0) {
        let _ = world.borrow_mut().io(0, RegisterAccess::Read { offset: ISR, width: 1 });
        world.borrow_mut().pass(10_000);
    }
    world
}

#[test]
fn a_register_has_a_reaction_of_its_own() {
    for count in [1, 2] {
        let world = online(count);
        assert_eq!(write(&world, 0, RCR, PROMISCUOUS), refused(id::RCR, Reaction::Discard));
        react(&world, |name| {
            Some(if name == "RSR/RCR" { Reaction::MachineCheck } else { Reaction::Interrupt })
        });
        assert_eq!(write(&world, 0, RCR, PROMISCUOUS), refused(id::RCR, Reaction::MachineCheck));
        assert!(!world.borrow().lines[0]);
        let wide = RegisterAccess::Read { offset: 0x0e, width: 2 };
        let Outcome::Refused(refusal) = access(&world, 0, wide) else { panic!("registers are bytes") };
        assert_eq!((refusal.value, refusal.register), (0xffff, Some(id::DCR)));
        assert_eq!(refusal.reaction, Reaction::Interrupt);
        assert!(world.borrow().lines[0], "it interrupts at once");
        assert_eq!(world.borrow().monitor.counters(world.borrow().clients[0]).unwrap().refused, 3);
    }
}

#[test]
fn the_card_reports_an_error_until_that_is_acknowledged() {
    for count in [1, 2] {
        let world = online(count);
        let quiet = world.borrow().hooks[0];
        react(&world, |_| Some(Reaction::Interrupt));
        assert_eq!(read(&world, 0, ISR), 0);
        assert_eq!(write(&world, 0, RCR, PROMISCUOUS), refused(id::RCR, Reaction::Interrupt));
        assert!(world.borrow().lines[0]);
        assert_eq!((read(&world, 0, ISR), read(&world, 0, TSR)), (TXE.into(), OWC));
        // The end of the interrupt is not the end of its cause.
        world.borrow_mut().end_of_interrupt(0);
        assert!(world.borrow().lines[0]);
        // A mask holds it back.
        assert_eq!(write(&world, 0, 0x0f, 0), Outcome::Done(0));
        assert!(!world.borrow().lines[0]);
        assert_eq!(write(&world, 0, 0x0f, 0x3f), Outcome::Done(0));
        assert_eq!(write(&world, 0, ISR, TXE), Outcome::Done(0));
        assert!(!world.borrow().lines[0]);
        assert_eq!(read(&world, 0, ISR), 0);
        assert_eq!(world.borrow().hooks[0], quiet, "what tells of it is direct again");
        // Nobody else was told.
        assert!(!world.borrow().lines[1..].contains(&true));
    }
}

#[test]
fn an_error_outlasts_a_handoff() {
    let world = World::new(2, 1, TIMING);
    start(&world, 0);
    react(&world, |_| Some(Reaction::Interrupt));
    assert_eq!(write(&world, 0, RCR, PROMISCUOUS), refused(id::RCR, Reaction::Interrupt));
    start(&world, 1);
    while world.borrow().monitor.holder().map(ClientId::index) != Some(1) {
        let _ = world.borrow_mut().io(1, RegisterAccess::Read { offset: ISR, width: 1 });
        world.borrow_mut().pass(100_000);
    }
    assert!(world.borrow().lines[0] && !world.borrow().lines[1]);
    while write(&world, 0, ISR, TXE) == Outcome::Wait {
        world.borrow_mut().pass(10_000);
    }
    assert!(!world.borrow().lines[0]);
}

#[test]
fn a_reset_clears_it() {
    let world = online(1);
    react(&world, |_| Some(Reaction::Interrupt));
    write(&world, 0, RCR, PROMISCUOUS);
    read(&world, 0, 0x1f);
    assert!(!world.borrow().lines[0]);
    assert_eq!(read(&world, 0, ISR), 0x80);
}

#[test]
fn the_lock_of_the_eeprom_is_refused_on_line_and_off() {
    for before in [true, false] {
        let world = if before { World::new(1, 1, TIMING) } else { online(1) };
        react(&world, |name| (name == "9346CR").then_some(Reaction::MachineCheck));
        write(&world, 0, CMD, if before { 0xe1 } else { 0xe2 });
        let Outcome::Refused(refusal) = write(&world, 0, 1, 0xc0) else { panic!("it unlocks") };
        assert_eq!(refusal.reaction, Reaction::MachineCheck);
        let name = |id: RegisterId| world.borrow().monitor.register_name(id.0.into());
        assert_eq!(refusal.register.and_then(name), Some("9346CR"));
    }
}

#[test]
fn a_transmission_that_is_refused_fails_unless_it_is_to_be_discarded() {
    for (wanted, reaction) in [
        (None, Reaction::Interrupt),
        (Some(Reaction::Discard), Reaction::Discard),
        (Some(Reaction::MachineCheck), Reaction::MachineCheck),
    ] {
        let world = online(2);
        react(&world, |name| if name == "CMD" { wanted } else { None });
        // Where the others' frames are received.
        for (offset, value) in [(5, 100), (6, 0), (TSR, 0x80)] {
            assert_eq!(write(&world, 0, offset, value), Outcome::Done(0));
        }
        assert_eq!(write(&world, 0, CMD, 0x26), refused(id::CMD, reaction));
        assert!(world.borrow().hw.sent.is_empty());
        assert_eq!(world.borrow().lines[0], reaction == Reaction::Interrupt);
        if reaction == Reaction::Interrupt {
            assert_eq!((read(&world, 0, ISR), read(&world, 0, TSR)), (TXE.into(), ABT));
        }
        assert_eq!(read(&world, 0, CMD), 0x22);
    }
}
