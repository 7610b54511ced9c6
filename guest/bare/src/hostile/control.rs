//! Control and debug registers with values that no operating system would choose.
//!
//! QEMU 7.2 lets reserved bits through where a processor raises #GP; the next VMRUN then refuses the
//! state and the guest ends. Those come last.

use super::Tally;
use crate::console::println;
use crate::machine;
use crate::random::Random;

const CR0_PE_PG: u64 = 1 << 31 | 1;
/// Without it NW must be clear too.
const CR0_CD: u64 = 1 << 30;
const CR4_PAE: u64 = 1 << 5;

/// Runs the attack: first what a processor in long mode survives, then what it need not.
pub fn run(random: &mut Random) {
    let (cr0, cr4, efer) = (machine::cr0(), machine::cr4(), machine::rdmsr(0xc000_0080));
    let mut tally = Tally::default();
    for _ in 0..3000 {
        let value = random.wild() & 0xffff_ffff;
        tally.attempt(|| machine::set_cr0(value | CR0_PE_PG | CR0_CD));
        tally.attempt(|| machine::set_cr0(cr0));
        tally.attempt(|| machine::set_cr8(value));
        tally.attempt(|| machine::set_cr8(0));
        tally.attempt(|| machine::set_dr0(value));
        // No breakpoints: enable bits stay clear.
        tally.attempt(|| machine::set_dr7(value & 0xffff_ff00));
        tally.attempt(|| machine::set_dr6(value));
        tally.attempt(|| machine::set_dr7(0x400));
        tally.attempt(|| machine::wrmsr(0xc000_0080, value | 0x500));
        tally.attempt(|| machine::wrmsr(0xc000_0080, efer));
    }
    tally.report("cr0_efer");
    let mut tally = Tally::default();
    // What every processor here has and code in user pages survives: no SMEP and SMAP.
    for bit in (0..=10).chain([16, 18]) {
        tally.attempt(|| machine::set_cr4(cr4 | CR4_PAE | 1 << bit));
        tally.attempt(|| machine::set_cr4(cr4));
    }
    tally.report("cr4");
    println!("SLUICE-RESULT survived=ok");
    for _ in 0..1000 {
        let value = random.wild();
        tally.attempt(|| machine::set_cr4(value | CR4_PAE));
        tally.attempt(|| machine::set_cr0(value));
        tally.attempt(|| machine::set_cr0(cr0));
        tally.attempt(|| machine::set_cr4(cr4));
    }
    tally.report("wild");
}

/// A state that VMRUN refuses: reserved bits of CR4 where the processor lets them through, long mode
/// without PAE, page tables beyond the address space.
pub fn invalid() {
    println!("SLUICE-RESULT invalid=now");
    for bit in (24..64).rev() {
        crate::trap::attempt(|| {
            machine::set_cr4(machine::cr4() | 1 << bit);
            machine::inb(0x80);
        });
    }
    crate::trap::attempt(|| machine::set_cr3(0xfff0_0000_0000_0000 | machine::cr3()));
    crate::trap::attempt(|| machine::set_dr7(0xffff_ffff_0000_0400));
    crate::trap::attempt(|| machine::set_dr6(0xffff_ffff_0000_0ff0));
    machine::inb(0x80);
}
