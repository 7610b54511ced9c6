//! A guest's face of an IDE disk that it shares: a range of sectors is its whole disk.
//!
//! A driver writes a command's parameters to the task file and then the command's code. [`Front`] is what a guest's driver
//! finds: registers, bus master and all. It has [`vet`] decide what becomes of a command: it is answered without the disk, issued at a translated
//! address, or aborted. What is issued goes to the physical disk in parts, by [`Engine`]; [`Channel`] says whose part is next.
//! Data move between the guest's memory and the disk, or by a buffer of the caller's ([`prd::Cursor`]).
//! [`identify::filter`] makes the guest's own identification.
//!
//! Everything here but the engine is a function of what it is given. Ports, time and interrupts are the caller's.
//!
//! Sources: T13/1410D, "AT Attachment with Packet Interface - 6" (ATA-6), revision 3b, sections 6.2, 7, 8, 9;
//! "Programming Interface for Bus Master IDE Controller", revision 1.0 (SFF-8038i); "PCI IDE Controller Specification", revision
//! 1.0. Deviations are argued in `docs/vpio-ide.md`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod channel;
mod command;
mod engine;
mod front;
pub mod identify;
pub mod prd;
mod task_file;

pub use channel::Channel;
pub use command::{Abort, Disk, Issue, Kind, Local, Verdict, vet};
pub use engine::{Engine, Failure, Ports, SETTLES_US};
pub use front::{Counters, Front, GivenUp, PART, PLACED, Wish};
pub use sluice_disk::{OutOfSlice, Slice};
pub use task_file::{Register, TaskFile};

/// Bytes of a sector. Disks with other logical sectors are not shared.
pub const SECTOR: u64 = 512;

/// A guest's memory, by the addresses that its drivers use. Each access is looked up; false: not all of it is memory that the
/// guest may access so.
pub trait Memory {
    /// Reads bytes.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;

    /// Writes bytes.
    fn write(&self, at: u64, bytes: &[u8]) -> bool;

    /// Where the disk's bus master finds these bytes, all of which it may read and write, until the guest leaves or is told that they are its own again;
    /// `None`: not, or not in one piece.
    fn bus(&self, at: u64, bytes: u64) -> Option<u32>;
}

/// The registers of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The command block: data, features or error, count, LBA low, mid, high, device, command or status.
    Command,
    /// The control block: device control or alternate status, at offset 2.
    Control,
    /// The bus master: command, status, and the address of the table.
    BusMaster,
}

/// Bits of registers.
pub mod bits {
    /// Status: the last command failed.
    pub const ERR: u8 = 1 << 0;
    /// Status: data are wanted, or there.
    pub const DRQ: u8 = 1 << 3;
    /// Status: what "seek complete" was.
    pub const DSC: u8 = 1 << 4;
    /// Status: device fault.
    pub const DF: u8 = 1 << 5;
    /// Status: ready.
    pub const DRDY: u8 = 1 << 6;
    /// Status: busy; no other bit counts.
    pub const BSY: u8 = 1 << 7;
    /// Error: aborted.
    pub const ABRT: u8 = 1 << 2;
    /// Error: there is no such sector.
    pub const IDNF: u8 = 1 << 4;
    /// Device control: no interrupts.
    pub const NIEN: u8 = 1 << 1;
    /// Device control: software reset.
    pub const SRST: u8 = 1 << 2;
    /// Device control: previous contents are read.
    pub const HOB: u8 = 1 << 7;
    /// Bus master command: start.
    pub const START: u8 = 1 << 0;
    /// Bus master command: into memory.
    pub const INTO_MEMORY: u8 = 1 << 3;
    /// Bus master status: under way.
    pub const ACTIVE: u8 = 1 << 0;
    /// Bus master status: data could not be moved.
    pub const ERROR: u8 = 1 << 1;
    /// Bus master status: the disk has interrupted.
    pub const INTERRUPT: u8 = 1 << 2;
}

#[cfg(test)]
mod tests {
    use super::Memory;
    use std::cell::RefCell;
    use std::vec;
    use std::vec::Vec;

    /// Memory from 0 up, and where a disk finds it.
    pub struct Ram(RefCell<Vec<u8>>, Option<u32>);

    impl Ram {
        /// Memory that no disk reaches.
        pub fn new(bytes: usize) -> Self {
            Self(RefCell::new(vec![0; bytes]), None)
        }

        /// Memory that a disk finds so far behind its address.
        pub fn lent(bytes: usize, offset: u32) -> Self {
            Self(RefCell::new(vec![0; bytes]), Some(offset))
        }

        pub fn bytes(&self) -> Vec<u8> {
            self.0.borrow().clone()
        }
    }

    impl Memory for Ram {
        fn read(&self, at: u64, into: &mut [u8]) -> bool {
            let ram = self.0.borrow();
            let part = ram.get(at as usize..(at as usize).saturating_add(into.len()));
            part.inspect(|part| into.copy_from_slice(part)).is_some()
        }

        fn write(&self, at: u64, bytes: &[u8]) -> bool {
            let mut ram = self.0.borrow_mut();
            let part = ram.get_mut(at as usize..(at as usize).saturating_add(bytes.len()));
            part.map(|part| part.copy_from_slice(bytes)).is_some()
        }

        fn bus(&self, at: u64, bytes: u64) -> Option<u32> {
            let end = at.checked_add(bytes).filter(|end| *end <= self.0.borrow().len() as u64);
            end.and(self.1).map(|offset| offset + at as u32)
        }
    }
}
