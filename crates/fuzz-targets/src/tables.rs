//! The tables that decide what exits and what a guest-physical address means, against flat models of them.

use crate::Input;
use sluice_memory::{Gpa, GuestMemory, Hpa, PhysicalMemory};
use sluice_traps::Direction;
use sluice_traps::pages::PageTable;
use sluice_traps::ports::{Disposition, PortTable};

/// Port hooks. Asserts that lookups and the permission map say what an array of all ports says.
pub fn ports(data: &[u8]) {
    const BASE: u16 = 0xffc0;
    let mut input = Input::new(data);
    let mut table = PortTable::new();
    // 64 ports at either end of the space.
    let mut flat = [[Disposition::Refused; 2]; 128];
    // What was left open of the ports of a handler: the entries of `flat` and, by offset, which of them.
    let mut windows: Vec<(core::ops::RangeInclusive<usize>, u32)> = Vec::new();
    let port_of = |index: usize| if index < 64 { index as u16 } else { BASE + (index - 64) as u16 };
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let (what, high) = (input.u8(), input.flag());
        let (from, len) = (usize::from(input.u8() % 64), usize::from(input.u8() % 20));
        let half = if high { 64 } else { 0 };
        let (from, to) = (half + from, half + (from + len).min(63));
        let range = port_of(from)..=port_of(to);
        let direction = input.choose(&[Direction::READ, Direction::WRITE, Direction::all()]);
        let (both, value) = match what % 6 {
            0 => (true, Disposition::Direct),
            1 => (true, Disposition::Refused),
            handler => (handler == 5, Disposition::Handler(handler)),
        };
        windows.retain(|(other, _)| to < *other.start() || *other.end() < from);
        let altered = match value {
            Disposition::Handler(handler @ 5) => {
                let open = u32::from(input.u8()) << 12 | u32::from(input.u8());
                windows.push((from..=to, open));
                table.hook_but(range, handler, open)
            }
            Disposition::Handler(handler) => table.hook(range, direction, handler),
            Disposition::Direct => table.direct(range),
            Disposition::Refused => table.remove(range),
        };
        assert!(*altered.start() <= port_of(from) && port_of(to) <= *altered.end());
        for entry in &mut flat[from..=to] {
            if both || direction.contains(Direction::READ) {
                entry[0] = value;
            }
            if both || direction.contains(Direction::WRITE) {
                entry[1] = value;
            }
        }
    }
    for (index, [read, write]) in flat.iter().enumerate() {
        let port = port_of(index);
        assert_eq!(table.lookup(port, Direction::READ), *read);
        assert_eq!(table.lookup(port, Direction::WRITE), *write);
        let exits = table.map_word(port / 32) >> (port % 32) & 1 != 0;
        let open = |(window, open): &(core::ops::RangeInclusive<usize>, u32)| {
            window.contains(&index) && open >> (index - window.start()) & 1 != 0
        };
        assert_eq!(exits, [*read, *write] != [Disposition::Direct; 2] && !windows.iter().any(open));
        for width in [1, 2, 4] {
            let all = table.lookup_access(port, width, Direction::WRITE);
            let part = flat.get(index..index + usize::from(width)).unwrap_or(&[]);
            if all == Disposition::Direct {
                assert!(part.iter().all(|entry| entry[1] == Disposition::Direct) && !part.is_empty());
            }
            if let Disposition::Handler(handler) = all {
                let fits = |entry: &[_; 2]| {
                    matches!(entry[1], Disposition::Direct) || entry[1] == Disposition::Handler(handler)
                };
                assert!(part.iter().all(fits), "a handler gets what is another's");
            }
        }
    }
}

/// Memory hooks. Asserts that lookups name the hook that holds the byte, and that a page is direct in a direction only
/// if no byte of it is hooked in it.
pub fn pages(data: &[u8]) {
    let mut input = Input::new(data);
    let mut table = PageTable::new();
    let mut hooks: Vec<(u64, u64, Direction, u8)> = Vec::new();
    for number in 0..input.u8() % 32 {
        let start = if input.u8() < 240 { u64::from(input.u16()) } else { input.u64() };
        let len = if input.u8() < 240 { u64::from(input.u16() % 0x1800) } else { input.u64() };
        let direction = input.choose(&[Direction::READ, Direction::WRITE, Direction::all()]);
        let end = start.checked_add(len);
        let free =
            end.filter(|end| len > 0 && hooks.iter().all(|(from, to, ..)| *end <= *from || start >= *to));
        assert_eq!(table.hook(Gpa::new(start), len, direction, number), free.is_some());
        if let Some(end) = free {
            hooks.push((start, end, direction, number));
        }
        if input.u8() < 32 && !hooks.is_empty() {
            let (start, ..) = hooks.swap_remove(usize::from(input.u8()) % hooks.len());
            table.remove(Gpa::new(start));
        }
    }
    for at in hooks.iter().flat_map(|(start, end, ..)| [*start, end - 1, *end, start.wrapping_sub(1)]) {
        let expected = hooks.iter().find(|(start, end, ..)| (*start..*end).contains(&at)).map(|hook| hook.3);
        assert_eq!(table.lookup(Gpa::new(at)), expected);
        let (page, last) = (at & !0xfff, at | 0xfff);
        let hooked = hooks.iter().filter(|(start, end, ..)| *start <= last && *end > page);
        assert_eq!(table.direct(Gpa::new(at)), hooked.fold(Direction::all(), |all, hook| all & !hook.2));
    }
}

/// Host memory that knows what belongs to the guest.
struct Watch(Vec<(u64, u64)>);

impl Watch {
    fn check(&self, at: Hpa, len: u64) {
        let end = at.as_u64().checked_add(len).expect("an address that wraps");
        let inside = |extent: &(u64, u64)| extent.0 <= at.as_u64() && end <= extent.0 + extent.1;
        assert!(len == 0 || self.0.iter().any(inside), "{at} + {len:#x} is not the guest's");
    }
}

impl PhysicalMemory for Watch {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        self.check(at, buffer.len() as u64);
    }
    fn write(&self, at: Hpa, bytes: &[u8]) {
        self.check(at, bytes.len() as u64);
    }
    fn fill(&self, at: Hpa, len: u64, _: u8) {
        self.check(at, len);
    }
    fn read_u64(&self, at: Hpa) -> u64 {
        self.check(at, 8);
        assert!(at.is_aligned(8));
        0
    }
    fn write_u64(&self, at: Hpa, _: u64) {
        self.check(at, 8);
    }
}

/// Guest memory. Asserts that no range that a guest can name reaches host memory outside of its extents.
pub fn guest_memory(data: &[u8]) {
    let mut input = Input::new(data);
    let mut memory = GuestMemory::new();
    let mut watch = Watch(Vec::new());
    let mut free = 0x10_0000;
    let mut places = Vec::new();
    for _ in 0..input.u8() % 10 {
        let gpa = if input.u8() < 230 { u64::from(input.u8()) << 12 } else { input.u64() & !0xfff };
        let len = u64::from(input.u8() % 32) << 12;
        if len > 0 && memory.add(Gpa::new(gpa), Hpa::new(free), len).is_ok() {
            watch.0.push((free, len));
            places.extend([gpa, gpa + len]);
            // A frame between extents belongs to somebody else.
            free += len + 0x1000;
        }
    }
    let mut buffer = vec![0; 0x4000];
    while !input.is_empty() {
        let near = places.get(usize::from(input.u8()) % places.len().max(1)).copied().unwrap_or(0);
        let at = if input.u8() < 230 {
            near.wrapping_add_signed(i64::from(input.u16() as i16))
        } else {
            input.u64()
        };
        let len = usize::from(input.u16() % 0x4000);
        let part = &mut buffer[..len];
        let read = memory.read(&watch, Gpa::new(at), part).is_ok();
        assert_eq!(memory.write(&watch, Gpa::new(at), part).is_ok(), read);
        let _ = memory.read_u64(&watch, Gpa::new(at));
        if let Ok(pieces) = memory.translate(Gpa::new(at), input.u64()) {
            for (hpa, bytes) in pieces {
                watch.check(hpa, bytes);
            }
        }
    }
}
