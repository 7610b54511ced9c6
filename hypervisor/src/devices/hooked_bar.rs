//! BARs all of whose accesses exit.

use crate::domain::{Domain, PageHandler, Piece};
use sluice_memory::{Gpa, Hpa};
use sluice_platform::pci::{BarAddresses, BarKind, Builder};
use sluice_traps::Direction;

/// A memory BAR all of whose accesses exit, and where it answers now.
pub struct HookedBar {
    index: u8,
    size: u64,
    /// Guest-physical address to begin with.
    initial: u64,
    at: Option<u64>,
}

impl HookedBar {
    /// BAR `index`, of whole pages; `None` if there is no room for it.
    pub fn new(index: u8, size: u64, addresses: &mut BarAddresses) -> Option<Self> {
        Some(Self { index, size, initial: addresses.take(size)?, at: None })
    }

    /// Guest-physical address to begin with.
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// Adds it to a function.
    pub fn describe(&self, builder: Builder) -> Builder {
        builder.bar(self.index, BarKind::Mem32 { prefetchable: false }, self.size, self.initial)
    }

    fn piece(&self, at: u64) -> Piece {
        Piece { gpa: Gpa::new(at), range: 0..self.size, direct: Direction::empty() }
    }

    /// Has it answer nowhere, if it is not to stay where it is.
    pub fn leave(&mut self, domain: &Domain, wanted: Option<u64>) {
        if let Some(at) = self.at.take_if(|at| Some(*at) != wanted) {
            domain.unmap_device(&[self.piece(at)]);
        }
    }

    /// Has it answer where it is wanted, by `handler`.
    pub fn settle(&mut self, domain: &Domain, handler: PageHandler, wanted: Option<u64>) {
        if let (None, Some(at)) = (self.at, wanted) {
            self.at = domain.map_device(handler, Hpa::new(0), &[self.piece(at)]).then_some(at);
        }
    }

    /// Offset in it of a guest-physical address.
    pub fn offset(&self, gpa: Gpa) -> Option<u32> {
        let offset = gpa.as_u64().checked_sub(self.at?)?;
        (offset < self.size).then_some(offset as u32)
    }
}
