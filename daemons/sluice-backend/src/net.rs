//! A virtio network card (Virtio 1.2, 5.1): the kernel's vhost-net between the guest's queues and a tap.

use crate::tap::Tap;
use anyhow::{Context, Result, bail};
use sluice_backend::device::{Device, rings};
use sluice_backend::function::{Function, Info, Offer, Window};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net as Vhost;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Entries of a queue.
const QUEUE_SIZE: u16 = 256;

/// Receive, transmit.
const QUEUES: usize = 2;

/// What vhost and the guest agree on.
const BY_VHOST: [u32; 4] =
    [VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_F_VERSION_1];

/// What the tap and the guest agree on.
const BY_TAP: [u32; 8] = [
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_ECN,
];

/// What the guest takes, and what the tap calls that.
const OFFLOADS: [(u32, u32); 4] = [
    (VIRTIO_NET_F_GUEST_CSUM, libc::TUN_F_CSUM),
    (VIRTIO_NET_F_GUEST_TSO4, libc::TUN_F_TSO4),
    (VIRTIO_NET_F_GUEST_TSO6, libc::TUN_F_TSO6),
    (VIRTIO_NET_F_GUEST_ECN, libc::TUN_F_TSO_ECN),
];

/// A network card.
pub struct Net {
    tap: Tap,
    features: u64,
    mac: [u8; 6],
    live: Option<Live>,
}

/// Queues that vhost works on.
struct Live {
    vhost: Vhost<Window>,
    /// Signalled when vhost finds a queue broken.
    errors: EventFd,
    /// vhost has them, too.
    _events: Vec<EventFd>,
}

impl Net {
    /// Makes what is behind the card.
    pub fn open(info: &Info) -> Result<Self> {
        let bridge = info.source().context("the configuration names no bridge (source)")?;
        let vhost = vhost(Arc::new(GuestMemoryMmap::new()))?;
        let known = vhost.get_features().context("could not ask for the features of vhost-net")?;
        let features =
            known & bits(&BY_VHOST) | bits(&BY_TAP) | bits(&[VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS]);
        let mac = std::array::from_fn(|byte| info.config[byte]);
        Ok(Self { tap: Tap::new(bridge)?, features, mac, live: None })
    }
}

fn bits(numbers: &[u32]) -> u64 {
    numbers.iter().fold(0, |bits, number| bits | 1 << number)
}

fn vhost(window: Window) -> Result<Vhost<Window>> {
    Vhost::new(window)
        .context("could not open /dev/vhost-net: the driver domain's kernel needs the module vhost_net")
}

impl Device for Net {
    fn offer(&self) -> Offer {
        let mut configuration = [0; 8];
        configuration[..6].copy_from_slice(&self.mac);
        configuration[6..].copy_from_slice(&(VIRTIO_NET_S_LINK_UP as u16).to_le_bytes());
        Offer::new(self.features, QUEUES as u32, u32::from(QUEUE_SIZE), &configuration)
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let accepted = info.driver_features;
        let offloads = OFFLOADS.iter().filter(|(feature, _)| accepted & bits(&[*feature]) != 0);
        self.tap.set_offload(offloads.fold(0, |all, (_, bit)| all | bit))?;

        let vhost = vhost(Window::clone(window))?;
        vhost.set_owner().context("vhost-net takes no owner")?;
        vhost.set_features(accepted & bits(&BY_VHOST)).context("vhost-net refuses the guest's features")?;
        let regions: Result<Vec<_>, _> =
            window.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect();
        vhost
            .set_mem_table(&regions.context("the window is no file")?)
            .context("vhost-net refuses the window")?;
        let errors = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).context("could not make an event")?;
        let mut events = Vec::new();
        for (place, setup) in info.queues.iter().take(QUEUES).enumerate() {
            let wrong = "the guest's queue is not set up as it must be";
            if setup.enabled == 0 {
                bail!("the guest does not use queue {place}");
            }
            let size = setup.entries.try_into().context(wrong)?;
            vhost.set_vring_num(place, size).context(wrong)?;
            let rings = rings(setup, size, QUEUE_SIZE);
            vhost.set_vring_addr(place, &rings).context(wrong)?;
            // Buffers after the used index have not been answered.
            let index = setup.device.checked_add(2).context(wrong)?;
            let used: u16 = window.load(GuestAddress(index), Ordering::Acquire).context(wrong)?;
            vhost.set_vring_base(place, u16::from_le(used)).context(wrong)?;
            let (kicks, calls) = (function.kicks(place as u32)?, function.calls(place as u32)?);
            let failed = "vhost-net refuses an event";
            vhost.set_vring_kick(place, &kicks).context(failed)?;
            vhost.set_vring_call(place, &calls).context(failed)?;
            vhost.set_vring_err(place, &errors).context(failed)?;
            // What a former life answered may not have been told.
            calls.write(1).context("could not notify the guest")?;
            events.extend([kicks, calls]);
        }
        for place in 0..QUEUES {
            vhost.set_backend(place, Some(self.tap.file())).context("vhost-net refuses the tap")?;
        }
        let waited = vec![errors.as_raw_fd()];
        self.live = Some(Live { vhost, errors, _events: events });
        Ok(waited)
    }

    fn work(&mut self, _which: usize) -> Result<()> {
        if let Some(live) = &self.live {
            let _ = live.errors.read();
        }
        bail!("vhost-net finds a queue of the guest broken")
    }

    fn stop(&mut self) {
        let Some(live) = self.live.take() else { return };
        for place in 0..QUEUES {
            // vhost waits until its worker does not touch the queue any more. Dropping it does, too.
            let _ = live.vhost.set_backend(place, None);
        }
    }
}
