//! Ports: a physical device behind a range of them, where there are none, and a function's that exit.

use super::devices;
use crate::domain::{Domain, PortHandler};
use crate::x86::port::{inb, inl, insb, insl, insw, inw, outb, outl, outsb, outsl, outsw, outw};
use core::ops::Range;
use sluice_platform::pci::BarAddresses;
use sluice_vpio::RawDevice;

/// Ports per slot, more than any card has.
const PORTS_PER_SLOT: u64 = 0x100;
/// The ports of all slots lie together in such a stretch.
const STRETCH: u64 = 32 * PORTS_PER_SLOT;

/// Ports from `base` up.
pub struct PortDevice {
    base: u16,
}

impl PortDevice {
    /// The device at these ports.
    pub fn new(base: u16) -> Self {
        Self { base }
    }

    fn port(&self, offset: u16) -> u16 {
        self.base.wrapping_add(offset)
    }
}

impl RawDevice for PortDevice {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let port = self.port(offset);
        match width {
            1 => u32::from(inb(port)),
            2 => u32::from(inw(port)),
            _ => inl(port),
        }
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let port = self.port(offset);
        match width {
            1 => outb(port, value as u8),
            2 => outw(port, value as u16),
            _ => outl(port, value),
        }
    }

    fn read_byte(&mut self, offset: u16) -> u8 {
        inb(self.port(offset))
    }

    fn write_byte(&mut self, offset: u16, value: u8) {
        outb(self.port(offset), value);
    }

    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        let port = self.port(offset);
        match width {
            1 => insb(port, into),
            2 => insw(port, into.as_chunks_mut().0),
            _ => insl(port, into.as_chunks_mut().0),
        }
    }

    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        let port = self.port(offset);
        match width {
            1 => outsb(port, from),
            2 => outsw(port, from.as_chunks().0),
            _ => outsl(port, from.as_chunks().0),
        }
    }
}

/// Ports for the virtual function of a slot, where no physical device has any.
pub fn free_ports(slot: u8) -> Option<u64> {
    let physical = |range: &Range<u64>| {
        let mut bars = devices().flat_map(|device| device.function.bars.iter()).filter(|bar| bar.io);
        bars.any(|bar| bar.address < range.end && range.start < bar.address + bar.size)
    };
    (1..0x1_0000 / STRETCH)
        .map(|stretch| stretch * STRETCH + u64::from(slot & 31) * PORTS_PER_SLOT)
        .find(|start| !physical(&(*start..start + PORTS_PER_SLOT)))
}

/// A port BAR all of whose accesses exit, and where it answers now.
pub struct HookedPorts {
    size: u16,
    /// Its first port to begin with.
    initial: u64,
    at: Option<u16>,
}

impl HookedPorts {
    /// A BAR of `size` ports (at most 256), of the function in a slot; `None` if there is no room for it.
    pub fn new(size: u16, slot: u8, addresses: &BarAddresses) -> Option<Self> {
        let initial = if addresses.is_nowhere() { 0 } else { free_ports(slot)? };
        Some(Self { size, initial, at: None })
    }

    /// Its first port to begin with.
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// Has it answer nowhere, if it is not to stay where it is.
    pub fn leave(&mut self, domain: &Domain, wanted: Option<u64>) {
        if let Some(at) = self.at.take_if(|at| Some(u64::from(*at)) != wanted) {
            domain.release_ports(at, self.size);
        }
    }

    /// Has it answer where it is wanted, unless something else does; the function is in the socket of `slot`.
    pub fn settle(&mut self, domain: &Domain, slot: u8, wanted: Option<u64>) {
        let wanted = wanted.and_then(|at| u16::try_from(at).ok());
        if let (None, Some(at)) = (self.at, wanted) {
            self.at = domain.claim_ports(at, self.size, PortHandler::Socket(slot)).then_some(at);
        }
    }
}
