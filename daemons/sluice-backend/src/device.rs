//! What kinds of devices have in common.

use crate::function::{Function, Info, Offer, QueueSetup, Window};
use anyhow::{Context, Result, bail};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use vhost::VringConfigData;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// What serves the device is not there any more, but may come again: nothing is wrong with the guest.
#[derive(Debug)]
pub struct Gone(pub String);

impl std::fmt::Display for Gone {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Gone {}

/// What is served: a disk, a network card.
pub trait Device {
    /// What the guest is offered.
    fn offer(&self) -> Offer;

    /// Whether it has pages mapped that a guest lends by a table.
    fn knows_tables(&self) -> bool {
        false
    }

    /// Takes the guest's queues up where the last life of the daemon left them, which for a guest that has just set them up is
    /// the beginning. Returns what to wait for; the place in the list is what [`Device::work`] gets.
    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>>;

    /// Something that was waited for has happened.
    ///
    /// # Errors
    /// The guest broke a rule, so that the device cannot go on; or [`Gone`].
    fn work(&mut self, which: usize) -> Result<()>;

    /// The configuration, if it is not what it was: called now and then.
    fn changed_configuration(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Looks after what takes long: called now and then.
    fn tick(&mut self) {}

    /// The registers may have changed: called before anything is started, and each time after that.
    fn look(&mut self, _function: &Function, _info: &Info) {}

    /// Touches no queue any more.
    fn stop(&mut self);
}

/// The queue of a guest, of `most` entries at most, at the used index: all before it is answered, nothing after it is.
///
/// # Errors
/// The guest does not use it, or has not set it up as it must be.
pub fn take_up(setup: &QueueSetup, most: u16, event_idx: bool, window: &GuestMemoryMmap) -> Result<Queue> {
    let wrong = "the guest's queue is not set up as it must be";
    if setup.enabled == 0 {
        bail!("the guest does not use the queue");
    }
    let mut queue = Queue::new(most).context(wrong)?;
    queue.try_set_size(setup.entries.try_into().context(wrong)?).context(wrong)?;
    queue.try_set_desc_table_address(GuestAddress(setup.descriptors)).context(wrong)?;
    queue.try_set_avail_ring_address(GuestAddress(setup.driver)).context(wrong)?;
    queue.try_set_used_ring_address(GuestAddress(setup.device)).context(wrong)?;
    queue.set_event_idx(event_idx);
    queue.set_ready(true);
    if !queue.is_valid(window) {
        bail!(wrong);
    }
    let used = queue.used_idx(window, Ordering::Acquire).context(wrong)?.0;
    queue.set_next_avail(used);
    queue.set_next_used(used);
    Ok(queue)
}

/// Where the guest has the rings of a queue of `size` entries, `most` at most, for vhost.
pub fn rings(setup: &QueueSetup, size: u16, most: u16) -> VringConfigData {
    VringConfigData {
        queue_max_size: most,
        queue_size: size,
        flags: 0,
        desc_table_addr: setup.descriptors,
        used_ring_addr: setup.device,
        avail_ring_addr: setup.driver,
        log_addr: None,
    }
}
