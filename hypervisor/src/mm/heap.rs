//! The global allocator: talc on a small static area while memory is being found, then on frames as well.

use super::frames;
use super::layout::virt;
use crate::sync::RawTicket;
use core::cell::UnsafeCell;
use sluice_memory::FrameUse;
use talc::{TalcLock, source::Manual};

#[global_allocator]
static HEAP: TalcLock<RawTicket, Manual> = TalcLock::new(Manual);

const EARLY_BYTES: usize = 256 * 1024;
const MIB: u64 = 1 << 20;

#[repr(C, align(4096))]
struct Early(UnsafeCell<[u8; EARLY_BYTES]>);

// SAFETY: only its address is used, once, to hand the bytes to the allocator.
unsafe impl Sync for Early {}

static EARLY: Early = Early(UnsafeCell::new([0; EARLY_BYTES]));

/// Gives the allocator its first bytes.
pub fn init_early() {
    // SAFETY: the area is static, writable, and named nowhere else; this runs once.
    unsafe { HEAP.lock().claim(EARLY.0.get().cast(), EARLY_BYTES) };
}

/// Gives the allocator a 32nd of memory, 16 to 256 MiB.
pub fn grow(memory: u64) {
    let bytes = (memory / 32 / MIB * MIB).clamp(16 * MIB, 256 * MIB);
    let start = frames::allocate(FrameUse::Hypervisor, bytes, 2 * MIB).expect("memory for the heap");
    // SAFETY: the frames were just allocated for this and are never freed; the direct map covers them.
    unsafe { HEAP.lock().claim(virt(start), bytes as usize) };
}
