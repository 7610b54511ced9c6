//! Short forms in which models are written.

use crate::language::{DeviceEvent, Edge, Effects, Event, Register, RegisterId, Start, State, Told};

/// Nothing that somebody may have to know.
pub(super) const NONE: Effects = Effects::empty();

/// Registers of a width, on all pages.
pub(super) const fn registers(
    name: &'static str,
    first: u32,
    last: u32,
    width: u8,
    read: Effects,
    write: Effects,
) -> Register {
    Register { name, first, last, width, pages: 0xff, read, write }
}

/// A long word, on all pages.
pub(super) const fn long(name: &'static str, at: u32, read: Effects, write: Effects) -> Register {
    registers(name, at, at + 3, 4, read, write)
}

/// Places where nothing is.
pub(super) const fn reserved(first: u32, last: u32) -> Register {
    registers("reserved", first, last, 1, NONE, NONE)
}

/// The register is only on these pages.
pub(super) const fn on(pages: u8, register: Register) -> Register {
    Register { pages, ..register }
}

/// A value with these bits is written.
pub(super) const fn writes(register: RegisterId, mask: u32, bits: u32) -> Event {
    Event::Write { register, mask, bits }
}

/// Anything is written.
pub(super) const fn any(register: RegisterId) -> Event {
    writes(register, 0, 0)
}

/// A value with these bits is read.
pub(super) const fn reads(register: RegisterId, mask: u32, bits: u32) -> Event {
    Event::Read { register, mask, bits }
}

/// An edge that starts nothing.
pub(super) const fn edge(from: u8, on: Event, to: u8) -> Edge {
    Edge { from, on, to, start: None }
}

/// An edge that starts a transfer.
pub(super) const fn starts(from: u8, on: Event, to: u8, start: Start) -> Edge {
    Edge { from, on, to, start: Some(start) }
}

/// The device reports.
pub(super) const fn reported(event: DeviceEvent) -> Event {
    Event::Device(event)
}

/// A state in which the device may change hands.
pub(super) const fn rest(name: &'static str) -> State {
    State { name, rest: true }
}

/// A state in which it must not.
pub(super) const fn work(name: &'static str) -> State {
    State { name, rest: false }
}

/// What a register tells of a state.
pub(super) const fn told(register: RegisterId, mask: u32, bits: u32, state: u8) -> Told {
    Told { register, mask, bits, state }
}
