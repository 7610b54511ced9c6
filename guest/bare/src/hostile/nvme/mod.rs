//! A part of a shared NVMe disk, driven by who wants the rest of it: blocks outside the part, memory that is not the
//! guest's, lists and commands that change after the doorbell, queues and doorbells that are nowhere, commands for the
//! whole disk, resets in the middle of all that; then any value in any register and command.
//!
//! Source: NVM Express Base Specification 1.4, 4.3 (PRP lists), 5 (admin commands), 5.7 (doorbells in memory),
//! 6 (commands for blocks).

mod blocks;
mod commands;
mod endings;
mod memory;
mod queues;

use super::pages::{PAGE, fill, holds};
use crate::console::println;
use crate::dma::memory::{Own, get, put, put64};
use crate::entry::BootInfo;
use crate::machine;
use crate::nvme::{Command, Controller, DATASET, DEPTH, FLUSH, READ, WRITE, ZEROES, admin};
use crate::random::Random;

/// Blocks of a page.
const BLOCKS: u32 = 8;
/// Most pages that a command moves.
const MOST: u64 = 128;
/// Pages of the commands that are changed while they are under way.
const LONG: u64 = 16;
/// What memory holds before something is read into it.
const HELD: u32 = 0x5a5a_5a5a;
/// Ticks for which completions are not taken: longer than anybody waits for a disk.
const HOARD: u64 = 95_000_000_000;

/// Runs the attacks.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let mut own = Own::new(boot);
    let Some(disk) = Controller::open(&mut own) else {
        println!("no disk");
        return;
    };
    let [page, list, second] = [(); 3].map(|()| own.take(PAGE));
    let area = own.take(MOST * PAGE);
    let megabytes: u64 = boot.argument("memory").and_then(|text| text.parse().ok()).unwrap_or(768);
    let machine = megabytes << 20;
    let mut guest = Guest { disk, own, page, list, second, area, blocks: 0, machine, unanswered: 0, random };
    guest.blocks = guest.size();
    println!("SLUICE-RESULT blocks={}", guest.blocks);
    guest.works();
    guest.outside();
    guest.memory();
    guest.misaligned();
    guest.rewritten();
    guest.raced();
    guest.queues();
    guest.nowhere();
    guest.doorbells();
    guest.shadows();
    guest.codes();
    guest.secrets(boot.argument("serial").unwrap_or("none"));
    guest.features();
    guest.works();
    guest.resets();
    guest.flood();
    guest.silent();
    guest.anything();
    guest.disk.restart();
    guest.works();
    println!("SLUICE-RESULT unanswered={}", guest.unanswered);
}

/// Commands whose completions it never takes: the disk has done them, and cannot say so.
pub fn hoard(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let Some(mut disk) = Controller::open(&mut own) else {
        println!("no disk");
        return;
    };
    let area = own.take(PAGE);
    let mut queue = disk.io;
    // Room for one.
    disk.begin();
    let create = |operation, at, size: u32, options| Command {
        operation,
        pages: [at, 0],
        words: [size << 16 | 1, options, 0, 0, 0, 0],
        ..Command::default()
    };
    disk.admin_command(create(admin::CREATE_COMPLETION, queue.completion, 1, 1));
    disk.admin_command(create(admin::CREATE_SUBMISSION, queue.submission, DEPTH - 1, 1 << 16 | 1));
    queue = disk.io;
    for block in 0..u64::from(DEPTH) - 2 {
        disk.submit(&mut queue, Command::blocks(READ, block, 1, [area, 0]));
    }
    println!("SLUICE-RESULT hoards=now");
    machine::sleep(HOARD);
    // It is the guest's own loss: once they are taken, all goes on.
    let works = disk.restart() && disk.command(Command::blocks(READ, 0, 1, [area, 0])) == Some(0);
    println!("SLUICE-RESULT own_blocks={}", if works { "ok" } else { "bad" });
}

struct Guest<'a> {
    disk: Controller,
    own: Own,
    /// Own memory: three pages, and as many as a command moves.
    page: u64,
    list: u64,
    second: u64,
    area: u64,
    /// How many the guest's disk has.
    blocks: u64,
    /// Bytes of the machine's memory.
    machine: u64,
    /// Commands that should have been answered, and were not.
    unanswered: u32,
    random: &'a mut Random,
}

impl Guest<'_> {
    /// Has a command carried out. Whether it was.
    fn tell(&mut self, command: Command) -> bool {
        let status = self.disk.command(command);
        self.judge(status, &command)
    }

    /// As [`Self::tell`], by the admin queue.
    fn administer(&mut self, command: Command) -> bool {
        let status = self.disk.admin_command(command);
        self.judge(status, &command)
    }

    fn judge(&mut self, status: Option<u32>, command: &Command) -> bool {
        if status.is_none() {
            println!("no answer: {:#x} {:#x?}", command.operation, command.words);
            self.unanswered += 1;
            self.disk.restart();
        }
        status == Some(0)
    }

    /// As [`Self::tell`], for what must be refused: nothing may have moved into the pages of the list either.
    fn gets(&mut self, command: Command) -> bool {
        fill(self.page, 1, HELD);
        self.tell(command) || command.operation == READ && !holds(self.page, 1, HELD)
    }

    /// A list of pages of its own.
    fn make_list(&self, pages: u64) {
        (0..pages).for_each(|index| put64(self.list + 8 * index, self.area + index * PAGE));
    }

    /// How many blocks the guest's disk has.
    fn size(&mut self) -> u64 {
        let pages = [self.page, 0];
        self.administer(Command { operation: admin::IDENTIFY, namespace: 1, pages, ..Command::default() });
        u64::from(get(self.page)) | u64::from(get(self.page + 4)) << 32
    }

    /// The legal way: the first and the last blocks, written and read, by both entries and by a list.
    fn works(&mut self) {
        self.make_list(LONG);
        let mut works = self.tell(Command { operation: FLUSH, namespace: 1, ..Command::default() });
        for (first, pages) in [(0, 1), (self.blocks - 8, 1), (8, 2), (24, LONG)] {
            let stamp = self.random.next() as u32;
            fill(self.page, 1, stamp);
            fill(self.area, LONG, stamp);
            let entries = if pages == 2 { [self.page, self.area] } else { [self.page, self.list] };
            works &= self.tell(Command::blocks(WRITE, first, pages as u32 * BLOCKS, entries));
            fill(self.page, 1, HELD);
            fill(self.area, LONG, HELD);
            works &= self.tell(Command::blocks(READ, first, pages as u32 * BLOCKS, entries));
            works &= holds(self.page, 1, stamp) && holds(self.area, pages - 1, stamp);
            works &= holds(self.area + (pages - 1) * PAGE, LONG + 1 - pages, HELD);
        }
        works &= self.tell(Command::blocks(ZEROES, self.blocks - 8, 8, [0; 2]));
        works &= self.tell(self.dataset(&[(self.blocks - 16, 8), (16, 8)], 4));
        println!("SLUICE-RESULT own_blocks={}", if works { "ok" } else { "bad" });
    }

    /// Dataset Management of these ranges.
    fn dataset(&self, ranges: &[(u64, u32)], action: u32) -> Command {
        for (at, (first, blocks)) in (self.page..).step_by(16).zip(ranges) {
            put(at, 0);
            put(at + 4, *blocks);
            put64(at + 8, *first);
        }
        let words = [ranges.len() as u32 - 1, action, 0, 0, 0, 0];
        Command { operation: DATASET, namespace: 1, pages: [self.page, 0], words }
    }
}
