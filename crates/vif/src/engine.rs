//! What an engine does for VIFs: a round serves the send queues that are its own.

use crate::chain::{Chain, MAX_PIECES, Memory};
use crate::directory::Directory;
use crate::frame::{Addresses, Frame};
use crate::outgoing::{Outgoing, Put, Start};
use crate::scratch::Scratch;
use crate::shared::Shared;
use crate::stream::{STREAMS, Stream};
use crate::vif::{Active, Sender};
use crate::wire::Wire;
use crate::{MAX_VIFS, VifId, VifSet};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::array;
use sluice_switch::{is_for_the_link, is_group};
use sluice_virtio::{Fault, Queue};

/// Bytes that the VIF with the greatest share may put on the wire in a turn; the others less, as their shares say.
const QUANTUM: i64 = 16 * 1024;
/// And what the engine does for it in a round, in bytes: for a turn of long frames.
const WORK: i64 = 2 * QUANTUM;
/// Bytes that the wire is busy with a frame, beside its own: preamble, CRC and gap.
const FRAMING: u32 = 24;
/// Bytes that the work for a frame counts for, beside its own, and that for a piece of memory that it is in.
const OVERHEAD: u32 = 256;
const PER_PIECE: u32 = 32;
/// And that for a frame in place of a longer one.
const PER_SEGMENT: u32 = 64;
/// Nanoseconds after which one of several engines looks again whether a full card has room: the card's word wakes but one of them.
const RETRY_NS: u64 = 20_000;

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
fn refuse<M>(vif: &mut Sender<M>) -> Sent {
    vif.counters.refused += 1;
    Sent::Done
}

/// Shows a driver what was sent. Returns whether it is to be signalled, and when there is something to do.
fn signal<M: Memory>(
    vif: &mut Sender<M>,
    queue: &Queue,
    next: Next,
    now: u64,
) -> Result<(bool, Next), Fault> {
    let (wanted, again) = vif.publish(queue, now)?;
    Ok((wanted, again.map_or(next, |at| next.min(Next::At(at)))))
}

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// It serves send queues.
    pub sends: bool,
    /// It takes frames from the wire.
    pub receives: bool,
    /// No other engine has the card.
    pub alone: bool,
}

/// An engine of a network.
pub struct Engine<M> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) duty: Duty,
    pub(crate) directory: Directory,
    /// The sending sides of VIFs that it serves.
    pub(crate) senders: [Option<Box<Sender<M>>>; MAX_VIFS],
    pub(crate) own: VifSet,
    /// VIFs that received something of it that is not published.
    pub(crate) fresh: VifSet,
    pub(crate) broken: VifSet,
    /// The VIF whose turn it is first.
    turn: u8,
    /// In this round, nobody else's turn on the wire begins.
    full: bool,
    /// Greatest share of those that wanted to send in the last round, and in this.
    heaviest: u8,
    heaviest_now: u8,
    /// A frame on its way to the wire, or from it; out of its place while it is in use.
    pub(crate) scratch: Option<Scratch>,
    /// Frames from the wire that are put together, by their receivers; none if it takes none from there.
    pub(crate) streams: Box<[Stream]>,
    /// Frames from the wire that are for nobody, claim to be a VIF's, or are none.
    pub(crate) unclaimed: u64,
}

impl<M: Memory> Engine<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>, duty: Duty) -> Self {
        let streams = if duty.receives { STREAMS } else { 0 };
        Self {
            shared,
            duty,
            directory: Directory::new(),
            senders: array::from_fn(|_| None),
            own: VifSet::default(),
            fresh: VifSet::default(),
            broken: VifSet::default(),
            turn: 0,
            full: false,
            heaviest: 1,
            heaviest_now: 1,
            scratch: Some(Scratch::new()),
            streams: (0..streams).map(|_| Stream::new()).collect(),
            unclaimed: 0,
        }
    }

    /// What it is for.
    pub fn duty(&self) -> Duty {
        self.duty
    }

    /// Whether it serves the send queue of a VIF.
    pub fn serves(&self, id: VifId) -> bool {
        self.own.contains(id)
    }

    /// Frames from the wire that went nowhere.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed
    }

    /// Serves every VIF of its own for one turn, and takes from the wire what has come, as its duty is. It is bounded: by 32 frames each.
    pub fn round(&mut self, mut wire: Option<&mut (dyn Wire + '_)>, now: u64) -> Outcome {
        let mut next = Next::Idle;
        if let Some(wire) = wire.as_deref_mut().filter(|_| self.duty.receives)
            && self.take_from(wire)
        {
            next = Next::Now;
        }
        let mut sent = VifSet::default();
        self.full = false;
        self.heaviest = core::mem::replace(&mut self.heaviest_now, 1);
        let first = self.turn;
        let order = self.live().0.rotate_right(first.into());
        for id in VifSet(order).iter() {
            let id = VifId((id.0 + first) % MAX_VIFS as u8);
            let was_full = self.full;
            let Some(mut vif) = self.senders.get_mut(id.index()).and_then(Option::take) else { continue };
            match self.serve(id, &mut vif, &mut wire, now) {
                Ok((wanted, after)) => {
                    if wanted {
                        sent.insert(id);
                    }
                    next = next.min(after);
                }
                Err(Fault) => self.break_down(id, &mut vif),
            }
            self.senders[id.index()] = Some(vif);
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

    /// VIFs of its own whose drivers are at work.
    fn live(&self) -> VifSet {
        VifSet(self.own.0 & self.shared.live().0)
    }

    /// Asks the drivers of its VIFs to tell of frames, since nobody will look after the next [round](Self::round), unless that finds some.
    pub fn doze(&mut self) {
        self.listen(true);
    }

    /// It looks again: drivers need not tell.
    pub fn wake(&mut self) {
        self.listen(false);
    }

    fn listen(&mut self, wanted: bool) {
        for id in self.live().iter() {
            let Some(mut vif) = self.senders.get_mut(id.index()).and_then(Option::take) else { continue };
            if vif.listen(wanted).is_err() {
                self.break_down(id, &mut vif);
            }
            self.senders[id.index()] = Some(vif);
        }
    }

    /// A driver broke the rules of its send queue: nothing more is done for it before it resets its device, by any engine.
    fn break_down(&mut self, id: VifId, vif: &mut Sender<M>) {
        vif.active = None;
        self.fresh.remove(id);
        let mut port = self.shared.port(id);
        if port.as_mut().is_some_and(|port| self.shared.break_down(id, port)) {
            self.broken.insert(id);
        }
    }

    /// One turn of a VIF. Returns whether its driver wants to hear of what was sent, and when there is more to do.
    fn serve(
        &mut self,
        id: VifId,
        vif: &mut Sender<M>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
        now: u64,
    ) -> Result<(bool, Next), Fault> {
        let Some(Active { send: queue, .. }) = vif.active else { return Ok((false, Next::Idle)) };
        let waiting = vif.ring.waiting(&queue, &vif.memory)?;
        if waiting == 0 {
            (vif.credit, vif.wire_credit) = (vif.credit.min(0), vif.wire_credit.min(0));
            return signal(vif, &queue, Next::Idle, now);
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
            let head = vif.ring.head(&queue, &vif.memory, 0)?;
            let before = (vif.credit, vif.wire_credit);
            let chain = Chain::read(&queue, &vif.memory, head)?;
            let sent = self.forward(id, vif, chain.as_ref(), wire)?;
            let work = before.0 - vif.credit;
            *(if vif.wire_credit < before.1 { &mut outside } else { &mut inside }) += work;
            match sent {
                Sent::Done => {}
                Sent::Full => {
                    // The card says when it has room again, and a turn that has begun goes on.
                    vif.is_waiting |= vif.wire_credit > 0;
                    next = if self.duty.alone { Next::Idle } else { Next::At(now.saturating_add(RETRY_NS)) };
                    break;
                }
                Sent::Over => break,
            }
            vif.ring.give(&queue, &vif.memory, head, 0)?;
            if let (Some(bucket), Some(chain)) = (&mut vif.bucket, chain) {
                bucket.spend(chain.len());
            }
        }
        signal(vif, &queue, next, now)
    }

    /// Brings a frame where it is to be, at its sender's expense.
    fn forward(
        &mut self,
        id: VifId,
        vif: &mut Sender<M>,
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
        let target = if is_group(to) { None } else { self.directory.find_in(to, vlan) };
        let Some(mut scratch) = self.scratch.take() else { return Ok(Sent::Done) };
        let outgoing = Outgoing { chain, start: start.frame(), plan };
        let sent = match wire {
            Some(wire) if target.is_none() => self.put_on(*wire, vif, &outgoing, &mut scratch),
            _ => Ok(Sent::Done),
        };
        if let Ok(Sent::Done) = sent {
            let work = match target {
                Some(target) => self.hand_over(target, &vif.memory, &outgoing, &mut scratch),
                None if is_group(to) => self.hand_to_all(id, vlan, &vif.memory, &outgoing, &mut scratch),
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
        vif: &mut Sender<M>,
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
            let part = (vif.progress, vif.wire_credit as u32);
            let vlan = vif.attributes.vlan;
            let (frames, bytes) = match outgoing.put_on(wire, &vif.memory, vlan, part, scratch)? {
                Put::Done { frames, bytes } => (frames, bytes),
                Put::Refused => return Ok(refuse(vif)),
                Put::Full => {
                    self.full = true;
                    return Ok(Sent::Full);
                }
            };
            vif.progress += frames;
            vif.wire_credit -= i64::from(bytes + frames * FRAMING);
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
        if let Some(frame) = outgoing.as_it_is(memory, self.directory.features(target)) {
            return Ok(self.deliver(target, &frame));
        }
        let mut work = 0;
        for nth in 0..outgoing.count() {
            outgoing.put_together(memory, nth, scratch)?;
            work += PER_SEGMENT + 2 * self.deliver(target, &Frame::plain(scratch.plain()));
        }
        Ok(work)
    }

    /// To every VIF of a VLAN but the sender. Returns how much work it was, in bytes.
    fn hand_to_all(
        &mut self,
        sender: VifId,
        vlan: Option<u16>,
        memory: &M,
        outgoing: &Outgoing<'_>,
        scratch: &mut Scratch,
    ) -> Result<u32, Fault> {
        let mut work = 0u32;
        for id in self.shared.live().iter() {
            if id == sender || !self.directory.is_in(id, vlan) {
                continue;
            }
            work = work.saturating_add(self.hand_over(id, memory, outgoing, scratch)?);
        }
        Ok(work)
    }

    /// To one VIF. Returns how much work it was, in bytes.
    pub(crate) fn deliver(&mut self, id: VifId, frame: &Frame<'_, M>) -> u32 {
        let mut port = self.shared.port(id);
        let Some(port) = port.as_mut() else { return 0 };
        let work = match port.take(frame) {
            Ok((placed, pieces)) => {
                if placed {
                    self.fresh.insert(id);
                }
                PER_PIECE * pieces
            }
            Err(Fault) => {
                if self.shared.break_down(id, port) {
                    self.broken.insert(id);
                }
                0
            }
        };
        frame.len() + work
    }

    /// Shows drivers what they received. Returns those that want to hear of it.
    fn publish(&mut self) -> VifSet {
        let mut wanted = VifSet::default();
        for id in core::mem::take(&mut self.fresh).iter() {
            let mut port = self.shared.port(id);
            let Some(port) = port.as_mut() else { continue };
            match port.publish() {
                Ok(true) => wanted.insert(id),
                Ok(false) => {}
                Err(Fault) => {
                    if self.shared.break_down(id, port) {
                        self.broken.insert(id);
                    }
                }
            }
        }
        wanted
    }
}
