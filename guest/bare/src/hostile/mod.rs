//! Attacks. Each ends at most its own guest: whether the hypervisor and the neighbours live on is for
//! the scenario to see (`tests/hostile-*.toml`, docs/hostile.md).

mod card;
mod clock;
mod control;
mod controller;
mod debug;
mod decode;
mod face;
mod files;
mod ide;
mod instructions;
mod iommu;
mod locks;
mod memory;
mod native;
mod nvme;
mod pages;
mod paging;
mod platform;
mod ports;
mod registers;
mod restores;
mod storm;
mod virtio;

use crate::console::println;
use crate::entry::BootInfo;
use crate::random::Random;
use crate::{machine, trap};

/// Runs the attacks of these names, joined by `+`.
pub fn run(names: &str, boot: &BootInfo) {
    let seed = boot.argument("seed").and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = Random::new(seed);
    for name in names.split('+') {
        println!("SLUICE-RESULT hostile={name}");
        attack(name, &mut random, boot);
    }
    println!("SLUICE-RESULT done=ok");
}

fn attack(name: &str, random: &mut Random, boot: &BootInfo) {
    match name {
        "card" => card::run(random),
        "ports" => ports::run(random),
        "msrs" => registers::run(random),
        "memory" => memory::run(random, boot),
        "platform" => platform::run(random),
        "instructions" => instructions::run(random),
        "clock" => clock::run(),
        "control" => control::run(random),
        "controller" => controller::run(random),
        "decode" => decode::run(boot.argument("own").and_then(|text| text.parse().ok()).unwrap_or(0)),
        "debug" => debug::run(random.next(), 1_000_000_000),
        "locks" => locks::run(5_000_000_000),
        "restores" => restores::run(10_000_000_000),
        "exits" => restores::exits(10_000_000_000),
        "naps" => locks::naps(100_000),
        "once" => locks::count_interrupts(5_000),
        "storm" => storm::run(),
        "virtio" => virtio::run(virtio::Kind::Disk, random, boot),
        "vif" => virtio::run(virtio::Kind::Net, random, boot),
        "face" => face::run(random, boot),
        "native" => native::run(random, boot),
        "files" => files::run(random, boot),
        "ide" => ide::run(random, boot),
        "ide-late" => ide::late(boot),
        "ide-forever" => ide::forever(boot),
        "iommu" => iommu::run(random, boot),
        "nvme" => nvme::run(random, boot),
        "hoard" => nvme::hoard(boot),
        "flood" => storm::flood(),
        "inits" => storm::inits(),
        "messages" => storm::messages(),
        "lines" => storm::lines(3_000),
        "startup" => platform::startup(random),
        "rep" => paging::endless_string(),
        "tables" => paging::tables_nowhere(),
        "descriptors" => memory::descriptors_nowhere(),
        "halt" => {
            println!("SLUICE-RESULT halted=now");
            machine::cli();
            machine::halt();
        }
        "spin" => {
            println!("SLUICE-RESULT spins=now");
            machine::cli();
            loop {
                core::hint::spin_loop();
            }
        }
        "triple" => {
            trap::load_from(0, 0);
            unsafe { core::arch::asm!("int3") };
        }
        "invalid" => control::invalid(),
        _ => println!("no such attack"),
    }
}

/// Counts attempts and the exceptions that they ended in.
#[derive(Default)]
pub struct Tally {
    tried: u64,
    raised: u64,
}

impl Tally {
    /// Runs `function`, surviving what it raises.
    pub fn attempt(&mut self, function: impl FnMut()) -> Option<u8> {
        let vector = trap::attempt(function);
        self.tried += 1;
        self.raised += u64::from(vector.is_some());
        vector
    }

    /// Prints the counts.
    pub fn report(&self, what: &str) {
        println!("SLUICE-RESULT {what}.tried={} {what}.raised={}", self.tried, self.raised);
    }
}

/// Counts what an attack tried, and what it brought about.
pub struct Score {
    what: &'static str,
    tried: u32,
    succeeded: u32,
}

impl Score {
    /// Nothing was tried yet.
    pub fn new(what: &'static str) -> Self {
        Self { what, tried: 0, succeeded: 0 }
    }

    /// One more was tried.
    pub fn add(&mut self, succeeded: bool) {
        self.tried += 1;
        self.succeeded += u32::from(succeeded);
    }
}

impl Drop for Score {
    fn drop(&mut self) {
        println!("SLUICE-RESULT {0}_tried={1} {0}_succeeded={2}", self.what, self.tried, self.succeeded);
    }
}
