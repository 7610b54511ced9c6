//! Stands in for `sluice_memory` until it is there.
#![allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hpa(u64);
impl Hpa {
    pub const fn new(v: u64) -> Self {
        Self(v)
    }
    pub const fn get(self) -> u64 {
        self.0
    }
}
pub struct FrameAllocator {
    ranges: arrayvec::ArrayVec<(u64, u64), 64>,
    free: u64,
}
impl FrameAllocator {
    pub const fn new() -> Self {
        Self { ranges: arrayvec::ArrayVec::new_const(), free: 0 }
    }
    pub fn add(&mut self, start: Hpa, bytes: u64) {
        let _ = self.ranges.try_push((start.0, start.0 + bytes));
        self.free += bytes;
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
