//! The software card against QEMU's `rtl8139`: the same random accesses, descriptors and frames on both, by QEMU's
//! qtest protocol, must read the same, leave the same in memory and send the same, in C mode and in C+ mode.
//!
//! Left out is what the card's header lists
//! as deviations, and the timer, whose clock is QEMU's own.

mod common;

use common::{MAC, Peer, Random};
use sluice_nic::dma::{Recorded, VecMemory};
use sluice_nic::rtl8139::Reception;
use sluice_nic::rtl8139::registers::reg;
use sluice_nic::{Budget, Rtl8139};
use std::time::Duration;

/// Where the test puts the card's ports.
const PORTS: u16 = 0xc000;
/// Where it puts the card's memory BAR.
const MMIO: u32 = 0xfe00_0000;

/// Memory that the test uses. All below is zero, until a ring is left at 0.
const WINDOW: u64 = 0x10_0000;
const WINDOW_LEN: usize = 0x5_0000;
const RECEIVE_RING: u64 = 0x10_0000;
const SEND_RING: u64 = 0x10_1000;
const DUMPS: u64 = 0x10_2000;
const RECEIVE_BUFFERS: u64 = 0x11_0000;
const SEND_BUFFERS: u64 = 0x12_0000;
const C_RING: u64 = 0x13_0000;
/// Longest datagram.
const LONGEST: usize = 65507;

impl Peer {
    fn read(&mut self, offset: u16, width: u8, port: bool) -> u32 {
        match port {
            true => self.port_in(PORTS + offset, width),
            false => self.load(u64::from(MMIO) + u64::from(offset), width),
        }
    }

    fn write(&mut self, offset: u16, width: u8, value: u32, port: bool) {
        match port {
            true => self.port_out(PORTS + offset, width, value),
            false => self.store(u64::from(MMIO) + u64::from(offset), width, value),
        }
    }
}

/// Both cards, compared at each step.
struct Pair {
    peer: Peer,
    own: Rtl8139,
    memory: Recorded<VecMemory>,
    log: Vec<String>,
    sent: usize,
    stored: usize,
}

impl Pair {
    fn start() -> Option<Self> {
        // Both BARs, then decoding and bus mastering.
        let peer = Peer::start("rtl8139", &[], &[(0x10, PORTS.into()), (0x14, MMIO), (4, 7)])?;
        let memory = Recorded::new(VecMemory::new(0, WINDOW as usize + WINDOW_LEN));
        Some(Self { peer, own: Rtl8139::new(MAC), memory, log: Vec::new(), sent: 0, stored: 0 })
    }

    fn recent(&self) -> &[String] {
        &self.log[self.log.len().saturating_sub(30)..]
    }

    fn read_by(&mut self, offset: u16, width: u8, port: bool) {
        let own = self.own.read(offset, width);
        let peer = self.peer.read(offset, width, port);
        self.log.push(format!("in{width} {offset:#x} {own:#x}"));
        assert_eq!(own, peer, "own and QEMU's, after {:#?}", self.recent());
    }

    fn read(&mut self, offset: u16, width: u8) {
        self.read_by(offset, width, true);
    }

    fn write_by(&mut self, offset: u16, width: u8, value: u32, port: bool) {
        self.log.push(format!("out{width} {offset:#x} {value:#x}"));
        let missed = self.own.regs.mpc;
        self.own.write(offset, width, value, &mut self.memory);
        self.peer.write(offset, width, value, port);
        let mut got = vec![0; 0x1_0000];
        while self.own.busy() {
            let Some(frame) = self.own.transmit(&mut self.memory, &mut Budget::default()) else { continue };
            if frame.len() > LONGEST {
                continue;
            }
            let Ok(size) = self.peer.wire.recv(&mut got) else {
                panic!("not sent: {} bytes after {:#?}", frame.len(), self.log.last());
            };
            let differs = frame.iter().zip(&got[..size]).position(|(own, got)| own != got);
            assert!(
                frame == &got[..size],
                "{} and {size} bytes differ at {differs:?}: {frame:02x?} {:02x?} {:#?}",
                frame.len(),
                &got[..size],
                self.log.last(),
            );
            self.sent += 1;
        }
        self.compare_written();
        if self.own.regs.mpc > missed {
            // QEMU's network layer lets nothing in after an overflow until CAPR is written.
            self.drain();
        }
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.write_by(offset, width, value, true);
    }

    fn poke(&mut self, address: u64, bytes: &[u8]) {
        self.memory.memory.at_mut(address, bytes.len()).unwrap().copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.peer.set_memory(address, bytes);
        }
    }

    /// What the card wrote to memory is what QEMU's wrote.
    fn compare_written(&mut self) {
        for transfer in std::mem::take(&mut self.memory.log) {
            assert!(!transfer.refused, "{transfer:x?} after {:#?}", self.recent());
            if transfer.write {
                self.compare_memory(transfer.address, transfer.len);
            }
        }
    }

    fn compare_memory(&mut self, address: u64, len: usize) {
        let peer = self.peer.memory(address, len);
        let own = self.memory.memory.at(address, len).unwrap();
        let differs = own.iter().zip(&peer).position(|(own, peer)| own != peer);
        if let Some(at) = differs {
            let range = at & !15..(at + 16).min(len);
            panic!(
                "{:#x}: {:02x?} and {:02x?} after {:#?}",
                address + at as u64,
                &own[range.clone()],
                &peer[range],
                self.recent()
            );
        }
    }

    fn drain(&mut self) {
        let at = self.own.regs.write_at.wrapping_sub(16);
        self.write(reg::CAPR, 2, at & 0xffff);
    }

    fn receive(&mut self, frame: &[u8]) {
        if !self.own.has_room() {
            return;
        }
        let before = self.own.regs;
        let outcome = self.own.receive(frame, &mut self.memory);
        self.log.push(format!("frame {:x?} {} {outcome:?}", &frame[..6], frame.len()));
        self.peer.wire.send(frame).unwrap();
        let by_descriptor = before.receives_by_descriptor();
        let descriptor = before.rdsar + 16 * u64::from(before.next_receive);
        for wait in 0.. {
            let done = match outcome {
                Reception::Stored if by_descriptor => self.peer.memory(descriptor + 3, 1)[0] & 0x80 == 0,
                Reception::Stored => self.peer.read(reg::CBR, 2, true) == self.own.regs.write_at,
                Reception::Full | Reception::Missed => self.peer.read(reg::MPC, 4, true) == self.own.regs.mpc,
                // It shows nowhere; but QEMU has read it when it has answered a few times since.
                Reception::Filtered | Reception::Stopped => {
                    self.peer.read(reg::ISR, 2, true);
                    wait > 4
                }
            };
            if done {
                break;
            }
            assert!(wait < 5000, "{outcome:?} but not by QEMU's, after {:#?}", self.recent());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stored += usize::from(outcome == Reception::Stored);
        self.compare_written();
        self.read(reg::ISR, 2);
        if outcome == Reception::Full {
            // QEMU's network layer offers the frame again when CAPR is written.
            self.log.push("drain and offer again".to_owned());
            let at = self.own.regs.write_at.wrapping_sub(16) & 0xffff;
            self.own.write(reg::CAPR, 2, at, &mut self.memory);
            self.own.receive(frame, &mut self.memory);
            self.peer.write(reg::CAPR, 2, at, true);
            self.compare_written();
        }
    }

    fn set_link(&mut self, up: bool) {
        self.log.push(format!("link {up}"));
        self.own.set_link(up);
        self.peer.set_cable(up);
    }

    fn registers(&mut self) {
        for offset in (0..0x100).step_by(4).filter(|offset| *offset != reg::TCTR) {
            self.read(offset, 4);
        }
        for offset in (0..0x100).step_by(2) {
            self.read(offset, 2);
        }
        for offset in [reg::CR, reg::CR9346, reg::CONFIG0, reg::CONFIG1, reg::CONFIG3, reg::CONFIG4, reg::MSR]
        {
            self.read(offset, 1);
        }
        assert_eq!(self.own.interrupt(), self.peer.interrupt(), "interrupt, after {:#?}", self.recent());
    }

    fn start_c(&mut self, random: &mut Random) {
        self.write(reg::CR, 1, 0x10);
        let start = random.of(&[C_RING, C_RING + 0x10, C_RING + 0x402]);
        self.write(reg::RBSTART, 4, start as u32);
        self.write(reg::CR, 1, 0x0c);
        // Without it the filter is as before, and the ring 8 KiB whatever RCR says.
        if !random.chance(4) {
            let ring = random.of(&[0, 0, 0, 1, 2, 3]) << 11;
            let filter = random.of(&[0xe, 0xe, 0xf, 0xf, 0xa, 4, 0]);
            self.write(reg::RCR, 4, 0x0e00 | ring | random.roll(2) << 7 | filter);
        }
        let loopback = if random.chance(4) { 0x6_0000 } else { 0 };
        self.write(reg::TCR, 4, 0x0300_0700 | loopback);
        self.write(reg::IMR, 2, random.roll(0x1_0000));
    }

    fn start_cplus(&mut self, random: &mut Random) {
        self.write(reg::CR, 1, 0x10);
        let checks = random.roll(4) << 5;
        self.write(reg::CPCR, 2, 3 | checks);
        self.write(reg::RCR, 4, 0x0e00 | random.of(&[0xe, 0xe, 0xf, 0xa, 4, 0]));
        for (offset, address) in [(reg::TSAD, SEND_RING), (reg::RDSAR, RECEIVE_RING)] {
            self.write(offset, 4, address as u32);
            self.write(offset + 4, 4, (address >> 32) as u32);
        }
        self.write(reg::CR, 1, 0x0c);
        let loopback = if random.chance(4) { 0x6_0000 } else { 0 };
        self.write(reg::TCR, 4, 0x0300_0700 | loopback);
        self.write(reg::IMR, 2, random.roll(0x1_0000));
        self.refill(random);
    }

    /// Gives the receiver descriptors, some of them useless.
    fn refill(&mut self, random: &mut Random) {
        for index in 0..8 {
            let size = random.of(&[2048, 2048, 2048, 8191, 100, 68, 64]);
            let own = if random.chance(8) { 0 } else { 1 << 31 };
            let end = if index == 7 { 1 << 30 } else { 0 };
            let buffer = RECEIVE_BUFFERS as u32 + index * 0x2000 + random.roll(4);
            let words = [own | end | size, random.roll(1 << 31), buffer, 0];
            self.poke(RECEIVE_RING + 16 * u64::from(index), &words.map(u32::to_le_bytes).concat());
        }
    }

    fn send_c(&mut self, random: &mut Random) {
        let len = match random.roll(8) {
            0 => random.roll(60),
            // QEMU writes past the ring otherwise.
            1 if !self.own.regs.loopback() => random.roll(0x2000),
            _ => 60 + random.roll(1455),
        };
        let at = SEND_BUFFERS as u32 + random.roll(64);
        self.poke(at.into(), &frame(random, len as usize));
        let next = if random.chance(8) { random.roll(4) } else { self.own.regs.next_tsd.into() } as u16;
        self.write(reg::TSAD + 4 * next, 4, at);
        let others = random.roll(u32::MAX) & !0x3fff;
        self.write(reg::TSD + 4 * next, 4, len | others);
        self.read(reg::TSD + 4 * next, 4);
        self.read(reg::SUMMARY, 2);
    }

    /// Puts a few frames into the C+ send ring, cut anyhow, with any offload, and polls.
    fn send_cplus(&mut self, random: &mut Random) {
        if random.chance(16) {
            // All of the ring, without an end.
            let words = [0xb000_003cu32, 0, SEND_BUFFERS as u32, 0];
            self.poke(SEND_RING, &words.map(u32::to_le_bytes).concat().repeat(64));
            self.write(reg::TPPOLL, 1, 0x40);
        }
        let mut at = SEND_BUFFERS;
        let mut index = u64::from(self.own.regs.next_send);
        for _ in 0..random.roll(4) {
            let frame = frame(random, 0);
            self.poke(at, &frame);
            let parts = 1 + random.roll(3) as usize;
            let mut rest = frame.len();
            // UDP over TCP by chance, large sends with a sane segment size.
            let offload = match random.roll(4) {
                0 => 0,
                1 => 1 << 27 | (100 + random.roll(1400)) << 16,
                _ => random.roll(8) << 16,
            };
            // One that is begun and never ended.
            let begun = u32::from(random.chance(8));
            for part in 0..parts + begun as usize {
                if part < begun as usize {
                    let words = [0xa000_0000 | random.roll(100), 0, SEND_BUFFERS as u32, 0];
                    self.poke(SEND_RING + 16 * index, &words.map(u32::to_le_bytes).concat());
                    index = (index + 1) % 64;
                    continue;
                }
                let part = part - begun as usize;
                let len = if part + 1 == parts { rest } else { random.roll(rest as u32 + 1) as usize };
                rest -= len;
                let first = if part == 0 && !random.chance(16) { 1 << 29 } else { 0 };
                let last = if part + 1 == parts { 1 << 28 } else { 0 };
                let end = if random.chance(12) { 1 << 30 } else { 0 };
                // A tag in a frame looped back loses four bytes in QEMU.
                let tag = if !self.own.regs.loopback() && random.chance(3) { 1 << 17 } else { 0 };
                let status = 1 << 31 | first | last | end | offload | len as u32;
                let words = [status, tag | random.roll(1 << 16), at as u32, 0];
                self.poke(SEND_RING + 16 * index, &words.map(u32::to_le_bytes).concat());
                at += len as u64;
                index = if end != 0 { 0 } else { (index + 1) % 64 };
            }
        }
        self.poke(SEND_RING + 16 * index, &[0; 16]);
        self.write(reg::TPPOLL, 1, random.of(&[0x40, 0x40, 0x40, 0xc0, 0x80]));
        // What was not polled is taken back.
        let clear = vec![0; 64 * 16];
        self.poke(SEND_RING, &clear);
    }

    fn read_eeprom(&mut self, random: &mut Random) {
        self.write(reg::CR9346, 1, 0x80);
        self.write(reg::CR9346, 1, 0x88);
        // A second command may follow without a new selection.
        for clocks in [random.of(&[16, 16, 3, 20]), random.roll(20)] {
            let bits = random.of(&[0x180, 0x180, 0x180, 0x100]) | random.roll(64);
            for bit in (0..9).rev() {
                let data = (bits >> bit & 1) << 1;
                self.write(reg::CR9346, 1, 0x88 | data);
                self.write(reg::CR9346, 1, 0x8c | data);
                self.read(reg::CR9346, 1);
            }
            for _ in 0..clocks {
                self.write(reg::CR9346, 1, 0x88);
                self.write(reg::CR9346, 1, 0x8c);
                self.read(reg::CR9346, 1);
            }
        }
        self.write(reg::CR9346, 1, random.of(&[0, 0, 0x80, 0xc0]));
    }
}

/// A frame for the card, for others, for all; often IPv4 with a sane header, so that offloads have work. `len` 0: any.
fn frame(random: &mut Random, len: usize) -> Vec<u8> {
    let chosen = match random.roll(8) {
        0 => random.roll(60),
        1 => 4000 + random.roll(4000),
        // About as long as padding, or as a small buffer.
        2 => random.of(&[60, 92]) + random.roll(10),
        _ => 60 + random.roll(1455),
    };
    let mut frame = random.bytes(if len == 0 { chosen as usize } else { len });
    if frame.len() < 60 {
        return frame;
    }
    match random.roll(5) {
        0 => frame[..6].fill(0xff),
        1 => frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, random.roll(256) as u8]),
        2 => frame[0] &= !1,
        _ => frame[..6].copy_from_slice(&MAC),
    }
    match random.roll(8) {
        0 => {}
        1 => frame[12..14].copy_from_slice(&[0x81, 0]),
        _ => {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] =
                if random.chance(8) { random.roll(256) as u8 } else { random.of(&[0x45, 0x45, 0x46]) };
            // A header cut short is a deviation: the datagram is long enough, and maybe padded.
            let total = frame.len() - 14 - random.roll(4) as usize;
            frame[16..18].copy_from_slice(&(total as u16).to_be_bytes());
            frame[23] = random.of(&[6, 6, 17, 1]);
            let header = 14 + usize::from(frame[14] & 15) * 4;
            if let Some(offset) = frame.get_mut(header + 12) {
                *offset = random.of(&[0x50, 0x50, 0x80, 0xf0, 0x10]);
            }
            if let Some(flags) = frame.get_mut(header + 13) {
                // QEMU's last segment loses PSH and FIN.
                *flags &= !9;
            }
        }
    }
    frame
}

/// Registers that name memory or the clock are written by the other steps only.
fn harmless(offset: u16, value: u32) -> Option<u32> {
    match offset {
        reg::TSD..=reg::CR | reg::RCR..=0x47 | reg::TIMER_INT..=0x57 => None,
        // Clocks run, mostly; the EEPROM is not loaded again.
        reg::CR9346 => Some(if value & 0xc0 == 0x40 { value ^ 0x40 } else { value }),
        reg::HLTCLK => Some(if value & 7 == 0 { b'H'.into() } else { b'R'.into() }),
        reg::TPPOLL | reg::CPCR..=0xe1 | reg::RDSAR..=0xeb => None,
        _ => Some(value),
    }
}

fn run(steps: usize) {
    let Some(mut pair) = Pair::start() else { return };
    let mut random = Random::new(0);
    pair.registers();
    pair.start_c(&mut random);
    for step in 0..steps {
        let cplus = pair.own.regs.cplus;
        if !pair.own.link() && random.chance(8) || random.chance(100) {
            let up = !pair.own.link();
            pair.set_link(up);
        }
        match random.roll(20) {
            0..=2 => {
                let (offset, width) = (random.roll(0x100) as u16, 1 << random.roll(3));
                if (offset, width) != (reg::TCTR, 4) && offset + u16::from(width) <= 0x100 {
                    pair.read_by(offset, width, random.chance(2));
                }
            }
            3..=5 => {
                let (offset, width) = (random.roll(0x100) as u16, 1 << random.roll(3));
                let last = offset + u16::from(width) - 1;
                let value = random.roll(u32::MAX);
                let all: Option<Vec<u32>> = (offset..=last).map(|at| harmless(at, value)).collect();
                if let (Some(values), true) = (all, last < 0x100) {
                    let value = if width == 1 { values[0] } else { value };
                    if width == 1 || !(offset..=last).any(|at| matches!(at, reg::CR9346 | reg::HLTCLK)) {
                        pair.write_by(offset, width, value, random.chance(2));
                    }
                }
            }
            6..=9 if cplus => pair.send_cplus(&mut random),
            6..=9 => pair.send_c(&mut random),
            10..=13 => {
                for _ in 0..1 + random.roll(4) {
                    let mut frame = frame(&mut random, 0);
                    frame.truncate(1514);
                    // Sometimes just what the ring has room for, or a little too much.
                    let room = pair.own.regs.available() as usize;
                    if (68..1514).contains(&room) && random.chance(2) {
                        frame.resize(room - 8 - random.roll(8) as usize, 0x5a);
                    }
                    // An empty datagram makes QEMU's back end stop for good.
                    if frame.len() >= 6 {
                        pair.receive(&frame);
                    }
                }
            }
            14 if cplus => pair.refill(&mut random),
            14 => match random.roll(6) {
                0 => pair.write(reg::CAPR, 2, random.roll(0x1_0000) & 0xfffc),
                _ => pair.drain(),
            },
            15 => {
                let acknowledged = random.roll(0x1_0000);
                pair.write(reg::ISR, 2, acknowledged);
                pair.write(reg::IMR, 2, random.roll(0x1_0000));
            }
            16 => pair.registers(),
            17 => match random.roll(3) {
                0 => pair.read_eeprom(&mut random),
                1 if cplus => {
                    pair.write(reg::TSD + 4, 4, 0);
                    pair.write(reg::TSD + 8, 4, random.roll(64));
                    pair.write(reg::TSD, 4, DUMPS as u32 | random.roll(64) | random.roll(8) << 6);
                    pair.read(reg::TSD, 4);
                }
                // Loads the EEPROM, which resets; CR then says so until it is written.
                1 => {
                    pair.write(reg::CR9346, 1, 0x40);
                    pair.registers();
                    pair.start_c(&mut random);
                }
                _ => pair.write(reg::CR9346, 1, random.of(&[0, 0xc0])),
            },
            18 => {
                let value = random.of(&[0x0c, 0x0c, 0x0c, 0x08, 0x04, 0x00]);
                pair.write(reg::CR, 1, value | random.roll(256) & 0xe3);
            }
            _ if random.chance(2) => {}
            _ => {
                if random.chance(2) {
                    pair.start_c(&mut random);
                } else {
                    pair.start_cplus(&mut random);
                }
            }
        }
        if step % 500 == 499 {
            pair.compare_memory(WINDOW, WINDOW_LEN);
            pair.registers();
        }
    }
    pair.compare_memory(WINDOW, WINDOW_LEN);
    pair.peer.wire.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(pair.peer.wire.recv(&mut [0; 64]).is_err(), "QEMU's card sent more");
    eprintln!("{steps} steps: {} frames sent, {} stored", pair.sent, pair.stored);
    assert!(pair.sent > steps / 40 && pair.stored > steps / 40, "the test does too little");
}

#[test]
fn behaves_as_qemus_card() {
    // A longer run: STEPS=100000 cargo test -p sluice-nic --test qemu-rtl8139
    let steps = std::env::var("STEPS").ok().and_then(|steps| steps.parse().ok());
    run(steps.unwrap_or(4000));
}

/// Writes of `(offset, width, value)`.
fn writes(pair: &mut Pair, writes: &[(u16, u8, u32)]) {
    for (offset, width, value) in writes {
        pair.write(*offset, *width, *value);
    }
}

/// What a monitor has to know of QEMU's card when it lets a guest drive it: memory is touched where the register just
/// written does not say so. Ours does the same, as hardware in tests, unless noted.
#[test]
fn touches_memory_unasked_as_qemus_card() {
    let Some(mut pair) = Pair::start() else { return };
    let send = SEND_BUFFERS as u32;
    pair.poke(SEND_BUFFERS, &[0x11; 0x1000]);
    pair.poke(SEND_BUFFERS + 0x1000, &[0x22; 0x1000]);

    // TSD1 waits for TSD0, and goes with a later write of any TSD, from where TSAD1 then points.
    writes(
        &mut pair,
        &[(reg::CR, 1, 0x10), (reg::CR, 1, 0x0c), (reg::TSAD, 4, send), (reg::TSAD + 4, 4, send)],
    );
    writes(&mut pair, &[(reg::TSD + 4, 4, 70)]);
    assert_eq!(pair.sent, 0);
    writes(&mut pair, &[(reg::TSD, 4, 60), (reg::TSAD + 4, 4, send + 0x1000), (reg::TSD + 12, 4, 80)]);
    assert_eq!(pair.sent, 2, "the second from the new address: frames were compared");

    // TSAD outlives a reset, and TSD of C mode means the dump of C+ mode once CPCR is written, by 0 too.
    pair.poke(DUMPS, &[0x77; 128]);
    writes(&mut pair, &[(reg::CR, 1, 0x10), (reg::CR, 1, 0x0c), (reg::CPCR, 2, 0), (reg::TSD + 4, 4, 0)]);
    pair.read(reg::TSAD, 4);
    writes(&mut pair, &[(reg::TSD, 4, DUMPS as u32 + 0x3f)]);
    assert_eq!(pair.peer.memory(DUMPS, 1), [0]);
    assert_eq!(pair.peer.memory(DUMPS + 64, 1), [0x77]);

    // A frame half put together in C+ mode outlives a reset, and goes out with the next owner's.
    let descriptor = |status: u32| [status.to_le_bytes(), [0; 4], send.to_le_bytes(), [0; 4]].concat();
    let start = [
        (reg::CR, 1, 0x10),
        (reg::CPCR, 2, 3),
        (reg::CR, 1, 0x0c),
        (reg::RCR, 4, 0x0f),
        (reg::TSAD, 4, SEND_RING as u32),
        (reg::TSAD + 4, 4, 0),
    ];
    pair.poke(SEND_RING, &descriptor(0xe000_0040));
    writes(&mut pair, &start);
    writes(&mut pair, &[(reg::TPPOLL, 1, 0x40)]);
    assert_eq!(pair.sent, 2);
    writes(&mut pair, &start);
    pair.poke(SEND_RING, &descriptor(0xd000_0004));
    writes(&mut pair, &[(reg::TPPOLL, 1, 0x40)]);
    assert_eq!(pair.sent, 3, "of 68 bytes: frames were compared");

    // Without end of ring the card walks on, past 64 descriptors.
    for index in 0..70 {
        let buffer = (RECEIVE_BUFFERS as u32 + 256 * index).to_le_bytes();
        let words = [0x8000_00ffu32.to_le_bytes(), [0; 4], buffer, [0; 4]].concat();
        pair.poke(RECEIVE_RING + 16 * u64::from(index), &words);
    }
    writes(&mut pair, &[(reg::RDSAR, 4, RECEIVE_RING as u32)]);
    for _ in 0..70 {
        pair.receive(&[0x33; 60]);
    }
    assert_eq!(pair.stored, 70);

    // The receiver with C+ reception off is C mode's, whose ring a reset has put to address 0.
    writes(&mut pair, &[(reg::CPCR, 2, 1)]);
    pair.receive(&[0x44; 60]);
    assert_eq!(pair.peer.memory(4, 4), [0x44; 4]);

    // A frame looped back that is longer than the ring runs over its end. Not ours.
    writes(&mut pair, &[(reg::RCR, 4, 0x0f), (reg::RBSTART, 4, C_RING as u32), (reg::TCR, 4, 0x6_0000)]);
    assert_eq!(pair.peer.memory(C_RING + 0x2000, 1), [0]);
    pair.peer.set_memory(SEND_RING, &descriptor(0xf000_7000));
    pair.peer.write(reg::CR, 1, 0x0c, true);
    pair.peer.write(reg::TPPOLL, 1, 0x40, true);
    assert_ne!(pair.peer.memory(C_RING + 0x2000, 1), [0]);
    pair.memory.memory.at_mut(SEND_RING, 16).unwrap().copy_from_slice(&descriptor(0xf000_7000));
    pair.own.write(reg::CR, 1, 0x0c, &mut pair.memory);
    pair.own.write(reg::TPPOLL, 1, 0x40, &mut pair.memory);
    while pair.own.busy() {
        assert_eq!(pair.own.transmit(&mut pair.memory, &mut Budget::default()), None);
    }
    assert_eq!(pair.memory.memory.at(C_RING + 0x2000, 1), Some(&[0][..]));
}
