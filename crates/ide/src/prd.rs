//! A guest's table of physical region descriptors (PRD): where in its memory a bus master moves data.
//!
//! The guest's table and the regions in it are the guest's own business: data move between them and a buffer of the
//! hypervisor's, by the guest's addresses, each looked up as it is used. The physical bus master sees neither. A guest
//! that changes its table meanwhile moves other bytes of its own.
//!
//! Source: SFF-8038i, section 1.2. Deviations: a region that crosses a multiple of 64 KiB, or has an odd address or length, is
//! refused, where hardware may wrap or ignore a bit; so are regions that are too short ([`Refusal::Many`]).

use crate::Memory;

/// A region cannot cross a multiple of this, nor can a table.
const BOUNDARY: u64 = 1 << 16;
/// Bytes of a descriptor.
const ENTRY: u64 = 8;
/// Descriptors that one part of a command's data may take: regions of 256 bytes on average. What a move costs has a bound then.
const MOST: u32 = 256;

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
    next: u64,
    /// What is left of the region before: address and bytes.
    region: (u64, u64),
    /// That was the last one.
    ended: bool,
}

impl Cursor {
    /// At the beginning of the table at `table`, whose lowest two bits do not count.
    pub const fn new(table: u32) -> Self {
        Self { table: table & !3, next: 0, region: (0, 0), ended: false }
    }

    /// Moves the next bytes.
    ///
    /// # Errors
    /// See [`Refusal`]; some of the bytes may have moved.
    pub fn carry(&mut self, memory: &impl Memory, mut what: Move<'_>) -> Result<(), Refusal> {
        let (mut moved, mut taken) = (0, 0);
        while moved < what.len() {
            if self.region.1 == 0 {
                if taken == MOST {
                    return Err(Refusal::Many);
                }
                self.region = self.descriptor(memory)?;
                taken += 1;
            }
            let (at, left) = self.region;
            let len = left.min((what.len() - moved) as u64);
            let range = moved..moved + len as usize;
            let done = match &mut what {
                Move::In(bytes) => bytes.get(range).map(|part| memory.write(at, part)),
                Move::Out(bytes) => bytes.get_mut(range).map(|part| memory.read(at, part)),
            };
            if done != Some(true) {
                return Err(Refusal::Outside);
            }
            self.region = (at + len, left - len);
            moved += len as usize;
        }
        Ok(())
    }

    /// The next region.
    fn descriptor(&mut self, memory: &impl Memory) -> Result<(u64, u64), Refusal> {
        if self.ended {
            return Err(Refusal::Short);
        }
        if u64::from(self.table) % BOUNDARY + self.next + ENTRY > BOUNDARY {
            return Err(Refusal::Table);
        }
        let mut raw = [0; ENTRY as usize];
        if !memory.read(u64::from(self.table) + self.next, &mut raw) {
            return Err(Refusal::Outside);
        }
        self.next += ENTRY;
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

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::tests::Ram;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const TABLE: u32 = 0x1000;

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
        let ram = with_table(TABLE, &[(0x2000, 512), (0x8000, 0), (0x4000, 1 << 31 | 1024)]);
        let bytes: Vec<u8> = (0..512 + 0x8000).map(|index| (index / 7) as u8).collect();
        // The second region is 64 KiB at a multiple of 32 KiB: too far.
        let mut cursor = Cursor::new(TABLE);
        assert_eq!(cursor.carry(&ram, Move::In(&bytes[..512])), Ok(()));
        assert_eq!(cursor.carry(&ram, Move::In(&bytes[512..])), Err(Refusal::Crosses));
        let ram = with_table(TABLE, &[(0x2000, 512), (0x4000, 1 << 31 | 1024)]);
        let mut cursor = Cursor::new(TABLE);
        for part in bytes[..1536].chunks(300) {
            cursor.carry(&ram, Move::In(part)).expect("there is room");
        }
        let (mut first, mut second) = (vec![0; 512], vec![0; 1024]);
        assert!(ram.read(0x2000, &mut first) && ram.read(0x4000, &mut second));
        assert_eq!([first, second].concat(), bytes[..1536]);
        let mut back = vec![0; 1536];
        let mut cursor = Cursor::new(TABLE);
        back.chunks_mut(512).for_each(|part| cursor.carry(&ram, Move::Out(part)).expect("as before"));
        assert_eq!(back, bytes[..1536]);
    }

    #[test]
    fn each_fault_of_a_table_is_told() {
        let end = 1 << 31;
        assert_eq!(run(TABLE, &[(0x2000, end | 512)], 513), Err(Refusal::Short));
        assert_eq!(run(TABLE, &[(0x2001, end | 512)], 2), Err(Refusal::Odd));
        assert_eq!(run(TABLE, &[(0x2000, end | 511)], 2), Err(Refusal::Odd));
        assert_eq!(run(TABLE, &[(0xff00, end | 512)], 2), Err(Refusal::Crosses));
        assert_eq!(run(TABLE, &[(0x10_0000, end | 512)], 2), Err(Refusal::Outside));
        assert_eq!(run(TABLE, &[(0xf_fe00, end | 512)], 512), Ok(()));
        assert_eq!(run(0x10_0000, &[], 2), Err(Refusal::Outside));
        assert_eq!(run(0xfff8, &[(0x2000, 512), (0x2000, end | 512)], 512), Ok(()));
        assert_eq!(run(0xfff8, &[(0x2000, 512), (0x2000, end | 512)], 514), Err(Refusal::Table));
        assert_eq!(run(TABLE + 3, &[], 0), Ok(()));
    }

    #[test]
    fn a_part_takes_no_more_descriptors_than_its_bound() {
        let regions = |count: u32, len: u32| -> Vec<(u32, u32)> {
            (0..count).map(|index| (0x2_0000 + index * len, len)).collect()
        };
        assert_eq!(run(TABLE, &regions(MOST, 256), 1 << 16), Ok(()));
        assert_eq!(run(TABLE, &regions(MOST + 1, 254), 254 * 257), Err(Refusal::Many));
        // Each part has its own.
        let ram = with_table(TABLE, &regions(2 * MOST, 128));
        let mut cursor = Cursor::new(TABLE);
        for _ in 0..2 {
            assert_eq!(cursor.carry(&ram, Move::In(&[0x5a; 256 * 128])), Ok(()));
        }
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
            let ram = with_table(TABLE, &entries);
            let before = ram.bytes();
            let mut cursor = Cursor::new(TABLE);
            let _ = parts.iter().try_for_each(|len| cursor.carry(&ram, Move::In(&vec![0xff; *len])));
            let named = |at: usize| entries.iter().any(|(base, len)| {
                let len = if len & 0xffff == 0 { 0x1_0000 } else { len & 0xffff };
                (*base as usize..(base + len) as usize).contains(&at)
            });
            for (at, (old, new)) in before.iter().zip(ram.bytes()).enumerate() {
                prop_assert!(*old == new || named(at), "{at:#x}");
            }
        }
    }
}
