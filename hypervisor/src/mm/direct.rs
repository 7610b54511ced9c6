//! Physical memory through the direct map, for the crates that see it only as [`PhysicalMemory`].
//!
//! Guests and devices may change the memory at any time. It is therefore copied by string instructions and single
//! accesses that the compiler cannot see into, and no reference to it is made.

use super::layout::virt;
use core::arch::asm;
use sluice_memory::{Hpa, PhysicalMemory};

/// All of physical memory. The caller of its functions owns what it names, or has validated it against a guest's
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl PhysicalMemory for Direct {
    #[inline]
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        // SAFETY: the source is mapped physical memory that the caller may read; the slice is writable, of that length,
        // and apart from it, because no Rust object but the hypervisor's own lies where callers read.
        unsafe { copy(buffer.as_mut_ptr(), virt(at), buffer.len()) };
    }

    #[inline]
    fn write(&self, at: Hpa, bytes: &[u8]) {
        // SAFETY: as for `read`, the other way round.
        unsafe { copy(virt(at), bytes.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        // SAFETY: as for `write`.
        unsafe { set(virt(at), byte, len as usize) };
    }

    #[inline]
    fn read_u64(&self, at: Hpa) -> u64 {
        debug_assert!(at.is_aligned(8));
        // SAFETY: mapped physical memory, aligned; any bits are a value.
        unsafe { virt(at).cast::<u64>().read_volatile() }
    }

    #[inline]
    fn write_u64(&self, at: Hpa, value: u64) {
        debug_assert!(at.is_aligned(8));
        // SAFETY: mapped physical memory that the caller may write, aligned.
        unsafe { virt(at).cast::<u64>().write_volatile(value) };
    }

    #[inline]
    fn read_u16(&self, at: Hpa) -> u16 {
        debug_assert!(at.is_aligned(2));
        // SAFETY: as for `read_u64`.
        unsafe { virt(at).cast::<u16>().read_volatile() }
    }

    #[inline]
    fn write_u16(&self, at: Hpa, value: u16) {
        debug_assert!(at.is_aligned(2));
        // SAFETY: as for `write_u64`.
        unsafe { virt(at).cast::<u16>().write_volatile(value) };
    }

    #[inline]
    fn copy(&self, from: Hpa, to: Hpa, len: u64) {
        // SAFETY: mapped physical memory that the caller may read and write; ranges that overlap, which two buffers of one guest
        // may, leave bytes that only that guest sees.
        unsafe { copy(virt(to), virt(from), len as usize) };
    }
}

impl Direct {
    /// Replaces an aligned word in one locked access, if it is `old` still. Returns whether it was.
    pub fn replace_u64(self, at: Hpa, old: u64, new: u64) -> bool {
        debug_assert!(at.is_aligned(8));
        let found: u64;
        // SAFETY: mapped physical memory that the caller may write, aligned.
        unsafe {
            asm!("lock cmpxchg [{at}], {new}", at = in(reg) virt(at), new = in(reg) new, inout("rax") old => found,
                options(nostack));
        }
        found == old
    }

    /// Sets bits of an aligned word in one locked access, whatever others do there.
    pub fn set_bits(self, at: Hpa, bits: u64) {
        debug_assert!(at.is_aligned(8));
        // SAFETY: mapped physical memory that the caller may write, aligned.
        unsafe {
            asm!("lock or [{at}], {bits}", at = in(reg) virt(at), bits = in(reg) bits, options(nostack));
        }
    }

    /// Reads four bytes at once; `at` is a multiple of four.
    pub fn read_u32(self, at: Hpa) -> u32 {
        debug_assert!(at.is_aligned(4));
        // SAFETY: as for `read_u64`.
        unsafe { virt(at).cast::<u32>().read_volatile() }
    }

    /// Writes four bytes at once; `at` is a multiple of four.
    pub fn write_u32(self, at: Hpa, value: u32) {
        debug_assert!(at.is_aligned(4));
        // SAFETY: as for `write_u64`.
        unsafe { virt(at).cast::<u32>().write_volatile(value) };
    }
}

/// Copies upward: words, then the bytes that are left.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`. Where they overlap, what is there afterwards is some of the bytes.
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // A descriptor, a header, addresses: a string instruction takes long to begin. Both words are read before one is written.
    if let 8..=16 = bytes {
        // SAFETY: the caller's; the second word begins at most eight bytes after the first, and ends where the bytes do.
        unsafe {
            asm!("mov {first}, [{from}]", "mov {last}, [{from} + {bytes} - 8]", "mov [{to}], {first}",
                "mov [{to} + {bytes} - 8], {last}", first = out(reg) _, last = out(reg) _, from = in(reg) from, to = in(reg) to,
                bytes = in(reg) bytes, options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: the caller's; DF is clear by the ABI.
    unsafe {
        asm!("rep movsq", "mov ecx, {rest:e}", "rep movsb", rest = in(reg) bytes & 7, inout("rcx") bytes / 8 => _,
            inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
    }
}

/// Sets bytes upward.
///
/// # Safety
/// `at` is writable for `bytes`.
#[inline]
pub(super) unsafe fn set(at: *mut u8, byte: u8, bytes: usize) {
    let word = u64::from(byte) * 0x0101_0101_0101_0101;
    // SAFETY: the caller's; DF is clear by the ABI.
    unsafe {
        asm!("rep stosq", "mov ecx, {rest:e}", "rep stosb", rest = in(reg) bytes & 7, inout("rcx") bytes / 8 => _,
            inout("rdi") at => _, in("rax") word, options(nostack, preserves_flags));
    }
}
