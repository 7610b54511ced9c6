//! The software e1000 against QEMU's: the same accesses, descriptors and frames on both, by QEMU's qtest
//! protocol, must read the same, write the same to memory, send the same and interrupt the same.
//!
//! Time in QEMU leaps to whatever is due next (`-icount sleep=off`), so states are compared when nothing is due any more;
//! what happens before that is in the second test, which runs in real time.

mod common;

use common::{MAC, Peer, Random};
use sluice_nic::dma::{Dma, VecMemory};
use sluice_nic::e1000::registers::{Reading, WINDOW, reading, reg};
use sluice_nic::e1000::{MAX_OUTGOING, Reception, Transmission};
use sluice_nic::{Budget, E1000};
use std::time::{Duration, Instant};

/// Where the test puts the card's registers.
const BASE: u64 = 0xe000_0000;
/// The memory that both cards may use.
const MEMORY: u64 = 0x10_0000;
const MEMORY_LEN: usize = 0x4_0000;
/// Parts of it: rings, then buffers.
const TX_RING: u64 = MEMORY;
const RX_RING: u64 = MEMORY + 0x1000;
const TX_BUFFERS: u64 = MEMORY + 0x1_0000;
/// Where no memory is.
const NOWHERE: u64 = 0x5000_0000;
const RX_BUFFERS: u64 = MEMORY + 0x2_0000;

impl Peer {
    /// A second card tells the time.
    fn with_clock(arguments: &[&str]) -> Option<Self> {
        let base = BASE as u32;
        let arguments = [&["-device", "e1000,addr=5,romfile="], arguments].concat();
        // BAR 0 and 1, then memory, I/O and bus mastering; BAR 0 and memory of the other card.
        let config = [(0x10, base), (0x14, 0xc000), (4, 7), (0x810, base + WINDOW), (0x804, 2)];
        let peer = Self::start("e1000", &arguments, &config)?;
        peer.wire.set_nonblocking(true).ok()?;
        Some(peer)
    }

    fn read(&mut self, offset: u32, width: u8) -> u32 {
        self.load(BASE + u64::from(offset), width)
    }

    fn write(&mut self, offset: u32, width: u8, value: u32) {
        self.store(BASE + u64::from(offset), width, value);
    }

    /// Waits for at least half a second of the machine's time, until another card has negotiated. What was due before
    /// is done then.
    fn half_second(&mut self) {
        const RESTART: u32 = 1 << 26 | 1 << 21 | 0x1340;
        let other = BASE + u64::from(WINDOW);
        self.command(&format!("writel {:#x} {RESTART:#x}", other + u64::from(reg::MDIC)));
        let start = Instant::now();
        while self.number(&format!("readl {:#x}", other + u64::from(reg::STATUS))) & 2 == 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "time stands still");
        }
    }

    /// Frames that were sent. They are on the socket when the write that sent them is answered.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 0x2_0000];
        while let Ok(len) = self.wire.recv(&mut buffer) {
            frames.push(buffer[..len].to_vec());
        }
        frames
    }
}

/// Both cards, compared at each step.
struct Pair {
    peer: Peer,
    own: E1000,
    memory: VecMemory,
    log: Vec<String>,
    now: u64,
}

impl Pair {
    fn new(peer: Peer) -> Self {
        let memory = VecMemory::new(MEMORY, MEMORY_LEN);
        let mut own = E1000::new(MAC);
        own.follow_qemu();
        Self { peer, own, memory, log: Vec::new(), now: 0 }
    }

    fn recent(&self) -> &[String] {
        &self.log[self.log.len().saturating_sub(40)..]
    }

    fn read(&mut self, offset: u32, width: u8) -> u32 {
        let own = self.own.read(offset, width);
        let peer = self.peer.read(offset, width);
        self.log.push(format!("read{width} {offset:#x}: {own:#x}, {peer:#x}"));
        assert_eq!(own, peer, "after {:#?}", self.recent());
        own
    }

    fn write(&mut self, offset: u32, width: u8, value: u32) {
        self.log.push(format!("write{width} {offset:#x} {value:#x}"));
        self.own.write(offset, width, value);
        self.peer.write(offset, width, value);
        let mut buffer = vec![0; MAX_OUTGOING];
        let mut own = Vec::new();
        loop {
            match self.own.transmit(&mut self.memory, &mut buffer, &mut Budget::default()) {
                Transmission::Frame(len) => own.push(buffer[..len].to_vec()),
                Transmission::Busy => {}
                Transmission::Idle => break,
            }
        }
        let mut peer = self.peer.sent();
        // More than this at a time does not fit into the socket.
        let total: usize = own.iter().map(|frame| 1024 + frame.len()).sum();
        if total > 100_000 {
            own.truncate(16);
            peer.truncate(16);
        }
        let lens = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(&own), lens(&peer), "lengths sent, after {:#?}", self.recent());
        for (index, (own, peer)) in own.iter().zip(&peer).enumerate() {
            let at = own.iter().zip(peer).position(|(a, b)| a != b);
            assert_eq!(at, None, "frame {index} differs: {own:x?} {peer:x?} after {:#?}", self.recent());
        }
        self.log.extend(own.iter().map(|frame| format!("sent {}", frame.len())));
    }

    /// Lets everything happen that is due some time.
    fn settle(&mut self) {
        while let Some(time) = self.own.deadline() {
            self.now = time;
            self.own.advance(time);
        }
    }

    /// Compares the interrupt line, waiting a while for QEMU to settle.
    fn line(&mut self) {
        self.settle();
        let start = Instant::now();
        while self.peer.interrupt() != self.own.interrupt() {
            let late = start.elapsed() > Duration::from_secs(2);
            assert!(!late, "line should be {} after {:#?}", self.own.interrupt(), self.recent());
        }
    }

    fn set_memory(&mut self, address: u64, bytes: &[u8]) {
        self.peer.set_memory(address, bytes);
        self.memory.write(address, bytes).unwrap();
    }

    fn compare_memory(&mut self, address: u64, len: usize) {
        let peer = self.peer.memory(address, len);
        let own = self.memory.at(address, len).unwrap();
        if let Some(at) = own.iter().zip(&peer).position(|(a, b)| a != b) {
            let range = at & !15..(at | 15) + 1;
            panic!(
                "memory differs at {:#x}: {:x?} {:x?} after {:#?}",
                address + at as u64,
                &own[range.clone()],
                &peer[range],
                self.recent()
            );
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        self.settle();
        if !self.own.can_receive() {
            // QEMU would keep it.
            return;
        }
        self.peer.wire.send(frame).unwrap();
        let reception = self.own.receive(&mut self.memory, frame, &mut Budget::default());
        self.log.push(format!("frame {:x?} {}: {reception:?}", &frame[..frame.len().min(18)], frame.len()));
        let head = self.own.regs.get(reg::RDH);
        let start = Instant::now();
        if reception == Reception::Filtered {
            std::thread::sleep(Duration::from_millis(4));
        }
        let lost = self.own.regs.get(reg::RNBC);
        while self.peer.read(reg::RDH, 4) != head || self.peer.read(reg::RNBC, 4) != lost {
            let late = start.elapsed() > Duration::from_secs(2);
            assert!(!late, "head should be {head:#x} after {:#?}", self.recent());
        }
        self.read(reg::RDH, 4);
        self.read(reg::ICS, 4);
    }

    /// Reads all that answers.
    fn compare_registers(&mut self) {
        for offset in (0..0xa000).step_by(4).filter(|offset| reading(*offset) != Reading::Nothing) {
            self.read(offset, 4);
        }
    }
}

fn leaping() -> Option<Peer> {
    Peer::with_clock(&["-icount", "shift=0,sleep=off"])
}

/// Every register: what it is after reset, which bits of it can be written, and what reading does.
#[test]
fn registers_answer_as_qemus() {
    let Some(peer) = leaping() else { return };
    let mut pair = Pair::new(peer);
    pair.compare_registers();
    let mut random = Random::new(0);
    for offset in (0..WINDOW).step_by(4) {
        // All of the packet buffer's memory is alike.
        if offset > 0x1_0040 && offset < 0x1_ff80 {
            continue;
        }
        for value in [u32::MAX, 0, random.roll(u32::MAX)] {
            // The receiver and the transmitter stay off: no ring is set up.
            let value = if matches!(offset, reg::RCTL | reg::TCTL) { value & !2 } else { value };
            pair.write(offset, 4, value);
            pair.settle();
            if offset == reg::MDIC {
                std::thread::sleep(Duration::from_millis(20));
            }
            for _ in 0..2 {
                pair.read(offset, 4);
            }
        }
    }
    pair.line();
    for _ in 0..2000 {
        let offset = random.roll(0xa000);
        pair.read(offset, random.of(&[1, 2, 4]));
        if !matches!(offset & !3, reg::RCTL | reg::TCTL | reg::MDIC) {
            pair.write(offset, random.of(&[1, 2, 4]), random.roll(u32::MAX) & !0x0202_0202);
        }
    }
    pair.compare_registers();
}

/// A descriptor's four long words.
fn descriptor(address: u64, lower: u32, upper: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&lower.to_le_bytes());
    bytes[12..].copy_from_slice(&upper.to_le_bytes());
    bytes
}

const EOP: u32 = 1 << 24;
const RS: u32 = 1 << 27;
const DEXT: u32 = 1 << 29;
const DATA: u32 = DEXT | 1 << 20;
const VLE: u32 = 1 << 30;
const TSE: u32 = 1 << 26;

/// A driver's doing on both cards.
struct Driver {
    pair: Pair,
    random: Random,
    tail: u32,
}

impl Driver {
    fn start(peer: Peer, random: Random) -> Self {
        let mut driver = Self { pair: Pair::new(peer), random, tail: 0 };
        for buffers in [TX_BUFFERS, RX_BUFFERS] {
            let bytes = driver.random.bytes(0x1_0000);
            driver.pair.set_memory(buffers, &bytes);
        }
        for entry in 0..256 {
            let address = driver.transmit_address();
            let len = 1 + driver.random.roll(300);
            driver.pair.set_memory(TX_RING + 16 * entry, &descriptor(address, EOP | RS | len, 0));
        }
        driver.refill();
        driver.set_up();
        driver
    }

    fn transmit_address(&mut self) -> u64 {
        TX_BUFFERS + u64::from(self.random.roll(0x1_0000))
    }

    /// Receive descriptors, all of the page that the ring is in, a few without a buffer.
    fn refill(&mut self) {
        let mut ring = Vec::new();
        for entry in 0..256u64 {
            let buffer = RX_BUFFERS + entry % 30 * 0x800 + u64::from(self.random.roll(16));
            let address = match self.random.roll(24) {
                0 => 0,
                1 => NOWHERE,
                _ => buffer,
            };
            let rest = self.random.roll(u32::MAX);
            ring.extend(descriptor(address, rest, rest.rotate_left(9)));
        }
        self.pair.set_memory(RX_RING, &ring);
    }

    /// As a driver does after reset.
    fn set_up(&mut self) {
        self.tail = 0;
        self.set_rctl(0);
        for (offset, value) in [
            (reg::TCTL, 0),
            (reg::TDBAL, TX_RING as u32),
            (reg::TDBAH, 0),
            (reg::TDLEN, 128 * (1 + self.random.roll(4))),
            (reg::TDH, 0),
            (reg::TDT, 0),
            (reg::TCTL, 0x0010_40fa),
            (reg::RDBAL, RX_RING as u32),
            (reg::RDBAH, 0),
            (reg::RDLEN, 128 * (1 + self.random.roll(4))),
            (reg::RDH, 0),
            (reg::RDT, self.random.roll(8)),
        ] {
            self.pair.write(offset, 4, value);
        }
        self.control_receiver();
    }

    fn control_receiver(&mut self) {
        // Flags as they come, buffers of 2048 bytes or less.
        let flags = self.random.roll(u32::MAX) & 0x0404_803c;
        let size = self.random.of(&[0, 0, 1 << 16, 2 << 16, 3 << 16]);
        let rest = self.random.roll(u32::MAX) & 0x3300;
        self.set_rctl(2 | flags | size | rest);
    }

    fn set_rctl(&mut self, value: u32) {
        self.pair.write(reg::RCTL, 4, value);
        self.pair.settle();
        // For a second QEMU receives nothing. That shows nowhere.
        for _ in 0..3 {
            self.pair.peer.half_second();
        }
    }

    fn ring_len(&self) -> u32 {
        (self.pair.own.regs.get(reg::TDLEN) / 16).max(1)
    }

    fn push(&mut self, descriptor: [u8; 16]) {
        self.pair.log.push(format!("descriptor {}: {descriptor:x?}", self.tail));
        self.pair.set_memory(TX_RING + 16 * u64::from(self.tail), &descriptor);
        self.tail = (self.tail + 1) % self.ring_len().min(256);
    }

    fn context(&mut self, flags: u32, header: u8, segment: u16) {
        let payload = self.random.of(&[0, 100, 1000, 3000, 9000, 0xf_ffff]);
        let ip: u8 = self.random.of(&[0, 14, 14, 14, 18, 200]);
        let mut bytes = [ip, ip.wrapping_add(10), 0, 0, 34, 50, 0, 0, 0, 0, 0, 0, 0, header, 0, 0];
        if self.random.roll(4) == 0 {
            let random = self.random.bytes(8);
            bytes[..8].copy_from_slice(&random);
        }
        if self.random.roll(2) == 0 {
            (bytes[3], bytes[7]) = (0, 0);
        }
        bytes[8..12].copy_from_slice(&(DEXT | flags | payload).to_le_bytes());
        bytes[14..].copy_from_slice(&segment.to_le_bytes());
        self.push(bytes);
    }

    /// A packet in one to four descriptors, then the doorbell.
    fn send(&mut self) {
        let vlan = if self.random.roll(4) == 0 { VLE } else { 0 };
        let report = self.random.of(&[RS, RS, 1 << 28, 0]) | self.random.of(&[0, 1 << 31]);
        let special = self.random.roll(0x1_0000) << 16;
        let kind = self.random.roll(4);
        let segment = self.random.of(&[64, 536, 1000, 1460]);
        let header = self.random.of(&[1, 14, 54, 54, 66, 255]);
        if kind == 3 {
            let protocol = self.random.roll(4) << 24;
            self.context(TSE | protocol | report, header, segment);
        }
        if kind == 2 || self.random.roll(6) == 0 {
            let protocol = self.random.roll(4) << 24;
            self.context(protocol | report, header, segment);
        }
        let descriptors = 1 + self.random.roll(4);
        for index in 0..descriptors {
            let end = if index + 1 == descriptors { EOP } else { 0 };
            // An empty frame makes QEMU's back end stop for good.
            let len = match (kind, self.random.roll(8)) {
                (_, 0) => end >> 24,
                (3, 1) => u32::from(segment) * self.random.roll(4),
                (3, 2) => u32::from(header) + u32::from(segment) * self.random.roll(4),
                (3, _) => self.random.roll(4000),
                (_, 1) => 1 + self.random.roll(9000),
                (_, _) => 1 + self.random.roll(400),
            };
            let lower = match kind {
                0 => 1 << 26,
                1 | 2 => DATA,
                _ => DATA | TSE,
            };
            // A context in mid-packet makes the card repeat a header of long ago.
            if index > 0 && self.random.roll(12) == 0 {
                let header = self.random.of(&[1, 54, 255]);
                self.context(TSE | report, header, segment);
            }
            let options = self.random.roll(4) << 8;
            let address = match self.random.roll(20) {
                0 => NOWHERE,
                _ => self.transmit_address(),
            };
            self.push(descriptor(address, lower | len | end | vlan | report, special | options | 0xfe));
        }
        self.pair.write(reg::TDT, 4, self.tail);
        self.pair.compare_memory(TX_RING, 0x1000);
    }

    fn frame(&mut self) -> Vec<u8> {
        let len = match self.random.roll(8) {
            0 => 14 + self.random.roll(60),
            1 => 1500 + self.random.roll(40),
            2 => self.random.roll(9000) + 14,
            3 => 16370 + self.random.roll(30),
            _ => 60 + self.random.roll(1400),
        };
        let mut frame = self.random.bytes(len as usize);
        match self.random.roll(5) {
            0 => frame[..6].fill(0xff),
            1 => frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, self.random.roll(256) as u8]),
            2 => frame[0] &= !1,
            _ => frame[..6].copy_from_slice(&MAC),
        }
        if self.random.roll(3) == 0 {
            frame[12..14].copy_from_slice(&[0x81, 0]);
        }
        frame
    }

    fn receive(&mut self) {
        let frame = self.frame();
        self.pair.receive(&frame);
        self.pair.compare_memory(RX_RING, 0x1000);
        if self.random.roll(10) == 0 {
            self.refill();
        }
        let tail = self.random.roll(self.pair.own.regs.get(reg::RDLEN) / 16 + 1);
        self.pair.write(reg::RDT, 4, tail);
        if self.random.roll(5) == 0 {
            self.pair.compare_memory(RX_BUFFERS, 0x1_0800);
        }
    }

    fn phy(&mut self, register: u32, value: u16) {
        self.pair.write(reg::MDIC, 4, 1 << 26 | 1 << 21 | register << 16 | u32::from(value));
    }

    /// Sends to itself through the PHY.
    fn loop_back(&mut self) {
        self.phy(0, 0x5140);
        for _ in 0..3 {
            // The frame starts with the station address, or not.
            if self.random.roll(4) != 0 {
                self.pair.set_memory(TX_BUFFERS, &MAC);
            }
            let len = 1 + self.random.roll(2500);
            self.push(descriptor(TX_BUFFERS, EOP | RS | len, 0));
            self.pair.write(reg::TDT, 4, self.tail);
            self.pair.compare_memory(RX_RING, 0x1000);
            let tail = self.random.roll(self.pair.own.regs.get(reg::RDLEN) / 16 + 1);
            self.pair.write(reg::RDT, 4, tail);
        }
        self.phy(0, 0x1140);
    }

    /// Negotiates, and waits for it.
    fn negotiate(&mut self) {
        self.phy(0, 0x1340);
        self.await_link();
    }

    /// Pulls the cable and plugs it in again.
    fn unplug(&mut self) {
        self.cable(false);
        self.pair.settle();
        self.pair.peer.half_second();
        for register in 0..32 {
            self.phy_register(register);
        }
        self.pair.read(reg::STATUS, 4);
        self.send();
        self.pair.read(reg::ICR, 4);
        self.cable(true);
        self.await_link();
    }

    fn cable(&mut self, plugged: bool) {
        self.pair.log.push(format!("cable {plugged}"));
        self.pair.own.set_cable(plugged);
        self.pair.peer.set_cable(plugged);
    }

    fn phy_register(&mut self, register: u32) {
        let address = if self.random.roll(10) == 0 { 2 } else { 1 };
        self.pair.write(reg::MDIC, 4, 1 << 27 | address << 21 | register << 16);
        self.pair.read(reg::MDIC, 4);
    }

    fn await_link(&mut self) {
        self.pair.settle();
        let start = Instant::now();
        while self.pair.peer.read(reg::STATUS, 4) & 2 == 0 {
            assert!(start.elapsed() < Duration::from_secs(2), "no link");
        }
        self.pair.line();
    }

    /// Rings as no driver makes them.
    fn derange(&mut self) {
        let offset = self.random.of(&[reg::TDH, reg::TDT, reg::RDH, reg::RDT, reg::TDLEN, reg::RDLEN]);
        let value = match offset {
            reg::TDLEN | reg::RDLEN => self.random.of(&[0, 128, 0xf80, 0x800, 0xfff0_007f]),
            _ => self.random.roll(256),
        };
        self.pair.write(offset, 4, value);
        for _ in 0..self.random.roll(4) {
            match self.random.roll(3) {
                0 => self.pair.write(reg::TDT, 4, self.pair.own.regs.get(reg::TDT)),
                1 => self.pair.write(reg::TCTL, 4, 2),
                _ => self.receive(),
            }
            self.pair.read(reg::TDH, 4);
            self.pair.read(reg::RDH, 4);
        }
        self.pair.compare_memory(TX_RING, 0x2000);
        if self.random.roll(2) == 0 {
            self.set_up();
        }
        // The packets between are whole ones again.
        self.tail = self.pair.own.regs.get(reg::TDH) % self.ring_len();
        self.pair.write(reg::TDT, 4, self.tail);
    }

    fn step(&mut self) {
        match self.random.roll(26) {
            0..=7 => self.send(),
            8..=13 => self.receive(),
            24 => self.unplug(),
            25 => {
                let register = self.random.roll(32);
                self.phy_register(register);
            }
            14 => drop(self.pair.read(reg::ICR, 4)),
            15 => {
                let offset = self.random.of(&[reg::IMS, reg::IMC, reg::ICS, reg::ICR]);
                let causes = self.random.roll(u32::MAX) & self.random.roll(u32::MAX);
                self.pair.write(offset, 4, causes);
                self.pair.line();
            }
            16 => {
                let offset = self.random.of(&[reg::ITR, reg::RDTR, reg::RADV, reg::TADV]);
                let delay = self.random.roll(400);
                self.pair.write(offset, 4, delay);
            }
            17 => {
                let flags = self.random.of(&[0x0014_0240, 0x4014_0240]);
                self.pair.write(reg::CTRL, 4, flags);
            }
            18 => {
                let table = self.random.of(&[reg::MTA, reg::VFTA]);
                for _ in 0..8 {
                    let (row, bits) = (4 * self.random.roll(128), self.random.roll(u32::MAX));
                    self.pair.write(table + row, 4, bits);
                }
            }
            19 => self.control_receiver(),
            20 => self.derange(),
            21 => self.loop_back(),
            22 => self.negotiate(),
            _ => self.pair.compare_registers(),
        }
    }
}

/// What a driver does and what it does wrong.
#[test]
fn traffic_goes_as_with_qemus() {
    let Some(peer) = leaping() else { return };
    let mut driver = Driver::start(peer, Random::new(1));
    for _ in 0..1500 {
        driver.step();
    }
    driver.pair.compare_registers();
    driver.pair.compare_memory(MEMORY, MEMORY_LEN);
}

/// When the interrupt line rises again.
#[test]
fn interrupts_wait_as_with_qemus() {
    let Some(peer) = Peer::with_clock(&[]) else { return };
    let mut pair = Pair::new(peer);
    let interrupts = |pair: &mut Pair| [pair.own.interrupt(), pair.peer.interrupt()];
    let units = [(reg::ITR, 256), (reg::RADV, 1024)];
    let mut measured = 0;
    // A machine that stands still for long is no measure.
    for attempt in 0..20 {
        let (register, unit) = units[attempt % 2];
        pair.write(reg::IMC, 4, u32::MAX);
        pair.read(reg::ICR, 4);
        pair.write(reg::ITR, 4, 0);
        pair.write(reg::RDTR, 4, 1);
        pair.write(reg::RADV, 4, 0);
        pair.write(register, 4, 0xffff);
        // The last interrupt holds the next back, too.
        std::thread::sleep(Duration::from_millis(150));
        pair.settle();
        pair.write(reg::IMS, 4, 0x80);
        let start = Instant::now();
        pair.write(reg::ICS, 4, 0x80);
        assert_eq!(interrupts(&mut pair), [true, true]);
        pair.read(reg::ICR, 4);
        assert_eq!(interrupts(&mut pair), [false, false]);
        pair.write(reg::ICS, 4, 0x80);
        let held = interrupts(&mut pair);
        let delay = pair.own.deadline().unwrap() - pair.now;
        assert_eq!(delay, 0xffff * unit);
        if start.elapsed() > Duration::from_nanos(delay / 2) {
            continue;
        }
        assert_eq!(held, [false, false]);
        while !pair.peer.interrupt() {
            assert!(start.elapsed() < Duration::from_secs(2), "no interrupt");
        }
        assert!(start.elapsed() + Duration::from_millis(1) > Duration::from_nanos(delay), "too early");
        pair.settle();
        assert!(pair.own.interrupt());
        pair.read(reg::ICR, 4);
        measured += 1;
        if measured == 4 {
            return;
        }
    }
    panic!("measured {measured} times only");
}
