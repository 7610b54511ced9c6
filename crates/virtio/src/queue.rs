//! A queue, as far as the transport knows it.

use sluice_hypercall::backend::MAX_QUEUE_SIZE;

/// No message tells of it (Virtio 1.2, 4.1.5.1.2).
pub(crate) const NO_VECTOR: u16 = 0xffff;

/// Where a queue is (Virtio 1.2, 4.1.4.3). Addresses are the driver's: nobody has looked whether anything is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Entries, a power of two.
    pub size: u16,
    /// The driver uses it.
    pub enabled: bool,
    /// Descriptors.
    pub desc: u64,
    /// Driver area: the available ring.
    pub driver: u64,
    /// Device area: the used ring.
    pub device: u64,
    /// Message that tells of used buffers.
    pub vector: u16,
}

impl Queue {
    /// As it is after a reset, in a device whose queues have up to so many entries.
    pub(crate) const fn new(size: u16) -> Self {
        Self { size, enabled: false, desc: 0, driver: 0, device: 0, vector: NO_VECTOR }
    }

    /// Whether a queue can have so many entries.
    pub(crate) const fn is_size(size: u32) -> bool {
        size.is_power_of_two() && size <= MAX_QUEUE_SIZE
    }

    /// Whether its parts are aligned as they must be (2.7).
    pub(crate) const fn is_aligned(&self) -> bool {
        self.desc.is_multiple_of(16) && self.driver.is_multiple_of(2) && self.device.is_multiple_of(4)
    }
}
