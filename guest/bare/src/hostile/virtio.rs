//! A virtio disk that another domain serves, driven as no driver would: any value in any register, at any width; queues whose
//! descriptors lead anywhere, in circles and through tables of their own, and change while the back end reads them; doorbells without end.
//! Where the guest issues single pages to the disk, it issues and revokes any, at any time, also those of the queue, and what is not its own.
//! In between, a plain request must be answered: who is attacked has to stay in order, for this guest, too, once it has reset the device.

use super::Tally;
use crate::console::println;
use crate::dma::memory::{Own, get, put, put64};
use crate::entry::BootInfo;
use crate::grants::call;
use crate::machine::{outb, outl, outw, sleep, wait_for};
use crate::pci::{self, Function};
use crate::random::Random;
use sluice_hypercall::grant as hc;

/// How long an answer is waited for, in ticks of the time-stamp counter: a back end may be busy with others.
pub const PATIENCE: u64 = 40_000_000_000;
/// Entries of the queue.
pub const SIZE: u64 = 64;
const DRIVER_OK: u32 = 15;
/// Type of disks.
const BLOCK: u32 = 2;
const PAGE: u64 = 4096;

/// Offsets in the memory for the queue.
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
const TABLE: u64 = 0x3000;
pub const BUFFERS: u64 = 0x4000;
const MEMORY: u64 = 0x1_0000;

pub struct Disk {
    pub function: Function,
    registers: u64,
    messages: u64,
    pub doorbell: u16,
    /// Memory for the queue.
    pub at: u64,
    /// First address that is not the guest's.
    pub end: u64,
    /// The space in which pages are issued to it, if single pages are.
    space: Option<u64>,
}

/// Writes `width` bytes of memory that is a register.
fn store(at: u64, width: u64, value: u64) {
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

impl Disk {
    /// The first virtio device of this type.
    pub fn find(boot: &BootInfo, kind: u32) -> Option<Self> {
        let function = pci::find(|function| function.read(0) == (0x1040 + kind) << 16 | 0x1af4)?;
        function.enable();
        let mut own = Own::new(boot);
        let at = own.take(MEMORY);
        let [registers, messages] = [0, 1].map(|bar| function.memory(bar));
        let space = hc::GRANT_DEVICE + u64::from(function.slot());
        let space = (call(hc::GRANT_OPEN, [space, 0, 0, 0]) > 0).then_some(space);
        Some(Self { function, registers, messages, doorbell: function.ports(2), at, end: own.end(), space })
    }

    /// Issues the memory for the queue, whatever was issued in its place.
    pub fn lend(&self) {
        let Some(space) = self.space else { return };
        for page in (self.at..self.at + MEMORY).step_by(PAGE as usize) {
            call(hc::GRANT_REVOKE, [space, page / PAGE, 1, hc::GRANT_FORCED]);
            call(hc::GRANT_ISSUE, [space, page / PAGE, page, 1]);
        }
    }

    /// Any call in the disk's space. Returns whether it gave something away that is not the guest's.
    fn wild_call(&self, space: u64, random: &mut Random) -> bool {
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

    fn set(&self, register: u64, width: u64, value: u64) {
        store(self.registers + register, width, value);
    }

    fn status(&self) -> u8 {
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

    /// Sets the one queue up, empty. `indirect`: chains may have tables of their own.
    pub fn start(&self, indirect: bool) -> bool {
        for word in (self.at..self.at + MEMORY).step_by(8) {
            put64(word, 0);
        }
        for status in [1, 3] {
            self.set(0x14, 1, status);
        }
        let platform = u64::from(self.space.is_some()) << 1;
        for (half, features) in [(0, u64::from(indirect) << 28), (1, 1 | platform)] {
            self.set(0x08, 4, half);
            self.set(0x0c, 4, features);
        }
        self.set(0x14, 1, 11);
        self.set(0x16, 2, 0);
        self.set(0x18, 2, SIZE);
        for (register, part) in [(0x20, 0), (0x28, AVAILABLE), (0x30, USED)] {
            self.set(register, 4, self.at + part);
            self.set(register + 4, 4, 0);
        }
        self.set(0x1c, 2, 1);
        self.set(0x14, 1, u64::from(DRIVER_OK));
        u32::from(self.status()) == DRIVER_OK
    }

    pub fn descriptor(&self, table: u64, index: u64, address: u64, len: u32, flags: u32, next: u32) {
        let at = self.at + table + index * 16;
        put64(at, address);
        put(at + 8, len);
        put(at + 12, flags | next << 16);
    }

    /// Makes what the ring has up to `index` available.
    pub fn offer(&self, index: u32) {
        put(self.at + AVAILABLE, index << 16);
        outw(self.doorbell, 0);
    }

    /// Whether a read of the first sector is answered.
    fn is_served(&self) -> bool {
        self.lend();
        if !self.reset() || !self.start(false) {
            return false;
        }
        let (header, data, verdict) =
            (self.at + BUFFERS, self.at + BUFFERS + 0x1000, self.at + BUFFERS + 0x2000);
        self.descriptor(0, 0, header, 16, 1, 1);
        self.descriptor(0, 1, data, 512, 3, 2);
        self.descriptor(0, 2, verdict, 1, 2, 0);
        put(verdict, 0xff);
        self.offer(1);
        wait_for(PATIENCE, || {
            sleep(1_000_000);
            get(self.at + USED) >> 16 == 1
        }) && get(verdict) & 0xff == 0
    }

    /// A descriptor that leads anywhere.
    pub fn wild_descriptor(&self, table: u64, index: u64, random: &mut Random) {
        let address = match random.below(8) {
            0 => random.wild(),
            1 => self.end.wrapping_sub(random.below(0x1000)),
            2 => self.at + random.below(BUFFERS),
            3 => self.at + TABLE,
            _ => self.at + BUFFERS + random.below(0x8000),
        };
        let len = match random.below(6) {
            0 => random.wild() as u32,
            1 => 0,
            2 => 16 * random.below(80) as u32,
            3 => 1,
            _ => 512 * random.below(16) as u32,
        };
        let next = if random.below(8) == 0 { random.next() as u16 } else { random.below(SIZE) as u16 };
        self.descriptor(table, index, address, len, random.below(8) as u32, next.into());
    }

    /// Requests that no driver makes, some of which change while they are read.
    fn attack(&self, random: &mut Random) {
        // What looks like the header of a request is where chains may begin.
        for at in (self.at + BUFFERS..self.at + BUFFERS + 0x8000).step_by(16) {
            put64(at, random.below(16));
            put64(at + 8, if random.below(4) == 0 { random.wild() } else { random.below(64) });
        }
        for table in [0, TABLE] {
            (0..SIZE).for_each(|index| self.wild_descriptor(table, index, random));
        }
        for entry in 0..SIZE {
            let head = if random.below(16) == 0 { random.next() as u16 } else { random.below(SIZE) as u16 };
            let at = self.at + AVAILABLE + 4 + entry * 2;
            unsafe { (at as *mut u16).write_volatile(head) };
        }
        let mut index = random.below(SIZE);
        for _ in 0..8 {
            self.offer(index as u32 & 0xffff);
            for _ in 0..random.below(200) {
                let table = if random.below(4) == 0 { TABLE } else { 0 };
                self.wild_descriptor(table, random.below(SIZE), random);
            }
            index = if random.below(8) == 0 { random.next() } else { index + random.below(SIZE) };
        }
    }
}

/// Any access to any register, and to the configuration of the function.
fn registers(disk: &Disk, random: &mut Random, tally: &mut Tally) {
    for _ in 0..6_000u32 {
        let (value, width) = (random.wild(), 1 << random.below(4));
        let (kind, offset) = (random.below(8), random.below(0x40));
        let far = random.below(0x3ff8);
        tally.attempt(|| match kind {
            0..3 => store(disk.registers + offset, width, value),
            3 => store(disk.registers + far, width, value),
            4 => load(disk.registers + far, width),
            5 => store(disk.messages + (far & 0xff8), width, value),
            6 => outw(disk.doorbell, value as u16),
            _ => match width {
                1 => outb(disk.doorbell, value as u8),
                _ => outl(disk.doorbell, value as u32),
            },
        });
        if random.below(64) == 0 {
            // Where it answers, and whether; then where it was.
            let bars = [0x10, 0x14, 0x18].map(|register| (register, disk.function.read(register)));
            disk.function.write(4 * random.below(64) as u32, random.wild() as u32);
            bars.iter().for_each(|(register, was)| disk.function.write(*register, *was));
            disk.function.enable();
        }
    }
}

/// Calls between requests, and while they are under way.
fn calls(disk: &Disk, space: u64, random: &mut Random, tally: &mut Tally) {
    let (mut tried, mut succeeded) = (0u32, 0u32);
    for round in 0..400 {
        if round % 40 == 0 && disk.reset() && disk.start(round % 80 == 0) {
            tally.attempt(|| disk.attack(random));
        }
        for _ in 0..50 {
            tried += 1;
            succeeded += u32::from(disk.wild_call(space, random));
        }
    }
    println!("SLUICE-RESULT grants_tried={tried} grants_succeeded={succeeded}");
}

/// Runs the attack.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let Some(disk) = Disk::find(boot, BLOCK) else {
        println!("no disk");
        return;
    };
    let mut tally = Tally::default();
    let (mut served, mut asked) = (0, 0);
    let mut ask = |disk: &Disk| {
        asked += 1;
        served += u32::from(disk.is_served());
        println!("SLUICE-RESULT requests={asked} served={served}");
    };
    ask(&disk);
    registers(&disk, random, &mut tally);
    ask(&disk);
    for round in 1..=48u32 {
        let started = disk.reset() && disk.start(round % 2 == 0);
        if started {
            tally.attempt(|| disk.attack(random));
        }
        if round % 8 == 0 {
            ask(&disk);
        }
    }
    for _ in 0..20_000u32 {
        tally.attempt(|| outw(disk.doorbell, 0));
    }
    ask(&disk);
    if let Some(space) = disk.space {
        calls(&disk, space, random, &mut tally);
        ask(&disk);
    } else {
        println!("SLUICE-RESULT grants_tried=0 grants_succeeded=0");
    }
    tally.report("virtio");
}
