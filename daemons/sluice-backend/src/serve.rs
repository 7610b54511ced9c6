//! The life of one device: offered, taken by a guest's driver, reset, taken again.

use crate::blk::Blk;
use crate::devfile::DeviceFile;
use crate::hang::HangWatch;
use crate::net::{Moving, Net};
use anyhow::{Context, Result, anyhow, bail};
use sluice_backend::device::{Device, Gone};
use sluice_backend::function::{Function, Window};
use sluice_backend::rng::Rng;
use sluice_backend::table::Table;
use sluice_backend::vhost_user::{self, Service, VhostUser};
use sluice_hypercall::devfile::DEVFILE_KIND;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};
use virtio_bindings::virtio_ids::{VIRTIO_ID_BLOCK, VIRTIO_ID_FS, VIRTIO_ID_NET, VIRTIO_ID_RNG};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// What an event is about: the registers, or a place in the list of the device.
const CHANGES: u64 = u64::MAX;

/// How often what is behind a device is looked at: a disk may have grown.
const CHECK: Duration = Duration::from_secs(2);

/// How soon a back end that is not there is looked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long it is looked for more requests before a guest has to notify again, and waited for drivers.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In a disk's queue.
    pub queue: Duration,
    /// Of a process that uses a device file.
    pub files: Duration,
    /// With what does not end.
    pub hang: HangWatch,
}

/// Serves the device behind a file until that fails. `turns` is the guest's weight where guests share cards in turns; `offered` is called when the guest has
/// been offered the device.
pub fn serve(
    path: &Path,
    patience: Patience,
    moving: Moving,
    turns: Option<u32>,
    offered: impl FnOnce() -> std::io::Result<()>,
) -> Result<()> {
    let function = Function::open(path)?;
    let info = function.info()?;
    let mut device: Box<dyn Device> = match info.kind {
        VIRTIO_ID_BLOCK => match info.source().and_then(|source| source.strip_prefix(vhost_user::PREFIX)) {
            Some(path) => Box::new(VhostUser::open(Service::Disk, &info, path)?),
            None => Box::new(Blk::open(&info, patience.queue)?),
        },
        VIRTIO_ID_FS => {
            let path = info.source().and_then(|source| source.strip_prefix(vhost_user::PREFIX));
            let path = path.context("a file system is another program's: source must name its socket")?;
            Box::new(VhostUser::open(Service::files(&info), &info, path)?)
        }
        VIRTIO_ID_NET => Box::new(Net::open(&info, moving)?),
        VIRTIO_ID_RNG => Box::new(Rng::open(&info)?),
        DEVFILE_KIND => Box::new(DeviceFile::open(&info, patience.files, patience.hang, turns)?),
        kind => bail!(
            "virtio devices of type {kind} are not known, only network cards (1), disks (2), random numbers (4), file systems (26) and device files ({DEVFILE_KIND})"
        ),
    };
    let window = function.window(info.window)?;
    let changes = function.changes()?;
    let epoll = Epoll::new().context("could not wait for events")?;
    watch(&epoll, changes.as_raw_fd(), CHANGES)?;
    function.offer(&device.offer())?;
    offered().context("could not note that the device is offered")?;

    let (mut state, mut checked) = (State::Idle, Instant::now());
    let mut events = [EpollEvent::default(); 8];
    loop {
        if checked.elapsed() >= CHECK {
            checked = Instant::now();
            device.tick();
            if let Some(configuration) = device.changed_configuration()? {
                function.change_configuration(&configuration)?;
            }
        }
        let patience = if state == State::Waiting { AGAIN } else { CHECK };
        let count = match epoll.wait(patience.as_millis() as i32, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("could not wait for events"),
        };
        if state == State::Waiting {
            state = follow(state, &mut *device, &function, &window, &epoll)?;
        }
        for event in &events[..count] {
            if event.data() == CHANGES {
                let _ = changes.read();
                state = follow(state, &mut *device, &function, &window, &epoll)?;
            } else if state == State::Running
                && let Err(error) = device.work(event.data() as usize)
            {
                state = give_up(&mut *device, &function, error)?;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Running,
    /// What serves the device is waited for; the guest notices nothing but that.
    Waiting,
    /// Something is wrong, and the guest has been told; its reset is waited for.
    Broken,
}

/// Does what the registers say.
fn follow(
    mut state: State,
    device: &mut dyn Device,
    function: &Function,
    window: &Window,
    epoll: &Epoll,
) -> Result<State> {
    let mut info = function.info()?;
    device.look(function, &info);
    if !info.is_live() && state != State::Idle {
        device.stop();
        state = State::Idle;
    }
    if info.is_resetting() {
        function.reset_done()?;
        info = function.info()?;
    }
    if !info.is_live() || !matches!(state, State::Idle | State::Waiting) {
        return Ok(state);
    }
    if !device.knows_tables() && Table::find(function, &info.queues)?.is_some() {
        let error = anyhow!(
            "the guest lends pages by a table, of which only disks and network cards of this daemon's know: have it issue them (sluice_dma.table=0)"
        );
        return give_up(device, function, error);
    }
    match device.start(function, window, &info) {
        Ok(waited) => {
            for (place, descriptor) in (0..).zip(waited) {
                watch(epoll, descriptor, place)?;
            }
            Ok(State::Running)
        }
        Err(error) => give_up(device, function, error),
    }
}

/// Tells the guest that its device cannot go on, unless what serves it may come again.
fn give_up(device: &mut dyn Device, function: &Function, error: anyhow::Error) -> Result<State> {
    let info = function.info()?;
    if error.is::<Gone>() {
        return Ok(State::Waiting);
    }
    eprintln!("sluice-backend: {}: stopped: {error:#}", String::from_utf8_lossy(info.name()));
    device.stop();
    function.needs_reset()?;
    Ok(State::Broken)
}

fn watch(epoll: &Epoll, descriptor: RawFd, token: u64) -> Result<()> {
    let event = EpollEvent::new(EventSet::IN, token);
    epoll.ctl(ControlOperation::Add, descriptor, event).context("could not wait for events")
}
