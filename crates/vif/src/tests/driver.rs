//! A driver of a VIF, and a card, as far as tests need them.

use super::Network;
use super::cutter::cut;
use crate::native::{PAGE, POOL};
use crate::offload::Header;
use crate::{Active, Attributes, Filter, Given, Mac, Queues, VifId, feature};
use sluice_hypercall::vif::VIF_STRUCTURE;
use sluice_nic::Offload;
use sluice_virtio::{Fault, Queue};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

/// Entries of each queue.
pub const SIZE: u16 = 64;
/// Bytes of a guest's memory.
const BYTES: usize = 0x8_0000;
/// Where the parts of the queues are, and buffers: a piece of 2 KiB for each entry.
const RECEIVE_RING: u64 = 0x0000;
const SEND_RING: u64 = 0x3000;
const RECEIVE_BUFFERS: u64 = 0x1_0000;
const SEND_BUFFERS: u64 = 0x4_0000;
const BUFFER: u64 = 0x800;
const HEADER: usize = Header::BYTES;

/// Where something is written, and what.
type Tampering = (u64, [u8; 6]);

/// A guest's memory.
#[derive(Clone)]
pub struct Ram {
    bytes: Rc<RefCell<Vec<u8>>>,
    /// What the guest writes where it was just read.
    pub tamper: Rc<Cell<Option<Tampering>>>,
    /// It is a native VIF's: a structure, and a pool of pages behind it.
    is_native: bool,
}

impl Ram {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: Rc::new(RefCell::new(vec![0; bytes])), tamper: Rc::default(), is_native: false }
    }

    /// A native VIF's with so many pages in its pool.
    pub fn native(pages: u16) -> Self {
        let bytes = VIF_STRUCTURE + u32::from(pages) * PAGE;
        Self { is_native: true, ..Self::new(bytes as usize) }
    }

    /// Where a range of addresses is.
    fn place(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let (all, structure) = (self.bytes.borrow().len(), VIF_STRUCTURE as usize);
        if !self.is_native {
            return range(address, len, all);
        }
        let Some(at) = address.checked_sub(POOL) else { return range(address, len, structure) };
        // Pages that follow each other in the pool do not in the guest's memory.
        assert!(at % u64::from(PAGE) + len as u64 <= PAGE.into(), "over the end of a page");
        let range = range(at, len, all - structure)?;
        Ok(range.start + structure..range.end + structure)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at as usize..][..len].to_vec()
    }

    pub fn u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }
}

fn range(address: u64, len: usize, all: usize) -> Result<std::ops::Range<usize>, Fault> {
    let start = usize::try_from(address).map_err(|_| Fault)?;
    let end = start.checked_add(len).filter(|end| *end <= all).ok_or(Fault)?;
    Ok(start..end)
}

impl sluice_virtio::Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let range = self.place(address, buffer.len())?;
        buffer.copy_from_slice(&self.bytes.borrow()[range.clone()]);
        if let Some((at, other)) = self.tamper.get().filter(|(at, _)| range.contains(&(*at as usize))) {
            self.tamper.set(None);
            self.put(at, &other);
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let range = self.place(address, from.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }
}

impl crate::Memory for Ram {
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        let mut bytes = vec![0; len as usize];
        sluice_virtio::Memory::read(self, from, &mut bytes)?;
        sluice_virtio::Memory::write(other, to, &bytes)
    }

    fn holds(&self, address: u64, len: u32) -> bool {
        self.place(address, len as usize).is_ok()
    }
}

pub fn attributes(mac: Mac) -> Attributes {
    Attributes { mac, share: 1, limit: None, vlan: None, mtu: 1500, moderation: 0, filter: Filter::default() }
}

/// A frame of so many bytes that differs from others.
pub fn frame(to: Mac, from: Mac, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..len).map(|nth| (nth * 7 + len) as u8));
    frame
}

/// One of the two queues.
struct Ring {
    at: Queue,
    /// Chains made available, and seen used.
    available: u16,
    seen: u16,
}

impl Ring {
    fn new(base: u64) -> Self {
        let at = Queue {
            size: SIZE,
            enabled: true,
            desc: base,
            driver: base + 0x1000,
            device: base + 0x2000,
            vector: 0,
        };
        Self { at, available: 0, seen: 0 }
    }

    /// Where the other side says of which chain it wants to hear, and where this one does.
    fn their_event(&self) -> u64 {
        self.at.device + 4 + 8 * u64::from(SIZE)
    }

    fn own_event(&self) -> u64 {
        self.at.driver + 4 + 2 * u64::from(SIZE)
    }

    fn describe(&self, ram: &Ram, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let words =
            u128::from(address) | u128::from(len) << 64 | u128::from(flags) << 96 | u128::from(next) << 112;
        ram.put(self.at.desc + 16 * u64::from(index), &words.to_le_bytes());
    }

    /// Makes the chain at `head` available. Returns whether the other side wants to hear of it.
    fn publish(&mut self, ram: &Ram, head: u16, events: bool) -> bool {
        ram.put(self.at.driver + 4 + 2 * u64::from(self.available % SIZE), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        ram.put(self.at.driver + 2, &self.available.to_le_bytes());
        if events {
            ram.u16(self.their_event()) == self.available.wrapping_sub(1)
        } else {
            ram.u16(self.at.device) & 1 == 0
        }
    }

    /// The next chain given back, and how many bytes were written.
    fn used(&mut self, ram: &Ram) -> Option<(u16, usize)> {
        if self.seen == ram.u16(self.at.device + 2) {
            return None;
        }
        let entry = ram.get(self.at.device + 4 + 8 * u64::from(self.seen % SIZE), 8);
        self.seen = self.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((word(0) as u16, word(4) as usize))
    }
}

/// The driver of a VIF.
pub struct Driver {
    pub ram: Ram,
    pub id: Option<VifId>,
    /// What was before each frame received.
    pub headers: Vec<Header>,
    attributes: Attributes,
    features: u64,
    receive: Ring,
    send: Ring,
    /// Descriptor to send from next.
    next: u16,
    /// The engine wanted to hear of what was sent, and has not been told yet.
    pub tells: bool,
}

impl Driver {
    /// One that has offered all its buffers, but has no VIF yet.
    pub fn new(mac: Mac, features: u64) -> Self {
        let (receive, send) = (Ring::new(RECEIVE_RING), Ring::new(SEND_RING));
        let mut driver = Self {
            ram: Ram::new(BYTES),
            id: None,
            headers: Vec::new(),
            attributes: attributes(mac),
            features,
            receive,
            send,
            next: 0,
            tells: false,
        };
        for index in 0..SIZE {
            driver.offer(index, BUFFER as u32);
        }
        driver
    }

    pub fn active(&self) -> Active {
        let queues = Queues::Virtio { receive: self.receive.at, send: self.send.at };
        Active { queues, features: self.features }
    }

    pub fn join(&mut self, network: &mut Network<Ram>) {
        self.id = network.join(self.attributes, self.ram.clone(), 0);
        assert!(network.activate(self.id.unwrap(), Some(self.active())));
    }

    pub fn set(&mut self, network: &mut Network<Ram>, change: impl FnOnce(&mut Attributes)) {
        change(&mut self.attributes);
        assert!(network.set(self.id.unwrap(), self.attributes, 0));
    }

    /// Sets the device up anew, with these features.
    pub fn accept(&mut self, network: &mut Network<Ram>, features: u64) {
        self.features = features;
        let id = self.id.unwrap();
        assert!(network.activate(id, None) && network.activate(id, Some(self.active())));
    }

    fn events(&self) -> bool {
        self.features & feature::EVENT_INDICES != 0
    }

    fn offer(&mut self, index: u16, len: u32) {
        self.offer_raw(index, RECEIVE_BUFFERS + BUFFER * u64::from(index), len, 2);
    }

    /// A buffer that may be none.
    pub fn offer_raw(&mut self, index: u16, address: u64, len: u32, flags: u16) {
        self.receive.describe(&self.ram, index, (address, len, flags, 0));
        self.receive.publish(&self.ram, index, false);
    }

    /// A chain of buffers of these sizes.
    pub fn offer_chain(&mut self, sizes: &[u32]) {
        for (index, len) in (0u16..).zip(sizes) {
            let flags = if usize::from(index) + 1 < sizes.len() { 3 } else { 2 };
            self.receive.describe(&self.ram, index, (RECEIVE_BUFFERS, *len, flags, index + 1));
        }
        self.receive.publish(&self.ram, 0, false);
    }

    /// Only buffers of these sizes are there from now on.
    pub fn offer_only(&mut self, sizes: &[u32]) {
        self.receive.available = 0;
        for (index, len) in (0..).zip(sizes) {
            self.offer(index, *len);
        }
    }

    /// Sends a frame. Returns whether the engine wants to hear of it.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.send_in(frame, &[HEADER])
    }

    /// Sends a frame in pieces of these sizes, header included, and a last one. It is written where the descriptor's buffer is.
    pub fn send_in(&mut self, frame: &[u8], pieces: &[usize]) -> bool {
        self.send_all(Header::default(), frame, pieces)
    }

    /// Sends a frame that asks for something.
    pub fn send_asking(&mut self, header: Header, frame: &[u8]) {
        self.send_all(header, frame, &[HEADER]);
    }

    fn send_all(&mut self, header: Header, frame: &[u8], pieces: &[usize]) -> bool {
        let bytes = [&header.bytes()[..], frame].concat();
        let (head, start) = (self.next, SEND_BUFFERS + BUFFER * u64::from(self.next % SIZE));
        self.ram.put(start, &bytes);
        let rest = bytes.len() - pieces.iter().sum::<usize>();
        let (mut at, count) = (start, pieces.len() + 1);
        for (nth, len) in pieces.iter().copied().chain([rest]).enumerate() {
            let (index, next) = ((head + nth as u16) % SIZE, (head + nth as u16 + 1) % SIZE);
            let flags = u16::from(nth + 1 < count);
            self.send.describe(&self.ram, index, (at, len as u32, flags, next));
            at += len as u64;
        }
        self.next = (head + count as u16) % SIZE;
        let is_wanted = self.send.publish(&self.ram, head % SIZE, self.events());
        self.tells |= is_wanted;
        is_wanted
    }

    /// Sends a frame that is longer than a buffer, as [`Self::send_asking`]: it is over those of others.
    pub fn send_in_place(&mut self, header: Header, frame: &[u8]) {
        self.next = 0;
        self.send_asking(header, frame);
    }

    /// Where the bytes of the frame are that is sent next.
    pub fn next_frame(&self) -> u64 {
        SEND_BUFFERS + BUFFER * u64::from(self.next % SIZE) + HEADER as u64
    }

    /// A chain that may be none: its descriptors.
    pub fn send_raw(&mut self, chain: &[(u64, u32, u16, u16)]) {
        let head = self.next;
        for (nth, descriptor) in chain.iter().enumerate() {
            self.send.describe(&self.ram, (head + nth as u16) % SIZE, *descriptor);
        }
        self.next = (head + chain.len() as u16) % SIZE;
        self.send.publish(&self.ram, head % SIZE, false);
    }

    /// Takes back what was made available last, and makes it available again when the engine has looked.
    pub fn send_when_looked(&mut self) {
        let at = self.send.at.driver + 2;
        let now = self.ram.get(at, 6).try_into().unwrap();
        self.ram.put(at, &self.send.available.wrapping_sub(1).to_le_bytes());
        self.ram.tamper.set(Some((at, now)));
        self.tells = false;
    }

    /// Claims to have made so many chains available.
    pub fn claim_available(&mut self, count: u16) {
        self.ram.put(self.send.at.driver + 2, &self.send.available.wrapping_add(count).to_le_bytes());
    }

    /// Frames that are sent, since the last call.
    pub fn sent(&mut self) -> usize {
        std::iter::from_fn(|| self.send.used(&self.ram)).count()
    }

    /// What has been received since the last call; the buffers are offered again.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut left = 0;
        while let Some((index, written)) = self.receive.used(&self.ram) {
            let at = RECEIVE_BUFFERS + BUFFER * u64::from(index);
            let bytes = self.ram.get(at, written);
            if left == 0 {
                let (header, frame) = bytes.split_at(HEADER);
                let header = Header::parse(header.try_into().unwrap());
                left = header.num_buffers;
                self.headers.push(header);
                frames.push(frame.to_vec());
            } else {
                frames.last_mut().unwrap().extend(bytes);
            }
            left -= 1;
            self.receive.publish(&self.ram, index, false);
        }
        assert_eq!(left, 0);
        frames
    }

    /// Whether it wants to hear of the next frame received, and sent.
    pub fn want_signals(&mut self, received: bool, sent: bool) {
        let events = self.events();
        for (ring, wanted) in [(&self.receive, received), (&self.send, sent)] {
            if events {
                let used = self.ram.u16(ring.at.device + 2);
                let event = if wanted { used } else { used.wrapping_sub(1) };
                self.ram.put(ring.own_event(), &event.to_le_bytes());
            } else {
                self.ram.put(ring.at.driver, &u16::from(!wanted).to_le_bytes());
            }
        }
    }
}

/// A card with room for so many frames until somebody makes more.
pub struct Card {
    pub room: usize,
    pub sent: Vec<Vec<u8>>,
    pub coming: VecDeque<Vec<u8>>,
    /// It gives all that has come, however much is wanted.
    pub is_generous: bool,
    /// It finishes packets.
    pub cuts: bool,
    /// It says of all frames that their checksums are right.
    pub checks: bool,
    /// Packets that it has finished.
    pub finished: usize,
    /// Bytes of the longest frame that it carries.
    pub longest: u32,
    /// Whether it says when it has room.
    pub tells: bool,
}

impl Card {
    pub fn new(room: usize) -> Self {
        Self {
            room,
            sent: Vec::new(),
            coming: VecDeque::new(),
            is_generous: false,
            cuts: false,
            checks: false,
            finished: 0,
            longest: 1518,
            tells: true,
        }
    }
}

impl crate::Wire for Card {
    fn longest(&self) -> u32 {
        self.longest
    }

    fn tells(&self) -> bool {
        self.tells
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        assert!(frame.len() <= self.longest as usize, "too long for the wire");
        let has_room = self.room > 0;
        if has_room {
            self.room -= 1;
            self.sent.push(frame.to_vec());
        }
        has_room
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        let frames = offload.frames(len).filter(|_| self.cuts && len >= 60);
        let Some(frames) = frames else { return Given::Never };
        if frames > self.room {
            return Given::Full;
        }
        let mut packet = vec![0xee; len];
        if fill(&mut packet) {
            let sent = cut(&packet, offload);
            assert!(sent.iter().all(|frame| frame.len() <= self.longest as usize), "too long for the wire");
            assert_eq!(sent.len(), frames);
            self.room -= frames;
            self.sent.extend(sent);
            self.finished += 1;
        }
        Given::Sent
    }

    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        let count = self.coming.len().min(if self.is_generous { usize::MAX } else { most });
        self.coming.drain(..count).for_each(|frame| take(&frame, self.checks));
        count
    }

    fn flush(&mut self) {}
}
