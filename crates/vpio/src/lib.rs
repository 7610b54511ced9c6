//! Virtual passthrough I/O: device state models and the monitor that drives them.
//!
//! A physical device is shared by guests ("clients") that each drive it with its native driver. The
//! [`Monitor`] decides who holds the device, which accesses of each client must be seen
//! ([`HookSet`]), serves those, moves the device between clients, and keeps one client's data away
//! from another. What it must see is computed from a device state model, which is data
//! (see [`model`]).
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
pub mod check;
mod counters;
mod dot;
mod hooks;
pub mod model;
pub mod models;
mod monitor;
mod ne2000;
mod track;

pub use access::{Access, ClientId, Outcome, RawDevice, Reaction, Refusal};
pub use counters::{ClientCounters, DeviceCounters};
pub use dot::dot;
pub use hooks::{HookSet, Questions, hook_set};
pub use monitor::{AttachError, Changes, Monitor, Policy, Timing};
pub use track::{Named, Seen, Tracker, named};
