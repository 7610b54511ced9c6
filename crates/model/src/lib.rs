//! Device state models, and what must exit by them.
//!
//! A [`Model`] is constant data. It says what an access to each register of a device could do, and, as state machines that run
//! side by side, in which states the device is, what starts a transfer, and where the device can change hands. From it follow
//! the accesses that must exit ([`hook_set`]) for what must be known now ([`Questions`]), and where a device is ([`Tracker`]).
//! The models are in [`models`], one file per device; how one is written is told in `docs/add-a-device-model.md`.
//!
//! A file uses only those before it: `language` (registers, machines, transfers), `hooks` (questions and sets of hooks),
//! `tables` (computed from the language by the compiler), `model` (language and tables), `track` (follows a device), `models`.
//! No run uses [`mod@check`], which proves a model on the host, and [`dot`], which draws it.
//!
//! Neighbours: `sluice_vpio` shares an NE2000 by its model, `sluice_emulated` shows cards that master the bus as theirs allow.
//!
//! Source: L. Xia et al., "Investigating Virtual Passthrough I/O on Commodity Devices", sections 3.4, 4.1 and 5.2, where a
//! model is one machine with one hook list per state. Deviations: machines side by side, because a card sends while its next
//! frame is being loaded; effects apart from states, so that the hook set can depend on the question; edges that look at reads,
//! since reading can change a device, too.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod check;
mod dot;
mod hooks;
mod language;
mod model;
pub mod models;
mod tables;
mod track;

pub use dot::dot;
pub use hooks::{HookSet, Questions};
pub use language::{
    Address, Check, Descriptor, DeviceEvent, DmaTarget, Edge, Effects, Event, MAX_MACHINES, MAX_REGISTERS,
    MAX_STATES, Machine, Narrow, Register, RegisterId, Seen, Selector, Space, Start, State, Told, Transfer,
    Vetting,
};
pub use model::{Model, hook_set};
pub use tables::Tables;
pub use track::{Named, Tracker, named};
