//! Where a virtio device has its registers: capabilities of the vendor's, which a driver needs and only reads.
//!
//! Source: Virtio 1.2, 4.1.4.

use crate::pci::{Function, capability};
use sluice_platform::pci::Builder;

/// Virtio's vendor identifier (4.1.2).
const VENDOR: u16 = 0x1af4;
/// Bytes of the longest of these capabilities (4.1.4).
const MOST: usize = 24;
/// A capability by which registers are accessed through configuration space (4.1.4.9): a guest has its own way to them.
const WINDOW: u8 = 5;

/// Adds those of a virtio device; of others nothing is known.
pub fn describe(mut builder: Builder, function: &Function) -> Builder {
    if function.bdf.read(0) as u16 != VENDOR {
        return builder;
    }
    for (at, _) in function.capabilities().filter(|(_, id)| *id == capability::VENDOR) {
        let byte = |offset: usize| {
            u8::try_from(offset).map_or(0, |offset| function.bdf.read8(at.saturating_add(offset)))
        };
        let length = usize::from(byte(2));
        if (4..=MOST).contains(&length) && byte(3) != WINDOW {
            let body: [u8; MOST - 2] = core::array::from_fn(|index| byte(index + 2));
            builder = builder.capability(capability::VENDOR, body.get(..length - 2).unwrap_or_default());
        }
    }
    builder
}
