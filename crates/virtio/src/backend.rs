//! Registers that a back end sees: [`sluice_hypercall::backend`] says what each is.

use crate::device::{Changes, Device, Kind, Offer, Status};
use crate::features;
use crate::queue::Queue;
use crate::words::{half, number, set_half, which};
use sluice_hypercall::backend as reg;
use sluice_hypercall::backend::{
    CONTROL_CONFIG_CHANGED, CONTROL_NEEDS_RESET, CONTROL_OFFER, CONTROL_PASS_FOCUS, CONTROL_RESET_DONE,
    REFUSED_COMMAND, REFUSED_FEATURES, REFUSED_RANGE, STATE_BACKGROUND, STATE_OFFERED, STATE_PEER,
    STATE_RESETTING,
};

impl Device {
    /// A read of `width` bytes at `offset` in the registers of the back-end function that is in `slot`.
    pub fn backend_read(&self, slot: u8, offset: u32, width: u8) -> u32 {
        match offset {
            reg::NAME..reg::SOURCE => number(&self.name, offset - reg::NAME, width),
            reg::SOURCE..reg::CONFIG => number(&self.source, offset - reg::SOURCE, width),
            reg::CONFIG..reg::RANGE => number(&self.staged.config, offset - reg::CONFIG, width),
            _ if width != 4 || !offset.is_multiple_of(4) => 0,
            reg::SLOT => slot.into(),
            reg::RANGE..reg::QUEUE => self.range(offset - reg::RANGE),
            reg::QUEUE.. => self.queue_register(offset - reg::QUEUE),
            _ => self.register(offset),
        }
    }

    fn register(&self, offset: u32) -> u32 {
        match offset {
            reg::MAGIC => reg::MAGIC_VALUE,
            reg::VERSION => reg::VERSION_VALUE,
            reg::KIND => self.kind.id().into(),
            reg::STATUS => self.status.bits().into(),
            reg::STATE => {
                let bit = |is: bool, bit: u32| if is { bit } else { 0 };
                bit(self.offer.is_some(), STATE_OFFERED)
                    | bit(self.resetting, STATE_RESETTING)
                    | bit(self.has_guest, STATE_PEER)
                    | bit(self.in_background, STATE_BACKGROUND)
            }
            reg::CONTROL => self.result,
            reg::QUEUES => self.staged.queues,
            reg::QUEUE_SIZE => self.staged.queue_size,
            reg::CONFIG_LEN => self.staged.config_len,
            reg::RANGES => self.range_count,
            _ => match offset & !4 {
                reg::DEVICE_FEATURES => half(self.staged.features, which(offset)),
                reg::DRIVER_FEATURES if self.status.contains(Status::FEATURES_OK) => {
                    half(self.agreed(), which(offset))
                }
                _ => 0,
            },
        }
    }

    /// What the driver has accepted of what a back end can offer, and of the standard.
    fn agreed(&self) -> u64 {
        self.accepted & !features::ACCESS_PLATFORM
    }

    fn range(&self, offset: u32) -> u32 {
        let index = (offset / reg::RANGE_STRIDE) as usize;
        let Some((start, len)) = self.ranges.iter().take(self.range_count as usize).nth(index) else {
            return 0;
        };
        half(if offset & 8 == 0 { *start } else { *len }, which(offset))
    }

    fn queue_register(&self, offset: u32) -> u32 {
        let Some(queue) = self.queues.get((offset / reg::QUEUE_STRIDE) as usize) else { return 0 };
        // Nobody may go to work in what the driver is still setting up, or has taken back.
        let live = self.is_live();
        match offset % reg::QUEUE_STRIDE {
            reg::QUEUE_ENTRIES => queue.size.into(),
            reg::QUEUE_ENABLED => (queue.enabled && live).into(),
            field => match field & !4 {
                reg::QUEUE_DESC => half(queue.desc, which(field)),
                reg::QUEUE_DRIVER => half(queue.driver, which(field)),
                reg::QUEUE_DEVICE => half(queue.device, which(field)),
                _ => 0,
            },
        }
    }

    /// A write of `width` bytes at `offset` in the registers of the back-end function, and what follows.
    pub fn backend_write(&mut self, offset: u32, width: u8, value: u32) -> Changes {
        if (reg::CONFIG..reg::RANGE).contains(&offset) {
            let cells = self.staged.config.iter_mut().skip((offset - reg::CONFIG) as usize);
            cells.zip(value.to_le_bytes()).take(width.into()).for_each(|(cell, byte)| *cell = byte);
            return Changes::empty();
        }
        if width != 4 {
            return Changes::empty();
        }
        match offset {
            reg::CONTROL => return self.control(value),
            reg::QUEUES => self.staged.queues = value,
            reg::QUEUE_SIZE => self.staged.queue_size = value,
            reg::CONFIG_LEN => self.staged.config_len = value,
            _ if offset & !4 == reg::DEVICE_FEATURES => {
                set_half(&mut self.staged.features, which(offset), value);
            }
            _ => {}
        }
        Changes::empty()
    }

    fn control(&mut self, command: u32) -> Changes {
        let done = match command {
            CONTROL_OFFER => self.make_offer(),
            CONTROL_RESET_DONE if self.resetting => Ok(self.forget()),
            CONTROL_CONFIG_CHANGED => self.change_config(),
            CONTROL_NEEDS_RESET if self.is_live() => Ok(self.break_down()),
            CONTROL_PASS_FOCUS if self.kind == Kind::DeviceFile && !self.in_background => Ok(Changes::FOCUS),
            _ => Err(REFUSED_COMMAND),
        };
        self.result = done.err().unwrap_or(0);
        done.unwrap_or(Changes::empty())
    }

    fn make_offer(&mut self) -> Result<Changes, u32> {
        let offer = self.staged;
        if !(1..=reg::MAX_QUEUES).contains(&offer.queues)
            || !Queue::is_size(offer.queue_size)
            || offer.config_len > reg::CONFIG_SIZE
        {
            return Err(REFUSED_RANGE);
        }
        self.check_agreed(&offer)?;
        let first = self.offer.replace(offer).is_none();
        if first || self.status.is_empty() {
            self.queues = [Queue::new(offer.queue_size as u16); reg::MAX_QUEUES as usize];
        }
        Ok(Changes::BACKEND | Changes::OFFERED)
    }

    /// What the guest's driver relies on stays as it was agreed.
    fn check_agreed(&self, offer: &Offer) -> Result<(), u32> {
        if self.status.is_empty() {
            return Ok(());
        }
        let agreed = if self.status.contains(Status::FEATURES_OK) { self.agreed() } else { 0 };
        let same = self.offer.is_none_or(|old| {
            (old.queues, old.queue_size, old.config_len) == (offer.queues, offer.queue_size, offer.config_len)
        });
        let features = offer.features & features::OFFERABLE | features::VERSION_1;
        if same && agreed & !features == 0 { Ok(()) } else { Err(REFUSED_FEATURES) }
    }

    fn change_config(&mut self) -> Result<Changes, u32> {
        let offer = self.offer.as_mut().ok_or(REFUSED_COMMAND)?;
        offer.config = self.staged.config;
        self.generation = self.generation.wrapping_add(1);
        Ok(if self.is_live() { Changes::CONFIGURATION } else { Changes::empty() })
    }
}
