//! How long a halted virtual processor certainly wants nothing of its home, so that its home need not look at it.

use core::sync::atomic::{AtomicU64, Ordering};

/// Until when a virtual processor rests. It begins before the processor's state says that it has halted, and ends after whatever ends the halt: so
/// a home that sees it misses nothing, and one that does not looks.
#[derive(Debug, Default)]
pub struct Rest(AtomicU64);

impl Rest {
    /// TSC before which it wants nothing; 0: who asks must look.
    #[inline]
    pub fn until(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// It rests until then.
    pub fn begin(&self, until: u64) {
        self.0.store(until, Ordering::SeqCst);
    }

    /// It may want something.
    pub fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
