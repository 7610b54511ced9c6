//! The RTL8139 while a guest owns it: what its registers do not show goes along.

use super::*;
use sluice_nic::Rtl8139;
use sluice_nic::rtl8139::registers::{Registers, reg};

const MODELS: [NicModel; 2] = [NicModel::Rtl8139, NicModel::Rtl8139c];

fn registers(nic: &Nic) -> Registers {
    let Nic::Rtl8139(card) = nic else { unreachable!() };
    card.regs
}

fn card(machine: &mut Machine) -> &mut Rtl8139 {
    let Nic::Rtl8139(card) = &mut machine.physical.nic else { unreachable!() };
    card
}

/// Without what is known not to go along, and what counts on.
fn kept(mut regs: Registers) -> Registers {
    if !regs.cplus {
        // That one was never sent, nobody looks at.
        regs.tsd = regs.tsd.map(|status| status | 0x8000);
    } else {
        // Left over from C mode.
        (regs.read_at, regs.write_at, regs.tsd, regs.next_tsd) = (0, 0, [0; 4], 0);
    }
    (regs.mpc, regs.timer_base, regs.tally) = (0, 0, Default::default());
    regs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Wherever a guest's card is in its rings, so is the physical one, and back again.
    #[test]
    fn places_go_along(
        cplus in any::<bool>(),
        open in any::<bool>(),
        turns in proptest::collection::vec((0u32..70, proptest::collection::vec(60usize..=1514, 0..40)), 2..4),
    ) {
        let policy = if open { DirectPolicy::Open } else { DirectPolicy::Guarded };
        let mut machine = Machine::shared(NicModel::Rtl8139, &MODELS, policy);
        let mut alice = machine.driver_in(0, cplus);
        let mut bob = machine.driver(1);
        let mut number = 0;
        for (sends, receives) in turns {
            for alone in [false, true] {
                for len in &receives {
                    machine.physical.arriving.push_back(frame(mac(0), ROUTER, *len, number));
                    machine.settle();
                    prop_assert_eq!(marks(&machine.take(0, &mut *alice)), [number]);
                    number += 1;
                }
                for _ in 0..sends {
                    prop_assert_eq!(machine.send(0, &mut *alice, &frame(ROUTER, mac(0), 60, number)), Sent::Done);
                    number += 1;
                }
                machine.settle();
                machine.take(0, &mut *alice);
                if alone {
                    let before = registers(&machine.physical.nic);
                    machine.drive(1, |card| assert!(bob.start(card)));
                    prop_assert_eq!(machine.holder(), None);
                    let port = machine.ports[0].0;
                    let after = registers(&machine.shared.vnic(port).unwrap().nic);
                    prop_assert_eq!(kept(after), kept(before));
                } else {
                    let port = machine.ports[0].0;
                    let before = registers(&machine.shared.vnic(port).unwrap().nic);
                    machine.drive(1, |card| bob.stop(card));
                    machine.wait();
                    let after = registers(&machine.physical.nic);
                    let near = !before.cplus && (1..68).contains(&before.write_at);
                    prop_assert_eq!(machine.holder(), Some(0).filter(|_| !near));
                    if !near {
                        prop_assert_eq!(kept(after), kept(before));
                    } else {
                        // Where no frame ends that begins with the ring: she waits for the next one.
                        machine.physical.arriving.push_back(frame(mac(0), ROUTER, 100, number));
                        machine.settle();
                        machine.take(0, &mut *alice);
                        machine.wait();
                        prop_assert_eq!(machine.holder(), Some(0));
                    }
                }
                machine.wait();
            }
        }
    }
}

#[test]
fn what_outlives_a_guest_or_ends_its_use_brings_the_card_back() {
    for cplus in [false, true] {
        let mut machine = Machine::shared(NicModel::Rtl8139, &MODELS, DirectPolicy::Guarded);
        let mut alice = machine.driver_in(0, cplus);
        machine.wait();
        // It goes on with these: CAPR, IMR, RCR as it is, MTPS, CR as it is; and what is behind the registers is nothing.
        let rcr = machine.drive(0, |card| card.registers.read(reg::RCR, 4));
        for (offset, width, value) in
            [(reg::IMR, 2, 0xe07f), (reg::RCR, 4, rcr), (reg::MTPS, 1, 3), (reg::CR, 1, 0x0c), (0x800, 4, 1)]
        {
            machine.drive(0, |card| card.registers.write(offset, width, value));
            assert_eq!(machine.holder(), Some(0), "{offset:#x}");
            if (offset, cplus) == (reg::CR, true) || (offset, cplus) == (reg::RCR, false) {
                // These start a ring anew, as her driver would.
                machine.drive(0, |card| assert!(alice.start(card)));
                machine.wait();
            }
        }
        // The lock, configuration, the PHY, halt, off, reset.
        let lasting =
            [(reg::CR9346, 1, 0xc0), (reg::CONFIG1, 1, 0x30), (reg::BMCR, 2, 0x200), (reg::HLTCLK, 1, 0x48)];
        let before = registers(&machine.physical.nic);
        for (number, (offset, width, value)) in (10..).zip(lasting) {
            assert_eq!(machine.holder(), Some(0), "{offset:#x}");
            machine.drive(0, |card| card.registers.write(offset, width, value));
            assert_eq!(machine.holder(), None, "{offset:#x}");
            let after = registers(&machine.physical.nic);
            assert_eq!((after.config1, after.bmcr, after.running), (before.config1, before.bmcr, true));
            machine.drive(0, |card| {
                card.registers.write(reg::HLTCLK, 1, 0x52);
                card.registers.write(reg::CR9346, 1, 0);
            });
            machine.check(0, &mut *alice, number);
            machine.wait();
        }
        for off in [0x00, 0x10] {
            assert_eq!(machine.holder(), Some(0));
            machine.drive(0, |card| card.registers.write(reg::CR, 1, off));
            assert_eq!(machine.holder(), None);
            machine.drive(0, |card| assert!(alice.start(card)));
            machine.wait();
        }
    }
}

/// Ports are the same registers, whoever has the card.
#[test]
fn ports_go_to_the_card_in_hand() {
    let mut machine = Machine::shared(NicModel::Rtl8139, &MODELS, DirectPolicy::Open);
    let _alice = machine.driver_in(0, false);
    machine.wait();
    let port = machine.ports[0].0;
    let at = |offset| Register { io: true, offset };
    machine.with(|shared, env| shared.write(env, port, at(0x08), 4, &[1, 2, 3, 4]));
    assert_eq!(card(&mut machine).regs.mar[..4], [1, 2, 3, 4]);
    let mut got = [0; 4];
    machine.with(|shared, env| shared.read(env, port, at(0x08), 4, &mut got));
    assert_eq!((got, machine.holder()), ([1, 2, 3, 4], Some(0)));
    machine.with(|shared, env| shared.read(env, port, at(0xfe), 4, &mut got));
    assert_eq!(got, [0, 0, 0xff, 0xff], "and behind them there is nothing");
}

/// A card that its guest left in whatever state keeps nothing for the next.
#[test]
fn nothing_of_a_guest_stays() {
    let mut machine = Machine::shared(NicModel::Rtl8139, &MODELS, DirectPolicy::Open);
    let _alice = machine.driver_in(0, true);
    machine.wait();
    // The beginning of a frame, in the fifth descriptor of a ring somewhere else.
    let (ring, secret) = (0x3_0000, 0x3_8000);
    DmaMemory::write(&mut machine.guests.0[0], secret, &[0x5a; 1000]);
    let words = [1 << 31 | 1 << 29 | 1000, 0, BUS + secret as u32, 0].map(u32::to_le_bytes);
    DmaMemory::write(&mut machine.guests.0[0], ring, words.as_flattened());
    machine.drive(0, |card| {
        for (offset, width, value) in [
            (reg::TSAD, 4, BUS + ring as u32),
            (reg::TPPOLL, 1, 0x40),
            (reg::CR9346, 1, 0xc0),
            (reg::CONFIG4, 1, 0xf5),
            (reg::MULINT, 2, 0xabc),
            (reg::MTPS, 1, 0x77),
        ] {
            card.registers.write(offset, width, value);
        }
    });
    assert!(card(&mut machine).assembling());
    let port = machine.ports[0].0;
    machine.mirrors.clear();
    machine.with(|shared, env| shared.unplug(env, port));
    let left = card(&mut machine).clone();
    let mut other = Machine::shared(NicModel::Rtl8139, &MODELS, DirectPolicy::Open);
    let fresh = card(&mut other);
    assert!(!left.assembling());
    let lasting = |regs: Registers| {
        (regs.config4, regs.mulint, regs.mtps, regs.mpc, regs.cplus, regs.cpcr, regs.cr9346, regs.tally)
    };
    assert_eq!(lasting(left.regs), lasting(fresh.regs));
}

/// A guest that lets its receive ring go on for ever is served by its software card.
#[test]
fn a_ring_without_an_end_does_not_go_along() {
    let mut machine = Machine::shared(NicModel::Rtl8139, &MODELS, DirectPolicy::Open);
    let mut alice = machine.driver_in(0, true);
    machine.wait();
    assert_eq!(machine.holder(), Some(0));
    machine.drive(0, |card| {
        alice.stop(card);
        alice.start(card);
        card.registers.write(reg::RDSAR, 4, BUS + 0x2_0000);
    });
    let mut bob = machine.driver(1);
    machine.drive(1, |card| bob.stop(card));
    machine.wait();
    assert_eq!(machine.holder(), None);
}

#[test]
fn a_line_rises_no_more_often_than_a_wire_would_have_it() {
    // On a wire that is ten times as fast.
    let mut machine = Machine::new(NicModel::E1000, &MODELS);
    let mut alice = machine.driver(0);
    let arrive = |machine: &mut Machine, number| {
        machine.physical.arriving.push_back(frame(mac(0), ROUTER, 1514, number));
        machine.physical.after();
        machine.with(|shared, env| shared.interrupt(env));
    };
    arrive(&mut machine, 0);
    let rose = machine.now;
    assert!(machine.line(0), "after a while without any, a frame is told of at once");
    assert_eq!(marks(&machine.take(0, &mut *alice)), [0]);
    arrive(&mut machine, 1);
    arrive(&mut machine, 2);
    assert!(!machine.line(0), "the wire of an RTL8139 would not have them yet");
    let due = machine.shared.deadline().expect("somebody has to come back to it");
    assert!((rose + 2 * 123_040..rose + 250_000).contains(&due), "{rose} {due}");
    machine.now = due - 2000;
    machine.with(|shared, env| shared.poll(env));
    assert!(!machine.line(0));
    machine.with(|shared, env| shared.poll(env));
    assert!(machine.line(0), "both at once");
    assert_eq!(marks(&machine.take(0, &mut *alice)), [1, 2]);
    assert_eq!(machine.shared.deadline(), None);
}
