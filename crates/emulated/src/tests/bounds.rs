//! What one call may do for a card, however its guest filled its rings: exact bounds, nothing lost, and nothing of it in
//! anybody else's call.

use super::*;
use sluice_nic::e1000::SKIPPED;
use sluice_nic::rtl8139::registers::reg as rtl8139;

const RING: u32 = 0x1_0000;
const DATA: u32 = 0x2_0000;
/// Descriptors of the ring.
const MANY: u32 = 1000;

/// Of an 82540EM's descriptors.
const EOP: u128 = 1 << 88;
const REPORT: u128 = 1 << 91;
const EXTENDED: u128 = 1 << 93;
const DATA_KIND: u128 = 1 << 84;
const SEGMENT: u128 = 1 << 90;
/// A context for segments of one byte behind a header of 14.
const CONTEXT: u128 = EXTENDED | SEGMENT | 0xf_ffff << 64 | 14 << 104 | 1 << 112;

/// What a guest has its card do, and what that costs at most in transfers of a descriptor.
struct Attack {
    name: &'static str,
    model: NicModel,
    prepare: fn(&mut Machine),
    ring: fn(&mut Machine),
}

fn e1000_ring(machine: &mut Machine, first: u128, others: u128) {
    for index in 0..MANY {
        let descriptor = if index == 0 { first } else { others };
        driver_memory(machine, RING + 16 * index, &descriptor.to_le_bytes());
    }
    driver_memory(machine, DATA, &frame(ROUTER, mac(0), 60, 1));
    machine.drive(0, |card| {
        for (offset, value) in [(0x3800, BUS + RING), (0x3808, 1008 * 16), (0x3810, 0)] {
            card.registers.write(offset, 4, value);
        }
    });
}

fn e1000_doorbell(machine: &mut Machine) {
    machine.drive(0, |card| card.registers.write(0x3818, 4, MANY));
}

fn at(len: u128) -> u128 {
    u128::from(BUS + DATA) | len << 64 | REPORT
}

fn cplus_ring(machine: &mut Machine, kind: u32, bytes: &[u8]) {
    for index in 0..64 {
        let words = [1 << 31 | kind, 0, BUS + DATA, 0].map(u32::to_le_bytes);
        driver_memory(machine, RING + 16 * index, words.as_flattened());
    }
    driver_memory(machine, DATA, bytes);
    machine.drive(0, |card| {
        for (offset, width, value) in [
            (rtl8139::CPCR, 2, 3),
            (rtl8139::CR, 1, 0x0c),
            (rtl8139::TSAD, 4, BUS + RING),
            (rtl8139::TSAD + 4, 4, 0),
        ] {
            card.registers.write(offset, width, value);
        }
    });
}

fn cplus_doorbell(machine: &mut Machine) {
    machine.drive(0, |card| card.registers.write(rtl8139::TPPOLL, 1, 0x40));
}

/// An IPv4 datagram with 6,000 bytes of TCP.
fn large() -> Vec<u8> {
    let mut bytes = frame(ROUTER, mac(0), 6_054, 0);
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    bytes[16..18].copy_from_slice(&6_040u16.to_be_bytes());
    (bytes[23], bytes[46]) = (6, 0x50);
    bytes
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "descriptors without an end, 64 KiB each",
        model: NicModel::E1000,
        prepare: |machine| e1000_ring(machine, at(0xffff), at(0xffff)),
        ring: e1000_doorbell,
    },
    Attack {
        name: "packets of 64 KiB, which no wire takes",
        model: NicModel::E1000,
        prepare: |machine| e1000_ring(machine, at(0xffff) | EOP, at(0xffff) | EOP),
        ring: e1000_doorbell,
    },
    Attack {
        name: "descriptors of nothing",
        model: NicModel::E1000,
        prepare: |machine| e1000_ring(machine, at(0), at(0) | EOP),
        ring: e1000_doorbell,
    },
    Attack {
        name: "contexts",
        model: NicModel::E1000,
        prepare: |machine| e1000_ring(machine, CONTEXT | REPORT, CONTEXT | REPORT),
        ring: e1000_doorbell,
    },
    Attack {
        name: "segments of one byte",
        model: NicModel::E1000,
        prepare: |machine| {
            let data = at(400) | EXTENDED | DATA_KIND | SEGMENT | EOP;
            e1000_ring(machine, CONTEXT, data);
        },
        ring: e1000_doorbell,
    },
    Attack {
        name: "frames of 64 KiB, looped back into a ring without buffers",
        model: NicModel::E1000,
        prepare: |machine| {
            e1000_ring(machine, at(0xffff) | EOP, at(0xffff) | EOP);
            machine.drive(0, |card| {
                card.registers.write(0x20, 4, 1 << 26 | 1 << 21 | 0x5140);
                // Any frame of any length; a ring of zeros.
                card.registers.write(0x100, 4, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5);
                for (offset, value) in
                    [(0x2800, BUS + 0x3_8000), (0x2808, 0x4000), (0x2810, 0), (0x2818, 1000)]
                {
                    card.registers.write(offset, 4, value);
                }
            });
            (0..20).for_each(|_| machine.wait());
        },
        ring: e1000_doorbell,
    },
    Attack {
        name: "frames of 64 KiB in C+ mode",
        model: NicModel::Rtl8139,
        prepare: |machine| cplus_ring(machine, 3 << 28 | 0xffff, &frame(ROUTER, mac(0), 60, 1)),
        ring: cplus_doorbell,
    },
    Attack {
        name: "pieces without an end in C+ mode",
        model: NicModel::Rtl8139,
        prepare: |machine| cplus_ring(machine, 1 << 29 | 0xffff, &frame(ROUTER, mac(0), 60, 1)),
        ring: cplus_doorbell,
    },
    Attack {
        name: "large sends in segments of two bytes",
        model: NicModel::Rtl8139,
        prepare: |machine| cplus_ring(machine, 3 << 28 | 1 << 27 | 2 << 16 | 6_054, &large()),
        ring: cplus_doorbell,
    },
];

/// Bytes of one call: its budget, one more piece of at most 64 KiB, which may be looped back, and descriptors.
pub(super) const MOST_BYTES: usize = Budget::BYTES + 2 * 0x1_0000 + (Budget::STEPS + SKIPPED as usize) * 33;
/// Transfers of one call: for each step a descriptor read, its status written and a piece of it read; and a frame that
/// goes through a ring without buffers: a read and two writes each.
pub(super) const MOST_TRANSFERS: usize = 3 * Budget::STEPS + 3 * (SKIPPED as usize + 256);

#[test]
fn a_call_does_no_more_than_its_budget_and_nobody_does_it_for_another() {
    for attack in ATTACKS {
        let mut machine = Machine::new(NicModel::E1000, &[attack.model, NicModel::E1000]);
        machine.driver(0);
        let mut bystander = machine.driver(1);
        machine.takes = 400_000;
        (attack.prepare)(&mut machine);
        let moved = Rc::clone(&machine.guests.0[0].1);
        let bounded = |what: &str| {
            let moved = moved.take();
            assert!(moved.bytes <= MOST_BYTES, "{}: {what} moved {moved:?}", attack.name);
            assert!(moved.transfers <= MOST_TRANSFERS, "{}: {what} moved {moved:?}", attack.name);
            moved
        };
        moved.take();
        (attack.ring)(&mut machine);
        assert_ne!(bounded("the doorbell"), Moved::default(), "{}", attack.name);
        let mut resumed = 0;
        while let Some(due) = machine.resumes[0] {
            assert!(due >= machine.now + machine.takes, "{}: it pauses as long as it took", attack.name);
            // Whatever else happens until then and after it, to whomever, nothing is done for it.
            for now in [machine.now, due] {
                machine.now = now;
                let mark = frame(ROUTER, mac(1), 60, resumed);
                machine.send(1, &mut *bystander, &mark);
                machine.with(|shared, env| shared.interrupt(env));
                machine.with(|shared, env| shared.poll(env));
                if now < due {
                    (attack.ring)(&mut machine);
                }
                assert_eq!(moved.take(), Moved::default(), "{}: in another's call", attack.name);
            }
            machine.resume_if_due(0);
            bounded("going on");
            resumed += 1;
            assert!(resumed < 100_000, "{}", attack.name);
            (0..40).for_each(|_| machine.physical.after());
            machine.physical.wire.clear();
        }
        assert!(resumed > 1, "{}: that was no attack", attack.name);
        assert!(!machine.shared.vnic(machine.ports[0].0).unwrap().nic.is_sending(), "{}", attack.name);
    }
}

/// A receiver whose ring has no buffers costs hundreds of descriptors a frame. Whoever sends to it does that for one
/// frame; the others wait until it has time itself.
#[test]
fn a_receiver_that_makes_work_does_it_itself() {
    let mut machine = Machine::new(NicModel::E1000, &[NicModel::E1000, NicModel::E1000]);
    machine.driver(0);
    let mut sender = machine.driver(1);
    machine.drive(0, |card| {
        for (offset, value) in [(0x2800, BUS + 0x3_0000), (0x2808, 0x4000), (0x2810, 0), (0x2818, 1000)] {
            card.registers.write(offset, 4, value);
        }
    });
    let moved = Rc::clone(&machine.guests.0[0].1);
    let mut lost = 0;
    for number in 0..8 {
        moved.take();
        let broadcast = frame(ALL, mac(1), 60, number);
        assert_eq!(machine.send(1, &mut *sender, &broadcast), Sent::Done);
        lost += moved.get().transfers;
        machine.physical.after();
    }
    assert!((1..=3 * (SKIPPED as usize + 1)).contains(&lost), "{lost}");
    machine.settle();
    assert_eq!(machine.counters(0).rx_dropped, 8, "they had no buffer, and were counted");
}
