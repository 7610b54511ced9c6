//! Emulated mode: a hostile guest's card on a switch, and hostile physical cards.

use crate::Input;
use sluice_abi::config::NicModel;
use sluice_emulated::{Environment, Guests, PortId, Register, SharedNic};
use sluice_nic::Offload;
use sluice_nic::dma::{Dma, DmaError, VecMemory};
use sluice_nic::offload::{Checksum, Segments};
use sluice_uplink::{
    Card, Counters, DmaMemory, MAX_FRAME, NoMemory, RawDevice, Sent, Transmit, Uplink, for_device,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const MALLORY: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const BOB: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const ROUTER: [u8; 6] = [0x52, 0x55, 0, 0, 0, 3];
/// In every frame for Bob, and nowhere else.
const SECRET: &[u8] = b"\xa7for-bob";
/// Bytes of Mallory's memory.
const MEMORY: usize = 0x8000;

/// A wire: looks at what goes out, and may take its time.
#[derive(Default)]
struct Wire {
    full: bool,
    arriving: Vec<Vec<u8>>,
}

struct Uplinked(Arc<Mutex<Wire>>);

impl Transmit for Uplinked {
    fn enqueue(&mut self, _: &mut Card<'_>, frame: &[u8]) -> Sent {
        assert!((14..=MAX_FRAME).contains(&frame.len()));
        assert!(frame[6..12] == MALLORY || frame[6..12] == BOB, "a frame from {:x?}", &frame[6..12]);
        assert!(frame[..5] != [1, 0x80, 0xc2, 0, 0] && frame[12..14] != [0x88, 0x08], "for the link");
        if self.0.lock().unwrap().full { Sent::Full } else { Sent::Done }
    }
}

impl Uplink for Uplinked {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn start(&mut self, _: &mut Card<'_>) -> bool {
        true
    }

    fn poll(&mut self, _: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool {
        let arriving = std::mem::take(&mut self.0.lock().unwrap().arriving);
        arriving.iter().for_each(|frame| take(frame));
        false
    }

    fn stop(&mut self, _: &mut Card<'_>) {}
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct Nothing;

impl RawDevice for Nothing {
    fn read(&mut self, _: u16, _: u8) -> u32 {
        0
    }
    fn write(&mut self, _: u16, _: u8, _: u32) {}
}

#[derive(Clone)]
struct Memory(Rc<RefCell<VecMemory>>);

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.borrow_mut().read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.borrow_mut().write(address, bytes)
    }
}

/// Mallory's memory; Bob's is out of reach for everyone here.
struct Only(PortId, Memory);

impl Guests for Only {
    type Memory = Memory;
    fn memory(&mut self, port: PortId) -> Option<Memory> {
        (port == self.0).then(|| self.1.clone())
    }
    // No IOMMU.
    fn confine_dma(&mut self, to: Option<PortId>) -> bool {
        to.is_none()
    }
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

fn frame(to: [u8; 6], from: [u8; 6], content: &[u8], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &[8, 0], content].concat();
    frame.resize(len.max(frame.len()), 0);
    frame
}

/// A guest does anything to its software card, of any model, with a quiet neighbour on the switch. Asserts that only
/// frames with the guests' own addresses and of legal length reach the wire, that nothing for the neighbour alone
/// comes into the guest's memory or through its data port, that lines are told of, and that no call is endless.
pub fn shared_nic(data: &[u8]) {
    let mut input = Input::new(data);
    let model = input.choose(&NicModel::ALL).1;
    let wire = Arc::new(Mutex::new(Wire::default()));
    let mut shared = SharedNic::new(Box::new(Uplinked(wire.clone())));
    let mallory = shared.attach(model, MALLORY).unwrap();
    let bob = shared.attach(NicModel::Ne2000, BOB).unwrap();
    let memory = Memory(Rc::new(RefCell::new(VecMemory::new(0, MEMORY))));
    let mut guests = Only(mallory, memory.clone());
    let (mut now, mut line) = (0u64, false);
    while !input.is_empty() {
        let (mut nothing, mut none) = (Nothing, NoMemory);
        let card = Card { registers: &mut nothing, memory: &mut none };
        let began = now;
        let mut env = Environment { card, guests: &mut guests, now, clock: &|| began };
        let limit = if model == NicModel::E1000 { 0x5fff } else { 0xff };
        let register = Register { io: input.flag(), offset: u32::from(input.u16()) & limit };
        let width = input.choose(&[1, 2, 4, 4]);
        match input.u8() % 10 {
            0..=2 => {
                let value = input.u32().to_le_bytes();
                shared.write(&mut env, mallory, register, width, &value[..usize::from(width)]);
            }
            3 => {
                let mut into = vec![0; usize::from(width) * usize::from(input.u8()).max(1)];
                shared.read(&mut env, mallory, register, width, &mut into);
                assert!(!holds_secret(&into));
            }
            4 => {
                let count = usize::from(width) * (1 + usize::from(input.u8()) % 64);
                let mut bytes = input.bytes(count).to_vec();
                bytes.resize(count, 0);
                let data = Register { io: true, offset: 0x10 };
                shared.write(&mut env, mallory, data, width, &bytes);
            }
            5 => {
                let address = u64::from(input.u16()) & (MEMORY as u64 - 1);
                let count = usize::from(input.u8());
                let _ = memory.clone().write(address, input.bytes(count));
            }
            6 => {
                let to = input.choose(&[MALLORY, BOB, [0xff; 6], ROUTER, [1, 0, 0x5e, 0, 0, 1]]);
                let content: &[u8] = if to == BOB { SECRET } else { b"for all" };
                let frame = frame(to, ROUTER, content, usize::from(input.u16()) % 1600);
                wire.lock().unwrap().arriving.push(frame);
                shared.interrupt(&mut env);
            }
            7 => shared.configure(mallory, input.flag(), input.flag()),
            8 => {
                now = now.wrapping_add(u64::from(input.u32()) << (input.u8() % 20));
                env.now = now;
                shared.poll(&mut env);
                for port in [mallory, bob] {
                    if shared.resumes_at(port).is_some_and(|at| at <= now) {
                        shared.resume(&mut env, port);
                    }
                }
            }
            _ => wire.lock().unwrap().full = input.flag(),
        }
        if shared.take_changes().lines & mallory.bit() != 0 {
            line = !line;
        }
        assert_eq!(line, shared.line(mallory), "a line changed and nobody was told");
    }
    assert!(!holds_secret(&memory.0.borrow().bytes));
    let counters = shared.counters(bob).unwrap();
    assert_eq!((counters.forged, counters.tx_packets), (0, 0), "Bob did nothing");
}

/// A physical card that answers anything, and fills its memory with anything.
struct Hostile<'a, 'b> {
    input: &'a mut Input<'b>,
    accesses: u32,
}

impl RawDevice for Hostile<'_, '_> {
    fn read(&mut self, _: u16, _: u8) -> u32 {
        self.accesses += 1;
        if self.input.flag() { self.input.u32() } else { u32::from(self.input.u8()) }
    }
    fn write(&mut self, _: u16, _: u8, _: u32) {
        self.accesses += 1;
    }
    fn read_string(&mut self, _: u16, _: u8, into: &mut [u8]) {
        self.accesses += 1;
        let start = self.input.bytes(64.min(into.len()));
        into[..start.len()].copy_from_slice(start);
    }
    fn write_string(&mut self, _: u16, _: u8, _: &[u8]) {
        self.accesses += 1;
    }
}

/// Memory into which the card writes before each look.
struct Changing(RefCell<Vec<u8>>);

impl DmaMemory for Changing {
    fn bus(&self) -> u32 {
        0x10_0000
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        let bytes = self.0.borrow();
        into.copy_from_slice(&bytes[offset..offset + into.len()]);
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        act(&mut self.0.get_mut()[offset..offset + len])
    }
}

/// A physical card without manners. Asserts that its driver hands over nothing but frames of legal length, stays
/// within its memory, and ends every call after a bounded number of accesses.
pub fn uplink(data: &[u8]) {
    let mut input = Input::new(data);
    let all = [(0x10ec, 0x8029), (0x10ec, 0x8139), (0x8086, 0x100e), (0x8086, 0x10d3), (0x1af4, 0x1041)];
    let (vendor, device) = input.choose(&all);
    // Of the last: common configuration, ISR and doorbells.
    let config = |at| match at {
        0x04 => 1 << 20,
        0x34 => 0x40,
        0x40 => 0x0110_5009,
        0x50 => 0x0310_6009,
        0x60 => 0x0214_0009,
        _ => 0,
    };
    let mut driver = for_device(vendor, device, &config).unwrap();
    let wanted = input.choose(&[0, 1, 2]);
    let mut queues = if wanted == 0 { Vec::new() } else { driver.give_queues(wanted, input.flag()) };
    let sizes = [driver.memory()].into_iter().chain(queues.iter().map(|queue| queue.memory()));
    let mut memories: Vec<_> = sizes.map(|bytes| Changing(RefCell::new(vec![0; bytes]))).collect();
    while !input.is_empty() {
        let what = input.u8();
        // The driver, or a queue that it gave away.
        let which = usize::from(input.u8()) % memories.len();
        let memory = &mut memories[which];
        for _ in 0..input.u8() % 8 {
            // Mostly where rings are.
            let mut bytes = memory.0.borrow_mut();
            let at = usize::from(input.u16()) % bytes.len().max(1);
            let new = input.bytes(16);
            let room = bytes.len().saturating_sub(at).min(new.len());
            bytes[at..at + room].copy_from_slice(&new[..room]);
        }
        let mut hostile = Hostile { input: &mut input, accesses: 0 };
        let size = memory.0.borrow().len();
        let mut card = Card { registers: &mut hostile, memory };
        let sends = which > 0 || queues.is_empty();
        let sender: &mut dyn Transmit = match which.checked_sub(1) {
            Some(queue) if what.is_multiple_of(8) => {
                queues[queue].start(&mut card);
                continue;
            }
            Some(queue) => &mut *queues[queue],
            None => &mut *driver,
        };
        match what % 8 {
            0 => drop(driver.start(&mut card)),
            1 => driver.stop(&mut card),
            2..=4 => {
                let len = usize::from(what) * 7;
                let sent = sender.send(&mut card, &vec![0x5a; len]);
                assert_eq!(sent == Sent::Refused, !sends || !(14..=MAX_FRAME).contains(&len));
            }
            5 => {
                let sum = |input: &mut Input<'_>| {
                    let (start, offset, end) = (input.u8() % 64, input.u8() % 64, input.u16());
                    input.flag().then_some(Checksum { start, offset, end })
                };
                let (ip, transport) = (sum(hostile.input), sum(hostile.input));
                let input = &mut *hostile.input;
                let (header, payload) = (input.u8(), input.u16() % 2048);
                let segments = Segments { header, payload, ip: 14, transport: 34, ipv4: true, tcp: true };
                let segments = input.flag().then_some(segments);
                let offload = Offload { ip, transport, segments, is_in_headers: input.flag() };
                let len = usize::from(input.u16());
                let mut card = Card { registers: &mut hostile, memory };
                if let Some(at) = sender.place(&mut card, len, &offload).at() {
                    assert!(sends && at >= 0x1000 && at + len <= size, "{len} bytes at {at:#x}");
                    sender.enqueue_placed(&mut card, at, len, &offload);
                    sender.flush(&mut card);
                }
            }
            _ => {
                let mut frames = 0;
                driver.poll(&mut card, &mut |frame| {
                    assert!((14..=MAX_FRAME).contains(&frame.len()));
                    frames += 1;
                });
                assert!(frames <= 512, "{frames} frames from one call");
            }
        }
        assert!(hostile.accesses < 30_000, "{} accesses", hostile.accesses);
    }
}
