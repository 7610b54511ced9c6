//! Memory that a guest sees in place of its card's registers.

use crate::mm::{self, Direct, FrameUse};
use alloc::sync::Arc;
use sluice_abi::DomainId;
use sluice_memory::{Hpa, PAGE_SIZE};

/// Pages of it; given back with the last handle, when the guest has ended.
struct Pages {
    hpa: Hpa,
    bytes: u64,
    used_as: FrameUse,
}

impl Drop for Pages {
    fn drop(&mut self) {
        mm::zero(self.hpa, self.bytes);
        mm::release(self.used_as, self.hpa, self.bytes);
    }
}

/// A handle on a guest's mirror: the shared card writes it, the guest's nested page tables show it.
#[derive(Clone)]
pub struct Mirror(Arc<Pages>);

impl Mirror {
    /// So many pages, all zeros, for the domain; `None` if there is no memory.
    pub fn new(domain: DomainId, pages: usize) -> Option<Self> {
        let (used_as, bytes) = (FrameUse::Mirror(domain.0), pages as u64 * PAGE_SIZE);
        let hpa = mm::allocate(used_as, bytes, PAGE_SIZE)?;
        mm::zero(hpa, bytes);
        Some(Self(Arc::new(Pages { hpa, bytes, used_as })))
    }

    /// Where it is.
    pub fn hpa(&self) -> Hpa {
        self.0.hpa
    }

    /// Where a range of it is, if it has that.
    pub fn at(&self, offset: u64, len: u64) -> Option<Hpa> {
        let end = offset.checked_add(len)?;
        (end <= self.0.bytes).then(|| Hpa::new(self.0.hpa.as_u64() + offset))
    }

    fn range(&self) -> (Hpa, u64) {
        (self.0.hpa, self.0.bytes)
    }
}

/// Where a word is of so many bytes, which are whole pages.
#[inline(always)]
fn word((hpa, bytes): (Hpa, u64), offset: u32) -> Option<Hpa> {
    let offset = u64::from(offset & !3);
    (offset < bytes).then(|| Hpa::new(hpa.as_u64() + offset))
}

#[inline(always)]
fn look(range: (Hpa, u64), offset: u32) -> u32 {
    word(range, offset).map_or(0, |at| Direct.read_u32(at))
}

impl sluice_emulated::Mirror for Mirror {
    fn show(&mut self, offset: u32, value: u32) {
        if let Some(at) = word(self.range(), offset) {
            Direct.write_u32(at, value);
        }
    }

    fn look(&self, offset: u32) -> u32 {
        look(self.range(), offset)
    }

    fn look_each(&self, offsets: &[u32], found: &mut [u32]) {
        // Read once, not for each.
        let range = self.range();
        found.iter_mut().zip(offsets).for_each(|(word, offset)| *word = look(range, *offset));
    }
}
