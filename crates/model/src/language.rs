//! The model language: the types of which a device state model consists.
//!
//! Registers lie in ports or in memory ([`Space`]), and each says what an access to it could do ([`Effects`]). Machines
//! ([`Machine`]) have states and edges; an edge may start a transfer ([`Start`]), whose address and length come from registers
//! ([`DmaTarget`]), and which must be checked first. States of *rest* are those in which the device may change hands: it may
//! when every machine rests. Configuration space is not in the language: BARs, MSI, power management and bus mastering belong
//! to the virtual PCI function, and no guest reaches the real ones.

mod dma;
mod machine;
mod register;

pub use dma::{Address, Descriptor, DmaTarget};
pub use machine::{
    Check, DeviceEvent, Edge, Event, MAX_MACHINES, MAX_STATES, Machine, Seen, Selector, Start, State, Told,
    Transfer, Vetting,
};
pub use register::{Effects, MAX_REGISTERS, Narrow, Register, RegisterId, Space};
