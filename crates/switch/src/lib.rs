//! A small Ethernet switch: guests on its ports, a physical card on its uplink.
//!
//! Key types: [`Switch`], [`PortId`], [`Verdict`]. Neighbours: `sluice_emulated` puts software cards on the ports and
//! `sluice_uplink` drives the card behind the uplink. Nothing is allocated but when a port is attached.
//!
//! The switch knows its stations instead of learning them. Each port has the one address that the configuration gives
//! its guest; a frame with another source address is dropped and counted, so there is nothing that a guest could
//! teach, and a flood of addresses finds no table to fill. A unicast address that no port has can only be beyond the
//! uplink. So frames reach:
//!
//! | destination | from a port | from the uplink |
//! |---|---|---|
//! | group (broadcast, multicast) | all other ports and the uplink | all ports |
//! | a port's address | that port only | that port only |
//! | any other | the uplink only | nobody |
//! | reserved (802.1D, or MAC control) | nobody | nobody |
//!
//! Queues are bounded, one in each direction per port: a guest that does not take its frames loses its own, and one
//! that sends more than the wire takes fills its own. Ports take turns on the wire, as many bytes each as the longest frame
//! has, times their weight. The wire can be [limited](Switch::limit): then it is what the limit leaves that they share.
//!
//! Source: IEEE 802.1D-2004, 7.5-7.9 (filtering, relay) and 7.12.6 (reserved addresses); IEEE 802.3, 31 (MAC control).
//! Deviations: no learning and no spanning tree; source addresses of ports are checked.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bucket;
mod queue;

use alloc::boxed::Box;
use core::array;
use queue::Queue;

pub use bucket::Bucket;

/// Most ports.
pub const MAX_PORTS: usize = u16::BITS as usize;
/// Bytes of the shortest frame: addresses and type. Cards pad what they send.
pub const MIN_FRAME: usize = 14;
/// Bytes of the longest frame, without CRC: with a VLAN tag.
pub const MAX_FRAME: usize = 1518;
/// Frames that wait for a guest. What a window of TCP sends while a guest is not scheduled should fit.
pub const INBOX: usize = 64;
/// Frames of one guest that wait for the wire.
pub const OUTBOX: usize = 32;
/// Shortest time in nanoseconds for which a limit holds frames back: it is not looked at for every frame of a fast wire.
const GRAIN_NS: u64 = 100_000;

/// A station address.
pub type Mac = [u8; 6];

/// A port of one switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u8);

impl PortId {
    /// The number of the port, below [`MAX_PORTS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its bit in a mask.
    pub const fn bit(self) -> u16 {
        1 << (self.0 & 15)
    }

    /// The port with a number.
    pub const fn from_index(index: usize) -> Option<Self> {
        if index < MAX_PORTS { Some(Self(index as u8)) } else { None }
    }
}

/// Why a port cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// All ports are taken.
    Full,
    /// Another port has the address, or it is a group's.
    Address,
}

/// What became of a frame that a port sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On its way to whom it is for, as far as they have room.
    Forwarded,
    /// Its source address is not the port's. Dropped.
    Forged,
    /// Too short, too long, or for the link itself, which is not the guest's. Dropped.
    Refused,
}

/// Who a frame from the wire is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The guest at a port.
    One(PortId),
    /// All of them.
    All,
}

/// What happened at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent and forwarded.
    pub sent: u64,
    /// Frames sent with another's source address.
    pub forged: u64,
    /// Frames sent that are no such frames as a station may send.
    pub refused: u64,
    /// Frames that found no room on the way to the wire.
    pub dropped_out: u64,
    /// Frames that found no room on the way to the guest.
    pub dropped_in: u64,
}

#[derive(Debug)]
struct Port {
    inbox: Queue<INBOX>,
    outbox: Queue<OUTBOX>,
    weight: u8,
    /// Bytes that it may still send in this turn; below zero, what it sent too much in its last.
    credit: isize,
    counters: Counters,
}

/// What came from beyond the uplink and went nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkCounters {
    /// Frames for an address that no port has.
    pub unclaimed: u64,
    /// Frames that claim to come from a port: a loop, or a station outside with a guest's address.
    pub forged: u64,
    /// Frames that no station may send, too short or too long.
    pub refused: u64,
}

/// The switch.
#[derive(Debug)]
pub struct Switch {
    ports: [Option<Box<Port>>; MAX_PORTS],
    /// Their addresses as numbers; [`NOBODY`] where none is attached.
    macs: [u64; MAX_PORTS],
    /// Those that are attached, by bit, and how many there are up to the last one.
    attached: u16,
    span: usize,
    /// Ports with frames in their inbox, by bit.
    waiting: u16,
    /// Ports with frames in their outbox, by bit.
    sending: u16,
    /// The port whose turn it is on the wire.
    turn: u8,
    /// It has begun.
    begun: bool,
    /// What the wire is limited to.
    limit: Option<Bucket>,
    /// Until then the limit holds back what waits, in nanoseconds.
    held_until: Option<u64>,
    uplink: UplinkCounters,
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

/// Destination and source.
fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let (to, rest) = frame.split_first_chunk::<6>()?;
    Some((*to, *rest.first_chunk::<6>()?))
}

/// No address as a number.
const NOBODY: u64 = u64::MAX;

/// An address as a number.
const fn number([a0, a1, a2, a3, a4, a5]: Mac) -> u64 {
    u64::from_le_bytes([a0, a1, a2, a3, a4, a5, 0, 0])
}

/// Whether two addresses are the same, without a call.
pub const fn is_same(one: Mac, other: Mac) -> bool {
    number(one) == number(other)
}

/// Whether an address is a group's.
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// The frame stays on its link: to 01-80-C2-00-00-00 to 0F, which no bridge forwards, or MAC control, such as a PAUSE.
pub fn is_for_the_link(frame: &[u8], to: Mac) -> bool {
    const MAC_CONTROL: [u8; 2] = [0x88, 0x08];
    matches!(to, [0x01, 0x80, 0xc2, 0, 0, last] if last < 0x10) || frame.get(12..14) == Some(&MAC_CONTROL)
}

fn is_sound(frame: &[u8], to: Mac) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&frame.len()) && !is_for_the_link(frame, to)
}

impl Switch {
    /// No ports.
    pub fn new() -> Self {
        Self {
            ports: array::from_fn(|_| None),
            macs: [NOBODY; MAX_PORTS],
            attached: 0,
            span: 0,
            waiting: 0,
            sending: 0,
            turn: 0,
            begun: false,
            limit: None,
            held_until: None,
            uplink: UplinkCounters::default(),
        }
    }

    /// Adds a port for the station with this address. Allocates its queues, about 150 KiB.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&mut self, mac: Mac) -> Result<PortId, AttachError> {
        if is_group(mac) || self.owner(mac).is_some() {
            return Err(AttachError::Address);
        }
        let index = self.ports.iter().position(Option::is_none).ok_or(AttachError::Full)?;
        let port = PortId::from_index(index).ok_or(AttachError::Full)?;
        let (inbox, outbox) = (Queue::new(), Queue::new());
        let fresh = Port { inbox, outbox, weight: 1, credit: 0, counters: Counters::default() };
        *self.ports.get_mut(index).ok_or(AttachError::Full)? = Some(Box::new(fresh));
        self.macs[port.index()] = number(mac);
        self.set_attached(self.attached | port.bit());
        Ok(port)
    }

    /// For how many times as much as one of weight 1 this port has the wire when several want it; 1 to begin with, never
    /// less.
    pub fn set_weight(&mut self, port: PortId, weight: u8) {
        if let Some(port) = self.port_mut(port) {
            port.weight = weight.max(1);
        }
    }

    /// Limits what goes to the wire from `now` on, in nanoseconds, to so many bits per second, counted from destination to payload. It may
    /// be ahead by what it takes in four milliseconds.
    pub fn limit(&mut self, rate: u64, now: u64) {
        self.limit = Some(Bucket::new(rate, now));
    }

    /// The wire is [limited](Self::limit).
    pub const fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether the limit lets the [next frame](Self::outbox) go at `now`, in nanoseconds.
    pub fn may_send(&mut self, now: u64) -> bool {
        let Some(bucket) = &mut self.limit else { return true };
        let ready_at = bucket.ready_at(now);
        self.held_until = (ready_at > now).then(|| ready_at.max(now.saturating_add(GRAIN_NS)));
        self.held_until.is_none()
    }

    /// When to ask [`Self::may_send`] again, if the limit holds something back.
    pub fn held_until(&self) -> Option<u64> {
        self.held_until.filter(|_| self.sending != 0)
    }

    /// Removes a port and all that waits at it.
    pub fn detach(&mut self, port: PortId) {
        self.set_attached(self.attached & !port.bit());
        self.waiting &= !port.bit();
        self.sending &= !port.bit();
        if let Some(slot) = self.ports.get_mut(port.index()) {
            *slot = None;
            self.macs[port.index()] = NOBODY;
        }
    }

    /// No port is attached.
    pub const fn is_empty(&self) -> bool {
        self.attached == 0
    }

    /// How many ports there are up to the last one that is attached.
    pub const fn span(&self) -> usize {
        self.span
    }

    const fn set_attached(&mut self, ports: u16) {
        (self.attached, self.span) = (ports, MAX_PORTS - ports.leading_zeros() as usize);
    }

    /// The port that has an address.
    pub fn owner(&self, mac: Mac) -> Option<PortId> {
        let wanted = number(mac);
        let index = self.macs.iter().take(self.span()).position(|mac| *mac == wanted)?;
        PortId::from_index(index)
    }

    /// It is the address of the guest at this port.
    fn is_own(&self, port: PortId, mac: Mac) -> bool {
        self.macs.get(port.index()) == Some(&number(mac))
    }

    /// A frame from the guest at a port.
    pub fn send(&mut self, from: PortId, frame: &[u8]) -> Verdict {
        let (to, source) = addresses(frame).unwrap_or_default();
        let is_its_own = self.is_own(from, source);
        let Some(port) = self.port_mut(from) else { return Verdict::Refused };
        if !is_sound(frame, to) {
            port.counters.refused += 1;
            return Verdict::Refused;
        }
        if !is_its_own {
            port.counters.forged += 1;
            return Verdict::Forged;
        }
        port.counters.sent += 1;
        let target = if is_group(to) { None } else { self.owner(to) };
        if is_group(to) || target.is_none() {
            self.put_outbox(from, frame);
        }
        self.put_inboxes(Some(from), to, target, (frame, None));
        Verdict::Forwarded
    }

    /// Nobody's frames wait for the wire, and none has to.
    pub const fn is_wire_free(&self) -> bool {
        self.sending == 0 && !self.is_limited()
    }

    /// A frame that begins so, of a port, is for the wire alone. Its length is the caller's to check.
    pub fn goes_straight(&self, from: PortId, head: &[u8; MIN_FRAME]) -> bool {
        let (to, source) = addresses(head).unwrap_or_default();
        self.is_own(from, source) && !is_group(to) && !is_for_the_link(head, to) && self.owner(to).is_none()
    }

    /// Frames of a port went to the wire without having waited here.
    pub fn count_straight(&mut self, from: PortId, frames: u64) {
        if let Some(port) = self.port_mut(from) {
            port.counters.sent += frames;
        }
    }

    /// A frame from the wire, of which nobody has told the check sequence: [`Self::sort`] and [`Self::keep`]. Returns whether it is for
    /// anybody.
    pub fn receive(&mut self, frame: &[u8]) -> bool {
        let target = self.sort(frame);
        if let Some(target) = target {
            self.keep(target, frame, None);
        }
        target.is_some()
    }

    /// Who a frame from the wire is for. What is for nobody is counted.
    pub fn sort(&mut self, frame: &[u8]) -> Option<Target> {
        let (to, source) = addresses(frame).unwrap_or_default();
        if !is_sound(frame, to) {
            self.uplink.refused += 1;
            return None;
        }
        if self.owner(source).is_some() {
            self.uplink.forged += 1;
            return None;
        }
        let target = if is_group(to) { Some(Target::All) } else { self.owner(to).map(Target::One) };
        if target.is_none() {
            self.uplink.unclaimed += 1;
        }
        target
    }

    /// Has a frame from the wire wait for who it is for, with its check sequence if the card told.
    pub fn keep(&mut self, target: Target, frame: &[u8], fcs: Option<u32>) {
        let to = frame.first_chunk().copied().unwrap_or_default();
        let port = match target {
            Target::One(port) => Some(port),
            Target::All => None,
        };
        self.put_inboxes(None, to, port, (frame, fcs));
    }

    /// Nothing waits for the guest at a port.
    pub const fn is_inbox_empty(&self, port: PortId) -> bool {
        self.waiting & port.bit() == 0
    }

    /// The next frame for the guest at a port.
    pub fn inbox(&self, port: PortId) -> Option<&[u8]> {
        self.inbox_with_fcs(port).map(|(frame, _)| frame)
    }

    /// The same, with its check sequence if that is known: a guest's frame has none yet.
    pub fn inbox_with_fcs(&self, port: PortId) -> Option<(&[u8], Option<u32>)> {
        self.port(port)?.inbox.first()
    }

    /// The guest has taken it, or does not want it.
    pub fn pop_inbox(&mut self, id: PortId) {
        let Some(port) = self.port_mut(id) else { return };
        port.inbox.pop();
        if port.inbox.is_empty() {
            self.waiting &= !id.bit();
        }
    }

    /// Ports with frames for their guests, by [`PortId::bit`].
    pub const fn waiting(&self) -> u16 {
        self.waiting
    }

    /// Whether the guest at a port can send another frame to the wire without losing it.
    pub fn has_room(&self, port: PortId) -> bool {
        self.port(port).is_none_or(|port| !port.outbox.is_full())
    }

    /// The next frame for the wire.
    pub fn outbox(&self) -> Option<&[u8]> {
        self.port(self.next_turn()?)?.outbox.first().map(|(frame, _)| frame)
    }

    /// The wire has taken it.
    pub fn pop_outbox(&mut self) {
        let Some(id) = self.next_turn() else { return };
        let begins = !self.begun || id.0 != self.turn;
        let Self { ports, limit, .. } = self;
        let Some(port) = ports.get_mut(id.index()).and_then(Option::as_deref_mut) else { return };
        if begins {
            port.credit += MAX_FRAME as isize * isize::from(port.weight);
        }
        let len = port.outbox.first().map_or(0, |(frame, _)| frame.len());
        if let Some(bucket) = limit {
            bucket.spend(len as u32);
        }
        port.credit -= len as isize;
        port.outbox.pop();
        if port.outbox.is_empty() {
            // What was not used is not kept.
            port.credit = port.credit.min(0);
        }
        let (begun, empty) = (port.credit > 0, port.outbox.is_empty());
        self.begun = begun;
        if empty {
            self.sending &= !id.bit();
        }
        self.turn = if self.begun { id.0 } else { (id.0 + 1) % MAX_PORTS as u8 };
    }

    /// Counters of a port.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        Some(self.port(port)?.counters)
    }

    /// Counters of the uplink.
    pub const fn uplink_counters(&self) -> UplinkCounters {
        self.uplink
    }

    fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(id.index())?.as_deref()
    }

    fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(id.index())?.as_deref_mut()
    }

    /// The first port from the one whose turn it is that has something for the wire.
    const fn next_turn(&self) -> Option<PortId> {
        let from = self.turn as u32;
        let ahead = self.sending.rotate_right(from).trailing_zeros();
        if self.sending == 0 { None } else { PortId::from_index((from + ahead) as usize % MAX_PORTS) }
    }

    fn put_outbox(&mut self, from: PortId, frame: &[u8]) {
        let Some(port) = self.port_mut(from) else { return };
        if port.outbox.push(frame, None) {
            self.sending |= from.bit();
        } else {
            port.counters.dropped_out += 1;
        }
    }

    /// A frame to `target`, or to all but `from` if it is for a group.
    fn put_inboxes(
        &mut self,
        from: Option<PortId>,
        to: Mac,
        target: Option<PortId>,
        (frame, fcs): (&[u8], Option<u32>),
    ) {
        for index in 0..self.span() {
            let Some(id) = PortId::from_index(index) else { break };
            let wanted = is_group(to) || target == Some(id);
            if !wanted || from == Some(id) {
                continue;
            }
            let Some(port) = self.ports.get_mut(index).and_then(Option::as_deref_mut) else { continue };
            if port.inbox.push(frame, fcs) {
                self.waiting |= id.bit();
            } else {
                port.counters.dropped_in += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
