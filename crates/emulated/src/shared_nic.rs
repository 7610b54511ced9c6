//! Software cards, the switch and the uplink, put together.

use crate::environment::{Environment, Guests};
use crate::mirror::{self, Mirror, Shown};
use crate::names;
use crate::nic::{Description, FRAME, Outgoing, Register, describe};
use crate::owner::{CardOwner, Handoffs};
use crate::straight::{Inward, Wire};
use crate::symbiosis::{is_magic, is_ring};
use crate::virtual_nic::{Changes, VirtualNic, VirtualNics};
use alloc::boxed::Box;
use core::array;
use sluice_abi::config::NicModel;
use sluice_hypercall::symbiotic::SYMBIOTIC_MAGIC;
use sluice_model::Seen;
use sluice_nic::dma::NoMemory;
use sluice_nic::{Budget, earliest};
use sluice_switch::{AttachError, PortId, Switch, Verdict};
use sluice_uplink::{Card, Sent, Uplink};

/// What a guest did with its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Register accesses in elements, and in instructions.
    pub elements: u64,
    /// See [`Self::elements`].
    pub instructions: u64,
    /// Frames that it sent and the switch forwarded.
    pub tx_packets: u64,
    /// Frames of its own that found no room on the way to the wire.
    pub tx_dropped: u64,
    /// Frames put into its memory.
    pub rx_packets: u64,
    /// Frames for it that found no room.
    pub rx_dropped: u64,
    /// Frames with another's source address.
    pub forged: u64,
    /// Frames that are none, and transfers to memory that is not its own.
    pub refused: u64,
}

/// A shared card: guests' cards, the switch, the uplink.
pub struct SharedNic {
    pub(crate) switch: Switch,
    pub(crate) vnics: VirtualNics,
    pub(crate) uplink: Box<dyn Uplink>,
    pub(crate) owner: CardOwner,
    pub(crate) handoffs: Handoffs,
    /// The guest that could have the physical card, and since when.
    pub(crate) alone: Option<(PortId, u64)>,
    /// When to look whether the card can change owners.
    pub(crate) hand_over_at: Option<u64>,
    /// Ports whose card has no room, by bit: offered nothing until its guest has done something.
    stuck: u16,
    changes: Changes,
    /// Something is left to do that no interrupt will tell of, and is to be done then.
    again: Option<u64>,
    /// The time of the last call that had one.
    now: u64,
    /// The frame going out of a guest's card.
    frame: Box<[u8; FRAME]>,
}

impl SharedNic {
    /// Nobody on a switch whose uplink is driven by `uplink`, not started yet.
    pub fn new(uplink: Box<dyn Uplink>) -> Self {
        let vnics = array::from_fn(|_| None);
        Self {
            switch: Switch::new(),
            vnics,
            uplink,
            owner: CardOwner::Driver,
            handoffs: Handoffs::default(),
            alone: None,
            hand_over_at: None,
            stuck: 0,
            changes: Changes::default(),
            again: None,
            now: 0,
            frame: Box::new([0; FRAME]),
        }
    }

    /// The driver of the physical card.
    pub fn uplink(&self) -> &dyn Uplink {
        &*self.uplink
    }

    /// Puts the physical card on the wire. False if it does not answer.
    pub fn start(&mut self, card: &mut Card<'_>) -> bool {
        self.uplink.start(card)
    }

    /// Takes it off.
    pub fn stop(&mut self, card: &mut Card<'_>) {
        self.uplink.stop(card);
    }

    /// Plugs in a card of this model for a guest with this MAC address.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&mut self, model: NicModel, mac: [u8; 6]) -> Result<PortId, AttachError> {
        let port = self.switch.attach(mac)?;
        let vnic = VirtualNic::new(model, mac);
        if let Some(slot) = self.vnics.get_mut(port.index()) {
            *slot = Some(Box::new(vnic));
        }
        Ok(port)
    }

    /// For how many times as much as others a guest has the wire when several want it.
    pub fn set_weight(&mut self, port: PortId, weight: u8) {
        self.switch.set_weight(port, weight);
    }

    /// Has a guest's card say nothing of transfers that are refused to it.
    pub fn keep_quiet(&mut self, port: PortId) {
        if let Some(vnic) = self.vnic_mut(port) {
            vnic.nic.keep_quiet();
        }
    }

    /// Transfers that were refused to a guest's card, to where its guest has no memory.
    pub fn refused(&self, port: PortId) -> u64 {
        self.vnic(port).map_or(0, |vnic| vnic.nic.refused())
    }

    /// Limits what all guests send to the wire to so many bits per second: what is behind the card takes no more. Guests divide it by their
    /// weights, and none has the card in its own hands from then on.
    pub fn limit(&mut self, rate: u64) {
        self.switch.limit(rate, self.now);
    }

    /// Shows the guest at a port its card in memory from now on, as far as [`Self::shown`] says.
    pub fn show(&mut self, port: PortId, mut mirror: Box<dyn Mirror>) {
        if let Some(vnic) = self.vnic_mut(port) {
            mirror::show_all(&vnic.nic, &mut *mirror);
            vnic.mirror = Some(mirror);
        }
        self.publish(port);
    }

    /// Pulls a guest's card out, and takes the physical one back from it.
    pub fn unplug<G: Guests>(&mut self, env: &mut Environment<'_, G>, port: PortId) {
        if self.owner.guest() == Some(port) {
            self.retake(env);
        }
        self.detach(port);
        self.use_wire(env);
        self.hand_over(env);
    }

    /// Pulls a card out that has done nothing yet.
    pub fn detach(&mut self, port: PortId) {
        self.switch.detach(port);
        if let Some(slot) = self.vnics.get_mut(port.index()) {
            *slot = None;
        }
        self.stuck &= !port.bit();
        self.changes.shown &= !port.bit();
        self.changes.lines &= !port.bit();
        self.changes.resumes &= !port.bit();
    }

    /// How the card at a port looks on the PCI bus.
    pub fn describe(&self, port: PortId) -> Option<Description> {
        Some(describe(self.vnic(port)?.model))
    }

    /// The guest lets its card master the bus, or not; and raise its line, or not.
    pub fn configure(&mut self, port: PortId, master: bool, silent: bool) {
        if let Some(vnic) = self.vnic_mut(port) {
            (vnic.master, vnic.silent) = (master, silent);
            if !master {
                vnic.end_symbiosis();
            }
        }
        if self.owner.guest() == Some(port) && (!master || silent) {
            self.take(port, None);
        }
        self.publish(port);
    }

    /// The guest reads: one element of `width` bytes, or several of the same register.
    pub fn read<G: Guests>(
        &mut self,
        env: &mut Environment<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        into: &mut [u8],
    ) {
        self.now = env.now;
        let Some(vnic) = self.vnic_mut(port) else { return into.fill(0xff) };
        vnic.count(register, width, into.len());
        if is_magic(register, width) && vnic.can_be_symbiotic() {
            return put_value(into, SYMBIOTIC_MAGIC);
        }
        if let Some(value) = self.read_through(env, port, register, width) {
            let elements = into.chunks_mut(usize::from(width).max(1));
            return elements.for_each(|element| put_value(element, value));
        }
        let Some(vnic) = self.vnic_mut(port) else { return into.fill(0xff) };
        if into.len() == usize::from(width)
            && let Some(value) = vnic.peek(register, width, env.now)
        {
            return put_value(into, value);
        }
        vnic.nic.advance(env.now);
        if mirror::is_posted(register.offset) {
            vnic.look();
        }
        if into.len() == usize::from(width) {
            let value = vnic.nic.read(register, width);
            put_value(into, value);
            vnic.follow(register, width, value, Seen::Read);
        } else {
            vnic.nic.read_string(register, width, into);
        }
        self.publish(port);
    }

    /// The guest writes, see [`Self::read`]; and what follows from it.
    pub fn write<G: Guests>(
        &mut self,
        env: &mut Environment<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        from: &[u8],
    ) {
        let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        self.now = env.now;
        vnic.count(register, width, from.len());
        if self.write_through(env, port, register, width, value_of(from)) {
            return;
        }
        let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let whole = from.len() == usize::from(width);
        if whole && is_ring(register, width) && vnic.is_symbiotic() {
            return self.rung(env, port);
        }
        let quiet = whole && vnic.is_quiet_write(register, width, env.now, self.stuck & port.bit() != 0);
        vnic.nic.advance(env.now);
        if quiet {
            vnic.nic.write(register, width, value_of(from), &mut NoMemory);
            if let Some(mirror) = &mut vnic.mirror {
                mirror::show_interrupts(&vnic.nic, &mut **mirror);
            }
            return vnic.publish_line(port, env.now, &mut self.changes);
        }
        vnic.look();
        let mut bus = vnic.bus(env.guests, port);
        if whole {
            vnic.nic.write(register, width, value_of(from), &mut bus);
        } else {
            vnic.nic.write_string(register, width, from, &mut bus);
        }
        drop(bus);
        if whole {
            vnic.heed(register, width, value_of(from));
        }
        for element in from.chunks(usize::from(width).max(1)) {
            vnic.follow(register, width, value_of(element), Seen::WriteWord);
        }
        if let Some(mirror) = &mut vnic.mirror {
            mirror::show_written(&vnic.nic, register, width, &mut **mirror);
        }
        let pauses = vnic.resumes_at.is_some_and(|at| at > env.now);
        self.stuck &= !port.bit();
        if !pauses {
            self.pump(env, port);
        }
        self.deliver(env);
        self.publish(port);
        self.hand_over(env);
    }

    /// A module says that its tail was written.
    fn rung<G: Guests>(&mut self, env: &mut Environment<'_, G>, port: PortId) {
        let Some(vnic) = self.vnic_mut(port) else { return };
        vnic.nic.advance(env.now);
        vnic.look_as_rung();
        let pauses = vnic.resumes_at.is_some_and(|at| at > env.now);
        if !pauses {
            self.pump(env, port);
        }
        // Frames that were looped back, or were for a neighbour.
        self.deliver(env);
        self.publish(port);
    }

    /// When the guest at a port is to call [`Self::resume`]: its card has more to do than one call may.
    pub fn resumes_at(&self, port: PortId) -> Option<u64> {
        self.vnic(port)?.resumes_at
    }

    /// Goes on with what the card at a port has left to do, as far as a call may. To be called when
    /// [`Self::resumes_at`] has come, in the time of its guest: nobody else's call does this work.
    pub fn resume<G: Guests>(&mut self, env: &mut Environment<'_, G>, port: PortId) {
        self.now = env.now;
        if let Some(vnic) = self.vnic_mut(port) {
            vnic.behind = false;
        }
        self.pump(env, port);
        self.deliver(env);
        self.publish(port);
    }

    /// The physical card interrupts. Not for the shared card while a guest has it ([`Self::holder`]).
    pub fn interrupt<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        self.now = env.now;
        if !self.owner.is_driver() {
            return;
        }
        let Self { switch, vnics, uplink, owner, stuck, changes, .. } = self;
        let mut inward = Inward {
            switch,
            vnics,
            owner: *owner,
            stuck,
            now: env.now,
            guests: &mut *env.guests,
            open: None,
        };
        let more = uplink.poll_with_fcs(&mut env.card, &mut |frame, fcs| inward.take(frame, fcs, changes));
        inward.close(changes);
        if more {
            let later = env.after_pause();
            self.again.get_or_insert(later);
        }
        self.use_wire(env);
    }

    /// [`Self::deadline`] has come, or a guest was [configured](Self::configure).
    pub fn poll<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        self.now = env.now;
        self.poll_vnics(env);
        self.hand_over(env);
    }

    fn poll_vnics<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        for (index, vnic) in self.vnics.iter_mut().take(self.switch.span()).enumerate() {
            if let (Some(vnic), Some(port)) = (vnic, PortId::from_index(index))
                && self.owner.guest() != Some(port)
                && vnic.deadline().is_some_and(|at| at <= env.now)
            {
                vnic.nic.advance(env.now);
                self.stuck &= !port.bit();
                vnic.publish(port, self.owner, (self.stuck, env.now), &mut self.changes);
            }
        }
        if self.again.is_some_and(|at| at <= env.now) {
            self.again = None;
            return self.interrupt(env);
        }
        if self.again.is_none() || self.switch.held_until().is_some_and(|at| at <= env.now) {
            return self.use_wire(env);
        }
        // Timers do not bring forward what is to wait.
        self.deliver(env);
    }

    /// When to call [`Self::poll`].
    pub fn deadline(&self) -> Option<u64> {
        let holder = self.owner.guest().map(PortId::index);
        let vnics = self.vnics.iter().take(self.switch.span()).enumerate();
        let vnics = vnics.filter(|(index, _)| Some(*index) != holder);
        let cards = vnics.filter_map(|(_, vnic)| vnic.as_ref()?.deadline());
        let own = earliest([self.again, self.hand_over_at, self.switch.held_until()]);
        cards.fold(own, |first, at| earliest([first, Some(at)]))
    }

    /// Guests at these ports ([`PortId::bit`]) do no more than [`Self::shown`] says from now on: what they wrote before
    /// counts.
    pub fn carried_out<G: Guests>(&mut self, env: &mut Environment<'_, G>, ports: u16) {
        self.now = env.now;
        if self.owner.guest().is_some_and(|port| ports & port.bit() != 0) {
            self.bring_back(env);
        }
        if ports != 0 {
            (0..self.switch.span())
                .filter(|index| ports >> index & 1 != 0)
                .for_each(|index| self.part(env, index));
        }
        if self.stuck & ports != 0 {
            self.stuck &= !ports;
            self.deliver(env);
        }
    }

    /// The guest at a port writes its tail by exits again: what it wrote before counts.
    fn part<G: Guests>(&mut self, env: &mut Environment<'_, G>, index: usize) {
        let Some(vnic) = self.vnics.get_mut(index).and_then(Option::as_deref_mut) else { return };
        if vnic.part()
            && vnic.resumes_at.is_none()
            && let Some(port) = PortId::from_index(index)
        {
            self.pump(env, port);
            self.deliver(env);
            self.publish(port);
        }
    }

    /// The guest at a port is about to end an interrupt. Returns the level that its line has now: a module may have dealt with what it was up for.
    /// The caller carries it out; it is not among the changes.
    pub fn end_of_interrupt(&mut self, port: PortId) -> bool {
        self.vnic_mut(port).is_some_and(VirtualNic::end_of_interrupt)
    }

    /// Level of a guest's line.
    pub fn line(&self, port: PortId) -> bool {
        self.vnic(port).is_some_and(|vnic| vnic.line)
    }

    /// What the guest at a port finds in its card's memory. Nothing, until [`Self::show`].
    pub fn shown(&self, port: PortId) -> Shown {
        self.vnic(port).map_or(Shown::default(), |vnic| vnic.shown)
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        core::mem::take(&mut self.changes)
    }

    /// Counters of a guest.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        let (vnic, switch) = (self.vnic(port)?, self.switch.counters(port)?);
        Some(Counters {
            elements: vnic.elements,
            instructions: vnic.instructions,
            tx_packets: switch.sent,
            tx_dropped: switch.dropped_out,
            rx_packets: vnic.rx_packets,
            rx_dropped: switch.dropped_in + vnic.rx_missed,
            forged: switch.forged,
            refused: switch.refused + vnic.nic.refused(),
        })
    }

    /// Accesses of a guest by register, in instructions; only those that occurred.
    pub fn by_register(&self, port: PortId) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.vnic(port).into_iter().flat_map(|vnic| {
            let counts = vnic.by_register.iter().copied().enumerate().filter(|(_, count)| *count != 0);
            counts.map(|(index, count)| (names::name(vnic.model, index), count))
        })
    }

    pub(crate) fn vnic(&self, port: PortId) -> Option<&VirtualNic> {
        self.vnics.get(port.index())?.as_deref()
    }

    pub(crate) fn vnic_mut(&mut self, port: PortId) -> Option<&mut VirtualNic> {
        self.vnics.get_mut(port.index())?.as_deref_mut()
    }

    pub(crate) fn publish(&mut self, port: PortId) {
        if let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) {
            vnic.publish(port, self.owner, (self.stuck, self.now), &mut self.changes);
        }
    }

    /// Puts on the wire what waited for it. Cards that waited for room behind it go on in their guests' time.
    pub(crate) fn use_wire<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        self.flush(&mut env.card);
        let Self { switch, vnics, changes, .. } = self;
        for (port, vnic) in occupied(vnics, switch.span()) {
            if vnic.resumes_at.is_none() && vnic.nic.is_sending() && switch.has_room(port) {
                vnic.resume_at(port, Some(env.now), changes);
            }
        }
        self.deliver(env);
    }

    /// Sends what a guest's card has to send, as far as there is room and a call may.
    fn pump<G: Guests>(&mut self, env: &mut Environment<'_, G>, port: PortId) {
        let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        vnic.resume_at(port, None, &mut self.changes);
        vnic.look_at_tail();
        let mut bus = None;
        let mut budget = Budget::default();
        while !budget.is_spent() {
            if !self.switch.has_room(port) {
                // The wire interrupts when it takes frames again, and this card goes on then.
                flush(&mut self.switch, &mut *self.uplink, (self.owner, env.now), &mut env.card);
                if !self.switch.has_room(port) && vnic.nic.is_sending() {
                    return;
                }
            }
            if bus.is_none() {
                bus = Some(vnic.bus(env.guests, port));
            }
            let Some(bus) = bus.as_mut() else { return };
            let mut wire = Wire { switch: &mut self.switch, uplink: &mut *self.uplink, card: &mut env.card };
            let drives = self.owner.is_driver();
            if drives && let Some((frames, bytes)) = wire.send_packet(port, &mut vnic.nic, bus, &mut budget) {
                vnic.carried(frames, bytes);
                continue;
            }
            match vnic.nic.transmit(bus, &mut self.frame, &mut budget) {
                Outgoing::Idle => return self.flush(&mut env.card),
                Outgoing::Busy => {}
                Outgoing::Frame(frame) => {
                    let bytes = frame.len();
                    if !drives || !wire.send_frame(port, frame) {
                        // What became of it, the switch counts; the card has sent it in any case.
                        let _: Verdict = self.switch.send(port, frame);
                    }
                    vnic.carried(1, bytes);
                }
            }
        }
        drop(bus);
        if vnic.nic.is_sending() {
            vnic.resume_at(port, Some(env.after_pause()), &mut self.changes);
        }
        self.flush(&mut env.card);
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        flush(&mut self.switch, &mut *self.uplink, (self.owner, self.now), card);
    }

    fn deliver<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        let Self { switch, vnics, owner, stuck, changes, .. } = self;
        deliver(switch, vnics, (*owner, env.now), stuck, changes, env.guests);
        for (port, vnic) in occupied(vnics, switch.span()) {
            if vnic.behind && vnic.resumes_at.is_none() {
                vnic.resume_at(port, Some(env.after_pause()), changes);
            }
        }
    }
}

/// The vnics that there are, of so many ports.
fn occupied(vnics: &mut VirtualNics, span: usize) -> impl Iterator<Item = (PortId, &mut VirtualNic)> {
    let ports = (0..span).filter_map(PortId::from_index);
    ports.zip(vnics).filter_map(|(port, vnic)| Some((port, vnic.as_deref_mut()?)))
}

/// Up to four bytes as a number. By cases: of any other way the compiler makes a call of `memcpy`.
const fn value_of(bytes: &[u8]) -> u32 {
    match *bytes {
        [] => 0,
        [a] => u32::from_le_bytes([a, 0, 0, 0]),
        [a, b] => u32::from_le_bytes([a, b, 0, 0]),
        [a, b, c] => u32::from_le_bytes([a, b, c, 0]),
        [a, b, c, d, ..] => u32::from_le_bytes([a, b, c, d]),
    }
}

/// A number into up to four bytes, likewise.
const fn put_value(into: &mut [u8], value: u32) {
    let [a, b, c, d] = value.to_le_bytes();
    match into {
        [] => {}
        [first] => *first = a,
        [first, second] => (*first, *second) = (a, b),
        [first, second, third] => (*first, *second, *third) = (a, b, c),
        [first, second, third, fourth, ..] => (*first, *second, *third, *fourth) = (a, b, c, d),
    }
}

/// Frames from the switch to the wire, as long as it takes them, and may.
fn flush(switch: &mut Switch, uplink: &mut dyn Uplink, (owner, now): (CardOwner, u64), card: &mut Card<'_>) {
    if !owner.is_driver() {
        return;
    }
    while switch.may_send(now)
        && let Some(frame) = switch.outbox()
    {
        match uplink.enqueue(card, frame) {
            Sent::Done | Sent::Refused => switch.pop_outbox(),
            Sent::Full => return,
        }
    }
    uplink.flush(card);
}

/// Frames from the switch to the guests' cards, as long as they take them. A card that makes much work of them, such as by
/// a ring without buffers, gets the rest in its guest's time.
fn deliver<G: Guests>(
    switch: &mut Switch,
    vnics: &mut VirtualNics,
    (owner, now): (CardOwner, u64),
    stuck: &mut u16,
    changes: &mut Changes,
    guests: &mut G,
) {
    // Whoever has the physical card gets what is for it when it is back.
    let mut ports = switch.waiting() & !*stuck & !owner.guest().map_or(0, PortId::bit);
    while ports != 0 {
        let index = ports.trailing_zeros() as usize;
        ports &= ports - 1;
        let Some(port) = PortId::from_index(index) else { return };
        let Some(vnic) = vnics.get_mut(index).and_then(Option::as_deref_mut) else { continue };
        if vnic.behind {
            continue;
        }
        vnic.look();
        let mut bus = vnic.bus(guests, port);
        let mut budget = Budget::default();
        while let Some((frame, fcs)) = switch.inbox_with_fcs(port) {
            if !vnic.offer(frame, fcs, &mut bus, &mut budget) {
                *stuck |= port.bit();
                break;
            }
            switch.pop_inbox(port);
            if vnic.behind {
                break;
            }
        }
        drop(bus);
        vnic.publish(port, owner, (*stuck, now), changes);
    }
}
