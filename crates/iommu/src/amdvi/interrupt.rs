//! Interrupt table entries, and the messages that select them (48882, 2.2.5, "Interrupt Remapping Tables").
//!
//! The index of an interrupt is its vector, so that the data of a message and the vector of a redirection entry stay what
//! they are without an IOMMU; an I/O APIC also recognizes by it the end of the interrupt that a processor broadcasts.
//!
//! Deviations: entries of 32 bits (GAEn=0), fixed delivery to one processor by physical identifier. QEMU 7.2 accepts a
//! remapped message at address 0xfee00000 only, which is what is made here; and it delivers remapped interrupts as
//! edges, so that no processor broadcasts their end: whoever handles a level must write the vector to the I/O APIC's
//! end-of-interrupt register. That does no harm elsewhere.

use crate::{Interrupt, Trigger};
use sluice_memory::Hpa;

/// Entries of a table: one per vector.
pub const ENTRIES: u64 = 256;
/// Bytes of a table; it must be a multiple of 128.
pub const TABLE_BYTES: u64 = ENTRIES * 4;

const REMAP: u32 = 1 << 0;
const DESTINATION_SHIFT: u32 = 8;
const VECTOR_SHIFT: u32 = 16;

/// Writes to here are interrupts (48882, 2.1.4.1).
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;
const REDIRECTION_LEVEL: u64 = 1 << 15;
const REDIRECTION_MASKED: u64 = 1 << 16;

/// The entry that lets an interrupt through; `None` where the format has no room for the processor's identifier, or for
/// a vector that no processor takes.
pub fn entry(interrupt: Interrupt) -> Option<u32> {
    let destination = u8::try_from(interrupt.apic_id).ok().filter(|id| *id < u8::MAX)?;
    (interrupt.vector >= 16).then_some(
        REMAP | u32::from(destination) << DESTINATION_SHIFT | u32::from(interrupt.vector) << VECTOR_SHIFT,
    )
}

/// The aligned word of a table that holds the entry of a vector, and where in it the entry begins (0 or 32).
pub fn place(table: Hpa, vector: u8) -> (Hpa, u32) {
    (Hpa::new(table.as_u64() + u64::from(vector / 2) * 8), u32::from(vector % 2) * 32)
}

/// Message address and data by which a function raises the interrupt. The destination is in the table.
pub const fn message(interrupt: Interrupt) -> (u32, u32) {
    (MESSAGE_ADDRESS, interrupt.vector as u32)
}

/// Redirection entry by which an I/O APIC raises it: masked, active high, destination 0.
pub const fn redirection(interrupt: Interrupt) -> u64 {
    let trigger = match interrupt.trigger {
        Trigger::Edge => 0,
        Trigger::Level => REDIRECTION_LEVEL,
    };
    interrupt.vector as u64 | trigger | REDIRECTION_MASKED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_where_the_manual_has_them(apic_id in 0u32..300, vector: u8, level: bool) {
            let trigger = if level { Trigger::Level } else { Trigger::Edge };
            let interrupt = Interrupt { apic_id, vector, trigger };
            let Some(entry) = entry(interrupt) else {
                prop_assert!(apic_id > 254 || vector < 16);
                return Ok(());
            };
            let field = |high: u32, low: u32| entry >> low & (u32::MAX >> (31 - (high - low)));
            prop_assert_eq!(field(0, 0), 1, "RemapEn");
            prop_assert_eq!(field(1, 1), 0, "SupIOPF: faults are logged");
            prop_assert_eq!(field(4, 2), 0, "IntType: fixed");
            prop_assert_eq!(field(7, 5), 0, "RqEoi, DM: physical, GuestMode");
            prop_assert_eq!(field(15, 8), apic_id);
            prop_assert_eq!(field(23, 16), u32::from(vector));
            prop_assert_eq!(field(31, 24), 0);
            // The unit takes bits 10:0 of a message's data for the index; 10:8 say how it is delivered.
            let (address, data) = message(interrupt);
            prop_assert_eq!(address, 0xfee0_0000);
            prop_assert_eq!(data & 0x7ff, u32::from(vector));
            let (word, shift) = place(Hpa::new(0x1000), vector);
            prop_assert_eq!(word.as_u64() + u64::from(shift / 8), 0x1000 + u64::from(vector) * 4);
            prop_assert!(word.is_aligned(8));
            let redirection = redirection(interrupt);
            prop_assert_eq!(redirection & 0x7ff, u64::from(vector));
            prop_assert_eq!(redirection >> 15, if level { 3 } else { 2 }, "masked, physical destination 0");
        }
    }
}
