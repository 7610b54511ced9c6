//! A disk or a file system that another program serves: a vhost-user back end behind a socket, such as Debian's `qemu-storage-daemon` and `virtiofsd`.
//!
//! The program gets the window as the guest's memory. No data pass through this daemon. Features and the configuration are the program's, as far
//! as the transport carries them; the tag of a file system is the configuration's.
//!
//! # When the program dies
//! It may have answered requests out of order, and a used index says only how many are answered. So the queues of a disk are relayed
//! ([`Relay`]): the guest is answered in order, and the next program is asked again for all that was not answered. The queues of a file
//! system, whose requests cannot be done twice, are the guest's own: the next program goes on if all requests were answered when the last was lost; if
//! some were not, the guest is told that the device needs a reset. A program that merely loses its front end finishes what it has:
//! [`VhostUser::leave`] waits for that.
//!
//! Source: vhost-user protocol (QEMU, docs/interop/vhost-user.rst).

use crate::device::{Device, Gone, rings, take_up};
use crate::function::{Function, Info, Offer, QueueSetup, Window};
use crate::relay::{Relay, Rings};
use anyhow::{Context, Result, bail};
use sluice_hypercall::backend::MAX_QUEUES;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Error as UserError, Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_MQ};
use virtio_bindings::virtio_config::{VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_RING_PACKED};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// What the source of such a device begins with; the rest is the path of a socket.
pub const PREFIX: &str = "vhost-user:";

/// Entries of a queue.
const QUEUE_SIZE: u16 = crate::relay::MOST;

/// Bytes of a disk's configuration (Virtio 1.2, 5.2.4), up to and with what VIRTIO_BLK_F_WRITE_ZEROES says.
const CONFIG_LEN: usize = 60;

/// Where the number of queues is in it.
const NUM_QUEUES: usize = 34;

/// How long the program may take to answer a message. It takes that long to finish requests of a former front end.
const PATIENCE: Duration = Duration::from_secs(30);

/// What of the protocol is used where the program knows it. With REPLY_ACK a message that it refuses is known to be refused.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::CONFIG
    .union(VhostUserProtocolFeatures::MQ)
    .union(VhostUserProtocolFeatures::REPLY_ACK);

/// Features that are not the program's to offer: it knows the window's addresses only, the transport has no packed queues, and the guest
/// cannot write the configuration.
const WITHHELD: u64 =
    1 << VIRTIO_F_ACCESS_PLATFORM | 1 << VIRTIO_F_RING_PACKED | 1 << VIRTIO_BLK_F_CONFIG_WCE;

/// What the relay of a disk's queues does with the guest, and not with the program.
const RELAYED: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

/// Queues of a file system: of what must not wait, and of all other requests (Virtio 1.2, 5.11.2).
const FILES_QUEUES: usize = 2;

/// Bytes of a file system's configuration: its tag, and the number of queues of requests (5.11.4).
const FILES_CONFIG_LEN: usize = 40;

/// Features of a type of devices, bits 0-23 (2.2).
const OF_TYPE: u64 = 0xff_ffff;

/// What a program serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A disk, whose configuration the program tells.
    Disk,
    /// A file system, whose configuration is this.
    Files(Vec<u8>),
}

impl Service {
    /// The file system of a guest whose registers these are.
    pub fn files(info: &Info) -> Self {
        Self::Files(info.config[..FILES_CONFIG_LEN].to_vec())
    }
}

/// A device behind a socket.
pub struct VhostUser {
    path: PathBuf,
    service: Service,
    /// `None` when the program has gone.
    peer: Option<Peer>,
    /// What was offered, without what the transport adds.
    features: u64,
    queues: usize,
    config: Vec<u8>,
    /// A program that is lost may have been at work on the queues: those of a guest that had set them up before this daemon came.
    taken_up: bool,
    live: Option<Live>,
}

/// What ends with the use by the guest.
struct Live {
    errors: EventFd,
    window: Window,
    queues: Vec<(usize, QueueSetup)>,
    relays: Vec<Relayed>,
    /// Kicks and calls: the module and the program have them, and they are kept until both are done.
    _events: Vec<EventFd>,
}

/// A queue that is taken up.
enum Taken {
    /// The program works on the guest's own, from this index on.
    Directly(u16),
    Relayed(Box<Relay>),
}

/// A relayed queue, and who tells whom of it.
struct Relayed {
    relay: Relay,
    kicks: EventFd,
    calls: EventFd,
    kicks_program: EventFd,
    calls_of_program: EventFd,
}

impl Relayed {
    /// The guest has told of requests.
    fn pass_on(&mut self, window: &Window) -> Result<()> {
        let _ = self.kicks.read();
        match self.relay.pass_on(window)? {
            true => self.kicks_program.write(1).context("could not tell the back end"),
            false => Ok(()),
        }
    }

    /// The program has told of answers.
    fn take_back(&mut self, window: &Window) -> Result<()> {
        let _ = self.calls_of_program.read();
        match self.relay.take_back(window)? {
            true => self.calls.write(1).context("could not notify the guest"),
            false => Ok(()),
        }
    }
}

/// A connection, and what the program said on it.
struct Peer {
    front: Frontend,
    features: u64,
    config: Vec<u8>,
    queues: u64,
}

impl Peer {
    /// Connects, and asks what there is. The answer to the first question comes when a former front end's requests are done.
    fn connect(path: &Path, service: &Service) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!("nothing listens at {}: start the vhost-user back end", path.display())
        })?;
        stream.set_read_timeout(Some(PATIENCE)).context("could not limit the time of an answer")?;
        stream.set_write_timeout(Some(PATIENCE)).context("could not limit the time of a message")?;
        Self::ask(Frontend::from_stream(stream, u64::from(MAX_QUEUES)), service)
            .with_context(|| format!("the back end at {} does not answer as it must", path.display()))
    }

    fn ask(mut front: Frontend, service: &Service) -> Result<Self> {
        front.set_owner()?;
        let features = front.get_features()?;
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            bail!("it knows no protocol features, without which there is no configuration and no beginning");
        }
        let known = front.get_protocol_features()? & PROTOCOL;
        if *service == Service::Disk && !known.contains(VhostUserProtocolFeatures::CONFIG) {
            bail!("it does not tell its configuration (VHOST_USER_PROTOCOL_F_CONFIG)");
        }
        front.set_protocol_features(known)?;
        if known.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let queues = match known.contains(VhostUserProtocolFeatures::MQ) {
            true => front.get_queue_num()?,
            false => 1,
        };
        let config = match service {
            Service::Disk => read_config(&mut front)?,
            Service::Files(_) if queues < FILES_QUEUES as u64 => {
                bail!("it serves {queues} queues, but a file system has {FILES_QUEUES}")
            }
            Service::Files(config) => config.clone(),
        };
        Ok(Self { front, features, config, queues })
    }
}

fn read_config(front: &mut Frontend) -> Result<Vec<u8>> {
    let empty = [0; CONFIG_LEN];
    let (_, config) = front.get_config(0, CONFIG_LEN as u32, VhostUserConfigFlags::empty(), &empty)?;
    Ok(config)
}

/// The features that the guest is offered, and the number of queues: of a disk what the configuration says with VIRTIO_BLK_F_MQ, if there can be
/// so many.
fn offered(service: &Service, features: u64, config: &[u8], most: u64) -> (u64, usize) {
    let features = features & !(WITHHELD | VhostUserVirtioFeatures::all().bits());
    if *service != Service::Disk {
        return (features & !OF_TYPE, FILES_QUEUES);
    }
    let said =
        config.get(NUM_QUEUES..NUM_QUEUES + 2).map_or(1, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let possible = most.min(u64::from(MAX_QUEUES));
    let features = features | RELAYED;
    match features & 1 << VIRTIO_BLK_F_MQ != 0 && (1..=possible).contains(&u64::from(said)) {
        true => (features, usize::from(said)),
        false => (features & !(1 << VIRTIO_BLK_F_MQ), 1),
    }
}

/// What the program is told of the features that the guest accepted.
fn accepted(service: &Service, by_guest: u64, of_program: u64) -> u64 {
    let withheld = WITHHELD | if *service == Service::Disk { RELAYED } else { 0 };
    by_guest & of_program & !withheld | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
}

/// The used index, from which a queue is taken up that is not relayed.
///
/// # Errors
/// A program may have been at work on the queue, and not all requests are answered: which of them, nobody knows.
fn beginning(setup: &QueueSetup, taken_up: bool, window: &GuestMemoryMmap) -> Result<u16> {
    let wrong = "the guest's queue is not set up as it must be";
    let entries = u64::from(setup.entries);
    let rings = [
        (setup.descriptors, 16, 16 * entries),
        (setup.driver, 2, 6 + 2 * entries),
        (setup.device, 4, 6 + 8 * entries),
    ];
    // The program would end at a queue beyond its memory.
    let holds = |(start, align, len): (u64, u64, u64)| {
        start.is_multiple_of(align)
            && usize::try_from(len).is_ok_and(|len| window.check_range(GuestAddress(start), len))
    };
    if !entries.is_power_of_two() || entries > u64::from(QUEUE_SIZE) || !rings.into_iter().all(holds) {
        bail!(wrong);
    }
    if taken_up && !is_answered(setup, window)? {
        bail!(LOST);
    }
    index(setup.device, window)
}

const LOST: &str =
    "the back end was lost with requests under way, and nobody knows which are done: restart the guest";

/// The index of an available or used ring.
fn index(ring: u64, window: &GuestMemoryMmap) -> Result<u16> {
    let wrong = "the guest's queue is not set up as it must be";
    let address = GuestAddress(ring.checked_add(2).context(wrong)?);
    Ok(u16::from_le(window.load(address, Ordering::Acquire).context(wrong)?))
}

/// All requests that the guest has made are answered.
fn is_answered(setup: &QueueSetup, window: &GuestMemoryMmap) -> Result<bool> {
    Ok(index(setup.driver, window)? == index(setup.device, window)?)
}

impl VhostUser {
    /// Connects to the program at this socket.
    pub fn open(service: Service, info: &Info, path: &str) -> Result<Self> {
        Ok(Self::of(Peer::connect(Path::new(path), &service)?, service, path, info))
    }

    fn of(peer: Peer, service: Service, path: &str, info: &Info) -> Self {
        let (features, queues) = offered(&service, peer.features, &peer.config, peer.queues);
        let config = peer.config.clone();
        let taken_up = info.is_live();
        Self { path: path.into(), service, peer: Some(peer), features, queues, config, taken_up, live: None }
    }

    /// The queues that the guest uses, and the rings by which a program serves those that are relayed.
    fn take_queues(&self, window: &Window, info: &Info) -> Result<(Vec<Option<Taken>>, Option<Rings>)> {
        let rings = match self.service {
            Service::Disk => Some(Rings::new(self.queues, window)?),
            Service::Files(_) => None,
        };
        let event_idx = info.driver_features & RELAYED != 0;
        let take = |(place, setup): (usize, &QueueSetup)| match &rings {
            _ if setup.enabled == 0 => Ok(None),
            Some(rings) => {
                let queue = take_up(setup, QUEUE_SIZE, event_idx, window)?;
                Ok(Some(Taken::Relayed(Box::new(Relay::new(queue, rings, place)?))))
            }
            None => beginning(setup, self.taken_up, window).map(|begin| Some(Taken::Directly(begin))),
        };
        let taken = info.queues.iter().take(self.queues).enumerate().map(take).collect::<Result<_>>()?;
        Ok((taken, rings))
    }

    /// The program that comes after a lost one.
    fn find_again(&self, info: &Info) -> Result<Peer> {
        let peer = Peer::connect(&self.path, &self.service)
            .map_err(|error| anyhow::Error::new(Gone(format!("{error:#}"))))?;
        let (features, queues) = offered(&self.service, peer.features, &peer.config, peer.queues);
        if info.driver_features & self.features & !features != 0 || queues < self.queues {
            bail!("the back end that is there now can do less than the last: restart the guest");
        }
        Ok(peer)
    }

    /// Leaves the program, and returns when it touches no queue any more: it takes the next front end when it has finished the requests of the
    /// last, or it has ended. A program that does neither keeps the guest's reset waiting.
    fn leave(&mut self) {
        let mut said = false;
        self.peer = None;
        while self.peer.is_none() {
            match Peer::connect(&self.path, &self.service) {
                Ok(peer) => self.peer = Some(peer),
                Err(error) if is_late(&error) => {
                    if !std::mem::replace(&mut said, true) {
                        eprintln!("sluice-backend: the back end at {} does not let go", self.path.display());
                    }
                }
                Err(_) => return,
            }
        }
    }
}

/// A message was not answered in time.
fn is_late(error: &anyhow::Error) -> bool {
    let kind =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    match error.downcast_ref::<vhost::Error>() {
        Some(vhost::Error::VhostUserProtocol(
            UserError::SocketRetry(error) | UserError::SocketError(error) | UserError::SocketBroken(error),
        )) => kind(error),
        _ => false,
    }
}

/// What is wrong if a message came to nothing: the program refuses it, or is not there any more.
fn failed(error: vhost::Error, what: &str) -> anyhow::Error {
    match error {
        vhost::Error::VhostUserProtocol(UserError::BackendInternalError | UserError::InvalidParam) => {
            anyhow::anyhow!("the back end refuses {what}")
        }
        error => anyhow::Error::new(Gone(format!("the back end is lost: {error}"))),
    }
}

/// Sets the queues up that the guest uses, and lets the program begin. `events_of` gives kicks and calls of a queue.
fn set_up(
    peer: &mut Peer,
    service: &Service,
    (taken, rings): (Vec<Option<Taken>>, Option<Rings>),
    window: &Window,
    info: &Info,
    mut events_of: impl FnMut(u32) -> Result<(EventFd, EventFd)>,
) -> Result<Live> {
    let features = accepted(service, info.driver_features, peer.features);
    let front = &mut peer.front;
    front.set_features(features).map_err(|error| failed(error, "the guest's features"))?;
    let mut memory = regions(window)?;
    if let Some(rings) = &rings {
        memory.extend(regions(&rings.0)?);
    }
    front.set_mem_table(&memory).map_err(|error| failed(error, "the window"))?;
    let errors = event()?;
    let (mut queues, mut relays, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (setup, taken)) in info.queues.iter().zip(taken).enumerate() {
        let Some(taken) = taken else { continue };
        let (kicks, calls) = events_of(place as u32)?;
        // What a former life answered may not have been told.
        calls.write(1).context("could not notify the guest")?;
        queues.push((place, *setup));
        match taken {
            Taken::Directly(begin) => {
                let size = setup.entries.try_into().context("the guest's queue is too long")?;
                enable(
                    front,
                    place,
                    begin,
                    &self::rings(setup, size, QUEUE_SIZE),
                    (&kicks, &calls, &errors),
                )?;
                events.extend([kicks, calls]);
            }
            Taken::Relayed(relay) => {
                let (kicks_program, calls_of_program) = (event()?, event()?);
                let for_program = relay.for_program();
                enable(front, place, 0, &for_program, (&kicks_program, &calls_of_program, &errors))?;
                // What nobody has answered yet is passed on first of all.
                kicks.write(1).context("could not begin")?;
                relays.push(Relayed { relay: *relay, kicks, calls, kicks_program, calls_of_program });
            }
        }
    }
    Ok(Live { errors, window: Window::clone(window), queues, relays, _events: events })
}

/// Has the program begin with a queue.
fn enable(
    front: &mut Frontend,
    place: usize,
    begin: u16,
    rings: &VringConfigData,
    (kicks, calls, errors): (&EventFd, &EventFd, &EventFd),
) -> Result<()> {
    let wrong = |error| failed(error, "the guest's queue");
    front.set_vring_num(place, rings.queue_size).map_err(wrong)?;
    front.set_vring_base(place, begin).map_err(wrong)?;
    front.set_vring_addr(place, rings).map_err(wrong)?;
    front.set_vring_err(place, errors).map_err(wrong)?;
    front.set_vring_call(place, calls).map_err(wrong)?;
    front.set_vring_kick(place, kicks).map_err(wrong)?;
    front.set_vring_enable(place, true).map_err(wrong)
}

fn event() -> Result<EventFd> {
    EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).context("could not make an event")
}

impl Device for VhostUser {
    fn offer(&self) -> Offer {
        Offer::new(self.features, self.queues as u32, u32::from(QUEUE_SIZE), &self.config)
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let taken = self.take_queues(window, info)?;
        if self.peer.is_none() {
            self.peer = Some(self.find_again(info)?);
        }
        let Some(peer) = &mut self.peer else { bail!(Gone("the back end has ended".to_owned())) };
        let events_of = |queue| Ok((function.kicks(queue)?, function.calls(queue)?));
        match set_up(peer, &self.service, taken, window, info, events_of) {
            Ok(live) => {
                let mut waited = vec![peer.front.as_raw_fd(), live.errors.as_raw_fd()];
                let of_relay =
                    |relayed: &Relayed| [&relayed.kicks, &relayed.calls_of_program].map(AsRawFd::as_raw_fd);
                waited.extend(live.relays.iter().flat_map(of_relay));
                self.live = Some(live);
                Ok(waited)
            }
            Err(error) => {
                self.taken_up = true;
                self.leave();
                Err(error)
            }
        }
    }

    fn work(&mut self, which: usize) -> Result<()> {
        if which == 1 {
            bail!("the back end finds a queue of the guest broken");
        }
        if let Some(event) = which.checked_sub(2) {
            let Some(live) = &mut self.live else { return Ok(()) };
            let Some(relayed) = live.relays.get_mut(event / 2) else { return Ok(()) };
            return match event % 2 {
                0 => relayed.pass_on(&live.window),
                _ => relayed.take_back(&live.window),
            };
        }
        // The program sends nothing unasked, so what there is to read is its end.
        self.peer = None;
        let Some(live) = self.live.take() else { return Ok(()) };
        if self.service != Service::Disk {
            for (_, setup) in &live.queues {
                if !is_answered(setup, &live.window)? {
                    bail!(LOST);
                }
            }
        }
        self.taken_up = false;
        eprintln!("sluice-backend: the back end at {} has ended; its guest waits", self.path.display());
        bail!(Gone("the back end has ended".to_owned()))
    }

    fn changed_configuration(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(peer) = self.peer.as_mut().filter(|_| self.service == Service::Disk) else {
            return Ok(None);
        };
        let config = match read_config(&mut peer.front) {
            Ok(config) => config,
            // Its end is an event of its own.
            Err(_) if self.live.is_some() => return Ok(None),
            Err(error) => return Err(error.context("the back end is lost")),
        };
        let old = std::mem::replace(&mut self.config, config);
        Ok((old != self.config).then(|| self.config.clone()))
    }

    fn stop(&mut self) {
        let Some(live) = self.live.take() else { return };
        self.taken_up = false;
        if let Some(peer) = &self.peer {
            for (place, _) in live.queues {
                let _ = peer.front.get_vring_base(place);
            }
        }
        self.leave();
    }
}

/// The window as the program's memory. Addresses of this process mean nothing to it, so those of the guest stand for them: queues need no
/// translation then.
fn regions(window: &Window) -> Result<Vec<VhostUserMemoryRegionInfo>> {
    let region = |region| {
        let mut info =
            VhostUserMemoryRegionInfo::from_guest_region(region).context("the window is no file")?;
        info.userspace_addr = info.guest_phys_addr;
        Ok(info)
    };
    window.iter().map(region).collect()
}

/// Does with a program what a guest with these registers brings about: asks it, sets the queues up, and looks at the configuration once more.
/// For tests, which let the program say what they like.
///
/// # Errors
/// What the daemon would say: the program's answers are not what they must be, or the guest's queues are not.
pub fn handshake(service: Service, program: UnixStream, window: &Window, info: &Info) -> Result<Offer> {
    let peer = Peer::ask(Frontend::from_stream(program, u64::from(MAX_QUEUES)), &service)?;
    let mut device = VhostUser::of(peer, service, "", info);
    let taken = device.take_queues(window, info)?;
    if let Some(peer) = &mut device.peer {
        let service = &device.service;
        device.live = Some(set_up(peer, service, taken, window, info, |_| Ok((event()?, event()?)))?);
    }
    device.changed_configuration()?;
    Ok(device.offer())
}

#[cfg(test)]
mod tests;
