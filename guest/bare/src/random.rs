//! Numbers that look random and are the same in every run (xorshift64*).

/// A generator.
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on `seed` only.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of the kind that finds mistakes: few bits, all bits, the edge of a width, or any.
    pub fn wild(&mut self) -> u64 {
        let any = self.next();
        match any >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (any & 63),
            3 => (1u64 << (any & 63)).wrapping_sub(1),
            4 => !(1 << (any & 63)),
            5 => any & 0xff,
            6 => any & 0xffff_ffff,
            _ => self.next(),
        }
    }
}
