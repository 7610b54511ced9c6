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

    fn still(&mut self) -> &mut PortDevice {
        self.freeze();
        &mut self.device
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
