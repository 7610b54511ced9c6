//! Port input and output, single and string.
//!
//! Reading a port can have any effect its device gives it, but none of these touches memory beyond the slice
//! passed in; the memory safety of the machine (DMA) is the business of whoever owns the device. They are
//! therefore safe functions to call in this ring, where every caller is hypervisor code.

use core::arch::asm;

/// Reads a byte.
#[inline]
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: IN touches no memory and no flags.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads 16 bits.
#[inline]
pub fn inw(port: u16) -> u16 {
    let value;
    // SAFETY: IN touches no memory and no flags.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads 32 bits.
#[inline]
pub fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: IN touches no memory and no flags.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes a byte.
#[inline]
pub fn outb(port: u16, value: u8) {
    // SAFETY: OUT touches no flags; it is not marked `nomem`, so that buffers are written before a doorbell.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes 16 bits.
#[inline]
pub fn outw(port: u16, value: u16) {
    // SAFETY: as for `outb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Writes 32 bits.
#[inline]
pub fn outl(port: u16, value: u32) {
    // SAFETY: as for `outb`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) };
}

macro_rules! string_in {
    ($name:ident, $type:ty, $instruction:literal) => {
        /// Fills the slice from the port, element by element, upward.
        #[inline]
        pub fn $name(port: u16, buffer: &mut [$type]) {
            // SAFETY: writes exactly `buffer.len()` elements from its start upward; DF is clear by the ABI.
            unsafe {
                asm!($instruction, in("dx") port, inout("rdi") buffer.as_mut_ptr() => _,
                    inout("rcx") buffer.len() => _, options(nostack, preserves_flags))
            };
        }
    };
}

macro_rules! string_out {
    ($name:ident, $type:ty, $instruction:literal) => {
        /// Writes the slice to the port, element by element, upward.
        #[inline]
        pub fn $name(port: u16, buffer: &[$type]) {
            // SAFETY: reads exactly `buffer.len()` elements from its start upward; DF is clear by the ABI.
            unsafe {
                asm!($instruction, in("dx") port, inout("rsi") buffer.as_ptr() => _,
                    inout("rcx") buffer.len() => _, options(nostack, preserves_flags))
            };
        }
    };
}

string_in!(insb, u8, "rep insb");
string_in!(insw, [u8; 2], "rep insw");
string_in!(insl, [u8; 4], "rep insd");
string_out!(outsb, u8, "rep outsb");
string_out!(outsw, [u8; 2], "rep outsw");
string_out!(outsl, [u8; 4], "rep outsd");
