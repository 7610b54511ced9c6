//! Frames of physical memory: which may be used, and the allocator that hands them out.
//!
//! Left out: the first MiB, the image, the bundle, and whatever the memory map does not call usable. The boot loader's
//! own structures are not: they have been copied by then.

use super::{PAGE, direct, layout, virt};
use crate::handover::{BootInfo, RegionKind};
use crate::sync::{Rank, SpinLock, SpinLockGuard};
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_memory::{FrameAllocator, Hpa};

static FRAMES: SpinLock<FrameAllocator> = SpinLock::new(Rank::Frames, FrameAllocator::new());
static MEMORY: AtomicU64 = AtomicU64::new(0);

const MIB: u64 = 1 << 20;
const FOUR_GIB: u64 = 1 << 32;

/// The frame allocator, locked.
pub fn frames() -> SpinLockGuard<'static, FrameAllocator> {
    FRAMES.lock()
}

/// Bytes of usable memory that the firmware reported.
pub fn memory_bytes() -> u64 {
    MEMORY.load(Ordering::Relaxed)
}

/// Allocates whole pages of zeros.
pub fn allocate_zeroed(bytes: u64) -> Option<Hpa> {
    let start = frames().allocate(bytes.next_multiple_of(PAGE), PAGE)?;
    zero(start, bytes.next_multiple_of(PAGE));
    Some(start)
}

/// Gives back what [`allocate_zeroed`] or [`frames`] gave. Panics if it is free already: then two owners wrote to it.
pub fn release(start: Hpa, bytes: u64) {
    let freed = frames().free(start, bytes.next_multiple_of(PAGE));
    assert!(freed.is_ok(), "frames at {start} for {bytes:#x} bytes given back: {freed:?}");
}

/// Overwrites memory with zeros. The caller owns it.
pub fn zero(start: Hpa, bytes: u64) {
    // SAFETY: physical memory that the frame allocator manages is mapped writable at these addresses; none of it is
    // ever behind a Rust reference but for what its owner, the caller, makes of it.
    unsafe { direct::set(virt(start), 0, bytes as usize) };
}

/// Adds usable memory below 4 GiB, which the boot page tables reach.
pub(super) fn init_low(info: &BootInfo) {
    let usable = info.memory.iter().filter(|region| region.kind == RegionKind::Usable);
    MEMORY.store(usable.map(|region| region.end - region.start).sum(), Ordering::Relaxed);
    add(info, MIB..FOUR_GIB);
}

/// Adds the rest, which the final page tables reach.
pub(super) fn init_high(info: &BootInfo) {
    add(info, FOUR_GIB..u64::MAX);
}

/// Adds the usable pages within `window`, less the holes.
fn add(info: &BootInfo, window: Range<u64>) {
    let mut holes = ArrayVec::<Range<u64>, { crate::handover::MAX_REGIONS + 2 }>::new();
    holes.push(layout::image_range());
    holes.extend(info.bundle.map(|(start, bytes)| start.as_u64()..start.as_u64().saturating_add(bytes)));
    // Firmware may list a range twice; what is reserved anywhere stays reserved.
    let taken = info.memory.iter().filter(|region| region.kind != RegionKind::Usable);
    holes.extend(taken.map(|region| region.start..region.end));
    holes.sort_unstable_by_key(|hole| hole.start);
    for region in info.memory.iter().filter(|region| region.kind == RegionKind::Usable) {
        let mut start = region.start.max(window.start).next_multiple_of(PAGE);
        let end = region.end.min(window.end) & !(PAGE - 1);
        for hole in &holes {
            let hole_start = hole.start & !(PAGE - 1);
            if hole_start >= end || hole.end <= start {
                continue;
            }
            give(start, hole_start);
            start = start.max(hole.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
        }
        give(start, end);
    }
}

fn give(start: u64, end: u64) {
    if start < end && frames().add(Hpa::new(start), end - start).is_err() {
        log::warn!("memory {start:#x}-{end:#x} is listed twice: ignored");
    }
}
