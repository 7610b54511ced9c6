//! A bounded first-in first-out of frames, allocated once.

use crate::MAX_FRAME;
use alloc::boxed::Box;
use alloc::vec;

/// Length, then the frame.
const SLOT: usize = 2 + MAX_FRAME;

/// At most `N` frames.
#[derive(Debug)]
pub(crate) struct Queue<const N: usize> {
    bytes: Box<[u8]>,
    first: usize,
    count: usize,
}

impl<const N: usize> Queue<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; N * SLOT].into_boxed_slice(), first: 0, count: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.count >= N
    }

    /// Keeps a copy of a frame; false if there is no room, or it is too long.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        if self.is_full() {
            return false;
        }
        let at = (self.first + self.count) % N * SLOT;
        let Some(slot) = self.bytes.get_mut(at..at + SLOT) else { return false };
        let Some((length, data)) = slot.split_first_chunk_mut::<2>() else { return false };
        let Some(data) = data.get_mut(..frame.len()) else { return false };
        *length = (frame.len() as u16).to_le_bytes();
        data.copy_from_slice(frame);
        self.count += 1;
        true
    }

    /// The oldest frame.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        if self.count == 0 {
            return None;
        }
        let at = self.first * SLOT;
        let (length, data) = self.bytes.get(at..at + SLOT)?.split_first_chunk::<2>()?;
        data.get(..usize::from(u16::from_le_bytes(*length)))
    }

    /// Forgets the oldest frame.
    pub(crate) const fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % N;
            self.count -= 1;
        }
    }
}
