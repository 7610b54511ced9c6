//! How often the line of a card rises that has nothing to say about it: no more often than on a wire of the card's own speed.
//!
//! A software card sends what its driver hands over in no time, and takes frames as they come from a neighbour in no time, too. A driver that knows
//! only how a frame's end interrupts would be interrupted for each, where a real card's has several frames by then. So the line does not rise
//! again before a wire would have carried what the card has sent and received since it last rose, or for [`MOST`] at most. Frames that come
//! from a real wire of that speed have these distances anyway, and wait for nothing.
//!
//! Source: IEEE 802.3, 4.2.3.2 and 4.4.2 (preamble, gap between frames).

/// Nanoseconds for a byte at 100 Mbit/s, which is an RTL8139's speed.
const BYTE: u64 = 80;
/// Bytes on the wire for each frame beside its own: preamble, check sequence, gap.
const AROUND: u64 = 24;
/// Most nanoseconds that the line is held for: what Linux' drivers set cards to that can be set, when they have much to do (4,000 interrupts
/// a second).
const MOST: u64 = 250_000;

/// What a card has done since its line last rose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    rose_at: u64,
    /// Nanoseconds that a wire takes for it, up to [`MOST`].
    carried: u64,
}

impl Pace {
    /// The card has sent or received so many frames one after the other, of so many bytes in all.
    pub(crate) const fn carry(&mut self, frames: usize, bytes: usize) {
        let more = (bytes as u64 + frames as u64 * AROUND) * BYTE;
        self.carried = if self.carried + more < MOST { self.carried + more } else { MOST };
    }

    /// When the line may rise.
    pub(crate) const fn rises_at(&self) -> u64 {
        self.rose_at.saturating_add(self.carried)
    }

    /// It rises.
    pub(crate) const fn rise(&mut self, now: u64) {
        (self.rose_at, self.carried) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_waits_for_the_wire_and_no_longer_than_the_most() {
        let mut pace = Pace::default();
        pace.carry(1, 60);
        assert_eq!(pace.rises_at(), 6_720, "the shortest frame at 100 Mbit/s");
        pace.rise(1_000_000);
        assert_eq!(pace.rises_at(), 1_000_000, "what has happened is no reason to wait any more");
        pace.carry(2, 2 * 1514);
        assert_eq!(pace.rises_at(), 1_000_000 + 2 * 123_040);
        pace.carry(1, usize::MAX >> 16);
        assert_eq!(pace.rises_at(), 1_000_000 + MOST);
    }
}
