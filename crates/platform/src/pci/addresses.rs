//! Where BARs are to begin with: what firmware decides on a machine that has one.

use core::ops::Range;

/// Addresses for memory BARs, handed out upward.
#[derive(Clone, Debug)]
pub struct BarAddresses {
    /// `None`: the guest's system runs, and decides itself.
    free: Option<Range<u64>>,
}

impl BarAddresses {
    /// All addresses of a bus's memory window.
    pub fn new(window: Range<u64>) -> Self {
        Self { free: Some(window) }
    }

    /// For a function that comes to a system that runs: each BAR is at 0, and so answers nowhere until the system finds it a place.
    pub fn nowhere() -> Self {
        Self { free: None }
    }

    /// Whether the guest's system decides.
    pub fn is_nowhere(&self) -> bool {
        self.free.is_none()
    }

    /// Addresses for a BAR of so many bytes, a power of two: its first one, a multiple of the size. `None` if there is no room,
    /// and then nothing is taken.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let Some(free) = &mut self.free else { return Some(0) };
        let start = free.start.checked_next_multiple_of(bytes)?;
        let end = start.checked_add(bytes).filter(|end| *end <= free.end)?;
        free.start = end;
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::BarAddresses;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bars_are_aligned_apart_and_inside(shifts in proptest::collection::vec(4u32..30, 1..40)) {
            let window = 0xC000_0000..0xE000_0000u64;
            let mut addresses = BarAddresses::new(window.clone());
            let mut last = window.start;
            for bytes in shifts.into_iter().map(|shift| 1u64 << shift) {
                match addresses.take(bytes) {
                    Some(start) => {
                        prop_assert!(start.is_multiple_of(bytes) && start >= last && start + bytes <= window.end);
                        last = start + bytes;
                    }
                    None => prop_assert!(last.next_multiple_of(bytes) + bytes > window.end),
                }
            }
        }
    }

    #[test]
    fn a_system_that_runs_decides_itself() {
        let mut addresses = BarAddresses::nowhere();
        assert!(addresses.is_nowhere() && !BarAddresses::new(0..0).is_nowhere());
        assert_eq!([0x1000, 1 << 40].map(|bytes| addresses.take(bytes)), [Some(0); 2]);
    }

    #[test]
    fn no_size_takes_more_than_there_is() {
        let mut addresses = BarAddresses::new(0xC000_0000..0xC001_0000);
        assert_eq!(addresses.take(1 << 63), None);
        assert_eq!(addresses.take(0), None);
        assert_eq!(addresses.take(0x1_0000), Some(0xC000_0000));
        assert_eq!(addresses.take(16), None);
    }
}
