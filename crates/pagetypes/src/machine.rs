//! What the types need of the hardware.

use crate::{LINE, Mfn};

/// Memory, processors and devices of the domain.
pub trait Machine {
    /// Reads the entries `8 * line` and following of a frame, each at once.
    fn line(&self, frame: Mfn, line: usize) -> [u64; LINE];

    /// Reads one entry of a frame, at once.
    fn word(&self, frame: Mfn, index: usize) -> u64 {
        self.line(frame, index / LINE).get(index % LINE).copied().unwrap_or_default()
    }

    /// Replaces an entry in one locked access if it is `old` still. The hardware sets bits by itself: the answer is what was found.
    ///
    /// # Errors
    /// What was found, if it was not `old`.
    fn replace(&mut self, frame: Mfn, index: usize, old: u64, new: u64) -> Result<(), u64>;

    /// Overwrites a frame with zeros.
    fn clear(&mut self, frame: Mfn);

    /// Fills in the hypervisor's entries ([`crate::HOLE`]) of a top-level table.
    fn fill_hole(&mut self, frame: Mfn);

    /// When this returns, no processor translates by anything that it read before.
    fn forget(&mut self);

    /// When this returns, no device reaches the frames, not even by what an IOMMU had cached.
    fn hide(&mut self, frames: &[Mfn]);

    /// Devices may reach the frames.
    fn show(&mut self, frames: &[Mfn]);
}
