//! Addresses that the linker script and the page tables agree on.

use core::ops::Range;
use sluice_memory::Hpa;

/// Where physical address 0 is mapped.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
/// End of the room for the direct map: 64 TiB.
pub const DIRECT_MAP_END: u64 = 0xffff_c000_0000_0000;
/// Where stacks are mapped.
pub const STACKS: u64 = 0xffff_c000_0000_0000;
/// Linked address minus load address of the image (`IMAGE_BASE` in `link.ld`).
pub const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
}

macro_rules! between {
    ($start:ident, $end:ident) => {
        &raw const $start as u64..&raw const $end as u64
    };
}

/// Addresses of the executable part.
pub fn text() -> Range<u64> {
    between!(text_start, text_end)
}

/// Addresses of the constants.
pub fn rodata() -> Range<u64> {
    between!(rodata_start, rodata_end)
}

/// Addresses of the variables, zero-initialised ones too.
pub fn data() -> Range<u64> {
    between!(data_start, data_end)
}

/// Physical addresses of the whole image.
pub fn image_range() -> Range<u64> {
    let image = between!(image_start, image_end);
    image.start - IMAGE_BASE..image.end - IMAGE_BASE
}

/// Physical addresses of text and constants, which nothing may map writable.
pub fn read_only_physical() -> Range<u64> {
    text().start - IMAGE_BASE..rodata().end - IMAGE_BASE
}

/// Whether `address` lies in the executable part of the image.
pub fn is_text(address: u64) -> bool {
    text().contains(&address)
}

/// Direct-map address of a physical one.
#[inline]
pub fn direct(physical: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(DIRECT_MAP.wrapping_add(physical) as usize)
}

/// Physical address of one in the direct map or in the image.
pub fn physical(address: u64) -> Option<u64> {
    if (DIRECT_MAP..DIRECT_MAP_END).contains(&address) {
        Some(address - DIRECT_MAP)
    } else if (text().start..data().end).contains(&address) {
        Some(address - IMAGE_BASE)
    } else {
        None
    }
}

/// Bytes of the smallest page.
pub const PAGE: u64 = sluice_memory::PAGE_SIZE;

/// Address at which the hypervisor reaches a physical address. Below 4 GiB everything is mapped; above, memory and
/// what [`super::map_mmio`] was asked for.
#[inline]
pub fn virt(address: Hpa) -> *mut u8 {
    direct(address.as_u64())
}

/// Physical address of something in the direct map or in the image.
pub fn phys<T: ?Sized>(pointer: *const T) -> Option<Hpa> {
    physical(pointer.cast::<u8>() as u64).map(Hpa::new)
}
