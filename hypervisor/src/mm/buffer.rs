//! Memory for a large object, outside of the heap.

use super::frames;
use super::layout::{PAGE, virt};
use sluice_memory::{FrameUse, Hpa};

/// Frames of the hypervisor's with a known number of bytes, written one piece after the other.
pub struct Buffer {
    start: Hpa,
    size: usize,
    /// Bytes written.
    len: usize,
}

impl Buffer {
    /// Room for so many bytes; `None` without memory in one piece.
    pub fn new(size: usize) -> Option<Self> {
        let frames = (size.max(1) as u64).checked_next_multiple_of(PAGE)?;
        let start = frames::allocate(FrameUse::Hypervisor, frames, PAGE)?;
        Some(Self { start, size, len: 0 })
    }

    /// Appends; false if there is no room for it.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.size - self.len;
        if fits {
            sluice_memory::PhysicalMemory::write(
                &super::Direct,
                Hpa::new(self.start.as_u64() + self.len as u64),
                bytes,
            );
            self.len += bytes.len();
        }
        fits
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no room is left.
    pub fn is_full(&self) -> bool {
        self.len == self.size
    }

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the frames are this buffer's and mapped; so many bytes of them were written, and while the slice lives nobody can
        // write more, which takes `&mut self`.
        unsafe { core::slice::from_raw_parts(virt(self.start), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        frames::release(FrameUse::Hypervisor, self.start, (self.size.max(1)) as u64);
    }
}
