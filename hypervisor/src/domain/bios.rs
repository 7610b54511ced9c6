//! What an initial domain finds in the frames that it takes for the BIOS's.

use super::Domain;
use crate::mm::{self, FrameUse};
use sluice_abi::DomainId;
use sluice_iospace::Rights;
use sluice_memory::{Access, Hpa, PAGE_SIZE};
use sluice_xenpv::BIOS;

/// A page of zeros, which stands in for all of them: there are no tables to be found.
pub struct Blank {
    id: DomainId,
    hpa: Hpa,
}

impl Blank {
    fn new(id: DomainId) -> Option<Self> {
        let hpa = mm::allocate(FrameUse::Mirror(id.0), PAGE_SIZE, PAGE_SIZE)?;
        mm::zero(hpa, PAGE_SIZE);
        Some(Self { id, hpa })
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        mm::release(FrameUse::Mirror(self.id.0), self.hpa, PAGE_SIZE);
    }
}

impl Domain {
    /// Lets the guest read zeros in the frames of [`BIOS`], and its devices reach nothing there. Returns whether it could be done.
    pub fn show_bios(&self) -> bool {
        let Some(blank) = Blank::new(self.id) else { return false };
        let hpa = self.bios.call_once(|| blank).hpa;
        let rights = Rights { owner: Access::READ.union(Access::UNCACHED), ..Rights::DEVICE };
        let mut space = self.space.lock();
        let shown =
            BIOS.into_iter().all(|frame| space.issue(frame * PAGE_SIZE, hpa, PAGE_SIZE, rights).is_ok());
        space.settle(self, |_, _| ());
        shown
    }
}
