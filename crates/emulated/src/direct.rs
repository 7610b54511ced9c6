//! The physical card in a guest's hands.
//!
//! A guest that is alone on the network, behind an IOMMU, needs nobody between itself and the card: its software card is
//! loaded into the physical one, whose registers it gets in place of the mirror, and whose DMA reaches its memory and
//! nothing else. When somebody else goes on-line, or the guest touches what must outlive it, the card comes back into the
//! software card, and all goes on by the mirror. Key types: [`Hands`]; [`Handling`], what a guest may do with the card
//! itself. The card comes back in three steps: the guest's accesses exit again (the owner carries
//! [`Segment::shown`] out), the card stops and is saved, the driver starts it.
//!
//! Source: Xia et al., section 3.3 (handoff in reusable states). Deviation: there is one handoff, between guest and
//! driver; guests that share have no turns, since the driver sends what all of them have vetted.

pub(crate) mod e1000;

use crate::mirror::{Shown, show_all, unhooked};
use crate::nic::{Nic, Register};
use crate::segment::{Guests, Segment, World};
use sluice_nic::e1000::registers::{Receive, reg};
use sluice_switch::{MAX_PORTS, PortId};
use sluice_vpio::model::{Effects, Model, RegisterId};
use sluice_vpio::{Questions, Tracker, hook_set};

/// How long a guest has been alone when it gets the card.
const SETTLE: u64 = 100_000_000;
/// How often to look whether a card that is wanted back is calm.
const WATCH: u64 = 1_000_000;
/// How long a guest that never comes to rest keeps it.
const PATIENCE: u64 = 20_000_000;

/// What a guest may do with the physical card when it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handling {
    /// It never has it.
    #[default]
    Never,
    /// All but what outlives it: EEPROM, PHY, wake-up.
    Guarded,
    /// Everything, as with passthrough.
    Open,
}

/// A write that waits until the card has come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    register: Register,
    width: u8,
    value: u32,
}

/// In whose hands the physical card is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hands {
    /// The driver's.
    Driver,
    /// This guest's.
    Guest(PortId),
    /// This guest's, and wanted back since then.
    Wanted(PortId, u64),
    /// Still this guest's, but its accesses exit from now on.
    Leaving(PortId, Option<Late>),
}

impl Hands {
    /// The driver may work the card.
    pub(crate) const fn are_driver(self) -> bool {
        matches!(self, Self::Driver)
    }

    /// The guest that has it.
    pub(crate) const fn guest(self) -> Option<PortId> {
        match self {
            Self::Driver => None,
            Self::Guest(port) | Self::Wanted(port, _) | Self::Leaving(port, _) => Some(port),
        }
    }
}

/// How often the card changed hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handoffs {
    /// All.
    pub all: u64,
    /// Those while its guest was in the midst of something.
    pub forced: u64,
}

/// What a guest that has the card does without an exit.
pub(crate) fn shown(model: &'static Model, handling: Handling, hands: Hands) -> Shown {
    let questions = match (hands, handling) {
        (Hands::Leaving(..), _) => Questions::ABSENT,
        (_, Handling::Open) => Questions::SHADOW,
        _ => Questions::SHADOW | Questions::PRESERVE,
    };
    Shown { direct: unhooked(hook_set(model, &[], questions)), hardware: true }
}

/// A write to the card that can go to it although writes of its page are hooked: it lasts no longer than the guest has
/// the card, and the guest keeps it.
fn passes(model: &'static Model, register: Register, width: u8, value: u32) -> bool {
    /// MDIC: read, write.
    const READ: u32 = 1 << 27;
    const WRITE: u32 = 1 << 26;
    let lasts = Effects::UNLOCKS | Effects::LINGERS | Effects::BURNS | Effects::WRITES_MEMORY;
    let named = model.find(register.offset, 0).and_then(|id| model.register(id));
    match register.offset {
        offset if register.io || width != 4 || offset & 3 != 0 => false,
        // Reading the PHY does nothing to it.
        reg::MDIC => value & (READ | WRITE) == READ,
        reg::RCTL => value & Receive::ENABLE.bits() != 0,
        _ => named.is_some_and(|named| !named.write.intersects(lasts)),
    }
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

    /// It can be loaded into a physical card of its kind now.
    fn can_leave(&self) -> bool {
        match self {
            Self::E1000(card) => {
                !card.transmitting()
                    && card.regs.get(reg::TDH) == card.regs.get(reg::TDT)
                    && !card.loops_back()
            }
            Self::Rtl8139(_) | Self::Ne2000(_) => false,
        }
    }
}

impl Segment {
    /// Says whether the guest at a port may have the card itself: it is of the same kind, and an IOMMU keeps it within
    /// the guest's memory.
    pub fn allow(&mut self, port: PortId, handling: Handling) {
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
            Hands::Driver => self.give(world),
            Hands::Guest(port) => {
                if self.online().any(|other| other != port) {
                    self.hands = Hands::Wanted(port, world.now);
                    self.take_when_calm(world);
                }
            }
            Hands::Wanted(..) => self.take_when_calm(world),
            Hands::Leaving(..) => {}
        }
        let soon = world.now.saturating_add(WATCH);
        self.hand_over_at = match self.hands {
            Hands::Driver => self.alone.map(|(_, since)| since.saturating_add(SETTLE).max(soon)),
            Hands::Wanted(..) => Some(soon),
            Hands::Guest(_) | Hands::Leaving(..) => None,
        };
    }

    /// Gives it to a guest that has been alone for long enough.
    fn give<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let mut online = self.online();
        let alone = online.next().filter(|_| online.next().is_none());
        drop(online);
        let fit = |station: &crate::segment::Station| {
            station.handling != Handling::Never
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
        // What has come until now.
        self.interrupt(world);
        let ready = self.station(port).is_some_and(|station| station.nic.can_leave())
            && self.switch.waiting() & port.bit() == 0
            && self.switch.outbox().is_none();
        let Some(station) = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        station.look();
        let Nic::E1000(software) = &mut station.nic else { return };
        if ready {
            self.uplink.stop(&mut world.card);
            e1000::load(software, &mut world.card);
            if world.guests.lend(Some(port)) {
                e1000::start(software, &mut world.card);
                self.hands = Hands::Guest(port);
                self.handoffs.all += 1;
                self.alone = None;
                return self.settle(port);
            }
            self.uplink.start(&mut world.card);
        }
        self.alone = Some((port, world.now));
    }

    fn take_when_calm<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let Hands::Wanted(port, since) = self.hands else { return };
        if e1000::is_calm(world.card.registers) {
            self.take(port, None);
        } else if world.now.saturating_sub(since) >= PATIENCE {
            self.handoffs.forced += 1;
            self.take(port, None);
        }
    }

    /// The guest's accesses are to exit; [`Segment::carried_out`] does the rest.
    pub(crate) fn take(&mut self, port: PortId, late: Option<Late>) {
        self.hands = Hands::Leaving(port, late);
        self.settle(port);
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
        if self.hands.guest() != Some(port) || matches!(self.hands, Hands::Leaving(..)) {
            return false;
        }
        let model = self.station(port).and_then(|station| station.device);
        if model.is_some_and(|model| passes(model, register, width, value)) {
            world.card.registers.write(register.offset as u16, width, value);
            if register.offset == reg::RCTL
                && let Some(station) = self.station_mut(port)
                && let Nic::E1000(software) = &mut station.nic
            {
                software.regs.set(reg::RCTL, value);
            }
        } else {
            self.take(port, Some(Late { register, width, value }));
        }
        true
    }

    /// Brings the card back: its guest's accesses exit.
    pub(crate) fn bring_back<G: Guests>(&mut self, world: &mut World<'_, G>) {
        let Hands::Leaving(port, late) = self.hands else { return };
        let memory = world.guests.memory(port);
        let station = self.stations.get_mut(port.index()).and_then(Option::as_deref_mut);
        if let (Some(station), Some(mut memory)) = (station, memory)
            && let Nic::E1000(software) = &mut station.nic
        {
            e1000::stop(software, &mut world.card, &mut memory);
            if let (Some(mirror), Some(model)) = (&mut station.mirror, station.device) {
                show_all(&station.nic, &mut **mirror);
                // What it did meanwhile, its registers tell.
                station.tracker = Tracker::told(model, &mut |id| station.nic.register(model, id));
            }
        }
        self.retake(world);
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
        e1000::scrub(&mut world.card);
        self.hands = Hands::Driver;
        self.handoffs.all += 1;
        self.uplink.start(&mut world.card);
    }
}
