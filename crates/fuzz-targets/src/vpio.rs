//! The software NE2000 and the virtual passthrough monitor.
//!
//! For the monitor the software card is the hardware. Clients are guests without manners: they access ports at random,
//! in bursts as a driver would, and through whatever the monitor left unhooked. Every frame on the wire and every
//! byte that a client stores carries the mark of its owner, so that a byte in the wrong hands shows.

use crate::Input;
use sluice_nic::Ne2000;
use sluice_vpio::{ClientId, Monitor, Outcome, RawDevice, Reaction, Refusal, RegisterAccess, Timing};

/// Ports of the card.
const PORTS: u16 = 32;
const DATA: u16 = 0x10;

/// A card without a monitor. Asserts that a transmitted frame fits a buffer and that whatever was done, a reset and
/// the usual start make the card receive.
pub fn ne2000(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = Ne2000::new([0x52, 0x54, 0, 0, 0, 1]);
    let mut buffer = vec![0; 0x1_0000];
    while !input.is_empty() {
        let (what, offset, width) =
            (input.u8(), u16::from(input.u8() % 40), input.choose(&[1, 1, 2, 4, 0, 3]));
        match what % 8 {
            0..=2 => card.write(offset, width, input.u32()),
            3 => drop(card.read(offset, width)),
            4 | 5 => {
                let len = usize::from(input.u8()) * usize::from(width);
                if what & 0x80 != 0 {
                    card.read_string(DATA, width, &mut buffer[..len]);
                } else {
                    card.write_string(DATA, width, &buffer[..len]);
                }
            }
            6 => {
                let mut frame = vec![0x5a; usize::from(input.u16() % 2000)];
                frame
                    .iter_mut()
                    .zip([0x52, 0x54, 0, 0, 0, 1 + (what >> 7)])
                    .for_each(|(to, from)| *to = from);
                let _ = (card.has_room(), card.fits(frame.len()));
                let _ = card.receive(&frame);
            }
            _ => {
                if let Some(len) = card.take_transmitted(&mut buffer) {
                    assert!(len <= buffer.len());
                }
            }
        }
        let _ = (card.interrupt(), card.transmit_range());
    }
    card.power_on();
    for (offset, value) in start([0x52, 0x54, 0, 0, 0, 1]) {
        card.write(offset, 1, value.into());
    }
    let mut frame = vec![0x5a; 64];
    frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1]);
    assert_eq!(card.receive(&frame), sluice_nic::ne2000::Reception::Stored);
}

/// Register writes with which lib8390 starts a card.
fn start(mac: [u8; 6]) -> impl Iterator<Item = (u16, u8)> {
    let before = [
        (0x00, 0x21),
        (0x0e, 0x49),
        (0x0a, 0x00),
        (0x0b, 0x00),
        (0x0c, 0x20),
        (0x0d, 0x02),
        (0x04, 0x40),
        (0x01, 0x4c),
        (0x03, 0x7f),
        (0x02, 0x80),
        (0x07, 0xff),
        (0x0f, 0x00),
        (0x00, 0x61),
    ];
    let address = mac.into_iter().zip(1..).map(|(byte, offset)| (offset, byte));
    let after =
        [(0x07, 0x4c), (0x00, 0x21), (0x07, 0xff), (0x0f, 0x3f), (0x00, 0x22), (0x0d, 0x00), (0x0c, 0x04)];
    before.into_iter().chain(address).chain(after)
}

fn mac(client: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0x77, client as u8]
}

/// Filler of frames from or to a client; nothing else that lies in card memory has these values.
fn mark(client: usize) -> u8 {
    0xa0 + client as u8
}

/// Length of the longest run of a foreign mark in `bytes`.
fn leak(bytes: &[u8], own: Option<usize>) -> usize {
    let mut longest = 0;
    for other in (0..CLIENTS).filter(|other| Some(*other) != own) {
        let runs = bytes.split(|byte| *byte != mark(other)).map(<[u8]>::len);
        longest = longest.max(runs.max().unwrap_or(0));
    }
    longest
}

const CLIENTS: usize = 3;
/// A shorter run may be chance: packet headers, registers.
const CHANCE: usize = 3;

/// The card and its wire.
struct Hardware {
    card: Ne2000,
    arriving: Vec<Vec<u8>>,
    running: Option<usize>,
    buffer: Vec<u8>,
    sent: usize,
}

impl Hardware {
    fn after(&mut self) {
        if let Some(len) = self.card.take_transmitted(&mut self.buffer) {
            let frame = self.buffer.get(..len).unwrap_or(&[]);
            // Without a client running, the monitor sends what a client asked for before: nothing mixed.
            let whose = |client: &usize| leak(frame, Some(*client)) <= CHANCE;
            let innocent =
                self.running.map_or_else(|| (0..CLIENTS).any(|client| whose(&client)), |own| whose(&own));
            assert!(innocent, "client {:?} sent another's data: {frame:02x?}", self.running);
            self.sent += 1;
            if let Some(next) = self.arriving.pop() {
                let _ = self.card.receive(&next);
            }
        }
    }
}

impl RawDevice for Hardware {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        assert!(offset < PORTS && matches!(width, 1 | 2 | 4), "the monitor reads {offset:#x}, {width} bytes");
        let value = self.card.read(offset, width);
        self.after();
        value
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        assert!(
            offset < PORTS && matches!(width, 1 | 2 | 4),
            "the monitor writes {offset:#x}, {width} bytes"
        );
        self.card.write(offset, width, value);
        self.after();
    }
    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.card.read_string(offset, width, into);
        self.after();
    }
    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.card.write_string(offset, width, from);
        self.after();
    }
}

struct World {
    hardware: Hardware,
    monitor: Monitor,
    clients: [Option<ClientId>; CLIENTS],
    /// What each client last read from its data port.
    seen: [Vec<u8>; CLIENTS],
    now: u64,
    poll_at: u64,
}

impl World {
    /// What the hypervisor does before guests run again.
    fn settle(&mut self) {
        if self.hardware.card.interrupt() {
            self.monitor.interrupt(&mut self.hardware, self.now);
        }
        for _ in 0..2 {
            let next = self.monitor.poll(&mut self.hardware, self.now);
            assert!(next.is_none_or(|next| next > self.now), "the monitor asks for time that is gone");
            self.poll_at = next.unwrap_or(u64::MAX);
        }
        let _ = (self.monitor.changes(), self.monitor.physical_unmask());
    }

    /// An access, hooked or direct as the monitor wants it. False if the client has to wait.
    fn access(&mut self, index: usize, access: RegisterAccess<'_>) -> bool {
        let Some(client) = self.clients[index] else { return false };
        self.now += 1_000;
        let (offset, width) = access.place();
        let hooked = self.monitor.hooks(client).catches(offset, width);
        self.hardware.running = Some(index);
        let mut word = None;
        let done = match access {
            access if hooked => {
                let string = matches!(access, RegisterAccess::ReadString { .. });
                let read = matches!(access, RegisterAccess::Read { .. });
                let mut copy = Vec::new();
                let outcome = match access {
                    RegisterAccess::ReadString { offset, width, into } => {
                        let outcome = self.monitor.access(
                            &mut self.hardware,
                            client,
                            self.now,
                            RegisterAccess::ReadString { offset, width, into },
                        );
                        copy.extend_from_slice(into);
                        outcome
                    }
                    other => self.monitor.access(&mut self.hardware, client, self.now, other),
                };
                match outcome {
                    Outcome::Wait => false,
                    Outcome::Done(value) | Outcome::Refused(Refusal { value, .. }) => {
                        if string && offset == DATA {
                            self.see(index, &copy);
                        }
                        word = read.then_some(value);
                        true
                    }
                }
            }
            RegisterAccess::Read { offset, width } => {
                word = Some(self.hardware.read(offset, width));
                true
            }
            RegisterAccess::Write { offset, width, value } => {
                self.hardware.write(offset, width, value);
                true
            }
            RegisterAccess::ReadString { offset, width, into } => {
                self.hardware.read_string(offset, width, into);
                if offset == DATA {
                    self.see(index, into);
                }
                true
            }
            RegisterAccess::WriteString { offset, width, from } => {
                self.hardware.write_string(offset, width, from);
                true
            }
        };
        if let (Some(word), DATA) = (word, offset) {
            let bytes = word.to_le_bytes();
            self.see(index, &bytes[..usize::from(width)]);
        }
        self.hardware.running = None;
        self.settle();
        done
    }

    fn see(&mut self, index: usize, bytes: &[u8]) {
        let seen = &mut self.seen[index];
        seen.extend_from_slice(bytes);
        assert!(leak(seen, Some(index)) <= CHANCE, "client {index} reads another's data: {seen:02x?}");
        let keep = seen.len().saturating_sub(CHANCE + 1);
        seen.drain(..keep);
    }

    fn write(&mut self, index: usize, offset: u16, value: u8) -> bool {
        self.access(index, RegisterAccess::Write { offset, width: 1, value: value.into() })
    }

    /// Several register writes, the way a driver makes them; ends where the client has to wait.
    fn writes(&mut self, index: usize, writes: impl IntoIterator<Item = (u16, u8)>) -> bool {
        writes.into_iter().all(|(offset, value)| {
            // A guest that waits runs its access again later; here, a few times later.
            (0..4).any(|_| {
                let done = self.write(index, offset, value);
                if !done {
                    self.now += 30_000;
                    self.settle();
                }
                done
            })
        })
    }

    fn remote(&mut self, index: usize, command: u8, address: u16, len: u16) -> bool {
        let ([low, high], [count, more]) = (address.to_le_bytes(), len.to_le_bytes());
        self.writes(
            index,
            [(0, 0x22), (7, 0x40), (0x0a, count), (0x0b, more), (8, low), (9, high), (0, command)],
        )
    }

    fn send(&mut self, index: usize, len: u16, page: u8) {
        let mut frame = vec![mark(index); usize::from(len.max(14))];
        frame[..6].copy_from_slice(&[0x52, 0x55, 10, 0, 2, 2]);
        frame[6..12].copy_from_slice(&mac(index));
        frame.resize(frame.len().next_multiple_of(4), 0);
        let [count, more] = len.to_le_bytes();
        if self.remote(index, 0x12, u16::from(page) << 8, frame.len() as u16)
            && self.access(index, RegisterAccess::WriteString { offset: DATA, width: 4, from: &frame })
        {
            self.writes(index, [(7, 0x40), (5, count), (6, more), (4, page), (0, 0x26)]);
        }
    }

    fn fetch(&mut self, index: usize, address: u16, len: u16) {
        let len = len & !3;
        let mut bytes = vec![0; usize::from(len)];
        if self.remote(index, 0x0a, address, len) {
            self.access(index, RegisterAccess::ReadString { offset: DATA, width: 4, into: &mut bytes });
        }
    }
}

/// The monitor. Asserts that no client ever reads a run of another's marks from the data port, or sends one; that the
/// monitor touches only the card's own ports at legal widths; and that it never asks to be called in the past.
pub fn monitor(data: &[u8]) {
    let mut input = Input::new(data);
    let timing = Timing {
        grace: 20_000,
        sole_grace: 60_000,
        min_hold: 10_000,
        max_wait: 100_000,
        undivide_after: 400_000,
        watch: 50_000,
        quiet: 1_000,
    };
    let mut monitor = Monitor::for_device(0x10ec, 0x8029, timing).expect("it has a model");
    let clients = core::array::from_fn(|index| monitor.attach(mac(index)).ok());
    let hardware = Hardware {
        card: Ne2000::new([0, 0x0e, 0x2e, 1, 2, 3]),
        arriving: Vec::new(),
        running: None,
        buffer: vec![0; 0x1_0000],
        sent: 0,
    };
    let seen = core::array::from_fn(|_| Vec::new());
    let mut world = World { hardware, monitor, clients, seen, now: 1_000_000, poll_at: 0 };
    world.settle();
    while !input.is_empty() {
        act(&mut world, &mut input);
    }
}

fn act(world: &mut World, input: &mut Input<'_>) {
    let (what, index) = (input.u8() % 20, usize::from(input.u8()) % CLIENTS);
    let offset = u16::from(input.u8() % 36);
    let width = input.choose(&[1, 1, 1, 2, 4]);
    match what {
        0..=4 => {
            // What goes into card memory must not look like another's mark.
            let value = input.u32();
            let value = if offset >= DATA { value & 0x7f7f_7f7f } else { value };
            world.access(index, RegisterAccess::Write { offset, width, value });
        }
        5 | 6 => drop(world.access(index, RegisterAccess::Read { offset, width })),
        7 => {
            let mut bytes = vec![0; usize::from(input.u8()) * usize::from(width)];
            world.access(index, RegisterAccess::ReadString { offset: DATA, width, into: &mut bytes });
        }
        8 => {
            let bytes = vec![mark(index); usize::from(input.u8()) * usize::from(width)];
            world.access(index, RegisterAccess::WriteString { offset: DATA, width, from: &bytes });
        }
        9 | 10 => drop(world.writes(index, start(mac(index)))),
        11 | 12 => world.send(index, u16::from(input.u8()) * 6 + 60, input.choose(&[0x40, 0x46, 0x60, 0x80])),
        13 | 14 => world.fetch(
            index,
            input.choose(&[0x4c00, 0x4000, 0x8000, 0x0000, 0x7f00]),
            u16::from(input.u8()) * 8,
        ),
        15 | 16 => {
            // A frame for somebody; lengths whose low byte is no mark.
            let mut frame = vec![mark(index); 60 + usize::from(input.u8() % 64)];
            frame[..6].copy_from_slice(&mac(index));
            frame[6..12].copy_from_slice(&[0x52, 0x55, 10, 0, 2, 2]);
            if offset < 8 {
                world.hardware.arriving.push(frame);
            } else {
                let _ = world.hardware.card.receive(&frame);
                world.settle();
            }
        }
        17 => {
            world.now += u64::from(input.u16()) * 10;
            world.settle();
        }
        18 => {
            if let Some(client) = world.clients[index] {
                match offset {
                    0 => world.monitor.set_reactions(client, |_| None),
                    1 => world.monitor.set_reactions(client, |_| Some(Reaction::Interrupt)),
                    _ => world.monitor.end_of_interrupt(client),
                }
                world.settle();
            }
        }
        _ => {
            // The guest dies, or is built again; and then its new life must not see the old one's frames: it is the
            // same owner, so nothing more is asserted.
            world.now += 1_000;
            match world.clients[index].take() {
                Some(client) => world.monitor.detach(&mut world.hardware, client, world.now),
                None => world.clients[index] = world.monitor.attach(mac(index)).ok(),
            }
            world.settle();
        }
    }
}
