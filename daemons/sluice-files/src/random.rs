//! The statistical tests of FIPS 140-2, 4.9.1 (change notice 1), as rngtest makes them.

use crate::result;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of a block of 20,000 bits.
const BLOCK: usize = 2500;

/// Reads blocks from a file and tests each.
pub fn run(path: &Path, blocks: u32) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let (mut failed, mut block, mut last) = (0, [0; BLOCK], [0; BLOCK]);
    for number in 0..blocks {
        file.read_exact(&mut block).context("could not read")?;
        if block == last {
            bail!("block {number} is the one before it");
        }
        failed += u32::from(!is_random(&block));
        last = block;
    }
    result(&format!("random_blocks={blocks}"));
    result(&format!("random_failed={failed}"));
    // One block in 1,250 of a good source fails.
    result(&format!("random={}", if failed * 8 <= blocks { "ok" } else { "bad" }));
    Ok(())
}

fn is_random(block: &[u8; BLOCK]) -> bool {
    let ones: u32 = block.iter().map(|byte| byte.count_ones()).sum();
    let mut nibbles = [0u64; 16];
    for byte in block {
        nibbles[usize::from(byte & 15)] += 1;
        nibbles[usize::from(byte >> 4)] += 1;
    }
    // 16 / 5000 * sum of squares - 5000 lies between 2.16 and 46.17.
    let squares: u64 = nibbles.iter().map(|count| count * count).sum();
    let poker = (1_563_175..=1_576_928).contains(&squares);
    (9726..=10274).contains(&ones) && poker && runs(block)
}

/// Runs of each length, of six and more together, and none of 26.
fn runs(block: &[u8; BLOCK]) -> bool {
    const ALLOWED: [std::ops::RangeInclusive<u32>; 6] =
        [2315..=2685, 1114..=1386, 527..=723, 240..=384, 103..=209, 103..=209];
    let mut counts = [[0u32; 6]; 2];
    let bits = block.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
    let (mut value, mut length, mut longest) = (2, 0usize, 0);
    let mut end = |value: u8, length: usize| {
        if value < 2 {
            counts[usize::from(value)][length.min(6) - 1] += 1;
        }
    };
    for bit in bits {
        if bit == value {
            length += 1;
        } else {
            end(value, length);
            (value, length) = (bit, 1);
        }
        longest = longest.max(length);
    }
    end(value, length);
    longest < 26
        && counts
            .iter()
            .all(|counts| std::iter::zip(counts, &ALLOWED).all(|(count, all)| all.contains(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_generator_passes_and_a_pattern_does_not() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let passed = (0..50).filter(|_| is_random(&std::array::from_fn(|_| next()))).count();
        assert!(passed >= 48, "{passed}");
        assert!(!is_random(&[0x55; BLOCK]));
        assert!(!is_random(&[0; BLOCK]));
        assert!(!is_random(&std::array::from_fn(|at| b'a' + (at % 26) as u8)));
    }
}
