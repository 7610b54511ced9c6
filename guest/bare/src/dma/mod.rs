//! Attacks by a device: it is told to read and to write where its guest has no memory.
//!
//! `job=dma:DEVICE` attacks, `dma:DEVICE:read` only by reads, `dma:DEVICE:edges` (or another of its parts) in part, `dma:DEVICE:hunt` writes to memory of a
//! [`witness`](crate::witness) that it finds; `dma:DEVICE:forever` keeps the device writing into its own guest's
//! memory until somebody ends it, `dma:e1000:flood` the cards of others, and `dma:DEVICE:doorbell` gives it all the work
//! that one doorbell can, and `dma:DEVICE:fine` is for one that reaches only what is issued to it ([`fine`]). A device is an [`Engine`]; [`attack`] has what is tried with each, [`targets`]
//! where.
//!
//! A blocked write shows as memory that does not come back: what was written there is read again, by the
//! device. A blocked read brings zeros, ones, or nothing. The same transfers within the guest's own memory
//! work (`control`), else nothing is proved.

mod ahci;
mod attack;
pub mod e1000;
pub mod fine;
pub mod memory;
mod nvme;
mod rtl8139;
pub mod targets;

use crate::console::println;
use crate::entry::BootInfo;
use crate::machine;
use memory::Own;

/// Bytes of a transfer.
pub const LEN: u64 = 512;

/// A device that masters the bus. "Own" addresses are of memory that its guest has.
pub trait Engine {
    /// Moves [`LEN`] bytes from a bus address to an own one; what does not come leaves it as it is.
    fn read(&mut self, from: u64, into: u64);

    /// Moves [`LEN`] bytes from an own address to a bus address. The first and last few may be something else.
    fn write(&mut self, to: u64, from: u64);

    /// What [`Engine::misplace`] can put anywhere.
    fn structures(&self) -> &'static [&'static str];

    /// Puts the rings, lists or tables that the device works from at a bus address, and lets it go to work.
    fn misplace(&mut self, which: usize, at: u64);

    /// Gives the device as much to write into the own pages of `area` as it can take, and goes on later.
    fn keep_busy(&mut self, area: (u64, u64));

    /// Gives the device as much to read as its rings can hold, by one doorbell. True if that is done before long, and is to
    /// be done again.
    fn ring_doorbell(&mut self, _: &mut Own) -> bool {
        false
    }

    /// Sends a frame to everybody on its network, if it has one.
    fn broadcast(&mut self) {}
}

/// Runs the job `detail`.
pub fn run(detail: &str, boot: &BootInfo) {
    let (device, part) = detail.split_once(':').unwrap_or((detail, "all"));
    let mut own = Own::new(boot);
    if part == "fine" {
        // Before the device has anything to look at.
        let Some(space) = fine::open(&own) else {
            println!("SLUICE-RESULT space=none done=failed");
            return;
        };
        return match device {
            "e1000" => fine_with(device, space, e1000::E1000::open(&mut own), own),
            "nvme" => fine_with(device, space, nvme::Nvme::open(&mut own), own),
            _ => println!("no such device: {device}"),
        };
    }
    match device {
        "rtl8139" => start(device, part, rtl8139::Rtl8139::open(&mut own), own, boot),
        "e1000" => start(device, part, e1000::E1000::open(&mut own), own, boot),
        "symbiotic" => start(device, part, e1000::E1000::open_symbiotic(&mut own), own, boot),
        "nvme" => start(device, part, nvme::Nvme::open(&mut own), own, boot),
        "ahci" => start(device, part, ahci::Ahci::open(&mut own), own, boot),
        _ => println!("no such device: {device}"),
    }
}

fn fine_with(device: &str, space: u64, engine: Option<impl Engine>, own: Own) {
    match engine {
        Some(mut engine) => fine::run(device, space, &mut engine, own),
        None => println!("SLUICE-RESULT control=no-device done=failed"),
    }
}

fn start(device: &str, part: &str, engine: Option<impl Engine>, own: Own, boot: &BootInfo) {
    let Some(mut engine) = engine else {
        println!("SLUICE-RESULT control=no-device done=failed");
        return;
    };
    match part {
        "forever" => forever(&mut engine, own),
        "doorbell" => doorbell(&mut engine, own),
        "flood" => {
            println!("SLUICE-RESULT flood=now");
            // At a pace that a ring of thousands of descriptors stands for seconds.
            loop {
                engine.broadcast();
                machine::pause(1_000_000);
            }
        }
        _ => attack::run(device, part, &mut engine, own, boot),
    }
}

/// The device has more to do than anybody can want, until somebody ends it; its guest sleeps if it can.
fn doorbell(engine: &mut dyn Engine, mut own: Own) {
    let mut again = engine.ring_doorbell(&mut own);
    println!("SLUICE-RESULT doorbell=now");
    while again {
        again = engine.ring_doorbell(&mut own);
    }
    machine::cli();
    machine::halt();
}

/// The device writes into all its guest's memory, until somebody ends it.
fn forever(engine: &mut dyn Engine, own: Own) {
    let area = own.rest();
    for round in 0u64.. {
        engine.keep_busy(area);
        if round == 100 {
            println!("SLUICE-RESULT writes=now");
        }
    }
}
