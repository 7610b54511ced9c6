//! The device state models of bus masters, as trackers beside the software cards.
//!
//! A client accesses a card in any way at any width, frames arrive, memory holds any descriptors. The checks are
//! those of `crates/model/tests/models`, whose code this is: a panic there is a finding.

#[path = "../../model/tests/models/beside.rs"]
mod beside;
#[path = "../../model/tests/models/e1000.rs"]
mod e1000_card;
#[path = "../../model/tests/models/rtl8139.rs"]
mod rtl8139_card;

use crate::Input;
use beside::{Beside, Card};
use sluice_model::Questions;
use sluice_nic::{E1000, Rtl8139};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// The RTL8139's. Asserts that the states of the model are what the card's registers say, that the card makes no
/// transfer that the model did not announce, and none elsewhere than the model says.
pub fn rtl8139(data: &[u8]) {
    const KNOWN: &[u32] =
        &[0x10, 0x14, 0x20, 0x24, 0x30, 0x37, 0x44, 0x48, 0x50, 0x54, 0xd9, 0xe0, 0xe4, 0xe8];
    run(Rtl8139::new(MAC), data, KNOWN, 0x100);
}

/// The e1000's. Asserts the same, and that ICR is empty when the model says that reading it takes nothing away.
pub fn e1000(data: &[u8]) {
    const KNOWN: &[u32] = &[
        0x00, 0x10, 0x14, 0x20, 0xc0, 0xc8, 0x100, 0x400, 0x2800, 0x2808, 0x2810, 0x2818, 0x3800, 0x3808,
        0x3810, 0x3818,
    ];
    run(E1000::new(MAC), data, KNOWN, 0x2_0000);
}

fn run<C: Card>(card: C, data: &[u8], known: &[u32], beyond: u32) {
    let mut input = Input::new(data);
    let mut beside = Beside::new(card);
    while !input.is_empty() {
        let what = input.u8();
        let offset = match what & 0x30 {
            0 => input.u32() % beyond,
            _ => known[usize::from(input.u8()) % known.len()],
        };
        let width = input.choose(&[4, 4, 2, 1, 3]);
        match what % 8 {
            0 => drop(beside.read(offset, width)),
            1 => {
                let mut frame = vec![0x5a; 14 + usize::from(input.u16() % 1500)];
                frame[..6].copy_from_slice(if what & 0x80 == 0 { &MAC } else { &[0xff; 6] });
                beside.receive(&frame);
            }
            // Rings and what they name lie low, where addresses of few bits lead.
            2 => {
                let at = u64::from(input.u16());
                beside.bus.put(at, &input.u32().to_le_bytes());
            }
            3 => beside.write(offset, width, u32::from(input.u8()) << (what & 0x18)),
            _ => beside.write(offset, width, input.u32()),
        }
        // What is asked at each exit must not panic.
        let _ = (beside.hooks(Questions::all() - Questions::ABSENT), beside.announced, beside.made());
    }
}
