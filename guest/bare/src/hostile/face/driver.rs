//! A driver of an 82540EM that does as it is told: descriptors of any kind, rings anywhere, and what came back.
//!
//! Key types: [`Driver`], [`Descriptor`], [`Context`]. Source: manual 317453, 3.2.3 (receive descriptors), 3.3.3, 3.3.6 and 3.3.7 (transmit
//! descriptors). The memory that it gives its card lies between pages that nobody may write, the fences. Only its rings have none behind them: a
//! head that is written in just the moment in which the card moves it is lost, so that a ring that was moved is read beyond its end until its length
//! follows.

use crate::dma::e1000::{
    CONTROL, CONTROL_LINK_UP, DONE, HEAD, LENGTH, MASK_CLEAR, PHY, PHY_LOOPBACK, PHY_NETWORK, RECEIVE,
    RECEIVE_ALL, RX_RING, Registers, TAIL, TRANSMIT, TRANSMIT_ON, TX_RING, WHOLE,
};
use crate::dma::memory::{Own, get, put, put64};
use crate::entry::BootInfo;
use crate::machine::{sleep, wait_for};
use crate::pci::{self, Function};
use core::arch::asm;

pub type Mac = [u8; 6];

/// Offset of the Ethernet type of what VLAN tags begin with, and of the station address.
pub const VLAN_TYPE: u64 = 0x38;
const THROTTLE: u64 = 0xc4;
const STATION: u64 = 0x5400;

const PAGE: u64 = 4096;
/// Descriptors of the rings of a sane driver.
const SENT: u64 = PAGE / 16;
const RECEIVED: u64 = 32;
/// Bytes for a frame: as many as a descriptor names, and a page.
pub const FRAMES: u64 = 17 * PAGE;
/// Bytes that rings and buffers of any kind are in: a ring begins in the first half, and ends at the latest where the second does.
pub const PLAY: u64 = (2 << 20) + FRAMES;
/// What fences hold.
pub const FENCE: u32 = 0x6e6e_6e6e;
const FENCES: usize = 4;
/// How far from the beginning of a ring its heads can lead.
pub const REACH: u64 = 1 << 20;

/// A frame that is answered: a request of the address resolution protocol, by QEMU's gateway.
pub const LEN: u64 = 60;
const GATEWAY: [u8; 4] = [10, 0, 2, 2];
/// Nobody else has it.
const OWN: [u8; 4] = [10, 0, 2, 77];
/// The address that requests ask for, which comes back in answers: the last two bytes say which one it was.
const ASKS: [u8; 4] = [0x52, 0x54, 0x0f, 0xac];

/// How long a descriptor takes at most, and an answer, in ticks of the time-stamp counter: the engine may be busy with others.
pub const PROMPT: u64 = 2_000_000_000;
pub const ANSWER: u64 = 100_000_000;

/// Bits of descriptors.
pub const EOP: u64 = 1 << 24;
const REPORT: u64 = 1 << 27;
const EXTENDED: u64 = 1 << 29;
const DATA: u64 = 1 << 20;
pub const SEGMENT: u64 = 1 << 26;
pub const TAGGED: u64 = 1 << 30;
/// Options of data: the checksums of both contexts.
pub const IP_SUM: u8 = 1;
pub const SUM: u8 = 2;

/// Stores `width` bytes of memory that is a register, aligned or not.
pub fn store(at: u64, width: u64, value: u64) {
    unsafe {
        match width {
            1 => asm!("mov [{}], {}", in(reg) at, in(reg_byte) value as u8, options(nostack)),
            2 => asm!("mov [{}], {:x}", in(reg) at, in(reg) value, options(nostack)),
            4 => asm!("mov [{}], {:e}", in(reg) at, in(reg) value, options(nostack)),
            _ => asm!("mov [{}], {}", in(reg) at, in(reg) value, options(nostack)),
        }
    }
}

/// Loads eight bytes at most, aligned or not.
pub fn load(at: u64, width: u64) -> u64 {
    let value: u64;
    unsafe {
        match width {
            1 => asm!("movzx {:e}, byte ptr [{}]", out(reg) value, in(reg) at, options(nostack)),
            2 => asm!("movzx {:e}, word ptr [{}]", out(reg) value, in(reg) at, options(nostack)),
            4 => asm!("mov {:e}, [{}]", out(reg) value, in(reg) at, options(nostack)),
            _ => asm!("mov {}, [{}]", out(reg) value, in(reg) at, options(nostack)),
        }
    }
    value
}

fn put_bytes(at: u64, bytes: &[u8]) {
    (at..).zip(bytes).for_each(|(at, byte)| store(at, 1, u64::from(*byte)));
}

pub fn bytes<const N: usize>(at: u64) -> [u8; N] {
    core::array::from_fn(|offset| load(at + offset as u64, 1) as u8)
}

/// The sum that a card puts into a frame (RFC 1071), before its complement.
pub fn sum(at: u64, len: u64) -> u16 {
    let words = (at..at + len).step_by(2).map(|at| u64::from(u16::from_be_bytes(bytes(at))));
    fold(words.sum())
}

/// Adds the carries of a sum.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Writes a request that QEMU's gateway answers to who sent it.
pub fn put_request(at: u64, to: Mac, from: Mac, mark: u16) {
    put_bytes(at, &to);
    put_bytes(at + 6, &from);
    put_bytes(at + 12, &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    put_bytes(at + 22, &ASKS);
    put_bytes(at + 26, &mark.to_be_bytes());
    put_bytes(at + 28, &OWN);
    put_bytes(at + 38, &GATEWAY);
}

/// What a frame that was received tells.
pub struct Look {
    /// It should not have come: it is somebody's, or the answer to a frame that should not have gone out.
    pub is_wrong: bool,
    /// It is the answer to a request that says so.
    pub answered: Option<u16>,
}

/// Looks at a frame that who has this address has received.
pub fn look_at(frame: u64, mac: Mac) -> Look {
    let to: Mac = bytes(frame);
    let is_to_group = to[0] & 1 != 0;
    let mut is_wrong = !is_to_group && to != mac;
    let is_answer =
        bytes(frame + 12) == [0x08, 0x06] && bytes(frame + 20) == [0, 2] && bytes(frame + 32) == ASKS;
    let mark = u16::from_be_bytes(bytes(frame + 36));
    is_wrong |= is_answer && (is_to_group || mark & MAY == 0);
    if is_wrong {
        crate::console::println!("seen: a frame to {to:x?}, answer {is_answer} to {mark:#x}");
    }
    Look { is_wrong, answered: is_answer.then_some(mark) }
}

/// A descriptor of the transmit ring.
#[derive(Clone, Copy, Default)]
pub struct Descriptor {
    pub low: u64,
    pub high: u64,
}

impl Descriptor {
    /// A whole frame, in the legacy format.
    pub fn legacy(at: u64, len: u64) -> Self {
        Self { low: at, high: u64::from(WHOLE) | len }
    }

    /// A whole frame, of data that these checksums are put into.
    pub fn data(at: u64, len: u64, options: u8) -> Self {
        let kind = u64::from(WHOLE) | EXTENDED | DATA;
        Self { low: at, high: kind | len | u64::from(options) << 40 }
    }

    /// More of the frame follows.
    pub fn open(self) -> Self {
        Self { high: self.high & !EOP, ..self }
    }

    /// With these bits, too.
    pub fn with(self, bits: u64) -> Self {
        Self { high: self.high | bits, ..self }
    }
}

/// What data descriptors refer to.
#[derive(Clone, Copy, Default)]
pub struct Context {
    /// Start of the range that is summed, and where the sum goes; the range ends with the frame.
    pub ip: (u8, u8),
    pub transport: (u8, u8),
    pub segmenting: bool,
    pub ipv4: bool,
    pub tcp: bool,
    /// Bytes of all segments, of each, and of the header.
    pub payload: u32,
    pub segment: u16,
    pub header: u8,
}

impl Context {
    pub fn descriptor(self) -> Descriptor {
        let place = |(start, offset): (u8, u8)| u64::from(start) | u64::from(offset) << 8;
        let kind = EXTENDED | REPORT | if self.segmenting { SEGMENT } else { 0 };
        let flags = u64::from(self.tcp) << 24 | u64::from(self.ipv4) << 25;
        let sizes = u64::from(self.header) << 40 | u64::from(self.segment) << 48;
        Descriptor {
            low: place(self.ip) | place(self.transport) << 32,
            high: kind | flags | sizes | u64::from(self.payload & 0xf_ffff),
        }
    }
}

/// The driver, and what it saw that it should not have seen.
pub struct Driver {
    pub function: Function,
    pub registers: Registers,
    /// The base address that it was given.
    pub bar: u32,
    pub mac: Mac,
    transmit: u64,
    pub receive: u64,
    /// One buffer of 2 KiB in each page; the rest of the page is a fence.
    buffers: u64,
    /// The frame to be sent.
    pub frame: u64,
    pub play: u64,
    /// First address that is not the guest's.
    pub end: u64,
    fences: [u64; FENCES],
    tail: u64,
    next: u64,
    answered: u16,
    /// Answers to frames that should not have gone out, frames of others, fences that were written.
    pub seen: u32,
}

/// Whether a request that says so may go out.
pub const MAY: u16 = 1 << 15;

impl Driver {
    /// The first card there is.
    pub fn open(boot: &BootInfo) -> Option<Self> {
        let function = pci::find(|function| function.read(0) == 0x100e_8086)?;
        function.enable();
        let mut own = Own::new(boot);
        let mut fences = [0; FENCES];
        let mut takes = [RECEIVED * PAGE, FRAMES, PLAY].into_iter();
        let mut parts = [0; FENCES - 1];
        for (fence, part) in fences.iter_mut().zip(&mut parts) {
            *fence = own.take(PAGE);
            *part = takes.next().map_or(0, |bytes| own.take(bytes));
        }
        fences[FENCES - 1] = own.take(PAGE);
        let [buffers, frame, play] = parts;
        let transmit = own.take(2 * PAGE + REACH);
        let receive = transmit + PAGE;
        let registers = Registers(function.memory(0));
        // Only whole registers can be read.
        let [m0, m1, m2, m3] = registers.get(STATION).to_le_bytes();
        let [m4, m5, ..] = registers.get(STATION + 4).to_le_bytes();
        let mac = [m0, m1, m2, m3, m4, m5];
        let driver = Self {
            function,
            registers,
            bar: registers.0 as u32,
            mac,
            transmit,
            receive,
            buffers,
            frame,
            play,
            end: own.end(),
            fences,
            tail: 0,
            next: 0,
            answered: 0,
            seen: 0,
        };
        driver.fence_words().for_each(|at| put(at, FENCE));
        Some(driver)
    }

    /// Addresses of what no card is to write.
    fn fence_words(&self) -> impl Iterator<Item = u64> + use<> {
        let halves = (self.buffers..).step_by(PAGE as usize).take(RECEIVED as usize);
        let halves = halves.map(|page| (page + PAGE / 2, page + PAGE));
        let pages = self.fences.into_iter().map(|page| (page, page + PAGE));
        pages.chain(halves).flat_map(|(from, to)| (from..to).step_by(4))
    }

    /// Counts fences that were written.
    pub fn look_at_fences(&mut self) {
        for at in self.fence_words().filter(|at| get(*at) != FENCE) {
            crate::console::println!("fence: {at:#x} holds {:#x}", get(at));
            put(at, FENCE);
            self.seen += 1;
        }
    }

    /// Does to the card what a driver does when it starts, whatever was done to it before.
    pub fn set_up(&mut self) {
        self.function.write(0x10, self.bar);
        self.function.enable();
        let registers = self.registers;
        registers.set(TRANSMIT, 0);
        registers.set(MASK_CLEAR, u32::MAX);
        registers.set(CONTROL, CONTROL_LINK_UP);
        registers.set(PHY, PHY_NETWORK);
        registers.set(VLAN_TYPE, 0x8100);
        registers.set(THROTTLE, 0);
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        registers.set(STATION, u32::from_le_bytes([m0, m1, m2, m3]));
        registers.set(STATION + 4, u32::from_le_bytes([m4, m5, 0, 0x80]));
        // For a second after it was written nothing is received.
        if registers.get(RECEIVE) != RECEIVE_ALL {
            registers.set(RECEIVE, 0);
        }
        // What it has begun to send comes to its end.
        sleep(5_000_000);
        self.set_rings_up();
        registers.set(TRANSMIT, TRANSMIT_ON);
        if registers.get(RECEIVE) != RECEIVE_ALL {
            registers.set(RECEIVE, RECEIVE_ALL);
            sleep(1_100_000_000);
        }
    }

    fn set_rings_up(&mut self) {
        for index in 0..SENT {
            self.put_descriptor(self.transmit + 16 * index, Descriptor::default());
        }
        self.registers.ring(TX_RING, self.transmit, SENT as u32);
        (0..RECEIVED).for_each(|index| self.give(index));
        self.registers.ring(RX_RING, self.receive, RECEIVED as u32);
        self.registers.set(RX_RING + TAIL, RECEIVED as u32 - 1);
        (self.tail, self.next) = (0, 0);
    }

    pub fn put_descriptor(&self, at: u64, Descriptor { low, high }: Descriptor) {
        put64(at, low);
        put64(at + 8, high);
    }

    /// The card may fill this buffer.
    fn give(&self, index: u64) {
        self.put_descriptor(self.receive + 16 * index, Descriptor { low: self.buffer(index), high: 0 });
    }

    fn buffer(&self, index: u64) -> u64 {
        self.buffers + index * PAGE
    }

    /// Writes the frame: a request that QEMU's gateway answers to who sent it.
    pub fn ask(&self, to: Mac, from: Mac, mark: u16) {
        let at = self.frame;
        (at..at + FRAMES).step_by(8).for_each(|at| put64(at, 0));
        put_request(at, to, from, mark);
    }

    /// Puts these where the card finds them next, and rings. Returns where the last is.
    pub fn ring(&mut self, descriptors: &[Descriptor]) -> u64 {
        let mut last = self.transmit;
        for descriptor in descriptors {
            last = self.transmit + 16 * self.tail;
            self.put_descriptor(last, *descriptor);
            self.tail = (self.tail + 1) % SENT;
        }
        self.registers.set(TX_RING + TAIL, self.tail as u32);
        last
    }

    /// Has these sent, of which the last reports. Returns whether that is done.
    pub fn send(&mut self, descriptors: &[Descriptor]) -> bool {
        let last = self.ring(descriptors);
        let done = wait(PROMPT, || get(last + 12) & DONE != 0);
        self.take();
        done
    }

    /// Looks at what has come.
    pub fn take(&mut self) {
        while get(self.receive + 16 * self.next + 12) & DONE != 0 {
            self.look_at(self.buffer(self.next));
            self.give(self.next);
            self.registers.set(RX_RING + TAIL, self.next as u32);
            self.next = (self.next + 1) % RECEIVED;
        }
    }

    fn look_at(&mut self, frame: u64) {
        let Look { is_wrong, answered } = look_at(frame, self.mac);
        self.answered = answered.unwrap_or(self.answered);
        self.seen += u32::from(is_wrong);
    }

    /// Sends a frame of its own until it is answered. Returns whether each was sent in time, and whether one was answered.
    pub fn is_answered(&mut self, number: u16) -> (bool, bool) {
        let mark = MAY | number;
        let mut all_sent = true;
        for _ in 0..40 {
            self.ask([0xff; 6], self.mac, mark);
            all_sent &= self.send(&[Descriptor::legacy(self.frame, LEN)]);
            let answered = wait(ANSWER, || {
                self.take();
                self.answered == mark
            });
            if answered {
                return (all_sent, true);
            }
        }
        (all_sent, false)
    }

    /// From now on what it sends comes back, to where [`Self::pass`] says.
    pub fn loop_back(&mut self) {
        self.registers.set(PHY, PHY_LOOPBACK);
        self.set_rings_up();
        self.registers.set(RX_RING + TAIL, 0);
    }

    /// Sends a frame of `len` bytes into the memory at `into`. Returns whether it came.
    pub fn pass(&mut self, descriptors: &[Descriptor], len: u64, into: u64) -> bool {
        // A neighbour's may take its place.
        for _ in 0..4 {
            let at = self.receive + 16 * self.next;
            self.put_descriptor(at, Descriptor { low: into, high: 0 });
            self.next = (self.next + 1) % RECEIVED;
            self.registers.set(RX_RING + TAIL, self.next as u32);
            let sent = self.send_blindly(descriptors);
            if !sent || !wait(ANSWER, || get(at + 12) & DONE != 0) {
                self.loop_back();
                return false;
            }
            if u64::from(get(at + 8) & 0xffff) == len + 4 {
                return true;
            }
        }
        false
    }

    fn send_blindly(&mut self, descriptors: &[Descriptor]) -> bool {
        let last = self.ring(descriptors);
        wait(PROMPT, || get(last + 12) & DONE != 0)
    }

    /// Puts a ring anywhere, of any length, with its head and tail anywhere.
    pub fn put_ring(&self, ring: u64, at: u64, (len, head, tail): (u32, u32, u32)) {
        self.registers.set(ring, at as u32);
        self.registers.set(ring + 4, (at >> 32) as u32);
        self.registers.set(ring + LENGTH, len);
        self.registers.set(ring + HEAD, head);
        self.registers.set(ring + TAIL, tail);
    }
}

/// Waits at most so many ticks; first a little by itself, then it lets others have the processor.
pub fn wait(ticks: u64, mut done: impl FnMut() -> bool) -> bool {
    wait_for(30_000, &mut done)
        || wait_for(ticks, || {
            sleep(100_000);
            done()
        })
}
