//! A virtio network card as an uplink, as machines in clouds have: two queues, and its interrupt line.
//!
//! Memory: the two queues, then a buffer for each descriptor. A frame and the header before it lie in one piece, so that no chain has two
//! descriptors. The card writes into used rings; of these nothing is believed that was not offered before.
//! Source: Virtio 1.2, 2.7 (split queues), 3.1 (initialization), 4.1 (PCI) and 5.1 (network card). No feature is asked for but
//! those that say how queues and addresses are to be understood: a card without CTRL_RX takes every frame.

mod queue;

use crate::{
    Card, Counters, DmaMemory, MAX_FRAME, MIN_FRAME, RawDevice, Sent, Transmit, Uplink, is_frame, put_frame,
};
use queue::{Places, Queue};

/// Reads a double word of the function's PCI configuration.
pub type Configuration<'a> = &'a dyn Fn(u8) -> u32;

/// The pointer to capabilities, and the status bit that says that there are some, in the word of command and status (PCI Local Bus
/// 3.0, 6.2.3 and 6.7).
const COMMAND: u8 = 0x04;
const HAS_CAPABILITIES: u32 = 1 << 20;
const POINTER: u8 = 0x34;
/// A vendor's capability.
const VENDOR_SPECIFIC: u32 = 0x09;
/// What such a capability tells of (4.1.4).
const COMMON: u32 = 1;
const NOTIFY: u32 = 2;
const ISR: u32 = 3;
/// Capabilities looked at, at most: more do not fit into a function's configuration.
const MOST: usize = 48;

/// Registers of the common configuration (4.1.4.3).
mod reg {
    pub const DEVICE_FEATURE_SELECT: u16 = 0x00;
    pub const DEVICE_FEATURE: u16 = 0x04;
    pub const DRIVER_FEATURE_SELECT: u16 = 0x08;
    pub const DRIVER_FEATURE: u16 = 0x0c;
    pub const STATUS: u16 = 0x14;
    pub const QUEUE_SELECT: u16 = 0x16;
    pub const QUEUE_SIZE: u16 = 0x18;
    pub const QUEUE_ENABLE: u16 = 0x1c;
    pub const QUEUE_NOTIFY: u16 = 0x1e;
    pub const QUEUE_DESC: u16 = 0x20;
    pub const QUEUE_DRIVER: u16 = 0x28;
    pub const QUEUE_DEVICE: u16 = 0x30;
}

/// Device status (2.1).
const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;
/// Features 32 and 33 (6): VERSION_1, and ACCESS_PLATFORM, by which addresses are what an IOMMU makes of them.
const VERSION_1: u32 = 1 << 0;
const ACCESS_PLATFORM: u32 = 1 << 1;

/// The queues.
const RECEIVE: u16 = 0;
const SEND: u16 = 1;
/// Their descriptors.
const RECEIVERS: usize = 64;
const SENDERS: usize = 128;
/// Bytes of a header (5.1.6), and of a buffer with it.
const HEADER: usize = 12;
const RECEIVE_BUFFER: usize = 0x800;
const SEND_BUFFER: usize = 0x600;
/// Memory: a page for each queue, then the buffers.
const RECEIVE_RINGS: Places = Places { descriptors: 0x0000, available: 0x0400, used: 0x0600 };
const SEND_RINGS: Places = Places { descriptors: 0x1000, available: 0x1800, used: 0x1a00 };
const RECEIVE_BUFFERS: usize = 0x2000;
const SEND_BUFFERS: usize = RECEIVE_BUFFERS + RECEIVERS * RECEIVE_BUFFER;
const MEMORY: usize = SEND_BUFFERS + SENDERS * SEND_BUFFER;
/// Reads of a register that should change.
const PATIENCE: usize = 10_000;

/// Where registers are, all in one BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    bar: u8,
    common: u16,
    isr: u16,
    notify: u16,
    /// Bytes between the registers by which two queues are notified.
    multiplier: u32,
}

impl Layout {
    /// As the function's capabilities say. `None`: it is no modern device, or its registers are not within 64 KiB of one BAR.
    fn find(config: Configuration<'_>) -> Option<Self> {
        if config(COMMAND) & HAS_CAPABILITIES == 0 {
            return None;
        }
        let (mut common, mut isr, mut notify) = (None, None, None);
        let mut at = config(POINTER) as u8 & !3;
        for _ in 0..MOST {
            if at == 0 {
                break;
            }
            let word = config(at);
            let place = || {
                let bar = config(at.checked_add(4)?) as u8;
                Some((bar, u16::try_from(config(at.checked_add(8)?)).ok()?))
            };
            match (word & 0xff, word >> 24) {
                (VENDOR_SPECIFIC, COMMON) => common = common.or_else(place),
                (VENDOR_SPECIFIC, ISR) => isr = isr.or_else(place),
                (VENDOR_SPECIFIC, NOTIFY) if notify.is_none() => {
                    notify = place().zip(at.checked_add(16).map(config));
                }
                _ => {}
            }
            at = (word >> 8) as u8 & !3;
        }
        let ((bar, common), (isr_bar, isr), ((notify_bar, notify), multiplier)) = (common?, isr?, notify?);
        (isr_bar == bar && notify_bar == bar).then_some(Self { bar, common, isr, notify, multiplier })
    }
}

/// The driver.
#[derive(Debug)]
pub struct VirtioNet {
    layout: Layout,
    receive: Queue<RECEIVERS>,
    send: Queue<SENDERS>,
    /// Registers by which the queues are notified.
    doorbells: [u16; 2],
    /// There are frames in the send queue that the card has not been told of.
    queued: bool,
    counters: Counters,
}

impl VirtioNet {
    /// A driver for a card that it has not touched yet. `None`: it is none that has modern registers.
    pub fn new(config: Configuration<'_>) -> Option<Self> {
        Some(Self {
            layout: Layout::find(config)?,
            receive: Queue::new(RECEIVE_RINGS),
            send: Queue::new(SEND_RINGS),
            doorbells: [0; 2],
            queued: false,
            counters: Counters::default(),
        })
    }

    fn get(&self, raw: &mut dyn RawDevice, register: u16, width: u8) -> u32 {
        raw.read(self.layout.common.wrapping_add(register), width)
    }

    fn set(&self, raw: &mut dyn RawDevice, register: u16, width: u8, value: u32) {
        raw.write(self.layout.common.wrapping_add(register), width, value);
    }

    /// Resets the card; false if it is never done with that.
    fn reset(&self, raw: &mut dyn RawDevice) -> bool {
        self.set(raw, reg::STATUS, 1, 0);
        (0..PATIENCE).any(|_| self.get(raw, reg::STATUS, 1) == 0)
    }

    /// Agrees on features; false if the card has not what is needed.
    fn negotiate(&self, raw: &mut dyn RawDevice, is_translated: bool) -> bool {
        self.set(raw, reg::STATUS, 1, ACKNOWLEDGE | DRIVER);
        self.set(raw, reg::DEVICE_FEATURE_SELECT, 4, 1);
        let wanted = self.get(raw, reg::DEVICE_FEATURE, 4) & (VERSION_1 | ACCESS_PLATFORM);
        if wanted & VERSION_1 == 0 || is_translated && wanted & ACCESS_PLATFORM == 0 {
            return false;
        }
        for (half, features) in [(0, 0), (1, wanted)] {
            self.set(raw, reg::DRIVER_FEATURE_SELECT, 4, half);
            self.set(raw, reg::DRIVER_FEATURE, 4, features);
        }
        self.set(raw, reg::STATUS, 1, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        self.get(raw, reg::STATUS, 1) & FEATURES_OK != 0
    }

    /// Tells the card where a queue is. Returns the register by which it is notified; `None`: it has no such queue, or a smaller one.
    fn set_queue(
        &self,
        raw: &mut dyn RawDevice,
        number: u16,
        size: usize,
        places: Places,
        bus: u32,
    ) -> Option<u16> {
        self.set(raw, reg::QUEUE_SELECT, 2, number.into());
        if (self.get(raw, reg::QUEUE_SIZE, 2) as usize) < size {
            return None;
        }
        self.set(raw, reg::QUEUE_SIZE, 2, size as u32);
        for (register, place) in [
            (reg::QUEUE_DESC, places.descriptors),
            (reg::QUEUE_DRIVER, places.available),
            (reg::QUEUE_DEVICE, places.used),
        ] {
            self.set(raw, register, 4, bus.checked_add(place as u32)?);
            self.set(raw, register + 4, 4, 0);
        }
        let doorbell = self.get(raw, reg::QUEUE_NOTIFY, 2).checked_mul(self.layout.multiplier)?;
        let doorbell = u16::try_from(u32::from(self.layout.notify).checked_add(doorbell)?).ok()?;
        self.set(raw, reg::QUEUE_ENABLE, 2, 1);
        Some(doorbell)
    }

    /// Gives the card a buffer to receive into.
    fn offer(&mut self, memory: &mut dyn DmaMemory, index: u16) {
        let at = RECEIVE_BUFFERS + usize::from(index) * RECEIVE_BUFFER;
        self.receive.offer(memory, index, at, RECEIVE_BUFFER, true);
    }

    /// Up to so many frames; how many buffers the card had filled.
    fn drain(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let mut done = 0;
        while done < most
            && let Some(used) = self.receive.next_used(card.memory)
        {
            done += 1;
            let Some((index, written)) = used else {
                self.counters.restarts += 1;
                continue;
            };
            let len = (written as usize).wrapping_sub(HEADER);
            if (MIN_FRAME..=MAX_FRAME).contains(&len) {
                self.counters.received += 1;
                let at = RECEIVE_BUFFERS + usize::from(index) * RECEIVE_BUFFER + HEADER;
                card.memory.with(at, len, &mut |frame| {
                    take(frame);
                    true
                });
            } else {
                self.counters.restarts += 1;
            }
            self.offer(card.memory, index);
        }
        if done > 0 && self.receive.publish(card.memory) {
            card.registers.write(self.doorbells[usize::from(RECEIVE)], 2, RECEIVE.into());
        }
        done
    }

    /// Frees the buffers of frames that were sent.
    fn reclaim(&mut self, memory: &dyn DmaMemory) {
        for _ in 0..SENDERS {
            match self.send.next_used(memory) {
                Some(Some(_)) => {}
                Some(None) => self.counters.restarts += 1,
                None => return,
            }
        }
    }

    /// A buffer to send from, if one is free.
    fn room(&mut self, memory: &dyn DmaMemory) -> Option<u16> {
        self.send.free().or_else(|| {
            self.reclaim(memory);
            self.send.free()
        })
    }
}

impl Transmit for VirtioNet {
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        if !is_frame(frame) {
            return Sent::Refused;
        }
        let mut room = self.room(card.memory);
        if room.is_none() {
            // Who was to be told may have been overtaken by what it is told of.
            self.await_room(card);
            room = self.room(card.memory);
        }
        let Some(index) = room else { return Sent::Full };
        let at = SEND_BUFFERS + usize::from(index) * SEND_BUFFER;
        card.memory.write(at, &[0; HEADER]);
        let len = put_frame(card.memory, at + HEADER, frame);
        self.send.offer(card.memory, index, at, HEADER + len, false);
        self.queued = true;
        self.counters.sent += 1;
        Sent::Done
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        if core::mem::take(&mut self.queued) && self.send.publish(card.memory) {
            card.registers.write(self.doorbells[usize::from(SEND)], 2, SEND.into());
        }
    }

    fn await_room(&mut self, card: &mut Card<'_>) {
        self.flush(card);
        self.send.listen(card.memory, true);
    }
}

impl Uplink for VirtioNet {
    fn name(&self) -> &'static str {
        "virtio-net"
    }

    fn bar(&self) -> u8 {
        self.layout.bar
    }

    fn memory(&self) -> usize {
        MEMORY
    }

    fn start(&mut self, card: &mut Card<'_>) -> bool {
        let raw = &mut *card.registers;
        if !self.reset(raw) || !self.negotiate(raw, card.memory.is_translated()) {
            return false;
        }
        (self.receive, self.send) = (Queue::new(RECEIVE_RINGS), Queue::new(SEND_RINGS));
        self.queued = false;
        let bus = card.memory.bus();
        let queues = [(RECEIVE, RECEIVERS, RECEIVE_RINGS), (SEND, SENDERS, SEND_RINGS)];
        for (number, size, places) in queues {
            let Some(doorbell) = self.set_queue(raw, number, size, places, bus) else { return false };
            self.doorbells[usize::from(number)] = doorbell;
        }
        self.receive.begin(card.memory);
        self.send.begin(card.memory);
        self.send.listen(card.memory, false);
        (0..RECEIVERS as u16).for_each(|index| self.offer(card.memory, index));
        self.receive.publish(card.memory);
        let raw = &mut *card.registers;
        self.set(raw, reg::STATUS, 1, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        raw.write(self.doorbells[usize::from(RECEIVE)], 2, RECEIVE.into());
        true
    }

    fn take(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        self.receive.listen(card.memory, false);
        self.drain(card, most.min(RECEIVERS), take)
    }

    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        // Reading acknowledges. Before the rings are read: what comes later raises the line again.
        let _ = card.registers.read(self.layout.isr, 1);
        self.receive.listen(card.memory, true);
        if self.send.listens() && self.room(card.memory).is_some() {
            self.send.listen(card.memory, false);
        }
        self.drain(card, RECEIVERS, take) == RECEIVERS
    }

    fn stop(&mut self, card: &mut Card<'_>) {
        self.reset(card.registers);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A configuration with these capabilities: what they tell of, BAR, and offset.
    fn config(capabilities: &[(u8, u8, u32)]) -> impl Fn(u8) -> u32 {
        let mut bytes = [0u8; 256];
        bytes[6] = 0x10;
        bytes[0x34] = 0x40;
        for (nth, (kind, bar, offset)) in capabilities.iter().enumerate() {
            let at = 0x40 + nth * 20;
            let next = if nth + 1 < capabilities.len() { at as u8 + 20 } else { 0 };
            bytes[at..at + 4].copy_from_slice(&[9, next, 20, *kind]);
            bytes[at + 4] = *bar;
            bytes[at + 8..at + 12].copy_from_slice(&offset.to_le_bytes());
            bytes[at + 16] = 4;
        }
        move |at| u32::from_le_bytes(core::array::from_fn(|byte| bytes[usize::from(at) + byte]))
    }

    #[test]
    fn registers_are_where_capabilities_say() {
        let all = [(5, 0, 0), (1, 4, 0), (3, 4, 0x1000), (4, 4, 0x2000), (2, 4, 0x3000)];
        let expected = Layout { bar: 4, common: 0, isr: 0x1000, notify: 0x3000, multiplier: 4 };
        assert_eq!(Layout::find(&config(&all)), Some(expected));
        // The first of a kind counts (4.1.4).
        let twice = [&all[..], &[(1, 2, 0x100), (2, 2, 0)]].concat();
        assert_eq!(Layout::find(&config(&twice)), Some(expected));
        for without in [1, 2, 3] {
            let fewer: Vec<_> = all.into_iter().filter(|(kind, ..)| *kind != without).collect();
            assert_eq!(Layout::find(&config(&fewer)), None, "without {without}");
        }
        let apart = [(1, 4, 0), (3, 4, 0x1000), (2, 2, 0)];
        assert_eq!(Layout::find(&config(&apart)), None, "in two BARs");
        let far = [(1, 4, 0x1_0000), (3, 4, 0x1000), (2, 4, 0)];
        assert_eq!(Layout::find(&config(&far)), None, "too far");
        assert_eq!(Layout::find(&|_| 0), None);
        // A ring of capabilities, and one that leads to the end of the configuration.
        assert_eq!(Layout::find(&|at| if at == 4 { u32::MAX } else { 0x0100_4009 }), None);
        assert_eq!(Layout::find(&|_| u32::MAX), None);
    }
}
