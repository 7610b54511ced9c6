//! What a guest wrote to its console and nobody has taken yet.
//!
//! Key type: [`Console`]. Its size is limited. A guest whose serial port is shown busy while the queue is
//! [full](Console::is_full) ([`crate::uart::Uart::set_busy`]) loses nothing; of one that writes all the same, what does not fit is dropped and counted, and a
//! line in the queue says how much at the place where it was.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

/// Bytes that are kept.
pub const LIMIT: usize = 64 * 1024;
/// Bytes that a driver may send once the serial port says that it is ready: what fits the FIFO of a 16550A.
pub const FIFO: usize = 16;

/// The queue of one console.
#[derive(Clone, Debug, Default)]
pub struct Console {
    queue: VecDeque<u8>,
    /// Bytes dropped that no line has told of yet.
    untold: u64,
    dropped: u64,
}

impl Console {
    /// The guest sent a byte.
    pub fn push(&mut self, byte: u8) {
        if self.queue.len() < LIMIT {
            self.queue.push_back(byte);
        } else {
            self.untold += 1;
            self.dropped += 1;
        }
    }

    /// Whether of the next bytes that a driver sends without looking again some might be dropped.
    pub fn is_full(&self) -> bool {
        self.queue.len() + FIFO > LIMIT
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes up to `most` bytes. What was dropped came after the last byte of the queue: the line that tells of it goes there.
    pub fn take(&mut self, most: usize) -> Vec<u8> {
        let count = self.queue.len().min(most);
        let taken = self.queue.drain(..count).collect();
        if count != 0 && self.untold != 0 {
            let line = format!("\r\n[sluice: {} bytes of this console were dropped]\r\n", self.untold);
            self.queue.extend(line.bytes());
            self.untold = 0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(console: &mut Console, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !console.is_empty() {
            all.extend(console.take(most));
        }
        all
    }

    #[test]
    fn nothing_is_lost_up_to_the_limit() {
        let mut console = Console::default();
        let bytes: Vec<u8> = (0..LIMIT).map(|index| index as u8).collect();
        bytes.iter().for_each(|byte| console.push(*byte));
        assert!(console.is_full());
        assert_eq!((all(&mut console, 1000), console.dropped()), (bytes, 0));
    }

    #[test]
    fn a_driver_that_fills_a_fifo_whenever_the_port_is_ready_loses_nothing() {
        let mut console = Console::default();
        let mut sent = 0u64;
        for _ in 0..100 {
            while !console.is_full() {
                (0..FIFO).for_each(|_| console.push(b'f'));
                sent += FIFO as u64;
            }
            sent -= console.take(1000).len() as u64;
        }
        assert_eq!((console.dropped(), console.len() as u64), (0, sent));
    }

    #[test]
    fn what_is_dropped_is_told_where_it_was() {
        let mut console = Console::default();
        (0..LIMIT + 1234).for_each(|_| console.push(b'a'));
        let mut got = console.take(2048);
        console.push(b'b');
        got.extend(all(&mut console, 2048));
        let line = b"\r\n[sluice: 1234 bytes of this console were dropped]\r\n";
        assert_eq!(got[..LIMIT], [b'a'; LIMIT]);
        assert_eq!(got[LIMIT..], [&line[..], b"b"].concat());
        assert_eq!(console.dropped(), 1234);
    }

    #[test]
    fn each_gap_is_told_of_once() {
        let mut console = Console::default();
        for _ in 0..3 {
            (0..LIMIT + 1).for_each(|_| console.push(b'x'));
            let text = String::from_utf8(all(&mut console, 4096)).unwrap();
            assert_eq!(text.matches("[sluice: 1 bytes").count(), 1);
        }
        assert_eq!(console.dropped(), 3);
    }
}
