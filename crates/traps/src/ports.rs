//! Ports: a sorted table of ranges, and the permission map derived from it.
//!
//! Source of the map's format: APM vol 2, 15.10.1. It has one bit per port and knows no direction: a
//! port exits unless both directions are direct. An access of several bytes exits if the bit of any
//! of its ports is set.

pub use crate::Direction;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// Bytes of a permission map: 65,536 bits and a page of ones for accesses that run over the end.
pub const MAP_BYTES: usize = 3 * 4096;

/// What becomes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition<H> {
    /// It goes to the hardware.
    Direct,
    /// It exits, and this handles it.
    Handler(H),
    /// It exits, and the guest has no right to it.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range<H> {
    first: u16,
    last: u16,
    read: Disposition<H>,
    write: Disposition<H>,
}

/// The hooked ports of one domain. Ports that nobody mentioned are refused.
#[derive(Clone, Debug, Default)]
pub struct PortTable<H> {
    /// Sorted and disjoint.
    ranges: Vec<Range<H>>,
}

impl<H: Copy + PartialEq> PortTable<H> {
    /// Everything is refused.
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Sends accesses in these directions to a handler.
    pub fn hook(&mut self, ports: RangeInclusive<u16>, direction: Direction, handler: H) {
        self.set(ports, direction, Disposition::Handler(handler));
    }

    /// Lets accesses in both directions go to the hardware.
    pub fn direct(&mut self, ports: RangeInclusive<u16>) {
        self.set(ports, Direction::all(), Disposition::Direct);
    }

    /// Refuses accesses in both directions again.
    pub fn remove(&mut self, ports: RangeInclusive<u16>) {
        self.set(ports, Direction::all(), Disposition::Refused);
    }

    /// What becomes of a one-byte access.
    pub fn lookup(&self, port: u16, direction: Direction) -> Disposition<H> {
        let at = self.ranges.partition_point(|range| range.last < port);
        match self.ranges.get(at) {
            Some(range) if range.first <= port => {
                if direction == Direction::READ {
                    range.read
                } else {
                    range.write
                }
            }
            _ => Disposition::Refused,
        }
    }

    /// What becomes of an access of `width` bytes that exited. It goes whole to the handler of its
    /// first port, if the others belong to the same handler or are direct; it is direct only if all
    /// its ports are. Anything else straddles what does not belong together and is refused.
    pub fn lookup_access(&self, port: u16, width: u8, direction: Direction) -> Disposition<H> {
        let at = self.ranges.partition_point(|range| range.last < port);
        if let (Some(range), Some(last)) =
            (self.ranges.get(at), port.checked_add(u16::from(width.max(1)) - 1))
            && range.first <= port
            && last <= range.last
        {
            // Nearly every access is inside one range.
            return if direction == Direction::READ { range.read } else { range.write };
        }
        let mut all = self.lookup(port, direction);
        for byte in 1..u16::from(width) {
            let Some(next) = port.checked_add(byte) else { return Disposition::Refused };
            let other = self.lookup(next, direction);
            all = match (all, other) {
                (one, two) if one == two => one,
                (Disposition::Handler(handler), Disposition::Direct)
                | (Disposition::Direct, Disposition::Handler(handler)) => Disposition::Handler(handler),
                _ => return Disposition::Refused,
            };
        }
        all
    }

    /// Byte `index` of the permission map: eight ports, a bit set where an access exits.
    pub fn map_byte(&self, index: u16) -> u8 {
        (0..8).fold(0, |byte, bit| {
            let port = index.wrapping_mul(8) | bit;
            let direct = [Direction::READ, Direction::WRITE]
                .into_iter()
                .all(|direction| self.lookup(port, direction) == Disposition::Direct);
            byte | u8::from(!direct) << bit
        })
    }

    fn set(&mut self, ports: RangeInclusive<u16>, direction: Direction, to: Disposition<H>) {
        let (first, last) = (*ports.start(), *ports.end());
        if first > last {
            return;
        }
        let mut next = Vec::with_capacity(self.ranges.len() + 3);
        // Where the last piece of the new range that is not yet covered begins; `None` past its end.
        let mut open = Some(first);
        let apply = |old: Range<H>| Range {
            read: if direction.contains(Direction::READ) { to } else { old.read },
            write: if direction.contains(Direction::WRITE) { to } else { old.write },
            ..old
        };
        let blank = |first, last| {
            apply(Range { first, last, read: Disposition::Refused, write: Disposition::Refused })
        };
        for range in self.ranges.drain(..) {
            if range.last < first {
                next.push(range);
                continue;
            }
            if range.first > last {
                if let Some(start) = open.take() {
                    next.push(blank(start, last));
                }
                next.push(range);
                continue;
            }
            if range.first < first {
                next.push(Range { last: first - 1, ..range });
            }
            let (from, to_port) = (range.first.max(first), range.last.min(last));
            if let Some(start) = open.filter(|start| *start < from) {
                next.push(blank(start, from - 1));
            }
            next.push(apply(Range { first: from, last: to_port, ..range }));
            open = if to_port < last { Some(to_port + 1) } else { None };
            if range.last > last {
                next.push(Range { first: last + 1, ..range });
            }
        }
        if let Some(start) = open {
            next.push(blank(start, last));
        }
        next.retain(|range| range.read != Disposition::Refused || range.write != Disposition::Refused);
        next.dedup_by(|later, earlier| {
            let joins = earlier.last.checked_add(1) == Some(later.first)
                && earlier.read == later.read
                && earlier.write == later.write;
            if joins {
                earlier.last = later.last;
            }
            joins
        });
        self.ranges = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_access_that_straddles_owners_is_refused() {
        let mut table = PortTable::new();
        table.hook(0x100..=0x103, Direction::all(), 'a');
        table.hook(0x104..=0x107, Direction::all(), 'b');
        table.direct(0x108..=0x10b);
        let read = Direction::READ;
        assert_eq!(table.lookup_access(0x100, 4, read), Disposition::Handler('a'));
        assert_eq!(table.lookup_access(0x102, 4, read), Disposition::Refused);
        assert_eq!(table.lookup_access(0x106, 4, read), Disposition::Handler('b'));
        assert_eq!(table.lookup_access(0x108, 4, read), Disposition::Direct);
        assert_eq!(table.lookup_access(0x10a, 4, read), Disposition::Refused);
        assert_eq!(table.lookup_access(0xffff, 2, read), Disposition::Refused);
    }

    #[test]
    fn a_port_exits_unless_both_directions_are_direct() {
        let mut table = PortTable::new();
        table.direct(8..=15);
        table.hook(9..=9, Direction::WRITE, ());
        assert_eq!([0, 1, 2].map(|index| table.map_byte(index)), [0xff, 0b10, 0xff]);
    }

    proptest! {
        /// Against one entry per port and direction, for a small space and its far end.
        #[test]
        fn agrees_with_a_flat_table(
            steps in prop::collection::vec((0u16..64, 0u16..20, 0u8..6, any::<bool>()), 1..60)
        ) {
            let mut table = PortTable::new();
            let mut flat = [[Disposition::Refused; 2]; 64];
            for (from, len, what, high) in steps {
                // The same steps at the top of the port space must not overflow.
                let base = if high { 0xffc0 } else { 0 };
                let to = (from + len).min(63);
                let (direction, value) = match what {
                    0 => (Direction::READ, Disposition::Handler(1)),
                    1 => (Direction::WRITE, Disposition::Handler(2)),
                    2 => (Direction::all(), Disposition::Handler(3)),
                    3 => (Direction::all(), Disposition::Direct),
                    _ => (Direction::all(), Disposition::Refused),
                };
                match value {
                    Disposition::Handler(handler) => table.hook(base + from..=base + to, direction, handler),
                    Disposition::Direct => table.direct(base + from..=base + to),
                    Disposition::Refused => table.remove(base + from..=base + to),
                }
                if !high {
                    for port in from..=to {
                        if direction.contains(Direction::READ) { flat[port as usize][0] = value; }
                        if direction.contains(Direction::WRITE) { flat[port as usize][1] = value; }
                    }
                }
            }
            for port in 0..64u16 {
                let [read, write] = flat[port as usize];
                prop_assert_eq!(table.lookup(port, Direction::READ), read);
                prop_assert_eq!(table.lookup(port, Direction::WRITE), write);
                let exits = table.map_byte(port / 8) >> (port % 8) & 1 != 0;
                prop_assert_eq!(exits, read != Disposition::Direct || write != Disposition::Direct);
            }
        }
    }
}
