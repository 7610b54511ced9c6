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

impl<H: Copy + PartialEq> Range<H> {
    /// What becomes of an access in one direction.
    #[inline]
    fn to(&self, direction: Direction) -> Disposition<H> {
        if direction == Direction::READ { self.read } else { self.write }
    }

    fn is_direct(&self) -> bool {
        self.read == Disposition::Direct && self.write == Disposition::Direct
    }
}

/// Ports from the first of a window on that can be open.
const WINDOW: u16 = 32;

/// Ports of one handler of which some do not exit.
#[derive(Clone, Copy, Debug)]
struct Window<H> {
    first: u16,
    last: u16,
    handler: H,
    /// By offset from `first`: does not exit.
    open: u32,
}

impl<H> Window<H> {
    /// The open ones of the 32 ports from `port` on.
    fn open_from(&self, port: u16) -> u32 {
        match i32::from(port) - i32::from(self.first) {
            shift @ 0..=31 => self.open >> shift,
            shift @ -31..=-1 => self.open << -shift,
            _ => 0,
        }
    }
}

/// The hooked ports of one domain. Ports that nobody mentioned are refused.
#[derive(Clone, Debug, Default)]
pub struct PortTable<H> {
    /// Sorted and disjoint.
    ranges: Vec<Range<H>>,
    /// Disjoint, each within a range that has one handler. Any other change of these ports ends one.
    windows: Vec<Window<H>>,
    /// Index of the range that an access was found in last: the next one is often there, too.
    recent: usize,
}

impl<H: Copy + PartialEq> PortTable<H> {
    /// Everything is refused.
    pub const fn new() -> Self {
        Self { ranges: Vec::new(), windows: Vec::new(), recent: 0 }
    }

    /// Sends accesses in these directions to a handler. Returns the ports whose bits of the permission map may be others now, as all
    /// changes do.
    pub fn hook(
        &mut self,
        ports: RangeInclusive<u16>,
        direction: Direction,
        handler: H,
    ) -> RangeInclusive<u16> {
        self.set(ports, direction, Disposition::Handler(handler))
    }

    /// Sends accesses to a handler, but has those of `open` not exit, by offset from the first port, of 32 at most. The handler
    /// answers for them all the same if they exited before. Where the handler has the ports already, as at nearly every change
    /// of hands, this writes a word and allocates nothing.
    pub fn hook_but(&mut self, ports: RangeInclusive<u16>, handler: H, open: u32) -> RangeInclusive<u16> {
        let (first, last) = (*ports.start(), *ports.end());
        let Some(count) = last.checked_sub(first) else { return ports };
        let open = open & u32::MAX.checked_shr(31u32.saturating_sub(count.into())).unwrap_or(u32::MAX);
        let is_it =
            |window: &&mut Window<H>| (window.first, window.last, window.handler) == (first, last, handler);
        if let Some(window) = self.windows.iter_mut().find(is_it) {
            window.open = open;
            return first..=last.min(first.saturating_add(WINDOW - 1));
        }
        let altered = self.set(ports, Direction::all(), Disposition::Handler(handler));
        self.windows.push(Window { first, last, handler, open });
        altered
    }

    /// Lets accesses in both directions go to the hardware.
    pub fn direct(&mut self, ports: RangeInclusive<u16>) -> RangeInclusive<u16> {
        self.set(ports, Direction::all(), Disposition::Direct)
    }

    /// Refuses accesses in both directions again.
    pub fn remove(&mut self, ports: RangeInclusive<u16>) -> RangeInclusive<u16> {
        self.set(ports, Direction::all(), Disposition::Refused)
    }

    /// What becomes of a one-byte access that exited.
    pub fn lookup(&self, port: u16, direction: Direction) -> Disposition<H> {
        let at = self.ranges.partition_point(|range| range.last < port);
        match self.ranges.get(at) {
            Some(range) if range.first <= port => range.to(direction),
            _ => Disposition::Refused,
        }
    }

    /// What becomes of an access of `width` bytes that exited. It goes whole to the handler of its
    /// first port, if the others belong to the same handler or are direct; it is direct only if all
    /// its ports are. Anything else straddles what does not belong together and is refused.
    #[inline]
    pub fn lookup_access(&mut self, port: u16, width: u8, direction: Direction) -> Disposition<H> {
        // Nearly every access is inside one range, or one gap.
        match self.around(self.recent, port, width, direction) {
            Some(found) => found,
            None => self.find_access(port, width, direction),
        }
    }

    /// The same for an access elsewhere than the one before it.
    #[cold]
    #[inline(never)]
    fn find_access(&mut self, port: u16, width: u8, direction: Direction) -> Disposition<H> {
        self.recent = self.ranges.partition_point(|range| range.last < port);
        if let Some(found) = self.around(self.recent, port, width, direction) {
            return found;
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

    /// What becomes of an access of `width` bytes if all of it is in the range of this index, or in the gap before that.
    #[inline]
    fn around(&self, index: usize, port: u16, width: u8, direction: Direction) -> Option<Disposition<H>> {
        let last = port.checked_add(u16::from(width.max(1)) - 1)?;
        let range = self.ranges.get(index)?;
        if range.first <= port && last <= range.last {
            return Some(range.to(direction));
        }
        let after = index.checked_sub(1).and_then(|before| self.ranges.get(before)).map(|range| range.last);
        (last < range.first && after.is_none_or(|after| after < port)).then_some(Disposition::Refused)
    }

    /// Word `index` of the permission map: 32 ports, a bit set where an access exits.
    pub fn map_word(&self, index: u16) -> u32 {
        let first = index.wrapping_mul(32);
        let last = first | 31;
        let at = self.ranges.partition_point(|range| range.last < first);
        let ranges = self.ranges.get(at..).unwrap_or_default().iter();
        let direct = ranges.take_while(|range| range.first <= last).filter(|range| range.is_direct());
        let open = direct.fold(0, |open, range| {
            let (from, to) = (range.first.max(first) - first, range.last.min(last) - first);
            open | u32::MAX << from & u32::MAX >> (31 - to)
        });
        !self.windows.iter().fold(open, |open, window| open | window.open_from(first))
    }

    fn set(
        &mut self,
        ports: RangeInclusive<u16>,
        direction: Direction,
        to: Disposition<H>,
    ) -> RangeInclusive<u16> {
        let (first, last) = (*ports.start(), *ports.end());
        if first > last {
            return ports;
        }
        // A window that ends is closed as a whole.
        let (mut altered_first, mut altered_last) = (first, last);
        self.windows.retain(|window| {
            let stays = last < window.first || window.last < first;
            if !stays {
                (altered_first, altered_last) =
                    (altered_first.min(window.first), altered_last.max(window.last));
            }
            stays
        });
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
        altered_first..=altered_last
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
        assert_eq!([0, 1].map(|index| table.map_word(index)), [0xffff_02ff, u32::MAX]);
    }

    #[test]
    fn a_change_of_open_ports_leaves_the_ranges_alone() {
        let mut table = PortTable::new();
        assert_eq!(table.hook_but(0xc000..=0xc0ff, 'a', 0), 0xc000..=0xc0ff);
        let (ranges, windows) = (table.ranges.as_ptr(), table.windows.as_ptr());
        for open in [0x0000_00f1, u32::MAX, 0, 1 << 31] {
            assert_eq!(table.hook_but(0xc000..=0xc0ff, 'a', open), 0xc000..=0xc01f);
            assert_eq!(table.map_word(0xc000 / 32), !open);
            assert_eq!(table.lookup_access(0xc000, 4, Direction::READ), Disposition::Handler('a'));
            assert_eq!((table.ranges.as_ptr(), table.windows.as_ptr()), (ranges, windows));
        }
    }

    #[test]
    fn open_ports_close_with_any_other_change_of_theirs() {
        type Change = fn(&mut PortTable<char>) -> RangeInclusive<u16>;
        let changes: [Change; 4] = [
            |table| table.hook(0x10f..=0x110, Direction::READ, 'a'),
            |table| table.remove(0x11f..=0x11f),
            |table| table.hook_but(0x100..=0x11f, 'b', 0),
            |table| table.hook_but(0x100..=0x10f, 'a', 0),
        ];
        for change in changes {
            let mut table = PortTable::new();
            table.hook_but(0x100..=0x11f, 'a', u32::MAX);
            assert_eq!(table.map_word(0x100 / 32), 0);
            change(&mut table);
            assert_eq!(table.map_word(0x100 / 32), u32::MAX);
        }
    }

    #[test]
    fn what_is_open_ends_with_the_range() {
        let mut table = PortTable::new();
        table.hook_but(0x104..=0x107, 'a', u32::MAX);
        table.hook(0x108..=0x10f, Direction::all(), 'b');
        assert_eq!([7, 8, 9].map(|index| table.map_word(index)), [u32::MAX, 0xffff_ff0f, u32::MAX]);
        table.hook_but(0xffff..=0xffff, 'a', u32::MAX);
        assert_eq!(table.map_word(0x7ff), u32::MAX >> 1);
    }

    proptest! {
        /// Against one entry per port and direction, for a small space and its far end.
        #[test]
        fn agrees_with_a_flat_table(
            steps in prop::collection::vec((0u16..64, 0u16..50, 0u8..8, any::<bool>(), any::<u32>()), 1..60)
        ) {
            let mut table = PortTable::new();
            let mut flat = [[Disposition::Refused; 2]; 64];
            // The ports that are open, and by which step.
            let mut opened = [None; 64];
            // The permission map, of which only what a change may have altered is derived again.
            let mut map = [u32::MAX; 2];
            for (step, (from, len, what, high, open)) in steps.into_iter().enumerate() {
                // The same steps at the top of the port space must not overflow.
                let base = if high { 0xffc0 } else { 0 };
                let to = (from + len).min(63);
                let (direction, value) = match what {
                    0 => (Direction::READ, Disposition::Handler(1)),
                    1 => (Direction::WRITE, Disposition::Handler(2)),
                    2 => (Direction::all(), Disposition::Handler(3)),
                    3 => (Direction::all(), Disposition::Direct),
                    4 | 5 => (Direction::all(), Disposition::Handler(u16::from(what))),
                    _ => (Direction::all(), Disposition::Refused),
                };
                if !high {
                    // What is open of others that overlap ends as a whole.
                    let ended: Vec<_> = (from..=to).filter_map(|port| opened[port as usize]).collect();
                    opened.iter_mut().filter(|by| by.is_some_and(|(by, _)| ended.iter().any(|(one, _)| *one == by)))
                        .for_each(|by| *by = None);
                }
                let ports = base + from..=base + to;
                let altered = match value {
                    Disposition::Handler(handler @ 4..=5) => {
                        if !high {
                            for port in from..=to {
                                let is_open = open.checked_shr((port - from).into()).is_some_and(|open| open & 1 != 0);
                                opened[port as usize] = Some((step, is_open));
                            }
                        }
                        table.hook_but(ports, handler, open)
                    }
                    Disposition::Handler(handler) => table.hook(ports, direction, handler),
                    Disposition::Direct => table.direct(ports),
                    Disposition::Refused => table.remove(ports),
                };
                if !high {
                    for word in altered.start() / 32..=altered.end() / 32 {
                        map[usize::from(word)] = table.map_word(word);
                    }
                    for port in from..=to {
                        if direction.contains(Direction::READ) { flat[port as usize][0] = value; }
                        if direction.contains(Direction::WRITE) { flat[port as usize][1] = value; }
                    }
                }
            }
            prop_assert_eq!(map, [0, 1].map(|word| table.map_word(word)));
            for port in 0..64u16 {
                let [read, write] = flat[port as usize];
                prop_assert_eq!(table.lookup(port, Direction::READ), read);
                prop_assert_eq!(table.lookup(port, Direction::WRITE), write);
                // In no order, so that what is remembered of the access before is of no use, or of some.
                let first = port * 23 % 64;
                for (width, direction) in [(1, Direction::READ), (2, Direction::WRITE), (4, Direction::READ)] {
                    let mut asked = (first..first + width).map(|port| table.lookup(port, direction));
                    let one = asked.next().unwrap();
                    let together = asked.try_fold(one, |all, next| match (all, next) {
                        (one, two) if one == two => Some(one),
                        (Disposition::Handler(_), Disposition::Direct) => Some(all),
                        (Disposition::Direct, Disposition::Handler(_)) => Some(next),
                        _ => None,
                    });
                    let answer = table.clone().lookup_access(first, width as u8, direction);
                    prop_assert_eq!(answer, together.unwrap_or(Disposition::Refused));
                    prop_assert_eq!(table.lookup_access(first, width as u8, direction), answer);
                }
                let exits = table.map_word(port / 32) >> (port % 32) & 1 != 0;
                let open = opened[usize::from(port)].is_some_and(|(_, open)| open);
                prop_assert_eq!(exits, !open && (read != Disposition::Direct || write != Disposition::Direct));
            }
        }
    }
}
