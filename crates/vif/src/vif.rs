//! One virtual interface.

use crate::bucket::Bucket;
use crate::chain::Memory;
use crate::frame::{Addresses, Frame};
use crate::offload::Header;
use crate::{Mac, feature};
use arrayvec::ArrayVec;
use sluice_virtio::{Buffer, Fault, Queue, Ring, buffers};

/// Most pieces of memory that a frame is spread over: a driver that offers smaller ones would have others wait.
const MAX_PIECES: usize = 64;

/// What is set of a VIF from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its station address, the only one that it may send from.
    pub mac: Mac,
    /// How many times as much as one of share 1 it may send when several want to; at least 1.
    pub share: u8,
    /// Most bits per second that it sends.
    pub limit: Option<u64>,
    /// The VLAN that it is in, 1-4094: it sees no tags.
    pub vlan: Option<u16>,
    /// Most bytes of a frame after its header.
    pub mtu: u16,
}

/// What the driver of a VIF has set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Where its queues are: [`crate::RECEIVE`] and [`crate::SEND`].
    pub receive: Queue,
    /// See [`Self::receive`].
    pub send: Queue,
    /// What it accepted of [`crate::FEATURES`].
    pub features: u64,
}

/// What happened at a VIF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that it sent, and that went on.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// What they are on a wire: a frame that was to be segmented is several.
    pub segments: u64,
    /// Frames that were put into its memory.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Frames for it that found no buffers.
    pub missed: u64,
    /// Frames that it sent with another's source address.
    pub forged: u64,
    /// Chains that it sent and that are no such frames as a station may send.
    pub refused: u64,
    /// Times its driver broke the rules of a queue.
    pub faults: u64,
}

impl Counters {
    /// All of them, and how reports call them.
    pub const fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("tx_packets", self.sent),
            ("tx_bytes", self.sent_bytes),
            ("tx_segments", self.segments),
            ("rx_packets", self.received),
            ("rx_bytes", self.received_bytes),
            ("rx_dropped", self.missed),
            ("forged", self.forged),
            ("refused", self.refused),
            ("faults", self.faults),
        ]
    }
}

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.segments += other.segments;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.missed += other.missed;
        self.forged += other.forged;
        self.refused += other.refused;
        self.faults += other.faults;
    }
}

/// A VIF.
pub(crate) struct Vif<M> {
    pub attributes: Attributes,
    pub memory: M,
    /// Its driver is at work.
    pub active: Option<Active>,
    pub send: Ring,
    pub receive: Ring,
    /// Work that the engine may still do for it in this round, in bytes; below zero, what it did too much in the last.
    pub credit: i64,
    /// Bytes that it may still put on the wire in this turn, likewise.
    pub wire_credit: i64,
    /// It waits for the wire in the middle of its turn.
    pub is_waiting: bool,
    pub bucket: Option<Bucket>,
    /// Segments of the frame at the head of its queue that are on the wire already.
    pub progress: u32,
    pub counters: Counters,
}

impl<M: Memory> Vif<M> {
    /// One whose driver is not at work yet.
    pub fn new(attributes: Attributes, memory: M, now: u64) -> Self {
        let bucket = attributes.limit.map(|rate| Bucket::new(rate, now));
        let (active, counters) = (None, Counters::default());
        let (send, receive) = (Ring::default(), Ring::default());
        Self {
            attributes,
            memory,
            active,
            send,
            receive,
            credit: 0,
            wire_credit: 0,
            is_waiting: false,
            bucket,
            progress: 0,
            counters,
        }
    }

    /// The driver has set its queues up, or they are gone.
    pub fn activate(&mut self, active: Option<Active>) -> Result<(), Fault> {
        if self.active == active {
            return Ok(());
        }
        self.active = active;
        let events = active.is_some_and(|active| active.features & feature::EVENT_INDICES != 0);
        (self.send, self.receive) = (Ring::new(events), Ring::new(events));
        (self.credit, self.wire_credit, self.is_waiting, self.progress) = (0, 0, false, 0);
        // Buffers to receive into are looked for when there is a frame.
        active.map_or(Ok(()), |active| self.receive.listen(&active.receive, &self.memory, false))
    }

    /// Puts a frame into its memory. Returns whether there were buffers for it, and how many pieces of memory were looked at; the driver sees
    /// the frame once that is published.
    pub fn take(&mut self, frame: &Frame<'_, M>) -> Result<(bool, u32), Fault> {
        let Some(active) = self.active else { return Ok((false, 0)) };
        let queue = &active.receive;
        let waiting = self.receive.waiting(queue, &self.memory)?;
        let most = if active.features & feature::MERGEABLE != 0 { MAX_PIECES } else { 1 };
        // What is given back for the frame: nothing, before it is known to fit.
        let mut used = ArrayVec::<(u16, u32), MAX_PIECES>::new();
        let mut header_at = None;
        let (mut done, mut pieces) = (0, 0);
        'buffers: for after in 0..waiting.min(most as u16) {
            let head = self.receive.head(queue, &self.memory, after)?;
            let mut written = 0;
            for buffer in buffers(queue, &self.memory, head) {
                let Buffer { mut address, mut len, writable } = buffer?;
                if !writable {
                    return Err(Fault);
                }
                if pieces == MAX_PIECES as u32 {
                    break 'buffers;
                }
                pieces += 1;
                if header_at.is_none() {
                    len = len.checked_sub(Header::BYTES as u32).ok_or(Fault)?;
                    header_at = Some(address);
                    address = address.checked_add(Header::BYTES as u64).ok_or(Fault)?;
                    written = Header::BYTES as u32;
                }
                let part = len.min(frame.len() - done);
                frame.copy(done, &self.memory, address, part)?;
                (done, written) = (done + part, written + part);
                if done == frame.len() {
                    break;
                }
            }
            // A buffer without room would be taken for ever.
            if written == 0 {
                return Err(Fault);
            }
            let _ = used.try_push((head, written));
            if done == frame.len() {
                break;
            }
        }
        let Some(header_at) = header_at.filter(|_| done == frame.len()) else {
            self.counters.missed += 1;
            return Ok((false, pieces));
        };
        let header = Header { num_buffers: used.len() as u16, ..frame.header };
        sluice_virtio::Memory::write(&self.memory, header_at, &header.bytes())?;
        for (head, written) in used {
            self.receive.give(queue, &self.memory, head, written)?;
        }
        self.counters.received += 1;
        self.counters.received_bytes += u64::from(frame.len());
        Ok((true, pieces))
    }

    /// Shows the driver what was received. Returns whether it wants to hear of it.
    pub fn publish_received(&mut self) -> Result<bool, Fault> {
        self.active.map_or(Ok(false), |active| self.receive.publish(&active.receive, &self.memory))
    }

    /// The engine did so much work for it, in bytes.
    pub fn charge(&mut self, work: u32) {
        self.credit -= i64::from(work);
    }

    /// Most bytes of a frame that it sends: a header, and the MTU.
    pub fn longest(&self) -> u32 {
        u32::from(self.attributes.mtu) + Addresses::BYTES as u32
    }

    /// Whether frames for this address are its.
    pub fn has(&self, mac: Mac) -> bool {
        sluice_switch::is_same(self.attributes.mac, mac)
    }
}
