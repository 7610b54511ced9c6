//! What an engine does for VIFs: a round serves the send queues that are its own.

use crate::card::Outbox;
use crate::chain::{Chain, Memory};
use crate::directory::Directory;
use crate::lane::Lane;
use crate::scratch::Scratch;
use crate::shared::Shared;
use crate::stream::{STREAMS, Stream};
use crate::turn::{OVERHEAD, Sent, Turn};
use crate::vif::{LOOKS, Sender};
use crate::wire::Wire;
use crate::{MAX_VIFS, VifId, VifSet};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::array;
use sluice_nic::e1000::Transmission;
use sluice_virtio::Fault;

/// Bytes that the VIF with the greatest share may put on the wire in a turn; the others less, as their shares say.
const QUANTUM: i64 = 16 * 1024;
/// And what the engine does for it in a round, in bytes: for a turn of long frames.
const WORK: i64 = 2 * QUANTUM;
/// Nanoseconds after which an engine looks again whether a full card has room that does not tell it.
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

/// Most frames and packets of a card's that are sent in a turn.
const TURN: u32 = 32;

/// Shows a driver what was sent. Returns whether it is to be signalled, and when there is something to do.
fn signal<M: Memory>(vif: &mut Sender<M>, next: Next, now: u64) -> Result<(bool, Next), Fault> {
    let (wanted, again) = vif.publish(now)?;
    Ok((wanted, again.map_or(next, |at| next.min(Next::At(at)))))
}

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// It serves send queues.
    pub sends: bool,
    /// It takes frames from the wire.
    pub receives: bool,
}

/// An engine of a network.
pub struct Engine<M> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) duty: Duty,
    pub(crate) directory: Directory,
    /// The sending sides of VIFs that it serves.
    pub(crate) senders: [Option<Box<Sender<M>>>; MAX_VIFS],
    pub(crate) own: VifSet,
    /// Of these, those that it looks at in each round. The others have had nothing to send for long, and their drivers tell of frames.
    pub(crate) awake: VifSet,
    /// Nobody will look soon: all drivers are to tell.
    pub(crate) dozes: bool,
    /// VIFs that received something of it that is not published.
    pub(crate) fresh: VifSet,
    pub(crate) broken: VifSet,
    /// The VIF whose turn it is first.
    turn: u8,
    /// The card tells it when it has room.
    is_told: bool,
    /// In this round, nobody else's turn on the wire begins.
    pub(crate) full: bool,
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
            awake: VifSet::default(),
            dozes: false,
            fresh: VifSet::default(),
            broken: VifSet::default(),
            turn: 0,
            is_told: false,
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
        self.is_told = wire.as_ref().is_some_and(|wire| wire.tells());
        self.full = false;
        self.heaviest = core::mem::replace(&mut self.heaviest_now, 1);
        let first = self.turn;
        let order = self.looked_at().0.rotate_right(first.into());
        for id in VifSet(order).iter() {
            let id = VifId((id.0 + first) % MAX_VIFS as u8);
            let was_full = self.full;
            let Some(place) = self.senders.get_mut(id.index()) else { continue };
            if place.as_mut().is_some_and(|vif| vif.stays_idle()) {
                continue;
            }
            let Some(mut vif) = place.take() else { continue };
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
        let received = self.publish(now, &mut next);
        Outcome { sent, received, broken: core::mem::take(&mut self.broken), next }
    }

    /// VIFs of the network whose drivers are at work.
    pub fn all_live(&self) -> VifSet {
        self.shared.live()
    }

    /// VIFs of its own whose drivers are at work, and that it looks at in each round.
    fn looked_at(&self) -> VifSet {
        VifSet(self.own.0 & self.awake.0 & self.shared.live().0)
    }

    /// Drivers have told of frames: it looks at their VIFs in each round from now on.
    pub fn ring(&mut self, rung: VifSet) {
        for id in VifSet(rung.0 & self.own.0 & !self.awake.0).iter() {
            self.awake.insert(id);
            self.change(id, |vif, dozes| {
                vif.idle = 0;
                vif.listen(dozes)
            });
        }
    }

    /// Asks the drivers of its VIFs to tell of frames, since nobody will look after the next [round](Self::round), unless that finds some.
    pub fn doze(&mut self) {
        self.dozes = true;
        self.listen();
    }

    /// It looks again: drivers need not tell.
    pub fn wake(&mut self) {
        self.dozes = false;
        self.listen();
    }

    fn listen(&mut self) {
        for id in self.looked_at().iter() {
            self.change(id, |vif, dozes| vif.listen(dozes));
        }
    }

    /// Does something with a VIF of its own, given whether it dozes.
    fn change(&mut self, id: VifId, act: impl FnOnce(&mut Sender<M>, bool) -> Result<(), Fault>) {
        let Some(mut vif) = self.senders.get_mut(id.index()).and_then(Option::take) else { return };
        if act(&mut vif, self.dozes).is_err() {
            self.break_down(id, &mut vif);
        }
        self.senders[id.index()] = Some(vif);
    }

    /// There was nothing to do for a VIF. If that is so for long it is looked at no more, and its driver is to tell of frames. Returns when there is
    /// something to do.
    fn rest(&mut self, id: VifId, vif: &mut Sender<M>, lane: Lane) -> Result<Next, Fault> {
        vif.idle = vif.idle.saturating_add(1);
        if vif.idle < LOOKS {
            return Ok(Next::Idle);
        }
        vif.listen(true)?;
        if lane.waiting(&vif.memory)? != 0 {
            vif.idle = 0;
            vif.listen(self.dozes)?;
            return Ok(Next::Now);
        }
        self.awake.remove(id);
        Ok(Next::Idle)
    }

    /// A driver broke the rules of its send queue: nothing more is done for it before it resets its device, by any engine.
    fn break_down(&mut self, id: VifId, vif: &mut Sender<M>) {
        (vif.active, vif.lane) = (None, None);
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
        if let Some(mut outbox) = vif.outbox.take() {
            let next = self.serve_card(id, vif, &mut outbox, wire, now);
            vif.outbox = Some(outbox);
            return Ok((false, next?));
        }
        let Some(mut lane) = vif.lane else { return Ok((false, Next::Idle)) };
        let waiting = lane.waiting(&vif.memory)?;
        if waiting == 0 {
            (vif.credit, vif.wire_credit) = (vif.credit.min(0), vif.wire_credit.min(0));
            let (signalled, next) = signal(vif, Next::Idle, now)?;
            let rests = !signalled && next == Next::Idle;
            return Ok((signalled, if rests { self.rest(id, vif, lane)? } else { next }));
        }
        vif.idle = 0;
        self.begin_turn(vif);
        let (mut turn, mut next) = (Turn::default(), Next::Now);
        let (mut left, mut chain) = (waiting, Chain::default());
        while left != 0 {
            if let Some(pause) = self.pause(vif, turn, now) {
                next = pause;
                break;
            }
            let entry = lane.next(&vif.memory, left, &mut chain)?;
            let chain = entry.is_sound.then_some(&chain);
            let credits = (vif.credit, vif.wire_credit);
            let sent = self.forward(id, vif, chain, wire)?;
            if let Some(after) = self.account(vif, &mut turn, credits, sent, now) {
                next = after;
                break;
            }
            left -= lane.finish(&vif.memory, &entry)?.min(left);
            if let (Some(bucket), Some(chain)) = (&mut vif.bucket, chain) {
                bucket.spend(chain.len());
            }
        }
        vif.lane = Some(lane);
        signal(vif, next, now)
    }

    /// One turn of a VIF whose driver has a card. Returns when there is more to do.
    fn serve_card(
        &mut self,
        id: VifId,
        vif: &mut Sender<M>,
        outbox: &mut Outbox<M>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
        now: u64,
    ) -> Result<Next, Fault> {
        let mut next = Next::Now;
        if outbox.is_full || outbox.card.is_sending() {
            self.begin_turn(vif);
        } else {
            (vif.credit, vif.wire_credit) = (vif.credit.min(0), vif.wire_credit.min(0));
            next = Next::Idle;
        }
        let mut turn = Turn::default();
        while next == Next::Now && turn.frames < TURN {
            if let Some(pause) = self.pause(vif, turn, now) {
                next = pause;
                break;
            }
            turn.frames += 1;
            let credits = (vif.credit, vif.wire_credit);
            vif.charge(OVERHEAD);
            let (sent, bytes) = match self.pass_packet(vif, outbox, wire) {
                Ok(bytes) => (Sent::Done, bytes),
                Err(Some(waits)) => (waits, 0),
                Err(None) => {
                    let mut work = 0;
                    let sending = outbox.fill(&vif.memory, &mut work);
                    vif.charge(work);
                    let Transmission::Frame(len) = sending else {
                        next = if sending == Transmission::Idle { Next::Idle } else { Next::Now };
                        break;
                    };
                    (self.forward_whole(id, vif, outbox.frame(), wire)?, len as u32)
                }
            };
            if let Some(after) = self.account(vif, &mut turn, credits, sent, now) {
                next = after;
                break;
            }
            outbox.is_full = false;
            if let Some(bucket) = &mut vif.bucket {
                bucket.spend(bytes);
            }
        }
        Ok(outbox.card.settle(now).map_or(next, |at| next.min(Next::At(at))))
    }

    /// A VIF that has something to send has its turn.
    fn begin_turn(&mut self, vif: &mut Sender<M>) {
        let share = vif.attributes.share.max(1);
        self.heaviest_now = self.heaviest_now.max(share);
        let part = |of: i64| (of * i64::from(share) / i64::from(self.heaviest)).clamp(1, of);
        vif.credit = (vif.credit + part(WORK)).min(part(WORK));
        // Its turn on the wire does not begin while another's goes on.
        if !self.full && !core::mem::take(&mut vif.is_waiting) {
            vif.wire_credit = (vif.wire_credit + part(QUANTUM)).min(part(QUANTUM));
        }
    }

    /// Whether its turn ends before the next frame, and when it goes on then.
    fn pause(&mut self, vif: &mut Sender<M>, Turn { outside, inside, .. }: Turn, now: u64) -> Option<Next> {
        if vif.credit <= 0 {
            // The wire is what it uses most: its turn there goes on in the next round, so that who sends small frames has as much of
            // it as others.
            if !self.full && vif.wire_credit > 0 && outside >= inside {
                (vif.is_waiting, self.full) = (true, true);
            }
            return Some(Next::Now);
        }
        let ready_at = vif.bucket.as_mut().map_or(now, |bucket| bucket.ready_at(now));
        (ready_at > now).then_some(Next::At(ready_at))
    }

    /// Notes what became of a frame, before which it had these credits. Returns when to go on, if its turn ends with that.
    fn account(
        &self,
        vif: &mut Sender<M>,
        turn: &mut Turn,
        (credit, wire_credit): (i64, i64),
        sent: Sent,
        now: u64,
    ) -> Option<Next> {
        let work = credit - vif.credit;
        *(if vif.wire_credit < wire_credit { &mut turn.outside } else { &mut turn.inside }) += work;
        match sent {
            Sent::Done => None,
            Sent::Full => {
                // A turn that has begun goes on when there is room again.
                vif.is_waiting |= vif.wire_credit > 0;
                let retry = Next::At(now.saturating_add(RETRY_NS));
                Some(if self.is_told { Next::Idle } else { retry })
            }
            Sent::Over => Some(Next::Now),
        }
    }

    /// Shows drivers what they received. Returns those that want to hear of it.
    fn publish(&mut self, now: u64, next: &mut Next) -> VifSet {
        let mut wanted = VifSet::default();
        for id in core::mem::take(&mut self.fresh).iter() {
            let mut port = self.shared.port(id);
            let Some(port) = port.as_mut() else { continue };
            match port.publish(now) {
                Ok((is_wanted, again)) => {
                    if is_wanted {
                        wanted.insert(id);
                    }
                    *next = again.map_or(*next, |at| Next::At(at).min(*next));
                }
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
