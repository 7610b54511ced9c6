//! What the firmware left: ACPI tables, and the clock that runs while the machine is off.

pub mod acpi;
pub mod rtc;
