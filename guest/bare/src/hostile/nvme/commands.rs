//! Commands that are not offered, and what is to be learnt from those that are.

use super::super::Score;
use super::{Guest, HELD, LONG, MOST, PAGE, fill, holds};
use crate::nvme::{Command, DATASET, FLUSH, READ, WRITE, ZEROES, admin};

/// Admin commands that are offered.
const OFFERED: [u32; 11] = [
    admin::DELETE_SUBMISSION,
    admin::CREATE_SUBMISSION,
    admin::LOG,
    admin::DELETE_COMPLETION,
    admin::CREATE_COMPLETION,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::EVENT,
    admin::DOORBELLS,
];

impl Guest<'_> {
    /// Commands that are not offered, as far as they are defined and further; and data by other means than pages.
    pub fn codes(&mut self) {
        let mut score = Score::new("codes");
        fill(self.area, MOST, HELD);
        self.make_list(LONG);
        let words = [[0; 6], [1, 0, 0, 0, 0, 0], [0x7f, 0, 0, 0, 0, 0], [u32::MAX; 6]];
        for operation in (0..0x100).filter(|operation| !OFFERED.contains(operation)) {
            for namespace in [0, 1, u32::MAX] {
                for words in words {
                    let pages = [self.area, self.area + PAGE];
                    score.add(self.administer(Command { operation, namespace, pages, words }));
                }
            }
        }
        for operation in (0..0x100).filter(|code| ![FLUSH, WRITE, READ, ZEROES, DATASET].contains(code)) {
            for namespace in [0, 1, u32::MAX] {
                for words in words {
                    let pages = [self.area, self.area + PAGE];
                    score.add(self.tell(Command { operation, namespace, pages, words }));
                }
            }
        }
        // Half of a fused operation, scatter-gather lists, both.
        for flags in [1 << 8, 2 << 8, 3 << 8, 1 << 14, 2 << 14, 3 << 14, 1 << 8 | 1 << 14] {
            for operation in [READ, WRITE, ZEROES, DATASET, FLUSH] {
                let command = Command::blocks(operation | flags, 0, 8, [self.area, 0]);
                score.add(self.tell(command));
            }
            for operation in [admin::IDENTIFY, admin::LOG, admin::GET_FEATURES] {
                let words = [1, 0, 0, 0, 0, 0];
                let pages = [self.area, 0];
                let operation = operation | flags;
                score.add(self.administer(Command { operation, pages, words, ..Command::default() }));
            }
        }
        // Protection, which goes with metadata.
        for bit in 26..30 {
            for operation in [READ, WRITE, ZEROES] {
                let mut command = Command::blocks(operation, 0, 8, [self.area, 0]);
                command.words[2] |= 1 << bit;
                score.add(self.tell(command));
            }
        }
        score.add(!holds(self.area, MOST, HELD));
    }

    /// What identifies the physical disk, anywhere in what can be asked for.
    pub fn secrets(&mut self, serial: &str) {
        let mut score = Score::new("secrets");
        for kind in 0..0x100 {
            for namespace in [0, 1, 2, u32::MAX] {
                for operation in [admin::IDENTIFY, admin::LOG] {
                    fill(self.area, 1, 0);
                    let dwords = if operation == admin::LOG { 1023 << 16 } else { 0 };
                    let words = [kind | dwords, 0, 0, 0, 0, 0];
                    let pages = [self.area, 0];
                    self.administer(Command { operation, namespace, pages, words });
                    score.add(self.shows(serial.as_bytes()));
                    // The log again, of a length that it has.
                    if operation == admin::LOG {
                        let words = [kind | 127 << 16, 0, 0, 0, 0, 0];
                        self.administer(Command { operation, namespace, pages, words });
                        score.add(self.shows(serial.as_bytes()));
                    }
                }
            }
        }
    }

    /// Whether the bytes are in the first page.
    fn shows(&self, wanted: &[u8]) -> bool {
        let page: &[u8] = unsafe { core::slice::from_raw_parts(self.area as *const u8, PAGE as usize) };
        page.windows(wanted.len()).any(|part| part == wanted)
    }

    /// Features of the whole disk's: all but the number of queues, events that never come, and the cache as it is.
    pub fn features(&mut self) {
        let mut score = Score::new("features");
        for feature in (0..0x100).filter(|feature| ![0x07, 0x0b].contains(feature)) {
            for (save, value) in [(0, 0), (0, u32::MAX), (1 << 31, 0), (0, 2)] {
                let words = [feature | save, value, 0, 0, 0, 0];
                let command =
                    Command { operation: admin::SET_FEATURES, namespace: 1, pages: [self.area, 0], words };
                let done = self.administer(command);
                // The cache can be set to what it is.
                score.add(done && (feature != 6 || value & 1 == 0));
            }
        }
    }
}
