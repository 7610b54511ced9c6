//! A guest's memory and driver, and a physical disk, made of bytes; and what they show.

mod commands;
mod controller;
mod disk;
mod driver;
mod issued;
mod model;
mod pages;
mod physical;
mod ram;
mod shadow;
mod vetting;

use crate::identify::{BYTES, Facts, Offer};
use sluice_disk::Slice;

/// Blocks of the physical disk, and the guest's range of them.
pub const BLOCKS: u64 = 10_000;
pub const FIRST: u64 = 1000;
pub const SECTORS: u64 = 5000;

/// What no guest is told.
pub const SECRET: &[u8; 20] = b"PHYSICAL-SERIAL-0001";
pub const SERIAL: &[u8; 20] = b"SLUICE guest        ";

/// Optional commands: Dataset Management and Write Zeroes.
pub const DATASET: u16 = 1 << 2;
pub const ZEROES: u16 = 1 << 3;

/// What a physical disk says of itself: most pages of a command as a power of two, optional commands, cache, size of a block as a power
/// of two. Every byte that has no meaning here is a 0xee.
pub fn answers(most: u8, commands: u16, cache: bool, shift: u8) -> ([u8; BYTES], [u8; BYTES]) {
    let (mut controller, mut namespace) = ([0xee; BYTES], [0xee; BYTES]);
    controller[..4].copy_from_slice(&[0x36, 0x1b, 0xf4, 0x1a]);
    controller[4..24].copy_from_slice(SECRET);
    controller[24..64].copy_from_slice(b"A DISK OF A MODEL                       ");
    controller[64..72].copy_from_slice(b"1.0     ");
    controller[77] = most;
    controller[520..522].copy_from_slice(&commands.to_le_bytes());
    controller[525] = cache.into();
    namespace[..8].copy_from_slice(&BLOCKS.to_le_bytes());
    namespace[26] = 0;
    namespace[33] = 1;
    namespace[128..132].copy_from_slice(&[0, 0, shift, 0]);
    (controller, namespace)
}

/// What the guest is offered of such a disk.
pub fn offer(most: u8, commands: u16, cache: bool, shift: u8) -> Offer {
    let (controller, namespace) = answers(most, commands, cache, shift);
    let facts = Facts::new(&controller, &namespace).expect("it can be shared");
    Offer::new(facts, Slice::new(FIRST, SECTORS, BLOCKS).expect("fits"), *SERIAL)
}

/// All of them, blocks of 512 bytes, and a cache.
pub fn all() -> Offer {
    offer(0, DATASET | ZEROES, true, 9)
}
