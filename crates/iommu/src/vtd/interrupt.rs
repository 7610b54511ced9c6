//! Interrupt remapping: entries of the table, and the requests that name them (D51397, 5.1 and 9.9).
//!
//! The index of an entry is the vector it raises: no two requesters share one, 256 entries fill one page, and an I/O APIC,
//! which wants the entry's vector in its own (5.1.5.1), agrees by construction. Every entry names the one requester that
//! may use it (SVT 01, SQ 00), so that a function which forges a message reaches nothing but its own vectors.

use crate::{Interrupt, RequesterId, Trigger};

const PRESENT: u64 = 1;
const LEVEL: u64 = 1 << 4;
const VECTOR_SHIFT: u32 = 16;
const DESTINATION_SHIFT: u32 = 32;
/// Verify the requester, all of its bits.
const VERIFY_REQUESTER: u64 = 1 << 18;

/// Entries of the table; one for each vector.
pub const ENTRIES: u16 = 256;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 16;
/// Bytes of the table.
pub const TABLE_BYTES: u64 = ENTRIES as u64 * ENTRY_BYTES;
/// The size field of the table's address register: binary logarithm of the entries, less 1 (11.4.9.1).
pub const TABLE_SIZE_FIELD: u64 = ENTRIES.ilog2() as u64 - 1;

/// How destinations are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destinations {
    /// 8 bits, for local APICs in xAPIC mode, or in x2APIC mode with low identifiers.
    Narrow,
    /// 32 bits ("extended interrupt mode"), for local APICs in x2APIC mode.
    Wide,
}

impl Destinations {
    /// Whether the local APIC with this identifier can be named.
    pub const fn reach(self, apic_id: u32) -> bool {
        match self {
            Self::Narrow => apic_id < 0xff,
            Self::Wide => true,
        }
    }

    fn field(self, apic_id: u32) -> u64 {
        match self {
            Self::Narrow => u64::from(apic_id & 0xff) << 8,
            Self::Wide => apic_id.into(),
        }
    }
}

/// Where in the table the entry of a vector is.
pub const fn offset(vector: u8) -> u64 {
    vector as u64 * ENTRY_BYTES
}

/// Low and high half of the entry by which `requester` raises `interrupt`: fixed delivery, physical destination. The low
/// one makes it present, and is to be written last and cleared first.
pub fn entry(requester: RequesterId, interrupt: Interrupt, destinations: Destinations) -> [u64; 2] {
    let level = if interrupt.trigger == Trigger::Level { LEVEL } else { 0 };
    [
        PRESENT
            | level
            | u64::from(interrupt.vector) << VECTOR_SHIFT
            | destinations.field(interrupt.apic_id) << DESTINATION_SHIFT,
        u64::from(requester.0) | VERIFY_REQUESTER,
    ]
}

/// Whether the low half of an entry is present.
pub const fn is_present(low: u64) -> bool {
    low & PRESENT != 0
}

/// Address and data of the message by which a function raises a vector (5.1.2.2): the index in the address; data are
/// added to it as a subhandle.
pub const fn message(vector: u8) -> (u32, u32) {
    const WINDOW: u32 = 0xfee0_0000;
    const REMAPPABLE: u32 = 1 << 4;
    const SUBHANDLE_VALID: u32 = 1 << 3;
    const INDEX_SHIFT: u32 = 5;
    (WINDOW | (vector as u32) << INDEX_SHIFT | REMAPPABLE | SUBHANDLE_VALID, 0)
}

/// Redirection entry by which an I/O APIC raises an interrupt (5.1.5.1); masked, active high.
pub fn redirection(interrupt: Interrupt) -> u64 {
    const MASKED: u64 = 1 << 16;
    const REMAPPABLE: u64 = 1 << 48;
    const INDEX_SHIFT: u32 = 49;
    let level = if interrupt.trigger == Trigger::Level { 1 << 15 } else { 0 };
    u64::from(interrupt.vector) << INDEX_SHIFT | REMAPPABLE | MASKED | level | u64::from(interrupt.vector)
}

/// Address, upper address and data of a message that a unit itself sends; such messages are not remapped (11.4.7.4-7).
pub fn own_message(interrupt: Interrupt) -> (u32, u32, u32) {
    let low = 0xfee0_0000 | (interrupt.apic_id & 0xff) << 12;
    (low, interrupt.apic_id & !0xff, interrupt.vector.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a unit does with a request, read from the manual (figures 5-3, 5-4 and 9-22): the vector, trigger and
    /// destination, or the fault reason.
    fn remap(
        table: &[[u64; 2]],
        source: u16,
        address: u32,
        data: u32,
        wide: bool,
    ) -> Result<(u8, bool, u32), u8> {
        assert_eq!(address >> 20, 0xfee);
        if address >> 4 & 1 == 0 {
            return Err(0x25);
        }
        let handle = address >> 5 & 0x7fff | (address >> 2 & 1) << 15;
        let index = if address >> 3 & 1 == 1 {
            if data >> 16 != 0 {
                return Err(0x20);
            }
            handle + (data & 0xffff)
        } else {
            handle
        };
        let [low, high] = *table.get(index as usize).ok_or(0x21)?;
        if low & 1 == 0 {
            return Err(0x22);
        }
        let narrow_reserved = if wide { 0 } else { low >> 32 & 0xffff_00ff };
        if low >> 12 & 7 != 0 || low >> 24 & 0xff != 0 || narrow_reserved != 0 || high >> 20 != 0 {
            return Err(0x24);
        }
        assert_eq!(low >> 1 & 7, 0, "faults are reported, physical destination, no hint");
        assert_eq!(low >> 5 & 7, 0, "fixed delivery");
        assert_eq!(low >> 15 & 1, 0, "not posted");
        let allowed = match high >> 18 & 3 {
            0 => true,
            1 => {
                let ignored = [0u16, 1 << 2, 3 << 1, 7][(high >> 16 & 3) as usize];
                (high as u16) & !ignored == source & !ignored
            }
            2 => ((high as u8)..=(high >> 8) as u8).contains(&((source >> 8) as u8)),
            _ => return Err(0x24),
        };
        if !allowed {
            return Err(0x26);
        }
        let destination = (low >> 32) as u32;
        Ok(((low >> 16) as u8, low >> 4 & 1 == 1, if wide { destination } else { destination >> 8 & 0xff }))
    }

    /// What an I/O APIC sends for a redirection entry that names an index: bits 63:48 of the entry are 19:4 of the
    /// address, and bit 11 is the index's bit 15.
    fn from_io_apic(entry: u64) -> (u32, u32) {
        let address = 0xfee0_0000 | ((entry >> 48) as u32) << 4 | ((entry >> 11 & 1) as u32) << 2;
        (address, (entry & 0xff | entry & 1 << 15) as u32)
    }

    proptest! {
        #[test]
        fn a_requester_raises_its_own_interrupts_only(
            vector in 16u8..=255, apic_id: u32, owner: u16, other: u16, wide: bool, level: bool, probe: u8
        ) {
            let destinations = if wide { Destinations::Wide } else { Destinations::Narrow };
            let apic_id = if wide { apic_id } else { apic_id % 255 };
            prop_assert!(destinations.reach(apic_id));
            let trigger = if level { Trigger::Level } else { Trigger::Edge };
            let interrupt = Interrupt { apic_id, vector, trigger };
            let mut table = [[0u64; 2]; ENTRIES as usize];
            let at = (offset(vector) / ENTRY_BYTES) as usize;
            table[at] = entry(RequesterId(owner), interrupt, destinations);
            prop_assert!(is_present(table[at][0]));
            let (address, data) = message(vector);
            let expected = Ok((vector, level, apic_id));
            prop_assert_eq!(remap(&table, owner, address, data, wide), expected);
            if other != owner {
                prop_assert_eq!(remap(&table, other, address, data, wide), Err(0x26));
            }
            let redirection = redirection(interrupt);
            prop_assert_eq!(redirection >> 16 & 1, 1, "masked");
            prop_assert_eq!(redirection & 0xff, u64::from(vector));
            let (address, data) = from_io_apic(redirection);
            prop_assert_eq!(remap(&table, owner, address, data, wide), expected);
            // A vector that nobody was given, whoever asks for it.
            if probe != vector {
                let (address, data) = message(probe);
                prop_assert_eq!(remap(&table, owner, address, data, wide), Err(0x22));
            }
            // The compatibility format.
            prop_assert_eq!(remap(&table, owner, 0xfee0_0000, vector.into(), wide), Err(0x25));
        }
    }

    #[test]
    fn narrow_destinations_end_before_the_broadcast() {
        assert!(Destinations::Narrow.reach(0xfe) && !Destinations::Narrow.reach(0xff));
        assert_eq!(1u64 << (TABLE_SIZE_FIELD + 1), u64::from(ENTRIES));
        let (low, high, data) =
            own_message(Interrupt { apic_id: 0x1_2345, vector: 0x99, trigger: Trigger::Edge });
        assert_eq!((low, high, data), (0xfee4_5000, 0x1_2300, 0x99));
    }
}
