//! All VIFs of a network, and what the engine does for them.

use crate::chain::{Chain, MAX_PIECES, Memory};
use crate::frame::{Addresses, Frame};
use crate::outgoing::{Outgoing, Start};
use crate::scratch::{LONGEST, Scratch, TAG, TAGGED};
use crate::stream::{Stream, WANTED};
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
/// Streams from the wire that are put together at once.
const STREAMS: usize = 4;
/// Bytes that the work for a frame counts for, beside its own, and that for a piece of memory that it is in.
const OVERHEAD: u32 = 256;
const PER_PIECE: u32 = 32;
/// And that for a frame in place of a longer one.
const PER_SEGMENT: u32 = 64;
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
    /// It is where it is to be, or nowhere.
    Done,
    /// It has to wait for the wire.
    Full,
    /// It has to wait for its sender's next turn on the wire.
    Over,
}

/// Its sender may not send it.
fn refuse<M>(vif: &mut Vif<M>) -> Sent {
    vif.counters.refused += 1;
    Sent::Done
}

/// The VIFs of a network.
pub struct Network<M> {
    vifs: [Option<Box<Vif<M>>>; MAX_VIFS],
    /// All of them, and those whose drivers are at work.
    present: VifSet,
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
    scratch: Option<Scratch>,
    /// Frames from the wire that are put together, by their receivers.
    streams: [Stream; STREAMS],
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
            present: VifSet::default(),
            live: VifSet::default(),
            fresh: VifSet::default(),
            broken: VifSet::default(),
            turn: 0,
            full: false,
            heaviest: 1,
            heaviest_now: 1,
            scratch: Some(Scratch::new()),
            streams: array::from_fn(|_| Stream::new()),
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
        self.present.insert(VifId(index as u8));
        Some(VifId(index as u8))
    }

    /// Ends a VIF. When this returns, nothing of its guest's memory is reached any more.
    pub fn leave(&mut self, id: VifId) -> Option<Counters> {
        self.present.remove(id);
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
            let before = (vif.credit, vif.wire_credit);
            let chain = Chain::read(&queue, &vif.memory, head)?;
            let sent = self.forward(vif, chain.as_ref(), wire)?;
            let work = before.0 - vif.credit;
            *(if vif.wire_credit < before.1 { &mut outside } else { &mut inside }) += work;
            match sent {
                Sent::Done => {}
                Sent::Full => {
                    // The card says when it has room again, and a turn that has begun goes on.
                    vif.is_waiting |= vif.wire_credit > 0;
                    next = Next::Idle;
                    break;
                }
                Sent::Over => break,
            }
            vif.send.give(&queue, &vif.memory, head, 0)?;
            if let (Some(bucket), Some(chain)) = (&mut vif.bucket, chain) {
                bucket.spend(chain.len());
            }
        }
        Ok((vif.send.publish(&queue, &vif.memory)?, next))
    }

    /// Brings a frame where it is to be, at its sender's expense.
    fn forward(
        &mut self,
        vif: &mut Vif<M>,
        chain: Option<&Chain>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
    ) -> Result<Sent, Fault> {
        vif.charge(OVERHEAD + PER_PIECE * chain.map_or(MAX_PIECES as u32, Chain::pieces));
        let Some(chain) = chain.filter(|chain| chain.len() >= Addresses::BYTES as u32) else {
            return Ok(refuse(vif));
        };
        let mut start = Start::read(&vif.memory, chain)?;
        let Addresses { to, from, .. } = start.addresses();
        if is_for_the_link(start.frame(), to) || start.addresses().is_tagged() {
            return Ok(refuse(vif));
        }
        if !vif.has(from) {
            vif.counters.forged += 1;
            return Ok(Sent::Done);
        }
        // As at a bridge, what goes back where it came from goes nowhere.
        if vif.has(to) {
            return Ok(refuse(vif));
        }
        let Some(plan) = start.plan(&vif.memory, chain, vif.longest())? else {
            return Ok(refuse(vif));
        };
        let vlan = vif.attributes.vlan;
        let target = if is_group(to) { None } else { self.owner(to, vlan) };
        let Some(mut scratch) = self.scratch.take() else { return Ok(Sent::Done) };
        let outgoing = Outgoing { chain, start: start.frame(), plan };
        let sent = match wire {
            Some(wire) if target.is_none() => self.put_on(*wire, vif, &outgoing, &mut scratch),
            _ => Ok(Sent::Done),
        };
        if let Ok(Sent::Done) = sent {
            let work = match target {
                Some(target) => self.hand_over(target, &vif.memory, &outgoing, &mut scratch),
                None if is_group(to) => self.hand_to_all(vlan, &vif.memory, &outgoing, &mut scratch),
                None => Ok(0),
            };
            vif.progress = 0;
            vif.counters.sent += 1;
            vif.counters.sent_bytes += u64::from(chain.len());
            vif.counters.segments += u64::from(outgoing.count());
            vif.charge(work?);
        }
        self.scratch = Some(scratch);
        sent
    }

    /// Puts a frame on the wire, or what is left of it, with the tag of its VLAN.
    fn put_on(
        &mut self,
        wire: &mut dyn Wire,
        vif: &mut Vif<M>,
        outgoing: &Outgoing<'_>,
        scratch: &mut Scratch,
    ) -> Result<Sent, Fault> {
        while vif.progress < outgoing.count() {
            if self.full {
                return Ok(Sent::Full);
            }
            if vif.wire_credit <= 0 {
                return Ok(Sent::Over);
            }
            outgoing.put_together(&vif.memory, vif.progress, scratch)?;
            let Some(frame) = scratch.tagged(vif.attributes.vlan) else { return Ok(refuse(vif)) };
            let bytes = frame.len() as u32;
            if !wire.send(frame) {
                self.full = true;
                return Ok(Sent::Full);
            }
            vif.progress += 1;
            vif.wire_credit -= i64::from(bytes + FRAMING);
            vif.charge(bytes + PER_SEGMENT);
        }
        Ok(Sent::Done)
    }

    /// To one VIF, as its driver takes it. Returns how much work it was, in bytes.
    fn hand_over(
        &mut self,
        target: VifId,
        memory: &M,
        outgoing: &Outgoing<'_>,
        scratch: &mut Scratch,
    ) -> Result<u32, Fault> {
        if let Some(frame) = outgoing.as_it_is(memory, self.features(target)) {
            return Ok(self.deliver(target, &frame));
        }
        let mut work = 0;
        for nth in 0..outgoing.count() {
            outgoing.put_together(memory, nth, scratch)?;
            work += PER_SEGMENT + 2 * self.deliver(target, &Frame::plain(scratch.plain()));
        }
        Ok(work)
    }

    /// To every VIF of a VLAN. The sender's place is empty meanwhile. Returns how much work it was, in bytes.
    fn hand_to_all(
        &mut self,
        vlan: Option<u16>,
        memory: &M,
        outgoing: &Outgoing<'_>,
        scratch: &mut Scratch,
    ) -> Result<u32, Fault> {
        let mut work = 0u32;
        for id in self.live.iter() {
            if !self.is_in(id, vlan) {
                continue;
            }
            work = work.saturating_add(self.hand_over(id, memory, outgoing, scratch)?);
        }
        Ok(work)
    }

    /// Takes what has come from the wire, up to [`TURN`] frames. Returns how many.
    fn take_from(&mut self, wire: &mut dyn Wire) -> usize {
        let count = wire.receive(TURN, &mut |frame| {
            if !self.take_in(frame) {
                self.unclaimed += 1;
            }
        });
        (0..STREAMS).for_each(|slot| self.hand_stream(slot));
        count
    }

    /// A frame from the wire. Returns whether it is for anybody.
    fn take_in(&mut self, frame: &[u8]) -> bool {
        let Some(start) = frame.first_chunk::<{ Addresses::BYTES }>() else { return false };
        let Addresses { to, from, .. } = Addresses::of(start);
        if is_for_the_link(frame, to) || frame.len() > LONGEST || self.has(from) {
            return false;
        }
        if start[TAG..] != TAGGED {
            return self.put(to, None, frame);
        }
        let Some(&[high, low]) = frame.get(TAG + 2..TAG + 4) else { return false };
        let vlan = u16::from_be_bytes([high, low]) & 0xfff;
        // The VIF sees no tag.
        let Some(mut scratch) = self.scratch.take() else { return false };
        scratch.untag(frame);
        let claimed = self.put(to, Some(vlan).filter(|vlan| *vlan != 0), scratch.plain());
        self.scratch = Some(scratch);
        claimed
    }

    fn put(&mut self, to: Mac, vlan: Option<u16>, frame: &[u8]) -> bool {
        if is_group(to) {
            for id in self.live.iter() {
                if self.is_in(id, vlan) {
                    self.hand_stream(id.index() % STREAMS);
                    self.deliver(id, &Frame::plain(frame));
                }
            }
            return true;
        }
        let target = self.owner(to, vlan);
        target.is_some_and(|target| {
            self.put_together(target, frame);
            true
        })
    }

    /// To one VIF, together with what comes before and after it, if its driver takes that.
    fn put_together(&mut self, target: VifId, frame: &[u8]) {
        let slot = target.index() % STREAMS;
        let takes = self.features(target) & WANTED == WANTED;
        let add = |streams: &mut [Stream; STREAMS]| takes && streams[slot].add(frame, target);
        if add(&mut self.streams) {
            return;
        }
        // In the order in which they came.
        self.hand_stream(slot);
        if !add(&mut self.streams) {
            self.deliver(target, &Frame::plain(frame));
        }
    }

    /// Hands over what was put together.
    fn hand_stream(&mut self, slot: usize) {
        let mut stream = core::mem::take(&mut self.streams[slot]);
        if let Some((target, frame)) = stream.take() {
            self.deliver(target, &frame);
        }
        self.streams[slot] = stream;
    }

    /// What the driver of a VIF accepted.
    fn features(&self, id: VifId) -> u64 {
        let vif = self.vifs.get(id.index()).and_then(Option::as_ref);
        vif.and_then(|vif| vif.active).map_or(0, |active| active.features)
    }

    fn is_in(&self, id: VifId, vlan: Option<u16>) -> bool {
        self.vifs.get(id.index()).and_then(Option::as_ref).is_some_and(|vif| vif.attributes.vlan == vlan)
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
        self.with(mac).find(|(_, vif)| vif.attributes.vlan == vlan).map(|(id, _)| id)
    }

    fn has(&self, mac: Mac) -> bool {
        self.with(mac).next().is_some()
    }

    /// VIFs with this address.
    fn with(&self, mac: Mac) -> impl Iterator<Item = (VifId, &Vif<M>)> {
        let vifs = self.present.iter().filter_map(|id| Some((id, self.vifs.get(id.index())?.as_deref()?)));
        vifs.filter(move |(_, vif)| vif.has(mac))
    }
}
