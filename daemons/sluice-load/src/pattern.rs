//! Data that can be told from all other data: each 4 KiB depend on their number and on a seed.

/// Size of what has a number.
pub const BLOCK: usize = 4096;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that begins with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Fills whole blocks, of which the first has this number.
pub fn fill(bytes: &mut [u8], first: usize, seed: u64) {
    for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        let mut random = Random::new(seed ^ ((first + number) as u64) << 20);
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    }
}

/// The number of the first block that is not as [`fill`] left it.
pub fn wrong(bytes: &[u8], first: usize, seed: u64) -> Option<usize> {
    let mut expected = [0; BLOCK];
    let mut numbers = (first..).zip(bytes.chunks_exact(BLOCK));
    numbers.find_map(|(number, block)| {
        fill(&mut expected, number, seed);
        (block != expected).then_some(number)
    })
}

/// So many different numbers below `below`, in an order without order.
pub fn places(count: usize, below: usize, seed: u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..below).collect();
    let mut random = Random::new(seed);
    let count = count.min(below);
    for at in 0..count {
        let left = (below - at) as u64;
        all.swap(at, at + (random.next() % left) as usize);
    }
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_and_a_block_of_another_place_are_noticed() {
        let mut bytes = vec![0; 4 * BLOCK];
        fill(&mut bytes, 7, 1);
        assert_eq!(wrong(&bytes, 7, 1), None);
        assert_eq!(wrong(&bytes, 7, 2), Some(7), "older data of the same place");
        bytes[2 * BLOCK + 5] ^= 1;
        assert_eq!(wrong(&bytes, 7, 1), Some(9));
        bytes.copy_within(..BLOCK, BLOCK);
        assert_eq!(wrong(&bytes, 7, 1), Some(8));
    }

    #[test]
    fn places_differ() {
        let mut places = places(100, 128, 3);
        assert!(!places.is_sorted());
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 100);
        assert!(places.last().is_some_and(|last| *last < 128));
    }
}
