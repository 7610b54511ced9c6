//! How much a card may do within one call of its owner.
//!
//! A guest writes rings and doorbells at no cost, so that what one doorbell sets off has no bound of its own: 65,528
//! descriptors of 64 KiB are one write of a register. The card therefore spends a [`Budget`] as it works and gives the
//! processor back when that is spent; what is left over stays in the card.

/// Work that a card may still do. Spending more than is left leaves nothing.
///
/// A card looks at its budget before each piece of work, and no piece moves more than 64 KiB. So a call moves less than
/// its budget and 64 KiB more, and takes no more descriptors and frames than its budget has steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    bytes: usize,
    steps: usize,
}

impl Budget {
    /// Bytes of the default budget: two of the longest packets that drivers have their card cut into segments.
    pub const BYTES: usize = 0x2_0000;
    /// Steps of the default budget.
    pub const STEPS: usize = 256;

    /// So many bytes that are copied or summed, and so many steps: a step is a descriptor or a frame.
    pub const fn new(bytes: usize, steps: usize) -> Self {
        Self { bytes, steps }
    }

    /// Bytes and steps that are left.
    pub const fn left(&self) -> (usize, usize) {
        (self.bytes, self.steps)
    }

    /// Nothing more is to be begun.
    pub const fn is_spent(&self) -> bool {
        self.bytes == 0 || self.steps == 0
    }

    /// A descriptor was taken or a frame made.
    pub const fn step(&mut self) {
        self.steps = self.steps.saturating_sub(1);
    }

    /// Bytes were copied or summed.
    pub const fn bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Default for Budget {
    /// What one call should do at most: a tenth of a millisecond of a processor that copies a few bytes in a nanosecond.
    fn default() -> Self {
        Self::new(Self::BYTES, Self::STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_kind_of_work_ends_it() {
        let mut budget = Budget::new(100, 2);
        budget.step();
        budget.bytes(99);
        assert!(!budget.is_spent());
        budget.step();
        assert!(budget.is_spent());
        let mut budget = Budget::new(100, 2);
        budget.bytes(101);
        assert!(budget.is_spent(), "more than there was");
    }
}
