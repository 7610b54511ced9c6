//! Blocks that are not the guest's.

use super::super::Score;
use super::{BLOCKS, Guest, HELD, MOST, PAGE, fill, holds};
use crate::dma::memory::put64;
use crate::nvme::{Command, FLUSH, READ, WRITE, ZEROES};

impl Guest<'_> {
    /// Blocks that are not its own, near and far.
    pub fn outside(&mut self) {
        let (blocks, mut score) = (self.blocks, Score::new("blocks"));
        fill(self.area, MOST, HELD);
        (0..512).for_each(|index| put64(self.list + 8 * index, self.area + index % MOST * PAGE));
        let edges = [
            (blocks, 1),
            (blocks - 1, 2),
            (blocks - 7, 8),
            (blocks - 127, 128),
            (1, blocks),
            (0, blocks + 1),
            (0, 65_536),
            (blocks, 65_536),
            (u64::MAX, 1),
            (u64::MAX, 2),
            (u64::MAX - 7, 8),
            (u64::MAX - 6, 8),
            (u64::MAX - 65_534, 65_536),
            (1 << 63, 8),
            (1 << 48, 1),
            ((1 << 48) - 1, 2),
            (1 << 32, 8),
            ((1 << 32) + 16, 8),
            // Where its part would begin again, and the disk, if sums had no more than 64 bits.
            (blocks.wrapping_neg(), 8),
            (blocks.wrapping_neg() - 8, 8),
        ];
        for (first, count) in edges {
            self.try_blocks(&mut score, first, count as u32);
        }
        for _ in 0..100 {
            let count = 1 + self.random.below(128);
            let first = match self.random.below(4) {
                0 => blocks - count + 1 + self.random.below(count),
                1 => blocks + self.random.below(1 << 20),
                2 => (1 << self.random.below(64)) + blocks,
                _ => u64::MAX - self.random.below(1 << 40),
            };
            self.try_blocks(&mut score, first, count as u32);
        }
        // Ranges have 32 bits, and there may be many: one of them is enough.
        for (first, count) in [(0, u32::MAX), (8, u32::MAX - 7), (blocks - 1, u32::MAX), (u64::MAX, u32::MAX)]
        {
            score.add(self.tell(self.dataset(&[(first, count)], 4)));
        }
        for _ in 0..32 {
            let mut ranges = [(0, 8); 256];
            let (len, bad) = (1 + self.random.below(256), self.random.next());
            ranges[(bad % len) as usize] = (blocks - 4, 8);
            score.add(self.tell(self.dataset(&ranges[..len as usize], 4)));
        }
        // Namespaces of which there are none, or which are all.
        for namespace in [0, 2, 3, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let pages = [self.page, self.list];
            for operation in [READ, WRITE, ZEROES] {
                let command = Command { namespace, ..Command::blocks(operation, 0, 8, pages) };
                score.add(self.gets(command));
            }
            let command = self.dataset(&[(0, 8)], 4);
            score.add(self.tell(Command { namespace, ..command }));
            if namespace != u32::MAX {
                score.add(self.tell(Command { operation: FLUSH, namespace, ..Command::default() }));
            }
        }
        score.add(!holds(self.area, MOST, HELD));
    }

    fn try_blocks(&mut self, score: &mut Score, first: u64, count: u32) {
        let pages = [self.page, if count > 2 * BLOCKS { self.list } else { self.area }];
        for operation in [READ, WRITE, ZEROES] {
            score.add(self.gets(Command::blocks(operation, first, count, pages)));
        }
        score.add(self.tell(self.dataset(&[(first, count)], 4)));
    }
}
