//! A guest's range of sectors.

/// Sectors of the physical disk that are one guest's whole disk. Never empty, never beyond 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    first: u64,
    sectors: u64,
}

/// A guest named sectors that its disk does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSlice;

impl Slice {
    /// `sectors` sectors from `first` on. `None` if that is none, or is not within the `disk` sectors of the disk.
    pub fn new(first: u64, sectors: u64, disk: u64) -> Option<Self> {
        let end = first.checked_add(sectors)?;
        (sectors > 0 && end <= disk && disk <= 1 << 48).then_some(Self { first, sectors })
    }

    /// The first sector, on the physical disk.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// How many sectors the guest's disk has.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Some sector belongs to both.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.first < other.first + other.sectors && other.first < self.first + self.sectors
    }

    /// Where `count` sectors from the guest's `lba` on begin on the physical disk.
    ///
    /// # Errors
    /// Not all of them are the guest's.
    pub fn translate(&self, lba: u64, count: u32) -> Result<u64, OutOfSlice> {
        let end = lba.checked_add(u64::from(count)).ok_or(OutOfSlice)?;
        if end > self.sectors {
            return Err(OutOfSlice);
        }
        Ok(self.first + lba)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_within_the_disk() {
        assert!(Slice::new(0, 100, 100).is_some());
        assert_eq!(Slice::new(1, 100, 100), None);
        assert_eq!(Slice::new(0, 0, 100), None);
        assert_eq!(Slice::new(u64::MAX, 2, 100), None);
        assert_eq!(Slice::new(0, 1, u64::MAX), None);
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let slice = |first, sectors| Slice::new(first, sectors, 1000).expect("fits");
        assert!(!slice(0, 100).overlaps(&slice(100, 100)));
        assert!(!slice(100, 100).overlaps(&slice(0, 100)));
        assert!(slice(0, 101).overlaps(&slice(100, 100)));
        assert!(slice(0, 500).overlaps(&slice(100, 1)));
        assert!(slice(100, 1).overlaps(&slice(0, 500)));
    }

    #[test]
    fn nothing_outside_a_slice_has_an_address() {
        let slice = Slice::new(2048, 100, 4096).expect("fits");
        assert_eq!(slice.translate(0, 100), Ok(2048));
        assert_eq!(slice.translate(99, 1), Ok(2147));
        assert_eq!(slice.translate(99, 2), Err(OutOfSlice));
        assert_eq!(slice.translate(100, 1), Err(OutOfSlice));
        assert_eq!(slice.translate(u64::MAX, 1), Err(OutOfSlice));
    }
}
