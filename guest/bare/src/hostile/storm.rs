//! More of everything than anybody can want.

use crate::console::println;
use crate::machine::{self, outb};
use crate::{pci, trap};

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
    for round in 0..60_000u32 {
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
    for _ in 0..50_000u32 {
        unsafe {
            core::arch::asm!("rep outsb", inout("rcx") line.len() => _, inout("rsi") line.as_ptr() => _, in("dx") 0x3f8u16)
        };
        outb(0x3f8, b'!');
    }
    println!();
}

/// Numbered lines of console output, none of which may be lost: the port is written only when it says that it is ready.
pub fn lines(count: u32) {
    for line in 1..=count {
        println!("line {line} of {count}, and the rest of it is there only for its length");
    }
    println!("SLUICE-RESULT lines={count}");
}

/// For so many ticks of the TSC the guest's first processor interrupts its second, which never runs: it costs the neighbour on the
/// second one's physical processor, unless what tells it nothing new is left out.
const STORM: u64 = 5_000_000_000;
const INIT: u64 = 0x4500;
const SECOND: u64 = 1;

/// Calls `send` until the time is over; how often.
fn storm(mut send: impl FnMut()) -> u64 {
    let (start, mut sent) = (machine::rdtsc(), 0);
    while machine::rdtsc().wrapping_sub(start) < STORM {
        send();
        sent += 1;
    }
    sent
}

/// INIT messages to a processor that waits for its start-up message already.
pub fn inits() {
    machine::x2apic();
    println!("SLUICE-RESULT inits={}", storm(|| machine::wrmsr(ICR, SECOND << 32 | INIT)));
}

/// Message-signalled interrupts, by QEMU's educational device (docs/specs/edu.txt in its sources), which raises one for every
/// write to a register of its. Without an exit: the registers are the guest's own.
pub fn messages() {
    const ENABLE: u32 = 1 << 16;
    const RAISE: u64 = 0x60;
    let Some(edu) = pci::find(|function| function.read(0) == 0x11e8_1234) else {
        println!("no device");
        return;
    };
    edu.write(pci::COMMAND, pci::COMMAND_MEMORY | pci::COMMAND_MASTER | pci::COMMAND_SILENT);
    let Some(msi) = edu.capability(5) else {
        println!("no messages");
        return;
    };
    edu.write(msi + 4, 0xfee0_0000 | (SECOND << 12) as u32);
    edu.write(msi + 8, 0);
    edu.write(msi + 12, 0x41);
    edu.write(msi, edu.read(msi) | ENABLE);
    let raise = (edu.memory(0) + RAISE) as *mut u32;
    println!("SLUICE-RESULT messages={}", storm(|| unsafe { raise.write_volatile(1) }));
}
