//! The physical card in a guest's hands.
//!
//! A guest that is alone on the network, behind an IOMMU, needs nobody between itself and the card: its software card is
//! loaded into the physical one, whose registers it gets in place of the mirror, and whose DMA reaches its memory and
//! nothing else. When somebody else goes on-line, or the guest touches what must outlive it, the card comes back into the
//! software card, and all goes on by the mirror. Key types: [`CardOwner`]; [`DirectPolicy`], what a guest may do with the card
//! itself. The card comes back in three steps: the guest's accesses exit again (the owner carries
//! [`Segment::shown`] out), the card stops and is saved, the driver starts it. What each kind of card takes for that is
//! [`Loadable`], a file each.
//!
//! Source: Xia et al., section 3.3 (handoff in reusable states). Deviation: there is one handoff, between guest and
//! driver; guests that share have no turns, since the driver sends what all of them have vetted.

mod e1000;
mod rtl8139;

use crate::mirror::{Direction, show_all};
use crate::nic::{Nic, Register};
use crate::owner::{CardOwner, DirectPolicy, Handoffs, Late, shown};
use crate::segment::Segment;
use crate::world::{Guests, World};
use sluice_model::{Effects, Model, RegisterId, Seen, Tracker};
use sluice_nic::dma::Dma;
use sluice_nic::e1000::registers::Receive;
use sluice_switch::{MAX_PORTS, PortId};
use sluice_uplink::Card;

/// How long a guest has been alone when it gets the card.
const SETTLE: u64 = 100_000_000;
/// How often to look whether a card that is wanted back is calm.
const WATCH: u64 = 1_000_000;
/// How long a guest that never comes to rest keeps it.
const PATIENCE: u64 = 20_000_000;

/// What a write to this register does outlives the guest that has the card.
fn lasts(model: &Model, register: RegisterId) -> bool {
    let lasts = Effects::UNLOCKS | Effects::LINGERS | Effects::BURNS | Effects::WRITES_MEMORY;
    model.register(register).is_none_or(|register| register.write.intersects(lasts))
}

/// A software card that can be loaded into a physical one of its kind, and back. In order: `load`, `start`, then the
/// guest has it, `stop`, `recover`; `scrub` at any time after `start`.
trait Loadable {
    /// All that it is can be loaded now. `memory`: its guest's.
    fn can_leave(&self, memory: &mut dyn Dma) -> bool;

    /// Brings what no register holds into the physical card, which its driver has stopped and whose memory is the
    /// driver's. False if the wire came in between.
    fn load(&mut self, card: &mut Card<'_>) -> bool;

    /// Brings in the rest and starts the physical card. From here on it masters the bus for the guest.
    fn start(&mut self, card: &mut Card<'_>, handling: DirectPolicy);

    /// The guest that has the card reads, but by an exit. `None` if only the software card has that register.
    fn read(&self, card: &mut Card<'_>, register: Register, width: u8) -> Option<u32>;

    /// The guest that has the card writes, but by an exit. False if the write cannot go to the physical card: it
    /// outlives the guest, or the guest is done with the card.
    fn write(
        &mut self,
        card: &mut Card<'_>,
        at: (&'static Model, u8),
        register: Register,
        width: u8,
        value: u32,
    ) -> bool;

    /// Nothing is under way that the guest's driver has begun.
    fn is_calm(&self, card: &mut Card<'_>, memory: &mut dyn Dma) -> bool;

    /// Stops the physical card and brings back what registers and the guest's memory tell.
    fn stop(&mut self, card: &mut Card<'_>, memory: &mut dyn Dma, handling: DirectPolicy);

    /// Brings back what only the card knows; its memory is the driver's again.
    fn recover(&mut self, card: &mut Card<'_>);

    /// Leaves nothing of a guest in the physical card, whose memory is the driver's again.
    fn scrub(&self, card: &mut Card<'_>);
}

impl Nic {
    /// Somebody is on the network with it.
    fn is_online(&self) -> bool {
        match self {
            Self::E1000(card) => card.regs.receive().contains(Receive::ENABLE) || card.regs.transmitter_on(),
            Self::Rtl8139(card) => card.regs.receiving() || card.regs.transmitting(),
            Self::Ne2000(card) => !card.regs.stopped(),
        }
    }

    /// A register's value, for one that reading does not change.
    fn register(&self, model: &Model, id: RegisterId) -> u32 {
        let offset = model.register(id).map_or(u32::MAX, |register| register.first);
        match self {
            Self::E1000(card) => card.image(offset),
            Self::Rtl8139(card) => card.image(offset as u16 & !3) >> (8 * (offset & 3)),
            Self::Ne2000(_) => u32::MAX,
        }
    }

    /// It, if there is a way to load it into a physical card.
    fn loadable(&mut self) -> Option<&mut dyn Loadable> {
        match self {
            Self::E1000(card) => Some(&mut **card),
            Self::Rtl8139(card) => Some(&mut **card),
            Self::Ne2000(_) => None,
        }
    }
}

impl Segment {
    /// Says whether the guest at a port may have the card itself: it is of the same kind, and an IOMMU keeps it within
    /// the guest's memory.
    pub fn allow(&mut self, port: PortId, handling: DirectPolicy) {
        if let Some(station) = self.station_mut(port) {
            station.handling = handling;
        }
    }

    /// The guest that has the card itself: its interrupts are that guest's, and so is the line.
    pub const fn holder(&self) -> Option<PortId> {
        self.hands.guest()
    }

    /// How often the card changed hands.
    pub const fn handoffs(&self) -> Handoffs {
        self.handoffs
    }

    fn online(&self) -> impl Iterator<Item = PortId> + '_ {
        let ports = (0..MAX_PORTS).filter_map(PortId::from_index);
        ports.filter(|port| self.station(*port).is_some_and(|station| station.nic.is_online()))
    }

    /// Moves the card on, if it is time, and notes when to look again.
    pub(crate) fn hand_over<G: Guests>(&mut self, world: &mut World<'_, G>) {
        match self.hands {
            CardOwner::Driver => self.give(world),
            CardOwner::Guest(port) => {
                if self.online().any(|other| other != port) {
                    self.hands = CardOwner::Wanted(port, world.now);
                    self.take_when_calm(world);
                }
            }
            CardOwner::Wanted(..) => self.take_when_calm(world),
            CardOwner::Leaving(..) => {}
        }
        let soon = world.now.saturating_add(WATCH);
        self.hand_over_at = match self.hands {
            CardOwner::Driver => self.alone.map(|(_, since)| since.saturating_add(SETTLE).max(soon)),
            CardOwner::Wanted(..) => Some(soon),
            CardOwner::Guest(_) | CardOwner::Leaving(..) => None,
        };
    }

    /// Gives it to a guest that has been alone for long enough.
    fn give<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let mut online = self.online();
        let alone = online.next().filter(|_| online.next().is_none());
        drop(online);
        let fit = |station: &crate::station::Station| {
            station.handling != DirectPolicy::Never
                && station.mirror.is_some()
                && station.master
                && !station.silent
        };
        let Some(port) = alone.filter(|port| self.station(*port).is_some_and(fit)) else {
            self.alone = None;
            return;
        };
        if self.alone.is_none_or(|(last, _)| last != port) {
            self.alone = Some((port, world.now));
        }
        if self.alone.is_none_or(|(_, since)| world.now < since.saturating_add(SETTLE)) {
            return;
        }
        // It may be busy now.
        let soon = world.now.saturating_add(WATCH);
        self.alone = Some((port, soon.saturating_sub(SETTLE)));
        // What has come until now.
        self.interrupt(world);
        if self.switch.waiting() & port.bit() != 0 || self.switch.outbox().is_some() {
            return;
        }
        let Some(mut memory) = world.guests.memory(port) else { return };
        let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        station.look();
        let handling = station.handling;
        let Some(software) = station.nic.loadable().filter(|it| it.can_leave(&mut memory)) else { return };
        drop(memory);
        self.uplink.stop(&mut world.card);
        if software.load(&mut world.card) && world.guests.lend(Some(port)) {
            software.start(&mut world.card, handling);
            self.hands = CardOwner::Guest(port);
            self.handoffs.all += 1;
            self.alone = None;
            return self.settle(port);
        }
        self.uplink.start(&mut world.card);
        self.alone = Some((port, world.now));
    }

    fn take_when_calm<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let CardOwner::Wanted(port, since) = self.hands else { return };
        let memory = world.guests.memory(port);
        let software = self.station_mut(port).and_then(|station| station.nic.loadable());
        let calm = match (software, memory) {
            (Some(software), Some(mut memory)) => software.is_calm(&mut world.card, &mut memory),
            _ => true,
        };
        if calm {
            self.take(port, None);
        } else if world.now.saturating_sub(since) >= PATIENCE {
            self.handoffs.forced += 1;
            self.take(port, None);
        }
    }

    /// The guest's accesses are to exit; [`Segment::carried_out`] does the rest.
    pub(crate) fn take(&mut self, port: PortId, late: Option<Late>) {
        self.hands = CardOwner::Leaving(port, late);
        self.settle(port);
    }

    /// A read of the guest that has the card. `None` if it is of the software card after all.
    pub(crate) fn read_through<G: Guests>(
        &mut self,
        world: &mut World<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
    ) -> Option<u32> {
        if self.hands.guest() != Some(port) || matches!(self.hands, CardOwner::Leaving(..)) {
            return None;
        }
        self.station_mut(port)?.nic.loadable()?.read(&mut world.card, register, width)
    }

    /// A write of the guest that has the card. False if it is for the software card after all.
    pub(crate) fn write_through<G: Guests>(
        &mut self,
        world: &mut World<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        value: u32,
    ) -> bool {
        if self.hands.guest() != Some(port) || matches!(self.hands, CardOwner::Leaving(..)) {
            return false;
        }
        let Some(station) = self.station_mut(port) else { return false };
        let (model, tracker) = (station.device, station.tracker);
        let done = model.zip(station.nic.loadable()).is_some_and(|(model, software)| {
            let page = tracker.page(model).unwrap_or(0);
            software.write(&mut world.card, (model, page), register, width, value)
        });
        if done {
            station.follow(register, width, value, Seen::WriteWord);
        } else {
            self.take(port, Some(Late { register, width, value }));
        }
        true
    }

    /// Brings the card back: its guest's accesses exit.
    pub(crate) fn bring_back<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let CardOwner::Leaving(port, late) = self.hands else { return };
        let memory = world.guests.memory(port);
        let station = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut);
        if let (Some(station), Some(mut memory)) = (station, memory)
            && let Some(software) = station.nic.loadable()
        {
            software.stop(&mut world.card, &mut memory, station.handling);
            drop(memory);
            world.guests.lend(None);
            software.recover(&mut world.card);
            if let (Some(mirror), Some(model)) = (&mut station.mirror, station.device) {
                show_all(&station.nic, &mut **mirror);
                // What it did unseen meanwhile, its registers tell.
                let direct = shown(model, station.handling, CardOwner::Guest(port)).direct;
                let exists = |page: u32| model.space.all_units(model.ports) >> page & 1 != 0;
                let mut pages = (0..).zip(direct);
                if pages.any(|(page, direct)| exists(page) && direct.contains(Direction::WRITE)) {
                    station.tracker = Tracker::told(model, &mut |id| station.nic.register(model, id));
                }
            }
        }
        self.retake(world);
        self.use_wire(world);
        if let Some(Late { register, width, value }) = late {
            let bytes = value.to_le_bytes();
            self.write(world, port, register, width, bytes.get(..usize::from(width)).unwrap_or(&bytes));
        }
        self.settle(port);
    }

    /// The card is the driver's again, whatever its guest did with it.
    pub(crate) fn retake<G: Guests>(&mut self, world: &mut World<'_, G>) {
        self.uplink.stop(&mut world.card);
        world.guests.lend(None);
        let holder = self.hands.guest();
        if let Some(software) =
            holder.and_then(|port| self.station_mut(port)).and_then(|it| it.nic.loadable())
        {
            software.scrub(&mut world.card);
        }
        self.hands = CardOwner::Driver;
        self.handoffs.all += 1;
        self.uplink.start(&mut world.card);
    }
}
