//! Registers by which a guest learns that something comes to a slot of its bus, and by which it gives back what it is asked for.
//!
//! The DSDT ([`crate::acpi`]) reads them when [`GSI`] is raised: it tells the system of what came, asks it to let go of what is to leave, and
//! says so by [`EJECT_PORT`] when that is done. A slot is a bit in each register.
//!
//! Source: ACPI 6.4, 5.6.6 (device check, eject request), 6.3.3 (_EJ0). The registers are our own.

/// Global interrupt of an event: pulse it after one.
pub const GSI: u8 = 10;
/// Slots to which something has come since the last read (32 bits, read-only).
pub const CAME_PORT: u16 = 0x620;
/// Slots whose function the guest is asked for since the last read (32 bits, read-only).
pub const ASKED_PORT: u16 = 0x624;
/// Slots whose function the guest has let go of (32 bits, write-only).
pub const EJECT_PORT: u16 = 0x628;
/// Ports, from [`CAME_PORT`] on.
pub const PORTS: u16 = 12;

/// What a guest is yet to learn, and to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hotplug {
    came: u32,
    asked: u32,
    /// Asked for, and not given back yet.
    leaving: u32,
    /// Given back, and not taken yet.
    ejected: u32,
}

impl Hotplug {
    /// Something has come to a slot (0-31). Raise [`GSI`].
    pub fn come(&mut self, slot: u8) {
        self.came |= bit(slot);
    }

    /// Asks for what is in a slot. Raise [`GSI`].
    pub fn ask(&mut self, slot: u8) {
        self.asked |= bit(slot);
        self.leaving |= bit(slot);
    }

    /// A slot is empty, whoever saw to that: nothing is to be said of it any more.
    pub fn forget(&mut self, slot: u8) {
        for word in [&mut self.came, &mut self.asked, &mut self.leaving, &mut self.ejected] {
            *word &= !bit(slot);
        }
    }

    /// A slot that the guest has let go of; it is named once.
    pub fn take_ejected(&mut self) -> Option<u8> {
        let slot = self.ejected.trailing_zeros();
        self.ejected &= self.ejected.wrapping_sub(1);
        (slot < u32::BITS).then_some(slot as u8)
    }

    /// A read of the 32 bits at a port: what it tells, it tells once.
    pub fn read(&mut self, port: u16) -> u32 {
        match port {
            CAME_PORT => core::mem::take(&mut self.came),
            ASKED_PORT => core::mem::take(&mut self.asked),
            _ => 0,
        }
    }

    /// A write of 32 bits to a port. Returns the slots that the guest lets go of by it: of those that it was asked for, each once.
    pub fn write(&mut self, port: u16, value: u32) -> u32 {
        if port != EJECT_PORT {
            return 0;
        }
        let ejected = value & self.leaving;
        self.leaving &= !ejected;
        self.ejected |= ejected;
        ejected
    }
}

fn bit(slot: u8) -> u32 {
    1u32.checked_shl(slot.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_told_once() {
        let mut hotplug = Hotplug::default();
        hotplug.come(3);
        hotplug.come(31);
        assert_eq!(hotplug.read(EJECT_PORT), 0);
        assert_eq!(hotplug.read(CAME_PORT), 1 << 3 | 1 << 31);
        assert_eq!(hotplug.read(CAME_PORT), 0);
    }

    #[test]
    fn only_what_is_asked_for_can_be_given_back_and_that_once() {
        let mut hotplug = Hotplug::default();
        hotplug.come(4);
        assert_eq!(hotplug.write(EJECT_PORT, u32::MAX), 0, "nothing was asked for");
        hotplug.ask(4);
        hotplug.ask(9);
        assert_eq!(hotplug.read(ASKED_PORT), 1 << 4 | 1 << 9);
        assert_eq!(hotplug.write(CAME_PORT, u32::MAX), 0, "another register");
        assert_eq!(hotplug.write(EJECT_PORT, 1 << 4 | 1 << 5), 1 << 4);
        assert_eq!(hotplug.write(EJECT_PORT, 1 << 4), 0, "twice");
        assert_eq!((hotplug.take_ejected(), hotplug.take_ejected()), (Some(4), None));
        assert_eq!(
            hotplug.write(EJECT_PORT, u32::MAX),
            1 << 9,
            "what was asked for before can be given back later"
        );
        assert_eq!(hotplug.take_ejected(), Some(9));
    }

    #[test]
    fn of_an_empty_slot_nothing_is_said() {
        let mut hotplug = Hotplug::default();
        hotplug.come(7);
        hotplug.ask(7);
        hotplug.forget(7);
        assert_eq!(hotplug, Hotplug::default());
        hotplug.come(32);
        assert_eq!(hotplug, Hotplug::default(), "there is no such slot");
    }
}
