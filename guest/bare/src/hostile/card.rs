//! An NE2000 shared with a neighbour, driven as no driver would: any value in any register, remote DMA
//! anywhere in the card's memory and past it, string I/O of any width, in the middle of everything.

use super::Tally;
use crate::console::println;
use crate::machine::{inb, inl, inw, outb, outl, outw};
use crate::pci;
use crate::random::Random;
use core::arch::asm;

const TRANSMIT: u8 = 4;
const LENGTH: u16 = 5;
/// Offset of the data port, which takes string I/O, and of the reset port.
const DATA: u16 = 0x10;

static mut BUFFER: [u8; 2048] = [0; 2048];

/// The ports of the first RTL8029 on bus 0, switched on.
fn find() -> Option<u16> {
    let card = pci::find(|function| function.read(0) == 0x8029_10ec)?;
    card.write(pci::COMMAND, pci::COMMAND_IO);
    Some(card.ports(0))
}

/// Sends and starts things: the commands of the data sheet in a meaningless order.
fn command(random: &mut Random) -> u8 {
    match random.below(6) {
        0 => 0x0a,
        1 => 0x12,
        2 => 0x26,
        3 => 0x22,
        4 => 0x21 | (random.below(4) << 6) as u8,
        _ => random.next() as u8,
    }
}

/// Writes the command register. What it sends has a length: QEMU's user network never again takes a
/// frame after one of no bytes, whoever sends it, which says nothing about Sluice.
fn order(base: u16, value: u8, random: &mut Random) {
    if value & TRANSMIT != 0 {
        outb(base, 0x22);
        outb(base + LENGTH, 1 + random.below(255) as u8);
    }
    outb(base, value);
}

/// Runs the attack.
pub fn run(random: &mut Random) {
    let Some(base) = find() else {
        println!("no card");
        return;
    };
    println!("SLUICE-RESULT card={base:#x}");
    let mut tally = Tally::default();
    for _ in 0..20_000u32 {
        let (value, port) = (random.wild(), base + 1 + random.below(0x1f) as u16);
        let (kind, count) = (random.below(16), random.below(700));
        let (wanted, own) = (command(random), random.next());
        let buffer = &raw mut BUFFER as u64;
        tally.attempt(|| match kind {
            0..4 => order(base, wanted, &mut Random::new(own)),
            4..8 => outb(port, value as u8),
            8 => outw(port, value as u16),
            9 => outl(port, value as u32),
            10 => {
                inb(port);
            }
            11 => {
                inw(port);
                inl(port);
            }
            12 => unsafe {
                asm!("rep outsw", inout("rcx") count => _, inout("rsi") buffer => _, in("dx") base + DATA)
            },
            13 => unsafe {
                asm!("rep insd", inout("rcx") count / 2 => _, inout("rdi") buffer => _, in("dx") base + DATA)
            },
            14 => unsafe {
                asm!("rep outsb", inout("rcx") count & 63 => _, inout("rsi") buffer => _, in("dx") port)
            },
            _ => unsafe {
                asm!("rep insw", inout("rcx") count & 63 => _, inout("rdi") buffer => _, in("dx") port)
            },
        });
    }
    tally.report("card");
}
