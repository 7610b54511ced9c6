//! Frames that found a client's ring full, kept until it makes room.

use alloc::boxed::Box;
use alloc::vec;
use sluice_nic::ne2000::MAX_FRAME;

/// Frames kept. A download's burst while its guest is not scheduled fits.
const SLOTS: usize = 48;
/// Length, then the frame.
const SLOT_BYTES: usize = 2 + MAX_FRAME;

/// A bounded first-in first-out of frames; allocated once.
#[derive(Debug)]
pub(super) struct Backlog {
    bytes: Box<[u8]>,
    first: usize,
    count: usize,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; SLOTS * SLOT_BYTES].into_boxed_slice(), first: 0, count: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn clear(&mut self) {
        self.count = 0;
    }

    /// False if there is no room, or the frame is longer than Ethernet allows.
    pub(super) fn push(&mut self, frame: &[u8]) -> bool {
        if self.count >= SLOTS || frame.len() > MAX_FRAME {
            return false;
        }
        let slot = (self.first + self.count) % SLOTS;
        let Some(bytes) = self.bytes.chunks_exact_mut(SLOT_BYTES).nth(slot) else { return false };
        let Some((length, data)) = bytes.split_first_chunk_mut::<2>() else { return false };
        *length = (frame.len() as u16).to_le_bytes();
        if let Some(data) = data.get_mut(..frame.len()) {
            data.copy_from_slice(frame);
        }
        self.count += 1;
        true
    }

    /// The oldest frame.
    pub(super) fn peek(&self) -> Option<&[u8]> {
        if self.count == 0 {
            return None;
        }
        let bytes = self.bytes.chunks_exact(SLOT_BYTES).nth(self.first)?;
        let (length, data) = bytes.split_first_chunk::<2>()?;
        data.get(..usize::from(u16::from_le_bytes(*length)))
    }

    /// Forgets the oldest frame.
    pub(super) const fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % SLOTS;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_across_the_end_and_refuses_when_full() {
        let mut backlog = Backlog::new();
        for round in 0..5u8 {
            for index in 0..SLOTS {
                assert!(backlog.push(&[round, index as u8]));
            }
            assert!(!backlog.push(&[0]));
            for index in 0..SLOTS - 7 {
                assert_eq!(backlog.peek(), Some(&[round, index as u8][..]));
                backlog.pop();
            }
            for _ in 0..7 {
                backlog.pop();
            }
            assert!(backlog.is_empty() && backlog.peek().is_none());
        }
        assert!(!backlog.push(&[0; MAX_FRAME + 1]));
    }
}
