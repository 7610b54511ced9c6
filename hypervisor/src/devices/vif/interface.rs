//! A guest's interface on a network: what is configured of it, where it is now, and what happened at it.
//!
//! What the guest finds in its place is the affair of who has it ([`Member`], or a card). Who changes what engines know of an interface holds
//! the locks of its network's engines, and then that of its seat.

use super::{Control, Member, Network};
use crate::devices::ram::Ram;
use crate::domain::Domain;
use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_abi::config;
use sluice_abi::report::Count;
use sluice_vif::{Active, Attributes, Card, Counters, VifId};

/// An interface.
pub struct Interface {
    network: Arc<Network>,
    /// Index of the engine that the driver tells of frames.
    home: AtomicUsize,
    seat: SpinLock<Seat>,
}

/// An interface as it is configured, where it is now, and what happened at it since the machine started.
struct Seat {
    attributes: Attributes,
    /// It is there while its guest is.
    id: Option<VifId>,
    /// What happened in earlier lives of the guest.
    earlier: Counters,
}

/// What engines know of a guest that has come.
pub enum Face {
    /// Who is told of what happened in its queues.
    Queues(Weak<dyn Member>),
    /// The card that its driver drives.
    Card(Arc<dyn Card<Ram>>),
}

fn attributes(vif: &config::Vif) -> Attributes {
    let config::Vif { mac, share, limit, vlan, mtu, moderation, .. } = *vif;
    Attributes { mac, share, limit, vlan, mtu, moderation }
}

impl Interface {
    /// One whose guest is not there.
    pub fn new(network: Arc<Network>, vif: &config::Vif) -> Self {
        let seat = Seat { attributes: attributes(vif), id: None, earlier: Counters::default() };
        Self { network, home: AtomicUsize::new(0), seat: SpinLock::new(Rank::Seat, seat) }
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
        let id = self.seat.lock().id;
        if let Some(id) = id {
            self.network.ring(self.home.load(Ordering::Relaxed), id);
        }
    }

    /// The guest is there: it has a VIF from now on. `name` is for the log.
    pub fn comes(&self, name: &str, domain: &Arc<Domain>, face: Face) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        let joined = control.join(seat.attributes, domain, face);
        if joined.is_none() {
            log::error!(
                "device {name}: network {} has too many interfaces, or another with this address: its driver will get no frames",
                self.network()
            );
        }
        seat.id = joined.map(|(id, home)| {
            self.home.store(home, Ordering::Relaxed);
            id
        });
    }

    /// The guest is no more: when this returns, nothing of its memory is reached.
    pub fn goes(&self) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        let counters = seat.id.take().and_then(|id| control.leave(id));
        seat.earlier += counters.unwrap_or_default();
    }

    /// Sets what it may send, and its VLAN.
    pub fn set(&self, vif: &config::Vif) {
        let mut control = self.lock();
        let mut seat = self.seat.lock();
        seat.attributes = attributes(vif);
        seat.id.into_iter().for_each(|id| control.set(id, seat.attributes));
    }

    /// The driver has set its queues up, or let go of them. False: it broke the rules.
    pub fn activate(&self, control: &mut Control<'_>, active: Option<Active>) -> bool {
        let id = self.seat.lock().id;
        id.is_none_or(|id| control.activate(id, active))
    }

    /// What is set of it, and what happened at it.
    pub fn counts(&self, control: &mut Control<'_>) -> Vec<Count> {
        let seat = self.seat.lock();
        let mut all = seat.earlier;
        all += seat.id.and_then(|id| control.counters(id)).unwrap_or_default();
        let Attributes { share, limit, vlan, moderation, .. } = seat.attributes;
        let set = [
            ("share", share.into()),
            ("limit", limit.unwrap_or(0)),
            ("vlan", vlan.unwrap_or(0).into()),
            ("moderation", moderation.into()),
        ];
        let counts = set.into_iter().chain(all.named());
        counts.map(|(name, value)| Count { name: name.into(), value }).collect()
    }
}
