//! A physical device behind a range of ports, as a monitor reaches it.

use crate::domain::Domain;
use crate::x86::port::{inb, inl, insb, inw, outb, outl, outsb, outw};
use alloc::sync::Arc;
use sluice_vpio::RawDevice;

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

    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        let port = self.port(offset);
        match width {
            1 => insb(port, into),
            2 => into.as_chunks_mut().0.iter_mut().for_each(|chunk| *chunk = inw(port).to_le_bytes()),
            _ => into.as_chunks_mut().0.iter_mut().for_each(|chunk| *chunk = inl(port).to_le_bytes()),
        }
    }

    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        let port = self.port(offset);
        match width {
            1 => outsb(port, from),
            2 => from.as_chunks().0.iter().for_each(|chunk| outw(port, u16::from_le_bytes(*chunk))),
            _ => from.as_chunks().0.iter().for_each(|chunk| outl(port, u32::from_le_bytes(*chunk))),
        }
    }
}

/// A device whose holder may be at it: the holder's processors leave their guest at the first access, and do not go on before
/// this is dropped. A call that needs no hardware, such as an off-line sharer's, holds nobody up.
pub struct SharedPorts {
    device: PortDevice,
    holder: Option<Arc<Domain>>,
    frozen: bool,
}

impl SharedPorts {
    /// The device at these ports, with the domain that has direct access to it.
    pub fn new(base: u16, holder: Option<Arc<Domain>>) -> Self {
        Self { device: PortDevice::new(base), holder, frozen: false }
    }

    /// Nobody else is at the device from now on.
    pub fn freeze(&mut self) {
        if let Some(holder) = self.holder.as_ref().filter(|_| !self.frozen) {
            holder.freeze();
            self.frozen = true;
        }
    }

    fn still(&mut self) -> &mut PortDevice {
        self.freeze();
        &mut self.device
    }
}

impl Drop for SharedPorts {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.as_ref().filter(|_| self.frozen) {
            holder.thaw();
        }
    }
}

impl RawDevice for SharedPorts {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.still().read(offset, width)
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.still().write(offset, width, value);
    }

    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.still().read_string(offset, width, into);
    }

    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.still().write_string(offset, width, from);
    }
}
