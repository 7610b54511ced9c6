//! The physical card of a network.

use crate::devices::device::Device;
use crate::devices::error::AttachError;
use crate::devices::hardware::Hardware;
use crate::sync::SpinLock;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_nic::Offload;
use sluice_uplink::{Counters, Place, Sent, Uplink};
use sluice_vif::Given;

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
    /// Puts a card on the wire that nobody has, for frames of at most so many bytes.
    pub fn connect(device: &Arc<Device>, longest: usize) -> Result<Self, AttachError> {
        let function = &device.function;
        let config = |offset| function.bdf.read(offset);
        let mut uplink = sluice_uplink::for_device(function.vendor, function.device, &config)
            .ok_or(AttachError::NoDriver)?;
        if !uplink.stretch(longest) {
            return Err(AttachError::ShortFrames);
        }
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

impl Wire {
    /// As [`sluice_vif::Wire`] has it.
    fn send(&mut self, frame: &[u8]) -> bool {
        self.uplink.enqueue(&mut self.hardware.card(), frame) != Sent::Full
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        let mut card = self.hardware.card();
        match self.uplink.place(&mut card, len, offload) {
            Place::Never => Given::Never,
            Place::Full => {
                self.uplink.await_room(&mut card);
                Given::Full
            }
            Place::At(at) => {
                if card.memory.with(at, len, fill) {
                    self.uplink.enqueue_placed(&mut card, at, len, offload);
                }
                Given::Sent
            }
        }
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let mut card = self.hardware.card();
        if !core::mem::take(&mut self.is_last) {
            return self.uplink.take_checked(&mut card, most, take);
        }
        let mut count = 0;
        self.uplink.poll(&mut card, &mut |frame| {
            count += 1;
            take(frame, false);
        });
        count
    }

    fn flush(&mut self) {
        self.uplink.flush(&mut self.hardware.card());
    }
}

/// Frames that are taken from a card before it is let go.
const BATCH: usize = 8;

/// Frames from a card that others need meanwhile: what is done with them takes longer than the copy.
pub(super) struct Copies {
    bytes: Vec<u8>,
    longest: usize,
}

impl Copies {
    /// For frames of at most so many bytes.
    pub fn new(longest: usize) -> Self {
        Self { bytes: Vec::with_capacity(BATCH * (longest + LENGTH)), longest }
    }

    /// Whether there is room for another.
    fn is_full(&self) -> bool {
        self.bytes.capacity() - self.bytes.len() < self.longest + LENGTH
    }

    fn push(&mut self, frame: &[u8], checked: bool) {
        let head = frame.len() as u16 | if checked { CHECKED } else { 0 };
        self.bytes.extend_from_slice(&head.to_le_bytes());
        self.bytes.extend_from_slice(frame);
    }

    /// Gives all of them away, in order.
    fn drain(&mut self, take: &mut dyn FnMut(&[u8], bool)) {
        let mut rest = &*self.bytes;
        while let Some((head, after)) = rest.split_first_chunk::<LENGTH>() {
            let head = u16::from_le_bytes(*head);
            let (frame, after) = after.split_at(usize::from(head & !CHECKED).min(after.len()));
            take(frame, head & CHECKED != 0);
            rest = after;
        }
        self.bytes.clear();
    }
}

/// Bytes before each frame: its length, and a bit that says whether the card has found its checksums right.
const LENGTH: usize = 2;
const CHECKED: u16 = 1 << 15;

/// An engine's way to the card, for a round.
pub(super) struct Way<'a> {
    wire: &'a SpinLock<Wire>,
    copies: Option<&'a mut Copies>,
    /// No other engine has it.
    alone: bool,
    /// Bytes of the longest frame that it carries.
    longest: u32,
    sent: bool,
}

impl<'a> Way<'a> {
    pub fn new(
        wire: &'a SpinLock<Wire>,
        copies: Option<&'a mut Copies>,
        alone: bool,
        longest: usize,
    ) -> Self {
        Self { wire, copies, alone, longest: longest as u32, sent: false }
    }
}

impl sluice_vif::Wire for Way<'_> {
    fn longest(&self) -> u32 {
        self.longest
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        self.sent = true;
        self.wire.lock().send(frame)
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        self.sent = true;
        self.wire.lock().send_packet(len, offload, fill)
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let Some(copies) = &mut self.copies else { return self.wire.lock().receive(most, take) };
        let mut count = 0;
        while count < most {
            let taken = self.wire.lock().receive(BATCH.min(most - count), &mut |frame, checked| {
                // Some cards give all that there is.
                if copies.is_full() {
                    copies.drain(take);
                }
                copies.push(frame, checked);
            });
            copies.drain(take);
            count += taken;
            if taken < BATCH {
                break;
            }
        }
        count
    }

    fn flush(&mut self) {
        if self.alone || self.sent {
            self.wire.lock().flush();
        }
    }
}
