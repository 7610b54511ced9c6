//! What a window shows where nothing is lent.

use crate::mm;
use sluice_abi::DomainId;
use sluice_memory::{FrameUse, Hpa, LARGE_PAGE};

/// Memory that means nothing, shown where a guest has lent nothing. Each domain that serves others has one of its own, so that none
/// learns anything from another's.
pub struct Sink {
    id: DomainId,
    hpa: Hpa,
}

impl Sink {
    /// Bytes of it: windows repeat it.
    pub const SIZE: u64 = LARGE_PAGE;

    /// Zeros; `None` without memory.
    pub fn new(id: DomainId) -> Option<Self> {
        let hpa = mm::allocate(FrameUse::Sink(id.0), Self::SIZE, Self::SIZE)?;
        mm::zero(hpa, Self::SIZE);
        Some(Self { id, hpa })
    }

    /// Where it is.
    pub fn hpa(&self) -> Hpa {
        self.hpa
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        mm::release(FrameUse::Sink(self.id.0), self.hpa, Self::SIZE);
    }
}
