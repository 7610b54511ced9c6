//! Guest-physical ranges: hooks at byte granularity, permissions at page granularity.

pub use crate::Direction;
use alloc::vec::Vec;
use sluice_memory::{Gpa, PAGE_SIZE};

#[derive(Clone, Copy, Debug)]
struct Hook<H> {
    start: u64,
    end: u64,
    direction: Direction,
    handler: H,
}

/// The hooked guest-physical memory of one domain. What is neither hooked nor RAM is nobody's.
#[derive(Clone, Debug, Default)]
pub struct PageTable<H> {
    /// Sorted by start, disjoint.
    hooks: Vec<Hook<H>>,
    /// Index of the hook that an access was to last: the next one is often there, too.
    recent: usize,
}

impl<H: Copy> PageTable<H> {
    /// Nothing is hooked.
    pub const fn new() -> Self {
        Self { hooks: Vec::new(), recent: 0 }
    }

    /// Sends accesses in these directions to a handler. Returns false, and changes nothing, if the
    /// range is empty, wraps or overlaps another hook.
    pub fn hook(&mut self, start: Gpa, len: u64, direction: Direction, handler: H) -> bool {
        let Some(end) = start.checked_add(len).map(Gpa::as_u64) else { return false };
        let start = start.as_u64();
        let at = self.hooks.partition_point(|hook| hook.end <= start);
        if len == 0 || self.hooks.get(at).is_some_and(|hook| hook.start < end) {
            return false;
        }
        self.hooks.insert(at, Hook { start, end, direction, handler });
        true
    }

    /// Removes the hook that begins at `start`.
    pub fn remove(&mut self, start: Gpa) {
        self.hooks.retain(|hook| hook.start != start.as_u64());
    }

    /// Who handles an access that exited at `gpa`.
    #[inline]
    pub fn lookup(&mut self, gpa: Gpa) -> Option<H> {
        let gpa = gpa.as_u64();
        match self.hooks.get(self.recent) {
            Some(hook) if hook.start <= gpa && gpa < hook.end => Some(hook.handler),
            _ => self.find(gpa),
        }
    }

    /// The same for an access elsewhere than the one before it.
    #[cold]
    #[inline(never)]
    fn find(&mut self, gpa: u64) -> Option<H> {
        let at = self.hooks.partition_point(|hook| hook.end <= gpa);
        let hook = self.hooks.get(at).filter(|hook| hook.start <= gpa)?;
        self.recent = at;
        Some(hook.handler)
    }

    /// The directions in which the page of `gpa` may stay direct where memory or a device backs it:
    /// those in which none of its bytes is hooked. A page with hooked writes only can be mapped
    /// read-only, so that its reads do not exit.
    pub fn direct(&self, gpa: Gpa) -> Direction {
        let page = gpa.align_down(PAGE_SIZE).as_u64();
        let last = page | (PAGE_SIZE - 1);
        let at = self.hooks.partition_point(|hook| hook.end <= page);
        let hooked = self.hooks[at..].iter().take_while(|hook| hook.start <= last);
        hooked.fold(Direction::all(), |direct, hook| direct & !hook.direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_found_by_the_byte_and_permissions_by_the_page() {
        let mut table = PageTable::new();
        assert!(table.hook(Gpa::new(0x1010), 0x10, Direction::WRITE, 'w'));
        assert!(table.hook(Gpa::new(0x2ff0), 0x20, Direction::READ, 'r'));
        assert_eq!(table.lookup(Gpa::new(0x100f)), None);
        assert_eq!(table.lookup(Gpa::new(0x1010)), Some('w'));
        assert_eq!(table.lookup(Gpa::new(0x1020)), None);
        assert_eq!(table.direct(Gpa::new(0x1800)), Direction::READ);
        assert_eq!(table.direct(Gpa::new(0x2000)), Direction::WRITE);
        assert_eq!(table.direct(Gpa::new(0x3fff)), Direction::WRITE);
        assert_eq!(table.direct(Gpa::new(0x4000)), Direction::all());
    }

    #[test]
    fn overlaps_and_wraps_are_refused() {
        let mut table = PageTable::new();
        assert!(table.hook(Gpa::new(0x1000), 0x1000, Direction::all(), ()));
        assert!(!table.hook(Gpa::new(0x1fff), 1, Direction::all(), ()));
        assert!(!table.hook(Gpa::new(0xfff), 2, Direction::all(), ()));
        assert!(!table.hook(Gpa::new(u64::MAX), 2, Direction::all(), ()));
        assert!(!table.hook(Gpa::new(0), 0, Direction::all(), ()));
        table.remove(Gpa::new(0x1000));
        assert!(table.hook(Gpa::new(0xfff), 2, Direction::all(), ()));
    }
}
