//! What an engine does with a frame that a VIF sends.

use crate::card::{Outbox, Packet};
use crate::chain::{Chain, MAX_PIECES, Memory};
use crate::engine::Engine;
use crate::frame::{Addresses, Frame};
use crate::outgoing::{Outgoing, Put, Start};
use crate::scratch::{Scratch, TAG_BYTES};
use crate::turn::{OVERHEAD, PER_PIECE, PER_SEGMENT, Sent};
use crate::vif::{Attributes, Sender};
use crate::wire::{Given, Wire};
use crate::{Mac, VifId};
use sluice_switch::{is_for_the_link, is_group};
use sluice_virtio::Fault;

/// Bytes that the wire is busy with a frame, beside its own: preamble, CRC and gap.
const FRAMING: u32 = 24;

/// Its sender may not send it.
fn refuse<M>(vif: &mut Sender<M>) -> Sent {
    vif.counters.refused += 1;
    Sent::Done
}

/// What is wrong with a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// A station may not send it.
    Refused,
    /// Its source address is another's.
    Forged,
}

/// What is wrong with a frame of a VIF's that has these addresses, if anything is.
fn wrong<M: Memory>(vif: &Sender<M>, frame: &[u8], addresses: Addresses) -> Option<Wrong> {
    let Addresses { to, from, .. } = addresses;
    if is_for_the_link(frame, to) || addresses.is_tagged() {
        return Some(Wrong::Refused);
    }
    if !vif.has(from) {
        return Some(Wrong::Forged);
    }
    // As at a bridge, what goes back where it came from goes nowhere.
    vif.has(to).then_some(Wrong::Refused)
}

/// Counts a frame with these addresses and has done with it, if it is wrong.
fn check<M: Memory>(vif: &mut Sender<M>, frame: &[u8], addresses: Addresses) -> Option<Sent> {
    match wrong(vif, frame, addresses)? {
        Wrong::Refused => vif.counters.refused += 1,
        Wrong::Forged => vif.counters.forged += 1,
    }
    Some(Sent::Done)
}

/// Whether a frame with the tag of a VLAN is none that the wire carries. As at a bridge, it is lost there.
fn is_too_long(wire: &dyn Wire, vlan: Option<u16>, outgoing: &Outgoing<'_>) -> bool {
    let tag = if vlan.is_some() { TAG_BYTES } else { 0 };
    outgoing.longest() + tag as u32 > wire.longest()
}

impl<M: Memory> Engine<M> {
    /// Brings a frame where it is to be, at its sender's expense.
    pub(crate) fn forward(
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
        let mut start = Start::new();
        start.read(&vif.memory, chain)?;
        let addresses = start.addresses();
        if let Some(refused) = check(vif, start.frame(), addresses) {
            return Ok(refused);
        }
        if !vif.attributes.filter.is_open() {
            start.look(&vif.memory, chain)?;
            if !vif.may_say(start.frame()) {
                return Ok(Sent::Done);
            }
        }
        let Some(plan) = start.plan(&vif.memory, chain, vif.longest())? else {
            return Ok(refuse(vif));
        };
        let outgoing = Outgoing { chain: Some(chain), start: start.frame(), plan };
        self.pass_on(id, vif, addresses.to, &outgoing, wire)
    }

    /// Brings a frame where it is to be of which nothing is in its sender's hands any more, at its sender's expense.
    pub(crate) fn forward_whole(
        &mut self,
        id: VifId,
        vif: &mut Sender<M>,
        frame: &[u8],
        wire: &mut Option<&mut (dyn Wire + '_)>,
    ) -> Result<Sent, Fault> {
        let Some(start) = frame.first_chunk() else { return Ok(refuse(vif)) };
        let addresses = Addresses::of(start);
        if let Some(refused) = check(vif, frame, addresses) {
            return Ok(refused);
        }
        if frame.len() as u32 > vif.longest() {
            return Ok(refuse(vif));
        }
        if !vif.may_say(frame) {
            return Ok(Sent::Done);
        }
        self.pass_on(id, vif, addresses.to, &Outgoing { chain: None, start: frame, plan: None }, wire)
    }

    /// Puts a packet of a card's on the wire as it is, if it is for there, and the physical card can finish it. Returns its bytes.
    ///
    /// # Errors
    /// Nothing has happened: the packet has to wait, or it is not to be sent so.
    pub(crate) fn pass_packet(
        &mut self,
        vif: &mut Sender<M>,
        outbox: &Outbox<M>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
    ) -> Result<u32, Option<Sent>> {
        let Attributes { vlan, filter, .. } = &vif.attributes;
        // More than its addresses would have to be looked at.
        let is_plain = vlan.is_none() && filter.is_open();
        let wire = wire.as_deref_mut().filter(|_| !outbox.is_full && is_plain).ok_or(None)?;
        let accept = &mut |start: &[u8; Addresses::BYTES]| self.is_for_the_wire(vif, start);
        if self.full || vif.wire_credit <= 0 {
            let start = outbox.card.peek(&vif.memory);
            let waits = if self.full { Sent::Full } else { Sent::Over };
            return Err(start.is_some_and(|start| accept(&start)).then_some(waits));
        }
        let packet = outbox.card.next_packet(&vif.memory, vif.longest()).ok_or(None)?;
        let Packet { len, frames, bytes, offload } = packet;
        let mut taken = false;
        // The wire is locked before the card, as it is when it brings something.
        let given = wire.send_packet(len as usize, &offload, &mut |into| {
            taken = outbox.card.take_packet(&vif.memory, into, accept);
            taken
        });
        if given == Given::Full {
            self.full = true;
            return Err(Some(Sent::Full));
        }
        // What was refused was not given.
        if !taken {
            return Err(None);
        }
        vif.counters.sent += 1;
        vif.counters.sent_bytes += u64::from(len);
        vif.counters.segments += u64::from(frames);
        vif.wire_credit -= i64::from(bytes + frames * FRAMING);
        vif.charge(bytes + frames * PER_SEGMENT);
        Ok(bytes)
    }

    /// Whether a VIF without a VLAN may send what begins so, and it is for somebody beyond the wire, and for nobody else.
    fn is_for_the_wire(&self, vif: &Sender<M>, start: &[u8; Addresses::BYTES]) -> bool {
        let addresses = Addresses::of(start);
        let to = addresses.to;
        let may_be_sent = wrong(vif, start, addresses).is_none();
        may_be_sent && !is_group(to) && self.directory.find_in(to, None).is_none()
    }

    /// Brings a frame that may be sent where it is to be.
    fn pass_on(
        &mut self,
        id: VifId,
        vif: &mut Sender<M>,
        to: Mac,
        outgoing: &Outgoing<'_>,
        wire: &mut Option<&mut (dyn Wire + '_)>,
    ) -> Result<Sent, Fault> {
        let vlan = vif.attributes.vlan;
        let target = if is_group(to) { None } else { self.directory.find_in(to, vlan) };
        let Some(mut scratch) = self.scratch.take() else { return Ok(Sent::Done) };
        let sent = match wire {
            Some(wire) if target.is_none() && is_too_long(*wire, vlan, outgoing) => Ok(refuse(vif)),
            Some(wire) if target.is_none() => self.put_on(*wire, vif, outgoing, &mut scratch),
            _ => Ok(Sent::Done),
        };
        if let Ok(Sent::Done) = sent {
            let work = match target {
                Some(target) => self.hand_over(target, &vif.memory, outgoing, &mut scratch),
                None if is_group(to) => self.hand_to_all(id, vlan, &vif.memory, outgoing, &mut scratch),
                None => Ok(0),
            };
            vif.progress = 0;
            vif.counters.sent += 1;
            vif.counters.sent_bytes += u64::from(outgoing.len());
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
        if self.directory.is_too_long(target, outgoing.longest()) {
            self.lose(target);
            return Ok(0);
        }
        let as_it_is = outgoing.as_it_is(memory, self.directory.features(target));
        let is_card = self.directory.is_card(target);
        // A card stores what is whole.
        if let Some(frame) = as_it_is.filter(|frame| !is_card || frame.rest.is_none()) {
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

    /// A frame is lost for a VIF.
    pub(crate) fn lose(&self, id: VifId) {
        if let Some(port) = self.shared.port(id).as_mut() {
            port.counters.missed += 1;
        }
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
}
