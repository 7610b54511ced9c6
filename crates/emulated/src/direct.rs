//! The physical card while a guest owns it.
//!
//! A guest that is alone on the network, behind an IOMMU, needs nobody between itself and the card: its software card is
//! loaded into the physical one, whose registers it gets in place of the mirror, and whose DMA reaches its memory and
//! nothing else. When somebody else goes on-line, or the guest touches what must outlive it, the card comes back into the
//! software card, and all goes on by the mirror. Key types: [`CardOwner`]; [`DirectPolicy`], what a guest may do with the card
//! itself. The card comes back in three steps: the guest's accesses exit again (the caller carries
//! [`SharedNic::shown`] out), the card stops and is saved, the driver starts it. What each kind of card takes for that is
//! [`Loadable`], a file each.
//!
//! Source: Xia et al., section 3.3 (handoff in reusable states). Deviation: there is one handoff, between guest and
//! driver; guests that share have no turns, since the driver sends what all of them have vetted.

mod e1000;
mod rtl8139;

use crate::environment::{Environment, Guests};
use crate::mirror::{Direction, show_all};
use crate::nic::{Nic, Register};
use crate::owner::{CardOwner, DirectPolicy, Handoffs, Late, shown};
use crate::shared_nic::SharedNic;
use sluice_model::{Effects, Model, RegisterId, Seen, Tracker};
use sluice_nic::dma::Dma;
use sluice_nic::e1000::registers::Receive;
use sluice_switch::PortId;
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
    fn start(&mut self, card: &mut Card<'_>, policy: DirectPolicy);

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
    fn is_idle(&self, card: &mut Card<'_>, memory: &mut dyn Dma) -> bool;

    /// Stops the physical card and brings back what registers and the guest's memory tell.
    fn stop(&mut self, card: &mut Card<'_>, memory: &mut dyn Dma, policy: DirectPolicy);

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

impl SharedNic {
    /// Says whether the guest at a port may have the card itself: it is of the same kind, and an IOMMU keeps it within
    /// the guest's memory.
    pub fn allow(&mut self, port: PortId, policy: DirectPolicy) {
        if let Some(vnic) = self.vnic_mut(port) {
            vnic.policy = policy;
        }
    }

    /// The guest that has the card itself: its interrupts are that guest's, and so is the line.
    pub const fn holder(&self) -> Option<PortId> {
        self.owner.guest()
    }

    /// How often the card changed owners.
    pub const fn handoffs(&self) -> Handoffs {
        self.handoffs
    }

    fn online(&self) -> impl Iterator<Item = PortId> + '_ {
        let ports = (0..self.switch.span()).filter_map(PortId::from_index);
        ports.filter(|port| self.vnic(*port).is_some_and(|vnic| vnic.nic.is_online()))
    }

    /// Moves the card on, if it is time, and notes when to look again.
    pub(crate) fn hand_over<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        match self.owner {
            CardOwner::Driver => self.give(env),
            CardOwner::Guest(port) => {
                if self.online().any(|other| other != port) {
                    self.owner = CardOwner::Wanted(port, env.now);
                    self.take_when_idle(env);
                }
            }
            CardOwner::Wanted(..) => self.take_when_idle(env),
            CardOwner::Leaving(..) => {}
        }
        let soon = env.now.saturating_add(WATCH);
        self.hand_over_at = match self.owner {
            CardOwner::Driver => self.alone.map(|(_, since)| since.saturating_add(SETTLE).max(soon)),
            CardOwner::Wanted(..) => Some(soon),
            CardOwner::Guest(_) | CardOwner::Leaving(..) => None,
        };
    }

    /// Gives it to a guest that has been alone for long enough.
    fn give<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        let mut online = self.online();
        let alone = online.next().filter(|_| online.next().is_none() && !self.switch.is_limited());
        drop(online);
        let fit = |vnic: &crate::virtual_nic::VirtualNic| {
            vnic.policy != DirectPolicy::Never && vnic.mirror.is_some() && vnic.master && !vnic.silent
        };
        let Some(port) = alone.filter(|port| self.vnic(*port).is_some_and(fit)) else {
            self.alone = None;
            return;
        };
        if self.alone.is_none_or(|(last, _)| last != port) {
            self.alone = Some((port, env.now));
        }
        if self.alone.is_none_or(|(_, since)| env.now < since.saturating_add(SETTLE)) {
            return;
        }
        // It may be busy now.
        let soon = env.now.saturating_add(WATCH);
        self.alone = Some((port, soon.saturating_sub(SETTLE)));
        // What has come until now.
        self.interrupt(env);
        if self.switch.waiting() & port.bit() != 0 || self.switch.outbox().is_some() {
            return;
        }
        let Some(mut memory) = env.guests.memory(port) else { return };
        let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        vnic.look();
        let policy = vnic.policy;
        let Some(software) = vnic.nic.loadable().filter(|it| it.can_leave(&mut memory)) else { return };
        drop(memory);
        self.uplink.stop(&mut env.card);
        if software.load(&mut env.card) && env.guests.confine_dma(Some(port)) {
            software.start(&mut env.card, policy);
            self.owner = CardOwner::Guest(port);
            self.handoffs.all += 1;
            self.alone = None;
            return self.publish(port);
        }
        self.uplink.start(&mut env.card);
        self.alone = Some((port, env.now));
    }

    fn take_when_idle<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        let CardOwner::Wanted(port, since) = self.owner else { return };
        let memory = env.guests.memory(port);
        let software = self.vnic_mut(port).and_then(|vnic| vnic.nic.loadable());
        let calm = match (software, memory) {
            (Some(software), Some(mut memory)) => software.is_idle(&mut env.card, &mut memory),
            _ => true,
        };
        if calm {
            self.take(port, None);
        } else if env.now.saturating_sub(since) >= PATIENCE {
            self.handoffs.forced += 1;
            self.take(port, None);
        }
    }

    /// The guest's accesses are to exit; [`SharedNic::carried_out`] does the rest.
    pub(crate) fn take(&mut self, port: PortId, late: Option<Late>) {
        self.owner = CardOwner::Leaving(port, late);
        self.publish(port);
    }

    /// A read of the guest that has the card. `None` if it is of the software card after all.
    pub(crate) fn read_through<G: Guests>(
        &mut self,
        env: &mut Environment<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
    ) -> Option<u32> {
        if self.owner.guest() != Some(port) || matches!(self.owner, CardOwner::Leaving(..)) {
            return None;
        }
        self.vnic_mut(port)?.nic.loadable()?.read(&mut env.card, register, width)
    }

    /// A write of the guest that has the card. False if it is for the software card after all.
    pub(crate) fn write_through<G: Guests>(
        &mut self,
        env: &mut Environment<'_, G>,
        port: PortId,
        register: Register,
        width: u8,
        value: u32,
    ) -> bool {
        if self.owner.guest() != Some(port) || matches!(self.owner, CardOwner::Leaving(..)) {
            return false;
        }
        let Some(vnic) = self.vnic_mut(port) else { return false };
        let (model, tracker) = (vnic.device, vnic.tracker);
        let done = model.zip(vnic.nic.loadable()).is_some_and(|(model, software)| {
            let page = tracker.page(model).unwrap_or(0);
            software.write(&mut env.card, (model, page), register, width, value)
        });
        if done {
            vnic.follow(register, width, value, Seen::WriteWord);
        } else {
            self.take(port, Some(Late { register, width, value }));
        }
        true
    }

    /// Brings the card back: its guest's accesses exit.
    pub(crate) fn bring_back<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        let CardOwner::Leaving(port, late) = self.owner else { return };
        let memory = env.guests.memory(port);
        let vnic = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut);
        if let (Some(vnic), Some(mut memory)) = (vnic, memory)
            && let Some(software) = vnic.nic.loadable()
        {
            software.stop(&mut env.card, &mut memory, vnic.policy);
            drop(memory);
            env.guests.confine_dma(None);
            software.recover(&mut env.card);
            if let (Some(mirror), Some(model)) = (&mut vnic.mirror, vnic.device) {
                show_all(&vnic.nic, &mut **mirror);
                // What it did unseen meanwhile, its registers tell.
                let direct = shown(model, vnic.policy, CardOwner::Guest(port)).direct;
                let exists = |page: u32| model.space.all_units(model.ports) >> page & 1 != 0;
                let mut pages = (0..).zip(direct);
                if pages.any(|(page, direct)| exists(page) && direct.contains(Direction::WRITE)) {
                    vnic.tracker = Tracker::told(model, &mut |id| vnic.nic.register(model, id));
                }
            }
        }
        self.retake(env);
        self.use_wire(env);
        if let Some(Late { register, width, value }) = late {
            let bytes = value.to_le_bytes();
            self.write(env, port, register, width, bytes.get(..usize::from(width)).unwrap_or(&bytes));
        }
        self.publish(port);
    }

    /// The card is the driver's again, whatever its guest did with it.
    pub(crate) fn retake<G: Guests>(&mut self, env: &mut Environment<'_, G>) {
        self.uplink.stop(&mut env.card);
        env.guests.confine_dma(None);
        let holder = self.owner.guest();
        if let Some(software) = holder.and_then(|port| self.vnic_mut(port)).and_then(|it| it.nic.loadable()) {
            software.scrub(&mut env.card);
        }
        self.owner = CardOwner::Driver;
        self.handoffs.all += 1;
        self.uplink.start(&mut env.card);
    }
}
