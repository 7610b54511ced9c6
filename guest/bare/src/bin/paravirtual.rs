//! A paravirtual kernel that attacks the hypervisor by Xen's interface: it asks for everything that would let it write a page table, a descriptor
//! table or memory that is not its own, and tries what it was given.
//!
//! [`interface`] has hypercalls and what a kernel needs to survive its own faults, [`memory`] its page tables as it sees them,
//! [`attacks`] what is tried one by one, [`balloon`] what with memory that it gives back, [`gate`] what goes through the hypervisor's part of its own addresses, [`processors`] what a second processor tries beside the first, [`wild`] what is tried at random,
//! [`devices`] what devices of its own are told to do, if it has some.
//! It reports how much it tried and what succeeded.
//!
//! Everything here is unsafe by purpose, as in the other test kernels.
#![no_std]
#![no_main]
#![allow(clippy::undocumented_unsafe_blocks, reason = "what an attack does need not be sound")]

#[path = "../paravirtual/attacks.rs"]
mod attacks;
#[path = "../paravirtual/balloon.rs"]
mod balloon;
#[path = "../paravirtual/console.rs"]
mod console;
#[path = "../paravirtual/devices.rs"]
mod devices;
#[path = "../paravirtual/gate.rs"]
mod gate;
#[path = "../paravirtual/interface.rs"]
mod interface;
#[path = "../paravirtual/memory.rs"]
mod memory;
#[path = "../paravirtual/processors.rs"]
mod processors;
#[path = "../random.rs"]
mod random;
#[path = "../paravirtual/wild.rs"]
mod wild;

use console::println;
use memory::Machine;

/// How much was tried, and what succeeded.
#[derive(Default)]
pub struct Score {
    tried: u64,
    succeeded: u64,
}

impl Score {
    /// Counts an attempt; one that succeeded is named.
    pub fn attempt(&mut self, what: &str, succeeded: bool) {
        self.tried += 1;
        if succeeded {
            self.succeeded += 1;
            if self.succeeded < 100 {
                println!("SLUICE-RESULT achieved={what}");
            }
        }
    }
}

/// Called with the address of `struct start_info`.
#[unsafe(no_mangle)]
extern "C" fn bare_main(start_info: u64) -> ! {
    let machine = Machine::read(start_info);
    console::init(&machine);
    interface::take_faults();
    let mut score = Score::default();
    let control = !machine.is_initial || devices::run(&machine, &mut score);
    attacks::run(&machine, &mut score);
    balloon::run(&machine, &mut score);
    gate::run(&machine, &mut score);
    processors::run(&machine, &mut score);
    println!("SLUICE-RESULT one_by_one={}", score.tried);
    wild::run(&machine, &mut score);
    println!("SLUICE-RESULT paravirtual.tried={} paravirtual.succeeded={}", score.tried, score.succeeded);
    println!("SLUICE-RESULT done={}", if score.succeeded == 0 && control { "ok" } else { "failed" });
    interface::shut_down(0)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("bare: {info}");
    interface::shut_down(3)
}
