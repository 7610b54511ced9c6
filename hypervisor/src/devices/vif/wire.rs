//! The physical card of a network.

use crate::devices::device::Device;
use crate::devices::error::AttachError;
use crate::devices::hardware::Hardware;
use alloc::boxed::Box;
use alloc::sync::Arc;
use sluice_uplink::{Counters, Sent, Uplink};

/// A card on the wire, driven by an engine.
///
/// While the engine looks for itself, the card's line stays masked at the I/O APIC, and nothing is acknowledged: that costs
/// neither an interrupt nor a register. It is opened when the engine goes to sleep.
pub(super) struct Wire {
    device: Arc<Device>,
    hardware: Hardware,
    uplink: Box<dyn Uplink>,
    /// The next look is the last before sleep.
    is_last: bool,
}

impl Wire {
    /// Puts a card on the wire that nobody has.
    pub fn connect(device: &Arc<Device>) -> Result<Self, AttachError> {
        let function = &device.function;
        let mut uplink =
            sluice_uplink::for_device(function.vendor, function.device).ok_or(AttachError::NoDriver)?;
        let mut hardware = Hardware::take(device, &*uplink)?;
        if !uplink.start(&mut hardware.card()) {
            hardware.give_back(device);
            return Err(AttachError::NoAnswer);
        }
        log::info!("device {}: on the wire, driven as {}", device.name, uplink.name());
        Ok(Self { device: device.clone(), hardware, uplink, is_last: false })
    }

    /// What its driver is called.
    pub fn driver(&self) -> &'static str {
        self.uplink.name()
    }

    /// What its driver counted.
    pub fn counters(&self) -> Counters {
        self.uplink.counters()
    }

    /// The next round is the last before sleep: what the card interrupts for is acknowledged before it is looked at.
    pub fn doze(&mut self) {
        self.is_last = true;
    }

    /// Nobody looks from now on: the card's interrupt wakes.
    pub fn sleep(&self) {
        self.device.unmask();
    }
}

impl sluice_vif::Wire for Wire {
    fn send(&mut self, frame: &[u8]) -> bool {
        self.uplink.enqueue(&mut self.hardware.card(), frame) != Sent::Full
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let mut card = self.hardware.card();
        if !core::mem::take(&mut self.is_last) {
            return self.uplink.take(&mut card, most, take);
        }
        let mut count = 0;
        self.uplink.poll(&mut card, &mut |frame| {
            count += 1;
            take(frame);
        });
        count
    }

    fn flush(&mut self) {
        self.uplink.flush(&mut self.hardware.card());
    }
}
