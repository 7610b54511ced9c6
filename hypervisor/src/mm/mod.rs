//! The hypervisor's own memory: layout of its address space, final page tables, frames, heap and stacks.
//!
//! | addresses | what | rights |
//! |---|---|---|
//! | `0xffff_8000_0000_0000` up | direct map: physical address `p` is at [`DIRECT_MAP`]` + p` | RW, NX; MMIO uncached |
//! | `0xffff_c000_0000_0000` up | stacks, each with unmapped pages below it | RW, NX |
//! | `0xffff_ffff_8000_0000` up | the image, by segment | RX, R, RW |
//!
//! The image's text and constants are read-only in the direct map too. All processors share one root table.

mod buffer;
mod direct;
mod frames;
mod heap;
mod layout;
mod ledger;
mod stack;
mod table_frames;
mod tables;

pub use buffer::Buffer;
pub use direct::Direct;
pub use frames::{
    allocate, allocate_below, allocate_zeroed, check, check_free, free_bytes, is_memory, memory_bytes,
    release, zero,
};
pub use layout::{DIRECT_MAP, PAGE, is_text, phys, read_only_physical as read_only_image, virt};
pub use ledger::Ledger;
pub use stack::{Stack, is_stack, is_stack_guard, new_stack};
pub use table_frames::TableFrames;
pub use tables::{is_mapped, map_mmio, root, trampoline_root, walk_live};

pub use sluice_memory::{FrameUse, Hpa};

use crate::handover::BootInfo;

/// Takes over memory: frames below 4 GiB, then final page tables, then the rest, the table of frames and the heap.
/// Runs once, on the boot processor, on the boot page tables.
pub fn init(info: &BootInfo) {
    heap::init_early();
    frames::init_low(info);
    tables::init(info);
    frames::init_high(info);
    frames::init_table(info);
    heap::grow(frames::memory_bytes());
}

/// The boot module's bytes, if the loader brought one. After [`init`].
pub fn boot_module(info: &BootInfo) -> Option<&'static [u8]> {
    let (start, bytes) = info.bundle?;
    // SAFETY: the loader put the module into memory, `frames` leaves it out, and nobody writes it: it stays as it is for
    // the rest of the run.
    Some(unsafe { core::slice::from_raw_parts(virt(start), usize::try_from(bytes).ok()?) })
}

/// Panics unless the live page tables keep what they promise: no page both writable and executable, no
/// writable alias of text or constants, no mapping below the kernel half, and every stack guard unmapped.
pub fn check_live() {
    let mut leaves = 0u64;
    walk_live(|leaf| {
        leaves += 1;
        assert!(!(leaf.writable && leaf.executable), "writable and executable: {leaf:x?}");
        assert!(leaf.address >= DIRECT_MAP, "mapped below the kernel half: {leaf:x?}");
        let read_only = layout::read_only_physical();
        let aliases = leaf.physical < read_only.end && leaf.physical + leaf.bytes > read_only.start;
        assert!(!(leaf.writable && aliases), "writable alias of read-only image memory: {leaf:x?}");
    });
    stack::check_guards();
    log::info!("page tables: {leaves} leaves, none writable and executable, stack guards unmapped");
}
