//! A driver of an IOMMU that asks for what it is told to, and makes chains as it is told to.
//!
//! Key types: [`Driver`], [`Request`], [`Outcome`]. Source: Virtio 1.2, 2.7 (split queues), 5.13.6 (requests).

use super::super::virtio::{AVAILABLE, BUFFERS, Device, Kind, SIZE, USED, store};
use super::PAGE;
use crate::dma::memory::{Own, get, put};
use crate::machine::wait_for;

/// How long an answer is waited for, in ticks of the time-stamp counter: the hypervisor is there while the doorbell is rung.
const PROMPT: u64 = 3_000_000_000;
/// Registers (Virtio 1.2, 4.1.4.3).
const DEVICE_STATUS: u64 = 0x14;
const QUEUE_SELECT: u64 = 0x16;
const QUEUE_SIZE: u64 = 0x18;
const QUEUE_ENABLE: u64 = 0x1c;
const QUEUE_PARTS: [u64; 3] = [0x20, 0x28, 0x30];

/// Flags of a descriptor.
pub const NEXT: u32 = 1;
pub const WRITE: u32 = 2;

/// Types of requests.
pub const ATTACH: u8 = 1;
pub const DETACH: u8 = 2;
pub const MAP: u8 = 3;
pub const UNMAP: u8 = 4;
pub const PROBE: u8 = 5;

/// Bytes of the longest answer, the one to PROBE, and of all others.
pub const LONG_ANSWER: u32 = 28;
pub const ANSWER: u32 = 4;
/// What an answer holds before there is one.
const BLANK: u32 = 0xeeee_eeee;

/// Bytes of a request.
#[derive(Clone, Copy)]
pub struct Request {
    pub bytes: [u8; Self::ROOM],
    pub len: usize,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Status(u8),
    /// The device asks for a reset.
    Broken,
    /// Nothing came of it.
    Nothing,
}

/// It was carried out.
pub const DONE: Outcome = Outcome::Status(0);

impl Request {
    pub const ROOM: usize = 96;

    fn new(kind: u8, len: usize) -> Self {
        let mut bytes = [0; Self::ROOM];
        bytes[0] = kind;
        Self { bytes, len }
    }

    pub fn with(mut self, at: usize, value: &[u8]) -> Self {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

    pub fn word(self, at: usize, value: u32) -> Self {
        self.with(at, &value.to_le_bytes())
    }

    pub fn long(self, at: usize, value: u64) -> Self {
        self.with(at, &value.to_le_bytes())
    }

    pub fn attach(domain: u32, endpoint: u32) -> Self {
        Self::new(ATTACH, 20).word(4, domain).word(8, endpoint)
    }

    pub fn detach(domain: u32, endpoint: u32) -> Self {
        Self::new(DETACH, 20).word(4, domain).word(8, endpoint)
    }

    pub fn map(domain: u32, first: u64, last: u64, gpa: u64, flags: u32) -> Self {
        Self::new(MAP, 36).word(4, domain).long(8, first).long(16, last).long(24, gpa).word(32, flags)
    }

    /// As [`Self::map`], of whole pages that may be read and written.
    pub fn map_pages(domain: u32, first: u64, pages: u64, gpa: u64) -> Self {
        Self::map(domain, first, first + pages * PAGE - 1, gpa, 3)
    }

    pub fn unmap(domain: u32, first: u64, last: u64) -> Self {
        Self::new(UNMAP, 28).word(4, domain).long(8, first).long(16, last)
    }

    pub fn unmap_pages(domain: u32, first: u64, pages: u64) -> Self {
        Self::unmap(domain, first, first + pages * PAGE - 1)
    }

    pub fn probe(endpoint: u32) -> Self {
        Self::new(PROBE, 72).word(4, endpoint)
    }

    pub fn kind(&self) -> u8 {
        self.bytes[0]
    }

    pub fn word_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|byte| self.bytes[at + byte]))
    }

    pub fn long_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|byte| self.bytes[at + byte]))
    }
}

/// The IOMMU.
pub struct Driver {
    pub device: Device,
    /// Chains that were made available since the start.
    next: u16,
}

impl Driver {
    pub fn find(own: &mut Own) -> Option<Self> {
        Some(Self { device: Device::take(Kind::Iommu, own)?, next: 0 })
    }

    /// Resets the device, and does nothing else. Whether it has reset itself.
    pub fn reset(&mut self) -> bool {
        self.next = 0;
        self.device.set(DEVICE_STATUS, 1, 0);
        self.device.status() == 0
    }

    /// Resets the device and sets it up.
    pub fn start(&mut self) -> bool {
        self.reset() && self.device.start(false)
    }

    /// As [`Self::start`], with the parts of the queue anywhere. Whether the device takes it.
    pub fn start_at(&mut self, parts: [u64; 3], size: u64) -> bool {
        self.reset();
        for (register, width, value) in
            [(DEVICE_STATUS, 1, 1), (DEVICE_STATUS, 1, 3), (0x08, 4, 1), (0x0c, 4, 1), (DEVICE_STATUS, 1, 11)]
        {
            self.device.set(register, width, value);
        }
        self.device.set(QUEUE_SELECT, 2, 0);
        self.device.set(QUEUE_SIZE, 2, size);
        for (register, part) in QUEUE_PARTS.into_iter().zip(parts) {
            self.device.set(register, 4, part);
            self.device.set(register + 4, 4, part >> 32);
        }
        self.device.set(QUEUE_ENABLE, 2, 1);
        self.device.set(DEVICE_STATUS, 1, 15);
        self.device.word(QUEUE_ENABLE) == 1
    }

    /// Memory for requests, and for answers.
    pub fn request_at(&self) -> u64 {
        self.device.at + BUFFERS
    }

    pub fn answer_at(&self) -> u64 {
        self.device.at + BUFFERS + PAGE
    }

    /// Writes a request, and clears the answer.
    pub fn put(&self, request: &Request) {
        (self.request_at()..).zip(request.bytes).for_each(|(at, byte)| store(at, 1, byte.into()));
        (0..64).step_by(4).for_each(|offset| put(self.answer_at() + offset, BLANK));
    }

    /// Writes a chain of these pieces of memory, addresses, bytes and flags, from descriptor 0 on.
    pub fn chain(&self, pieces: &[(u64, u32, u32)]) {
        for (index, (address, len, flags)) in (0u32..).zip(pieces) {
            let more = if index as usize + 1 < pieces.len() { NEXT } else { 0 };
            self.device.descriptor(self.device.at, index.into(), *address, *len, flags | more, index + 1);
        }
    }

    /// Makes the chain from this descriptor on available, and does not tell.
    pub fn offer(&mut self, head: u16) {
        let entry = self.device.at + AVAILABLE + 4 + u64::from(self.next) % SIZE * 2;
        store(entry, 2, head.into());
        self.next = self.next.wrapping_add(1);
        put(self.device.at + AVAILABLE, u32::from(self.next) << 16);
    }

    /// As [`Self::offer`], with so many more that never were.
    pub fn jump(&mut self, chains: u16) {
        self.next = self.next.wrapping_add(chains);
        self.offer(0);
        self.ring();
    }

    /// Tells the device.
    pub fn ring(&self) {
        crate::machine::outw(self.device.doorbell, 0);
    }

    /// A request and room for its answer, available: nobody was told.
    pub fn offer_request(&mut self, request: &Request) {
        let room = if request.kind() == PROBE { LONG_ANSWER } else { ANSWER };
        self.put(request);
        self.chain(&[(self.request_at(), request.len as u32, 0), (self.answer_at(), room, WRITE)]);
        self.offer(0);
    }

    /// Has a request carried out.
    pub fn ask(&mut self, request: &Request) -> Outcome {
        self.offer_request(request);
        self.ring();
        self.outcome()
    }

    /// Whether the last chain was given back.
    pub fn is_answered(&self) -> bool {
        get(self.device.at + USED) >> 16 == u32::from(self.next)
    }

    /// What comes of the last chain that was made available; its answer is where [`Self::put`] has it.
    pub fn outcome(&self) -> Outcome {
        wait_for(PROMPT, || self.is_answered() || self.device.needs_reset());
        if !self.is_answered() {
            return if self.device.needs_reset() { Outcome::Broken } else { Outcome::Nothing };
        }
        let last = u64::from(self.next.wrapping_sub(1)) % SIZE;
        let written = u64::from(get(self.device.at + USED + 8 + last * 8));
        if written != u64::from(ANSWER) && written != u64::from(LONG_ANSWER) {
            return Outcome::Nothing;
        }
        Outcome::Status(get(self.answer_at() + written - 4) as u8)
    }
}
