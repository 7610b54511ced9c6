//! Virtual passthrough I/O: an NE2000 that several guests share, each with its native driver.
//!
//! The [`Monitor`] decides which of the guests ("clients") holds the card, which accesses of each client
//! must be seen ([`HookSet`](sluice_model::HookSet)), serves those, moves the card between clients, and
//! keeps one client's data away from another. What it must see is computed from the card's state model
//! (`sluice_model`). It drives no other device: cards that master the bus are shared by `sluice_emulated`.
//!
//! The caller owns the hardware: it derives the I/O permission map from [`Monitor::hooks`], calls
//! [`Monitor::access`] at an exit, [`Monitor::interrupt`] when the physical line is asserted and
//! [`Monitor::poll`] when asked to, and acts on [`Monitor::changes`] after each of these.
//!
//! Source: L. Xia et al., "Investigating Virtual Passthrough I/O on Commodity Devices", sections 3-5.
//! Deviations are argued in `docs/vpio.md`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod counters;
mod monitor;
mod ne2000;

pub use access::{ClientId, Outcome, RawDevice, Reaction, Refusal, RegisterAccess};
pub use counters::{ClientCounters, DeviceCounters};
pub use monitor::{AttachError, Changes, Monitor, Policy, Timing};
