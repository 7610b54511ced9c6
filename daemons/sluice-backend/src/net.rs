//! A virtio network card (Virtio 1.2, 5.1): the kernel's vhost-net between the guest's queues and a tap, or [`sluice_backend::packets`].
//!
//! A card with several pairs of queues has a vhost-net, with a thread of its own, for each (what is not vhost-net's is the card's one thread's), and a tap with as many queues. How many of them the guest
//! uses it says by the control queue, which is served here.
//!
//! # After a crash
//! The guest does not say again how many pairs it uses. A pair counts as used when its receive queue has ever had buffers: drivers fill the
//! queues of pairs that they use. A driver that used more before than it does now gets packets by all of them again, until it says how many.

use crate::tap::Tap;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sluice_backend::command::{Command, Wish};
use sluice_backend::device::{Device, rings, take_up};
use sluice_backend::function::{Function, Info, Offer, QueueSetup, Window};
use sluice_backend::packets::{Line, Packets, Reach};
use sluice_backend::table::Table;
use sluice_hypercall::backend::MAX_QUEUES;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net as Vhost;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_ERR, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_STATUS,
    VIRTIO_NET_OK, VIRTIO_NET_S_LINK_UP,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Entries of a queue.
const QUEUE_SIZE: u16 = 256;

/// Receive, transmit.
const PAIR: usize = 2;

/// Most pairs: as many as there are queues for, with the control queue.
const MAX_PAIRS: u16 = (MAX_QUEUES as u16 - 1) / PAIR as u16;

/// Where the most pairs are in the configuration (Virtio 1.2, 5.1.4).
const MAX_PAIRS_AT: usize = 8;

/// Commands that are answered before the device looks at anything else, such as a reset.
const TURN: usize = 64;

/// What the mover of packets and the guest agree on.
const BY_MOVER: [u32; 4] =
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

/// Who moves packets between guests and taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mover {
    /// vhost-net.
    Kernel,
    /// This daemon.
    Daemon,
}

/// How packets are reached that a guest lends by a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByTable {
    /// They are mapped and unmapped.
    Map,
    /// They are copied.
    Copy,
}

/// How packets are moved.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// Of guests that issue their pages.
    pub by: Mover,
    /// Of those that lend them by a table.
    pub table: ByTable,
}

/// A network card.
pub struct Net {
    tap: Tap,
    moving: Moving,
    features: u64,
    mac: [u8; 6],
    /// Most pairs of queues.
    pairs: u16,
    /// The guest's cable is plugged in.
    link: bool,
    live: Option<Live>,
}

/// What moves the packets of a pair of queues.
enum Pair {
    Kernel(Vhost<Window>),
    Daemon(Box<Packets>),
}

/// What is waited for.
#[derive(Clone, Copy)]
enum Waited {
    Errors,
    Control,
    /// One that this daemon moves the packets of.
    Pair(usize),
}

/// Queues that are worked on.
struct Live {
    pairs: Vec<Pair>,
    control: Option<Control>,
    waited: Vec<Waited>,
    /// Signalled when vhost finds a queue broken.
    errors: EventFd,
    /// vhost has them, too.
    _events: Vec<EventFd>,
}

/// The queue by which a guest says how many pairs it uses.
struct Control {
    queue: Queue,
    window: Window,
    kicks: EventFd,
    calls: EventFd,
    /// The guest lends by a table.
    table: Option<Table>,
}

impl Net {
    /// Makes what is behind the card.
    pub fn open(info: &Info, moving: Moving) -> Result<Self> {
        let bridge = info.source().context("the configuration names no bridge (source)")?;
        let known = match moving.by {
            Mover::Kernel => {
                let vhost = vhost(Arc::new(GuestMemoryMmap::new()))?;
                vhost.get_features().context("could not ask for the features of vhost-net")?
            }
            Mover::Daemon => bits(&BY_MOVER),
        };
        let pairs = u16::from_le_bytes([info.config[MAX_PAIRS_AT], info.config[MAX_PAIRS_AT + 1]]);
        let pairs = pairs.clamp(1, MAX_PAIRS);
        let of_pairs = if pairs > 1 { bits(&[VIRTIO_NET_F_MQ, VIRTIO_NET_F_CTRL_VQ]) } else { 0 };
        let features = known & bits(&BY_MOVER)
            | bits(&BY_TAP)
            | bits(&[VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS])
            | of_pairs;
        let mac = std::array::from_fn(|byte| info.config[byte]);
        Ok(Self {
            tap: Tap::new(bridge, pairs.into())?,
            moving,
            features,
            mac,
            pairs,
            link: true,
            live: None,
        })
    }

    /// What the guest is told of the card. The most pairs are part of it where there are several.
    fn configuration(&self) -> Vec<u8> {
        configuration(self.mac, self.link, self.pairs)
    }
}

fn configuration(mac: [u8; 6], link: bool, pairs: u16) -> Vec<u8> {
    let status = if link { VIRTIO_NET_S_LINK_UP as u16 } else { 0 };
    let mut configuration = [&mac[..], &status.to_le_bytes()].concat();
    if pairs > 1 {
        configuration.extend(pairs.to_le_bytes());
    }
    configuration
}

fn bits(numbers: &[u32]) -> u64 {
    numbers.iter().fold(0, |bits, number| bits | 1 << number)
}

fn vhost(window: Window) -> Result<Vhost<Window>> {
    Vhost::new(window)
        .context("could not open /dev/vhost-net: the driver domain's kernel needs the module vhost_net")
}

/// The pairs that a driver with these features can use, and where its control queue is: after them (Virtio 1.2, 5.1.2).
fn layout(accepted: u64, most: u16) -> (u16, Option<usize>) {
    let pairs = if accepted & bits(&[VIRTIO_NET_F_MQ]) != 0 { most } else { 1 };
    let control = accepted & bits(&[VIRTIO_NET_F_CTRL_VQ]) != 0;
    (pairs, control.then_some(PAIR * usize::from(pairs)))
}

/// The pairs that a driver uses whose control queue, `commands` of which are answered, was served by another life of this daemon.
fn used_pairs(receive: &[QueueSetup], commands: u16, window: &GuestMemoryMmap) -> Result<u16> {
    if commands == 0 {
        return Ok(1);
    }
    let mut used = 1;
    for (place, setup) in (1..).zip(receive) {
        if index(setup.driver, window)? != 0 || index(setup.device, window)? != 0 {
            used = place;
        }
    }
    Ok(used)
}

const WRONG: &str = "the guest's queue is not set up as it must be";

/// The index of an available or used ring.
fn index(ring: u64, window: &GuestMemoryMmap) -> Result<u16> {
    let address = GuestAddress(ring.checked_add(2).context(WRONG)?);
    Ok(u16::from_le(window.load(address, Ordering::Acquire).context(WRONG)?))
}

/// What is needed to set a pair of queues up.
struct Pairs<'a> {
    function: &'a Function,
    window: &'a Window,
    info: &'a Info,
    moving: Moving,
    errors: &'a EventFd,
}

impl Pairs<'_> {
    /// The features that the guest accepted.
    const fn accepted(&self) -> u64 {
        self.info.driver_features
    }

    /// Has packets moved between the queues of a pair, the first of which has this number, and a queue of the tap.
    fn start(
        &self,
        first: usize,
        setups: &[QueueSetup],
        tap: &File,
        events: &mut Vec<EventFd>,
    ) -> Result<Pair> {
        let table = Table::find(self.function, setups)?;
        match (table, self.moving) {
            (None, Moving { by: Mover::Kernel, .. }) => {
                self.start_vhost(first, setups, tap, events).map(Pair::Kernel)
            }
            (None, Moving { by: Mover::Daemon, .. }) => {
                self.start_own(first, setups, tap, (Reach::Window, Packets::room()?))
            }
            (Some(table), Moving { table: ByTable::Map, .. }) => {
                self.start_own(first, setups, tap, (Reach::Mapped(table), Packets::room()?))
            }
            (Some(table), Moving { table: ByTable::Copy, .. }) => {
                let room = self.function.room(self.info.window)?;
                self.start_own(first, setups, tap, (Reach::Copied(table), room))
            }
        }
    }

    /// The same by this daemon.
    fn start_own(
        &self,
        first: usize,
        setups: &[QueueSetup],
        tap: &File,
        by: (Reach, MmapRegion),
    ) -> Result<Pair> {
        let event_idx = self.accepted() & bits(&[VIRTIO_RING_F_EVENT_IDX]) != 0;
        let merges = self.accepted() & bits(&[VIRTIO_NET_F_MRG_RXBUF]) != 0;
        let line = |place: usize| {
            let number = (first + place) as u32;
            let events = [self.function.kicks(number)?, self.function.calls(number)?];
            Line::new(&setups[place], QUEUE_SIZE, event_idx, self.window, events)
        };
        let tap = tap.try_clone().context("there are no descriptors left")?;
        Packets::new(Window::clone(self.window), tap, [line(0)?, line(1)?], by, merges)
            .map(|packets| Pair::Daemon(Box::new(packets)))
    }

    /// The same by vhost.
    fn start_vhost(
        &self,
        first: usize,
        setups: &[QueueSetup],
        tap: &File,
        events: &mut Vec<EventFd>,
    ) -> Result<Vhost<Window>> {
        let vhost = vhost(Window::clone(self.window))?;
        vhost.set_owner().context("vhost-net takes no owner")?;
        vhost
            .set_features(self.accepted() & bits(&BY_MOVER))
            .context("vhost-net refuses the guest's features")?;
        let regions: Result<Vec<_>, _> =
            self.window.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect();
        vhost
            .set_mem_table(&regions.context("the window is no file")?)
            .context("vhost-net refuses the window")?;
        for (place, setup) in setups.iter().enumerate() {
            let number = first + place;
            if setup.enabled == 0 {
                bail!("the guest does not use queue {number}");
            }
            let size = setup.entries.try_into().context(WRONG)?;
            vhost.set_vring_num(place, size).context(WRONG)?;
            vhost.set_vring_addr(place, &rings(setup, size, QUEUE_SIZE)).context(WRONG)?;
            // Buffers after the used index have not been answered.
            vhost.set_vring_base(place, index(setup.device, self.window)?).context(WRONG)?;
            let (kicks, calls) = (self.function.kicks(number as u32)?, self.function.calls(number as u32)?);
            let failed = "vhost-net refuses an event";
            vhost.set_vring_kick(place, &kicks).context(failed)?;
            vhost.set_vring_call(place, &calls).context(failed)?;
            vhost.set_vring_err(place, self.errors).context(failed)?;
            // What a former life answered may not have been told.
            calls.write(1).context("could not notify the guest")?;
            events.extend([kicks, calls]);
        }
        for place in 0..setups.len() {
            vhost.set_backend(place, Some(tap)).context("vhost-net refuses the tap")?;
        }
        Ok(vhost)
    }
}

impl Control {
    /// Answers what is in the queue: `set` has so many pairs used, of `most`. Returns whether the turn is over before the queue is empty.
    fn serve(&mut self, most: usize, mut set: impl FnMut(u16) -> Result<()>) -> Result<bool> {
        let wrong = "the guest's control queue is broken";
        let window = &*self.window;
        for _ in 0..TURN {
            let Some(chain) = self.queue.iter(window).context(wrong)?.next() else {
                if self.queue.enable_notification(window).context(wrong)? {
                    continue;
                }
                return Ok(false);
            };
            let head = chain.head_index();
            if let Some(table) = &mut self.table {
                table.map_chain(&chain, self.queue.desc_table(), window)?;
            }
            let command = Command::parse(chain, window)?;
            let done = match command.wish {
                Wish::Pairs(pairs) if (1..=most).contains(&pairs.into()) => set(pairs).map(|()| true)?,
                Wish::Pairs(_) | Wish::Unknown => false,
            };
            command.answer(if done { VIRTIO_NET_OK } else { VIRTIO_NET_ERR } as u8);
            if let Some(table) = &mut self.table {
                table.unmap();
            }
            self.queue.add_used(window, head, 1).context(wrong)?;
            if self.queue.needs_notification(window).context(wrong)? {
                self.calls.write(1).context("could not notify the guest")?;
            }
        }
        Ok(true)
    }
}

impl Device for Net {
    fn offer(&self) -> Offer {
        let queues = PAIR * usize::from(self.pairs) + usize::from(self.pairs > 1);
        Offer::new(self.features, queues as u32, u32::from(QUEUE_SIZE), &self.configuration())
    }

    fn knows_tables(&self) -> bool {
        true
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let accepted = info.driver_features;
        let offloads = OFFLOADS.iter().filter(|(feature, _)| accepted & bits(&[*feature]) != 0);
        self.tap.set_offload(offloads.fold(0, |all, (_, bit)| all | bit))?;

        let (pairs, control) = layout(accepted, self.pairs);
        let errors = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).context("could not make an event")?;
        let (mut started, mut events) = (Vec::new(), Vec::new());
        let common = Pairs { function, window, info, moving: self.moving, errors: &errors };
        let mut receive = Vec::new();
        let mut waited = vec![(errors.as_raw_fd(), Waited::Errors)];
        for (pair, tap) in self.tap.files().iter().enumerate().take(pairs.into()) {
            let first = PAIR * pair;
            let setups = info.queues.get(first..first + PAIR).context("there are too few queues")?;
            // A driver need not set up what it never uses.
            if pair > 0 && setups.iter().all(|setup| setup.enabled == 0) {
                break;
            }
            let made = common.start(first, setups, tap, &mut events)?;
            if let Pair::Daemon(packets) = &made {
                waited.push((packets.waited(), Waited::Pair(pair)));
            }
            started.push(made);
            receive.push(setups[0]);
        }
        let mut served = None;
        let mut used = 1;
        if let Some(setup) =
            control.and_then(|place| info.queues.get(place)).filter(|setup| setup.enabled != 0)
        {
            let place = control.unwrap_or_default() as u32;
            let event_idx = accepted & bits(&[VIRTIO_RING_F_EVENT_IDX]) != 0;
            let table = Table::find(function, std::slice::from_ref(setup))?;
            let queue = take_up(setup, QUEUE_SIZE, event_idx, window)?;
            used = used_pairs(&receive, queue.next_used(), window)?;
            let (kicks, calls) = (function.kicks(place)?, function.calls(place)?);
            calls.write(1).context("could not notify the guest")?;
            // What was asked for before may not have been heard.
            kicks.write(1).context("could not begin with the control queue")?;
            waited.push((kicks.as_raw_fd(), Waited::Control));
            served = Some(Control { queue, window: Window::clone(window), kicks, calls, table });
        }
        self.tap.set_used(used.into())?;
        let (descriptors, waited) = waited.into_iter().unzip();
        self.live = Some(Live { pairs: started, control: served, waited, errors, _events: events });
        Ok(descriptors)
    }

    fn work(&mut self, which: usize) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        match live.waited.get(which) {
            Some(Waited::Pair(pair)) => match live.pairs.get_mut(*pair) {
                Some(Pair::Daemon(packets)) => packets.work(),
                _ => Ok(()),
            },
            Some(Waited::Control) => {
                let Some(control) = &mut live.control else { return Ok(()) };
                let _ = control.kicks.read();
                let tap = &mut self.tap;
                if control.serve(live.pairs.len(), |pairs| tap.set_used(pairs.into()))? {
                    // Others first.
                    control.kicks.write(1).context("could not go on")?;
                }
                Ok(())
            }
            Some(Waited::Errors) | None => {
                let _ = live.errors.read();
                bail!("vhost-net finds a queue of the guest broken");
            }
        }
    }

    fn changed_configuration(&mut self) -> Result<Option<Vec<u8>>> {
        let before = std::mem::replace(&mut self.link, self.tap.is_up()?);
        Ok((before != self.link).then(|| self.configuration()))
    }

    fn stop(&mut self) {
        let Some(live) = self.live.take() else { return };
        for pair in live.pairs {
            let Pair::Kernel(vhost) = pair else { continue };
            for place in 0..PAIR {
                // vhost waits until its worker does not touch the queue any more. Dropping it does, too.
                let _ = vhost.set_backend(place, None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
