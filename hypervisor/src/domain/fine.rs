//! Devices of a domain's own that reach only what the domain issues to them (`dma = "fine"`).
//!
//! Such a device has tables of its own in its IOMMU. At every address of the domain's memory they show the sink, and at the address of
//! reference `n` the page that the domain has issued by that reference: a guest that issues each page by its number goes on to give its device guest-physical addresses.
//! What another device of the domain's reaches, and what it lends to others, is no concern of this one.
//!
//! Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O Virtualization", 3.4 (a table for
//! each device).

use super::grants::{Seen, Shared};
use super::window::{self, fill};
use super::{Domain, memory};
use crate::iommu::DmaEndpoint;
use crate::mm;
use sluice_abi::config::MAX_DOMAINS;
use sluice_grants::Space;
use sluice_iommu::SpaceTag;
use sluice_memory::{Hpa, PAGE_SIZE};
use sluice_platform::pci::SLOTS;

/// The number of a device's space in its IOMMU: those below are domains' (`memory::Memory`).
fn tag(domain: &Domain, slot: u8) -> Option<SpaceTag> {
    let number = 1 + MAX_DOMAINS + usize::from(domain.id.0) * SLOTS + usize::from(slot);
    Some(SpaceTag(u16::try_from(number).ok()?))
}

impl Domain {
    /// Gives the device in a slot tables of its own, which show nothing but what the domain will issue. Returns the number of the space and its
    /// root; `None` without memory, or if the IOMMU knows no such number: the device is to stay blocked then.
    pub fn lend_to_own_device(&self, slot: u8, endpoint: &DmaEndpoint) -> Option<(SpaceTag, Hpa)> {
        let bytes = window::onto(self.config.memory);
        let space = Space::new(mm::TableFrames::COHERENT, u32::try_from(bytes / PAGE_SIZE).ok()?)?;
        let tag = tag(self, slot)?;
        let view = memory::devices_view(tag, endpoint, core::slice::from_ref(endpoint)).ok()?;
        let root = view.root();
        let mut map = memory::Map::new(mm::Ledger::of(self.id));
        map.add_view(memory::View::Devices(view)).ok()?;
        let shown = fill(&mut map, 0..bytes, self.need_sink()?);
        if shown.is_err() {
            let _ = map.revoke(0, bytes);
        }
        map.settle(self, |_, _| ());
        shown.ok()?;
        let shared = Shared { space, seen: Seen::ByDevice(map) };
        self.grants.lock().devices.push((slot, shared));
        Some((tag, root))
    }

    /// The device in a slot is blocked, and its tables are not needed any more.
    pub fn withdraw_from_own_device(&self, slot: u8) {
        let mut spaces = self.grants.lock();
        let found = spaces.devices.iter().position(|(of, shared)| *of == slot && shared.seen.is_by_device());
        let Some(found) = found else { return };
        let (_, mut shared) = spaces.devices.swap_remove(found);
        shared.hide_from_own_device(self);
    }

    /// Checks that its own devices reach what is issued to them, and nothing else.
    ///
    /// # Panics
    /// They reach something else.
    pub(super) fn check_own_devices(&self) {
        let spaces = self.grants.lock();
        for (_, shared) in &spaces.devices {
            if let Seen::ByDevice(map) = &shared.seen {
                assert!(
                    map.is_settled(),
                    "domain {}: a device has not been told of all revokes",
                    self.name()
                );
                let end = u64::from(shared.space.size()) * PAGE_SIZE;
                self.check_granted(self, shared, map, 0..end);
                map.views().for_each(|view| {
                    view.visit(&mut |at, _, _, _| {
                        assert!(at < end, "domain {}: a device reaches {at:#x}", self.name())
                    });
                });
            }
        }
    }
}

impl Shared {
    /// A device of the granter's own reaches nothing of its space any more when this returns. Whether the space is one's.
    pub(super) fn hide_from_own_device(&mut self, granter: &Domain) -> bool {
        let Seen::ByDevice(map) = &mut self.seen else { return false };
        let bytes = u64::from(self.space.size()) * PAGE_SIZE;
        let hidden = map.revoke(0, bytes);
        assert!(hidden.is_ok(), "domain {}: its device keeps its memory: {hidden:?}", granter.name());
        map.settle(granter, |_, _| ());
        self.space.visit(|_, grant| map.unpin_covered(grant.frame));
        self.space.clear(|_, _| ());
        true
    }
}
