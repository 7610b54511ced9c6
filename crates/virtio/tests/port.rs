//! A driver of a stream, as Linux's is, and one that breaks the rules.

use sluice_virtio::{Changes, Device, Fault, Issues, Memory, Port, Status, features};
use std::cell::RefCell;

/// The guest's memory begins here.
const START: u64 = 0x10_0000;
/// What a queue has of it: descriptors, available ring, used ring, and room for its buffers.
const STRIDE: u64 = 0x2_0000;
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const ROOM: u64 = 0x3000;
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const TELL: u16 = 2;
const HEAR: u16 = 3;
const WRITE: u16 = 2;

struct Ram(RefCell<Vec<u8>>);

impl Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let at = address.checked_sub(START).ok_or(Fault)? as usize;
        buffer.copy_from_slice(self.0.borrow().get(at..at + buffer.len()).ok_or(Fault)?);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = address.checked_sub(START).ok_or(Fault)? as usize;
        self.0.borrow_mut().get_mut(at..at + bytes.len()).ok_or(Fault)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// A guest, its driver, and the stream.
struct Guest {
    ram: Ram,
    device: Device,
    port: Port,
    available: [u16; 4],
    used: [u16; 4],
}

fn queue(number: u16) -> u64 {
    START + u64::from(number) * STRIDE
}

impl Guest {
    /// A guest whose driver is set up, as far as it goes without messages.
    fn new() -> Self {
        let ram = Ram(RefCell::new(vec![0; 4 * STRIDE as usize]));
        let mut device = Device::of_port();
        device.attach_guest(Issues::Nothing, [].into_iter());
        for status in [1, 3] {
            device.write(0x14, 1, status);
        }
        for (half, accepted) in [(0, 2), (1, (features::VERSION_1 >> 32) as u32)] {
            device.write(0x08, 4, half);
            device.write(0x0c, 4, accepted);
        }
        device.write(0x14, 1, 11);
        assert_eq!(device.read(0x14, 1).0, 11, "features are taken though the guest lends nothing");
        assert_eq!((device.read(0x12, 2).0, device.read(0x2004, 4).0), (4, 1), "queues, ports");
        for number in 0..4 {
            device.write(0x16, 2, number.into());
            let at = queue(number);
            for (register, value) in [(0x20, at), (0x28, at + DRIVER), (0x30, at + DEVICE)] {
                device.write(register, 4, value as u32);
            }
            device.write(0x1c, 2, 1);
        }
        assert_eq!(device.write(0x14, 1, 15), Changes::BACKEND);
        Self { ram, device, port: Port::new("stream"), available: [0; 4], used: [0; 4] }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.ram.write(at, bytes).unwrap();
    }

    fn word(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.ram.read(at, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// Where the next buffer of a queue is.
    fn room(&self, number: u16) -> u64 {
        queue(number) + ROOM + u64::from(self.available[usize::from(number)] % 4) * 0x4000
    }

    /// Makes a buffer available, by a descriptor of its own.
    fn offer(&mut self, number: u16, address: u64, len: u32, flags: u16) {
        let slot = self.available[usize::from(number)] % 64;
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&len.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        self.put(queue(number) + u64::from(slot) * 16, &descriptor);
        self.put(queue(number) + DRIVER + 4 + u64::from(slot) * 2, &slot.to_le_bytes());
        let next = &mut self.available[usize::from(number)];
        *next = next.wrapping_add(1);
        let next = *next;
        self.put(queue(number) + DRIVER + 2, &next.to_le_bytes());
    }

    fn send(&mut self, number: u16, bytes: &[u8]) {
        let at = self.room(number);
        self.put(at, bytes);
        self.offer(number, at, bytes.len() as u32, 0);
    }

    fn say(&mut self, event: u16, value: u16) {
        let [e, v] = [event, value].map(u16::to_le_bytes);
        self.send(HEAR, &[0, 0, 0, 0, e[0], e[1], v[0], v[1]]);
    }

    fn serve(&mut self) -> Result<Vec<u16>, Fault> {
        self.port.serve(&self.device, &self.ram).map(|signals| signals.queues().collect())
    }

    /// What the device gave back next in a queue to the guest: the bytes that are in it.
    fn got(&mut self, number: u16) -> Option<Vec<u8>> {
        let index = usize::from(number);
        if self.word(queue(number) + DEVICE + 2) == self.used[index] {
            return None;
        }
        let entry = queue(number) + DEVICE + 4 + u64::from(self.used[index] % 64) * 8;
        let (head, len) = (self.word(entry), self.word(entry + 4));
        self.used[index] = self.used[index].wrapping_add(1);
        let mut address = [0; 8];
        self.ram.read(queue(number) + u64::from(head) * 16, &mut address).unwrap();
        let mut bytes = vec![0; usize::from(len)];
        self.ram.read(u64::from_le_bytes(address), &mut bytes).unwrap();
        Some(bytes)
    }

    /// Until a program has the port open.
    fn open() -> Self {
        let mut guest = Self::new();
        for _ in 0..3 {
            let at = guest.room(TELL);
            guest.offer(TELL, at, 64, WRITE);
        }
        guest.say(0, 1);
        assert_eq!(guest.serve().unwrap(), [TELL, HEAR]);
        assert_eq!(guest.got(TELL).unwrap(), [0, 0, 0, 0, 1, 0, 1, 0], "there is a port");
        guest.say(3, 1);
        guest.serve().unwrap();
        assert_eq!(guest.got(TELL).unwrap(), *b"\0\0\0\0\x07\0\x01\0stream");
        assert_eq!(guest.got(TELL).unwrap(), [0, 0, 0, 0, 6, 0, 1, 0], "somebody is at the other end");
        assert!(!guest.port.is_open());
        guest.say(6, 1);
        guest.serve().unwrap();
        assert!(guest.port.is_open());
        guest
    }
}

#[test]
fn bytes_go_both_ways_in_order() {
    let mut guest = Guest::open();
    for piece in [&b"hello"[..], b", ", b"world"] {
        guest.send(TRANSMIT, piece);
    }
    assert_eq!(guest.serve().unwrap(), [TRANSMIT]);
    assert_eq!((guest.port.read(7), guest.port.read(100)), (b"hello, ".to_vec(), b"world".to_vec()));
    let text: Vec<u8> = (0..250).collect();
    assert_eq!(guest.port.write(&guest.device, &guest.ram, &text).unwrap().0, 0, "the guest has no buffers");
    for _ in 0..2 {
        let at = guest.room(RECEIVE);
        guest.offer(RECEIVE, at, 100, WRITE);
    }
    let (taken, signals) = guest.port.write(&guest.device, &guest.ram, &text).unwrap();
    assert_eq!((taken, signals.queues().collect::<Vec<_>>()), (200, vec![RECEIVE]));
    let got = [guest.got(RECEIVE).unwrap(), guest.got(RECEIVE).unwrap()].concat();
    assert_eq!((got, guest.got(RECEIVE)), (text[..200].to_vec(), None));
}

#[test]
fn a_flood_waits_in_the_queue() {
    let mut guest = Guest::open();
    for _ in 0..12 {
        guest.send(TRANSMIT, &[7; 0x4000]);
    }
    guest.serve().unwrap();
    let kept = |guest: &mut Guest| guest.port.read(usize::MAX).len();
    assert_eq!(kept(&mut guest), 0x1_0000, "no more is kept than there is room for");
    guest.serve().unwrap();
    assert_eq!(kept(&mut guest), 0x1_0000);
}

#[test]
fn who_wants_no_signal_gets_none() {
    let mut guest = Guest::open();
    guest.put(queue(TRANSMIT) + DRIVER, &1_u16.to_le_bytes());
    guest.send(TRANSMIT, b"quiet");
    assert_eq!(guest.serve().unwrap(), []);
    assert_eq!(guest.port.read(100), b"quiet");
}

#[test]
fn what_a_program_left_behind_is_no_beginning() {
    let mut guest = Guest::open();
    guest.send(TRANSMIT, b"half a frame");
    guest.serve().unwrap();
    guest.say(6, 0);
    guest.serve().unwrap();
    assert_eq!((guest.port.is_open(), guest.port.read(100)), (false, Vec::new()));
}

#[test]
fn broken_rules_are_faults_and_end_the_stream() {
    type Break = fn(&mut Guest);
    let breaks: [(&str, Break); 6] = [
        ("more than there are", |guest| {
            guest.send(TRANSMIT, b"x");
            guest.put(queue(TRANSMIT) + DRIVER + 2, &65_u16.to_le_bytes());
        }),
        ("no such descriptor", |guest| {
            guest.send(TRANSMIT, b"x");
            guest.put(queue(TRANSMIT) + DRIVER + 4, &64_u16.to_le_bytes());
        }),
        ("a loop", |guest| {
            let at = guest.room(TRANSMIT);
            guest.offer(TRANSMIT, at, 1, 1);
        }),
        ("an indirect table", |guest| {
            let at = guest.room(TRANSMIT);
            guest.offer(TRANSMIT, at, 16, 4);
        }),
        ("memory that is not the guest's", |guest| guest.offer(TRANSMIT, START - 8, 16, 0)),
        ("a buffer to write to", |guest| guest.offer(TRANSMIT, START, 16, WRITE)),
    ];
    for (what, broken) in breaks {
        let mut guest = Guest::open();
        broken(&mut guest);
        assert_eq!(guest.serve(), Err(Fault), "{what}");
        assert_eq!(guest.device.break_down(), Changes::CONFIGURATION);
        assert!(guest.device.status().contains(Status::NEEDS_RESET));
        assert_eq!(guest.serve(), Ok(vec![]), "{what}: nothing more is looked at");
    }
}

#[test]
fn a_chain_is_longer_than_a_queue_only_if_it_is_a_loop() {
    let mut guest = Guest::open();
    // Descriptor 0 leads to itself, with nothing in it: only the count of steps ends that.
    guest.offer(TRANSMIT, START, 0, 1);
    let descriptor = u64::from((guest.available[1] - 1) % 64);
    guest.put(queue(TRANSMIT) + descriptor * 16 + 14, &(descriptor as u16).to_le_bytes());
    assert_eq!(guest.serve(), Err(Fault));
}
