//! Counts of what IOMMUs were told to forget, by kind and by cause.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::report::Count;
use sluice_iommu::Invalidation;

/// Why something had to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A function was given to a domain, or an interrupt to a function.
    Attach,
    /// A function was taken back, or an interrupt.
    Detach,
    /// Pages were taken from a space, or their rights changed.
    Revoke,
    /// A space was dissolved, or began.
    Whole,
}

const CAUSES: [(Cause, &str); 4] = [
    (Cause::Attach, "attach"),
    (Cause::Detach, "detach"),
    (Cause::Revoke, "revoke"),
    (Cause::Whole, "whole"),
];

/// What was forgotten.
const KINDS: [&str; 6] = ["page", "pages", "space", "everything", "device", "interrupt"];

/// Counters of one unit.
#[derive(Default)]
pub struct Flushes {
    counts: [[AtomicU64; CAUSES.len()]; KINDS.len()],
}

impl Flushes {
    fn add(&self, kind: usize, cause: Cause) {
        self.counts[kind][cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Translations.
    pub fn count(&self, what: Invalidation, cause: Cause) {
        let kind = match what {
            Invalidation::Pages { order: 0, .. } => 0,
            Invalidation::Pages { .. } => 1,
            Invalidation::Space(_) => 2,
            Invalidation::Everything => 3,
        };
        self.add(kind, cause);
    }

    /// What was known of a requester.
    pub fn count_device(&self, cause: Cause) {
        self.add(4, cause);
    }

    /// An interrupt.
    pub fn count_interrupt(&self, cause: Cause) {
        self.add(5, cause);
    }

    /// All that occurred, as `kind.cause`.
    pub fn report(&self) -> Vec<Count> {
        let mut report = Vec::new();
        for (kind, counts) in KINDS.iter().zip(&self.counts) {
            for ((_, cause), count) in CAUSES.iter().zip(counts) {
                let value = count.load(Ordering::Relaxed);
                if value != 0 {
                    report.push(Count { name: [kind, ".", cause].concat().to_string(), value });
                }
            }
        }
        report
    }
}
