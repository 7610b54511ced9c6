//! Which messages and interprocessor interrupts are for a local APIC.
//!
//! Source: Intel SDM vol. 3, 11.6.2 (xAPIC destinations) and 11.12.10 (x2APIC).

use crate::message::BROADCAST;

/// What a sender has to know of a local APIC: a copy, so that nobody has to stop the processor to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    pub(super) id: u32,
    pub(super) x2apic: bool,
    pub(super) ldr: u32,
    pub(super) dfr: u32,
}

impl Routing {
    /// Is this APIC among the destinations?
    pub fn matches(&self, dest: u32, logical: bool) -> bool {
        if dest == BROADCAST {
            return true;
        }
        match (logical, self.x2apic) {
            (false, _) => dest == self.id,
            // A cluster in the upper half, its members in the lower.
            (true, true) => self.ldr >> 16 == dest >> 16 && self.ldr & dest & 0xFFFF != 0,
            (true, false) => u8::try_from(dest).is_ok_and(|dest| self.matches_logical(dest)),
        }
    }

    /// Flat model, or clusters of four (of which number 15 means all).
    fn matches_logical(&self, dest: u8) -> bool {
        let own = (self.ldr >> 24) as u8;
        match self.dfr >> 28 {
            0xF => own & dest != 0,
            0 => (dest >> 4 == 0xF || own >> 4 == dest >> 4) && own & dest & 0xF != 0,
            _ => false,
        }
    }
}
