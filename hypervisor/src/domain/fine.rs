//! Devices of a domain's own that reach only what the domain issues to them (`dma = "fine"`).
//!
//! Such a device has tables of its own in its IOMMU. At every address of the domain's memory they show the sink, and at the address of
//! reference `n` the page that the domain has issued by that reference: a guest that issues each page by its number goes on to give its device guest-physical addresses.
//! What another device of the domain's reaches, and what it lends to others, is no concern of this one.
//!
//! One with regions (`dma = "regions"`, [`super::region`]) only reads what is issued so, and finds the region in use behind all of that.
//!
//! Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O Virtualization", 3.4 (a table for
//! each device).

use super::grants::{OwnDevice, Seen, Shared};
use super::region::{Placed, Reach, Region};
use super::window::{self, fill};
use super::{Domain, memory};
use crate::iommu::DmaEndpoint;
use crate::mm::{self, FrameUse};
use alloc::sync::Arc;
use sluice_abi::config::MAX_DOMAINS;
use sluice_grants::Space;
use sluice_hypercall::call::Error;
use sluice_iommu::SpaceTag;
use sluice_memory::{Access, Hpa, PAGE_SIZE};
use sluice_platform::pci::SLOTS;

/// The number of a device's space in its IOMMU: those below are domains' (`memory::Memory`).
fn tag(domain: &Domain, slot: u8) -> Option<SpaceTag> {
    let number = 1 + MAX_DOMAINS + usize::from(domain.id.0) * SLOTS + usize::from(slot);
    Some(SpaceTag(u16::try_from(number).ok()?))
}

impl Domain {
    /// Gives the device in a slot tables of its own, which show nothing but what the domain will issue. Returns the number of the space and its
    /// root; `None` without memory, or if the IOMMU knows no such number: the device is to stay blocked then. With its place in the configuration, it
    /// reaches regions.
    pub fn lend_to_own_device(
        &self,
        slot: u8,
        endpoint: &DmaEndpoint,
        regions: Option<u16>,
    ) -> Option<(SpaceTag, Hpa)> {
        let bytes = window::onto(self.config.memory);
        let space = Space::new(mm::TableFrames::COHERENT, u32::try_from(bytes / PAGE_SIZE).ok()?)?;
        let tag = tag(self, slot)?;
        let view = memory::devices_view(tag, endpoint, core::slice::from_ref(endpoint)).ok()?;
        let root = view.root();
        let mut map = memory::Map::new(mm::Ledger::Device(self.id));
        map.add_view(memory::View::Devices(view)).ok()?;
        let shown = fill(&mut map, 0..bytes, self.need_sink()?);
        if shown.is_err() {
            let _ = map.revoke(0, bytes);
        }
        map.settle(self, |_, _| ());
        shown.ok()?;
        let regions = regions.map(|device| Reach::new(device, bytes));
        let shared = Shared { seen: Seen::ByDevice(OwnDevice { map, regions }), ..Shared::new(space) };
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

    /// Has the device in a slot reach the region of a back-end function, by the function's slot, and no other any more when this returns. Returns its address
    /// for the device; 0 if it is none.
    pub(super) fn use_region(&self, device: u8, placed: Option<(u8, Placed)>) -> Result<u64, Error> {
        let mut spaces = self.grants.lock();
        let Some(Seen::ByDevice(own)) = spaces.device(device).map(|shared| &mut shared.seen) else {
            return Err(Error::Absent);
        };
        let Some(reach) = &mut own.regions else { return Err(Error::Absent) };
        let Some((function, Placed { region, .. })) = placed else {
            reach.leave(self, &mut own.map);
            return Ok(0);
        };
        if region.device() != reach.device {
            return Err(Error::Absent);
        }
        reach.enter(self, &mut own.map, function, &region)
    }

    /// No device of the domain reaches a region any more when this returns.
    pub fn leave_region(&self, region: &Arc<Region>) {
        let mut spaces = self.grants.lock();
        for (_, shared) in &mut spaces.devices {
            let Seen::ByDevice(own) = &mut shared.seen else { continue };
            let Some(reach) = &mut own.regions else { continue };
            if reach.in_use.as_ref().is_some_and(|(_, used)| Arc::ptr_eq(used, region)) {
                reach.leave(self, &mut own.map);
            }
        }
    }

    /// Checks that its own devices reach what is issued to them, and nothing else.
    ///
    /// # Panics
    /// They reach something else.
    pub(super) fn check_own_devices(&self) {
        let spaces = self.grants.lock();
        for (_, shared) in &spaces.devices {
            if let Seen::ByDevice(OwnDevice { map, regions }) = &shared.seen {
                assert!(
                    map.is_settled(),
                    "domain {}: a device has not been told of all revokes",
                    self.name()
                );
                let end = u64::from(shared.space.size()) * PAGE_SIZE;
                self.check_granted(self, shared, &[], map, 0..end);
                let reach = regions.as_ref();
                let used = reach.and_then(|reach| Some((reach.range()?, reach.in_use.as_ref()?)));
                map.views().for_each(|view| {
                    view.visit(&mut |at, hpa, bytes, access| {
                        let writes = access.contains(Access::WRITE);
                        let sink = || mm::check(hpa, bytes, FrameUse::Sink(self.id.0)).is_ok();
                        let held = used.as_ref().is_some_and(|(range, (_, region))| {
                            let offset = at.wrapping_sub(range.start);
                            range.contains(&at) && hpa.as_u64() == region.hpa().as_u64() + offset
                        });
                        let reads_only = reach.is_none() || !writes || sink();
                        assert!(
                            held || at < end && reads_only,
                            "domain {}: a device reaches {at:#x}",
                            self.name()
                        )
                    });
                });
            }
        }
    }
}

impl Shared {
    /// A device of the granter's own reaches nothing of its space any more when this returns. Whether the space is one's.
    pub(super) fn hide_from_own_device(&mut self, granter: &Domain) -> bool {
        let Seen::ByDevice(OwnDevice { map, regions }) = &mut self.seen else { return false };
        if let Some(reach) = regions {
            reach.leave(granter, map);
        }
        let bytes = u64::from(self.space.size()) * PAGE_SIZE;
        let hidden = map.revoke(0, bytes);
        assert!(hidden.is_ok(), "domain {}: its device keeps its memory: {hidden:?}", granter.name());
        map.settle(granter, |_, _| ());
        self.space.visit(|_, grant| map.unpin_covered(grant.frame));
        self.space.clear(|_, _| ());
        true
    }
}
