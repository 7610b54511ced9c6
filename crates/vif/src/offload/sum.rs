//! The internet checksum (RFC 1071), over pieces.

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
        let (blocks, rest) = bytes.as_chunks::<32>();
        let (words, tail) = rest.as_chunks::<8>();
        // What is carried out of 64 bits gathers in the upper half, where there is room for all memory.
        let mut sum = 0u128;
        for block in blocks {
            for word in block.as_chunks::<8>().0 {
                sum += u128::from(u64::from_le_bytes(*word));
            }
        }
        for word in words {
            sum += u128::from(u64::from_le_bytes(*word));
        }
        if !tail.is_empty() {
            let shifted = tail.iter().rev().fold(0, |last, byte| last << 8 | u64::from(*byte));
            sum += u128::from(shifted);
        }
        let piece = fold((sum as u64 & 0xffff_ffff) + (sum as u64 >> 32) + (sum >> 64) as u64);
        self.total += u64::from(if self.odd { piece.swap_bytes() } else { piece });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds a word that stands before all other bytes, or behind an even number of them.
    pub(crate) const fn word(&mut self, word: u16) {
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
const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
