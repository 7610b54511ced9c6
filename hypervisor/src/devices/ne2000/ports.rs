//! The ports of a card while its holder may be at them.

use super::super::ports::PortDevice;
use crate::domain::Domain;
use alloc::sync::Arc;
use sluice_vpio::RawDevice;

/// A device whose holder may be at it: the holder's processors leave their guest at the first access, and do not go on before
/// this is dropped. A call that needs no hardware, such as an off-line sharer's, holds nobody up.
pub struct SharedPorts {
    device: PortDevice,
    holder: Option<Arc<Domain>>,
    /// No processor of the holder is in its guest.
    still: bool,
}

impl SharedPorts {
    /// The device at these ports, with the domain that has direct access to it.
    pub fn new(base: u16, holder: Option<Arc<Domain>>) -> Self {
        Self { device: PortDevice::new(base), still: holder.is_none(), holder }
    }

    /// Nobody else is at the device from now on.
    pub fn freeze(&mut self) {
        if !self.still {
            self.still = true;
            self.holder.iter().for_each(|holder| holder.freeze());
        }
    }

    /// Accesses the device, at which nobody else is from now on.
    #[inline(always)]
    fn access<R>(&mut self, act: impl FnOnce(&mut PortDevice) -> R) -> R {
        if self.still { act(&mut self.device) } else { self.access_first(act) }
    }

    #[cold]
    #[inline(never)]
    fn access_first<R>(&mut self, act: impl FnOnce(&mut PortDevice) -> R) -> R {
        self.freeze();
        act(&mut self.device)
    }
}

impl Drop for SharedPorts {
    fn drop(&mut self) {
        if self.still {
            self.holder.iter().for_each(|holder| holder.thaw());
        }
    }
}

impl RawDevice for SharedPorts {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.access(|device| device.read(offset, width))
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.access(|device| device.write(offset, width, value));
    }

    fn read_byte(&mut self, offset: u16) -> u8 {
        self.access(|device| device.read_byte(offset))
    }

    fn write_byte(&mut self, offset: u16, value: u8) {
        self.access(|device| device.write_byte(offset, value));
    }

    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.access(|device| device.read_string(offset, width, into));
    }

    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.access(|device| device.write_string(offset, width, from));
    }
}
