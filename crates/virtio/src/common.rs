//! Registers that the guest's driver sees in the memory BAR: common configuration, ISR status, the device's configuration.
//!
//! Fields are accessed as wide as they are, those of eight bytes in halves (Virtio 1.2, 4.1.3.1); other accesses read
//! zero and write nothing.

use crate::device::{Changes, Device, ISR_CONFIG, ISR_QUEUE, Offer, Status};
use crate::pci;
use crate::queue::{NO_VECTOR, Queue};
use crate::words::{half, number, set_half, which};

/// Offsets in the common configuration (4.1.4.3).
mod reg {
    pub const DEVICE_FEATURE_SELECT: u32 = 0x00;
    pub const DEVICE_FEATURE: u32 = 0x04;
    pub const DRIVER_FEATURE_SELECT: u32 = 0x08;
    pub const DRIVER_FEATURE: u32 = 0x0c;
    pub const CONFIG_MSIX_VECTOR: u32 = 0x10;
    pub const NUM_QUEUES: u32 = 0x12;
    pub const DEVICE_STATUS: u32 = 0x14;
    pub const CONFIG_GENERATION: u32 = 0x15;
    pub const QUEUE_SELECT: u32 = 0x16;
    pub const QUEUE_SIZE: u32 = 0x18;
    pub const QUEUE_MSIX_VECTOR: u32 = 0x1a;
    pub const QUEUE_ENABLE: u32 = 0x1c;
    pub const QUEUE_NOTIFY_OFF: u32 = 0x1e;
    pub const QUEUE_DESC: u32 = 0x20;
    pub const QUEUE_DRIVER: u32 = 0x28;
    pub const QUEUE_DEVICE: u32 = 0x30;
}

impl Device {
    /// A read of `width` bytes at `offset` in the memory BAR, and what follows. The device is offered.
    pub fn read(&mut self, offset: u32, width: u8) -> (u32, Changes) {
        match offset {
            pci::ISR if width == 1 => {
                let isr = core::mem::take(&mut self.isr) & (ISR_QUEUE | ISR_CONFIG);
                (isr.into(), Changes::LINE)
            }
            pci::CONFIG..pci::END => (self.config_read(offset - pci::CONFIG, width), Changes::empty()),
            _ => (self.common_read(offset, width), Changes::empty()),
        }
    }

    /// A write of `width` bytes at `offset` in the memory BAR, and what follows. The device is offered.
    pub fn write(&mut self, offset: u32, width: u8, value: u32) -> Changes {
        if (offset, width) == (reg::DEVICE_STATUS, 1) {
            return self.set_status(value as u8);
        }
        if self.resetting {
            return Changes::empty();
        }
        match (offset, width) {
            (reg::DEVICE_FEATURE_SELECT, 4) => self.device_select = value,
            (reg::DRIVER_FEATURE_SELECT, 4) => self.driver_select = value,
            (reg::DRIVER_FEATURE, 4)
                if !self.status.contains(Status::FEATURES_OK) && self.driver_select < 2 =>
            {
                set_half(&mut self.accepted, self.driver_select, value);
            }
            (reg::CONFIG_MSIX_VECTOR, 2) => self.config_vector = self.vector(value as u16),
            (reg::QUEUE_SELECT, 2) => self.queue_select = value as u16,
            (reg::QUEUE_MSIX_VECTOR, 2) => {
                let vector = self.vector(value as u16);
                if let Some(queue) = self.selected() {
                    queue.vector = vector;
                }
            }
            (reg::QUEUE_ENABLE, 2) if value == 1 => return self.enable(),
            _ => self.set_up(offset, width, value),
        }
        Changes::empty()
    }

    /// A message that there is; none otherwise (4.1.5.1.2.1).
    fn vector(&self, wanted: u16) -> u16 {
        if wanted < pci::VECTORS { wanted } else { NO_VECTOR }
    }

    fn selected(&mut self) -> Option<&mut Queue> {
        let (select, count) = (self.queue_select, self.queue_count());
        self.queues.get_mut(usize::from(select)).filter(|_| select < count)
    }

    /// Where a queue is, and how long: fixed once it is enabled.
    fn set_up(&mut self, offset: u32, width: u8, value: u32) {
        let most = self.offer.map_or(0, |offer| offer.queue_size);
        let Some(queue) = self.selected().filter(|queue| !queue.enabled) else { return };
        match (offset, width) {
            (reg::QUEUE_SIZE, 2) if Queue::is_size(value) && value <= most => queue.size = value as u16,
            (reg::QUEUE_DESC.., 4) if offset < reg::QUEUE_DEVICE + 8 && offset.is_multiple_of(4) => {
                let field = match offset & !4 {
                    reg::QUEUE_DESC => &mut queue.desc,
                    reg::QUEUE_DRIVER => &mut queue.driver,
                    _ => &mut queue.device,
                };
                set_half(field, which(offset), value);
            }
            _ => {}
        }
    }

    /// The driver has set the selected queue up.
    fn enable(&mut self) -> Changes {
        let live = self.status.contains(Status::DRIVER_OK);
        match self.selected() {
            Some(queue) if !queue.enabled && queue.is_aligned() => queue.enabled = true,
            _ => return Changes::empty(),
        }
        if live { Changes::BACKEND } else { Changes::empty() }
    }

    /// Bits are added one after the other, and taken away by a reset only (2.1.1, 3.1.1).
    fn set_status(&mut self, value: u8) -> Changes {
        if value == 0 {
            return self.reset();
        }
        if self.resetting {
            return Changes::empty();
        }
        let mut added = Status::from_bits_truncate(value) - self.status - Status::NEEDS_RESET;
        let mut changes = Changes::empty();
        if added.contains(Status::FEATURES_OK) {
            let known = self.accepted & !self.offered_features() == 0;
            let required = self.required_features();
            if !known || self.accepted & required != required {
                added -= Status::FEATURES_OK;
            } else if !self.issues {
                added -= Status::FEATURES_OK;
                changes |= Changes::REFUSED;
            }
        }
        if !(self.status | added).contains(Status::FEATURES_OK) {
            added -= Status::DRIVER_OK;
        }
        self.status |= added;
        if added.intersects(Status::DRIVER_OK | Status::FAILED) {
            changes |= Changes::BACKEND;
        }
        changes
    }

    fn common_read(&mut self, offset: u32, width: u8) -> u32 {
        // While a reset is under way, the driver sees that it is not over (4.1.4.3.1).
        let pending = if self.resetting { Status::NEEDS_RESET } else { Status::empty() };
        match (offset, width) {
            (reg::DEVICE_FEATURE_SELECT, 4) => self.device_select,
            (reg::DEVICE_FEATURE, 4) => half(self.offered_features(), self.device_select),
            (reg::DRIVER_FEATURE_SELECT, 4) => self.driver_select,
            (reg::DRIVER_FEATURE, 4) => half(self.accepted, self.driver_select),
            (reg::CONFIG_MSIX_VECTOR, 2) => self.config_vector.into(),
            (reg::NUM_QUEUES, 2) => self.queue_count().into(),
            (reg::DEVICE_STATUS, 1) => (self.status | pending).bits().into(),
            (reg::CONFIG_GENERATION, 1) => self.generation.into(),
            (reg::QUEUE_SELECT, 2) => self.queue_select.into(),
            _ => self.selected().map_or(0, |queue| queue_read(queue, offset, width)),
        }
    }

    fn config_read(&self, offset: u32, width: u8) -> u32 {
        let Some(Offer { config, config_len, .. }) = &self.offer else { return 0 };
        number(config.get(..*config_len as usize).unwrap_or(config), offset, width)
    }
}

fn queue_read(queue: &Queue, offset: u32, width: u8) -> u32 {
    match (offset, width) {
        (reg::QUEUE_SIZE, 2) => queue.size.into(),
        (reg::QUEUE_MSIX_VECTOR, 2) => queue.vector.into(),
        (reg::QUEUE_ENABLE, 2) => queue.enabled.into(),
        // All queues are notified at one port, which takes their number.
        (reg::QUEUE_NOTIFY_OFF, 2) => 0,
        (_, 4) if offset.is_multiple_of(4) => match offset & !4 {
            reg::QUEUE_DESC => half(queue.desc, which(offset)),
            reg::QUEUE_DRIVER => half(queue.driver, which(offset)),
            reg::QUEUE_DEVICE => half(queue.device, which(offset)),
            _ => 0,
        },
        _ => 0,
    }
}
