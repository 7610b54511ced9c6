//! Second-level page tables of VT-d (D51397, 3.7 and 9.8).
//!
//! Bits of an entry: 0 R, 1 W, 7 PS (a large page at levels 2 and 3), 11 SNP (pages only), 51:12 address. What a request
//! may do is the AND of R and of W on its way; an entry with neither is absent, whatever else it holds.

use sluice_memory::{Access, Entry, Format, Hpa};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const SNOOP: u64 = 1 << 11;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Second-level translation tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondLevel {
    /// Levels, 3-5: one that SAGAW offers.
    pub levels: u8,
    /// The highest level with pages, 1-3, after SLLPS.
    pub largest_leaf: u8,
    /// Requests go through the processors' caches even if they ask not to (ECAP.SC). Otherwise a device could read what
    /// memory held before it was cleared.
    pub snoop: bool,
}

impl Format for SecondLevel {
    fn levels(self) -> u32 {
        self.levels.into()
    }

    fn largest_leaf(self) -> u32 {
        self.largest_leaf.into()
    }

    fn leaf(self, hpa: Hpa, access: Access, level: u32) -> u64 {
        let mut rights = 0;
        if access.contains(Access::READ) {
            rights |= READ;
        }
        if access.contains(Access::WRITE) {
            rights |= WRITE;
        }
        if rights == 0 {
            return 0;
        }
        let snoop = if self.snoop { SNOOP } else { 0 };
        let large = if level > 1 { LARGE } else { 0 };
        hpa.as_u64() | rights | snoop | large
    }

    fn table(self, table: Hpa, _: u32) -> u64 {
        // Rights are the AND of all levels: the leaf alone decides.
        table.as_u64() | READ | WRITE
    }

    fn decode(self, entry: u64, level: u32) -> Entry {
        if entry & (READ | WRITE) == 0 {
            return Entry::Absent;
        }
        let address = Hpa::new(entry & ADDRESS);
        if level > 1 && entry & LARGE == 0 {
            return Entry::Table(address);
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry & READ != 0);
        access.set(Access::WRITE, entry & WRITE != 0);
        Entry::Leaf(address, access)
    }
}
