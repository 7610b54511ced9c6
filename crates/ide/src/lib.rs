//! What a guest may do with an IDE disk that it shares: a range of sectors is its whole disk.
//!
//! A driver writes a command's parameters to the task file and then the command's code. [`TaskFile`] keeps
//! what the guest wrote; [`vet`] decides what becomes of the command: it is answered without the disk,
//! issued at a translated address, or aborted. [`prd::translate`] copies the guest's table of memory regions
//! into one that only the hypervisor writes. [`identify::filter`] makes the guest's own identification.
//!
//! Everything here is a function of what it is given. Registers, ports and interrupts are the caller's.
//!
//! Sources: T13/1410D, "AT Attachment with Packet Interface - 6" (ATA-6), revision 3b, sections 6.2, 7, 8;
//! "Programming Interface for Bus Master IDE Controller", revision 1.0 (SFF-8038i).
//! Deviations are argued in `docs/vpio-ide.md`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod channel;
mod command;
pub mod identify;
pub mod prd;
mod slice;
mod task_file;

pub use channel::Channel;
pub use command::{Abort, Disk, Issue, Kind, Local, Verdict, vet};
pub use slice::{OutOfSlice, Slice};
pub use task_file::{Register, TaskFile};

/// Bytes of a sector. Disks with other logical sectors are not shared.
pub const SECTOR: u64 = 512;
