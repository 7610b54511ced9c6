//! The device changes hands: the queue, when the holder may be asked to give way, when it must.
//!
//! A holder keeps the device for the minimum hold time, times its weight, unless it is idle. Then it is *followed*:
//! the hooks that its model's present state calls for are armed, and at the first state of rest the
//! device goes to the first in the queue. A holder that does nothing at all is taken to rest after a
//! grace time, if its command register agrees. One that never rests loses the device after the
//! longest wait; its context is whole all the same (see `docs/vpio.md`), only counted as forced. Half
//! of a waiting client's longest wait is given to following, whatever the holder's weight.

use super::Monitor;
use crate::access::{ClientId, RawDevice};
use crate::ne2000::Regime;
use sluice_model::{Model, Tracker};

/// First come, first served, but for who has waited as long as it may; a client is in it at most once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: [Option<(ClientId, u64)>; ClientId::MAX],
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Who came first, and since when it has been asking.
    fn first(&self) -> Option<(ClientId, u64)> {
        self.entries.first().copied().flatten()
    }

    /// All, in the order of their coming, with the time since when they have been asking.
    fn iter(&self) -> impl Iterator<Item = (ClientId, u64)> {
        self.entries.iter().copied().flatten()
    }

    pub(super) fn push(&mut self, client: ClientId, now: u64) {
        let present = self.entries.iter().flatten().any(|(queued, _)| *queued == client);
        if !present && let Some(free) = self.entries.iter_mut().find(|entry| entry.is_none()) {
            *free = Some((client, now));
        }
    }

    pub(super) fn remove(&mut self, client: ClientId) {
        if let Some(at) = self.entries.iter().position(|entry| entry.is_some_and(|(c, _)| c == client)) {
            if let Some(rest) = self.entries.get_mut(at..) {
                rest.rotate_left(1);
            }
            if let Some(last) = self.entries.last_mut() {
                *last = None;
            }
        }
    }
}

/// May the holder lose the device now?
enum Verdict {
    No,
    Rests,
    Forced,
}

impl Monitor {
    /// Moves handoffs along. Returns the time at which it wants to be called again, if any. Call
    /// also when that time came earlier than an earlier answer said.
    pub fn poll(&mut self, raw: &mut dyn RawDevice, now: u64) -> Option<u64> {
        if matches!(self.device.regime(), Regime::Shared(_)) && now >= self.next_watch {
            self.device.watch(raw);
            self.next_watch = now.saturating_add(self.timing.watch);
        }
        self.progress(raw, now);
        self.refresh(now);
        let next = self.deadline(now);
        self.due = next.unwrap_or(u64::MAX);
        next
    }

    /// Hint: all processors of this client have halted, so its driver is in no register sequence.
    /// While it shares, that holds until its next access, which is hooked; when it has the device
    /// undivided it is true only now.
    pub fn halted(&mut self, raw: &mut dyn RawDevice, client: ClientId, now: u64) {
        let Some(slot) = self.slots.get_mut(client.index()) else { return };
        slot.halted = true;
        if !self.queue.is_empty() && self.device.holder() == Some(client) {
            self.progress(raw, now);
            self.refresh(now);
        }
        if self.device.regime() == Regime::Sole(client)
            && let Some(slot) = self.slots.get_mut(client.index())
        {
            slot.halted = false;
        }
    }

    /// The client wants the hardware.
    pub(super) fn request(&mut self, raw: &mut dyn RawDevice, client: ClientId, now: u64) {
        self.queue.push(client, now);
        self.due = 0;
        self.progress(raw, now);
        self.changes.poll |= !self.queue.is_empty();
    }

    pub(super) fn start_waiting(&mut self, client: ClientId, now: u64) {
        if let Some(slot) = self.slots.get_mut(client.index())
            && slot.waiting.is_none()
        {
            slot.waiting = Some(now);
            slot.counters.waits += 1;
        }
    }

    pub(super) fn stop_waiting(&mut self, client: ClientId, now: u64) {
        if let Some(slot) = self.slots.get_mut(client.index())
            && let Some(since) = slot.waiting.take()
        {
            slot.counters.wait_ns += now.saturating_sub(since);
            self.changes.wake |= client.bit();
        }
    }

    /// Hands over as long as that is possible.
    pub(super) fn progress(&mut self, raw: &mut dyn RawDevice, now: u64) {
        // At most one change of hands per call: the new holder has just begun.
        while let Some((next, since)) = self.next(now) {
            if self.device.holder() == Some(next) || !self.device.online(next) {
                // Served already, or left the network again; what it asks now needs no hardware.
                self.queue.remove(next);
                self.stop_waiting(next, now);
                continue;
            }
            let forced = match self
                .device
                .holder()
                .map(|holder| self.judge(raw, holder, self.limit(next, since), now))
            {
                Some(Verdict::No) => return,
                Some(Verdict::Forced) => true,
                Some(Verdict::Rests) | None => false,
            };
            self.transfer(raw, next, forced, now);
        }
        self.reunite(raw, now);
    }

    /// When a client must have the device that has been asking since then.
    fn limit(&self, client: ClientId, since: u64) -> u64 {
        let own = self.slots.get(client.index()).and_then(|slot| slot.policy.max_wait);
        since.saturating_add(own.unwrap_or(self.timing.max_wait))
    }

    /// Who gets the device next: of those whose time is over the one that should have had it first, else who came first.
    fn next(&self, now: u64) -> Option<(ClientId, u64)> {
        let over = self.queue.iter().filter(|&(client, since)| self.limit(client, since) <= now);
        over.min_by_key(|&(client, since)| self.limit(client, since)).or_else(|| self.queue.first())
    }

    /// How long a busy holder keeps the device.
    fn hold(&self, holder: ClientId) -> u64 {
        let weight = self.slots.get(holder.index()).map_or(1, |slot| slot.policy.weight);
        self.timing.min_hold.saturating_mul(weight.into())
    }

    /// When the holder must be followed at the latest: its hold is over, or half of somebody's longest wait.
    fn follow_at(&self, holder: ClientId, held_since: u64) -> u64 {
        let half = |(client, since): (ClientId, u64)| since + (self.limit(client, since) - since) / 2;
        let waits = self.queue.iter().map(half).min().unwrap_or(u64::MAX);
        held_since.saturating_add(self.hold(holder)).min(waits)
    }

    fn judge(&mut self, raw: &mut dyn RawDevice, holder: ClientId, limit: u64, now: u64) -> Verdict {
        let Some(slot) = self.slots.get(holder.index()) else { return Verdict::Rests };
        let held_since = match self.held {
            Some((client, since)) if client == holder => since,
            // Got it within this very call.
            _ => now,
        };
        // A sole holder's accesses are not seen before it is followed.
        let sole = matches!(self.device.regime(), Regime::Sole(_));
        let seen_since = self.following.map(|(_, armed)| armed).or((!sole).then_some(held_since));
        let quiet = slot.halted
            || seen_since.is_some_and(|seen| now.saturating_sub(slot.touched.max(seen)) >= self.timing.grace);
        if let Some((tracker, _)) = &self.following
            && tracker.resting(self.model)
        {
            return Verdict::Rests;
        }
        if quiet && self.device.activity(raw).is_idle() {
            return Verdict::Rests;
        }
        if now >= limit {
            return Verdict::Forced;
        }
        if self.following.is_none() && now >= self.follow_at(holder, held_since) {
            self.follow(now);
        }
        Verdict::No
    }

    /// How long the holder must have been still to be taken to rest.
    const fn grace(&self) -> u64 {
        match self.device.regime() {
            Regime::Sole(_) => self.timing.sole_grace,
            _ => self.timing.grace,
        }
    }

    fn follow(&mut self, now: u64) {
        let model: &'static Model = self.model;
        self.following = Some((Tracker::unseen(model), now));
    }

    fn transfer(&mut self, raw: &mut dyn RawDevice, next: ClientId, forced: bool, now: u64) {
        self.device.hand_over(raw, next);
        let counters = &mut self.device.counters;
        counters.handoffs += u64::from(self.last.is_some_and(|last| last != next));
        counters.forced += u64::from(forced);
        self.last = Some(next);
        self.following = None;
        self.alone = None;
        self.queue.remove(next);
        self.stop_waiting(next, now);
        if let Some(slot) = self.slots.get_mut(next.index()) {
            slot.touched = now;
            slot.halted = false;
        }
        self.next_watch = now.saturating_add(self.timing.watch);
        self.refresh(now);
    }

    /// When the other users have gone, the one left gets the device undivided; when all have, it
    /// is put away. Only with an empty queue.
    fn reunite(&mut self, raw: &mut dyn RawDevice, now: u64) {
        let Regime::Shared(holder) = self.device.regime() else {
            self.alone = None;
            return;
        };
        let users = self.device.users();
        if users > 1 {
            self.alone = None;
            self.following = None;
            return;
        }
        let since = *self.alone.get_or_insert(now);
        if now.saturating_sub(since) < self.timing.undivide_after {
            return;
        }
        match (holder, &self.following) {
            (None, _) if users == 0 => self.device.retire(raw),
            (None, _) => {}
            (Some(_), None) => self.follow(now),
            (Some(holder), Some((tracker, _))) => {
                if tracker.resting(self.model) && self.device.undivide(raw, holder) {
                    self.following = None;
                    self.alone = None;
                }
            }
        }
    }

    fn deadline(&self, now: u64) -> Option<u64> {
        let timing = &self.timing;
        let grace = self.grace();
        let mut next: Option<u64> = None;
        let mut at = |time: u64| {
            // What is due and did not happen depends on the holder: look again after a while.
            let time = if time > now { time } else { now.saturating_add(grace.max(1)) };
            next = Some(next.map_or(time, |earlier| earlier.min(time)));
        };
        let shared = matches!(self.device.regime(), Regime::Shared(_));
        if shared {
            at(self.next_watch);
        }
        if let (false, Some((holder, held))) = (self.queue.is_empty(), self.held) {
            let touched = self.slots.get(holder.index()).map_or(held, |slot| slot.touched);
            match self.following {
                Some((_, armed)) => at(touched.max(armed).saturating_add(grace)),
                None => {
                    at(self.follow_at(holder, held));
                    if shared {
                        at(touched.max(held).saturating_add(grace));
                    }
                }
            }
            self.queue.iter().for_each(|(client, since)| at(self.limit(client, since)));
        } else if let Some(alone) = self.alone.filter(|_| self.following.is_none()) {
            at(alone.saturating_add(timing.undivide_after));
        }
        next
    }
}
