//! The physical card of a network.
//!
//! Key types: [`Wire`], the card: its driver, which receives, and its queues to send from, each with a lock of its own; [`Way`], how an engine
//! reaches it.

use super::messages::Messages;
use crate::devices::device::Device;
use crate::devices::error::AttachError;
use crate::devices::hardware::{Hardware, QueueHardware};
use crate::sync::{Rank, SpinLock};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_nic::Offload;
use sluice_uplink::{Card, Counters, Place, Queue, Sent, Transmit, Uplink};
use sluice_vif::{Duty, Given};

/// A card on the wire, driven by engines.
///
/// While the engine that receives looks for itself, the card does not interrupt for what it has received, and nothing is acknowledged: that costs
/// neither an interrupt nor a register. A line is masked at the I/O APIC then, and opened when the engine goes to sleep; a message is asked for
/// before the engine looks for the last time.
pub(super) struct Wire {
    device: Arc<Device>,
    driver: SpinLock<Driver>,
    /// What engines send by; none: by the driver.
    queues: Vec<SpinLock<Sending>>,
    /// It tells by these; none: by its line.
    messages: Option<Messages>,
}

/// The driver of a card.
struct Driver {
    hardware: Hardware,
    uplink: Box<dyn Uplink>,
    /// The next look is the last before sleep.
    is_last: bool,
}

/// A queue that the driver gave away.
struct Sending {
    hardware: QueueHardware,
    queue: Box<dyn Queue>,
}

/// How an engine sends.
#[derive(Clone, Copy)]
pub(super) struct Route {
    /// Which of the queues is its.
    queue: Option<usize>,
    /// The card wakes it when there is room.
    is_told: bool,
}

impl Wire {
    /// Puts a card on the wire that nobody has, for frames of at most so many bytes, and for engines with these duties and processors.
    pub fn connect(
        device: &Arc<Device>,
        longest: usize,
        engines: &[(Duty, u32)],
    ) -> Result<Self, AttachError> {
        let function = &device.function;
        let config = |offset| function.bdf.read(offset);
        let mut uplink = sluice_uplink::for_device(function.vendor, function.device, &config)
            .ok_or(AttachError::NoDriver)?;
        if !uplink.stretch(longest) {
            return Err(AttachError::ShortFrames);
        }
        let processors = |does: fn(&Duty) -> bool| {
            engines.iter().filter(move |(duty, _)| does(duty)).map(|(_, processor)| *processor)
        };
        let senders = processors(|duty| duty.sends).take(uplink.queues());
        let told: Vec<u32> = processors(|duty| duty.receives).take(1).chain(senders.clone()).collect();
        let messages = if uplink.has_messages() { Messages::allocate(device, &told) } else { None };
        // Who is alone needs no lock of its own, and may have it for the messages.
        let wanted = if engines.len() > 1 || messages.is_some() { senders.count() } else { 0 };
        let given = if wanted > 0 { uplink.give_queues(wanted, messages.is_some()) } else { Vec::new() };
        let apart: usize = given.iter().map(|queue| queue.memory()).sum();
        let mut hardware = Hardware::take(device, uplink.bar(), uplink.memory() + apart)?;
        let messages = messages.map(|messages| messages.program(device));
        if !uplink.start(&mut hardware.card()) {
            hardware.give_back(device);
            return Err(AttachError::NoAnswer);
        }
        let put_to_use = |mut queue: Box<dyn Queue>| {
            let mut hardware = hardware.split_off(device, uplink.bar(), queue.memory())?;
            queue.start(&mut hardware.card());
            Some(SpinLock::new(Rank::Card, Sending { hardware, queue }))
        };
        let Some(queues) = given.into_iter().map(put_to_use).collect::<Option<Vec<_>>>() else {
            uplink.stop(&mut hardware.card());
            hardware.give_back(device);
            return Err(AttachError::NoAddress);
        };
        let told = if messages.is_some() { "messages" } else { "its line" };
        log::info!(
            "device {}: on the wire, driven as {}, {} queues of engines' own, tells by {told}",
            device.name,
            uplink.name(),
            queues.len()
        );
        let driver = SpinLock::new(Rank::Card, Driver { hardware, uplink, is_last: false });
        Ok(Self { device: device.clone(), driver, queues, messages })
    }

    /// How the engine sends that is the one of this index among those that do; others may. Engines beyond the queues share these.
    pub fn route(&self, sender: usize, alone: bool) -> Route {
        let queue = sender.checked_rem(self.queues.len());
        let has_message = self.messages.is_some() && sender < self.queues.len();
        Route { queue, is_told: alone || has_message }
    }

    /// Whether engines send by queues of their own, so that nobody waits while another takes frames.
    pub fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// What its driver is called.
    pub fn driver(&self) -> &'static str {
        self.driver.lock().uplink.name()
    }

    /// What its driver counted, frames sent by each queue included.
    pub fn counters(&self) -> Counters {
        let counters = self.driver.lock().uplink.counters();
        Counters { sent: counters.sent + self.sent().sum::<u64>(), ..counters }
    }

    /// Frames sent by each queue.
    pub fn sent(&self) -> impl Iterator<Item = u64> {
        self.queues.iter().map(|sending| sending.lock().queue.sent())
    }

    /// Messages that it sent.
    pub fn messages(&self) -> u64 {
        self.messages.as_ref().map_or(0, Messages::raised)
    }

    /// The next round is the last before sleep: what the card interrupts for is acknowledged before it is looked at.
    pub fn doze(&self) {
        self.driver.lock().is_last = true;
    }

    /// Nobody looks from now on: the card's interrupt wakes.
    pub fn sleep(&self) {
        if self.messages.is_none() {
            self.device.unmask();
        }
    }

    /// Does something with what is sent by.
    fn with<R>(&self, queue: Option<usize>, act: impl FnOnce(&mut dyn Transmit, &mut Card<'_>) -> R) -> R {
        if let Some(sending) = queue.and_then(|queue| self.queues.get(queue)) {
            let Sending { hardware, queue } = &mut *sending.lock();
            return act(&mut **queue, &mut hardware.card());
        }
        let Driver { hardware, uplink, .. } = &mut *self.driver.lock();
        act(&mut **uplink, &mut hardware.card())
    }

    fn receive(&self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let Driver { hardware, uplink, is_last } = &mut *self.driver.lock();
        let mut card = hardware.card();
        if !core::mem::take(is_last) {
            return uplink.take_checked(&mut card, most, take);
        }
        let mut count = 0;
        uplink.poll(&mut card, &mut |frame| {
            count += 1;
            take(frame, false);
        });
        count
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
    wire: &'a Wire,
    route: Route,
    /// Where frames that have come are meanwhile, if others need the driver to send.
    copies: Option<&'a mut Copies>,
    /// No other engine has the card.
    alone: bool,
    /// Bytes of the longest frame that it carries.
    longest: u32,
    sent: bool,
}

impl<'a> Way<'a> {
    pub fn new(
        wire: &'a Wire,
        route: Route,
        copies: Option<&'a mut Copies>,
        alone: bool,
        longest: usize,
    ) -> Self {
        Self { wire, route, copies, alone, longest: longest as u32, sent: false }
    }
}

impl sluice_vif::Wire for Way<'_> {
    fn longest(&self) -> u32 {
        self.longest
    }

    fn tells(&self) -> bool {
        self.route.is_told
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        self.sent = true;
        self.wire.with(self.route.queue, |to, card| to.enqueue(card, frame) != Sent::Full)
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        self.sent = true;
        self.wire.with(self.route.queue, |to, card| match to.place(card, len, offload) {
            Place::Never => Given::Never,
            Place::Full => {
                to.await_room(card);
                Given::Full
            }
            Place::At(at) => {
                if card.memory.with(at, len, fill) {
                    to.enqueue_placed(card, at, len, offload);
                }
                Given::Sent
            }
        })
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let Some(copies) = &mut self.copies else { return self.wire.receive(most, take) };
        let mut count = 0;
        while count < most {
            let taken = self.wire.receive(BATCH.min(most - count), &mut |frame, checked| {
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
        if self.sent || self.alone && self.route.queue.is_none() {
            self.wire.with(self.route.queue, |to, card| to.flush(card));
        }
    }
}
