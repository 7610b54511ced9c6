//! The guest that a function belongs to.

use crate::domain::Domain;
use crate::sync::Once;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use sluice_abi::DomainId;

/// The guest that a function belongs to, and where the function is in it.
pub struct Guest {
    /// The domain.
    pub id: DomainId,
    /// Name of the domain.
    pub name: String,
    /// Slot of the guest's PCI bus.
    pub slot: u8,
    /// I/O APIC pin of the guest, or its interrupt line.
    pub pin: u8,
    /// It knows machine addresses: registers are in it where they physically are.
    pub knows_machine: bool,
    /// The domain, once it exists, and the function's index there.
    domain: Once<(Weak<Domain>, u8)>,
}

impl Guest {
    /// A guest whose domain is about to be built.
    pub fn new(id: DomainId, name: &str, slot: u8, pin: u8) -> Self {
        Self { id, name: name.to_string(), slot, pin, knows_machine: false, domain: Once::new() }
    }

    /// The same of one that knows machine addresses.
    #[must_use]
    pub fn of_machine(self) -> Self {
        Self { knows_machine: true, ..self }
    }

    /// The domain exists, and has the function at `index` of its list.
    pub(super) fn set_domain(&self, domain: &Arc<Domain>, index: usize) {
        self.domain.call_once(|| (Arc::downgrade(domain), index as u8));
    }

    /// The domain and the function's index in [`Domain::functions`]; `None` before the domain exists, and after.
    pub(super) fn domain(&self) -> Option<(Arc<Domain>, u8)> {
        let (domain, index) = self.domain.get()?;
        Some((domain.upgrade()?, *index))
    }
}
