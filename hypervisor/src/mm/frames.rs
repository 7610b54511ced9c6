//! Frames of physical memory: which may be used, the allocator that hands them out, and the table of what each is used for.
//!
//! Allocator and table change under one lock. Where they do not agree, or somebody gives back what is not his or what a map
//! still shows, the hypervisor is at fault and stops: two owners would have the same memory.
//!
//! Left out: the first MiB, the image, the bundle, and whatever the memory map does not call usable. The boot loader's
//! own structures are not: they have been copied by then.

use super::{PAGE, direct, layout, virt};
use crate::handover::{BootInfo, MAX_REGIONS, Region, RegionKind};
use crate::sync::{Rank, SpinLock};
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_memory::{FrameAllocator, FrameEntry, FrameError, FrameTable, FrameUse, Hpa};

static FRAMES: SpinLock<Frames> = SpinLock::new(Rank::Frames, Frames::new());
static MEMORY: AtomicU64 = AtomicU64::new(0);

const MIB: u64 = 1 << 20;
const FOUR_GIB: u64 = 1 << 32;

/// What is free, and what the rest is used for.
struct Frames {
    free: FrameAllocator,
    /// Empty at first.
    table: FrameTable,
}

impl Frames {
    const fn new() -> Self {
        Self { free: FrameAllocator::new(), table: FrameTable::new() }
    }

    /// Notes another use of frames. What was taken before there was a table is [`FrameUse::Reserved`] in it.
    fn change(&mut self, start: Hpa, bytes: u64, from: FrameUse, to: FrameUse) -> Result<(), FrameError> {
        if self.table.is_empty() { Ok(()) } else { self.table.change(start, bytes, from, to) }
    }
}

/// Allocates whole pages at a multiple of `align`, a power of two.
pub fn allocate(used_as: FrameUse, bytes: u64, align: u64) -> Option<Hpa> {
    allocate_below(used_as, bytes, align, u64::MAX)
}

/// As [`allocate`], all of it below `limit`.
pub fn allocate_below(used_as: FrameUse, bytes: u64, align: u64, limit: u64) -> Option<Hpa> {
    let mut frames = FRAMES.lock();
    let start = frames.free.allocate_below(bytes, align, limit)?;
    let changed = frames.change(start, bytes, FrameUse::Free, used_as);
    drop(frames);
    assert!(changed.is_ok(), "free frames at {start} for {bytes:#x} bytes as {used_as:?}: {changed:x?}");
    Some(start)
}

/// Bytes that are free.
pub fn free_bytes() -> u64 {
    FRAMES.lock().free.free_bytes()
}

/// Whether any byte of a range is memory, and not registers of a device or nothing.
pub fn is_memory(start: Hpa, bytes: u64) -> bool {
    FRAMES.lock().table.meets(start, bytes)
}

/// Checks what frames are used for.
///
/// # Errors
/// See [`FrameError`].
pub fn check(start: Hpa, bytes: u64, used_as: FrameUse) -> Result<(), FrameError> {
    FRAMES.lock().table.check(start, bytes, used_as)
}

/// See [`FrameTable::pin`].
pub(super) fn pin(start: Hpa, bytes: u64, used_as: FrameUse) -> Result<(), FrameError> {
    FRAMES.lock().table.pin(start, bytes, used_as)
}

/// See [`FrameTable::unpin`]. Panics if the frames are not pinned.
pub(super) fn unpin(start: Hpa, bytes: u64) {
    let unpinned = FRAMES.lock().table.unpin(start, bytes);
    assert!(unpinned.is_ok(), "frames at {start} for {bytes:#x} bytes are shown no more: {unpinned:x?}");
}

/// Bytes of usable memory that the firmware reported.
pub fn memory_bytes() -> u64 {
    MEMORY.load(Ordering::Relaxed)
}

/// Allocates whole pages of zeros, for the hypervisor itself.
pub fn allocate_zeroed(bytes: u64) -> Option<Hpa> {
    let start = allocate(FrameUse::Hypervisor, bytes.next_multiple_of(PAGE), PAGE)?;
    zero(start, bytes.next_multiple_of(PAGE));
    Some(start)
}

/// Gives back what [`allocate`] or [`allocate_zeroed`] gave. Panics if it is used for something else, free already, or
/// shown by a map.
pub fn release(used_as: FrameUse, start: Hpa, bytes: u64) {
    let bytes = bytes.next_multiple_of(PAGE);
    let mut frames = FRAMES.lock();
    let changed = frames.change(start, bytes, used_as, FrameUse::Free);
    let freed = changed.is_ok().then(|| frames.free.free(start, bytes));
    drop(frames);
    assert!(
        changed.is_ok() && freed == Some(Ok(())),
        "frames at {start} for {bytes:#x} bytes given back as {used_as:?}: {changed:x?}, {freed:?}"
    );
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

/// Makes the table, once all memory is with the allocator and can be reached. Panics if there is no room for it.
pub(super) fn init_table(info: &BootInfo) {
    let runs = runs(info);
    let count = runs.iter().map(|run| (run.end - run.start) / PAGE).sum::<u64>();
    let bytes = (count * size_of::<FrameEntry>() as u64).next_multiple_of(PAGE);
    let start = allocate(FrameUse::Reserved, bytes, PAGE).expect("memory for the table of frames");
    // SAFETY: the frames were just allocated for this and are never freed; the direct map covers them, and any bits are
    // an entry.
    let mut left =
        unsafe { core::slice::from_raw_parts_mut(virt(start).cast::<FrameEntry>(), count as usize) };
    let mut frames = FRAMES.lock();
    let Frames { free, table } = &mut *frames;
    let mut noted = Ok(());
    for run in runs {
        let (section, rest) = left.split_at_mut(((run.end - run.start) / PAGE) as usize);
        left = rest;
        noted = noted.and(table.add(Hpa::new(run.start), section));
    }
    for (start, bytes) in free.extents() {
        noted = noted.and(table.change(start, bytes, FrameUse::Reserved, FrameUse::Free));
    }
    drop(frames);
    assert!(noted.is_ok(), "the table of frames: {noted:x?}");
    log::debug!("table of {count} frames: {} KiB", bytes >> 10);
}

/// Memory as runs of pages that do not touch, in rising order.
fn runs(info: &BootInfo) -> ArrayVec<Range<u64>, MAX_REGIONS> {
    let memory = info.memory.iter().filter(|region| region.kind.is_memory()).map(Region::pages);
    let mut regions: ArrayVec<Range<u64>, MAX_REGIONS> = memory.filter(|range| !range.is_empty()).collect();
    regions.sort_unstable_by_key(|range| range.start);
    let mut runs = ArrayVec::<Range<u64>, MAX_REGIONS>::new();
    for range in regions {
        match runs.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => runs.push(range),
        }
    }
    runs
}

/// Panics unless what is free is what the table calls free.
pub fn check_free() {
    let frames = FRAMES.lock();
    let wrong = frames
        .free
        .extents()
        .find_map(|(start, bytes)| frames.table.check(start, bytes, FrameUse::Free).err());
    let (free, noted) = (frames.free.free_bytes(), frames.table.count(FrameUse::Free) * PAGE);
    drop(frames);
    assert!(
        wrong.is_none() && free == noted,
        "{free:#x} bytes are free, {noted:#x} by the table: {wrong:x?}"
    );
}

/// Adds the usable pages within `window`, less the holes.
fn add(info: &BootInfo, window: Range<u64>) {
    let mut holes = ArrayVec::<Range<u64>, { MAX_REGIONS + 2 }>::new();
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
    if start < end && FRAMES.lock().free.add(Hpa::new(start), end - start).is_err() {
        log::warn!("memory {start:#x}-{end:#x} is listed twice: ignored");
    }
}
