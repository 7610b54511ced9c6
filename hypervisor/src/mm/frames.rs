//! Stub.
use super::layout;
use crate::boot::{BootInfo, RegionKind};
use crate::sync::{SpinGuard, SpinLock};
use core::sync::atomic::{AtomicU64, Ordering};

/// Stub address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hpa(u64);
#[allow(missing_docs)]
impl Hpa {
    pub const fn new(v: u64) -> Self {
        Self(v)
    }
    pub const fn get(self) -> u64 {
        self.0
    }
}
/// Stub allocator.
pub struct FrameAllocator {
    ranges: arrayvec::ArrayVec<(u64, u64), 64>,
    free: u64,
}
#[allow(missing_docs)]
impl FrameAllocator {
    pub const fn new() -> Self {
        Self { ranges: arrayvec::ArrayVec::new_const(), free: 0 }
    }
    pub fn add(&mut self, start: Hpa, bytes: u64) {
        if bytes > 0 {
            let _ = self.ranges.try_push((start.0, start.0 + bytes));
            self.free += bytes;
        }
    }
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Option<Hpa> {
        for (start, end) in self.ranges.iter_mut() {
            let at = start.next_multiple_of(align);
            if at + bytes <= *end {
                *start = at + bytes;
                self.free -= bytes;
                return Some(Hpa(at));
            }
        }
        None
    }
    pub fn free(&mut self, _start: Hpa, _bytes: u64) {}
    pub fn free_bytes(&self) -> u64 {
        self.free
    }
}

static FRAMES: SpinLock<FrameAllocator> = SpinLock::new(FrameAllocator::new());
static MEMORY: AtomicU64 = AtomicU64::new(0);
const FOUR_GIB: u64 = 1 << 32;

/// The frame allocator, locked.
pub fn frames() -> SpinGuard<'static, FrameAllocator> {
    FRAMES.lock()
}

/// Bytes of usable memory that the firmware reported.
pub fn memory_bytes() -> u64 {
    MEMORY.load(Ordering::Relaxed)
}

pub(super) fn init_low(info: &BootInfo) {
    MEMORY.store(
        info.memory.iter().filter(|r| r.kind == RegionKind::Usable).map(|r| r.end - r.start).sum(),
        Ordering::Relaxed,
    );
    add(info, 1 << 20, FOUR_GIB);
}
pub(super) fn init_high(info: &BootInfo) {
    add(info, FOUR_GIB, u64::MAX);
}

fn add(info: &BootInfo, low: u64, high: u64) {
    let mut holes = arrayvec::ArrayVec::<core::ops::Range<u64>, 80>::new();
    holes.push(layout::image_range());
    if let Some((start, bytes)) = info.bundle {
        holes.push(start.get()..start.get() + bytes);
    }
    for region in info.memory.iter().filter(|r| r.kind != RegionKind::Usable) {
        let _ = holes.try_push(region.start..region.end);
    }
    holes.sort_unstable_by_key(|r| r.start);
    for region in info.memory.iter().filter(|r| r.kind == RegionKind::Usable) {
        let mut start = region.start.max(low).next_multiple_of(super::PAGE);
        let end = region.end.min(high) & !(super::PAGE - 1);
        for hole in holes.iter() {
            let from = hole.start & !(super::PAGE - 1);
            if from > start && from < end {
                frames().add(Hpa::new(start), from - start);
            }
            if hole.end > start && hole.start < end {
                start = start.max(hole.end.next_multiple_of(super::PAGE));
            }
        }
        if start < end {
            frames().add(Hpa::new(start), end - start);
        }
    }
}
