//! Which reads a copy can answer: what the model says of the cards' registers against the cards.

use super::MAC;
use super::beside::{Beside, Card};
use sluice_model::models::e1000;
use sluice_model::{DeviceEvent, Effects, Questions, Register, RegisterId, Seen, Tracker, hook_set};
use sluice_nic::{E1000, Rtl8139};

/// An e1000 that has counted and has causes pending.
fn busy() -> Beside<E1000> {
    let mut beside = Beside::new(E1000::new(MAC));
    for offset in (0x4000..0x4100).step_by(4) {
        beside.card.regs.set(offset, 5);
    }
    beside.write(0xc8, 4, 0x84);
    beside
}

/// While MIRROR leaves a page's reads unhooked, no read of it changes the card.
#[test]
fn unhooked_reads_of_an_e1000_change_nothing() {
    let mut beside = busy();
    for round in 0..2 {
        let hooks = beside.hooks(Questions::MIRROR);
        for offset in (0..0x2_0000).step_by(4).filter(|offset| !hooks.reads(offset >> 12)) {
            let before = beside.card.regs.clone();
            beside.card.read(offset, 4);
            assert!(beside.card.regs == before, "reading {offset:x}, round {round}");
        }
        // The second round is in the state after ICR was read.
        assert_eq!(hooks.reads(0), round == 0);
        beside.read(0xc0, 4);
    }
}

/// And the hooked ones are hooked for something: reading does change the card.
#[test]
fn what_consumes_is_so_marked() {
    let mut card = busy().card;
    for (index, register) in e1000::MODEL.registers.iter().enumerate() {
        let changed = (register.first..=register.last).step_by(4).any(|offset| {
            let before = card.regs.clone();
            card.read(offset, 4);
            card.regs != before
        });
        assert_eq!(changed, register.read.contains(Effects::CONSUMES), "{} ({index})", register.name);
    }
}

/// Of an RTL8139 only the timer moves by itself; the model knows when it is in use.
#[test]
fn only_the_timer_changes_by_itself() {
    let mut beside = Beside::new(Rtl8139::new(MAC));
    assert!(!beside.hooks(Questions::MIRROR).reads(0));
    beside.write(0x48, 4, 0);
    assert!(beside.hooks(Questions::MIRROR).reads(0));
    let before: Vec<u32> = (0..0x40).map(|word| Card::read(&mut beside.card, word * 4, 4)).collect();
    beside.card.advance(1_000_000);
    for (word, before) in before.into_iter().enumerate() {
        let offset = word as u32 * 4;
        let changes = |register: &Register| register.read.contains(Effects::CHANGES);
        let marked =
            Rtl8139::MODEL.find(offset, 0).and_then(|id| Rtl8139::MODEL.register(id)).is_some_and(changes);
        assert_eq!(Card::read(&mut beside.card, offset, 4) != before, marked, "{offset:x}");
    }
    beside.write(0x37, 1, 0x10);
    assert!(!beside.hooks(Questions::MIRROR).reads(0), "a reset ends its use");
    beside.write(0x54, 4, 1000);
    assert!(beside.hooks(Questions::MIRROR).reads(0));
}

/// What takes time on a real card is over when the driver has read that it is; until then the reads that tell are
/// followed, and the card does not rest.
#[test]
fn eeprom_and_phy_are_followed_to_their_end() {
    // Start, then the register that tells, read until it does.
    for (offset, start) in [(0x14, 0x101), (0x20, 0x0821_0000)] {
        let mut beside = Beside::new(E1000::new(MAC));
        assert!(beside.tracker.resting(E1000::MODEL) && !beside.hooks(Questions::FOLLOW).reads(0));
        beside.write(offset, 4, start);
        assert!(!beside.tracker.resting(E1000::MODEL) && beside.hooks(Questions::FOLLOW).reads(0));
        beside.tracker.step(E1000::MODEL, Seen::Read(E1000::MODEL.find(offset, 0).unwrap(), 0));
        assert!(!beside.tracker.resting(E1000::MODEL), "not done yet");
        beside.read(offset, 4);
        assert!(beside.tracker.resting(E1000::MODEL));
    }
    let mut beside = Beside::new(E1000::new(MAC));
    beside.write(0x10, 4, 0x42);
    assert!(!beside.tracker.resting(E1000::MODEL));
    beside.write(0x10, 4, 0x40);
    assert!(beside.tracker.resting(E1000::MODEL));
}

/// Setting a cause makes ICR worth reading, before anybody has looked.
#[test]
fn a_cause_that_is_set_is_pending_at_once() {
    let mut tracker = Tracker::new();
    assert!(tracker.step(E1000::MODEL, Seen::WriteWord(e1000::id::ICS, 4)));
    assert!(hook_set(E1000::MODEL, tracker.states(), Questions::MIRROR).reads(0));
}

/// Following begins where the registers say it is.
#[test]
fn what_registers_tell_is_so() {
    let mut beside = Beside::new(Rtl8139::new(MAC));
    for (offset, width, value) in [(0x50, 1, 0xc0), (0xe0, 2, 3), (0x37, 1, 0x0c)] {
        beside.write(offset, width, value);
    }
    let told = |card: &Rtl8139| Tracker::told(Rtl8139::MODEL, &mut |id: RegisterId| card.register(id, 0));
    let mut tracker = told(&beside.card);
    // Whether anything is left in the ring only memory knows; and nobody knows of the timer.
    tracker.step(Rtl8139::MODEL, Seen::Device(DeviceEvent::Drained));
    assert_eq!(tracker.states()[..6], beside.tracker.states()[..6]);
    beside.write(0x37, 1, 0x10);
    assert_eq!(told(&beside.card).states()[..6], beside.tracker.states()[..6]);
}
