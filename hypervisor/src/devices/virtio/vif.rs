//! A virtual network card that an engine serves: the virtio face of a VIF.
//!
//! Who changes what engines know of a card holds the locks of its network's engines, and then that of its link, as an engine does that signals.

use super::{Link, State};
use crate::devices::vif::{Control, Member, Network};
use crate::domain::Domain;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_abi::config;
use sluice_abi::report::Count;
use sluice_vif::{Active, Attributes, Counters, FEATURES, QUEUE_SIZE, QUEUES, RECEIVE, SEND, VifId};
use sluice_virtio::{Changes, Device, Kind};

/// Offsets in a network card's configuration (Virtio 1.2, 5.1.4).
mod offset {
    pub const STATUS: usize = 6;
    pub const MTU: usize = 10;
    pub const END: usize = 12;
}

/// The link is up.
const LINK_UP: u16 = 1;

/// What a link knows of its VIF.
pub(super) struct Vif {
    network: Arc<Network>,
    /// Index of the engine that the driver tells of frames.
    home: AtomicUsize,
}

/// A VIF as it is configured, where it is now, and what happened at it since the machine started.
pub(super) struct Seat {
    attributes: Attributes,
    /// It is there while its guest is.
    id: Option<VifId>,
    /// What happened in earlier lives of the guest.
    earlier: Counters,
}

fn attributes(vif: &config::Vif) -> Attributes {
    let config::Vif { mac, share, limit, vlan, mtu, moderation, .. } = *vif;
    Attributes { mac, share, limit, vlan, mtu, moderation }
}

impl Seat {
    pub(super) fn new(vif: &config::Vif) -> Self {
        Self { attributes: attributes(vif), id: None, earlier: Counters::default() }
    }

    /// What its guest's driver finds.
    pub(super) fn device(&self) -> Device {
        let mut config = [0; offset::END];
        config[..offset::STATUS].copy_from_slice(&self.attributes.mac);
        config[offset::STATUS..offset::STATUS + 2].copy_from_slice(&LINK_UP.to_le_bytes());
        config[offset::MTU..].copy_from_slice(&self.attributes.mtu.to_le_bytes());
        Device::served_here(Kind::Net, FEATURES, QUEUES, QUEUE_SIZE, &config)
    }
}

impl Vif {
    pub(super) fn new(network: Arc<Network>) -> Self {
        Self { network, home: AtomicUsize::new(0) }
    }

    /// Name of the network.
    pub(super) fn network(&self) -> &str {
        self.network.name()
    }

    /// No engine does anything while this is held.
    pub(super) fn lock(&self) -> Control<'_> {
        self.network.lock()
    }

    /// The guest tells of frames.
    pub(super) fn wake(&self) {
        self.network.wake(self.home.load(Ordering::Relaxed));
    }

    /// The guest is there: it has a VIF from now on.
    pub(super) fn comes(&self, link: &Arc<Link>, domain: &Arc<Domain>) {
        let mut control = self.lock();
        let member: Weak<dyn Member> = Arc::<Link>::downgrade(link);
        let wanted = link.with(|state| state.seat.as_ref().map(|seat| seat.attributes));
        let id = wanted.and_then(|attributes| control.join(attributes, domain, &member));
        let id = id.map(|(id, home)| {
            self.home.store(home, Ordering::Relaxed);
            id
        });
        if id.is_none() {
            log::error!(
                "device {}: network {} has too many interfaces, or another with this address: its driver will get no frames",
                link.name,
                self.network()
            );
        }
        link.with(|state| {
            if let Some(seat) = &mut state.seat {
                seat.id = id;
            }
        });
    }

    /// The guest is no more: when this returns, nothing of its memory is reached.
    pub(super) fn goes(&self, link: &Link) {
        let mut control = self.lock();
        link.with(|state| {
            if let Some(seat) = &mut state.seat {
                let counters = seat.id.take().and_then(|id| control.leave(id));
                seat.earlier += counters.unwrap_or_default();
            }
        });
    }

    /// Sets what it may send, and its VLAN.
    pub(super) fn set(&self, link: &Link, vif: &config::Vif) {
        let mut control = self.lock();
        link.with(|state| {
            if let Some(seat) = &mut state.seat {
                seat.attributes = attributes(vif);
                seat.id.into_iter().for_each(|id| control.set(id, seat.attributes));
            }
        });
    }

    /// What is set of it, and what happened at it.
    pub(super) fn counts(&self, control: &mut Control<'_>, seat: &Seat) -> Vec<Count> {
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

impl State {
    /// The driver has set its queues up, or let go of them: the engine learns of it.
    pub(super) fn activate(&mut self, control: &mut Control<'_>) -> Changes {
        let Some(id) = self.seat.as_ref().and_then(|seat| seat.id) else { return Changes::empty() };
        let queues = self.device.live_queue(RECEIVE).copied().zip(self.device.live_queue(SEND).copied());
        let features = self.device.accepted();
        let active = queues.map(|(receive, send)| Active { receive, send, features });
        if control.activate(id, active) { Changes::empty() } else { self.device.break_down() }
    }
}

impl Member for Link {
    fn used(&self, queue: u16) {
        self.with(|state| state.use_buffers(queue));
    }

    fn broke(&self) {
        self.with(|state| {
            if state.complains() {
                log::warn!("device {}: its driver breaks virtio's rules, and gets no frames until it resets the device", self.name);
            }
            let changes = state.device.break_down();
            state.tell(self, changes);
        });
    }
}
