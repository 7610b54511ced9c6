//! A bounded first-in first-out of frames, allocated once.

use crate::MAX_FRAME;
use alloc::boxed::Box;
use alloc::vec;

/// Length, check sequence, then the frame.
const HEADER: usize = 2 + 4;
const SLOT: usize = HEADER + MAX_FRAME;
/// Bit of a length: the check sequence is known.
const CHECKED: u16 = 1 << 15;

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

    /// Keeps a copy of a frame, with its check sequence if that is known; false if there is no room, or it is too long.
    pub(crate) fn push(&mut self, frame: &[u8], fcs: Option<u32>) -> bool {
        if self.is_full() {
            return false;
        }
        let at = (self.first + self.count) % N * SLOT;
        let Some(slot) = self.bytes.get_mut(at..at + SLOT) else { return false };
        let Some(([l0, l1, check @ ..], data)) = slot.split_first_chunk_mut::<HEADER>() else { return false };
        let Some(data) = data.get_mut(..frame.len()) else { return false };
        [*l0, *l1] = (frame.len() as u16 | if fcs.is_some() { CHECKED } else { 0 }).to_le_bytes();
        *check = fcs.unwrap_or(0).to_le_bytes();
        data.copy_from_slice(frame);
        self.count += 1;
        true
    }

    /// The oldest frame, and its check sequence if that is known.
    pub(crate) fn first(&self) -> Option<(&[u8], Option<u32>)> {
        if self.count == 0 {
            return None;
        }
        let at = self.first * SLOT;
        let ([l0, l1, check @ ..], data) = self.bytes.get(at..at + SLOT)?.split_first_chunk::<HEADER>()?;
        let length = u16::from_le_bytes([*l0, *l1]);
        let fcs = (length & CHECKED != 0).then_some(u32::from_le_bytes(*check));
        Some((data.get(..usize::from(length & !CHECKED))?, fcs))
    }

    /// Forgets the oldest frame.
    pub(crate) const fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % N;
            self.count -= 1;
        }
    }
}
