//! Working the registers of a DP8390: pages, remote DMA.
//!
//! Source: National DP8390D data sheet, 9 (remote DMA) and 10 (registers).

use crate::RawDevice;
use sluice_nic::ne2000::registers::{Command, Interrupt, port};

/// CMD: page 0, started, no remote DMA.
pub const RUN: u8 = Command::START.union(Command::NO_DMA).bits();
/// CMD: page 0, stopped, no remote DMA.
pub const HALT: u8 = Command::STOP.union(Command::NO_DMA).bits();
/// CMD: adds page 1 to the above.
pub const PAGE1: u8 = 0x40;
/// DCR while data is moved: word wide, FIFO threshold 8 bytes, normal operation.
pub const DCR: u8 = 0x49;

/// Reads a register.
pub fn get(raw: &mut dyn RawDevice, offset: u16) -> u8 {
    raw.read_byte(offset)
}

/// Writes a register.
pub fn put(raw: &mut dyn RawDevice, offset: u16, value: u8) {
    raw.write_byte(offset, value);
}

/// Writes registers one after the other, from `first` up.
pub fn put_array(raw: &mut dyn RawDevice, first: u16, values: &[u8]) {
    for (offset, &value) in (first..).zip(values) {
        put(raw, offset, value);
    }
}

/// Sets a 16-bit register pair.
pub fn put_pair(raw: &mut dyn RawDevice, low: u16, value: u16) {
    put_array(raw, low, &value.to_le_bytes());
}

fn program(raw: &mut dyn RawDevice, base: u8, address: u16, bytes: usize, direction: Command) {
    // The engine may only be programmed while it is idle.
    put(raw, port::CMD, base);
    put_pair(raw, port::RBCR0, bytes as u16);
    put_pair(raw, port::RSAR0, address);
    put(raw, port::CMD, base & !Command::NO_DMA.bits() | direction.bits());
}

/// Reads card memory: `into` is a multiple of 4 bytes, at most 32 KiB. `base` is [`RUN`] or [`HALT`]; afterwards the
/// card is at `base` with the completion acknowledged. DCR must select words.
pub fn read_memory(raw: &mut dyn RawDevice, base: u8, address: u16, into: &mut [u8]) {
    program(raw, base, address, into.len(), Command::REMOTE_READ);
    raw.read_string(port::DATA, 4, into);
    finish(raw, base);
}

/// Writes card memory; see [`read_memory`].
pub fn write_memory(raw: &mut dyn RawDevice, base: u8, address: u16, from: &[u8]) {
    program(raw, base, address, from.len(), Command::REMOTE_WRITE);
    raw.write_string(port::DATA, 4, from);
    finish(raw, base);
}

fn finish(raw: &mut dyn RawDevice, base: u8) {
    put(raw, port::CMD, base);
    put(raw, port::ISR, Interrupt::DMA_DONE.bits());
}
