//! The device models there are, found by PCI id. One file per device.
//!
//! The guide to writing one is `docs/add-a-device-model.md`.

mod build;
pub mod e1000;
pub mod ne2000;
pub mod rtl8139;

use crate::language::Space;
use crate::model::Model;

/// Every model.
pub const ALL: &[&Model] = &[&ne2000::MODEL, &rtl8139::MODEL, &e1000::MODEL];

/// The model for a PCI device in ports: with memory of its own, which a data port shows.
pub fn find(vendor: u16, device: u16) -> Option<&'static Model> {
    of(vendor, device).filter(|model| model.space == Space::Ports)
}

/// The model for a PCI device in memory: a bus master.
pub fn find_master(vendor: u16, device: u16) -> Option<&'static Model> {
    of(vendor, device).filter(|model| model.space != Space::Ports)
}

fn of(vendor: u16, device: u16) -> Option<&'static Model> {
    ALL.iter().copied().find(|model| model.ids.contains(&(vendor, device)))
}
