//! More of everything than anybody can want.

use crate::console::println;
use crate::machine::{self, outb};
use crate::trap;

const SELF_IPI: u32 = 0x83f;
const DEADLINE: u32 = 0x6e0;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;

/// Interrupts as fast as they come: from itself, from a timer that is always late, from the serial
/// port, and NMIs.
pub fn run() {
    machine::x2apic();
    machine::wrmsr(LVT_TIMER, 2 << 17 | 0xe0);
    machine::sti();
    for round in 0..100_000u32 {
        machine::wrmsr(SELF_IPI, u64::from(0x20 + round % 0xd0));
        machine::wrmsr(DEADLINE, machine::rdtsc().wrapping_sub(u64::from(round % 3)).max(1));
        if round % 16 == 0 {
            // All but itself, NMI to itself, and a halt that an interrupt always ends.
            machine::wrmsr(ICR, 0xc_0000 | 0x30);
            machine::wrmsr(ICR, 0x4400);
            machine::wrmsr(SELF_IPI, 0x40);
            machine::cli();
            machine::wrmsr(DEADLINE, machine::rdtsc() + 10_000);
            machine::wait();
        }
    }
    machine::cli();
    println!("SLUICE-RESULT interrupts={}", trap::interrupts());
}

/// Console output without end, faster than anybody takes it.
pub fn flood() {
    println!("SLUICE-RESULT flood=now");
    let line = *b"flood flood flood flood flood flood flood flood flood flood\n";
    for _ in 0..200_000u32 {
        unsafe {
            core::arch::asm!("rep outsb", inout("rcx") line.len() => _, inout("rsi") line.as_ptr() => _, in("dx") 0x3f8u16)
        };
        outb(0x3f8, b'!');
    }
    println!();
}
