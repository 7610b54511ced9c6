//! A guest's face of an NVMe disk that it shares: a range of blocks is its whole namespace.
//!
//! A guest's driver writes commands to queues in its own memory. [`Front`] is what that driver finds: registers, admin queue, one pair of
//! queues for input and output. Each command of the latter is read once and decided as a whole ([`vet`]): what becomes of it is a command of
//! the hypervisor's, with translated blocks and addresses, in a queue that the guest does not reach ([`Engine`]). Data do not pass through a
//! buffer: the physical disk moves them from and to the guest's pages.
//!
//! Everything here is a function of what it is given. Registers, memory, time and interrupts are the caller's.
//!
//! Sources: "NVM Express Base Specification", revision 1.4 (NVMe), sections 3 (registers), 4 (entries, physical region pages), 5 (admin
//! commands), 6 (commands for input and output), 7.6 (reset and shutdown); "5.7 Doorbell Buffer Config command" for doorbells in memory.
//! Deviations are argued in `docs/vpio-nvme.md`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod admin;
mod command;
mod engine;
mod front;
mod identify;
mod prp;
mod queue;
mod register;
#[cfg(test)]
mod tests;
mod vet;

pub use command::{Command, Status};
pub use engine::{Engine, Failure, Hardware};
pub use front::{Counters, Front, Lists, Taken};
pub use identify::{Facts, Offer};
pub use vet::{List, vet};

/// Bytes of a page: the only page size that is offered to guests and used with the disk.
pub const PAGE: u64 = 4096;
/// Entries of a queue of the physical disk's, and most entries of a guest's: a page of commands.
pub const DEPTH: u16 = 64;
/// Commands of a guest that the physical disk has at a time: a queue that is full has one entry less than it has room for.
pub const SLOTS: usize = DEPTH as usize - 1;
/// Most bytes that a command moves, as a power of two of pages (MDTS).
pub const MOST_PAGES_LOG2: u8 = 7;
/// Bytes of a guest's registers and doorbells. Its MSI-X table may follow.
pub const REGISTERS: u32 = 0x2000;
/// Messages of a guest's function: of the admin queue and of the other, if the driver wants them apart.
pub const VECTORS: u16 = 2;

/// Requests for events that a driver may have waiting. No event happens.
const EVENTS: u8 = 4;

/// A guest's memory, by the addresses that its drivers use. Each access is looked up.
pub trait Memory {
    /// Reads bytes; false: not all of them are memory of the guest's that its disk may access now.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;

    /// Writes bytes; false as for [`Self::read`].
    fn write(&self, at: u64, bytes: &[u8]) -> bool;

    /// Reads a word at a multiple of four bytes, all of it at once: the driver may write it meanwhile. `None` as for [`Self::read`].
    fn read_word(&self, at: u64) -> Option<u32>;

    /// Writes such a word at once, after all that was written before: the driver may read it meanwhile. False as for [`Self::read`].
    fn write_word(&self, at: u64, value: u32) -> bool;

    /// Where the physical disk finds these bytes, which are within a page, for as long as the guest has its disk.
    fn bus(&self, at: u64, len: u64) -> Option<u64>;
}

/// Memory of the hypervisor's that the physical disk reaches, and no guest does.
pub trait Shared {
    /// Where the disk finds the first byte: a multiple of [`PAGE`].
    fn bus(&self) -> u64;

    /// Copies out; `into` is left alone where it is not all inside.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Reads a word at a multiple of four bytes, all of it at once: the disk may write it meanwhile. All ones where it is not inside.
    fn read_word(&self, offset: usize) -> u32;

    /// Copies in; nothing where it is not all inside.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}
