//! What kinds of devices have in common.

use crate::function::{Function, Info, Offer, QueueSetup, Window};
use anyhow::Result;
use std::os::fd::RawFd;
use vhost::VringConfigData;

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

    /// Touches no queue any more.
    fn stop(&mut self);
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
