use super::*;
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

const ENTRIES: u16 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// Where a guest has a queue, its buffers, each with a place of its own, and which of the queue's entries are its next.
struct Driver {
    setup: QueueSetup,
    data: u64,
    offered: u16,
    seen: u16,
}

/// Bytes between the places of buffers.
const PLACE: u64 = 0x1_0000;

impl Driver {
    fn new(at: u64, data: u64) -> Self {
        let setup = QueueSetup {
            entries: ENTRIES.into(),
            enabled: 1,
            descriptors: at,
            driver: at + 0x400,
            device: at + 0x800,
        };
        Self { setup, data, offered: 0, seen: 0 }
    }

    /// Where the buffer of a head is.
    fn place(&self, head: u16) -> u64 {
        self.data + PLACE * u64::from(head)
    }

    /// Makes a chain of parts available, which follow each other. Descriptors of a chain are those from its head on, up to as many as `parts` may have.
    fn offer(&mut self, window: &Window, head: u16, parts: &[usize], flags: u16) {
        let mut address = self.place(head);
        for (place, len) in (head..).zip(parts) {
            let next = if usize::from(place - head) + 1 < parts.len() { NEXT } else { 0 };
            let words = [address, *len as u64 | u64::from(flags | next) << 32 | u64::from(place + 1) << 48];
            window.write_obj(words, GuestAddress(self.setup.descriptors + 16 * u64::from(place))).unwrap();
            address += *len as u64;
        }
        let entry = self.setup.driver + 4 + 2 * u64::from(self.offered % ENTRIES);
        window.write_obj(head, GuestAddress(entry)).unwrap();
        self.offered = self.offered.wrapping_add(1);
        window.write_obj(self.offered, GuestAddress(self.setup.driver + 2)).unwrap();
    }

    /// The next answer: head and bytes.
    fn answer(&mut self, window: &Window) -> Option<(u16, u32)> {
        let index: u16 = window.read_obj(GuestAddress(self.setup.device + 2)).unwrap();
        if index == self.seen {
            return None;
        }
        let entry = self.setup.device + 4 + 8 * u64::from(self.seen % ENTRIES);
        let [head, len]: [u32; 2] = window.read_obj(GuestAddress(entry)).unwrap();
        self.seen = self.seen.wrapping_add(1);
        Some((head as u16, len))
    }
}

/// A guest, its card, and the wire.
struct Bench {
    window: Window,
    receive: Driver,
    send: Driver,
    packets: Packets,
    wire: UnixDatagram,
    /// Told of what was received, and of what was sent.
    calls: [EventFd; 2],
}

fn event() -> EventFd {
    EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).unwrap()
}

impl Bench {
    fn new(merges: bool, event_idx: bool) -> Self {
        let window: Window = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap());
        let (receive, send) = (Driver::new(0x1000, 0x1_0000), Driver::new(0x2000, 0x20_0000));
        let calls = [event(), event()];
        let line = |driver: &Driver, call: &EventFd| {
            let events = [event(), call.try_clone().unwrap()];
            Line::new(&driver.setup, ENTRIES, event_idx, &window, events).unwrap()
        };
        let lines = [line(&receive, &calls[0]), line(&send, &calls[1])];
        let (ours, wire) = sys::socket_pair().unwrap();
        wire.set_nonblocking(true).unwrap();
        let tap = File::from(OwnedFd::from(ours));
        let by = (Reach::Window, Packets::room().unwrap());
        let packets = Packets::new(Window::clone(&window), tap, lines, by, merges).unwrap();
        let mut made = Self { window, receive, send, packets, wire, calls };
        made.work();
        for call in &made.calls {
            call.read().unwrap();
        }
        made
    }

    /// Works until there is nothing to do. Returns whether that was so soon.
    fn work(&mut self) -> bool {
        (0..8).any(|_| {
            self.packets.work().unwrap();
            let mut events = [EpollEvent::default(); 3];
            self.packets.ready.wait(0, &mut events).unwrap() == 0
        })
    }

    /// The packet that the guest finds next, in as many buffers as it says.
    fn received(&mut self) -> Option<Vec<u8>> {
        let (mut packet, mut left) = (Vec::new(), 1);
        while left > 0 {
            let answer = self.receive.answer(&self.window);
            assert!(answer.is_some() || packet.is_empty(), "a packet has fewer buffers than it says");
            let (head, len) = answer?;
            let mut bytes = vec![0; len as usize];
            self.window.read_slice(&mut bytes, GuestAddress(self.receive.place(head))).unwrap();
            if packet.is_empty() {
                left = u16::from_le_bytes([bytes[BUFFERS_AT], bytes[BUFFERS_AT + 1]]);
                assert!(left > 0);
            }
            packet.extend(bytes);
            left -= 1;
        }
        Some(packet)
    }
}

/// A packet of so many bytes that looks like no other.
fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 7 + number * 31) as u8).collect();
    bytes[BUFFERS_AT..BUFFERS_AT + 2].fill(0);
    bytes
}

fn without_buffers(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[BUFFERS_AT..BUFFERS_AT + 2].fill(0);
    bytes
}

proptest! {
    #[test]
    fn what_arrives_is_whole_and_in_order(
        merges: bool,
        event_idx: bool,
        lens in prop::collection::vec(HEADER..5000, 1..24),
        buffers in prop::collection::vec(HEADER..2500usize, 1..90),
        pace in 1..8usize,
    ) {
        let mut bench = Bench::new(merges, event_idx);
        let mut heads: Vec<u16> = (0..ENTRIES).collect();
        let (mut sizes, mut found) = (buffers.iter(), Vec::new());
        // What the guest offers, and what has to become of it.
        let (mut offered, mut meant, mut used) = (Vec::new(), Vec::new(), 0);
        let mut wire = lens.iter().enumerate().map(|(number, len)| packet(number, *len));
        loop {
            let next = wire.next();
            if let Some(packet) = &next {
                bench.wire.send(packet).unwrap();
            }
            let more = heads.len().min(pace);
            for (head, size) in heads.drain(..more).zip(sizes.by_ref()) {
                let Bench { receive, window, .. } = &mut bench;
                receive.offer(window, head, &[*size], WRITE);
                offered.push(*size);
            }
            bench.packets.receive.kicks.write(1).unwrap();
            prop_assert!(bench.work(), "it comes to rest");
            let before = bench.receive.seen;
            while let Some(packet) = bench.received() {
                found.push(without_buffers(packet));
            }
            for place in before..bench.receive.seen {
                let entry = bench.receive.setup.device + 4 + 8 * u64::from(place % ENTRIES);
                heads.push(bench.window.read_obj::<u32>(GuestAddress(entry)).unwrap() as u16);
            }
            if next.is_none() && before == bench.receive.seen && (heads.is_empty() || sizes.len() == 0) {
                break;
            }
        }
        // The model: packets take buffers in order, one each unless they merge.
        for (number, len) in lens.iter().enumerate() {
            let (mut left, mut taken) = (*len, 0);
            while left > 0 && used + taken < offered.len() && (merges || taken == 0) {
                left = left.saturating_sub(offered[used + taken]);
                taken += 1;
            }
            if left == 0 {
                used += taken;
                meant.push(packet(number, *len));
            } else if merges || taken == 0 {
                break;
            }
        }
        prop_assert_eq!(found, meant);
    }

    #[test]
    fn what_is_sent_leaves_whole_and_in_order(
        event_idx: bool,
        chains in prop::collection::vec(prop::collection::vec(0..30_000usize, 1..4), 1..12),
    ) {
        let mut bench = Bench::new(true, event_idx);
        let mut meant = Vec::new();
        for (number, parts) in chains.iter().enumerate() {
            // Chains of up to four parts have their heads four apart.
            let head = (number % 4 * 4) as u16;
            let bytes: Vec<u8> = (0..parts.iter().sum()).map(|at| (at * 13 + number * 5) as u8).collect();
            let place = bench.send.place(head);
            if !bytes.is_empty() {
                bench.window.write_slice(&bytes, GuestAddress(place)).unwrap();
            }
            let Bench { send, window, .. } = &mut bench;
            send.offer(window, head, parts, 0);
            bench.packets.send.kicks.write(1).unwrap();
            prop_assert!(bench.work());
            prop_assert_eq!(bench.send.answer(&bench.window), Some((head, 0)));
            if (HEADER..=LONGEST).contains(&bytes.len()) {
                meant.push(bytes);
            }
            let mut left = vec![0; LONGEST + 1];
            if let Ok(len) = bench.wire.recv(&mut left) {
                prop_assert_eq!(&left[..len], &meant.remove(0)[..]);
            }
            prop_assert!(meant.is_empty(), "it has left");
        }
    }
}

#[test]
fn virtio_2_7_10_a_guest_is_told_when_its_event_index_is_passed() {
    let mut bench = Bench::new(true, true);
    let event = GuestAddress(bench.send.setup.driver + 4 + 2 * u64::from(ENTRIES));
    let mut told = |wanted: u16, count: u16| {
        bench.window.write_obj(wanted, event).unwrap();
        for head in 0..count {
            let Bench { send, window, .. } = &mut bench;
            send.offer(window, head, &[HEADER + 60], 0);
        }
        bench.packets.send.kicks.write(1).unwrap();
        assert!(bench.work());
        bench.calls[1].read().is_ok()
    };
    // Answers 0 to 2; 3; 4 and 5.
    assert!(told(1, 3));
    assert!(!told(9, 1));
    assert!(told(5, 2));
}

#[test]
fn a_packet_that_waits_is_for_buffers_that_come() {
    let mut bench = Bench::new(true, true);
    for size in [100, 5000] {
        bench.wire.send(&packet(size, size)).unwrap();
    }
    let Bench { receive, window, .. } = &mut bench;
    receive.offer(window, 0, &[1000], WRITE);
    receive.offer(window, 1, &[1000], WRITE);
    bench.packets.receive.kicks.write(1).unwrap();
    assert!(bench.work(), "nobody turns in circles for it");
    assert_eq!(bench.received().map(without_buffers), Some(packet(100, 100)));
    assert_eq!((bench.received(), bench.packets.held, bench.packets.listens), (None, 5000, false));
    // It asks to be told of the next one, and not of one that it has seen.
    let asked: u16 =
        bench.window.read_obj(GuestAddress(bench.receive.setup.device + 4 + 8 * u64::from(ENTRIES))).unwrap();
    assert_eq!(asked, 2);
    // The room is free for packets of the guest's meanwhile.
    let Bench { send, window, .. } = &mut bench;
    window.write_slice(&packet(1, 600), GuestAddress(send.place(0))).unwrap();
    send.offer(window, 0, &[600], 0);
    bench.packets.send.kicks.write(1).unwrap();
    for head in 2..6 {
        let Bench { receive, window, .. } = &mut bench;
        receive.offer(window, head, &[1000], WRITE);
    }
    bench.packets.receive.kicks.write(1).unwrap();
    assert!(bench.work());
    assert_eq!(bench.received().map(without_buffers), Some(packet(5000, 5000)));
    let mut sent = [0; 1000];
    assert_eq!(bench.wire.recv(&mut sent).unwrap(), 600);
    assert_eq!(sent[..600], packet(1, 600));
}

#[test]
fn chains_that_go_the_wrong_way_stop_the_card() {
    let mut bench = Bench::new(true, false);
    let Bench { send, window, .. } = &mut bench;
    send.offer(window, 0, &[100], WRITE);
    bench.packets.send.kicks.write(1).unwrap();
    assert!(bench.packets.work().is_err());

    let mut bench = Bench::new(true, false);
    bench.wire.send(&packet(0, 100)).unwrap();
    let Bench { receive, window, .. } = &mut bench;
    receive.offer(window, 0, &[100], 0);
    bench.packets.receive.kicks.write(1).unwrap();
    assert!(bench.packets.work().is_err());
}

#[test]
fn a_guest_that_never_stops_sending_does_not_keep_the_card_from_a_reset() {
    let mut bench = Bench::new(true, false);
    bench.send.offer(&bench.window, 0, &[HEADER], 0);
    // More than there are entries, which a driver never says.
    for turn in 1..=TURN as u16 {
        let index = bench.send.setup.driver + 2;
        bench.window.write_obj(turn * ENTRIES, GuestAddress(index)).unwrap();
        bench.packets.send.kicks.write(1).unwrap();
        bench.packets.work().unwrap();
    }
    assert!(bench.packets.send.queue.next_used() <= TURN as u16 * ENTRIES);
}
