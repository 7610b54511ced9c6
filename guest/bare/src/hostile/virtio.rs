//! A virtual device, driven as no driver would: a virtio disk that another domain serves, or a network card that an engine serves; any value in any register, at any width; queues whose
//! descriptors lead anywhere, in circles and through tables of their own, and change while the back end reads them; doorbells without end.
//! Where the guest issues single pages to the disk, it issues and revokes any, at any time, also those of the queue, and what is not its own.
//! In between, a plain request must be answered, or a plain frame sent: who is attacked has to stay in order, for this guest, too, once it has reset the device.

use super::Tally;
use crate::console::println;
use crate::dma::memory::{Own, get, put, put64};
use crate::entry::BootInfo;
use crate::machine::call;
use crate::machine::{outb, outl, outw, sleep, wait_for};
use crate::pci::{self, Function};
use crate::random::Random;
use sluice_hypercall::devfile::DEVFILE_KIND;
use sluice_hypercall::grant as hc;

/// How long an answer is waited for, in ticks of the time-stamp counter: a back end may be busy with others.
pub const PATIENCE: u64 = 40_000_000_000;
/// Entries of the queue.
pub const SIZE: u64 = 64;
const DRIVER_OK: u32 = 15;
const PAGE: u64 = 4096;

/// Offset of the configuration in the registers.
const CONFIGURATION: u64 = 0x2000;
/// Features that the driver of an IOMMU accepts: bounded addresses, MAP and UNMAP, PROBE (Virtio 1.2, 5.13.3).
const IOMMU_FEATURES: u64 = 1 << 0 | 1 << 2 | 1 << 4;

/// Offsets in the memory for a queue.
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
pub const TABLE: u64 = 0x3000;
pub const BUFFERS: u64 = 0x4000;
const MEMORY: u64 = 0x1_0000;
/// Where the frame begins in a buffer.
const HEADER: u64 = 12;

/// What the device is.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Disk,
    Net,
    File,
    Iommu,
}

impl Kind {
    fn identifiers(self) -> u32 {
        match self {
            Self::Disk => 0x1042_1af4,
            Self::Net => 0x1041_1af4,
            Self::File => (0x1040 + DEVFILE_KIND) << 16 | 0x1af4,
            Self::Iommu => 0x1057_1af4,
        }
    }

    fn queues(self) -> u64 {
        match self {
            Self::Disk | Self::File => 1,
            Self::Net | Self::Iommu => 2,
        }
    }
}

pub struct Device {
    kind: Kind,
    pub function: Function,
    registers: u64,
    messages: u64,
    pub doorbell: u16,
    /// Memory for the queues.
    pub at: u64,
    /// First address that is not the guest's.
    pub end: u64,
    /// The space in which pages are issued to it, if single pages are.
    pub space: Option<u64>,
}

/// Writes `width` bytes of memory that is a register.
pub fn store(at: u64, width: u64, value: u64) {
    unsafe {
        match width {
            1 => (at as *mut u8).write_volatile(value as u8),
            2 => (at as *mut u16).write_volatile(value as u16),
            4 => (at as *mut u32).write_volatile(value as u32),
            _ => (at as *mut u64).write_volatile(value),
        }
    }
}

fn load(at: u64, width: u64) {
    unsafe {
        match width {
            1 => drop((at as *const u8).read_volatile()),
            2 => drop((at as *const u16).read_volatile()),
            4 => drop((at as *const u32).read_volatile()),
            _ => drop((at as *const u64).read_volatile()),
        }
    }
}

impl Device {
    /// The device, to which the guest issues pages by calls from now on, if single pages are its way.
    pub fn find(kind: Kind, boot: &BootInfo) -> Option<Self> {
        let mut device = Self::take(kind, &mut Own::new(boot))?;
        let space = hc::GRANT_DEVICE + u64::from(device.function.slot());
        device.space = (call(hc::GRANT_OPEN, [space, 0, 0, 0]) > 0).then_some(space);
        Some(device)
    }

    /// The device, with memory for its queues. Nothing is issued to it.
    pub fn take(kind: Kind, own: &mut Own) -> Option<Self> {
        let function = pci::find(|function| function.read(0) == kind.identifiers())?;
        function.enable();
        let at = own.take(kind.queues() * MEMORY);
        let [registers, messages] = [0, 1].map(|bar| function.memory(bar));
        let (doorbell, end) = (function.ports(2), own.end());
        Some(Self { kind, function, registers, messages, doorbell, at, end, space: None })
    }

    /// Whether the device says that it was used against the rules (Virtio 1.2, 2.1).
    pub fn needs_reset(&self) -> bool {
        self.status() & 64 != 0
    }

    /// Memory for a queue.
    fn queue(&self, queue: u64) -> u64 {
        self.at + queue * MEMORY
    }

    /// Issues the memory for the queues, whatever was issued in its place.
    pub fn lend(&self) {
        let Some(space) = self.space else { return };
        for page in (self.at..self.queue(self.kind.queues())).step_by(PAGE as usize) {
            call(hc::GRANT_REVOKE, [space, page / PAGE, 1, hc::GRANT_FORCED]);
            call(hc::GRANT_ISSUE, [space, page / PAGE, page, 1]);
        }
    }

    /// Any call in the disk's space. Returns whether it gave something away that is not the guest's.
    pub fn wild_call(&self, space: u64, random: &mut Random) -> bool {
        let mine = random.below(self.end / PAGE) * PAGE;
        let page = match random.below(4) {
            0 => random.wild(),
            1 => self.end + random.below(1 << 20) * PAGE,
            2 => self.at + random.below(MEMORY / PAGE) * PAGE,
            _ => mine,
        };
        let reference = if random.below(8) == 0 { random.wild() } else { random.below(self.end / PAGE + 64) };
        let count = if random.below(8) == 0 { random.wild() } else { 1 + random.below(16) };
        let first = if random.below(8) == 0 { random.below(256) } else { space };
        match random.below(4) {
            0 | 1 => {
                let done = call(hc::GRANT_ISSUE, [first, reference, page | random.below(2), count]);
                done > 0 && (page & !(PAGE - 1)).saturating_add(done as u64 * PAGE) > self.end
            }
            2 => {
                call(hc::GRANT_REVOKE, [first, reference, count, random.below(2) * hc::GRANT_FORCED]);
                false
            }
            _ => {
                let which = hc::GRANT_CREATE + random.below(4);
                // It has no peers, and the device's space lives as long as the device.
                call(which, [first, reference, page, random.wild()]) >= 0
            }
        }
    }

    pub fn set(&self, register: u64, width: u64, value: u64) {
        store(self.registers + register, width, value);
    }

    /// Eight bytes of its own configuration, by halves (Virtio 1.2, 4.1.3.1).
    pub fn configuration(&self, offset: u64) -> u64 {
        let [low, high] = [0, 4].map(|half| u64::from(get(self.registers + CONFIGURATION + offset + half)));
        high << 32 | low
    }

    /// A register of two bytes.
    pub fn word(&self, register: u64) -> u16 {
        unsafe { ((self.registers + register) as *const u16).read_volatile() }
    }

    pub fn status(&self) -> u8 {
        unsafe { ((self.registers + 0x14) as *const u8).read_volatile() }
    }

    /// Whether the device has reset itself.
    pub fn reset(&self) -> bool {
        self.set(0x14, 1, 0);
        wait_for(PATIENCE, || {
            sleep(1_000_000);
            self.status() == 0
        })
    }

    /// Sets the queues up, empty. `indirect`: chains may have tables of their own.
    pub fn start(&self, indirect: bool) -> bool {
        for word in (self.at..self.queue(self.kind.queues())).step_by(8) {
            put64(word, 0);
        }
        for status in [1, 3] {
            self.set(0x14, 1, status);
        }
        let platform = u64::from(self.space.is_some()) << 1;
        let of_kind = if self.kind == Kind::Iommu { IOMMU_FEATURES } else { 0 };
        for (half, features) in [(0, u64::from(indirect) << 28 | of_kind), (1, 1 | platform)] {
            self.set(0x08, 4, half);
            self.set(0x0c, 4, features);
        }
        self.set(0x14, 1, 11);
        for queue in 0..self.kind.queues() {
            self.set(0x16, 2, queue);
            self.set(0x18, 2, SIZE);
            for (register, part) in [(0x20, 0), (0x28, AVAILABLE), (0x30, USED)] {
                self.set(register, 4, self.queue(queue) + part);
                self.set(register + 4, 4, 0);
            }
            self.set(0x1c, 2, 1);
        }
        self.set(0x14, 1, u64::from(DRIVER_OK));
        u32::from(self.status()) == DRIVER_OK
    }

    pub fn descriptor(&self, table: u64, index: u64, address: u64, len: u32, flags: u32, next: u32) {
        let at = table + index * 16;
        put64(at, address);
        put(at + 8, len);
        put(at + 12, flags | next << 16);
    }

    /// Makes what the ring has up to `index` available.
    pub fn offer(&self, queue: u64, index: u32) {
        put(self.queue(queue) + AVAILABLE, index << 16);
        outw(self.doorbell, queue as u16);
    }

    /// Whether a plain request is answered: a read of the first sector, or a frame to everybody.
    fn is_served(&self) -> bool {
        self.lend();
        if !self.reset() || !self.start(false) {
            return false;
        }
        let queue = self.kind.queues() - 1;
        let at = self.queue(queue);
        let verdict = at + BUFFERS + 0x2000;
        match self.kind {
            Kind::Disk => {
                self.descriptor(at, 0, at + BUFFERS, 16, 1, 1);
                self.descriptor(at, 1, at + BUFFERS + 0x1000, 512, 3, 2);
                self.descriptor(at, 2, verdict, 1, 2, 0);
                put(verdict, 0xff);
            }
            // Who attacks one asks for itself.
            Kind::File | Kind::Iommu => return false,
            Kind::Net => {
                let frame = at + BUFFERS + HEADER;
                (0..6).for_each(|byte| store(frame + byte, 1, 0xff));
                // Its own address, where the device's configuration has it.
                for byte in 0..6 {
                    let own =
                        unsafe { ((self.registers + CONFIGURATION + byte) as *const u8).read_volatile() };
                    store(frame + 6 + byte, 1, own.into());
                }
                self.descriptor(at, 0, at + BUFFERS, 12 + 60, 0, 0);
                put(verdict, 0);
            }
        }
        self.offer(queue, 1);
        wait_for(PATIENCE, || {
            sleep(1_000_000);
            get(at + USED) >> 16 == 1
        }) && get(verdict) & 0xff == 0
    }

    /// A descriptor that leads anywhere.
    pub fn wild_descriptor(&self, at: u64, table: u64, index: u64, random: &mut Random) {
        let address = match random.below(8) {
            0 => random.wild(),
            1 => self.end.wrapping_sub(random.below(0x1000)),
            2 => at + random.below(BUFFERS),
            3 => at + TABLE,
            _ => at + BUFFERS + random.below(0x8000),
        };
        let len = match random.below(6) {
            0 => random.wild() as u32,
            1 => 0,
            2 => 16 * random.below(80) as u32,
            3 => 1,
            _ => 512 * random.below(16) as u32,
        };
        let next = if random.below(8) == 0 { random.next() as u16 } else { random.below(SIZE) as u16 };
        self.descriptor(at + table, index, address, len, random.below(8) as u32, next.into());
    }

    /// Requests that no driver makes, some of which change while they are read.
    pub fn attack(&self, random: &mut Random) {
        (0..self.kind.queues()).for_each(|queue| self.attack_queue(queue, random));
    }

    fn attack_queue(&self, queue: u64, random: &mut Random) {
        let own = self.queue(queue);
        // What looks like the header of a request is where chains may begin.
        for at in (own + BUFFERS..own + BUFFERS + 0x8000).step_by(16) {
            put64(at, random.below(16));
            put64(at + 8, if random.below(4) == 0 { random.wild() } else { random.below(64) });
        }
        for table in [0, TABLE] {
            (0..SIZE).for_each(|index| self.wild_descriptor(own, table, index, random));
        }
        for entry in 0..SIZE {
            let head = if random.below(16) == 0 { random.next() as u16 } else { random.below(SIZE) as u16 };
            let at = own + AVAILABLE + 4 + entry * 2;
            unsafe { (at as *mut u16).write_volatile(head) };
        }
        let mut index = random.below(SIZE);
        for _ in 0..8 {
            self.offer(queue, index as u32 & 0xffff);
            for _ in 0..random.below(200) {
                let table = if random.below(4) == 0 { TABLE } else { 0 };
                self.wild_descriptor(own, table, random.below(SIZE), random);
            }
            index = if random.below(8) == 0 { random.next() } else { index + random.below(SIZE) };
        }
    }
}

/// Any access to any register, and to the configuration of the function.
pub fn registers(device: &Device, random: &mut Random, tally: &mut Tally) {
    for _ in 0..6_000u32 {
        let (value, width) = (random.wild(), 1 << random.below(4));
        let (kind, offset) = (random.below(8), random.below(0x40));
        let far = random.below(0x3ff8);
        tally.attempt(|| match kind {
            0..3 => store(device.registers + offset, width, value),
            3 => store(device.registers + far, width, value),
            4 => load(device.registers + far, width),
            5 => store(device.messages + (far & 0xff8), width, value),
            6 => outw(device.doorbell, value as u16),
            _ => match width {
                1 => outb(device.doorbell, value as u8),
                _ => outl(device.doorbell, value as u32),
            },
        });
        if random.below(64) == 0 {
            // Where it answers, and whether; then where it was.
            let bars = [0x10, 0x14, 0x18].map(|register| (register, device.function.read(register)));
            device.function.write(4 * random.below(64) as u32, random.wild() as u32);
            bars.iter().for_each(|(register, was)| device.function.write(*register, *was));
            device.function.enable();
        }
    }
}

/// Calls between requests, and while they are under way.
fn calls(device: &Device, space: u64, random: &mut Random, tally: &mut Tally) {
    let (mut tried, mut succeeded) = (0u32, 0u32);
    for round in 0..400 {
        if round % 40 == 0 && device.reset() && device.start(round % 80 == 0) {
            tally.attempt(|| device.attack(random));
        }
        for _ in 0..50 {
            tried += 1;
            succeeded += u32::from(device.wild_call(space, random));
        }
    }
    println!("SLUICE-RESULT grants_tried={tried} grants_succeeded={succeeded}");
}

/// Runs the attack.
pub fn run(kind: Kind, random: &mut Random, boot: &BootInfo) {
    let Some(device) = Device::find(kind, boot) else {
        println!("no such device");
        return;
    };
    let mut tally = Tally::default();
    let (mut served, mut asked, mut told) = (0, 0, false);
    let mut ask = |device: &Device| {
        asked += 1;
        served += u32::from(device.is_served());
        println!("SLUICE-RESULT requests={asked} served={served}");
    };
    ask(&device);
    registers(&device, random, &mut tally);
    ask(&device);
    for round in 1..=48u32 {
        let started = device.reset() && device.start(round % 2 == 0);
        if started {
            tally.attempt(|| device.attack(random));
            told |= device.needs_reset();
        }
        if round % 8 == 0 {
            ask(&device);
        }
    }
    println!("SLUICE-RESULT told={}", if told { "yes" } else { "no" });
    for _ in 0..20_000u32 {
        tally.attempt(|| outw(device.doorbell, kind.queues() as u16 - 1));
    }
    ask(&device);
    if let Some(space) = device.space {
        calls(&device, space, random, &mut tally);
        ask(&device);
    } else {
        println!("SLUICE-RESULT grants_tried=0 grants_succeeded=0");
    }
    tally.report(if kind == Kind::Net { "vif" } else { "virtio" });
}
