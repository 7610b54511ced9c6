//! An NE2000 shared with a neighbour that does the same: the guest switches its ports off and on again all the time, so that
//! the hypervisor decides anew which of them are direct while the card changes hands. A guest that keeps direct ports after it
//! lost the card reads the neighbour's station address, or finds none of its own.
//!
//! Source: DP8390D data sheet, section 10 (registers).

use crate::console::println;
use crate::machine::{inb, outb};
use crate::pci;

const COMMAND: u16 = 0;
const STOP: u8 = 1;
const START: u8 = 2;
const TRANSMIT: u8 = 4;
const NO_DMA: u8 = 0x20;
const PAGE_1: u8 = 0x40;
/// Physical address registers, on page 1.
const ADDRESS: u16 = 1;

const ROUNDS: u32 = 200;

/// Runs the attack. `own` is the last byte of its station address, which the neighbour's does not have.
pub fn run(own: u8) {
    let Some(card) = pci::find(|function| function.read(0) == 0x8029_10ec) else {
        println!("no card");
        return;
    };
    card.write(pci::COMMAND, pci::COMMAND_IO);
    let base = card.ports(0);
    prepare(base, own);
    let mut wrong = 0u32;
    for round in 0..ROUNDS {
        card.write(pci::COMMAND, 0);
        card.write(pci::COMMAND, pci::COMMAND_IO);
        outb(base + COMMAND, PAGE_1 | NO_DMA | START);
        wrong += u32::from(inb(base + ADDRESS + 5) != own);
        outb(base + COMMAND, NO_DMA | START);
        if round % 4 == 0 {
            transmit(base);
        }
    }
    println!("SLUICE-RESULT decode.reads={ROUNDS} decode.wrong={wrong}");
}

/// Resets the card, and gives it its address and a receive ring.
fn prepare(base: u16, own: u8) {
    outb(base + COMMAND, NO_DMA | STOP);
    // Page 0: 16-bit DMA, no loopback, a ring from page 0x46 to 0x80, no interrupts.
    for (register, value) in
        [(0xe, 0x49), (0xc, 4), (0xd, 0), (1, 0x46), (2, 0x80), (3, 0x46), (7, 0xff), (0xf, 0)]
    {
        outb(base + register, value);
    }
    outb(base + COMMAND, PAGE_1 | NO_DMA | STOP);
    for (index, byte) in (0..).zip([0x52, 0x54, 0, 0, 0, own]) {
        outb(base + ADDRESS + index, byte);
    }
    outb(base + 7, 0x47);
    outb(base + COMMAND, NO_DMA | START);
}

/// Sends a frame of 60 bytes, whatever is in the card's memory.
fn transmit(base: u16) {
    for (register, value) in [(4, 0x40), (5, 60), (6, 0)] {
        outb(base + register, value);
    }
    outb(base + COMMAND, NO_DMA | START | TRANSMIT);
}
