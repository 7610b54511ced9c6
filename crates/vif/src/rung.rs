//! Whose drivers have told of frames.

use crate::{VifId, VifSet};
use core::sync::atomic::{AtomicU64, Ordering};

/// VIFs whose drivers have told of frames since the engine looked.
#[derive(Debug, Default)]
pub struct Rung(AtomicU64);

impl Rung {
    /// A driver tells of frames.
    pub fn ring(&self, vif: VifId) {
        self.0.fetch_or(vif.bit(), Ordering::SeqCst);
    }

    /// Those that have, once.
    pub fn take(&self) -> VifSet {
        // Mostly there are none, and a look is cheaper than an exchange.
        if self.0.load(Ordering::SeqCst) == 0 {
            return VifSet::default();
        }
        VifSet(self.0.swap(0, Ordering::SeqCst))
    }
}
