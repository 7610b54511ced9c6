//! A limit on what is sent, in bits per second.

/// Nanoseconds for which a sender that sent nothing may make up.
const BURST_NS: u64 = 4_000_000;
/// Bits in a byte, and nanoseconds in a second: what a credit is counted in.
const PER_BYTE: u64 = 8 * 1_000_000_000;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Bits per second.
    rate: u64,
    /// Bits that may be sent, times 10^9.
    credit: i128,
    /// When that was so, in nanoseconds.
    at: u64,
}

impl Bucket {
    /// One for so many bits per second, full.
    pub fn new(rate: u64, now: u64) -> Self {
        let rate = rate.max(1);
        Self { rate, credit: i128::from(rate) * i128::from(BURST_NS), at: now }
    }

    /// When something may be sent: `now`, or later.
    pub fn ready_at(&mut self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.at);
        let most = i128::from(self.rate) * i128::from(BURST_NS);
        self.credit = (self.credit + i128::from(self.rate) * i128::from(passed)).min(most);
        self.at = self.at.max(now);
        if self.credit > 0 {
            return now;
        }
        let wait = -self.credit / i128::from(self.rate) + 1;
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// So many bytes were sent. They may be more than the credit: that is made up for later.
    pub fn spend(&mut self, bytes: u32) {
        self.credit -= i128::from(u64::from(bytes) * PER_BYTE);
    }
}
