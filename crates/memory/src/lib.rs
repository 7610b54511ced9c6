//! Address types, frames, nested page tables and validated guest memory.
//!
//! - [`Gpa`], [`Hpa`], [`Gva`], [`Iova`]: addresses that cannot be mixed up.
//! - [`FrameAllocator`]: which host-physical memory is free; [`FrameTable`]: what each frame of it is used for.
//! - [`Tables`]: what of it a guest or a device sees, and where; [`NestedTables`] are a guest's.
//! - [`Asids`]: the identifiers by which a processor tells the translations of guests apart.
//! - [`GuestMemory`]: the only way from a guest-physical address to memory.
//!
//! The crate touches no hardware: memory itself is behind [`PhysicalMemory`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod asid;
pub mod flushes;
mod frame_table;
mod frames;
mod guest;
mod tables;

pub use address::{Gpa, Gva, HUGE_PAGE, Hpa, Iova, LARGE_PAGE, PAGE_SIZE};
pub use asid::{Asid, Asids, Assigned};
pub use frame_table::{FrameEntry, FrameError, FrameTable, FrameUse};
pub use frames::{FrameAllocator, FreeError};
pub use guest::{AddError, Extent, GuestMemory, OutOfRange, WordPlace};
pub use tables::{Access, Entry, Format, LongMode, MapError, NestedTables, TableFrames, Tables};

/// Host-physical memory, as something that can be read and written.
pub trait PhysicalMemory {
    /// Copies bytes out.
    fn read(&self, at: Hpa, buffer: &mut [u8]);
    /// Copies bytes in.
    fn write(&self, at: Hpa, bytes: &[u8]);
    /// Sets `len` bytes.
    fn fill(&self, at: Hpa, len: u64, byte: u8);
    /// Reads an aligned word in one access.
    fn read_u64(&self, at: Hpa) -> u64;
    /// Writes an aligned word in one access.
    fn write_u64(&self, at: Hpa, value: u64);

    /// Reads an aligned half of a half word. One access, where somebody else may write it meanwhile.
    fn read_u16(&self, at: Hpa) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Writes an aligned half of a half word. One access, where somebody else may read it meanwhile.
    fn write_u16(&self, at: Hpa, value: u16) {
        self.write(at, &value.to_le_bytes());
    }

    /// Copies from one place to another, which do not overlap.
    fn copy(&self, from: Hpa, to: Hpa, len: u64) {
        let mut buffer = [0; 256];
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(usize::MAX).min(buffer.len());
            let Some(part) = buffer.get_mut(..part) else { return };
            self.read(Hpa::new(from.as_u64().wrapping_add(done)), part);
            self.write(Hpa::new(to.as_u64().wrapping_add(done)), part);
            done += part.len() as u64;
        }
    }
}
