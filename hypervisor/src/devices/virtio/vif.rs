//! A virtual network card that an engine serves: the virtio face of a VIF.
//!
//! Who changes what engines know of a card holds the locks of its network's engines, and then that of its link, as an engine does that signals.

use super::{Link, State};
use crate::devices::vif::{Control, Interface, Member};
use sluice_abi::config;
use sluice_vif::{Active, FEATURES, QUEUE_SIZE, QUEUES, Queues, RECEIVE, SEND};
use sluice_virtio::{Changes, Device, Kind};

/// Offsets in a network card's configuration (Virtio 1.2, 5.1.4).
mod offset {
    pub const STATUS: usize = 6;
    pub const MTU: usize = 10;
    pub const END: usize = 12;
}

/// The link is up.
const LINK_UP: u16 = 1;

/// What the driver of an interface's guest finds.
pub(super) fn device(vif: &config::Vif) -> Device {
    let mut config = [0; offset::END];
    config[..offset::STATUS].copy_from_slice(&vif.mac);
    config[offset::STATUS..offset::STATUS + 2].copy_from_slice(&LINK_UP.to_le_bytes());
    config[offset::MTU..].copy_from_slice(&vif.mtu.to_le_bytes());
    Device::served_here(Kind::Net, FEATURES, QUEUES, QUEUE_SIZE, &config)
}

impl State {
    /// The driver has set its queues up, or let go of them: the engine learns of it.
    pub(super) fn activate(&mut self, vif: &Interface, control: &mut Control<'_>) -> Changes {
        let queues = self.device.live_queue(RECEIVE).copied().zip(self.device.live_queue(SEND).copied());
        let features = self.device.accepted();
        let active =
            queues.map(|(receive, send)| Active { queues: Queues::Virtio { receive, send }, features });
        if vif.activate(control, active) { Changes::empty() } else { self.device.break_down() }
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
