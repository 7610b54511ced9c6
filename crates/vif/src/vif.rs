//! One virtual interface: what is set of it, and its sending side.

use crate::Mac;
use crate::active::Active;
use crate::card::Outbox;
use crate::chain::Memory;
use crate::filter::Filter;
use crate::frame::Addresses;
use crate::lane::Lane;
use sluice_switch::Bucket;
use sluice_virtio::Fault;

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
    /// Microseconds for which its driver does not hear of a few frames that it has sent.
    pub moderation: u16,
    /// What it may say that it is above Ethernet.
    pub filter: Filter,
}

impl Attributes {
    /// Most bytes of a frame, in either direction: a header, and the MTU.
    pub(crate) fn longest(&self) -> u32 {
        u32::from(self.mtu) + Addresses::BYTES as u32
    }
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
    /// Frames for it that found no buffers, or are too long for it.
    pub missed: u64,
    /// Frames that it sent with another's source address.
    pub forged: u64,
    /// Frames that it sent in the name of an address which is not its own.
    pub spoofed: u64,
    /// Chains that it sent and that are no such frames as a station may send.
    pub refused: u64,
    /// Times its driver broke the rules of a queue.
    pub faults: u64,
}

impl Counters {
    /// All of them, and how reports call them.
    pub const fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("tx_packets", self.sent),
            ("tx_bytes", self.sent_bytes),
            ("tx_segments", self.segments),
            ("rx_packets", self.received),
            ("rx_bytes", self.received_bytes),
            ("rx_dropped", self.missed),
            ("forged", self.forged),
            ("spoofed", self.spoofed),
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
        self.spoofed += other.spoofed;
        self.refused += other.refused;
        self.faults += other.faults;
    }
}

/// Rounds in which an engine looks at a VIF that has nothing to send, before it leaves it to the driver to tell.
pub(crate) const LOOKS: u8 = 64;

/// The sending side of a VIF: one engine serves it.
pub(crate) struct Sender<M> {
    pub attributes: Attributes,
    pub memory: M,
    /// Its driver is at work.
    pub active: Option<Active>,
    /// What it sends, if it has queues.
    pub lane: Option<Lane>,
    /// Its driver has a card in place of queues.
    pub outbox: Option<Outbox<M>>,
    /// Work that the engine may still do for it in this round, in bytes; below zero, what it did too much in the last.
    pub credit: i64,
    /// Bytes that it may still put on the wire in this turn, likewise.
    pub wire_credit: i64,
    /// It waits for the wire in the middle of its turn.
    pub is_waiting: bool,
    pub bucket: Option<Bucket>,
    /// Segments of the frame at the head of its queue that are on the wire already.
    pub progress: u32,
    /// Turns in a row in which there was nothing to do for it.
    pub idle: u8,
    signal: Signal,
    pub counters: Counters,
}

/// What its driver has heard of frames that were sent. Most drivers ask to hear of every one, and see them as well when they look at what was received: so
/// a signal waits a while, and is given if it is still wanted then.
#[derive(Clone, Copy, Debug, Default)]
struct Signal {
    /// Frames that the driver has heard of, or did not want to, modulo 65,536.
    told: u16,
    /// Until then it is not told of more, unless they are [`MANY`].
    held: Option<u64>,
}

/// Frames that a driver is told of at once: it may wait for room.
const MANY: u16 = 32;

impl<M: Memory> Sender<M> {
    /// One whose driver is not at work yet.
    pub fn new(attributes: Attributes, memory: M, outbox: Option<Outbox<M>>, now: u64) -> Self {
        let bucket = attributes.limit.map(|rate| Bucket::new(rate, now));
        Self {
            attributes,
            memory,
            active: None,
            lane: None,
            outbox,
            credit: 0,
            wire_credit: 0,
            is_waiting: false,
            bucket,
            progress: 0,
            idle: 0,
            signal: Signal::default(),
            counters: Counters::default(),
        }
    }

    /// The driver has set its queues up, or they are gone.
    pub fn activate(&mut self, active: Option<Active>) {
        self.active = active;
        self.lane = active.map(Lane::send);
        (self.credit, self.wire_credit, self.is_waiting, self.progress) = (0, 0, false, 0);
        (self.signal, self.idle) = (Signal::default(), 0);
    }

    /// Shows the driver what was sent. Returns whether it is to be signalled now, and when that is to be asked again.
    pub fn publish(&mut self, now: u64) -> Result<(bool, Option<u64>), Fault> {
        let Some(lane) = &mut self.lane else { return Ok((false, None)) };
        let Signal { told, held } = self.signal;
        let shown = lane.show(&self.memory)?;
        let untold = shown.wrapping_sub(told);
        if untold == 0 {
            return Ok((false, None));
        }
        let is_over = untold >= MANY || held.is_some_and(|until| until <= now);
        if held.is_some() && !is_over {
            return Ok((false, held));
        }
        let is_awaited = lane.is_awaited(&self.memory, told)?;
        let wait = self.attributes.moderation;
        if is_awaited && !is_over && wait != 0 {
            self.signal.held = Some(now.saturating_add(u64::from(wait) * 1000));
            return Ok((false, self.signal.held));
        }
        self.signal = Signal { told: shown, held: None };
        Ok((is_awaited, None))
    }

    /// Whether there is nothing to do for it, as in the turn before: a look at its queue, which is all that most turns are with many VIFs. A driver
    /// that breaks rules, and one that is to be left alone, have a whole turn.
    #[inline]
    pub fn stays_idle(&mut self) -> bool {
        let waits = || self.lane.as_ref().is_none_or(|lane| lane.waiting(&self.memory) != Ok(0));
        // After a turn in which there was nothing to do, it has heard of all that was sent.
        if self.idle == 0 || self.idle >= LOOKS - 1 || waits() {
            return false;
        }
        self.idle += 1;
        true
    }

    /// Says whether the driver is to tell of frames.
    pub fn listen(&self, wanted: bool) -> Result<(), Fault> {
        if let Some(outbox) = &self.outbox {
            outbox.card.listen(wanted);
        }
        self.lane.map_or(Ok(()), |lane| lane.listen(&self.memory, wanted))
    }

    /// The engine did so much work for it, in bytes.
    pub fn charge(&mut self, work: u32) {
        self.credit -= i64::from(work);
    }

    /// Most bytes of a frame that it sends.
    pub fn longest(&self) -> u32 {
        self.attributes.longest()
    }

    /// Whether it may send a frame that begins so, and what was looked at of it is all or more than its headers. Counts one that it may not.
    pub fn may_say(&mut self, frame: &[u8]) -> bool {
        let allowed = self.attributes.filter.allows(self.attributes.mac, frame);
        self.counters.spoofed += u64::from(!allowed);
        allowed
    }

    /// Whether frames for this address are its.
    pub fn has(&self, mac: Mac) -> bool {
        sluice_switch::is_same(self.attributes.mac, mac)
    }
}
