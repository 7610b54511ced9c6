//! A part of a shared IDE disk, driven by who wants the rest of it: sectors outside the part, memory that is not the
//! guest's, commands that concern the whole disk, data while the guest's own bus master is off; then any value in any register. At a slow disk, data that
//! come after the guest has given up what it asked for.
//!
//! Source: ATA-6, 8 (commands); SFF-8038i (bus master).

use super::{Score, Tally};
use crate::console::println;
use crate::dma::memory::{get, put};
use crate::entry::BootInfo;
use crate::machine::{inb, inw, outb, outl, outw, sleep, wait_for};
use crate::pci::{self, Function};
use crate::random::Random;

const BUSY: u8 = 0x80;
const WANTS_DATA: u8 = 0x08;
const FAILED: u8 = 0x21;
const INTO_MEMORY: u8 = 8;
const START: u8 = 1;
/// Ticks that a command may take: seconds.
const PATIENCE: u64 = 20_000_000_000;
/// Commands that concern nobody else, and may succeed: reads, writes and verifies of sectors, flushes, power and identification.
const HARMLESS: [u8; 18] = [
    0x20, 0x24, 0x25, 0x30, 0x34, 0x35, 0x40, 0x42, 0xc8, 0xca, 0xe0, 0xe1, 0xe2, 0xe3, 0xe5, 0xe7, 0xea,
    0xec,
];
/// Sectors of a long command, regions that they are in, and their bytes.
const LONG: u16 = 512;
const REGIONS: u32 = 4;
const REGION: u32 = 0x1_0000;
/// What memory holds that nobody is to write; the disk is empty.
const KEPT: u32 = 0x5a5a_5a5a;
/// Where no memory of this guest's is: behind its RAM, beside the local APIC, at the end.
const ELSEWHERE: [u32; 4] = [0x0800_0000, 0x7fff_0000, 0xfee0_0000, 0xffff_0000];

/// The disk's registers, and own memory for its bus master.
struct Disk {
    function: Function,
    command: u16,
    control: u16,
    master: u16,
    table: u32,
    page: u32,
}

impl Disk {
    fn find(boot: &BootInfo) -> Option<Self> {
        let function = pci::find(|function| function.class() >> 8 == 0x0101)?;
        function.enable();
        let (start, _) = boot.spare();
        let table = start.next_multiple_of(0x1_0000) as u32;
        let [command, control, master] = [0, 1, 4].map(|bar| function.ports(bar));
        let disk = Self { function, command, control: control + 2, master, table, page: table + 0x1_0000 };
        disk.reset();
        Some(disk)
    }

    /// Begins anew, without interrupts.
    fn reset(&self) {
        outb(self.master, 0);
        outb(self.control, 0x06);
        outb(self.control, 0x02);
    }

    /// Waits until the disk is not busy. Returns its status.
    fn settle(&self) -> u8 {
        wait_for(PATIENCE, || inb(self.control) & BUSY == 0);
        inb(self.command + 7)
    }

    /// Writes parameters and command: `long` for 48 bits.
    fn command(&self, code: u8, lba: u64, count: u16, long: bool) {
        let [l, m, h, ll, mm, hh, ..] = lba.to_le_bytes();
        let [c, cc] = count.to_le_bytes();
        outb(self.command + 6, if long { 0xe0 } else { 0xe0 | ll & 0xf });
        for (offset, value) in (2..).zip([cc, ll, mm, hh]) {
            if long {
                outb(self.command + offset, value);
            }
        }
        for (offset, value) in (2..).zip([c, l, m, h]) {
            outb(self.command + offset, value);
        }
        outb(self.command + 7, code);
    }

    /// Moves sectors by a table of one region. True if the disk was content.
    fn dma(&self, (code, direction): (u8, u8), lba: u64, count: u16, memory: u32) -> bool {
        put(self.table.into(), memory);
        put(u64::from(self.table) + 4, 1 << 31 | (u32::from(count) * 512) & 0xffff);
        self.begin((code, direction), lba, count);
        self.end()
    }

    /// Begins to move sectors, as the table says.
    fn begin(&self, (code, direction): (u8, u8), lba: u64, count: u16) {
        outl(self.master + 4, self.table);
        outb(self.master, direction);
        self.command(code, lba, count, matches!(code, 0x25 | 0x35));
        outb(self.master, direction | START);
    }

    /// Begins to move the most sectors that move at once.
    fn begin_long(&self, kind: (u8, u8), memory: u32) {
        for region in 0..REGIONS {
            let entry = u64::from(self.table + 8 * region);
            put(entry, memory + region * REGION);
            put(entry + 4, u32::from(region + 1 == REGIONS) << 31);
        }
        self.begin(kind, 0, LONG);
    }

    /// Waits for what was begun. True if the disk was content.
    fn end(&self) -> bool {
        let status = self.settle();
        outb(self.master, 0);
        if status & WANTS_DATA != 0 {
            self.reset();
        }
        status & (BUSY | FAILED | WANTS_DATA) == 0
    }

    /// Sectors that the guest's disk has.
    fn sectors(&self) -> u64 {
        self.command(0xec, 0, 0, false);
        self.settle();
        let mut words = [0u16; 256];
        words.iter_mut().for_each(|word| *word = inw(self.command));
        u64::from(words[60]) | u64::from(words[61]) << 16
    }
}

const READ: (u8, u8) = (0xc8, INTO_MEMORY);
const WRITE: (u8, u8) = (0xca, 0);
const READ_LONG: (u8, u8) = (0x25, INTO_MEMORY);
const WRITE_LONG: (u8, u8) = (0x35, 0);

/// Runs the attacks.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let Some(disk) = Disk::find(boot) else {
        println!("no disk");
        return;
    };
    let sectors = disk.sectors();
    println!("SLUICE-RESULT sectors={sectors}");
    let works = disk.dma(WRITE, 0, 1, disk.page) && disk.dma(READ, sectors - 1, 1, disk.page);
    println!("SLUICE-RESULT own_sectors={}", if works { "ok" } else { "bad" });
    outside(&disk, sectors, random);
    memory(&disk);
    codes(&disk, random);
    silent(&disk);
    anything(&disk, random);
    disk.reset();
    let works = disk.dma(WRITE, 0, 1, disk.page) && disk.dma(READ, sectors - 1, 1, disk.page);
    println!("SLUICE-RESULT own_sectors={}", if works { "ok" } else { "bad" });
}

/// Has the disk read into memory that the guest then takes back, in each way that there is: nothing may be written there any more. The disk has to be
/// slow, so that there is something left to be moved.
pub fn late(boot: &BootInfo) {
    let Some(disk) = Disk::find(boot) else {
        println!("no disk");
        return;
    };
    let words = || (disk.page..disk.page + REGIONS * REGION).step_by(4).map(u64::from);
    let keep = || words().for_each(|at| put(at, KEPT));
    let changed = || words().filter(|at| get(*at) != KEPT).count();
    keep();
    disk.begin_long(READ_LONG, disk.page);
    let worked = disk.end() && changed() == words().count();
    println!("SLUICE-RESULT long_read={}", if worked { "ok" } else { "bad" });
    let stop = |disk: &Disk| outb(disk.master, 0);
    let leave = |disk: &Disk| disk.function.write(pci::COMMAND, pci::COMMAND_IO | pci::COMMAND_SILENT);
    let ways: [fn(&Disk); 4] = [stop, Disk::reset, leave, |disk| disk.function.write(pci::COMMAND, 0)];
    let mut score = Score::new("late");
    let mut busy = 0;
    for (round, way) in (0..).zip(ways) {
        // What was not done for a while is done at once, and then not for long.
        disk.dma(READ, 0, 1, disk.page);
        disk.begin_long(READ_LONG, disk.page);
        sleep(round * 1_000_000);
        busy += u32::from(inb(disk.control) & BUSY != 0);
        way(&disk);
        keep();
        sleep(3_500_000_000);
        score.add(changed() != 0);
        disk.function.enable();
        disk.reset();
    }
    drop(score);
    println!("SLUICE-RESULT busy={busy}");
    let works = disk.dma(WRITE, 0, 1, disk.page) && disk.dma(READ, disk.sectors() - 1, 1, disk.page);
    println!("SLUICE-RESULT own_sectors={}", if works { "ok" } else { "bad" });
}

/// Has the disk read into all of its spare memory, from its end, until it is destroyed.
pub fn forever(boot: &BootInfo) {
    let Some(disk) = Disk::find(boot) else {
        println!("no disk");
        return;
    };
    // What is read is not zero.
    (disk.page..disk.page + REGIONS * REGION).step_by(4).for_each(|at| put(at.into(), KEPT));
    disk.begin_long(WRITE_LONG, disk.page);
    println!("SLUICE-RESULT written={}", if disk.end() { "ok" } else { "bad" });
    disk.dma(READ, 0, 1, disk.page);
    println!("SLUICE-RESULT writes=now");
    let end = boot.spare().1 as u32;
    for at in (disk.page..=end - REGIONS * REGION).rev().step_by(REGION as usize).cycle() {
        disk.begin_long(READ_LONG, at);
        disk.end();
    }
}

/// Sectors that are not its own, near and far.
fn outside(disk: &Disk, sectors: u64, random: &mut Random) {
    let mut score = Score::new("sectors");
    for _ in 0..500 {
        let count = 1 + random.below(128) as u16;
        let lba = match random.below(4) {
            0 => sectors - u64::from(count) + 1 + random.below(count.into()),
            1 => sectors + random.below(1 << 20),
            2 => (1 << 28) - 1 - random.below(1 << 20),
            _ => (1 << 48) - 1 - random.below(1 << 40),
        };
        let short = lba + u64::from(count) <= 1 << 28;
        let kinds = [
            if short { READ } else { READ_LONG },
            if short { WRITE } else { WRITE_LONG },
            READ_LONG,
            WRITE_LONG,
        ];
        score.add(disk.dma(kinds[random.below(4) as usize], lba, count, disk.page));
    }
    // 65,536 and 256 sectors are written as 0.
    for kind in [READ_LONG, WRITE_LONG] {
        score.add(disk.dma(kind, sectors - 255, 0, disk.page));
    }
}

/// Memory that is not its own.
fn memory(disk: &Disk) {
    let mut score = Score::new("memory");
    for place in ELSEWHERE {
        for kind in [READ, WRITE, READ_LONG, WRITE_LONG] {
            score.add(disk.dma(kind, 0, 8, place));
        }
    }
    // The table itself.
    for place in ELSEWHERE {
        outl(disk.master + 4, place);
        outb(disk.master, INTO_MEMORY);
        disk.command(0xc8, 0, 1, false);
        outb(disk.master, INTO_MEMORY | START);
        score.add(disk.settle() & FAILED == 0);
        outb(disk.master, 0);
    }
}

/// Commands for the whole disk: firmware, security, capacity, power, features, and what nobody has defined.
fn codes(disk: &Disk, random: &mut Random) {
    let mut score = Score::new("codes");
    for code in (0..=u8::MAX).filter(|code| !HARMLESS.contains(code)) {
        for features in [0, random.below(3) as u8, random.below(256) as u8] {
            // Transfer modes are the guest's own.
            let features = if code == 0xef && features == 3 { 4 } else { features };
            outb(disk.command + 1, features);
            disk.command(code, random.below(64), 1, false);
            let status = disk.settle();
            score.add(status & FAILED == 0);
            if status & (BUSY | WANTS_DATA) != 0 {
                disk.reset();
            }
        }
    }
}

/// Data for memory of its own, with the bus master off in its configuration.
fn silent(disk: &Disk) {
    let mut score = Score::new("silent");
    disk.function.write(pci::COMMAND, pci::COMMAND_IO | pci::COMMAND_SILENT);
    for kind in [READ, WRITE] {
        put(disk.page.into(), 0x5a5a_5a5a);
        let moved = disk.dma(kind, 0, 1, disk.page);
        score.add(moved || get(disk.page.into()) != 0x5a5a_5a5a);
    }
    disk.function.enable();
}

/// Any value anywhere, at any time; of its own sectors and memory it may do what it likes.
fn anything(disk: &Disk, random: &mut Random) {
    let mut tally = Tally::default();
    for _ in 0..20_000u32 {
        let (value, kind) = (random.next(), random.below(8));
        let (command, master) =
            (disk.command + random.below(8) as u16, disk.master + random.below(16) as u16);
        let harmless = HARMLESS[random.below(18) as usize];
        tally.attempt(|| match kind {
            0 => outb(disk.command + 7, harmless),
            1 => outb(disk.master, value as u8),
            2 => outb(disk.control, value as u8),
            3 => outl(disk.master + 4, value as u32 & 0x1fff_fffc),
            4 => outb(command, value as u8),
            5 => outw(disk.command, value as u16),
            6 => outb(master, value as u8),
            _ => {
                inw(disk.command);
                inb(disk.command + 7);
            }
        });
    }
    tally.report("anything");
}
