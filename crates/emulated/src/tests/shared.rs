//! Cards shared by virtual passthrough: mirrors, and the physical card while a guest owns it.
//!
//! Every read that a mirror serves is compared with what an exit would have given (`GuestCard`).

use super::*;
use sluice_model::{Seen, Tracker, models};

/// A physical card and guests' cards that can be shared by vpio, and which of them are driven in C+ mode.
type Pair = (NicModel, [NicModel; 2], [bool; 2]);
const SHARED: [Pair; 3] = [
    (NicModel::E1000, [NicModel::E1000; 2], [false; 2]),
    (NicModel::Rtl8139, [NicModel::Rtl8139, NicModel::Rtl8139c], [false; 2]),
    (NicModel::Rtl8139, [NicModel::Rtl8139; 2], [true, false]),
];

impl Machine {
    pub(super) fn shared(physical: NicModel, models: &[NicModel], policy: DirectPolicy) -> Self {
        let mut machine = Self::new(physical, models);
        for (port, _) in machine.ports.clone() {
            let words = Words(Arc::new(Mutex::new(vec![0; PAGES * 1024])));
            machine.mirrors.push((words.clone(), Shown::default()));
            machine.with(|shared, _| {
                shared.show(port, Box::new(words));
                shared.allow(port, policy);
            });
        }
        machine
    }

    /// The driver of a guest of a pair.
    pub(super) fn driver_in(&mut self, guest: usize, cplus: bool) -> Box<dyn Uplink> {
        if cplus { self.online(guest, cplus::Cplus::boxed()) } else { self.driver(guest) }
    }

    /// Until a card whose receiver was just switched on receives.
    pub(super) fn wait(&mut self) {
        (0..10_500).for_each(|_| self.physical.after());
        self.settle();
    }

    pub(super) fn holder(&self) -> Option<usize> {
        let holder = self.shared.holder()?;
        self.ports.iter().position(|(port, _)| *port == holder)
    }

    /// A frame out and one in.
    pub(super) fn check(&mut self, guest: usize, driver: &mut dyn Uplink, number: u32) {
        let sent = frame(ROUTER, mac(guest), 700, number);
        assert_eq!(self.send(guest, driver, &sent), Sent::Done);
        self.wait();
        assert_eq!(marks(&core::mem::take(&mut self.physical.wire)), [number]);
        self.physical.arriving.push_back(frame(mac(guest), ROUTER, 1500, number));
        self.wait();
        assert_eq!(marks(&self.take(guest, driver)), [number]);
    }
}

#[test]
fn reads_of_a_mirror_are_those_of_the_card() {
    for (physical, models, cplus) in SHARED {
        let mut machine = Machine::shared(physical, &models, DirectPolicy::Never);
        let mut drivers = [0, 1].map(|guest| machine.driver_in(guest, cplus[guest]));
        for number in 0..6 {
            let guest = number as usize % 2;
            machine.check(guest, &mut *drivers[guest], number);
            let description = describe(physical);
            let model = models::find_master(description.vendor, description.device).unwrap();
            for register in model.registers.iter().filter(|register| register.last < 0x6000) {
                for offset in (register.first..register.last).step_by(register.width.into()) {
                    machine.drive(guest, |card| card.registers.read(offset as u16, register.width));
                }
            }
        }
        assert_eq!(machine.shared.handoffs().all, 0, "nothing contains the card");
    }
}

#[test]
fn a_cause_is_seen_by_an_exit_and_only_once() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
    let mut driver = machine.driver(0);
    let icr = |machine: &mut Machine| machine.drive(0, |card| card.registers.read(0xc0, 4));
    machine.check(0, &mut *driver, 1);
    icr(&mut machine);
    assert!(machine.mirrors[0].1.direct[0].contains(Direction::READ), "nothing to take away");
    machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, 2));
    machine.settle();
    assert!(!machine.mirrors[0].1.direct[0].contains(Direction::READ));
    assert_ne!(icr(&mut machine) & 0x80, 0);
    assert_eq!(icr(&mut machine), 0);
    assert!(machine.mirrors[0].1.direct[0].contains(Direction::READ));
}

/// While causes come often, the page where they are read is left as it is, and is readable a while after the last.
#[test]
fn frequent_causes_do_not_change_what_is_mapped() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
    let mut driver = machine.driver(0);
    machine.check(0, &mut *driver, 1);
    let port = machine.ports[0].0;
    let readable = |machine: &Machine| machine.shared.shown(port).direct[0].contains(Direction::READ);
    let icr = Register { io: false, offset: 0xc0 };
    let read = |machine: &mut Machine, at: u64| {
        machine.with(|shared, env| {
            env.now = at;
            let mut word = [0; 4];
            shared.read(env, port, icr, 4, &mut word);
            u32::from_le_bytes(word)
        })
    };
    let start = machine.now + 10_000_000;
    read(&mut machine, start);
    read(&mut machine, start);
    assert!(readable(&machine), "no cause for long");
    machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, 2));
    machine.settle();
    assert!(!readable(&machine));
    let start = machine.now + 20_000_000;
    // An access with the cause still there says when that was.
    machine.with(|shared, env| {
        env.now = start;
        let mut word = [0; 4];
        shared.read(env, port, Register { offset: 0x8, ..icr }, 4, &mut word);
    });
    assert_ne!(read(&mut machine, start) & 0x80, 0);
    assert!(!readable(&machine), "more may come at once");
    assert_eq!(read(&mut machine, start + 999_999), 0);
    assert!(!readable(&machine));
    assert_eq!(read(&mut machine, start + 1_000_000), 0);
    assert!(readable(&machine));
}

/// A driver may lay out its ring anew while the receiver is on, and no write of that exits.
#[test]
fn a_ring_can_move_without_an_exit() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
    let mut driver = machine.driver(0);
    machine.check(0, &mut *driver, 1);
    let before = machine.counters(0).instructions;
    for (ring, at) in [(0x2_8000, 0x2_9000), (0x2_a000, 0x2_b000)] {
        for index in 0..8 {
            driver_memory(&machine, ring + 16 * index, &u128::from(BUS + at).to_le_bytes());
        }
        machine.drive(0, |card| {
            for (offset, value) in [(0x2800, BUS + ring), (0x2808, 128), (0x2810, 0), (0x2818, 7)] {
                card.registers.write(offset, 4, value);
            }
        });
        machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, at));
        machine.settle();
        let mut got = [0; 18];
        DmaMemory::read(&machine.guests.0[0], at as usize, &mut got);
        assert_eq!(mark(&got), at);
        assert_eq!(machine.drive(0, |card| card.registers.read(0x2810, 4)), 1);
    }
    assert_eq!(machine.counters(0).instructions, before);

    // Looped back, a frame sent is received at once: into the ring as it is now.
    machine.drive(0, |card| card.registers.write(0x20, 4, 1 << 26 | 1 << 21 | 0x5140));
    driver_memory(&machine, 0x2_a000 + 16, &u128::from(BUS + 0x2_c000).to_le_bytes());
    machine.drive(0, |card| card.registers.write(0x2818, 4, 2));
    assert_eq!(machine.send(0, &mut *driver, &frame(mac(0), mac(0), 60, 77)), Sent::Done);
    let mut got = [0; 18];
    DmaMemory::read(&machine.guests.0[0], 0x2_c000, &mut got);
    assert_eq!(mark(&got), 77);
}

#[test]
fn a_full_ring_has_its_tail_watched() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
    let mut driver = machine.driver(0);
    machine.check(0, &mut *driver, 1);
    assert!(machine.mirrors[0].1.direct[2].contains(Direction::WRITE), "a tail waits for nothing");
    (0..100).for_each(|number| machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, number)));
    (0..3).for_each(|_| machine.settle());
    assert!(!machine.mirrors[0].1.direct[2].contains(Direction::WRITE), "frames wait for room");
    let mut got = marks(&machine.take(0, &mut *driver));
    machine.settle();
    got.extend(marks(&machine.take(0, &mut *driver)));
    assert_eq!(got, (0..100).collect::<Vec<u32>>());
}

#[test]
fn a_guest_alone_has_the_card_and_gives_it_back() {
    let pairs =
        SHARED.iter().flat_map(|pair| [DirectPolicy::Guarded, DirectPolicy::Open].map(|it| (*pair, it)));
    for ((physical, models, cplus), policy) in pairs {
        let mut machine = Machine::shared(physical, &models, policy);
        let mut alice = machine.driver_in(0, cplus[0]);
        machine.wait();
        assert_eq!(machine.holder(), Some(0));
        let before = machine.counters(0).instructions;
        machine.check(0, &mut *alice, 1);
        machine.check(0, &mut *alice, 2);
        if physical == NicModel::E1000 || policy == DirectPolicy::Open {
            assert_eq!(machine.counters(0).instructions, before, "rings and causes are the card's own");
        }

        let mut bob = machine.driver_in(1, cplus[1]);
        machine.wait();
        assert_eq!(machine.holder(), None);
        if (physical, policy) == (NicModel::Rtl8139, DirectPolicy::Guarded) {
            assert!(machine.mirrors[0].1.direct[0].contains(Direction::READ), "she never used the timer");
        }
        for number in 3..9 {
            let (guest, driver) = if number % 2 == 0 { (0, &mut alice) } else { (1, &mut bob) };
            machine.check(guest, &mut **driver, number);
        }
        machine.drive(1, |card| bob.stop(card));
        machine.wait();
        assert_eq!(machine.holder(), Some(0));
        machine.check(0, &mut *alice, 9);
        assert_eq!((machine.shared.handoffs().all, machine.shared.handoffs().forced), (3, 0));

        // Her end: nothing of her stays reachable.
        let port = machine.ports[0].0;
        machine.mirrors.clear();
        machine.with(|shared, env| shared.unplug(env, port));
        assert_eq!(machine.holder(), None);
        assert!(machine.guests.1.borrow().is_none());
    }
}

#[test]
fn what_outlives_a_guest_is_for_its_software_card() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Guarded);
    let mut alice = machine.driver(0);
    machine.wait();
    // EECD, CTRL, MDIC with a write to the PHY, wake-up, and a receiver that is switched off.
    let lasting = [(0x10, 6), (0x00, 0x40), (0x20, 0x0420_1140), (0x5808, 2), (0x100, 0)];
    for (number, (offset, value)) in (10..).zip(lasting) {
        assert_eq!(machine.holder(), Some(0), "{offset:#x}");
        let physical = machine.physical.nic.clone();
        machine.drive(0, |card| card.registers.write(offset, 4, value));
        assert_eq!(machine.holder(), None, "{offset:#x}");
        if offset == 0x5808 {
            let Nic::E1000(before) = physical else { unreachable!() };
            let Nic::E1000(after) = &machine.physical.nic else { unreachable!() };
            assert_eq!(before.regs.get(0x5808), after.regs.get(0x5808));
        }
        let seen = machine.drive(0, |card| card.registers.read(offset, 4));
        assert!(offset != 0x5808 || seen == value, "her own card took it");
        if offset != 0x100 {
            machine.check(0, &mut *alice, number);
        }
        machine.wait();
    }
    assert_eq!(machine.holder(), Some(0), "she still sends");
}

/// Contexts set by a driver long ago hold wherever its packets are sent: the checksum goes where they say.
#[test]
fn contexts_go_with_the_card() {
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Guarded);
    let _alice = machine.driver(0);
    machine.wait();
    let (ring, at) = (0x2_0000, 0x3_0000);
    driver_memory(&machine, at, &frame(ROUTER, mac(0), 100, 1));
    // A context that puts a checksum of all from byte 20 on at byte 50, then packets that use it.
    let context = u128::from(20_u8) << 32 | 50 << 40 | (1 << 29) << 64;
    let packet = u128::from(BUS + at) | (100 | 1 << 20 | 1 << 29 | 1 << 24) << 64 | 2 << 104;
    driver_memory(&machine, ring, &context.to_le_bytes());
    (1..8).for_each(|index| driver_memory(&machine, ring + 16 * index, &packet.to_le_bytes()));
    let doorbell = |machine: &mut Machine, tail| {
        machine.drive(0, |card| card.registers.write(0x3818, 4, tail));
        machine.settle();
        machine.physical.wire.pop().unwrap()
    };
    machine.drive(0, |card| {
        for (offset, value) in [(0x3800, BUS + ring), (0x3808, 128), (0x3810, 0)] {
            card.registers.write(offset, 4, value);
        }
    });
    assert_eq!(machine.holder(), Some(0));
    let first = doorbell(&mut machine, 2);
    assert_ne!(first[50..52], [1, 1]);
    let mut bob = machine.driver(1);
    machine.wait();
    assert_eq!(machine.holder(), None);
    assert_eq!(doorbell(&mut machine, 3), first, "sent by her software card");
    machine.drive(1, |card| bob.stop(card));
    machine.wait();
    assert_eq!(machine.holder(), Some(0));
    assert_eq!(doorbell(&mut machine, 4), first, "and by the physical one again");
}

/// Marked traffic of one guest, sent and received before, between and after the other has the card: the other finds
/// none of it, in all of its memory, in all registers, and in what the card itself keeps hidden.
#[test]
fn a_guest_finds_nothing_of_its_neighbour() {
    const SECRET: u8 = 0xa7;
    let marked = |to, from| {
        let mut frame = frame(to, from, 1500, 0);
        frame[14..].fill(SECRET);
        frame
    };
    let secrets = |bytes: &[u8]| bytes.windows(4).filter(|word| **word == [SECRET; 4]).count();
    let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Open);
    let mut drivers = [machine.driver(0), machine.driver(1)];
    for round in 0..3 {
        for _ in 0..40 {
            machine.send(1, &mut *drivers[1], &marked(ROUTER, mac(1)));
            machine.physical.arriving.push_back(marked(mac(1), ROUTER));
        }
        machine.wait();
        assert!(!machine.take(1, &mut *drivers[1]).is_empty());
        machine.take(0, &mut *drivers[0]);
        machine.drive(1, |card| drivers[1].stop(card));
        machine.wait();
        assert_eq!(machine.holder(), Some(0));
        machine.physical.wire.clear();
        machine.check(0, &mut *drivers[0], round);

        let all = alloc::format!("{:?}", machine.physical.nic);
        assert!(!all.contains("167, 167, 167, 167"), "hidden in the card");
        let mut memory = vec![0; 0x4_0000];
        DmaMemory::read(&machine.guests.0[0], 0, &mut memory);
        assert_eq!(secrets(&memory), 0);
        for offset in (0..0x1_0000).step_by(4) {
            let word = machine.drive(0, |card| card.registers.read(offset as u16, 4));
            assert_ne!(word, u32::from_ne_bytes([SECRET; 4]), "{offset:#x}");
        }
        machine.drive(1, |card| assert!(drivers[1].start(card)));
        machine.wait();
        (0..3).for_each(|_| machine.settle());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whoever has the card, and whenever it changes owners: every frame sent arrives, whole, once, in order; frames
    /// received are in order, and nobody gets another's.
    #[test]
    fn frames_survive_handoffs(
        which in 0..SHARED.len(),
        open in any::<bool>(),
        steps in proptest::collection::vec((0usize..2, 0usize..4, 60usize..=1514), 1..60),
    ) {
        let (physical, models, cplus) = SHARED[which];
        let policy = if open { DirectPolicy::Open } else { DirectPolicy::Guarded };
        let mut machine = Machine::shared(physical, &models, policy);
        let mut drivers = [0, 1].map(|guest| machine.driver_in(guest, cplus[guest]));
        let mut online = [true; 2];
        let mut wire = vec![];
        for (number, (guest, what, len)) in (0..).zip(steps) {
            match what {
                0 | 1 if online[guest] => {
                    let frame = frame(ROUTER, mac(guest), len, number);
                    prop_assert_eq!(machine.send(guest, &mut *drivers[guest], &frame), Sent::Done);
                    wire.push(frame);
                }
                2 => {
                    let driver = &mut drivers[guest];
                    online[guest] ^= true;
                    let up = online[guest];
                    machine.drive(guest, |card| if up { assert!(driver.start(card)) } else { driver.stop(card) });
                    machine.wait();
                }
                3 if online[guest] => {
                    machine.wait();
                    machine.take(guest, &mut *drivers[guest]);
                    machine.physical.arriving.push_back(frame(mac(guest), ROUTER, len, number));
                    machine.wait();
                    prop_assert_eq!(marks(&machine.take(guest, &mut *drivers[guest])), [number]);
                    let other = machine.take(1 - guest, &mut *drivers[1 - guest]);
                    prop_assert_eq!(marks(&other), Vec::<u32>::new());
                }
                _ => {}
            }
            machine.settle();
        }
        machine.wait();
        prop_assert_eq!(marks(&machine.physical.wire), marks(&wire));
        prop_assert!(machine.physical.wire == wire);
    }
}

/// Registers whose writes only decide about interrupts move no machine of a model: nothing is to be followed there. And the
/// line and the mirror are at once as they would be after the long way.
#[test]
fn masks_take_the_short_way_and_nothing_is_missed() {
    for (physical, models, masks) in [
        (NicModel::E1000, [NicModel::E1000; 2], &[("IMS", 0xd0, 4), ("IMC", 0xd8, 4)][..]),
        (NicModel::Rtl8139, [NicModel::Rtl8139; 2], &[("IMR", 0x3c, 2), ("ISR", 0x3e, 2)]),
    ] {
        let description = describe(physical);
        let model = models::find_master(description.vendor, description.device).unwrap();
        for (name, offset, width) in masks {
            let id = model.find(*offset, 0).unwrap();
            assert_eq!(model.register(id).unwrap().name, *name);
            for value in [0, 1, 0x80, 0xffff, u32::MAX] {
                let mut tracker = Tracker::unseen(model);
                assert!(!tracker.step(model, Seen::WriteWord(id, value)), "{name}");
                let mut tracker = Tracker::new();
                assert!(!tracker.step(model, Seen::WriteWord(id, value)), "{name}");
            }
            let nic = Nic::new(physical, mac(0));
            let register = Register { io: false, offset: *offset };
            assert!(nic.decides_interrupts_only(register, *width));
            assert!(!nic.decides_interrupts_only(register, 1), "a part of it");
            assert!(
                !nic.decides_interrupts_only(Register { offset: offset & !3, ..register }, 4) || *width == 4
            );
        }
        let mut machine = Machine::shared(physical, &models, DirectPolicy::Never);
        let mut driver = machine.driver(0);
        machine.check(0, &mut *driver, 1);
        let (mask, unmask, width): ((u16, u32), (u16, u32), u8) = match physical {
            NicModel::E1000 => ((0xd8, u32::MAX), (0xd0, 0x80), 4),
            _ => ((0x3c, 0), (0x3c, 1), 2),
        };
        machine.drive(0, |card| card.registers.write(mask.0, width, mask.1));
        machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, 2));
        machine.wait();
        let port = machine.ports[0].0;
        assert!(!machine.shared.line(port));
        machine.drive(0, |card| card.registers.write(unmask.0, width, unmask.1));
        machine.wait();
        assert!(machine.shared.line(port), "unmasked, it interrupts");
        assert_eq!(machine.drive(0, |card| card.registers.read(unmask.0, width)), unmask.1);
        machine.drive(0, |card| card.registers.write(mask.0, width, mask.1));
        assert!(!machine.shared.line(port), "masked, it is silent at once");
    }
}
