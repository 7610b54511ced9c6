//! A virtual network card that an engine serves: the virtio face of a VIF.
//!
//! Who changes what the engine knows of a card holds the lock of its network, and then that of its link, as the engine does that signals.

use super::{Link, State};
use crate::devices::vif::{Control, Member, Network};
use crate::domain::Domain;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
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
    attributes: Attributes,
}

/// What happened at a VIF since the machine started, and where it is now.
#[derive(Default)]
pub(super) struct Seat {
    /// It is there while its guest is.
    id: Option<VifId>,
    /// What happened in earlier lives of the guest.
    earlier: Counters,
}

impl Vif {
    pub(super) fn new(network: Arc<Network>, vif: &config::Vif) -> Self {
        let config::Vif { mac, share, limit, vlan, mtu, .. } = *vif;
        Self { network, attributes: Attributes { mac, share, limit, vlan, mtu } }
    }

    /// What its guest's driver finds.
    pub(super) fn device(&self) -> Device {
        let mut config = [0; offset::END];
        config[..offset::STATUS].copy_from_slice(&self.attributes.mac);
        config[offset::STATUS..offset::STATUS + 2].copy_from_slice(&LINK_UP.to_le_bytes());
        config[offset::MTU..].copy_from_slice(&self.attributes.mtu.to_le_bytes());
        Device::served_here(Kind::Net, FEATURES, QUEUES, QUEUE_SIZE, &config)
    }

    /// Name of the network.
    pub(super) fn network(&self) -> &str {
        self.network.name()
    }

    /// The engine does nothing while this is held.
    pub(super) fn lock(&self) -> Control<'_> {
        self.network.lock()
    }

    /// The guest tells of frames.
    pub(super) fn wake(&self) {
        self.network.wake();
    }

    /// The guest is there: it has a VIF from now on.
    pub(super) fn comes(&self, link: &Arc<Link>, domain: &Arc<Domain>) {
        let mut control = self.lock();
        let member: Weak<dyn Member> = Arc::<Link>::downgrade(link);
        let id = control.join(self.attributes, domain, member);
        if id.is_none() {
            log::error!(
                "device {}: network {} has too many interfaces, or another with this address: its driver will get no frames",
                link.name,
                self.network()
            );
        }
        link.with(|state| state.seat.id = id);
    }

    /// The guest is no more: when this returns, nothing of its memory is reached.
    pub(super) fn goes(&self, link: &Link) {
        let mut control = self.lock();
        link.with(|state| {
            let counters = state.seat.id.take().and_then(|id| control.leave(id));
            state.seat.earlier += counters.unwrap_or_default();
        });
    }

    /// What happened at it.
    pub(super) fn counts(&self, control: &Control<'_>, seat: &Seat) -> Vec<Count> {
        let mut all = seat.earlier;
        all += seat.id.and_then(|id| control.counters(id)).unwrap_or_default();
        all.named().map(|(name, value)| Count { name: name.into(), value }).into()
    }
}

impl State {
    /// The driver has set its queues up, or let go of them: the engine learns of it.
    pub(super) fn activate(&mut self, control: &mut Control<'_>) -> Changes {
        let Some(id) = self.seat.id else { return Changes::empty() };
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
