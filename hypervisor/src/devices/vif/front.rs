//! What a guest finds of an interface that is no virtio card.

use super::card::CardFunction;
use super::link::Link;
use super::native::NativeFunction;
use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::domain::VirtualFunction;
use alloc::sync::Arc;
use sluice_abi::config::Face;
use sluice_platform::pci::BarAddresses;

/// The guest's function of an interface.
///
/// # Errors
/// There is no room for it.
pub fn front(
    link: Arc<Link>,
    guest: Guest,
    addresses: &mut BarAddresses,
) -> Result<Arc<dyn VirtualFunction>, AttachError> {
    match link.face() {
        Face::Native => Ok(NativeFunction::new(link, guest, addresses)?),
        _ => Ok(CardFunction::new(link, guest, addresses)?),
    }
}
