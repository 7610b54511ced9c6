//! The device models there are, found by PCI id. One file per device.

pub mod ne2000;

use crate::model::Model;

/// Every model.
pub const ALL: &[&Model] = &[&ne2000::MODEL];

/// The model for a PCI device, if there is one.
pub fn find(vendor: u16, device: u16) -> Option<&'static Model> {
    ALL.iter().copied().find(|model| model.ids.contains(&(vendor, device)))
}
