//! Memory that a guest sees in place of its card's registers.

use crate::mm::{self, Direct, FrameUse};
use alloc::sync::Arc;
use sluice_abi::DomainId;
use sluice_emulated::PAGES;
use sluice_memory::{Hpa, PAGE_SIZE};

const BYTES: u64 = PAGES as u64 * PAGE_SIZE;

/// Pages of it; given back with the last handle, when the guest has ended.
struct Pages {
    hpa: Hpa,
    used_as: FrameUse,
}

impl Drop for Pages {
    fn drop(&mut self) {
        mm::zero(self.hpa, BYTES);
        mm::release(self.used_as, self.hpa, BYTES);
    }
}

/// A handle on a guest's mirror: the shared card writes it, the guest's nested page tables show it.
#[derive(Clone)]
pub struct Mirror(Arc<Pages>);

impl Mirror {
    /// All zeros, for the domain; `None` if there is no memory.
    pub fn new(domain: DomainId) -> Option<Self> {
        let used_as = FrameUse::Mirror(domain.0);
        let hpa = mm::allocate(used_as, BYTES, PAGE_SIZE)?;
        mm::zero(hpa, BYTES);
        Some(Self(Arc::new(Pages { hpa, used_as })))
    }

    /// Where it is.
    pub fn hpa(&self) -> Hpa {
        self.0.hpa
    }

    fn at(&self, offset: u32) -> Option<Hpa> {
        let offset = u64::from(offset & !3);
        (offset < BYTES).then(|| Hpa::new(self.0.hpa.as_u64() + offset))
    }
}

impl sluice_emulated::Mirror for Mirror {
    fn show(&mut self, offset: u32, value: u32) {
        if let Some(at) = self.at(offset) {
            Direct.write_u32(at, value);
        }
    }

    fn look(&self, offset: u32) -> u32 {
        self.at(offset).map_or(0, |at| Direct.read_u32(at))
    }
}
