//! The Internet checksum (RFC 1071), for cards that put it in, and who does their work.

/// A sum in ones' complement of 16-bit words, of which the bytes come in pieces of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// In little endian: the bytes come out in the order of the network, since a sum with end-around carry does not depend on it.
    total: u64,
    /// The next byte is the second of a word.
    odd: bool,
}

impl Sum {
    /// Of nothing.
    pub const fn new() -> Self {
        Self { total: 0, odd: false }
    }

    /// Adds the bytes that follow.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<64>();
        let (words, tail) = rest.as_chunks::<8>();
        // What is carried out of 64 bits is counted once for a block: so the compiler adds a word by one instruction.
        let (mut sum, mut carries) = (0u64, 0u64);
        for block in blocks {
            let mut carry = false;
            for word in block.as_chunks::<8>().0 {
                let (without, first) = sum.overflowing_add(u64::from_le_bytes(*word));
                let (with, second) = without.overflowing_add(carry.into());
                (sum, carry) = (with, first | second);
            }
            carries += u64::from(carry);
        }
        let mut add = |word: u64| {
            let carry;
            (sum, carry) = sum.overflowing_add(word);
            carries += u64::from(carry);
        };
        words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
        if !tail.is_empty() {
            add(tail.iter().rev().fold(0, |last, byte| last << 8 | u64::from(*byte)));
        }
        let piece = fold((sum & 0xffff_ffff) + (sum >> 32) + carries);
        self.total += u64::from(if self.odd { piece.swap_bytes() } else { piece });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds a word that stands before all other bytes, or behind an even number of them.
    pub const fn word(&mut self, word: u16) {
        self.total += u16::from_le_bytes(word.to_be_bytes()) as u64;
    }

    /// The sum, in the order of the network.
    pub fn folded(&self) -> [u8; 2] {
        fold(self.total).to_le_bytes()
    }

    /// The checksum: the sum's complement, in the order of the network.
    pub fn checksum(&self) -> [u8; 2] {
        (!fold(self.total)).to_le_bytes()
    }
}

/// A sum with its carries added, as often as there are any.
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sum of 16-bit words; a last odd byte counts as a high one.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut sum = Sum::new();
    sum.add(bytes);
    u16::from_be_bytes(sum.folded()).into()
}
