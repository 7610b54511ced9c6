//! Regions: what devices of a domain hold for a guest that it serves by device files (`dma = "regions"`), where its processors find the sink.
//!
//! Key types: [`Region`] (the memory, which lives as long as its guest's device file), [`Placed`] (where the domain has it). A device reaches one region at a
//! time, and may only read what its domain issues to it: so nothing that it takes out of a region comes to where the domain, or another guest,
//! could find it. The guest sees pages of its region as maps of the file, by grants of the domain's.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.2 and 5.3. Deviations: a processor that looks into a
//! region finds the sink, where there it faults; regions are of a fixed size, and not of pages that the driver asks for one by one.

use super::{Domain, memory};
use crate::mm;
use alloc::sync::Arc;
use core::ops::Range;
use sluice_abi::DomainId;
use sluice_abi::config::MAX_REGION;
use sluice_hypercall::call::Error;
use sluice_hypercall::region::{Call, REGION_UNIT};
use sluice_iospace::{Contents, IssueError, Rights};
use sluice_memory::{FrameUse, Hpa, PAGE_SIZE};

const _: () = assert!(REGION_UNIT == sluice_abi::config::REGION_UNIT);

/// Memory that a device holds for a guest.
pub struct Region {
    guest: DomainId,
    /// Place of the device in the configuration.
    device: u16,
    hpa: Hpa,
    len: u64,
}

impl Region {
    /// A region of zeros; `None` without memory.
    pub fn new(guest: DomainId, device: u16, len: u64) -> Option<Self> {
        let hpa = mm::allocate(FrameUse::Region(guest.0), len, REGION_UNIT)?;
        mm::zero(hpa, len);
        Some(Self { guest, device, hpa, len })
    }

    /// Place in the configuration of the device that holds it.
    pub fn device(&self) -> u16 {
        self.device
    }

    /// Whose it is.
    pub fn guest(&self) -> DomainId {
        self.guest
    }

    /// Where it is.
    pub fn hpa(&self) -> Hpa {
        self.hpa
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Makes all of it zeros.
    pub fn clear(&self) {
        mm::zero(self.hpa, self.len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        mm::release(FrameUse::Region(self.guest.0), self.hpa, self.len);
    }
}

/// A region, and where the domain that serves its guest has it.
pub struct Placed {
    /// Which.
    pub region: Arc<Region>,
    /// Guest-physical address, at which the sink is.
    pub at: u64,
}

impl Placed {
    /// The frame of the page at a guest-physical address, if that is in the region.
    pub fn frame(&self, gpa: u64) -> Option<Hpa> {
        let offset = gpa.checked_sub(self.at).filter(|offset| *offset < self.region.len)?;
        Some(Hpa::new(self.region.hpa.as_u64() + offset))
    }
}

/// The region that a device reaches.
pub(super) struct Reach {
    /// Place of the device in the configuration.
    pub(super) device: u16,
    /// Slot of the back-end function whose region it is.
    pub(super) in_use: Option<(u8, Arc<Region>)>,
    /// Where the device would find the region of the function in slot 0.
    base: u64,
}

impl Reach {
    /// Of the device at this place in the configuration, which will find regions from `base` on: none yet.
    pub(super) const fn new(device: u16, base: u64) -> Self {
        Self { device, in_use: None, base }
    }

    /// Where the device finds the region of a function. Each is elsewhere: what it was told of the one before means nothing to it now.
    fn at(&self, function: u8) -> u64 {
        self.base + u64::from(function) * MAX_REGION
    }

    /// Where the device finds the region that is in use.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        let (function, region) = self.in_use.as_ref()?;
        let at = self.at(*function);
        Some(at..at + region.len())
    }

    /// Whether the device reaches this region of a function.
    fn reaches(&self, function: u8, region: &Arc<Region>) -> bool {
        self.in_use.as_ref().is_some_and(|(of, used)| *of == function && Arc::ptr_eq(used, region))
    }

    /// The device reaches no region any more when this returns.
    pub(super) fn leave(&mut self, owner: &Domain, map: &mut memory::Map) {
        let Some(range) = self.range() else { return };
        let hidden = map.revoke(range.start, range.end - range.start);
        map.settle(owner, |_, _| ());
        assert!(hidden.is_ok(), "domain {}: its device keeps a region: {hidden:?}", owner.name());
        self.in_use = None;
    }

    /// Has the device reach the region of a function, by its slot, and no other any more when this returns. Returns where the device finds it.
    pub(super) fn enter(
        &mut self,
        owner: &Domain,
        map: &mut memory::Map,
        function: u8,
        region: &Arc<Region>,
    ) -> Result<u64, Error> {
        let at = self.at(function);
        if self.reaches(function, region) {
            return Ok(at);
        }
        self.leave(owner, map);
        let rights = Rights::window(Contents::Region(region.guest().0));
        let shown = map.issue(at, region.hpa(), region.len(), rights);
        map.settle(owner, |_, _| ());
        shown.map_err(|error| match error {
            IssueError::OutOfMemory => Error::NoMemory,
            _ => Error::Absent,
        })?;
        self.in_use = Some((function, region.clone()));
        Ok(at)
    }
}

/// The region of a back-end function of a domain.
pub fn of(domain: &Domain, function: u8) -> Option<Placed> {
    domain.plugged(function)?.region()
}

/// Carries out a call of a domain that serves device files.
///
/// # Errors
/// Says what is wrong.
pub fn call(caller: &Domain, call: &Call) -> Result<u64, Error> {
    match *call {
        Call::Find(function) => {
            let Placed { region, at } = of(caller, function).ok_or(Error::Absent)?;
            Ok(at | (region.len / REGION_UNIT))
        }
        Call::Use { device, function } => {
            let placed = function.map(|slot| Ok((slot, of(caller, slot).ok_or(Error::Absent)?)));
            caller.use_region(device, placed.transpose()?)
        }
        Call::Clear { function, first, count } => {
            let Placed { region, .. } = of(caller, function).ok_or(Error::Absent)?;
            let pages = region.len / PAGE_SIZE;
            let count = pages.checked_sub(first).map(|left| count.min(left)).filter(|count| *count > 0);
            let count = count.ok_or(Error::BadArgument)?;
            mm::zero(Hpa::new(region.hpa.as_u64() + first * PAGE_SIZE), count * PAGE_SIZE);
            Ok(count)
        }
    }
}
