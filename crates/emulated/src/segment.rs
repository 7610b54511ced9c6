//! Software cards, the switch and the uplink, put together.

use crate::mirror::{self, Mirror, Shown};
use crate::names;
use crate::nic::{Description, FRAME, Offer, Outgoing, Register, describe};
use crate::owner::{CardOwner, Handoffs};
use crate::station::{Changes, Station};
use crate::world::{Guests, World};
use alloc::boxed::Box;
use core::array;
use sluice_abi::config::NicModel;
use sluice_model::Seen;
use sluice_nic::Budget;
use sluice_switch::{AttachError, MAX_PORTS, PortId, Switch, Verdict};
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

pub(crate) type Stations = [Option<Box<Station>>; MAX_PORTS];

/// A network segment: guests' cards, the switch, the uplink.
pub struct Segment {
    pub(crate) switch: Switch,
    pub(crate) stations: Stations,
    pub(crate) uplink: Box<dyn Uplink>,
    pub(crate) hands: CardOwner,
    pub(crate) handoffs: Handoffs,
    /// The guest that could have the physical card, and since when.
    pub(crate) alone: Option<(PortId, u64)>,
    /// When to look whether the card can change hands.
    pub(crate) hand_over_at: Option<u64>,
    /// Ports whose card has no room, by bit: offered nothing until its guest has done something.
    stuck: u16,
    changes: Changes,
    /// Something is left to do that no interrupt will tell of, and is to be done then.
    again: Option<u64>,
    /// The frame going out of a guest's card.
    frame: Box<[u8; FRAME]>,
}

impl Segment {
    /// Nobody on a switch whose uplink is driven by `uplink`, not started yet.
    pub fn new(uplink: Box<dyn Uplink>) -> Self {
        let stations = array::from_fn(|_| None);
        Self {
            switch: Switch::new(),
            stations,
            uplink,
            hands: CardOwner::Driver,
            handoffs: Handoffs::default(),
            alone: None,
            hand_over_at: None,
            stuck: 0,
            changes: Changes::default(),
            again: None,
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

    /// Plugs in a card of this model for a guest with this station address.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&mut self, model: NicModel, mac: [u8; 6]) -> Result<PortId, AttachError> {
        let port = self.switch.attach(mac)?;
        let station = Station::new(model, mac);
        if let Some(slot) = self.stations.get_mut(port.index()) {
            *slot = Some(Box::new(station));
        }
        Ok(port)
    }

    /// For how many times as much as others a guest has the wire when several want it.
    pub fn set_weight(&mut self, port: PortId, weight: u8) {
        self.switch.set_weight(port, weight);
    }

    /// Shows the guest at a port its card in memory from now on, as far as [`Self::shown`] says.
    pub fn show(&mut self, port: PortId, mut mirror: Box<dyn Mirror>) {
        if let Some(station) = self.station_mut(port) {
            mirror::show_all(&station.nic, &mut *mirror);
            station.mirror = Some(mirror);
        }
        self.settle(port);
    }

    /// Pulls a guest's card out, and takes the physical one back from it.
    pub fn unplug<G: Guests>(&mut self, world: &mut World<'_, G>, port: PortId) {
        if self.hands.guest() == Some(port) {
            self.retake(world);
        }
        self.detach(port);
        self.use_wire(world);
        self.hand_over(world);
    }

    /// Pulls a card out that has done nothing yet.
    pub fn detach(&mut self, port: PortId) {
        self.switch.detach(port);
        if let Some(slot) = self.stations.get_mut(port.index()) {
            *slot = None;
        }
        self.stuck &= !port.bit();
        self.changes.shown &= !port.bit();
        self.changes.lines &= !port.bit();
        self.changes.resumes &= !port.bit();
    }

    /// How the card at a port looks on the PCI bus.
    pub fn describe(&self, port: PortId) -> Option<Description> {
        Some(describe(self.station(port)?.model))
    }

    /// The guest lets its card master the bus, or not; and raise its line, or not.
    pub fn configure(&mut self, port: PortId, master: bool, silent: bool) {
        if let Some(station) = self.station_mut(port) {
            (station.master, station.silent) = (master, silent);
        }
        if self.hands.guest() == Some(port) && (!master || silent) {
            self.take(port, None);
        }
        self.settle(port);
    }

    /// The guest reads: one element of `width` bytes, or several of the same register.
    pub fn read<G: Guests>(
        &mut self,
        world: &mut World<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        into: &mut [u8],
    ) {
        let Some(station) = self.station_mut(port) else { return into.fill(0xff) };
        station.count(register, width, into.len());
        if let Some(value) = self.read_through(world, port, register, width) {
            let bytes = value.to_le_bytes();
            let elements = into.chunks_mut(usize::from(width).max(1));
            return elements.flat_map(|it| it.iter_mut().zip(bytes)).for_each(|(to, from)| *to = from);
        }
        let Some(station) = self.station_mut(port) else { return into.fill(0xff) };
        station.nic.advance(world.now);
        station.look();
        if into.len() == usize::from(width) {
            let value = station.nic.read(register, width);
            into.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
            station.follow(register, width, value, Seen::Read);
        } else {
            station.nic.read_string(register, width, into);
        }
        self.settle(port);
    }

    /// The guest writes, see [`Self::read`]; and what follows from it.
    pub fn write<G: Guests>(
        &mut self,
        world: &mut World<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        from: &[u8],
    ) {
        let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        station.count(register, width, from.len());
        if self.write_through(world, port, register, width, value_of(from)) {
            return;
        }
        let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        station.nic.advance(world.now);
        station.look();
        let mut bus = station.bus(world.guests, port);
        if from.len() == usize::from(width) {
            station.nic.write(register, width, value_of(from), &mut bus);
        } else {
            station.nic.write_string(register, width, from, &mut bus);
        }
        drop(bus);
        for element in from.chunks(usize::from(width).max(1)) {
            station.follow(register, width, value_of(element), Seen::WriteWord);
        }
        if let Some(mirror) = &mut station.mirror {
            mirror::show_written(&station.nic, register, &mut **mirror);
        }
        let pauses = station.resumes_at.is_some_and(|at| at > world.now);
        self.stuck &= !port.bit();
        if !pauses {
            self.pump(world, port);
        }
        self.deliver(world);
        self.settle(port);
        self.hand_over(world);
    }

    /// When the guest at a port is to call [`Self::resume`]: its card has more to do than one call may.
    pub fn resumes_at(&self, port: PortId) -> Option<u64> {
        self.station(port)?.resumes_at
    }

    /// Goes on with what the card at a port has left to do, as far as a call may. To be called when
    /// [`Self::resumes_at`] has come, in the time of its guest: nobody else's call does this work.
    pub fn resume<G: Guests>(&mut self, world: &mut World<'_, G>, port: PortId) {
        if let Some(station) = self.station_mut(port) {
            station.behind = false;
        }
        self.pump(world, port);
        self.deliver(world);
        self.settle(port);
    }

    /// The physical card interrupts. Not for the segment while a guest has it ([`Self::holder`]).
    pub fn interrupt<G: Guests>(&mut self, world: &mut World<'_, G>) {
        if !self.hands.is_driver() {
            return;
        }
        let Self { switch, stations, uplink, hands, stuck, changes, .. } = self;
        let World { card, guests, .. } = world;
        let more = uplink.poll(card, &mut |frame| {
            if switch.receive(frame) {
                deliver(switch, stations, *hands, stuck, changes, *guests);
            }
        });
        if more {
            let later = world.after_pause();
            self.again.get_or_insert(later);
        }
        self.use_wire(world);
    }

    /// [`Self::deadline`] has come, or a guest was [configured](Self::configure).
    pub fn poll<G: Guests>(&mut self, world: &mut World<'_, G>) {
        self.poll_stations(world);
        self.hand_over(world);
    }

    fn poll_stations<G: Guests>(&mut self, world: &mut World<'_, G>) {
        for (index, station) in self.stations.iter_mut().enumerate() {
            if let (Some(station), Some(port)) = (station, PortId::from_index(index))
                && self.hands.guest() != Some(port)
                && station.nic.deadline().is_some_and(|at| at <= world.now)
            {
                station.nic.advance(world.now);
                self.stuck &= !port.bit();
                station.settle(port, self.hands, self.stuck, &mut self.changes);
            }
        }
        if self.again.is_some_and(|at| at <= world.now) {
            self.again = None;
            return self.interrupt(world);
        }
        if self.again.is_none() {
            return self.use_wire(world);
        }
        // Timers do not bring forward what is to wait.
        self.deliver(world);
    }

    /// When to call [`Self::poll`].
    pub fn deadline(&self) -> Option<u64> {
        let holder = self.hands.guest().map(PortId::index);
        let stations = self.stations.iter().enumerate().filter(|(index, _)| Some(*index) != holder);
        let cards = stations.filter_map(|(_, station)| station.as_ref()?.nic.deadline());
        cards.chain(self.again).chain(self.hand_over_at).min()
    }

    /// Guests at these ports ([`PortId::bit`]) do no more than [`Self::shown`] says from now on: what they wrote before
    /// counts.
    pub fn carried_out<G: Guests>(&mut self, world: &mut World<'_, G>, ports: u16) {
        if self.hands.guest().is_some_and(|port| ports & port.bit() != 0) {
            self.bring_back(world);
        }
        if self.stuck & ports != 0 {
            self.stuck &= !ports;
            self.deliver(world);
        }
    }

    /// Level of a guest's line.
    pub fn line(&self, port: PortId) -> bool {
        self.station(port).is_some_and(|station| station.line)
    }

    /// What the guest at a port finds in its card's memory. Nothing, until [`Self::show`].
    pub fn shown(&self, port: PortId) -> Shown {
        self.station(port).map_or(Shown::default(), |station| station.shown)
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        core::mem::take(&mut self.changes)
    }

    /// Counters of a guest.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        let (station, switch) = (self.station(port)?, self.switch.counters(port)?);
        Some(Counters {
            elements: station.elements,
            instructions: station.instructions,
            tx_packets: switch.sent,
            tx_dropped: switch.dropped_out,
            rx_packets: station.rx_packets,
            rx_dropped: switch.dropped_in + station.rx_missed,
            forged: switch.forged,
            refused: switch.refused + station.nic.refused(),
        })
    }

    /// Accesses of a guest by register, in instructions; only those that occurred.
    pub fn by_register(&self, port: PortId) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.station(port).into_iter().flat_map(|station| {
            let counts = station.by_register.iter().copied().enumerate().filter(|(_, count)| *count != 0);
            counts.map(|(index, count)| (names::name(station.model, index), count))
        })
    }

    pub(crate) fn station(&self, port: PortId) -> Option<&Station> {
        self.stations.get(port.index())?.as_deref()
    }

    pub(crate) fn station_mut(&mut self, port: PortId) -> Option<&mut Station> {
        self.stations.get_mut(port.index())?.as_deref_mut()
    }

    pub(crate) fn settle(&mut self, port: PortId) {
        if let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) {
            station.settle(port, self.hands, self.stuck, &mut self.changes);
        }
    }

    /// Puts on the wire what waited for it. Cards that waited for room behind it go on in their guests' time.
    pub(crate) fn use_wire<G: Guests>(&mut self, world: &mut World<'_, G>) {
        self.flush(&mut world.card);
        let Self { switch, stations, changes, .. } = self;
        for (port, station) in occupied(stations) {
            if station.resumes_at.is_none() && station.nic.is_sending() && switch.has_room(port) {
                station.resume_at(port, Some(world.now), changes);
            }
        }
        self.deliver(world);
    }

    /// Sends what a guest's card has to send, as far as there is room and a call may.
    fn pump<G: Guests>(&mut self, world: &mut World<'_, G>, port: PortId) {
        let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        station.resume_at(port, None, &mut self.changes);
        station.look();
        let mut bus = None;
        let mut budget = Budget::default();
        while !budget.is_spent() {
            if !self.switch.has_room(port) {
                // The wire interrupts when it takes frames again, and this card goes on then.
                flush(&mut self.switch, &mut *self.uplink, self.hands, &mut world.card);
                if !self.switch.has_room(port) && station.nic.is_sending() {
                    return;
                }
            }
            if bus.is_none() {
                bus = Some(station.bus(world.guests, port));
            }
            let Some(bus) = bus.as_mut() else { return };
            match station.nic.transmit(bus, &mut self.frame, &mut budget) {
                Outgoing::Idle => return self.flush(&mut world.card),
                Outgoing::Busy => {}
                Outgoing::Frame(frame) => {
                    // What became of it, the switch counts; the card has sent it in any case.
                    let _: Verdict = self.switch.send(port, frame);
                }
            }
        }
        drop(bus);
        if station.nic.is_sending() {
            station.resume_at(port, Some(world.after_pause()), &mut self.changes);
        }
        self.flush(&mut world.card);
    }

    fn flush(&mut self, card: &mut Card<'_>) {
        flush(&mut self.switch, &mut *self.uplink, self.hands, card);
    }

    fn deliver<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let Self { switch, stations, hands, stuck, changes, .. } = self;
        deliver(switch, stations, *hands, stuck, changes, world.guests);
        for (port, station) in occupied(stations) {
            if station.behind && station.resumes_at.is_none() {
                station.resume_at(port, Some(world.after_pause()), changes);
            }
        }
    }
}

/// The stations that there are.
fn occupied(stations: &mut Stations) -> impl Iterator<Item = (PortId, &mut Station)> {
    let ports = (0..MAX_PORTS).filter_map(PortId::from_index);
    ports.zip(stations).filter_map(|(port, station)| Some((port, station.as_deref_mut()?)))
}

/// Up to four bytes as a number.
fn value_of(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u32::from_le_bytes(word)
}

/// Frames from the switch to the wire, as long as it takes them.
fn flush(switch: &mut Switch, uplink: &mut dyn Uplink, hands: CardOwner, card: &mut Card<'_>) {
    if !hands.is_driver() {
        return;
    }
    while let Some(frame) = switch.outbox() {
        match uplink.send(card, frame) {
            Sent::Done | Sent::Refused => switch.pop_outbox(),
            Sent::Full => return,
        }
    }
}

/// Frames from the switch to the guests' cards, as long as they take them. A card that makes much work of them, such as by
/// a ring without buffers, gets the rest in its guest's time.
fn deliver<G: Guests>(
    switch: &mut Switch,
    stations: &mut Stations,
    hands: CardOwner,
    stuck: &mut u16,
    changes: &mut Changes,
    guests: &mut G,
) {
    // Whoever has the physical card gets what is for it when it is back.
    let mut ports = switch.waiting() & !*stuck & !hands.guest().map_or(0, PortId::bit);
    while ports != 0 {
        let index = ports.trailing_zeros() as usize;
        ports &= ports - 1;
        let Some(port) = PortId::from_index(index) else { return };
        let Some(station) = stations.get_mut(index).and_then(Option::as_deref_mut) else { continue };
        if station.behind {
            continue;
        }
        station.look();
        let mut bus = station.bus(guests, port);
        let mut budget = Budget::default();
        while let Some(frame) = switch.inbox(port) {
            match station.nic.offer(frame, &mut bus, &mut budget) {
                Offer::Stored => station.rx_packets += 1,
                Offer::Unwanted => {}
                Offer::Missed => station.rx_missed += 1,
                Offer::Later => {
                    *stuck |= port.bit();
                    break;
                }
            }
            switch.pop_inbox(port);
            if budget.is_spent() {
                station.behind = true;
                break;
            }
        }
        drop(bus);
        station.settle(port, hands, *stuck, changes);
    }
}
