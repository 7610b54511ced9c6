//! Emulated mode: each guest has a software card, all of them hang on a switch, and the hypervisor drives the physical
//! card behind its uplink. No guest touches the hardware.
//!
//! Virtual passthrough of cards that master the bus stands on the same ground: guests read their card's registers in a
//! [`Mirror`], and one that is alone has the physical card to itself ([`DirectPolicy`]).
//!
//! Key types: [`SharedNic`] puts it together; [`Nic`] is a guest's card, whatever its model; [`Guests`] is how cards
//! reach their guests' memory. Neighbours: `sluice_nic` (the cards), `sluice_switch`, `sluice_uplink`. The caller brings
//! register accesses, interrupts of the physical card and the time to it, and carries its lines to the guests.
//!
//! Frames move as far as they can within the call that set them off: from a doorbell through the switch onto the wire
//! and into the other guests' cards, from a physical interrupt into the guests' cards. What finds no room waits in the
//! switch's queues until the guest makes room, or the wire does.
//!
//! The work of each call is bounded, and a guest's is its own: a card has a [`Budget`](sluice_nic::Budget) for each
//! call, and what is left over is gone on with by [`SharedNic::resume`], which the caller calls in that guest's time.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod direct;
mod environment;
mod mirror;
mod names;
mod nic;
mod owner;
mod pace;
mod polled;
mod shared_nic;
mod straight;
mod symbiosis;
#[cfg(test)]
mod tests;
mod virtual_nic;

pub use environment::{Environment, Guests};
pub use mirror::{Direct, Direction, Mirror, PAGES, Shown};
pub use nic::{Bar, Description, Nic, Register, describe};
pub use owner::{DirectPolicy, Handoffs};
pub use polled::PolledNic;
pub use shared_nic::{Counters, SharedNic};
pub use sluice_switch::{AttachError, PortId};
pub use virtual_nic::Changes;
