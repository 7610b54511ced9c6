//! A guest's table of physical region descriptors (PRD): where in its memory a bus master moves data.
//!
//! The physical bus master does not see it. It has a table of the hypervisor's, which leads to the guest's regions where the disk finds them
//! ([`Cursor::place`]), or to a buffer of the hypervisor's, between which and the regions data are copied ([`Cursor::carry`]). The guest's
//! table and the regions in it are the guest's own business: each is read once, and looked up as it is used. A guest that changes its table meanwhile
//! moves other bytes of its own, or has changed it too late.
//!
//! Source: SFF-8038i, section 1.2. Deviations: a region that crosses a multiple of 64 KiB, or has an odd address or length, is
//! refused, where hardware may wrap or ignore a bit; so are regions that are too short ([`Refusal::Many`]).

use crate::Memory;

/// A region cannot cross a multiple of this, nor can a table.
const BOUNDARY: u64 = 1 << 16;
/// Bytes of a descriptor.
const ENTRY: u64 = 8;
/// Descriptors that one part of a command's data may take: what a move costs has a bound then. They are regions of 256 bytes on average where data are
/// copied, and of 1 KiB where they are not.
const MOST: u32 = 256;
/// Bytes of a table of the physical bus master's: at least two descriptors for each of a guest's, as a region may cross a boundary where the disk finds it.
/// It is at a multiple of that.
pub const TABLE: usize = 2 * MOST as usize * ENTRY as usize;

/// Why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It goes on beyond 64 KiB.
    Table,
    /// The table, or what it leads to, is not memory that the guest may access so.
    Outside,
    /// A region is at an odd address, or has an odd length.
    Odd,
    /// A region crosses a boundary of 64 KiB.
    Crosses,
    /// The regions have fewer bytes than the command.
    Short,
    /// The regions are so short that it takes too many of them.
    Many,
}

/// Which way data move.
#[derive(Debug)]
pub enum Move<'a> {
    /// Into the guest's memory.
    In(&'a [u8]),
    /// Out of the guest's memory.
    Out(&'a mut [u8]),
}

impl Move<'_> {
    fn len(&self) -> usize {
        match self {
            Self::In(bytes) => bytes.len(),
            Self::Out(bytes) => bytes.len(),
        }
    }
}

/// A way through a table: a command's data are moved in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Address of the table.
    table: u32,
    /// Where the next descriptor is in it.
    offset: u64,
    /// What is left of the region before: address and bytes.
    region: (u64, u64),
    /// That was the last one.
    ended: bool,
}

impl Cursor {
    /// At the beginning of the table at `table`, whose lowest two bits do not count.
    pub const fn new(table: u32) -> Self {
        Self { table: table & !3, offset: 0, region: (0, 0), ended: false }
    }

    /// Moves the next bytes.
    ///
    /// # Errors
    /// See [`Refusal`]; some of the bytes may have moved.
    pub fn carry(&mut self, memory: &impl Memory, mut what: Move<'_>) -> Result<(), Refusal> {
        let (mut moved, mut taken) = (0, 0);
        while moved < what.len() {
            let (at, len) = self.next(memory, (what.len() - moved) as u64, &mut taken)?;
            let range = moved..moved + len as usize;
            let done = match &mut what {
                Move::In(bytes) => bytes.get(range).map(|part| memory.write(at, part)),
                Move::Out(bytes) => bytes.get_mut(range).map(|part| memory.read(at, part)),
            };
            if done != Some(true) {
                return Err(Refusal::Outside);
            }
            moved += len as usize;
        }
        Ok(())
    }

    /// Has `table`, which is the physical bus master's and of [`TABLE`] bytes, lead to the next `bytes` where the disk finds them. False, and the cursor is
    /// where it was, if it does not find all of them, or the guest's table cannot be followed: [`Self::carry`] says why.
    pub fn place(&mut self, memory: &impl Memory, bytes: u64, table: &mut [u8]) -> bool {
        let mut cursor = *self;
        let mut writer = Writer { table, written: 0 };
        let (mut left, mut taken) = (bytes, 0);
        while left > 0 {
            let Ok((at, len)) = cursor.next(memory, left, &mut taken) else { return false };
            if !memory.bus(at, len).is_some_and(|bus| writer.add(bus, len)) {
                return false;
            }
            left -= len;
        }
        writer.end();
        *self = cursor;
        true
    }

    /// Goes on by up to so many bytes, in one region: where they are, and how many. Counts descriptors in `taken`.
    fn next(&mut self, memory: &impl Memory, most: u64, taken: &mut u32) -> Result<(u64, u64), Refusal> {
        if self.region.1 == 0 {
            if *taken == MOST {
                return Err(Refusal::Many);
            }
            self.region = self.descriptor(memory)?;
            *taken += 1;
        }
        let (at, left) = self.region;
        let len = left.min(most);
        self.region = (at + len, left - len);
        Ok((at, len))
    }

    /// The next region.
    fn descriptor(&mut self, memory: &impl Memory) -> Result<(u64, u64), Refusal> {
        if self.ended {
            return Err(Refusal::Short);
        }
        if u64::from(self.table) % BOUNDARY + self.offset + ENTRY > BOUNDARY {
            return Err(Refusal::Table);
        }
        let mut raw = [0; ENTRY as usize];
        if !memory.read(u64::from(self.table) + self.offset, &mut raw) {
            return Err(Refusal::Outside);
        }
        self.offset += ENTRY;
        let raw = u64::from_le_bytes(raw);
        self.ended = raw >> 63 != 0;
        let base = raw & 0xffff_ffff;
        let len = match raw >> 32 & 0xffff {
            0 => BOUNDARY,
            len => len,
        };
        if (base | len) & 1 != 0 {
            return Err(Refusal::Odd);
        }
        if base % BOUNDARY + len > BOUNDARY {
            return Err(Refusal::Crosses);
        }
        Ok((base, len))
    }
}

/// Writes a table of the physical bus master's, descriptor by descriptor.
struct Writer<'a> {
    table: &'a mut [u8],
    written: usize,
}

impl Writer<'_> {
    /// Adds a region, where the disk finds it. False if there is no room for it.
    fn add(&mut self, bus: u32, bytes: u64) -> bool {
        let (mut at, mut left) = (u64::from(bus), bytes);
        while left > 0 {
            let len = (BOUNDARY - at % BOUNDARY).min(left);
            let Some(entry) = self.table.get_mut(self.written..self.written + ENTRY as usize) else {
                return false;
            };
            // 64 KiB are written as 0.
            entry.copy_from_slice(&(at | (len & 0xffff) << 32).to_le_bytes());
            self.written += ENTRY as usize;
            (at, left) = (at + len, left - len);
        }
        true
    }

    /// That was the last one.
    fn end(self) {
        let last = self.written.checked_sub(1).and_then(|at| self.table.get_mut(at));
        if let Some(byte) = last {
            *byte |= 1 << 7;
        }
    }
}

/// Has a table of the physical bus master's, of [`TABLE`] bytes, lead to a buffer.
pub fn lead_to(table: &mut [u8], bus: u32, bytes: u64) {
    let mut writer = Writer { table, written: 0 };
    writer.add(bus, bytes);
    writer.end();
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::tests::Ram;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const TABLE_AT: u32 = 0x1000;

    fn with_table(at: u32, entries: &[(u32, u32)]) -> Ram {
        let ram = Ram::new(1 << 20);
        for (index, (base, len)) in entries.iter().enumerate() {
            let raw = u64::from(*base) | u64::from(*len) << 32;
            ram.write(u64::from(at) + index as u64 * 8, &raw.to_le_bytes());
        }
        ram
    }

    fn run(at: u32, entries: &[(u32, u32)], bytes: usize) -> Result<(), Refusal> {
        let ram = with_table(at, entries);
        Cursor::new(at).carry(&ram, Move::In(&vec![0x5a; bytes]))
    }

    #[test]
    fn data_go_where_the_table_says_in_any_parts() {
        let ram = with_table(TABLE_AT, &[(0x2000, 512), (0x8000, 0), (0x4000, 1 << 31 | 1024)]);
        let bytes: Vec<u8> = (0..512 + 0x8000).map(|index| (index / 7) as u8).collect();
        // The second region is 64 KiB at a multiple of 32 KiB: too far.
        let mut cursor = Cursor::new(TABLE_AT);
        assert_eq!(cursor.carry(&ram, Move::In(&bytes[..512])), Ok(()));
        assert_eq!(cursor.carry(&ram, Move::In(&bytes[512..])), Err(Refusal::Crosses));
        let ram = with_table(TABLE_AT, &[(0x2000, 512), (0x4000, 1 << 31 | 1024)]);
        let mut cursor = Cursor::new(TABLE_AT);
        for part in bytes[..1536].chunks(300) {
            cursor.carry(&ram, Move::In(part)).expect("there is room");
        }
        let (mut first, mut second) = (vec![0; 512], vec![0; 1024]);
        assert!(ram.read(0x2000, &mut first) && ram.read(0x4000, &mut second));
        assert_eq!([first, second].concat(), bytes[..1536]);
        let mut back = vec![0; 1536];
        let mut cursor = Cursor::new(TABLE_AT);
        back.chunks_mut(512).for_each(|part| cursor.carry(&ram, Move::Out(part)).expect("as before"));
        assert_eq!(back, bytes[..1536]);
    }

    #[test]
    fn each_fault_of_a_table_is_told() {
        let end = 1 << 31;
        assert_eq!(run(TABLE_AT, &[(0x2000, end | 512)], 513), Err(Refusal::Short));
        assert_eq!(run(TABLE_AT, &[(0x2001, end | 512)], 2), Err(Refusal::Odd));
        assert_eq!(run(TABLE_AT, &[(0x2000, end | 511)], 2), Err(Refusal::Odd));
        assert_eq!(run(TABLE_AT, &[(0xff00, end | 512)], 2), Err(Refusal::Crosses));
        assert_eq!(run(TABLE_AT, &[(0x10_0000, end | 512)], 2), Err(Refusal::Outside));
        assert_eq!(run(TABLE_AT, &[(0xf_fe00, end | 512)], 512), Ok(()));
        assert_eq!(run(0x10_0000, &[], 2), Err(Refusal::Outside));
        assert_eq!(run(0xfff8, &[(0x2000, 512), (0x2000, end | 512)], 512), Ok(()));
        assert_eq!(run(0xfff8, &[(0x2000, 512), (0x2000, end | 512)], 514), Err(Refusal::Table));
        assert_eq!(run(TABLE_AT + 3, &[], 0), Ok(()));
    }

    #[test]
    fn a_part_takes_no_more_descriptors_than_its_bound() {
        let regions = |count: u32, len: u32| -> Vec<(u32, u32)> {
            (0..count).map(|index| (0x2_0000 + index * len, len)).collect()
        };
        assert_eq!(run(TABLE_AT, &regions(MOST, 256), 1 << 16), Ok(()));
        assert_eq!(run(TABLE_AT, &regions(MOST + 1, 254), 254 * 257), Err(Refusal::Many));
        // Each part has its own.
        let ram = with_table(TABLE_AT, &regions(2 * MOST, 128));
        let mut cursor = Cursor::new(TABLE_AT);
        for _ in 0..2 {
            assert_eq!(cursor.carry(&ram, Move::In(&[0x5a; 256 * 128])), Ok(()));
        }
    }

    /// Regions of a table of the physical bus master's.
    fn regions(table: &[u8]) -> Vec<(u64, u64)> {
        let mut regions = Vec::new();
        for entry in table.as_chunks().0 {
            let entry = u64::from_le_bytes(*entry);
            let len = if entry >> 32 & 0xffff == 0 { BOUNDARY } else { entry >> 32 & 0xffff };
            assert!(entry >> 48 & 0x7fff == 0 && (entry % BOUNDARY) + len <= BOUNDARY, "{entry:#x}");
            regions.push((entry & 0xffff_ffff, len));
            if entry >> 63 != 0 {
                return regions;
            }
        }
        panic!("a table without an end");
    }

    #[test]
    fn a_buffer_is_led_to_without_crossing_a_boundary() {
        let mut table = [0; TABLE];
        lead_to(&mut table, 0x1_1000, 0x1_0000);
        assert_eq!(regions(&table), [(0x1_1000, 0xf000), (0x2_0000, 0x1000)]);
        lead_to(&mut table, 0x3_0000, 0x1_0000);
        assert_eq!(regions(&table), [(0x3_0000, 0x1_0000)]);
    }

    #[test]
    fn a_table_of_as_many_regions_as_may_be_has_room_where_each_crosses() {
        let ram = Ram::lent(1 << 25, 0x8000);
        for index in 0..u64::from(MOST) + 1 {
            ram.write(u64::from(TABLE_AT) + index * 8, &((1 << 16) * (1 + index)).to_le_bytes());
        }
        let mut table = [0; TABLE];
        let mut cursor = Cursor::new(TABLE_AT);
        assert!(cursor.place(&ram, u64::from(MOST) << 16, &mut table));
        assert_eq!(regions(&table).len(), TABLE / ENTRY as usize);
        let mut cursor = Cursor::new(TABLE_AT);
        assert!(!cursor.place(&ram, (u64::from(MOST) << 16) + 2, &mut table), "too many");
        assert_eq!(cursor, Cursor::new(TABLE_AT));
    }

    proptest! {
        /// What a table does not name is not changed, and no table has data move that it does not name.
        #[test]
        fn only_what_a_table_names_changes(
            entries in prop::collection::vec((0u32..0x12_0000, 0u32..0x1_0000, any::<bool>()), 1..12),
            parts in prop::collection::vec(1usize..3000, 1..8),
        ) {
            let mut entries: Vec<(u32, u32)> =
                entries.iter().map(|(base, len, last)| (base & !1, len & !1 | u32::from(*last) << 31)).collect();
            // Behind a table without an end, zeros name the first 64 KiB.
            if let Some((_, len)) = entries.last_mut() {
                *len |= 1 << 31;
            }
            // Regions that lie over the table change it.
            prop_assume!(entries.iter().all(|(base, _)| *base > 0x2000));
            let ram = with_table(TABLE_AT, &entries);
            let before = ram.bytes();
            let mut cursor = Cursor::new(TABLE_AT);
            let _ = parts.iter().try_for_each(|len| cursor.carry(&ram, Move::In(&vec![0xff; *len])));
            let named = |at: usize| entries.iter().any(|(base, len)| {
                let len = if len & 0xffff == 0 { 0x1_0000 } else { len & 0xffff };
                (*base as usize..(base + len) as usize).contains(&at)
            });
            for (at, (old, new)) in before.iter().zip(ram.bytes()).enumerate() {
                prop_assert!(*old == new || named(at), "{at:#x}");
            }
        }

        /// The disk finds the same bytes as would be copied, in the same order, and a cursor is behind both at the same place.
        #[test]
        fn data_in_place_are_those_that_would_be_copied(
            entries in prop::collection::vec((0u32..0x8_0000, 0u32..0x1_0000), 1..12),
            parts in prop::collection::vec(1u64..3000, 1..8),
            offset in (0u32..1 << 20).prop_map(|offset| offset << 12),
        ) {
            let count = entries.len();
            let entries: Vec<(u32, u32)> = entries
                .iter()
                .enumerate()
                .map(|(index, (base, len))| (base & !1 | 0x4000, len & 0xfffe | u32::from(index + 1 == count) << 31))
                .collect();
            let ram = Ram::lent(0x7_0000, offset & 0x7fff_ffff);
            let filling: Vec<u8> = (0..0x6_c000u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
            ram.write(0x4000, &filling);
            for (index, (base, len)) in entries.iter().enumerate() {
                let raw = u64::from(*base) | u64::from(*len) << 32;
                ram.write(u64::from(TABLE_AT) + index as u64 * 8, &raw.to_le_bytes());
            }
            let (mut cursor, mut other) = (Cursor::new(TABLE_AT), Cursor::new(TABLE_AT));
            let mut table = [0; TABLE];
            for bytes in parts.iter().map(|bytes| bytes * 2) {
                let mut copy = vec![0; bytes as usize];
                let before = other;
                let copied = other.carry(&ram, Move::Out(&mut copy)).is_ok();
                let placed = cursor.place(&ram, bytes, &mut table);
                prop_assert_eq!(placed, copied);
                if !placed {
                    prop_assert_eq!(cursor, before, "as it was");
                    break;
                }
                prop_assert_eq!(cursor, other);
                let mut found = Vec::new();
                for (bus, len) in regions(&table) {
                    let mut part = vec![0; len as usize];
                    prop_assert!(ram.read(bus - u64::from(offset & 0x7fff_ffff), &mut part));
                    found.extend(part);
                }
                prop_assert_eq!(found, copy);
            }
        }
    }
}
