//! I/O page tables of AMD-Vi (48882, 2.2.3, "I/O Page Tables for Host Translations").
//!
//! Bits of an entry: 0 PR, 11:9 next level (0 for a page of the level's own size), 51:12 address, 61 IR, 62 IW.

use sluice_memory::{Access, Entry, Format, Hpa};

const PRESENT: u64 = 1;
const NEXT_LEVEL_SHIFT: u32 = 9;
const NEXT_LEVEL: u64 = 7 << NEXT_LEVEL_SHIFT;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

/// Host translation tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFormat {
    /// Levels, 1-6: what goes into the device table entry's Mode field.
    pub levels: u8,
}

impl Format for HostFormat {
    fn levels(self) -> u32 {
        self.levels.into()
    }

    fn largest_leaf(self) -> u32 {
        self.levels().min(3)
    }

    fn leaf(self, hpa: Hpa, access: Access, _: u32) -> u64 {
        let mut rights = 0;
        if access.contains(Access::READ) {
            rights |= READ;
        }
        if access.contains(Access::WRITE) {
            rights |= WRITE;
        }
        if rights == 0 { 0 } else { hpa.as_u64() | PRESENT | rights }
    }

    fn table(self, table: Hpa, level: u32) -> u64 {
        // Rights are the AND of all levels: the leaf alone decides.
        table.as_u64() | u64::from(level - 1) << NEXT_LEVEL_SHIFT | PRESENT | READ | WRITE
    }

    fn decode(self, entry: u64, level: u32) -> Entry {
        if entry & PRESENT == 0 {
            return Entry::Absent;
        }
        let address = Hpa::new(entry & ADDRESS);
        if level > 1 && entry & NEXT_LEVEL != 0 {
            return Entry::Table(address);
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry & READ != 0);
        access.set(Access::WRITE, entry & WRITE != 0);
        Entry::Leaf(address, access)
    }
}
