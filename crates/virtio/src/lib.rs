//! Virtio devices over PCI: the transport between a guest's driver and whoever serves its queues.
//!
//! Key type: [`Device`], where two sides meet. The guest's driver sees the registers of a modern device ([`pci`], `common`):
//! features, status, where its queues are. A back end sees registers of its own (`backend`, laid out in
//! [`sluice_hypercall::backend`]): it offers features and configuration, and learns where the queues are. The queues themselves
//! are between the two, and the transport never looks into one: it makes no difference to it whether a driver domain serves them or
//! the hypervisor does. For the latter there is [`Ring`], the device's side of a queue, and what is built on it: [`Port`], a stream, and
//! [`iommu`].
//!
//! Every access answers with [`Changes`]: whom the caller must tell of what.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2, 2.1-2.4, 3.1, 4.1. Deviations: there is no configuration by PCI configuration accesses
//! (4.1.4.9), which only firmware uses; the device's configuration cannot be written by the driver (no feature is offered that
//! needs it); packed queues and the reset of a single queue are not offered.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backend;
mod common;
mod device;
pub mod features;
pub mod iommu;
pub mod pci;
mod port;
mod queue;
mod ring;
#[cfg(test)]
mod tests;
mod words;

pub use device::{Changes, Device, Issues, Kind, Signal, Status};
pub use port::{Port, Signals};
pub use queue::Queue;
pub use ring::{Buffer, Fault, Memory, Ring, buffers};
