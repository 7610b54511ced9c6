//! All VIFs of a network, and what the engine does for them.

use crate::chain::{Chain, MAX_PIECES, Memory};
use crate::frame::{Addresses, Frame};
use crate::vif::{Active, Attributes, Counters, Vif};
use crate::{MAX_VIFS, Mac, VifId, VifSet};
use alloc::boxed::Box;
use core::array;
use sluice_switch::{is_for_the_link, is_group};
use sluice_virtio::Fault;

/// Bytes that the VIF with the greatest share may put on the wire in a turn; the others less, as their shares say.
const QUANTUM: i64 = 16 * 1024;
/// And what the engine does for it in a round, in bytes: for a turn of long frames.
const WORK: i64 = 2 * QUANTUM;
/// Bytes that the wire is busy with a frame, beside its own: preamble, CRC and gap.
const FRAMING: u32 = 24;
/// Frames that come from the wire between two turns.
const TURN: usize = 32;
/// Bytes that the work for a frame counts for, beside its own, and that for a piece of memory that it is in.
const OVERHEAD: u32 = 256;
const PER_PIECE: u32 = 32;
/// Bytes of the longest frame of the wire, with a tag.
const LONGEST: usize = 1518;
/// Offset of a VLAN tag, and its first half.
const TAG: usize = 12;
const TAGGED: [u8; 2] = [0x81, 0x00];

/// The physical card.
pub trait Wire {
    /// Sends a frame without CRC, 14 to 1518 bytes. False: the card is busy, and tells when it is not.
    fn send(&mut self, frame: &[u8]) -> bool;

    /// Gives frames that have come, without CRC and in order, to `take`: about as many as are wanted at most. Returns how many.
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> usize;

    /// Lets the card go on with what was sent and taken.
    fn flush(&mut self);
}

/// When there is something to do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    /// At once.
    Now,
    /// At this time, in nanoseconds, or when somebody has something new.
    At(u64),
    /// When somebody has something new.
    Idle,
}

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// VIFs whose drivers are to be signalled that frames were sent.
    pub sent: VifSet,
    /// And that frames were received.
    pub received: VifSet,
    /// VIFs whose drivers broke the rules, just now.
    pub broken: VifSet,
    /// When to go on.
    pub next: Next,
}

/// What became of the frame at the head of a send queue.
enum Sent {
    /// It is where it is to be, or nowhere, for so much work, in bytes.
    Done(u32),
    /// It has to wait for the wire.
    Full,
    /// It has to wait for its sender's next turn on the wire.
    Over,
}

/// The VIFs of a network.
pub struct Network<M> {
    vifs: [Option<Box<Vif<M>>>; MAX_VIFS],
    /// VIFs whose drivers are at work.
    live: VifSet,
    /// VIFs that received something that is not published.
    fresh: VifSet,
    broken: VifSet,
    /// The VIF whose turn it is first.
    turn: u8,
    /// In this round, nobody else's turn on the wire begins.
    full: bool,
    /// Greatest share of those that wanted to send in the last round, and in this.
    heaviest: u8,
    heaviest_now: u8,
    /// A frame on its way to the wire, or from it; out of its place while it is in use.
    scratch: Option<Box<[u8; LONGEST]>>,
    /// Frames from the wire that are for nobody, claim to be a VIF's, or are none.
    unclaimed: u64,
}

impl<M: Memory> Default for Network<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Memory> Network<M> {
    /// Without VIFs.
    pub fn new() -> Self {
        Self {
            vifs: array::from_fn(|_| None),
            live: VifSet::default(),
            fresh: VifSet::default(),
            broken: VifSet::default(),
            turn: 0,
            full: false,
            heaviest: 1,
            heaviest_now: 1,
            scratch: Some(Box::new([0; LONGEST])),
            unclaimed: 0,
        }
    }

    /// Makes a VIF of a guest with this memory. `None`: there are [`MAX_VIFS`], or the address is a group's or another's.
    pub fn join(&mut self, attributes: Attributes, memory: M, now: u64) -> Option<VifId> {
        if is_group(attributes.mac) || self.vifs.iter().flatten().any(|vif| vif.has(attributes.mac)) {
            return None;
        }
        let index = self.vifs.iter().position(Option::is_none)?;
        self.vifs[index] = Some(Box::new(Vif::new(attributes, memory, now)));
        Some(VifId(index as u8))
    }

    /// Ends a VIF. When this returns, nothing of its guest's memory is reached any more.
    pub fn leave(&mut self, id: VifId) -> Option<Counters> {
        self.live.remove(id);
        self.fresh.remove(id);
        self.broken.remove(id);
        Some(self.vifs.get_mut(id.index())?.take()?.counters)
    }

    /// The driver of a VIF has set its queues up, or has let go of them. What was under way is gone. Returns false if it broke the rules.
    pub fn activate(&mut self, id: VifId, active: Option<Active>) -> bool {
        let Some(vif) = self.vifs.get_mut(id.index()).and_then(Option::as_mut) else { return true };
        let sound = vif.activate(active).is_ok();
        self.live.remove(id);
        self.fresh.remove(id);
        if active.is_some() && sound {
            self.live.insert(id);
        }
        sound
    }

    /// Sets what is set of a VIF from outside. False: the address is a group's or another's.
    pub fn set(&mut self, id: VifId, attributes: Attributes, now: u64) -> bool {
        let taken = |(index, vif): (usize, &Option<Box<Vif<M>>>)| {
            index != id.index() && vif.as_ref().is_some_and(|vif| vif.has(attributes.mac))
        };
        if is_group(attributes.mac) || self.vifs.iter().enumerate().any(taken) {
            return false;
        }
        let Some(vif) = self.vifs.get_mut(id.index()).and_then(Option::as_mut) else { return false };
        if vif.attributes.limit != attributes.limit {
            vif.bucket = attributes.limit.map(|rate| crate::bucket::Bucket::new(rate, now));
        }
        vif.attributes = attributes;
        true
    }

    /// What happened at a VIF.
    pub fn counters(&self, id: VifId) -> Option<Counters> {
        Some(self.vifs.get(id.index())?.as_ref()?.counters)
    }

    /// Frames from the wire that went nowhere.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed
    }

    /// Serves every VIF for one turn, and takes from the wire what has come. It is bounded: by [`TURN`] frames each.
    pub fn round(&mut self, mut wire: Option<&mut (dyn Wire + '_)>, now: u64) -> Outcome {
        let mut next = Next::Idle;
        if let Some(wire) = wire.as_deref_mut()
            && self.take_from(wire) >= TURN
        {
            next = Next::Now;
        }
        let mut sent = VifSet::default();
        self.full = false;
        self.heaviest = core::mem::replace(&mut self.heaviest_now, 1);
        let first = self.turn;
        let order = self.live.0.rotate_right(first.into());
        for id in VifSet(order).iter() {
            let id = VifId((id.0 + first) % MAX_VIFS as u8);
            let was_full = self.full;
            let Some(mut vif) = self.vifs.get_mut(id.index()).and_then(Option::take) else { continue };
            match self.serve(&mut vif, &mut wire, now) {
                Ok((wanted, after)) => {
                    if wanted {
                        sent.insert(id);
                    }
                    next = next.min(after);
                }
                Err(Fault) => self.break_down(id, &mut vif),
            }
            self.vifs[id.index()] = Some(vif);
            if self.full && !was_full {
                // Who waits for the wire has it first when it is free.
                self.turn = id.0;
            }
        }
        if let Some(wire) = wire {
            wire.flush();
        }
        let received = self.publish();
        Outcome { sent, received, broken: core::mem::take(&mut self.broken), next }
    }

    /// Asks all drivers to tell of frames, since nobody will look after the next [round](Self::round), unless that finds some.
    pub fn doze(&mut self) {
        self.listen(true);
    }

    /// Somebody looks again: drivers need not tell.
    pub fn wake(&mut self) {
        self.listen(false);
    }

    fn listen(&mut self, wanted: bool) {
        for id in self.live.iter() {
            let Some(mut vif) = self.vifs.get_mut(id.index()).and_then(Option::take) else { continue };
            let active = vif.active;
            let done = active.map_or(Ok(()), |active| vif.send.listen(&active.send, &vif.memory, wanted));
            if done.is_err() {
                self.break_down(id, &mut vif);
            }
            self.vifs[id.index()] = Some(vif);
        }
    }

    /// A driver broke the rules: nothing more is done for it before it resets its device.
    fn break_down(&mut self, id: VifId, vif: &mut Vif<M>) {
        vif.counters.faults += 1;
        vif.active = None;
        self.live.remove(id);
        self.fresh.remove(id);
        self.broken.insert(id);
    }

    /// One turn of a VIF. Returns whether its driver wants to hear of what was sent, and when there is more to do.
    fn serve(
        &mut self,
        vif: &mut Vif<M>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
        now: u64,
    ) -> Result<(bool, Next), Fault> {
        let Some(Active { send: queue, .. }) = vif.active else { return Ok((false, Next::Idle)) };
        let waiting = vif.send.waiting(&queue, &vif.memory)?;
        if waiting == 0 {
            (vif.credit, vif.wire_credit) = (vif.credit.min(0), vif.wire_credit.min(0));
            return Ok((false, Next::Idle));
        }
        let share = vif.attributes.share.max(1);
        self.heaviest_now = self.heaviest_now.max(share);
        let part = |of: i64| (of * i64::from(share) / i64::from(self.heaviest)).clamp(1, of);
        vif.credit = (vif.credit + part(WORK)).min(part(WORK));
        // Its turn on the wire does not begin while another's goes on.
        if !self.full && !core::mem::take(&mut vif.is_waiting) {
            vif.wire_credit = (vif.wire_credit + part(QUANTUM)).min(part(QUANTUM));
        }
        let mut next = Next::Now;
        // Work for frames that went out by the wire, and for others.
        let (mut outside, mut inside) = (0, 0);
        for _ in 0..waiting {
            if vif.credit <= 0 {
                // The wire is what it uses most: its turn there goes on in the next round, so that who sends small frames has as much of
                // it as others.
                if !self.full && vif.wire_credit > 0 && outside >= inside {
                    (vif.is_waiting, self.full) = (true, true);
                }
                break;
            }
            let ready_at = vif.bucket.as_mut().map_or(now, |bucket| bucket.ready_at(now));
            if ready_at > now {
                next = Next::At(ready_at);
                break;
            }
            let head = vif.send.head(&queue, &vif.memory, 0)?;
            let (mut len, mut work) = (0, OVERHEAD);
            let wire_credit = vif.wire_credit;
            match Chain::read(&queue, &vif.memory, head)? {
                Some(chain) if vif.may_send(chain.len()) => match self.forward(vif, &chain, wire)? {
                    Sent::Done(more) => (len, work) = (chain.len(), work + more),
                    Sent::Full => {
                        // The card says when it has room again, and a turn that has begun goes on.
                        vif.is_waiting |= vif.wire_credit > 0;
                        next = Next::Idle;
                        break;
                    }
                    Sent::Over => break,
                },
                _ => {
                    (vif.counters.refused, work) =
                        (vif.counters.refused + 1, OVERHEAD + PER_PIECE * MAX_PIECES as u32)
                }
            }
            vif.send.give(&queue, &vif.memory, head, 0)?;
            vif.credit -= i64::from(work);
            *(if vif.wire_credit < wire_credit { &mut outside } else { &mut inside }) += work;
            if let Some(bucket) = &mut vif.bucket {
                bucket.spend(len);
            }
        }
        Ok((vif.send.publish(&queue, &vif.memory)?, next))
    }

    /// Brings a frame where it is to be.
    fn forward(
        &mut self,
        vif: &mut Vif<M>,
        chain: &Chain,
        wire: &mut Option<&mut (dyn Wire + '_)>,
    ) -> Result<Sent, Fault> {
        let mut start = [0; Addresses::BYTES];
        chain.start(&vif.memory, &mut start)?;
        let Addresses { to, from } = Addresses::of(&start);
        if is_for_the_link(&start, to) {
            vif.counters.refused += 1;
            return Ok(Sent::Done(0));
        }
        if !vif.has(from) {
            vif.counters.forged += 1;
            return Ok(Sent::Done(0));
        }
        // As at a bridge, what goes back where it came from goes nowhere.
        if vif.has(to) {
            vif.counters.refused += 1;
            return Ok(Sent::Done(0));
        }
        let vlan = vif.attributes.vlan;
        let target = if is_group(to) { None } else { self.owner(to, vlan) };
        let mut work = PER_PIECE * chain.pieces();
        if target.is_none()
            && let Some(wire) = wire
        {
            if self.full {
                return Ok(Sent::Full);
            }
            if vif.wire_credit <= 0 {
                return Ok(Sent::Over);
            }
            if !self.put_on(*wire, vif, chain, &start)? {
                self.full = true;
                return Ok(Sent::Full);
            }
            vif.wire_credit -= i64::from(chain.len() + FRAMING);
            work += chain.len();
        }
        let frame = Frame { start: &start, rest: Some((&vif.memory, chain)) };
        work += match target {
            Some(target) => self.deliver(target, &frame),
            None if is_group(to) => self.deliver_all(vlan, &frame),
            None => 0,
        };
        vif.counters.sent += 1;
        vif.counters.sent_bytes += u64::from(chain.len());
        Ok(Sent::Done(work))
    }

    /// Puts a frame on the wire, with the tag of its VLAN. False: it has to wait.
    fn put_on(
        &mut self,
        wire: &mut dyn Wire,
        vif: &mut Vif<M>,
        chain: &Chain,
        start: &[u8; Addresses::BYTES],
    ) -> Result<bool, Fault> {
        let tag = if vif.attributes.vlan.is_some() { 4 } else { 0 };
        let len = chain.len() as usize;
        let Some(frame) = self.scratch.as_deref_mut().and_then(|scratch| scratch.get_mut(..len + tag)) else {
            vif.counters.refused += 1;
            return Ok(true);
        };
        chain.start(&vif.memory, &mut frame[tag..])?;
        frame[tag..tag + Addresses::BYTES].copy_from_slice(start);
        if let Some(vlan) = vif.attributes.vlan {
            frame.copy_within(tag..tag + TAG, 0);
            frame[TAG..TAG + 2].copy_from_slice(&TAGGED);
            frame[TAG + 2..TAG + 4].copy_from_slice(&vlan.to_be_bytes());
        }
        Ok(wire.send(frame))
    }

    /// Takes what has come from the wire, up to [`TURN`] frames. Returns how many.
    fn take_from(&mut self, wire: &mut dyn Wire) -> usize {
        wire.receive(TURN, &mut |frame| {
            if !self.from_wire(frame) {
                self.unclaimed += 1;
            }
        })
    }

    /// A frame from the wire. Returns whether it is for anybody.
    fn from_wire(&mut self, frame: &[u8]) -> bool {
        let Some(start) = frame.first_chunk::<{ Addresses::BYTES }>() else { return false };
        let Addresses { to, from } = Addresses::of(start);
        if is_for_the_link(frame, to) || frame.len() > LONGEST || self.has(from) {
            return false;
        }
        if start[TAG..] != TAGGED {
            return self.put(to, None, &Frame { start: frame, rest: None });
        }
        let Some(&[high, low]) = frame.get(TAG + 2..TAG + 4) else { return false };
        let vlan = u16::from_be_bytes([high, low]) & 0xfff;
        // The VIF sees no tag.
        let Some(mut scratch) = self.scratch.take() else { return false };
        let len = frame.len() - 4;
        scratch[..TAG].copy_from_slice(&frame[..TAG]);
        scratch[TAG..len].copy_from_slice(&frame[TAG + 4..]);
        let claimed =
            self.put(to, Some(vlan).filter(|vlan| *vlan != 0), &Frame { start: &scratch[..len], rest: None });
        self.scratch = Some(scratch);
        claimed
    }

    fn put(&mut self, to: Mac, vlan: Option<u16>, frame: &Frame<'_, M>) -> bool {
        if is_group(to) {
            self.deliver_all(vlan, frame);
            return true;
        }
        let target = self.owner(to, vlan);
        target.is_some_and(|target| {
            self.deliver(target, frame);
            true
        })
    }

    /// To every VIF of a VLAN. The sender's place is empty meanwhile. Returns how much work it was, in bytes.
    fn deliver_all(&mut self, vlan: Option<u16>, frame: &Frame<'_, M>) -> u32 {
        let mut work = 0u32;
        for id in self.live.iter() {
            let vif = self.vifs.get(id.index()).and_then(Option::as_ref);
            if vif.is_some_and(|vif| vif.attributes.vlan == vlan) {
                work = work.saturating_add(self.deliver(id, frame));
            }
        }
        work
    }

    /// To one VIF. Returns how much work it was, in bytes.
    fn deliver(&mut self, id: VifId, frame: &Frame<'_, M>) -> u32 {
        let Some(mut vif) = self.vifs.get_mut(id.index()).and_then(Option::take) else { return 0 };
        let work = match vif.take(frame) {
            Ok((placed, pieces)) => {
                if placed {
                    self.fresh.insert(id);
                }
                PER_PIECE * pieces
            }
            Err(Fault) => {
                self.break_down(id, &mut vif);
                0
            }
        };
        self.vifs[id.index()] = Some(vif);
        frame.len() + work
    }

    /// Shows drivers what they received. Returns those that want to hear of it.
    fn publish(&mut self) -> VifSet {
        let mut wanted = VifSet::default();
        for id in core::mem::take(&mut self.fresh).iter() {
            let Some(mut vif) = self.vifs.get_mut(id.index()).and_then(Option::take) else { continue };
            match vif.publish_received() {
                Ok(true) => wanted.insert(id),
                Ok(false) => {}
                Err(Fault) => self.break_down(id, &mut vif),
            }
            self.vifs[id.index()] = Some(vif);
        }
        wanted
    }

    /// The VIF of a VLAN with this address. The sender's place is empty meanwhile.
    fn owner(&self, mac: Mac, vlan: Option<u16>) -> Option<VifId> {
        let has = |vif: &Option<Box<Vif<M>>>| {
            vif.as_ref().is_some_and(|vif| vif.has(mac) && vif.attributes.vlan == vlan)
        };
        self.vifs.iter().position(has).map(|index| VifId(index as u8))
    }

    fn has(&self, mac: Mac) -> bool {
        self.vifs.iter().flatten().any(|vif| vif.has(mac))
    }
}
