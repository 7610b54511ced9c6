//! Models as trackers beside the software cards, driven by real drivers' traces and at random; and what a
//! model's hook sets cost on those traces.

mod beside;
mod cost;
mod e1000;
mod exits;
mod ne2000;
mod readable;
mod rtl8139;
mod trace;

use beside::{Beside, Card};
use proptest::prelude::*;
use sluice_model::check::{Memory, vet_set};
use sluice_nic::{E1000, Rtl8139};
use trace::Access;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; len];
    frame[..6].copy_from_slice(&MAC);
    frame
}

/// Runs a trace; `before` each access may put things into memory or let frames arrive.
fn replay<C: Card>(card: C, trace: &str, mut before: impl FnMut(&mut Beside<C>, &Access)) -> Beside<C> {
    let mut beside = Beside::new(card);
    for access in trace::parse(trace) {
        before(&mut beside, &access);
        if access.write {
            beside.write(access.offset, access.width, access.value);
        } else {
            beside.read(access.offset, access.width);
        }
    }
    beside
}

#[test]
fn the_8139too_driver_is_followed() {
    let mut frames = 0;
    let beside = replay(Rtl8139::new(MAC), trace::RTL8139_C, |beside, access| {
        // Where the driver found a frame, one arrives.
        if !access.write && access.offset == 0x3e && access.value & 1 != 0 && beside.card.regs.isr & 1 == 0 {
            beside.receive(&frame(64 + frames % 1400));
            frames += 1;
        }
    });
    assert!(frames > 50 && beside.made() > 300, "{frames} frames, {} transfers", beside.made());
    assert!(beside.announced >= 107, "{}", beside.announced);
}

#[test]
fn the_8139cp_driver_is_followed() {
    let (mut frames, mut sent) = (0, 0);
    let beside = replay(Rtl8139::new(MAC), trace::RTL8139_CPLUS, |beside, access| {
        let regs = &beside.card.regs;
        let own = 1u32 << 31;
        if access.write && access.offset == 0xd9 {
            // The descriptor whose turn it is: a frame of its own, the last one that ends the ring.
            let at = regs.tnpds() + 16 * u64::from(regs.next_send);
            let end = if regs.next_send == 63 { 1 << 30 } else { 0 };
            let mut descriptor = (own | end | 3 << 28 | (60 + sent)).to_le_bytes().to_vec();
            descriptor.extend([0; 4]);
            descriptor.extend((0x10_0000u64 + u64::from(sent) * 0x800).to_le_bytes());
            beside.bus.put(at, &descriptor);
            sent += 1;
        }
        if !access.write
            && access.offset == 0x3e
            && access.value & 1 != 0
            && regs.isr & 1 == 0
            && regs.rdsar != 0
        {
            let at = regs.rdsar + 16 * u64::from(regs.next_receive);
            let end = if regs.next_receive == 63 { 1 << 30 } else { 0 };
            let mut descriptor = (own | end | 0x600u32).to_le_bytes().to_vec();
            descriptor.extend([0; 4]);
            descriptor.extend((0x80_0000u64 + u64::from(regs.next_receive) * 0x800).to_le_bytes());
            beside.bus.put(at, &descriptor);
            beside.receive(&frame(64 + frames % 1400));
            frames += 1;
        }
    });
    assert_eq!(beside.card.regs.tally.sent, 91);
    assert!(frames > 50 && beside.made() > 400, "{frames} frames, {} transfers", beside.made());
}

#[test]
fn the_e1000_driver_is_followed() {
    let mut frames = 0;
    let beside = replay(E1000::new(MAC), trace::E1000, |beside, access| {
        let regs = &beside.card.regs;
        if access.write && access.offset == 0x3818 {
            // The descriptors up to the new tail: legacy ones, each a frame.
            let (ring, tail) = (regs.transmit_ring(), u64::from(access.value));
            let mut index = u64::from(regs.get(0x3810));
            while index != tail {
                let mut descriptor = (0x10_0000 + index * 0x800).to_le_bytes().to_vec();
                descriptor.extend((60u32 | 0x0b << 24).to_le_bytes());
                descriptor.extend([0; 4]);
                beside.bus.put(ring + 16 * index, &descriptor);
                index = (index + 1) % 256;
            }
        }
        if access.write && access.offset == 0x2818 {
            let ring = regs.receive_ring();
            for index in 0..256 {
                let buffer = (0x80_0000 + index * 0x800u64).to_le_bytes();
                beside.bus.put(ring + 16 * index, &buffer);
            }
        }
        if !access.write && access.offset == 0xc0 && access.value & 0x80 != 0 {
            beside.receive(&frame(64 + frames % 1400));
            frames += 1;
        }
    });
    assert!(frames > 50 && beside.made() > 300, "{frames} frames, {} transfers", beside.made());
    // Writes to TDT and RDT, at least.
    assert!(beside.announced >= 82 + 68, "{}", beside.announced);
}

/// Registers that matter, with their widths; those that say what the others do come first.
type Known = &'static [(u32, u8)];

#[rustfmt::skip]
const RTL8139: Known = &[
    (0x37, 1), (0xe0, 2), (0x50, 1), (0x44, 4), (0x10, 4), (0x14, 4), (0x18, 4), (0x1c, 4), (0x20, 4), (0x24, 4),
    (0x28, 4), (0x2c, 4), (0x30, 4), (0x36, 2), (0x38, 2), (0x3c, 2), (0x3e, 2), (0x40, 4), (0x48, 4), (0x54, 4),
    (0x60, 2), (0xd8, 1), (0xd9, 1), (0xe4, 4), (0xe8, 4),
];
#[rustfmt::skip]
const INTEL: Known = &[
    (0x100, 4), (0x400, 4), (0xc0, 4), (0xc8, 4), (0x00, 4), (0x10, 4), (0x14, 4), (0x20, 4), (0xc4, 4), (0xd0, 4),
    (0xd8, 4), (0x110, 4), (0x420, 4), (0x2800, 4), (0x2804, 4), (0x2808, 4), (0x2810, 4), (0x2818, 4), (0x3800, 4),
    (0x3804, 4), (0x3808, 4), (0x3810, 4), (0x3818, 4), (0x3828, 4), (0x4074, 4), (0x5400, 4),
];

/// An offset and a width: mostly of a register, often of one that decides, sometimes of any kind.
fn place(known: Known, beyond: u32) -> impl Strategy<Value = (u32, u8)> {
    let width = prop::sample::select([1u8, 2, 3, 4].as_slice());
    let odd = (prop::sample::select(known).prop_map(|(offset, _)| offset), width.clone());
    prop_oneof![
        3 => prop::sample::select(&known[..4]),
        6 => prop::sample::select(known),
        1 => odd,
        1 => (0..beyond, width),
    ]
}

/// Something a client or the wire does: kind, place, width, value.
type Deed = (u8, u32, u8, u32);

fn deeds(known: Known, beyond: u32) -> impl Strategy<Value = Vec<Deed>> {
    let value = prop_oneof![any::<u32>(), (0..32u32).prop_map(|bit| 1 << bit), 0..0x1000u32];
    let deed = (0..12u8, place(known, beyond), value);
    prop::collection::vec(
        deed.prop_map(|(kind, (offset, width), value)| (kind, offset, width, value)),
        1..120,
    )
}

fn act<C: Card>(beside: &mut Beside<C>, (kind, offset, width, value): Deed) {
    match kind {
        0 | 1 => drop(beside.read(offset, width)),
        2 => beside.receive(&frame(14 + value as usize % 1500)),
        3 => {
            // A descriptor somewhere.
            beside.bus.put(u64::from(value & 0xfff0), &value.wrapping_mul(0x9e37_79b9).to_le_bytes());
        }
        _ => beside.write(offset, width, value),
    }
}

proptest! {
    #[test]
    fn any_use_of_an_rtl8139_is_followed(deeds in deeds(RTL8139, 0x100)) {
        let mut beside = Beside::new(Rtl8139::new(MAC));
        for deed in deeds {
            act(&mut beside, deed);
        }
    }

    #[test]
    fn any_use_of_an_e1000_is_followed(deeds in deeds(INTEL, 0x2_0000)) {
        let mut beside = Beside::new(E1000::new(MAC));
        for deed in deeds {
            act(&mut beside, deed);
        }
    }

    /// Where nothing contains the card, what `vet_set` leaves unhooked neither makes a transfer nor moves one.
    #[test]
    fn unhooked_writes_to_an_e1000_start_and_move_nothing(deeds in deeds(INTEL, 0x2_0000)) {
        let mut beside = Beside::new(E1000::new(MAC));
        let vetted = vet_set(E1000::MODEL);
        for deed in deeds {
            let (_, offset, width, _) = deed;
            let hooked = vetted.catches_memory(offset, width, true);
            let before = (beside.announced, beside.made(), where_to(&beside));
            act(&mut beside, deed);
            if deed.0 > 3 && !hooked {
                prop_assert_eq!(before, (beside.announced, beside.made(), where_to(&beside)));
            }
        }
    }
}

/// The memory of every transfer there can be.
fn where_to<C: Card>(beside: &Beside<C>) -> Vec<Option<Memory>> {
    let starts = C::MODEL.machines.iter().flat_map(|machine| machine.edges).filter_map(|edge| edge.start);
    starts.map(|start| start.target.memory(0, &mut |id, n| beside.card.register(id, n))).collect()
}
