//! I/O page tables of AMD-Vi (48882, 2.2.3, "I/O Page Tables for Host Translations").
//!
//! Bits of an entry: 0 PR, 11:9 next level (0 for a page of the level's own size), 51:12 address, 60 FC, 61 IR, 62 IW.
//!
//! Deviations: no level is skipped, and no page has a size between those of the levels (next level 7).

use sluice_memory::{Access, Entry, Format, Hpa};

const PRESENT: u64 = 1;
const NEXT_LEVEL_SHIFT: u32 = 9;
const NEXT_LEVEL: u64 = 7 << NEXT_LEVEL_SHIFT;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Requests look into the processors' caches even where the device asks for the opposite. A page that was cleared for a
/// new owner, but is not written back yet, would show the device what the old owner had there.
const FORCE_COHERENT: u64 = 1 << 60;
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
        if rights == 0 { 0 } else { hpa.as_u64() | PRESENT | FORCE_COHERENT | rights }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amdvi::command::Command;
    use crate::amdvi::device::Memory;
    use crate::amdvi::model::{Model, testing::Words};
    use crate::{Invalidation, RequesterId, SpaceTag};
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use sluice_memory::{HUGE_PAGE, Iova, LARGE_PAGE, PAGE_SIZE, PhysicalMemory, Tables};

    const DEVICE_TABLE: Hpa = Hpa::new(0x100_0000);
    const REQUESTER: RequesterId = RequesterId::new(0, 3, 0);
    const TAG: SpaceTag = SpaceTag(5);

    /// A space that the requester reaches.
    fn space(levels: u8) -> (Words, Tables<HostFormat>, Model) {
        let mut words = Words::default();
        let tables = Tables::with_format(HostFormat { levels }, &mut words).unwrap();
        let entry = Memory::Space { tag: TAG, root: tables.root(), levels }.encode();
        let at = DEVICE_TABLE.as_u64() + u64::from(REQUESTER.0) * 32;
        words.write_u64(Hpa::new(at), entry[0]);
        words.write_u64(Hpa::new(at + 8), entry[1]);
        (words, tables, Model::new(DEVICE_TABLE))
    }

    fn any_access() -> impl Strategy<Value = Access> {
        (1u8..4).prop_map(Access::from_bits_truncate)
    }

    #[test]
    fn pages_of_all_sizes_as_the_manual_has_them() {
        let format = HostFormat { levels: 4 };
        let access = Access::READ | Access::WRITE;
        for (level, size) in [(1, PAGE_SIZE), (2, LARGE_PAGE), (3, HUGE_PAGE)] {
            let entry = format.leaf(Hpa::new(5 * size), access, level);
            assert_eq!(entry, (5 * size) | 0x7000_0000_0000_0001, "IW, IR, FC, next level 0, PR");
        }
        assert_eq!(format.leaf(Hpa::new(0), Access::READ, 1) >> 60, 0b0011);
        assert_eq!(format.leaf(Hpa::new(0), Access::WRITE, 1) >> 60, 0b0101);
        assert_eq!(format.leaf(Hpa::new(0x1000), Access::EXECUTE, 1), 0, "means nothing to a device");
        assert_eq!(format.table(Hpa::new(0x7000), 4), 0x6000_0000_0000_7601, "next level 3");
    }

    proptest! {
        /// The unit, which reads entries by the manual, finds what a flat map says, at any depth; and after the commands
        /// that go with a change it remembers nothing else, whatever it remembered before.
        #[test]
        fn a_unit_finds_and_forgets_what_it_should(
            levels in 3u8..=6,
            steps in prop::collection::vec(
                (0u8..4, 0u64..1100, prop::sample::select(&[1u64, 3, 512, 513, 1024][..]), 0u64..3, any_access(), any::<bool>()),
                1..12
            )
        ) {
            let (mut words, mut tables, mut unit) = space(levels);
            let mut model: BTreeMap<u64, (u64, Access)> = BTreeMap::new();
            let base = HUGE_PAGE / PAGE_SIZE - 600;
            for (kind, page, pages, to, access, aligned) in steps {
                let first = if aligned { (base + page) & !511 } else { base + page };
                let range = first..first + pages;
                let (at, len) = (first * PAGE_SIZE, pages * PAGE_SIZE);
                match kind {
                    0 | 1 => {
                        let target = first + to * 0x4_0000 + u64::from(to == 2);
                        model.extend(range.map(|page| (page, (page - first + target, access))));
                        tables.map(&mut words, at, Hpa::new(target * PAGE_SIZE), len, access).unwrap();
                    }
                    2 => {
                        range.for_each(|page| { model.remove(&page); });
                        tables.unmap(&mut words, at, len).unwrap();
                    }
                    _ => {
                        range.for_each(|page| { model.entry(page).and_modify(|old| old.1 = access); });
                        tables.protect(&mut words, at, len, access).unwrap();
                    }
                }
                let forget = Command::from(Invalidation::covering(TAG, Iova::new(at), len));
                unit.apply(&forget.bytes());
                // Near the change, and here and there.
                let probes = (base - 520..base + 2200).step_by(13).chain([first, first + pages - 1, first + pages]);
                for page in probes.clone() {
                    unit.fill(REQUESTER, Iova::new(page * PAGE_SIZE), &words);
                }
                let mut seen: BTreeMap<u64, (u64, Access)> = BTreeMap::new();
                for (tag, at, len, to, access) in unit.cached() {
                    prop_assert_eq!(tag, TAG);
                    for offset in (0..len).step_by(PAGE_SIZE as usize) {
                        let (page, to) = ((at.as_u64() + offset) / PAGE_SIZE, (to.as_u64() + offset) / PAGE_SIZE);
                        prop_assert_eq!(model.get(&page), Some(&(to, access)), "page {:#x}", page);
                        seen.insert(page, (to, access));
                    }
                }
                for page in probes {
                    prop_assert_eq!(seen.get(&page), model.get(&page));
                }
            }
        }
    }

    #[test]
    fn six_levels_reach_the_last_page_of_all() {
        let (mut words, mut tables, mut unit) = space(6);
        let last = !0x1fffu64;
        tables.map(&mut words, last, Hpa::new(HUGE_PAGE), PAGE_SIZE, Access::READ).unwrap();
        let mut shown = Vec::new();
        tables.visit(&words, &mut |at, hpa, len, _| shown.push((at, hpa.as_u64(), len)));
        assert_eq!(shown, [(last, HUGE_PAGE, PAGE_SIZE)]);
        unit.fill(REQUESTER, Iova::new(last), &words);
        assert_eq!(unit.cached().count(), 1);
        unit.fill(REQUESTER, Iova::new(last & ((1 << 57) - 1)), &words);
        assert_eq!(unit.cached().count(), 1, "no bit of the address is ignored");
    }

    #[test]
    fn without_the_command_a_page_stays_reachable() {
        let (mut words, mut tables, mut unit) = space(4);
        tables.map(&mut words, LARGE_PAGE, Hpa::new(HUGE_PAGE), PAGE_SIZE, Access::READ).unwrap();
        unit.fill(REQUESTER, Iova::new(LARGE_PAGE), &words);
        tables.unmap(&mut words, LARGE_PAGE, PAGE_SIZE).unwrap();
        unit.fill(REQUESTER, Iova::new(LARGE_PAGE), &words);
        let wrong = [
            Invalidation::Pages { space: TAG, at: Iova::new(LARGE_PAGE + PAGE_SIZE), order: 0 },
            Invalidation::Pages { space: SpaceTag(6), at: Iova::new(LARGE_PAGE), order: 0 },
            Invalidation::Space(SpaceTag(6)),
        ];
        wrong.into_iter().for_each(|what| unit.apply(&Command::from(what).bytes()));
        unit.apply(&Command::ForgetDevice(REQUESTER).bytes());
        assert_eq!(unit.cached().count(), 1);
        unit.apply(&Command::ForgetSpace(TAG).bytes());
        assert_eq!(unit.cached().count(), 0);
    }
}
