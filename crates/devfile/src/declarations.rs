//! What operations may reach, as the hypervisor knows it.

use crate::Ranges;
use alloc::vec::Vec;
use sluice_hypercall::devfile::{Copy, DEVFILE_MAX_OPERATIONS};

/// Nothing was declared that covers what is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What the operations of a device may reach. `S` says in which address space.
///
/// Its memory is that of [`DEVFILE_MAX_OPERATIONS`] operations, whatever a guest declares.
#[derive(Clone, Debug)]
pub struct Declarations<S> {
    operations: Vec<Option<(S, Ranges)>>,
}

impl<S: Clone> Declarations<S> {
    /// Nothing may be reached.
    pub fn new() -> Self {
        Self { operations: alloc::vec![None; DEVFILE_MAX_OPERATIONS as usize] }
    }

    /// An operation may reach this from now on, and nothing that it might before. Returns false if there is no such tag.
    pub fn declare(&mut self, tag: u32, space: S, ranges: Ranges) -> bool {
        let Some(operation) = self.operations.get_mut(tag as usize) else { return false };
        *operation = Some((space, ranges));
        true
    }

    /// An operation may reach nothing any more. Returns whether it might.
    pub fn withdraw(&mut self, tag: u32) -> bool {
        self.operations.get_mut(tag as usize).is_some_and(|operation| operation.take().is_some())
    }

    /// No operation may reach anything any more.
    pub fn clear(&mut self) {
        self.operations.fill_with(|| None);
    }

    /// The address space in which this may be copied now.
    ///
    /// # Errors
    /// It is not wholly in one range that the operation may reach in this way.
    pub fn check(&self, copy: &Copy) -> Result<S, Refused> {
        let operation = self.operations.get(copy.tag as usize).and_then(Option::as_ref);
        let (space, ranges) = operation.ok_or(Refused)?;
        let allowed = ranges.iter().any(|range| {
            let way = if copy.out { range.output } else { range.input };
            way && range.holds(copy.address, copy.bytes)
        });
        if allowed { Ok(space.clone()) } else { Err(Refused) }
    }
}

impl<S: Clone> Default for Declarations<S> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, USER_END};
    use proptest::prelude::*;
    use sluice_hypercall::devfile::{DEVFILE_MAX_BYTES, DEVFILE_MAX_RANGES};

    fn range(address: u64, bytes: u32, ways: u32) -> Option<Range> {
        let mut entry = [0; Range::SIZE];
        entry[..8].copy_from_slice(&address.to_le_bytes());
        entry[8..12].copy_from_slice(&bytes.to_le_bytes());
        entry[12..].copy_from_slice(&ways.to_le_bytes());
        Range::decode(&entry)
    }

    fn copy(tag: u32, address: u64, bytes: u32, out: bool) -> Copy {
        Copy { tag, address, local: 0, bytes, out }
    }

    #[test]
    fn ranges_are_a_programs_and_say_a_way() {
        assert!(range(0x1000, 16, 1).is_some());
        assert!(range(USER_END - 16, 16, 3).is_some());
        assert_eq!(range(USER_END - 15, 16, 3), None, "the kernel's");
        assert_eq!(range(0xffff_8000_0000_0000, 16, 1), None, "the kernel's");
        assert_eq!(range(u64::MAX, 16, 1), None, "wraps");
        assert_eq!(range(0x1000, 0, 1), None, "empty");
        assert_eq!(range(0x1000, 16, 0), None, "no way");
        assert_eq!(range(0x1000, 16, 4), None, "no such way");
    }

    #[test]
    fn a_list_is_bounded() {
        let list = |count: usize, bytes: u32| {
            let mut entry = [0; Range::SIZE];
            entry[8..12].copy_from_slice(&bytes.to_le_bytes());
            entry[12] = 1;
            Range::decode_list(&entry.repeat(count)).is_some()
        };
        let (most, each) = (DEVFILE_MAX_RANGES as usize, DEVFILE_MAX_BYTES / DEVFILE_MAX_RANGES);
        assert!(list(0, 1) && list(most, each));
        assert!(!list(most + 1, 1), "too many");
        assert!(!list(most, each + 1), "too many bytes");
        assert!(Range::decode_list(&[0; 15]).is_none());
    }

    #[test]
    fn only_what_is_declared_can_be_copied() {
        let mut declarations = Declarations::new();
        let ranges = [range(0x1000, 16, 1).unwrap(), range(0x1010, 16, 2).unwrap()];
        assert!(declarations.declare(3, 'a', ranges.into_iter().collect()));
        assert_eq!(declarations.check(&copy(3, 0x1000, 16, false)), Ok('a'));
        assert_eq!(declarations.check(&copy(3, 0x100f, 1, false)), Ok('a'));
        assert_eq!(declarations.check(&copy(3, 0x1010, 16, true)), Ok('a'));
        assert_eq!(declarations.check(&copy(3, 0x1000, 16, true)), Err(Refused), "other way");
        assert_eq!(declarations.check(&copy(3, 0x1000, 17, false)), Err(Refused), "too long");
        assert_eq!(declarations.check(&copy(3, 0xfff, 2, false)), Err(Refused), "before");
        assert_eq!(declarations.check(&copy(2, 0x1000, 16, false)), Err(Refused), "another operation's");
        assert_eq!(declarations.check(&copy(100, 0x1000, 16, false)), Err(Refused));
        assert!(!declarations.declare(100, 'a', Ranges::new()));
        assert!(declarations.withdraw(3) && !declarations.withdraw(3));
        assert_eq!(declarations.check(&copy(3, 0x1000, 16, false)), Err(Refused), "withdrawn");
    }

    proptest! {
        #[test]
        fn each_byte_of_a_copy_is_declared(
            wanted in proptest::collection::vec((0..64u64, 0..32u32, 0..4u32), 0..6),
            asked in (0..80u64, 1..40u32, any::<bool>()),
        ) {
            let ranges: Ranges = wanted.iter().filter_map(|(at, bytes, ways)| range(*at, *bytes, *ways)).collect();
            let mut declarations = Declarations::new();
            declarations.declare(0, (), ranges.clone());
            let (at, bytes, out) = asked;
            if declarations.check(&copy(0, at, bytes, out)).is_ok() {
                for byte in at..at + u64::from(bytes) {
                    let declared = ranges.iter().any(|range| {
                        let way = if out { range.output } else { range.input };
                        way && (range.address..range.address + u64::from(range.bytes)).contains(&byte)
                    });
                    prop_assert!(declared);
                }
            }
        }
    }
}
