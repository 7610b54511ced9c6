//! The I/O Virtualization Reporting Structure, which lists the units (48882, 5.2, "I/O Virtualization Reporting Structure").
//!
//! Key type: [`Ivrs`]. It can be read from any bytes: what makes no sense is left out, and [`Ivrs::damaged`] tells.
//!
//! Deviations: devices that ACPI names (type F0h) are passed over, and so are device settings (pass INIT, ExtINT, NMI,
//! LINT, system management): nothing of the kind passes. Exclusion ranges count as ranges to be mapped one to one; no
//! unit is told of an exclusion range, which every device could reach.

use crate::RequesterId;
use alloc::vec::Vec;
use bitflags::bitflags;
use core::ops::Range;
use sluice_memory::{Hpa, PAGE_SIZE};

/// Bytes before the first block: ACPI's header, IVinfo and a reserved word.
const HEADER: usize = 48;

bitflags! {
    /// How firmware wants the control register to be.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UnitFlags: u8 {
        /// HtTunEn.
        const TUNNEL = 1 << 0;
        /// PassPW.
        const PASS_PW = 1 << 1;
        /// ResPassPW.
        const RESPONSE_PASS_PW = 1 << 2;
        /// Isoc.
        const ISOCHRONOUS = 1 << 3;
        /// What says what the unit can do, or the manual will name.
        const _ = !0;
    }
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitEntry {
    /// Block type: 10h, 11h, 40h. A later one describes the same unit better.
    pub kind: u8,
    /// What firmware recommends.
    pub flags: UnitFlags,
    /// Its own PCI function.
    pub function: RequesterId,
    /// Where in that function's configuration space its capability block is.
    pub capability: u16,
    /// Its registers.
    pub base: Hpa,
    /// PCI segment of everything here.
    pub segment: u16,
    /// Requesters that come to it.
    pub served: Vec<Served>,
    /// I/O APICs and timers that come to it.
    pub specials: Vec<Special>,
}

/// Requesters that come to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The first.
    pub first: RequesterId,
    /// The last.
    pub last: RequesterId,
    /// As whom they come, if not as themselves.
    pub alias: Option<RequesterId>,
}

impl Served {
    fn contains(&self, requester: RequesterId) -> bool {
        self.first <= requester && requester <= self.last
    }
}

/// What a special device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialKind {
    /// An I/O APIC; the handle is its identifier.
    IoApic,
    /// A high-precision event timer; the handle is its number.
    Hpet,
    /// Something newer.
    Other(u8),
}

/// A device that is no PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// What it is.
    pub kind: SpecialKind,
    /// Which of its kind.
    pub handle: u8,
    /// As whom it comes.
    pub requester: RequesterId,
}

/// Memory that requesters must reach one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// PCI segment of the requesters.
    pub segment: u16,
    /// The first of them.
    pub first: RequesterId,
    /// The last.
    pub last: RequesterId,
    /// First byte, a multiple of the page size.
    pub start: u64,
    /// Byte behind the last, likewise.
    pub end: u64,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ivrs {
    /// Every unit once.
    pub units: Vec<UnitEntry>,
    /// Ranges for requesters, of all units.
    pub reserved: Vec<Reserved>,
    /// Something was left out because it made no sense.
    pub damaged: bool,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

impl Ivrs {
    /// Reads a table, from its header on.
    pub fn parse(table: &[u8]) -> Self {
        let mut ivrs = Self::default();
        let mut rest = table.get(HEADER..).unwrap_or_default();
        while !rest.is_empty() {
            let length = u16_at(rest, 2).map_or(0, usize::from);
            let Some(block) = (length >= 4).then(|| rest.get(..length)).flatten() else {
                ivrs.damaged = true;
                break;
            };
            rest = &rest[length..];
            let read = match block[0] {
                kind @ (0x10 | 0x11 | 0x40) => ivrs.read_unit(kind, block),
                kind @ 0x20..=0x22 => ivrs.read_reserved(kind, block),
                _ => Some(()),
            };
            ivrs.damaged |= read.is_none();
        }
        ivrs
    }

    /// An IVHD block.
    fn read_unit(&mut self, kind: u8, block: &[u8]) -> Option<()> {
        let mut unit = UnitEntry {
            kind,
            flags: UnitFlags::from_bits_retain(*block.get(1)?),
            function: RequesterId(u16_at(block, 4)?),
            capability: u16_at(block, 6)?,
            base: Hpa::new(u64_at(block, 8)?),
            segment: u16_at(block, 16)?,
            served: Vec::new(),
            specials: Vec::new(),
        };
        let header = if kind == 0x10 { 24 } else { 40 };
        self.damaged |= unit.read_devices(block.get(header..)?).is_none();
        let same = |other: &UnitEntry| {
            (other.segment, other.function, other.capability)
                == (unit.segment, unit.function, unit.capability)
        };
        match self.units.iter().position(same) {
            Some(known) if self.units[known].kind >= kind => {}
            Some(known) => self.units[known] = unit,
            None => self.units.push(unit),
        }
        Some(())
    }

    /// An IVMD block.
    fn read_reserved(&mut self, kind: u8, block: &[u8]) -> Option<()> {
        let (device, last) = (u16_at(block, 4)?, u16_at(block, 6)?);
        let (start, length) = (u64_at(block, 16)?, u64_at(block, 24)?);
        let (first, last) = match kind {
            0x20 => (0, u16::MAX),
            0x21 => (device, device),
            _ => (device, last),
        };
        let end = start.checked_add(length)?.checked_next_multiple_of(PAGE_SIZE)?;
        if first > last {
            return None;
        }
        if length > 0 {
            self.reserved.push(Reserved {
                segment: u16_at(block, 8)?,
                first: RequesterId(first),
                last: RequesterId(last),
                start: start & !(PAGE_SIZE - 1),
                end,
            });
        }
        Some(())
    }

    /// What must be mapped one to one for a requester of a unit; also for those that come as it.
    pub fn unity(&self, unit: &UnitEntry, requester: RequesterId) -> impl Iterator<Item = Range<u64>> {
        let own = move |range: &&Reserved| {
            let meets = |served: &Served| {
                served.alias == Some(requester) && range.first <= served.last && served.first <= range.last
            };
            range.segment == unit.segment
                && (range.first <= requester && requester <= range.last || unit.served.iter().any(meets))
        };
        self.reserved.iter().filter(own).map(|range| range.start..range.end)
    }
}

impl UnitEntry {
    /// The device entries of an IVHD block.
    fn read_devices(&mut self, mut rest: &[u8]) -> Option<()> {
        /// A range that has begun.
        type Begun = Option<(RequesterId, Option<RequesterId>)>;
        let mut begun: Begun = None;
        while let Some(&kind) = rest.first() {
            let length = match kind {
                0x00..0x40 => 4,
                0x40..0x80 => 8,
                0x80..0xc0 => 16,
                // A device with an ACPI name: the length of its unique name is the last fixed byte.
                0xf0 => 22 + usize::from(*rest.get(21)?),
                0xc0.. => 32,
            };
            let entry = rest.get(..length)?;
            rest = &rest[length..];
            let device = RequesterId(u16_at(entry, 1)?);
            let other = || u16_at(entry, 5).map(RequesterId);
            let one = |alias| Served { first: device, last: device, alias };
            match kind {
                0x01 => self.served.push(Served {
                    first: RequesterId(0),
                    last: RequesterId(u16::MAX),
                    alias: None,
                }),
                0x02 | 0x46 => self.served.push(one(None)),
                0x42 => self.served.push(one(Some(other()?))),
                0x03 | 0x47 => begun = Some((device, None)),
                0x43 => begun = Some((device, Some(other()?))),
                0x04 => {
                    let (first, alias) = begun.take()?;
                    if first > device {
                        return None;
                    }
                    self.served.push(Served { first, last: device, alias });
                }
                0x48 => {
                    let kind = match *entry.get(7)? {
                        1 => SpecialKind::IoApic,
                        2 => SpecialKind::Hpet,
                        other => SpecialKind::Other(other),
                    };
                    self.specials.push(Special { kind, handle: *entry.get(4)?, requester: other()? });
                }
                _ => {}
            }
        }
        begun.is_none().then_some(())
    }

    /// Whether a requester comes to it, be it only as an alias or a special device.
    pub fn serves(&self, requester: RequesterId) -> bool {
        self.served.iter().any(|served| served.contains(requester) || served.alias == Some(requester))
            || self.specials.iter().any(|special| special.requester == requester)
    }

    /// As whom a function comes: the last entry that says so counts.
    pub fn alias(&self, function: RequesterId) -> RequesterId {
        let said = self.served.iter().rev().filter(|served| served.contains(function));
        said.filter_map(|served| served.alias).next().unwrap_or(function)
    }

    /// As whom an I/O APIC comes.
    pub fn io_apic(&self, id: u8) -> Option<RequesterId> {
        let own = |special: &&Special| special.kind == SpecialKind::IoApic && special.handle == id;
        self.specials.iter().find(own).map(|special| special.requester)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::from([0; HEADER]);
        blocks.iter().for_each(|block| bytes.extend(block));
        bytes
    }

    fn unit(kind: u8, function: u16, entries: &[u8]) -> Vec<u8> {
        let header = if kind == 0x10 { 24 } else { 40 };
        let mut block = Vec::from([kind, 0b1001_0001]);
        block.extend(u16::try_from(header + entries.len()).unwrap().to_le_bytes());
        block.extend(function.to_le_bytes());
        block.extend(0x40u16.to_le_bytes());
        block.extend(0xfed8_0000u64.to_le_bytes());
        block.resize(header, 0);
        block.extend(entries);
        block
    }

    fn reserved(kind: u8, first: u16, last: u16, start: u64, length: u64) -> Vec<u8> {
        let mut block = Vec::from([kind, 0x08, 32, 0]);
        block.extend(first.to_le_bytes());
        block.extend(last.to_le_bytes());
        block.resize(16, 0);
        block.extend(start.to_le_bytes());
        block.extend(length.to_le_bytes());
        block
    }

    fn id(id: u16) -> RequesterId {
        RequesterId(id)
    }

    #[test]
    fn all_kinds_of_entries() {
        #[rustfmt::skip]
        let entries = [
            0x02, 0x08, 0x00, 0x00,                           // one device
            0x03, 0x00, 0x01, 0x00, 0x04, 0xff, 0x01, 0x00,   // two buses
            0x42, 0x00, 0x03, 0x00, 0, 0x10, 0x00, 0,         // one device that comes as 00:02.0
            0x43, 0x00, 0x04, 0x00, 0, 0xe8, 0x00, 0,         // a conventional bus behind 00:1d.0
            0x04, 0xff, 0x04, 0x00,
            0x46, 0x18, 0x00, 0x00, 0, 0, 0, 0x10,            // extended
            0x48, 0x00, 0x00, 0xd7, 0x07, 0xa0, 0x00, 0x01,   // I/O APIC 7 is 00:14.0
            0x48, 0x00, 0x00, 0x00, 0x00, 0xa1, 0x00, 0x02,   // HPET 0 is 00:14.1
            0xf0, 0xa5, 0x00, 0x00, b'A', b'M', b'D', b'I', b'0', b'0', b'2', b'0',
            0, 0, 0, 0, 0, 0, 0, 0, 2, 3, b'_', b'S', b'B',   // named by ACPI
            0x00, 0x00, 0x00, 0x00,                           // padding
        ];
        let ivrs = Ivrs::parse(&table(&[unit(0x40, 2, &entries)]));
        assert!(!ivrs.damaged);
        let unit = &ivrs.units[0];
        assert_eq!((unit.function, unit.capability, unit.base), (id(2), 0x40, Hpa::new(0xfed8_0000)));
        assert!(unit.flags.contains(UnitFlags::TUNNEL) && !unit.flags.contains(UnitFlags::PASS_PW));
        let served = [0x08, 0x100, 0x1ff, 0x300, 0x10, 0x400, 0x4ff, 0xe8, 0x18, 0xa0, 0xa1];
        assert!(served.iter().all(|requester| unit.serves(id(*requester))));
        let not = [0, 0x09, 0xff, 0x200, 0x301, 0x500, 0xa5];
        assert!(!not.iter().any(|requester| unit.serves(id(*requester))));
        assert_eq!([0x08, 0x300, 0x45f, 0x180].map(|of| unit.alias(id(of)).0), [0x08, 0x10, 0xe8, 0x180]);
        assert_eq!((unit.io_apic(7), unit.io_apic(0)), (Some(id(0xa0)), None));
    }

    #[test]
    fn the_best_description_of_a_unit_counts() {
        let everything = unit(0x10, 2, &[0x01, 0, 0, 0]);
        let one = |device| unit(0x11, 2, &[0x02, device, 0, 0]);
        let other = unit(0x10, 3, &[]);
        for blocks in
            [[everything.clone(), one(8), other.clone()], [one(8), everything.clone(), other.clone()]]
        {
            let ivrs = Ivrs::parse(&table(&blocks));
            assert_eq!((ivrs.units.len(), ivrs.damaged), (2, false));
            let unit = ivrs.units.iter().find(|unit| unit.function == id(2)).unwrap();
            assert!(unit.serves(id(8)) && !unit.serves(id(16)));
        }
    }

    #[test]
    fn ranges_go_to_who_is_named_and_its_alias() {
        let alias = unit(0x10, 2, &[0x42, 0x00, 0x03, 0x00, 0, 0x10, 0x00, 0]);
        let blocks = [
            alias,
            reserved(0x20, 0, 0, 0x1000, 0x1000),
            reserved(0x21, 0x300, 0, 0x7fff_0800, 0x1000),
            reserved(0x22, 0x18, 0x1f, 0x5000, 1),
            reserved(0x22, 0x1f, 0x18, 0x6000, 1),
            reserved(0x21, 0x18, 0, u64::MAX, 2),
        ];
        let ivrs = Ivrs::parse(&table(&blocks));
        assert!(ivrs.damaged, "a range of requesters from last to first, one of addresses beyond the end");
        let of = |requester| ivrs.unity(&ivrs.units[0], id(requester)).collect::<Vec<_>>();
        assert_eq!(of(0x300), [0x1000..0x2000, 0x7fff_0000..0x7fff_2000]);
        assert_eq!(of(0x10), of(0x300));
        assert_eq!(of(0x1a), [0x1000..0x2000, 0x5000..0x6000]);
        assert_eq!(of(0x20), core::slice::from_ref(&(0x1000..0x2000)));
    }

    #[test]
    fn what_is_cut_short_is_damaged_and_the_rest_is_there() {
        let whole = table(&[
            unit(0x10, 2, &[0x02, 8, 0, 0, 0x48, 0, 0, 0, 0, 0xa0, 0, 1]),
            reserved(0x20, 0, 0, 0x1000, 0x1000),
        ]);
        let parsed = Ivrs::parse(&whole);
        assert_eq!((parsed.units.len(), parsed.reserved.len(), parsed.damaged), (1, 1, false));
        let first = whole.len() - 32;
        for length in HEADER + 1..whole.len() {
            let cut = Ivrs::parse(&whole[..length]);
            assert_eq!(cut.damaged, length != first, "at {length}");
            assert_eq!((cut.units.len(), cut.reserved.len()), (usize::from(length >= first), 0));
        }
        let unfinished = Ivrs::parse(&table(&[unit(0x10, 2, &[0x02, 8, 0, 0, 0x03, 0x10, 0, 0])]));
        assert!(
            unfinished.damaged && unfinished.units[0].serves(id(8)) && !unfinished.units[0].serves(id(16))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(&[0x10u8, 0x11, 0x40, 0x20, 0x22][..])) {
            Ivrs::parse(&bytes);
            // Such that the bytes are not passed over at once.
            let mut block = Vec::from([kind, 0]);
            block.extend((bytes.len() as u16 + 4).to_le_bytes());
            block.extend(&bytes);
            let ivrs = Ivrs::parse(&table(&[block]));
            for unit in &ivrs.units {
                prop_assert!(unit.served.iter().all(|served| served.first <= served.last));
                prop_assert!(unit.served.len() + unit.specials.len() <= bytes.len() / 4);
            }
            for range in &ivrs.reserved {
                prop_assert!(range.start < range.end && range.first <= range.last);
            }
        }
    }
}
