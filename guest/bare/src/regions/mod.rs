//! Memory that a device holds for guests (`dma = "regions"`): a domain that serves two of them ([`serve`]) tries to get at what they hold
//! there ([`hold`]), by its processor and by its device, which is QEMU's [`edu`].
//!
//! They talk by the first page of each region, which the device writes, and by the status of the virtual device, which its guest writes.

mod edu;
mod hold;
mod serve;

use crate::console::println;
use crate::entry::BootInfo;

/// Pages of a region by what they are for, as references of maps, too.
mod page {
    /// Where the device writes what is to be done.
    pub const COMMAND: u64 = 0;
    /// What the guest holds: the first page, and the end.
    pub const SECRETS: u64 = 1;
    pub const SECRETS_END: u64 = 7;
    /// Where the device copies a secret of the same guest.
    pub const OWN: u64 = 7;
    /// Where the device is told to copy those of the other guest.
    pub const FOREIGN: u64 = 8;
    /// Where the device writes from its buffer what it read while it reached the other guest's region.
    pub const CARRIED: u64 = 9;
    /// Pages that are used.
    pub const END: u64 = 10;
}

/// Commands.
mod command {
    pub const BEGIN: u32 = 0x6265_6769;
    pub const LOOK: u32 = 0x6c6f_6f6b;
}

const PAGE: u64 = 4096;
/// Bytes of a page that are used: what the device's buffer takes at once.
const LEN: u64 = 2048;
/// What the guest of this number holds, in every word.
const fn secret(guest: u32) -> u32 {
    0x5ec2_e700 + guest
}
/// What is written where nothing may be.
const DAMAGE: u32 = 0xdada_dada;
/// How long the other side is waited for, in ticks of the time-stamp counter.
const PATIENCE: u64 = 100_000_000_000;

/// Runs the job: `serve`, or `hold:N`, which holds the secret of guest N.
pub fn run(detail: &str, boot: &BootInfo) {
    match detail.split_once(':') {
        None if detail == "serve" => serve::run(boot),
        Some(("hold", number)) => hold::run(number.parse().unwrap_or(0)),
        _ => println!("no such job: {detail}"),
    }
}
