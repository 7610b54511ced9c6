//! A source of random numbers (Virtio 1.2, 5.4): each buffer of the guest's is filled from a character device of this domain, such as
//! `/dev/urandom` or `/dev/hwrng`.
//!
//! A buffer is filled up to [`MOST`] bytes, and one turn answers [`TURN`] of them, after which a reset comes first: what a guest can have done by
//! one notification is bounded. A daemon that comes up takes the queue up at its used index ([`take_up`]): what was not answered is filled anew.

use crate::device::{Device, take_up};
use crate::function::{Function, Info, Offer, Window};
use crate::request::{Broken, Slices, parts};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestMemoryMmap, VolatileSlice};
use vmm_sys_util::eventfd::EventFd;

/// Entries of the queue.
const QUEUE_SIZE: u16 = 64;

/// Most bytes that are put into a buffer.
pub const MOST: usize = 4096;

/// Buffers that are filled before anything else is looked at.
const TURN: usize = QUEUE_SIZE as usize;

/// A source and the queue of who asks it.
pub struct Rng {
    source: File,
    live: Option<Live>,
}

/// A queue that its guest uses.
struct Live {
    queue: Queue,
    window: Window,
    kicks: EventFd,
    calls: EventFd,
}

impl Rng {
    /// Opens what the configuration names.
    ///
    /// # Errors
    /// It is not there, or no character device: a disk of this domain's is nobody's random numbers.
    pub fn open(info: &Info) -> Result<Self> {
        let path = info.source().context("the configuration names no source of random numbers (source)")?;
        let source = File::open(path).with_context(|| format!("could not open {path}"))?;
        let kind = source.metadata().with_context(|| format!("could not look at {path}"))?.file_type();
        ensure!(kind.is_char_device(), "{path} is no character device, such as /dev/urandom or /dev/hwrng");
        Ok(Self { source, live: None })
    }
}

/// The room in a chain, up to [`MOST`] bytes.
///
/// # Errors
/// It is no buffer to be filled: the device cannot answer it, and needs a reset.
pub fn room<'w>(
    chain: DescriptorChain<&'w GuestMemoryMmap>,
    window: &'w GuestMemoryMmap,
) -> Result<Slices<'w>, Broken> {
    let (output, mut input) = parts(chain, window)?;
    if !output.is_empty() {
        return Err(Broken::Order);
    }
    let mut left = MOST;
    for slice in &mut input {
        let count = slice.len().min(left);
        *slice = slice.subslice(0, count).map_err(|_| Broken::Address)?;
        left -= count;
    }
    input.retain(|slice| !slice.is_empty());
    if input.is_empty() { Err(Broken::Answer) } else { Ok(input) }
}

/// Fills the room. Returns the number of bytes.
pub fn fill(room: &[VolatileSlice<'_>], source: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; MOST];
    let bytes = &mut bytes[..room.iter().map(VolatileSlice::len).sum::<usize>().min(MOST)];
    source.read_exact(bytes).context("the source gives no random numbers")?;
    let mut rest = &bytes[..];
    for slice in room {
        let (now, later) = rest.split_at(slice.len().min(rest.len()));
        slice.write_slice(now, 0).context("the guest's buffer is not there")?;
        rest = later;
    }
    Ok(bytes.len() as u32)
}

/// Fills what is in the queue. Returns whether the turn is over before the queue is empty.
fn serve_queue(
    queue: &mut Queue,
    window: &GuestMemoryMmap,
    source: &mut impl Read,
    mut notify: impl FnMut() -> Result<()>,
) -> Result<bool> {
    let wrong = "the guest's queue is broken";
    let mut filled = 0;
    loop {
        queue.disable_notification(window).context(wrong)?;
        let before = filled;
        while filled < TURN
            && let Some(chain) = queue.iter(window).context(wrong)?.next()
        {
            let head = chain.head_index();
            let written = fill(&room(chain, window)?, source)?;
            queue.add_used(window, head, written).context(wrong)?;
            filled += 1;
        }
        if filled > before && queue.needs_notification(window).context(wrong)? {
            notify()?;
        }
        if filled >= TURN {
            return Ok(true);
        }
        if !queue.enable_notification(window).context(wrong)? {
            return Ok(false);
        }
    }
}

impl Device for Rng {
    fn offer(&self) -> Offer {
        Offer::new(1 << VIRTIO_RING_F_EVENT_IDX, 1, u32::from(QUEUE_SIZE), &[])
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let event_idx = info.driver_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let live = Live {
            queue: take_up(&info.queues[0], QUEUE_SIZE, event_idx, window)?,
            window: Window::clone(window),
            kicks: function.kicks(0)?,
            calls: function.calls(0)?,
        };
        // What a former life answered may not have been told.
        live.calls.write(1).context("could not notify the guest")?;
        let waited = vec![live.kicks.as_raw_fd()];
        self.live = Some(live);
        Ok(waited)
    }

    fn work(&mut self, _which: usize) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let _ = live.kicks.read();
        let notify = || live.calls.write(1).context("could not notify the guest");
        if serve_queue(&mut live.queue, &live.window, &mut self.source, notify)? {
            // Others first.
            live.kicks.write(1).context("could not go on")?;
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.live = None;
    }
}

#[cfg(test)]
mod tests;
