//! Interrupt controllers, local timers and PCI configuration with any value in any register.

use super::Tally;
use crate::console::println;
use crate::machine::{self, inl, outb, outl, outw};
use crate::random::Random;
use crate::trap;

const IO_APIC: u64 = 0xfec0_0000;
const LOCAL_APIC: u64 = 0xfee0_0000;
const ECAM: u64 = 0xe000_0000;

fn write(at: u64, value: u64, width: u64) {
    unsafe {
        match width & 3 {
            0 => (at as *mut u8).write_volatile(value as u8),
            1 => ((at & !1) as *mut u16).write_volatile(value as u16),
            2 => ((at & !3) as *mut u32).write_volatile(value as u32),
            _ => ((at & !7) as *mut u64).write_volatile(value),
        }
    }
}

/// Runs the attack.
pub fn run(random: &mut Random) {
    let mut tally = Tally::default();
    for _ in 0..10_000 {
        let (value, width) = (random.wild(), random.below(8).max(2));
        let at = match random.below(4) {
            0 => LOCAL_APIC + random.below(0x1000),
            1 => LOCAL_APIC + random.below(0x40) * 0x10,
            2 => IO_APIC + random.below(2) * 0x10,
            _ => IO_APIC + random.below(0x1000),
        };
        // Resets and starts are for `startup`: here the processor has to live on.
        if at & !0xf == LOCAL_APIC + 0x300 && matches!(value >> 8 & 7, 4..=6) {
            continue;
        }
        tally.attempt(|| {
            write(at, value, width);
            unsafe { ((at & !3) as *const u32).read_volatile() };
        });
    }
    tally.report("apics");
    configuration(random);
    machine::x2apic();
    extended(random);
    println!("SLUICE-RESULT interrupts={}", trap::interrupts());
}

/// PCI configuration space, by ports and by memory.
fn configuration(random: &mut Random) {
    let mut tally = Tally::default();
    for _ in 0..10_000 {
        let (value, offset) = (random.wild(), random.below(0x400));
        let slot = random.below(34) << 11;
        tally.attempt(|| match value >> 40 & 7 {
            0 => write(ECAM + random.below(0x10_0000), value, value >> 20),
            1 => write(ECAM + (slot << 4) + offset, value, value >> 20),
            2 => outl(0xcf8, value as u32),
            3 => outb(0xcfb, value as u8),
            _ => {
                outl(0xcf8, (0x8000_0000 | slot | offset & 0xfc) as u32);
                inl(0xcfc);
                match value >> 20 & 3 {
                    0 => outb(0xcfc + (value >> 4 & 3) as u16, value as u8),
                    1 => outw(0xcfc + (value >> 4 & 3) as u16, value as u16),
                    _ => outl(0xcfc, value as u32),
                }
            }
        });
    }
    tally.report("pci");
}

/// The local APIC by its registers of x2APIC mode, with interrupts on.
fn extended(random: &mut Random) {
    let mut tally = Tally::default();
    for _ in 0..20_000 {
        let register = random.below(0x40) as u32;
        let mut value = random.wild();
        if register == 0x30 && matches!(value >> 8 & 7, 4..=6) {
            value &= !0x700;
        }
        tally.attempt(|| {
            machine::sti();
            machine::wrmsr(0x800 + register, value);
            machine::rdmsr(0x800 + register);
            machine::wrmsr(0x6e0, machine::rdtsc().wrapping_add(value & 0xfff));
        });
        machine::cli();
    }
    tally.report("x2apic");
}

/// Inter-processor interrupts of every kind at every processor, itself among them: INIT and SIPI too.
pub fn startup(random: &mut Random) {
    machine::x2apic();
    println!("SLUICE-RESULT startup=now");
    for _ in 0..2_000 {
        let destination = 1 + random.below(4);
        // Not at itself yet: no shorthand that includes it, no logical destination.
        let low = (random.next() & 0xc7ff) | ((random.next() & 1) * 0xc_0000);
        trap::attempt(|| machine::wrmsr(0x830, destination << 32 | low));
    }
    for _ in 0..2_000 {
        // INIT and SIPI at everybody but itself, then at itself.
        trap::attempt(|| machine::wrmsr(0x830, 0xc_4500));
        trap::attempt(|| machine::wrmsr(0x830, 0xc_4600 | random.below(256)));
    }
    println!("SLUICE-RESULT startup=itself");
    machine::wrmsr(0x830, 0x4500);
    machine::wrmsr(0x830, 0x4610);
}
