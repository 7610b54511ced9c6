//! A guest's interface on a network: what is configured of it, where it is now, and what happened at it.
//!
//! What the guest finds in its place is the affair of who has it ([`Member`], or a card). Who changes what engines know of an interface holds
//! the locks of its network's engines, and then that of its seat.

use super::pool::Pool;
use super::reach::Reach;
use super::{Control, Member, Network};
use crate::domain::Domain;
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use sluice_abi::config;
use sluice_abi::report::Count;
use sluice_vif::{Active, Attributes, Card, Counters, Filter, VifId};

/// An interface.
pub struct Interface {
    network: Arc<Network>,
    seat: SpinLock<Seat>,
}

/// An interface as it is configured, where it is now, and what happened at it since the machine started.
struct Seat {
    attributes: Attributes,
    /// The VIF and the index of the engine that its driver tells of frames, while its guest is there.
    place: Option<(VifId, usize)>,
    /// What happened in earlier lives of the guest.
    earlier: Counters,
}

/// What engines know of a guest that has come.
pub enum Face {
    /// Who is told of what happened in its queues.
    Queues(Weak<dyn Member>),
    /// Who is told of what happened in the queues of the native face, and its memory.
    Native(Weak<dyn Member>, Arc<Pool>),
    /// The card that its driver drives.
    Card(Arc<dyn Card<Reach>>),
}

fn attributes(vif: &config::Vif) -> Attributes {
    let config::Vif { mac, share, limit, vlan, mtu, moderation, .. } = *vif;
    Attributes { mac, share, limit, vlan, mtu, moderation, filter: Filter::new(&vif.addresses) }
}

impl Interface {
    /// One whose guest is not there.
    pub fn new(network: Arc<Network>, vif: &config::Vif) -> Self {
        let seat = Seat { attributes: attributes(vif), place: None, earlier: Counters::default() };
        Self { network, seat: SpinLock::new(Rank::Seat, seat) }
    }

    /// Name of the network.
    pub fn network(&self) -> &str {
        self.network.name()
    }

    /// No engine does anything while this is held.
    pub fn lock(&self) -> Control<'_> {
        self.network.lock()
    }

    /// The guest tells of frames.
    pub fn ring(&self) {
        let place = self.seat.lock().place;
        if let Some((id, home)) = place {
            self.network.ring(home, id);
        }
    }

    /// The guest is there: it has a VIF from now on. `name` is for the log.
    pub fn comes(&self, name: &str, domain: &Arc<Domain>, face: Face) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        seat.place = control.join(seat.attributes, domain, face);
        if seat.place.is_none() {
            log::error!(
                "device {name}: network {} has too many interfaces, or another with this address: its driver will get no frames",
                self.network()
            );
        }
    }

    /// The guest is no more: when this returns, nothing of its memory is reached.
    pub fn goes(&self) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        let counters = seat.place.take().and_then(|(id, _)| control.leave(id));
        seat.earlier += counters.unwrap_or_default();
    }

    /// Sets what it may send, in whose name, and its VLAN.
    pub fn set(&self, vif: &config::Vif) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        seat.attributes = attributes(vif);
        seat.place.into_iter().for_each(|(id, _)| control.set(id, seat.attributes));
    }

    /// The driver has set its queues up, or let go of them. False: it broke the rules.
    pub fn activate(&self, control: &mut Control<'_>, active: Option<Active>) -> bool {
        let place = self.seat.lock().place;
        place.is_none_or(|(id, _)| control.activate(id, active))
    }

    /// What is set of it, and what happened at it.
    pub fn counts(&self, control: &mut Control<'_>) -> Vec<Count> {
        let seat = self.seat.lock();
        let mut all = seat.earlier;
        all += seat.place.and_then(|(id, _)| control.counters(id)).unwrap_or_default();
        let Attributes { share, limit, vlan, mtu, moderation, filter, .. } = seat.attributes;
        let set = [
            ("share", share.into()),
            ("limit", limit.unwrap_or(0)),
            ("vlan", vlan.unwrap_or(0).into()),
            ("mtu", mtu.into()),
            ("addresses", filter.addresses().len() as u64),
            ("moderation", moderation.into()),
        ];
        let counts = set.into_iter().chain(all.named());
        counts.map(|(name, value)| Count { name: name.into(), value }).collect()
    }
}
