//! The port by which a guest's kernel says that it panics.
//!
//! Linux finds it in the DSDT and drives it by its module `pvpanic-mmio`. A read says which events are understood, a write tells
//! one or several.
//!
//! Source: QEMU, docs/specs/pvpanic (the device's only description); `include/uapi/misc/pvpanic.h` of Linux.

/// The port (8 bits).
pub const PORT: u16 = 0x505;

/// The kernel has panicked and stops.
const PANICKED: u8 = 1 << 0;
/// It has panicked, and another that was loaded for this takes over: the guest is not done yet.
const CRASH_KERNEL: u8 = 1 << 1;

/// What a guest tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panic {
    /// Its kernel has stopped for good.
    Stopped,
    /// Its kernel has panicked; a crash kernel writes the dump, and ends the guest afterwards.
    Dumps,
}

/// A read of the port: the events that are understood.
pub fn read() -> u8 {
    PANICKED | CRASH_KERNEL
}

/// A write of the low byte `value` to the port.
pub fn write(value: u8) -> Option<Panic> {
    if value & PANICKED != 0 {
        Some(Panic::Stopped)
    } else {
        (value & CRASH_KERNEL != 0).then_some(Panic::Dumps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_that_is_announced_is_understood() {
        assert_eq!(write(1), Some(Panic::Stopped));
        assert_eq!(write(2), Some(Panic::Dumps));
        assert_eq!(write(3), Some(Panic::Stopped));
        for value in 0..=u8::MAX {
            assert_eq!(write(value).is_some(), value & read() != 0, "{value:#x}");
        }
    }
}
