//! What one driver leaves in the card for the next, and how a monitor that shares the card gets rid of it.
//!
//! CTRL.RST does nothing in QEMU's card, so all that registers do not show stays: a packet without an end, and the header that
//! segmentation repeats. A driver that changes the context in mid-packet has the old header sent, and with the PHY looping
//! back it reads it.

use super::*;

/// What the first driver sends.
const SECRET: u8 = 0xa5;

/// The first driver sends a segmented packet, begins another one and is interrupted.
fn used() -> Machine {
    let mut machine = Machine::started();
    machine.memory.at_mut(OUT, 1000).unwrap().fill(SECRET);
    machine.context(TSE, 1000, 255, 500);
    machine.push(OUT, DATA | TSE | EOP | 1000, 0);
    machine.push(OUT, DATA | 100, 0);
    machine.ring();
    machine.memory.at_mut(OUT, 1000).unwrap().fill(0);
    machine
}

/// The second one looks for what is there. Returns how many bytes of the first it reads.
fn spy(machine: &mut Machine) -> usize {
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x5140);
    machine.set(reg::RCTL, 8 | 16 | 2);
    machine.card.advance(9_000_000_000);
    // The end of a packet that was begun.
    machine.push(OUT, DATA | EOP | 20, 0);
    // More than the header to come, then a header of which none was seen.
    machine.context(TSE, 1000, 0, 600);
    machine.push(OUT, DATA | TSE | 300, 0);
    machine.context(TSE, 1000, 255, 100);
    machine.push(OUT, DATA | TSE | EOP | 100, 0);
    machine.ring();
    machine.memory.at(IN, 0x8000).unwrap().iter().filter(|byte| **byte == SECRET).count()
}

/// With the receiver off and the PHY looping back, what is sent goes nowhere: ends the packet, fills header and buffer
/// with zeros. The ring is the monitor's.
fn scrub(machine: &mut Machine) {
    machine.set(reg::RCTL, 0);
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x5140);
    machine.push(OUT, EOP, 0);
    machine.context(TSE, 0, 255, 1);
    machine.push(IN, DATA | TSE | EOP | 256, 0);
    machine.push(IN, EOP | 0xffff, 0);
    assert!(machine.ring().is_empty());
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x1140);
}

#[test]
fn reset_leaves_the_first_drivers_bytes_to_the_second() {
    let mut machine = used();
    machine.set(reg::CTRL, 1 << 26);
    // All of both, but for the two lengths that segmentation puts in.
    assert_eq!(spy(&mut machine), 100 + 255 - 4);
}

#[test]
fn scrubbing_leaves_nothing() {
    let mut machine = used();
    scrub(&mut machine);
    assert_eq!(spy(&mut machine), 0);
}
