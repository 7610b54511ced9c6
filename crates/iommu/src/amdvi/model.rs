//! A unit that caches everything it ever may, and forgets only what a command says: written from the manual, apart from
//! the code that makes entries and commands, for tests of whoever changes tables.
//!
//! Key type: [`Model`]. A real unit holds some of what this one holds. What this one does not hold, none can: if a page
//! that was taken away is not in [`Model::cached`], no device reaches it.
//!
//! - Device table entries are kept in every version that was seen since the last command to forget them, and requests
//!   are answered by all versions.
//! - Tables on the way are kept too (48882, 2.4.3, PDE), so that a walk may begin at any of them, even when the tree does
//!   not lead there any more.
//! - A command to forget pages drops what has an address in the range: pages and tables only partly in it, too.
//!
//! Deviations: reserved bits, and requests that would pass untranslated, are mistakes here: they panic.

use crate::{RequesterId, SpaceTag};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use sluice_memory::{Access, Hpa, Iova, PhysicalMemory};

/// What a command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// COMPLETION_WAIT with a store.
    Store(Hpa, u64),
    /// INVALIDATE_DEVTAB_ENTRY.
    Device(RequesterId),
    /// INVALIDATE_IOMMU_PAGES.
    Pages {
        /// DomainID.
        space: SpaceTag,
        /// First address.
        first: u64,
        /// Last address.
        last: u64,
        /// PDE.
        directories: bool,
    },
    /// INVALIDATE_INTERRUPT_TABLE.
    Interrupts(RequesterId),
    /// INVALIDATE_IOMMU_ALL.
    All,
}

/// Reads a command, by the figures of 48882, 2.4.1-2.4.8.
///
/// # Panics
/// If a reserved bit is set, or the command is none of [`Decoded`].
pub fn decode(command: &[u8; 16]) -> Decoded {
    let [a, b, c, d] =
        [0, 4, 8, 12].map(|at| u32::from_le_bytes(command[at..at + 4].try_into().unwrap_or_default()));
    let requester = RequesterId((a & 0xffff) as u16);
    match b >> 28 {
        0x1 => {
            assert_eq!((a & 7, b & 0x0ff0_0000), (1, 0), "a store without interrupt or flush");
            let at = u64::from(b & 0x000f_ffff) << 32 | u64::from(a & !7);
            Decoded::Store(Hpa::new(at), u64::from(d) << 32 | u64::from(c))
        }
        0x2 => {
            assert_eq!((a >> 16, b & 0x0fff_ffff, c, d), (0, 0, 0, 0), "reserved bits");
            Decoded::Device(requester)
        }
        0x3 => {
            assert_eq!((a, b & 0x0fff_0000, c & 0xffc), (0, 0, 0), "reserved bits, or a guest's pages");
            let address = u64::from(d) << 32 | u64::from(c & 0xffff_f000);
            // With S, the lowest 0 from bit 12 up is the highest bit of the offset in the range. With all bits but the
            // last at 1, or with all that are not copies of bit 51, everything is meant.
            let mut bits = 12;
            if c & 1 != 0 {
                while bits < 63 && address >> bits & 1 != 0 {
                    bits += 1;
                }
                bits = if bits >= 51 { 64 } else { bits + 1 };
            }
            let offset = 1u64.checked_shl(bits).map_or(u64::MAX, |bytes| bytes - 1);
            let space = SpaceTag((b & 0xffff) as u16);
            Decoded::Pages {
                space,
                first: address & !offset,
                last: address | offset,
                directories: c & 2 != 0,
            }
        }
        0x5 => {
            assert_eq!((a >> 16, b & 0x0fff_ffff, c, d), (0, 0, 0, 0), "reserved bits");
            Decoded::Interrupts(requester)
        }
        0x8 => {
            assert_eq!((a, b & 0x0fff_ffff, c, d), (0, 0, 0, 0), "reserved bits");
            Decoded::All
        }
        opcode => panic!("command {opcode:#x}"),
    }
}

/// A cached page: whose, where, how long, where to, and what may be done there.
pub type Cached = (SpaceTag, Iova, u64, Hpa, Access);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    space: SpaceTag,
    first: u64,
    last: u64,
}

impl Range {
    /// The `bits` low bits of `at` are the offset in it.
    fn around(space: SpaceTag, at: u64, bits: u32) -> Self {
        let offset = 1u64.checked_shl(bits).map_or(u64::MAX, |bytes| bytes - 1);
        Self { space, first: at & !offset, last: at | offset }
    }

    fn meets(&self, space: SpaceTag, first: u64, last: u64) -> bool {
        self.space == space && self.first <= last && first <= self.last
    }
}

/// A table that the unit remembers, and the rights on the way to it.
type Directory = (Range, Hpa, u32, u64);

/// The unit.
#[derive(Clone, Debug)]
pub struct Model {
    device_table: Hpa,
    devices: BTreeSet<(RequesterId, [u64; 4])>,
    directories: BTreeSet<Directory>,
    pages: BTreeSet<(Range, Hpa, u64)>,
    interrupts: BTreeSet<(RequesterId, u16, u32)>,
}

const RIGHTS: u32 = 61;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Model {
    /// A unit with that device table, and nothing cached.
    pub const fn new(device_table: Hpa) -> Self {
        Self {
            device_table,
            devices: BTreeSet::new(),
            directories: BTreeSet::new(),
            pages: BTreeSet::new(),
            interrupts: BTreeSet::new(),
        }
    }

    /// Does a command.
    ///
    /// # Panics
    /// See [`decode`].
    pub fn apply(&mut self, command: &[u8; 16]) {
        match decode(command) {
            Decoded::Store(..) => {}
            Decoded::Device(requester) => self.devices.retain(|(other, _)| *other != requester),
            Decoded::Interrupts(requester) => self.interrupts.retain(|(other, ..)| *other != requester),
            Decoded::Pages { space, first, last, directories } => {
                self.pages.retain(|(range, ..)| !range.meets(space, first, last));
                self.directories.retain(|(range, ..)| !directories || !range.meets(space, first, last));
            }
            Decoded::All => *self = Self::new(self.device_table),
        }
    }

    fn see(&mut self, requester: RequesterId, memory: &impl PhysicalMemory) -> Vec<[u64; 4]> {
        let at = self.device_table.as_u64() + u64::from(requester.0) * 32;
        self.devices.insert((requester, [0, 8, 16, 24].map(|word| memory.read_u64(Hpa::new(at + word)))));
        self.devices.iter().filter(|(other, _)| *other == requester).map(|(_, words)| *words).collect()
    }

    /// Answers a request of a device for an address, in all ways it can, and keeps all that was found.
    ///
    /// # Panics
    /// If the request passes untranslated, or an entry is not one that the manual allows.
    pub fn fill(&mut self, requester: RequesterId, at: Iova, memory: &impl PhysicalMemory) {
        let at = at.as_u64();
        for words in self.see(requester, memory) {
            assert_eq!(words[0] & 0x83, 0x03, "{requester} is translated (V, TV), and bit 7 is reserved");
            let (levels, rights) = ((words[0] >> 9 & 7) as u32, words[0] >> RIGHTS & 3);
            if levels == 0 {
                assert_eq!(rights, 0, "{requester} passes untranslated");
                continue;
            }
            let space = SpaceTag(words[1] as u16);
            // What is above the topmost level must be 0.
            if at.checked_shr(12 + 9 * levels).unwrap_or(0) != 0 {
                continue;
            }
            let mut open = Vec::from([(Hpa::new(words[0] & ADDRESS), levels, rights)]);
            let remembered = self.directories.iter().filter(|(range, ..)| range.meets(space, at, at));
            open.extend(remembered.map(|(_, table, level, rights)| (*table, *level, *rights)));
            while let Some((table, level, rights)) = open.pop() {
                open.extend(self.step(space, at, table, level, rights, memory));
            }
        }
    }

    /// Reads an entry of a table (48882, 2.2.3). What it leads to is kept; a table is given back to go on with.
    fn step(
        &mut self,
        space: SpaceTag,
        at: u64,
        table: Hpa,
        level: u32,
        rights: u64,
        memory: &impl PhysicalMemory,
    ) -> Option<(Hpa, u32, u64)> {
        let low = 12 + 9 * (level - 1);
        let entry = memory.read_u64(Hpa::new(table.as_u64() + (at >> low & 0x1ff) * 8));
        let (rights, address) = (rights & entry >> RIGHTS, entry & ADDRESS);
        let next = (entry >> 9 & 7) as u32;
        if entry & 1 == 0 {
            return None;
        }
        assert_eq!(entry >> 63, 0, "ignored, but nobody's");
        match next {
            0 | 7 => {
                let mut bits = low;
                if next == 7 {
                    // The size is where the address has its lowest 0.
                    bits = address.trailing_zeros().min(12);
                    while address >> bits & 1 != 0 {
                        bits += 1;
                    }
                    bits += 1;
                }
                let offset = (1u64 << bits) - 1;
                assert!(next == 7 || address & offset == 0, "a page of {bits} bits at {address:#x}");
                if rights != 0 {
                    self.pages.insert((Range::around(space, at, bits), Hpa::new(address & !offset), rights));
                }
                None
            }
            _ => {
                assert!(next < level, "level {next} below {level}");
                // Address bits of levels that are skipped must be 0.
                let skipped = at >> (12 + 9 * next) & ((1 << (low - 12 - 9 * next)) - 1);
                if skipped != 0 {
                    return None;
                }
                let table = Hpa::new(address);
                self.directories.insert((Range::around(space, at, low), table, next, rights));
                Some((table, next, rights))
            }
        }
    }

    /// Looks an interrupt up, in all ways it can, and keeps all that was found.
    ///
    /// # Panics
    /// If the interrupt passes without being looked up, or an entry is not one that the manual allows.
    pub fn fill_interrupt(&mut self, requester: RequesterId, index: u16, memory: &impl PhysicalMemory) {
        for words in self.see(requester, memory) {
            assert_eq!(words[2] & 1, 1, "IV: interrupts of {requester} are looked up");
            assert_eq!(words[2] >> 56 & 0xc7, 0, "interrupts of legacy controllers are refused");
            match words[2] >> 60 & 3 {
                0 => continue,
                2 => {}
                other => panic!("IntCtl {other}"),
            }
            if u64::from(index) >> (words[2] >> 1 & 0xf) != 0 {
                continue;
            }
            let at = (words[2] & 0x000f_ffff_ffff_ffc0) + u64::from(index) * 4;
            let entry = (memory.read_u64(Hpa::new(at & !7)) >> (at % 8 * 8)) as u32;
            if entry & 1 != 0 {
                assert_eq!(entry & 0xff00_00fe, 0, "fixed, physical, reserved bits");
                self.interrupts.insert((requester, index, entry));
            }
        }
    }

    /// The pages that a device may still reach.
    pub fn cached(&self) -> impl Iterator<Item = Cached> {
        self.pages.iter().map(|(range, to, rights)| {
            let mut access = Access::empty();
            access.set(Access::READ, rights & 1 != 0);
            access.set(Access::WRITE, rights & 2 != 0);
            (range.space, Iova::new(range.first), (range.last - range.first).saturating_add(1), *to, access)
        })
    }

    /// The tables of pages that may still be walked: none of them may be used for anything else yet.
    pub fn cached_tables(&self) -> impl Iterator<Item = Hpa> {
        self.directories.iter().map(|(_, table, ..)| *table)
    }

    /// The spaces that a requester may reach, with their roots, as far as its device table entry was seen.
    pub fn reaches(&self, requester: RequesterId) -> Vec<(SpaceTag, Hpa)> {
        let versions =
            self.devices.iter().filter(|(other, words)| *other == requester && words[0] >> RIGHTS & 3 != 0);
        versions.map(|(_, words)| (SpaceTag(words[1] as u16), Hpa::new(words[0] & ADDRESS))).collect()
    }

    /// The interrupts that a requester may still raise: index, vector and processor.
    pub fn interrupts(&self, requester: RequesterId) -> impl Iterator<Item = (u16, u8, u32)> {
        let own = self.interrupts.iter().filter(move |(other, ..)| *other == requester);
        own.map(|(_, index, entry)| (*index, (entry >> 16) as u8, entry >> 8 & 0xff))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Words;
    use super::*;

    const TABLE: Hpa = Hpa::new(0x100_0000);
    const REQUESTER: RequesterId = RequesterId(0);

    /// A device table entry for 4 levels from 0x4000, and these words.
    fn memory(words: &[(u64, u64)]) -> Words {
        let memory = Words::default();
        memory.write_u64(TABLE, 0x6000_0000_0000_4803);
        memory.write_u64(Hpa::new(TABLE.as_u64() + 8), 9);
        words.iter().for_each(|(at, word)| memory.write_u64(Hpa::new(*at), *word));
        memory
    }

    fn cached(memory: &Words, at: u64) -> Vec<(u64, u64, u64, u8)> {
        let mut unit = Model::new(TABLE);
        unit.fill(REQUESTER, Iova::new(at), memory);
        unit.cached().map(|(_, at, len, to, access)| (at.as_u64(), len, to.as_u64(), access.bits())).collect()
    }

    #[test]
    fn levels_can_be_skipped_and_pages_have_sizes_between() {
        const RW: u64 = 3 << 61 | 1;
        // From level 4 to level 2, whose entry 3 is a page, and entry 4 one of 8 KiB in a table of level 1.
        let memory = memory(&[
            (0x4000, 0x5000 | 2 << 9 | RW),
            (0x5000 + 3 * 8, 0x20_0000 | RW),
            (0x5000 + 4 * 8, 0x6000 | 1 << 9 | RW),
            (0x6000 + 2 * 8, 0x0888_0000 | 7 << 9 | RW),
            (0x6000 + 3 * 8, 0x0888_0000 | 7 << 9 | 1 << 61 | 1),
            (0x6000 + 4 * 8, 0x0888_7000 | 7 << 9 | RW),
        ]);
        assert_eq!(cached(&memory, 0x6_1234), [], "entry 0 of the table of level 2");
        assert_eq!(cached(&memory, 0x60_1234), [(0x60_0000, 2 << 20, 0x20_0000, 3)]);
        assert_eq!(cached(&memory, 0x4060_1234), [], "a skipped bit is 1");
        assert_eq!(cached(&memory, 1 << 48 | 0x60_1234), [], "beyond the levels there are");
        assert_eq!(cached(&memory, 0x80_2fff), [(0x80_2000, 0x2000, 0x0888_0000, 3)]);
        assert_eq!(
            cached(&memory, 0x80_3000),
            [(0x80_2000, 0x2000, 0x0888_0000, 1)],
            "the other half says less"
        );
        assert_eq!(cached(&memory, 0x80_4000), [(0x80_0000, 0x1_0000, 0x0888_0000, 3)], "16 pages");
    }

    #[test]
    fn a_table_is_walked_until_it_is_forgotten() {
        const RW: u64 = 3 << 61 | 1;
        let memory = memory(&[(0x4000, 0x5000 | 1 << 9 | RW), (0x5000, 0x7000 | RW)]);
        let mut unit = Model::new(TABLE);
        unit.fill(REQUESTER, Iova::new(0), &memory);
        memory.write_u64(Hpa::new(0x4000), 0);
        // What is new in a table that nothing leads to any more.
        memory.write_u64(Hpa::new(0x5008), 0x9000 | RW);
        let without_tables = [0x3000_0009_0000_0000, 0x7fff_ffff_ffff_f001u64];
        let bytes = (u128::from(without_tables[1]) << 64 | u128::from(without_tables[0])).to_le_bytes();
        unit.apply(&bytes);
        assert_eq!((unit.cached().count(), unit.cached_tables().count()), (0, 1));
        unit.fill(REQUESTER, Iova::new(0x1000), &memory);
        assert_eq!(unit.cached().count(), 1);
    }

    #[test]
    #[should_panic(expected = "passes untranslated")]
    fn passing_untranslated_is_a_mistake() {
        let memory = memory(&[(TABLE.as_u64(), 0x6000_0000_0000_0003)]);
        cached(&memory, 0);
    }

    #[test]
    #[should_panic(expected = "reserved bits")]
    fn a_command_with_reserved_bits_is_a_mistake() {
        decode(&(1u128 << 16 | 2 << 60).to_le_bytes());
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::cell::RefCell;
    use sluice_memory::TableFrames;

    /// Memory by the word, and frames for tables; one that was freed can no longer be walked.
    #[derive(Default)]
    pub struct Words {
        words: RefCell<BTreeMap<u64, u64>>,
        frames: u64,
        freed: BTreeSet<u64>,
    }

    impl PhysicalMemory for Words {
        fn read(&self, _: Hpa, _: &mut [u8]) {
            unreachable!("read by the word");
        }
        fn write(&self, _: Hpa, _: &[u8]) {
            unreachable!("written by the word");
        }
        fn fill(&self, _: Hpa, _: u64, _: u8) {
            unreachable!("written by the word");
        }
        fn read_u64(&self, at: Hpa) -> u64 {
            assert!(
                at.is_aligned(8) && !self.freed.contains(&at.align_down(4096).as_u64()),
                "{at} was freed"
            );
            self.words.borrow().get(&at.as_u64()).copied().unwrap_or(0)
        }
        fn write_u64(&self, at: Hpa, value: u64) {
            self.words.borrow_mut().insert(at.as_u64(), value);
        }
    }

    impl TableFrames for Words {
        fn allocate_table(&mut self) -> Option<Hpa> {
            self.frames += 4096;
            Some(Hpa::new(0x4000_0000 + self.frames))
        }
        fn free_table(&mut self, frame: Hpa) {
            assert!(self.freed.insert(frame.as_u64()), "{frame} freed twice");
        }
    }
}
