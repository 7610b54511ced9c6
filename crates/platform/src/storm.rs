//! When a device's messages (MSI, MSI-X) are held back: they come without end, and nobody takes them.
//!
//! A message that its guest has not taken yet says nothing new when it comes again, but it still interrupts the physical
//! processor that it was programmed to, whoever runs there. A line is masked until its interrupt ends; masking a message each time
//! would cost every interrupt two accesses to the device, so that only a flood is stopped.
//!
//! Source: PCI Local Bus 3.0, 6.8.2.5 (a function may coalesce messages that software has not dealt with).

/// Messages in a row that were no news to their guest, after which the function is held back.
///
/// A guest that waits for its slice of a shared processor (4 ms) is not held back by a device that sends 16,000 messages a second.
pub const FLOOD: u16 = 64;

/// Counts the messages of one function that were no news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flood {
    stale: u16,
}

impl Flood {
    /// A message came; `news`: its guest had taken the one before. Returns whether the function must be held back: its messages are
    /// stopped at the function for a while, and one is delivered when they are let through again. From then on the first that is
    /// no news holds it back again.
    #[must_use]
    pub fn came(&mut self, news: bool) -> bool {
        self.stale = if news { 0 } else { self.stale.saturating_add(1).min(FLOOD) };
        self.stale == FLOOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_taken_are_never_held_back() {
        let mut flood = Flood::default();
        assert!((0..1_000_000).all(|_| !flood.came(true)));
    }

    #[test]
    fn a_burst_shorter_than_a_flood_is_not_held_back() {
        let mut flood = Flood::default();
        for _ in 0..1000 {
            assert!((1..FLOOD).all(|_| !flood.came(false)));
            assert!(!flood.came(true));
        }
    }

    #[test]
    fn a_flood_is_held_back_and_then_one_message_at_a_time_until_the_guest_gets_on() {
        let mut flood = Flood::default();
        let came = (1..).find(|_| flood.came(false));
        assert_eq!(came, Some(FLOOD));
        assert!((0..1000).all(|_| flood.came(false)), "each further one is held back again");
        assert!(!flood.came(true), "the guest took one");
        assert!(!flood.came(false));
    }
}
