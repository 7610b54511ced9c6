//! Every port, both directions, all widths, single and string.

use super::Tally;
use crate::console;
use crate::machine::{inb, inl, inw, outb, outl, outw};
use crate::random::Random;
use core::arch::asm;

/// Its own power: touching these would end the attack.
const POWER: core::ops::RangeInclusive<u16> = 0x600..=0x602;
/// By which it would say that it panics: the same.
const PANIC: u16 = 0x505;
const COM1: core::ops::RangeInclusive<u16> = 0x3f8..=0x3ff;

fn spared(port: u16) -> bool {
    POWER.contains(&port) || port == PANIC
}

/// Runs the attack.
pub fn run(random: &mut Random) {
    let mut tally = Tally::default();
    for port in 0..=u16::MAX {
        tally.attempt(|| {
            inb(port);
            inw(port);
            inl(port);
        });
        if !spared(port) && !COM1.contains(&port) {
            let value = random.wild();
            tally.attempt(|| {
                outb(port, value as u8);
                outw(port, value as u16);
                outl(port, value as u32);
            });
        }
    }
    tally.report("ports");
    strings(random);
    serial(random);
}

/// INS and OUTS with counts, both directions, with memory operands that are there and that are not.
fn strings(random: &mut Random) {
    static mut BUFFER: [u8; 256] = [0; 256];
    let buffer = &raw mut BUFFER as u64;
    let mut tally = Tally::default();
    for port in (0..=u16::MAX).step_by(3) {
        if spared(port) || COM1.contains(&port) {
            continue;
        }
        let at = match random.below(16) {
            0 => 0xfec0_0000,
            1 => 0xffff_ffff_ffff_fffe,
            2 => 0x7f_ffff_fff0,
            3 => 0x0000_8000_0000_0000,
            4 => 0x20_0000_0000,
            _ => buffer + 64 + random.below(64),
        };
        let (count, kind) = (random.below(16), random.below(12));
        tally.attempt(|| unsafe {
            match kind {
                0 => asm!("rep insb", inout("rcx") count => _, inout("rdi") at => _, in("dx") port),
                1 => asm!("rep insw", inout("rcx") count => _, inout("rdi") at => _, in("dx") port),
                2 => asm!("rep insd", inout("rcx") count => _, inout("rdi") at => _, in("dx") port),
                3 => asm!("rep outsb", inout("rcx") count => _, inout("rsi") at => _, in("dx") port),
                4 => asm!("rep outsw", inout("rcx") count => _, inout("rsi") at => _, in("dx") port),
                5 => asm!("rep outsd", inout("rcx") count => _, inout("rsi") at => _, in("dx") port),
                6 => asm!("std", "rep insd", "cld", inout("rcx") count => _, inout("rdi") at => _, in("dx") port),
                7 => asm!("std", "rep outsb", "cld", inout("rcx") count => _, inout("rsi") at => _, in("dx") port),
                8 => asm!("insb", inout("rdi") at => _, in("dx") port),
                9 => asm!("outsd", inout("rsi") at => _, in("dx") port),
                // Redundant prefixes and another segment.
                10 => asm!(".byte 0x66, 0x66, 0x2e, 0xf2", "insb", inout("rcx") count => _, inout("rdi") at => _, in("dx") port),
                _ => asm!(".byte 0x67, 0x64, 0xf3, 0x6f", inout("rcx") count => _, inout("rsi") at => _, in("dx") port),
            }
        });
    }
    tally.report("string_ports");
}

/// The serial port's registers, in any order and with any value. What it prints meanwhile is noise.
fn serial(random: &mut Random) {
    let mut tally = Tally::default();
    for _ in 0..3000 {
        let (port, value) = (COM1.start() + random.below(8) as u16, random.wild());
        tally.attempt(|| match value >> 8 & 3 {
            0 => {
                inl(port);
            }
            1 if port != 0x3f8 => outl(port, value as u32),
            2 if port != 0x3f8 => outw(port, value as u16),
            _ if port != 0x3f8 => outb(port, value as u8),
            _ => {
                inb(port);
            }
        });
    }
    console::reset();
    console::println!();
    tally.report("serial");
}
