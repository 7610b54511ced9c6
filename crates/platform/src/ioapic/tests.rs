//! The I/O APIC against its datasheet.

use super::*;
use proptest::prelude::*;

fn write(ioapic: &mut IoApic, register: u8, value: u32) -> WriteEffect {
    assert_eq!(ioapic.mmio_write(direct::SELECT, register.into()), WriteEffect::None);
    ioapic.mmio_write(direct::WINDOW, value)
}

fn read(ioapic: &mut IoApic, register: u8) -> u32 {
    let _ = ioapic.mmio_write(direct::SELECT, register.into());
    ioapic.mmio_read(direct::WINDOW)
}

/// Programs a pin, destination first.
fn program(ioapic: &mut IoApic, pin: u8, low: u32, dest: u8) -> Option<Message> {
    let _ = write(ioapic, 0x11 + pin * 2, u32::from(dest) << 24);
    match write(ioapic, 0x10 + pin * 2, low) {
        WriteEffect::None => None,
        WriteEffect::Deliver(message) => Some(message),
        other => panic!("{other:?}"),
    }
}

const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

#[test]
fn datasheet_3_2_registers() {
    let mut ioapic = IoApic::new(5);
    assert_eq!(read(&mut ioapic, 0), 5 << 24);
    assert_eq!(read(&mut ioapic, 1), 0x0017_0020);
    assert_eq!(read(&mut ioapic, 2), 5 << 24);
    let _ = write(&mut ioapic, 0, 0xFFFF_FFFF);
    assert_eq!(read(&mut ioapic, 0), 0xF << 24);
    assert_eq!(read(&mut ioapic, 0x10), MASKED);
    let _ = program(&mut ioapic, 23, u32::MAX, 0xFF);
    assert_eq!((read(&mut ioapic, 0x3E), read(&mut ioapic, 0x3F)), (0x1_AFFF, 0xFF00_0000));
    assert_eq!(read(&mut ioapic, 0x40), 0, "no pin 24");
    assert_eq!(write(&mut ioapic, 0x40, 0), WriteEffect::None);
    assert_eq!(ioapic.mmio_read(direct::SELECT), 0x40);
    assert_eq!(ioapic.mmio_read(0x20), 0);
}

#[test]
fn datasheet_3_2_4_edge() {
    let mut ioapic = IoApic::new(0);
    assert_eq!(program(&mut ioapic, 4, 0x34, 2), None);
    let message = Message { dest: 2, logical: false, vector: 0x34, level: false, lowest_priority: false };
    assert_eq!(ioapic.set_line(4, true), Some(message));
    assert_eq!(ioapic.set_line(4, true), None, "no edge");
    assert_eq!(ioapic.set_line(4, false), None);
    assert_eq!(ioapic.set_line(4, true), Some(message));
    assert_eq!(ioapic.eoi(0x34), Eois::default());
    let _ = ioapic.set_line(4, false);
    let _ = program(&mut ioapic, 4, 0x34 | MASKED, 2);
    assert!(ioapic.is_masked(4));
    assert_eq!(ioapic.set_line(4, true), None);
    assert_eq!(program(&mut ioapic, 4, 0x34, 2), None, "an edge on a masked pin is lost");
}

#[test]
fn datasheet_3_2_4_level_and_remote_irr() {
    let mut ioapic = IoApic::new(0);
    let _ = program(&mut ioapic, 16, 0x51 | LEVEL | 1 << 11 | 1 << 8, 3);
    let message = Message { dest: 3, logical: true, vector: 0x51, level: true, lowest_priority: true };
    assert_eq!(ioapic.set_line(16, true), Some(message));
    assert!(ioapic.is_in_service(16));
    assert_eq!(read(&mut ioapic, 0x30) & 1 << 14, 1 << 14);
    assert_eq!(ioapic.set_line(16, true), None, "waits for the end of the first");
    let eois = ioapic.eoi(0x51);
    assert_eq!((eois.pins, &eois.redeliver[..]), (1 << 16, &[message][..]), "still asserted");
    assert_eq!(ioapic.set_line(16, false), None);
    let eois = ioapic.eoi(0x51);
    assert_eq!((eois.pins, eois.redeliver.len()), (1 << 16, 0));
    assert_eq!(ioapic.eoi(0x51), Eois::default(), "nothing waits");
}

#[test]
fn datasheet_3_2_4_unmasking_an_asserted_line_delivers() {
    let mut ioapic = IoApic::new(0);
    assert_eq!(program(&mut ioapic, 17, 0x52 | LEVEL | MASKED, 1), None);
    assert_eq!(ioapic.set_line(17, true), None);
    assert_eq!(program(&mut ioapic, 17, 0x52 | LEVEL, 1).unwrap().vector, 0x52);
    // Masked while in service: the end is seen, and nothing more comes until it is unmasked.
    assert_eq!(program(&mut ioapic, 17, 0x52 | LEVEL | MASKED, 1), None);
    assert_eq!(ioapic.eoi(0x52), Eois { pins: 1 << 17, ..Eois::default() });
    assert!(program(&mut ioapic, 17, 0x52 | LEVEL, 1).is_some());
}

#[test]
fn edge_mode_forgets_the_remote_irr() {
    let mut ioapic = IoApic::new(0);
    let _ = program(&mut ioapic, 18, 0x53 | LEVEL, 1);
    let _ = ioapic.set_line(18, true);
    let _ = program(&mut ioapic, 18, 0x53 | MASKED, 1);
    assert!(!ioapic.is_in_service(18));
    assert!(program(&mut ioapic, 18, 0x53 | LEVEL, 1).is_some());
}

#[test]
fn eoi_register_ends_every_pin_of_the_vector() {
    let mut ioapic = IoApic::new(0);
    for pin in [19, 20] {
        let _ = program(&mut ioapic, pin, 0x54 | LEVEL, 1);
        let _ = ioapic.set_line(pin, true);
    }
    let _ = ioapic.set_line(19, false);
    assert_eq!(ioapic.mmio_write(direct::EOI, 0x54), WriteEffect::Eoi(0x54));
    let eois = ioapic.eoi(0x54);
    assert_eq!((eois.pins, eois.redeliver.len()), (3 << 19, 1));
}

#[test]
fn modes_without_a_vector_deliver_nothing() {
    let mut ioapic = IoApic::new(0);
    for mode in 2..8 {
        let _ = program(&mut ioapic, 1, 0x55 | mode << 8, 0);
        assert_eq!(ioapic.set_line(1, true), None);
        let _ = ioapic.set_line(1, false);
    }
    let _ = program(&mut ioapic, 1, 0x0F, 0);
    assert_eq!(ioapic.set_line(1, true), None, "illegal vector");
}

proptest! {
    /// Whatever software does, a level-triggered pin is never both asserted, unmasked, able to deliver, and
    /// neither delivered nor waiting: no interrupt is lost.
    #[test]
    fn no_level_interrupt_is_lost(
        steps in proptest::collection::vec((0u8..5, 0u8..26, any::<u32>()), 1..200),
    ) {
        let mut ioapic = IoApic::new(0);
        for (kind, pin, value) in steps {
            match kind {
                0 => { let _ = ioapic.set_line(pin, value & 1 != 0); }
                1 => { let _ = write(&mut ioapic, 0x10 + pin * 2, value & 0x1_88FF); }
                2 => { let _ = write(&mut ioapic, value as u8, value.rotate_left(8)); }
                3 => { let _ = ioapic.eoi(value as u8); }
                _ => { let _ = ioapic.mmio_write(value & 0x7F, value.rotate_left(8)); }
            }
            let _ = ioapic.mmio_read(value & 0x7F);
            for (pin, entry) in ioapic.table.iter().enumerate() {
                let asserted = ioapic.lines & 1 << pin != 0;
                let deliverable = entry.is_level() && !entry.is_masked() && entry.message().is_some();
                prop_assert!(!(asserted && deliverable) || ioapic.is_in_service(pin as u8));
                prop_assert!(entry.is_level() || !ioapic.is_in_service(pin as u8));
            }
        }
    }
}

/// A level that its handler does not silence is held back after a while, so that the guest gets on, and comes again when it is
/// released; a line that goes down in between begins anew.
#[test]
fn a_level_without_end_is_held_back() {
    let mut ioapic = IoApic::new(0);
    let _ = program(&mut ioapic, 9, LEVEL | 0x39, 0);
    assert!(ioapic.set_line(9, true).is_some());
    for round in 1..STORM {
        let eois = ioapic.eoi(0x39);
        assert!(!eois.held && eois.redeliver.len() == 1, "{round}");
    }
    let last = ioapic.eoi(0x39);
    assert!(last.held && last.redeliver.is_empty());
    assert_eq!(ioapic.set_line(9, true), None, "nothing new");
    assert_eq!(ioapic.release().len(), 1);
    assert!(ioapic.release().is_empty() && !ioapic.eoi(0x39).held);

    for _ in 0..3 {
        // Its handler was heard.
        let _ = ioapic.set_line(9, false);
        let _ = ioapic.eoi(0x39);
        assert!(ioapic.set_line(9, true).is_some());
        for _ in 0..STORM - 1 {
            assert!(!ioapic.eoi(0x39).held);
        }
    }
    // Held back, and silenced before it is released: gone.
    while !ioapic.eoi(0x39).held {}
    let _ = ioapic.set_line(9, false);
    assert!(ioapic.release().is_empty());
    assert!(ioapic.set_line(9, true).is_some());

    // What is to come later waits, but nothing that is there already, and is gone if it falls meanwhile.
    ioapic.hold(9);
    assert_eq!(ioapic.eoi(0x39).redeliver.len(), 1, "it was up");
    let _ = ioapic.set_line(9, false);
    let _ = ioapic.eoi(0x39);
    ioapic.hold(9);
    ioapic.hold(200);
    assert_eq!(ioapic.set_line(9, true), None);
    assert_eq!(ioapic.release().len(), 1);
    let _ = ioapic.set_line(9, false);
    let _ = ioapic.eoi(0x39);
    ioapic.hold(9);
    assert_eq!(ioapic.set_line(9, true), None);
    let _ = ioapic.set_line(9, false);
    assert!(ioapic.release().is_empty());
}

#[test]
fn chapter_3_widths() {
    let mut apic = IoApic::new(7);
    assert_eq!(apic.mmio_store(0x00, &[0x01]), WriteEffect::None);
    let load = |apic: &IoApic, offset, len: usize| {
        let mut buffer = [0xee; 16];
        apic.mmio_load(offset, &mut buffer[..len]);
        buffer
    };
    assert_eq!(load(&apic, 0x10, 4)[..4], VERSION.to_le_bytes(), "the select register has eight bits");
    assert_eq!(load(&apic, 0x12, 1)[..1], [0x17]);
    assert_eq!(load(&apic, 0x12, 4)[..4], [0x17, 0, 0, 0]);
    assert_eq!(load(&apic, 0x10, 8)[..8], u64::from(VERSION).to_le_bytes());
    assert_eq!(load(&apic, 0x0e, 4)[..4], [0, 0, 0x20, 0]);
    // The low half of pin 0's entry: a part of it is not written, and so does not unmask it.
    let _ = apic.mmio_store(0x00, &[0x10, 0xff]);
    for (offset, len) in [(0x10, 1), (0x10, 2), (0x10, 3), (0x11, 4), (0x0c, 8), (0x14, 4)] {
        assert_eq!(apic.mmio_store(offset, &[0x40; 8][..len]), WriteEffect::None);
        assert!(apic.is_masked(0), "{len} bytes at {offset:#x}");
    }
    let _ = apic.mmio_store(0x10, &[0x40, 0, 0, 0, 9, 9, 9, 9]);
    assert!(!apic.is_masked(0));
    assert_eq!(apic.mmio_store(0x40, &[0x40]), WriteEffect::None);
    assert_eq!(apic.mmio_store(0x40, &[0x40, 0, 0, 0]), WriteEffect::Eoi(0x40));
}

/// An end of interrupt is of the pins that have this vector, and of no other that is in service.
#[test]
fn an_end_of_interrupt_finds_its_pins() {
    let mut ioapic = IoApic::new(0);
    for (pin, vector) in [(3, 0x51), (9, 0x52), (23, 0x51)] {
        let _ = program(&mut ioapic, pin, vector | LEVEL, 0);
        assert!(ioapic.set_line(pin, true).is_some());
    }
    assert_eq!([0x50, 0x51, 0x52].map(|vector| ioapic.serving(vector)), [0, 1 << 3 | 1 << 23, 1 << 9]);
    assert_eq!(
        [3, 8, 9, 23, 24, 200].map(|pin| ioapic.is_in_service(pin)),
        [true, false, true, true, false, false]
    );
    assert_eq!(ioapic.set_line(3, false), None);
    let eois = ioapic.eoi(0x51);
    assert_eq!((eois.pins, eois.redeliver.len()), (1 << 3 | 1 << 23, 1), "pin 23 is still asserted");
    assert_eq!([0x51, 0x52].map(|vector| ioapic.serving(vector)), [1 << 23, 1 << 9]);
    // Forgotten by way of edge mode.
    let _ = program(&mut ioapic, 9, 0x52, 0);
    assert_eq!(ioapic.serving(0x52), 0);
}
