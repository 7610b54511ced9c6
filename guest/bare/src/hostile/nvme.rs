//! A part of a shared NVMe disk, driven by who wants the rest of it: blocks outside the part, memory that is not the
//! guest's, lists and commands that change after the doorbell, queues and doorbells that are nowhere, commands for the
//! whole disk, resets in the middle of all that; then any value in any register and command.
//!
//! Source: NVM Express Base Specification 1.4, 4.3 (PRP lists), 5 (admin commands), 5.7 (doorbells in memory),
//! 6 (commands for blocks).

use super::{Score, Tally};
use crate::console::println;
use crate::dma::memory::{Own, get, put, put64};
use crate::dma::targets;
use crate::entry::BootInfo;
use crate::machine::{self, rdtsc, wrmsr};
use crate::nvme::{self, Command, Controller, DATASET, DEPTH, FLUSH, READ, WRITE, ZEROES, admin};
use crate::pci;
use crate::random::Random;

const PAGE: u64 = 4096;
/// Blocks of a page.
const BLOCKS: u32 = 8;
/// Most pages that a command moves.
const MOST: u64 = 128;
/// Pages of the commands that are changed while they are under way.
const LONG: u64 = 16;
/// What memory holds before something is read into it.
const HELD: u32 = 0x5a5a_5a5a;
/// Ticks without an end of doorbells.
const FLOOD: u64 = 2_000_000_000;
/// Where the second processor changes a list: below 1 MiB, for its processor mode.
const LOW_LIST: u64 = 0x7_0000;
/// Where it begins.
const LOW_CODE: u64 = 0x6_0000;
/// Not this guest's, and memory of the machine's.
const ELSEWHERE: u64 = 0x1000_0000;

/// Admin commands that are offered.
const OFFERED: [u32; 11] = [
    admin::DELETE_SUBMISSION,
    admin::CREATE_SUBMISSION,
    admin::LOG,
    admin::DELETE_COMPLETION,
    admin::CREATE_COMPLETION,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::EVENT,
    admin::DOORBELLS,
];

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

/// Fills whole pages.
fn fill(at: u64, pages: u64, value: u32) {
    (at..at + pages * PAGE).step_by(4).for_each(|at| put(at, value));
}

/// Whether all of some pages has that value.
fn holds(at: u64, pages: u64, value: u32) -> bool {
    (at..at + pages * PAGE).step_by(4).all(|at| get(at) == value)
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

    // --- blocks -------------------------------------------------------------------------------

    /// Blocks that are not its own, near and far.
    fn outside(&mut self) {
        let (blocks, mut score) = (self.blocks, Score::new("blocks"));
        fill(self.area, MOST, HELD);
        (0..512).for_each(|index| put64(self.list + 8 * index, self.area + index % MOST * PAGE));
        let edges = [
            (blocks, 1),
            (blocks - 1, 2),
            (blocks - 7, 8),
            (blocks - 127, 128),
            (1, blocks),
            (0, blocks + 1),
            (0, 65_536),
            (blocks, 65_536),
            (u64::MAX, 1),
            (u64::MAX, 2),
            (u64::MAX - 7, 8),
            (u64::MAX - 6, 8),
            (u64::MAX - 65_534, 65_536),
            (1 << 63, 8),
            (1 << 48, 1),
            ((1 << 48) - 1, 2),
            (1 << 32, 8),
            ((1 << 32) + 16, 8),
            // Where its part would begin again, and the disk, if sums had no more than 64 bits.
            (blocks.wrapping_neg(), 8),
            (blocks.wrapping_neg() - 8, 8),
        ];
        for (first, count) in edges {
            self.try_blocks(&mut score, first, count as u32);
        }
        for _ in 0..100 {
            let count = 1 + self.random.below(128);
            let first = match self.random.below(4) {
                0 => blocks - count + 1 + self.random.below(count),
                1 => blocks + self.random.below(1 << 20),
                2 => (1 << self.random.below(64)) + blocks,
                _ => u64::MAX - self.random.below(1 << 40),
            };
            self.try_blocks(&mut score, first, count as u32);
        }
        // Ranges have 32 bits, and there may be many: one of them is enough.
        for (first, count) in [(0, u32::MAX), (8, u32::MAX - 7), (blocks - 1, u32::MAX), (u64::MAX, u32::MAX)]
        {
            score.add(self.tell(self.dataset(&[(first, count)], 4)));
        }
        for _ in 0..32 {
            let mut ranges = [(0, 8); 256];
            let (len, bad) = (1 + self.random.below(256), self.random.next());
            ranges[(bad % len) as usize] = (blocks - 4, 8);
            score.add(self.tell(self.dataset(&ranges[..len as usize], 4)));
        }
        // Namespaces of which there are none, or which are all.
        for namespace in [0, 2, 3, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let pages = [self.page, self.list];
            for operation in [READ, WRITE, ZEROES] {
                let command = Command { namespace, ..Command::blocks(operation, 0, 8, pages) };
                score.add(self.gets(command));
            }
            let command = self.dataset(&[(0, 8)], 4);
            score.add(self.tell(Command { namespace, ..command }));
            if namespace != u32::MAX {
                score.add(self.tell(Command { operation: FLUSH, namespace, ..Command::default() }));
            }
        }
        score.add(!holds(self.area, MOST, HELD));
    }

    fn try_blocks(&mut self, score: &mut Score, first: u64, count: u32) {
        let pages = [self.page, if count > 2 * BLOCKS { self.list } else { self.area }];
        for operation in [READ, WRITE, ZEROES] {
            score.add(self.gets(Command::blocks(operation, first, count, pages)));
        }
        score.add(self.tell(self.dataset(&[(first, count)], 4)));
    }

    // --- memory -------------------------------------------------------------------------------

    /// Memory that is not its own, for data and for lists.
    fn memory(&mut self) {
        let mut score = Score::new("memory");
        let (list, area, page, end) = (self.list, self.area, self.page, self.own.end());
        let long = LONG as u32 * BLOCKS;
        let registers = self.disk.registers;
        let places = targets::some(&self.own, self.machine).chain([registers, registers + 0x2000]);
        for at in places {
            for operation in [READ, WRITE] {
                let command = |count, pages| Command::blocks(operation, 0, count, pages);
                score.add(self.gets(command(1, [at, 0])));
                score.add(self.gets(command(8, [at, 0])));
                score.add(self.gets(command(8, [at + 0x800, page])));
                score.add(self.gets(command(16, [page, at])));
                score.add(self.gets(command(long, [page, at])));
                for index in [0, self.random.below(LONG - 1), LONG - 2] {
                    self.make_list(LONG);
                    put64(list + 8 * index, at);
                    score.add(self.gets(command(long, [page, list])));
                }
                // The second list.
                put64(list + 0xff0, area);
                put64(list + 0xff8, at);
                score.add(self.gets(command(long, [page, list + 0xff0])));
                // The end of its memory.
                score.add(self.gets(command(16, [end - PAGE + 0x800, end])));
            }
            let identify = |pages| Command {
                operation: admin::IDENTIFY,
                pages,
                words: [1, 0, 0, 0, 0, 0],
                ..Command::default()
            };
            score.add(self.administer(identify([at, 0])));
            score.add(self.administer(identify([page + 0x800, at])));
            let words = [2 | 127 << 16, 0, 0, 0, 0, 0];
            let (operation, namespace) = (admin::LOG, u32::MAX);
            score.add(self.administer(Command { operation, namespace, pages: [at, 0], words }));
            let ranges = self.dataset(&[(0, 8); 200], 4);
            score.add(self.tell(Command { pages: [at, 0], ..ranges }));
            score.add(self.tell(Command { pages: [page + 0x800, at], ..ranges }));
        }
    }

    /// Addresses that begin where none can, and lists that go on in themselves.
    fn misaligned(&mut self) {
        let mut score = Score::new("misaligned");
        let (list, area, page) = (self.list, self.area, self.page);
        let long = LONG as u32 * BLOCKS;
        for operation in [READ, WRITE] {
            let command = |count, pages| Command::blocks(operation, 0, count, pages);
            for offset in [1, 2, 3, 0x801] {
                score.add(self.gets(command(8, [area + offset, area + PAGE])));
            }
            for offset in [1, 4, 0x800, 0xfff] {
                score.add(self.gets(command(16, [page, area + offset])));
                self.make_list(LONG);
                put64(list + 8 * 3, area + offset);
                score.add(self.gets(command(long, [page, list])));
            }
            for offset in [1, 4, 0xffc] {
                score.add(self.gets(command(long, [page, list + offset])));
            }
            // A list of one entry, which leads to itself.
            put64(list + 0xff8, list + 0xff8);
            score.add(self.gets(command(long, [page, list + 0xff8])));
        }
    }

    /// List and command are changed when the doorbell was rung: what moves is what was there, or nothing.
    fn rewritten(&mut self) {
        let mut score = Score::new("rewritten");
        for round in 0..200 {
            let operation = if round % 2 == 0 { READ } else { WRITE };
            score.add(self.long(operation, self.list, |guest, slot| {
                let entry = 1 + guest.random.below(LONG - 2);
                put64(guest.list + 8 * entry, if round & 2 == 0 { ELSEWHERE } else { guest.own.end() });
                put64(slot + 24, ELSEWHERE);
                put64(slot + 32, ELSEWHERE);
                put64(slot + 40, guest.blocks);
            }));
        }
    }

    /// Reads or writes some pages by a list, during which `change` is done; the entry of the command is at the address that it is told. True: the
    /// disk says that all has moved, and it was not to or from own memory.
    fn long(&mut self, operation: u32, list: u64, change: impl FnOnce(&mut Self, u64)) -> bool {
        let (count, stamp) = (LONG as u32 * BLOCKS, self.random.next() as u32);
        self.make_list(LONG);
        // The stamp is on the disk before it is read, and nowhere but in memory before it is written.
        fill(self.page, 1, stamp);
        fill(self.area, LONG, stamp);
        if operation == READ {
            self.tell(Command::blocks(WRITE, 64, count, [self.page, self.list]));
            fill(self.area, LONG, HELD);
        }
        let mut queue = self.disk.io;
        let slot = queue.submission + u64::from(queue.tail) * 64;
        self.disk.submit(&mut queue, Command::blocks(operation, 64, count, [self.page, list]));
        change(self, slot);
        let status = self.disk.complete(&mut queue, nvme::PATIENCE);
        self.disk.io = queue;
        let command = Command::blocks(operation, 64, count, [self.page, list]);
        if !self.judge(status, &command) {
            return false;
        }
        if operation == WRITE {
            fill(self.area, LONG, HELD);
            self.make_list(LONG);
            self.tell(Command::blocks(READ, 64, count, [self.page, self.list]));
        }
        !(holds(self.page, 1, stamp) && holds(self.area, LONG - 1, stamp))
    }

    /// The second processor changes an entry of the list all the time: to memory that is not the guest's, and back.
    fn raced(&mut self) {
        let mut score = Score::new("raced");
        let (mut done, mut refused) = (0, 0);
        start_changing(self.area as u32, ELSEWHERE as u32);
        for round in 0..400 {
            (1..LONG).for_each(|index| put64(LOW_LIST + 8 * index, self.area + index * PAGE));
            let operation = if round % 2 == 0 { READ } else { WRITE };
            let before = self.disk.io.head;
            let succeeded = self.long(operation, LOW_LIST, |_, _| ());
            // The status of the command itself is the one before that of the look at what it wrote.
            let at = self.disk.io.completion + 16 * u64::from(before + u32::from(operation == READ)) % 1024;
            if get(at + 12) >> 17 == 0 {
                done += 1
            } else {
                refused += 1
            }
            score.add(succeeded);
        }
        let changes = stop_changing();
        drop(score);
        let both = if done > 0 && refused > 0 { "ok" } else { "bad" };
        println!(
            "SLUICE-RESULT raced_done={done} raced_refused={refused} raced_both={both} raced_changes={changes}"
        );
    }

    // --- queues -------------------------------------------------------------------------------

    /// Queues that nobody can have.
    fn queues(&mut self) {
        let mut score = Score::new("queues");
        let (at, full) = (self.area, (DEPTH - 1) << 16);
        // The first pair is there: it cannot be created again, nor its completion queue go first.
        let create = |operation, place, size, options| Command {
            operation,
            pages: [place, 0],
            words: [size, options, 0, 0, 0, 0],
            ..Command::default()
        };
        let (completion, submission) = (admin::CREATE_COMPLETION, admin::CREATE_SUBMISSION);
        for number in [0, 1, 2, 3, 9, 0x100, 0xffff] {
            score.add(self.administer(create(completion, at, full | number, 1)));
            score.add(self.administer(create(submission, at, full | number, number << 16 | 1)));
            score.add(self.administer(create(admin::DELETE_COMPLETION, 0, number, 0)));
            if number != 1 {
                score.add(self.administer(create(admin::DELETE_SUBMISSION, 0, number, 0)));
            }
        }
        self.disk.begin();
        score.add(self.administer(create(submission, at, full | 1, 1 << 16 | 1)));
        for size in [0, DEPTH, DEPTH + 1, 0x0fff, 0xffff] {
            score.add(self.administer(create(completion, at, size << 16 | 1, 1)));
        }
        for offset in [1, 4, 64, 0x800, 0xfff] {
            score.add(self.administer(create(completion, at + offset, full | 1, 1)));
        }
        // Not in one piece; messages of which there are none.
        for options in [0, 2, 2 << 16 | 3, 9 << 16 | 3, 0xffff_0003] {
            score.add(self.administer(create(completion, at, full | 1, options)));
        }
        self.administer(create(completion, self.disk.io.completion, full | 1, 1));
        for size in [0, DEPTH, DEPTH + 1, 0x0fff, 0xffff] {
            score.add(self.administer(create(submission, at, size << 16 | 1, 1 << 16 | 1)));
        }
        for offset in [1, 4, 64, 0x800, 0xfff] {
            score.add(self.administer(create(submission, at + offset, full | 1, 1 << 16 | 1)));
        }
        // Not in one piece; completion queues of which there are none.
        for options in [0, 1 << 16, 1, 2 << 16 | 1, 0xffff_0001] {
            score.add(self.administer(create(submission, at, full | 1, options)));
        }
        // Admin queues of one entry.
        for sizes in [0, DEPTH - 1, (DEPTH - 1) << 16] {
            self.disk.enable(false);
            put(self.disk.registers + 0x24, sizes);
            score.add(self.disk.enable(true));
        }
        self.disk.restart();
    }

    /// Queues in what is not its memory: no command is found there, and nothing arrives.
    fn nowhere(&mut self) {
        let mut score = Score::new("nowhere");
        let registers = self.disk.registers;
        for at in targets::some(&self.own, self.machine).chain([registers, registers + 0x2000]) {
            // Commands.
            self.disk.begin();
            if self.disk.create(1, self.disk.io.completion, at) {
                self.disk.doorbell(&self.disk.io, false, 8);
                self.disk.linger();
            }
            score.add(self.disk.completed(&mut self.disk.io.clone()).is_some());
            // Completions.
            self.disk.begin();
            if self.disk.create(1, at, self.disk.io.submission) {
                let mut queue = self.disk.io;
                for _ in 0..8 {
                    self.disk.submit(&mut queue, Command::blocks(READ, 0, 8, [self.area, 0]));
                }
                self.disk.linger();
            }
            score.add(false);
            // Those of the admin.
            self.disk.enable(false);
            self.disk.place_admin(at, at + PAGE);
            self.disk.enable(true);
            self.disk.doorbell(&self.disk.admin, false, 8);
            self.disk.linger();
            score.add(false);
        }
        self.disk.restart();
    }

    /// Whether it was told of a command that it never gave.
    fn hears(&mut self) -> bool {
        let (mut admin, mut io) = (self.disk.admin, self.disk.io);
        self.disk.completed(&mut admin).is_some() | self.disk.completed(&mut io).is_some()
    }

    /// Doorbells that there are none of, and entries that a queue has not got.
    fn doorbells(&mut self) {
        let mut score = Score::new("doorbells");
        let first = self.disk.registers + nvme::DOORBELLS;
        for index in 0..0x400 {
            let value = self.random.wild() as u32;
            put(first + 4 * index, if index < 4 { value | DEPTH } else { value });
        }
        for value in [DEPTH, DEPTH + 1, 0xff, 0xffff, 0x1_0000, 0x8000_0000, u32::MAX] {
            (0..4).for_each(|index| put(first + 4 * index, value));
        }
        // Other widths, and between two.
        for offset in 0..16 {
            unsafe {
                ((first + offset) as *mut u8).write_volatile(0xff);
                ((first + offset) as *mut u16).write_volatile(0xffff);
                ((first + offset) as *mut u64).write_volatile(u64::MAX);
            }
        }
        self.disk.linger();
        score.add(self.hears());
        // As if nothing had been.
        score.add(!self.tell(Command::blocks(READ, 0, 8, [self.page, 0])));
    }

    /// Doorbells in memory: memory that is not its own, and values that cannot be.
    fn shadows(&mut self) {
        let mut score = Score::new("shadows");
        let (values, events) = (self.list, self.second);
        let command = |pages| Command { operation: admin::DOORBELLS, pages, ..Command::default() };
        for offset in [4, 0x800] {
            score.add(self.administer(command([values + offset, events])));
            score.add(self.administer(command([values, events + offset])));
        }
        let registers = self.disk.registers;
        for at in targets::some(&self.own, self.machine).chain([registers, registers + 0x2000]) {
            for pages in [[at, events], [values, at], [at, at]] {
                fill(values, 1, 0);
                fill(events, 1, HELD);
                self.disk.admin_command(command(pages));
                // It still has the doorbells themselves.
                self.tell(Command::blocks(READ, 0, 8, [self.page, 0]));
                self.disk.restart();
                score.add(false);
            }
        }
        fill(values, 1, 0);
        self.disk.admin_command(command([values, events]));
        // Commands that do nothing, wherever a tail may lead.
        for slot in 0..u64::from(DEPTH) {
            put(self.disk.io.submission + 64 * slot, FLUSH);
            put(self.disk.io.submission + 64 * slot + 4, 1);
        }
        for round in 0..2_000 {
            let value = self.random.wild() as u32;
            put(values + 8, if round % 3 == 0 { value % DEPTH } else { value });
            put(values + 12, self.random.wild() as u32);
            put(events + 8, self.random.wild() as u32);
            self.disk.doorbell(&self.disk.io, round % 2 == 0, value);
        }
        self.disk.restart();
        score.add(!self.tell(Command::blocks(READ, 0, 8, [self.page, 0])));
    }

    // --- commands -----------------------------------------------------------------------------

    /// Commands that are not offered, as far as they are defined and further; and data by other means than pages.
    fn codes(&mut self) {
        let mut score = Score::new("codes");
        fill(self.area, MOST, HELD);
        self.make_list(LONG);
        let words = [[0; 6], [1, 0, 0, 0, 0, 0], [0x7f, 0, 0, 0, 0, 0], [u32::MAX; 6]];
        for operation in (0..0x100).filter(|operation| !OFFERED.contains(operation)) {
            for namespace in [0, 1, u32::MAX] {
                for words in words {
                    let pages = [self.area, self.area + PAGE];
                    score.add(self.administer(Command { operation, namespace, pages, words }));
                }
            }
        }
        for operation in (0..0x100).filter(|code| ![FLUSH, WRITE, READ, ZEROES, DATASET].contains(code)) {
            for namespace in [0, 1, u32::MAX] {
                for words in words {
                    let pages = [self.area, self.area + PAGE];
                    score.add(self.tell(Command { operation, namespace, pages, words }));
                }
            }
        }
        // Half of a fused operation, scatter-gather lists, both.
        for flags in [1 << 8, 2 << 8, 3 << 8, 1 << 14, 2 << 14, 3 << 14, 1 << 8 | 1 << 14] {
            for operation in [READ, WRITE, ZEROES, DATASET, FLUSH] {
                let command = Command::blocks(operation | flags, 0, 8, [self.area, 0]);
                score.add(self.tell(command));
            }
            for operation in [admin::IDENTIFY, admin::LOG, admin::GET_FEATURES] {
                let words = [1, 0, 0, 0, 0, 0];
                let pages = [self.area, 0];
                let operation = operation | flags;
                score.add(self.administer(Command { operation, pages, words, ..Command::default() }));
            }
        }
        // Protection, which goes with metadata.
        for bit in 26..30 {
            for operation in [READ, WRITE, ZEROES] {
                let mut command = Command::blocks(operation, 0, 8, [self.area, 0]);
                command.words[2] |= 1 << bit;
                score.add(self.tell(command));
            }
        }
        score.add(!holds(self.area, MOST, HELD));
    }

    /// What identifies the physical disk, anywhere in what can be asked for.
    fn secrets(&mut self, serial: &str) {
        let mut score = Score::new("secrets");
        for kind in 0..0x100 {
            for namespace in [0, 1, 2, u32::MAX] {
                for operation in [admin::IDENTIFY, admin::LOG] {
                    fill(self.area, 1, 0);
                    let dwords = if operation == admin::LOG { 1023 << 16 } else { 0 };
                    let words = [kind | dwords, 0, 0, 0, 0, 0];
                    let pages = [self.area, 0];
                    self.administer(Command { operation, namespace, pages, words });
                    score.add(self.shows(serial.as_bytes()));
                    // The log again, of a length that it has.
                    if operation == admin::LOG {
                        let words = [kind | 127 << 16, 0, 0, 0, 0, 0];
                        self.administer(Command { operation, namespace, pages, words });
                        score.add(self.shows(serial.as_bytes()));
                    }
                }
            }
        }
    }

    /// Whether the bytes are in the first page.
    fn shows(&self, wanted: &[u8]) -> bool {
        let page: &[u8] = unsafe { core::slice::from_raw_parts(self.area as *const u8, PAGE as usize) };
        page.windows(wanted.len()).any(|part| part == wanted)
    }

    /// Features of the whole disk's: all but the number of queues, events that never come, and the cache as it is.
    fn features(&mut self) {
        let mut score = Score::new("features");
        for feature in (0..0x100).filter(|feature| ![0x07, 0x0b].contains(feature)) {
            for (save, value) in [(0, 0), (0, u32::MAX), (1 << 31, 0), (0, 2)] {
                let words = [feature | save, value, 0, 0, 0, 0];
                let command =
                    Command { operation: admin::SET_FEATURES, namespace: 1, pages: [self.area, 0], words };
                let done = self.administer(command);
                // The cache can be set to what it is.
                score.add(done && (feature != 6 || value & 1 == 0));
            }
        }
    }

    // --- floods, resets, silence --------------------------------------------------------------

    /// Resets while the disk reads into pages, which are used for something else as soon as the controller is off.
    fn resets(&mut self) {
        let mut score = Score::new("resets");
        for round in 0..40 {
            let mut queue = self.disk.io;
            // Nobody wrote these blocks: they are zeros.
            for slot in 0..4 + self.random.below(28) {
                let at = self.area + slot * 4 * PAGE;
                put64(self.list + 0x40 * slot, at + PAGE);
                put64(self.list + 0x40 * slot + 8, at + 2 * PAGE);
                put64(self.list + 0x40 * slot + 16, at + 3 * PAGE);
                let pages = [at, self.list + 0x40 * slot];
                self.disk.submit(&mut queue, Command::blocks(READ, 4096 + 32 * slot, 32, pages));
            }
            self.disk.io = queue;
            let off = self.disk.enable(false);
            fill(self.area, MOST, HELD);
            if round % 4 == 0 {
                machine::pause(20_000_000);
            }
            self.disk.linger();
            score.add(!off || !holds(self.area, MOST, HELD));
            if !self.disk.restart() {
                score.add(true);
            }
        }
        // On and off without a look at the status.
        for _ in 0..200 {
            let mut queue = self.disk.io;
            self.disk.submit(&mut queue, Command::blocks(READ, 4096, 8, [self.area, 0]));
            let at = self.disk.registers + nvme::CONFIGURATION;
            [0, 0x46_0001, 0, 0x46_4001].into_iter().for_each(|value| put(at, value));
        }
        self.disk.restart();
    }

    /// Doorbells without end.
    fn flood(&mut self) {
        for slot in 0..u64::from(DEPTH) {
            let at = self.disk.io.submission + 64 * slot;
            (0..64).step_by(4).for_each(|offset| put(at + offset, 0));
            put(at, if slot % 2 == 0 { FLUSH } else { READ });
            put(at + 4, 1);
            put64(at + 24, self.area);
        }
        let (start, mut rung) = (rdtsc(), 0u64);
        while rdtsc().wrapping_sub(start) < FLOOD {
            self.disk.doorbell(&self.disk.io, false, self.random.below(DEPTH.into()) as u32);
            self.disk.doorbell(&self.disk.io, true, self.random.below(DEPTH.into()) as u32);
            rung += 2;
        }
        println!("SLUICE-RESULT rung={rung}");
        self.disk.restart();
    }

    /// Commands while the guest does not let it master the bus.
    fn silent(&mut self) {
        let mut score = Score::new("silent");
        let function = self.disk.function;
        let silent = pci::COMMAND_MEMORY | pci::COMMAND_SILENT;
        for operation in [READ, WRITE, ZEROES, FLUSH] {
            fill(self.area, 1, HELD);
            function.write(pci::COMMAND, silent);
            let mut queue = self.disk.io;
            self.disk.submit(&mut queue, Command::blocks(operation, 4096, 8, [self.area, 0]));
            let status = self.disk.complete(&mut queue, 100_000_000);
            score.add(status.is_some() || !holds(self.area, 1, HELD));
            function.enable();
            self.disk.restart();
        }
        function.write(pci::COMMAND, silent);
        let mut queue = self.disk.admin;
        let (operation, words) = (admin::IDENTIFY, [1, 0, 0, 0, 0, 0]);
        let pages = [self.area, 0];
        self.disk.submit(&mut queue, Command { operation, pages, words, ..Command::default() });
        let status = self.disk.complete(&mut queue, 100_000_000);
        score.add(status.is_some() || !holds(self.area, 1, HELD));
        function.enable();
        self.disk.restart();
    }

    /// Any value anywhere, at any time; of its own blocks it may do what it likes.
    fn anything(&mut self) {
        let mut tally = Tally::default();
        let registers = self.disk.registers;
        for round in 0..20_000u32 {
            let (value, kind) = (self.random.wild(), self.random.below(16));
            let offset = self.random.below(0x4000);
            // Its own kernel is not what is attacked.
            let place = self.anywhere();
            match kind {
                // An entry of either queue, and its doorbell.
                0..8 => {
                    let queue = if kind < 6 { self.disk.io } else { self.disk.admin };
                    let slot = queue.submission + 64 * (value >> 32) % PAGE;
                    let code = [READ, WRITE, ZEROES, DATASET, FLUSH, 5, 1, 6, 9, 10, 0x7c];
                    put(slot, code[(value % 11) as usize] | self.random.next() as u32 & 0xffff_0000);
                    put(slot + 4, if value & 0x100 == 0 { 1 } else { value as u32 });
                    put64(slot + 24, place);
                    put64(slot + 32, self.anywhere());
                    (40..64).step_by(4).for_each(|at| put(slot + at, self.random.wild() as u32));
                    self.disk.doorbell(&queue, false, value as u32 % DEPTH);
                    self.disk.doorbell(&queue, true, self.random.wild() as u32 % DEPTH);
                }
                8 => put64(self.list + (value & 0xff8), place),
                9 => put64(registers + nvme::ADMIN_SUBMISSION + (value & 8), place),
                10 => put(registers + nvme::CONFIGURATION, value as u32),
                11 if round % 64 == 0 => {
                    self.disk.restart();
                }
                12 => {
                    tally.attempt(|| {
                        get(registers + (offset & 0x3ffc));
                    });
                }
                _ => {
                    let at = registers + offset;
                    let is_place =
                        (0x28..0x38).contains(&(offset & !7)) || offset < 0x30 && offset + 8 > 0x28;
                    tally.attempt(|| unsafe {
                        match value >> 60 & 3 {
                            _ if is_place => {}
                            0 => (at as *mut u8).write_volatile(value as u8),
                            1 => ((at & !1) as *mut u16).write_volatile(value as u16),
                            2 => ((at & !3) as *mut u32).write_volatile(value as u32),
                            _ => ((at & !7) as *mut u64).write_volatile(value),
                        }
                    });
                }
            }
        }
        tally.report("anything");
        self.disk.function.enable();
        self.disk.restart();
    }

    /// Any address, but of its own memory only what it can spare.
    fn anywhere(&mut self) -> u64 {
        let any = self.random.wild();
        if any.is_multiple_of(3) || any < self.own.end() {
            let at = self.area + self.random.below(MOST - 1) * PAGE;
            return if any & 0x80 == 0 { self.list } else { at };
        }
        any
    }
}

/// Has the second processor put both addresses into the first entry of the low list, in turn, until [`stop_changing`].
fn start_changing(own: u32, other: u32) {
    let [a, b, c, d] = own.to_le_bytes();
    let [e, f, g, h] = other.to_le_bytes();
    let [low, high] = ((LOW_LIST >> 4) as u16).to_le_bytes();
    // As many instructions, and turns of an emulator, follow the one move as the other.
    #[rustfmt::skip]
    let code = [
        0xfa,                                           // cli
        0xb8, low, high, 0x8e, 0xd8,                    // mov ax, list; mov ds, ax
        0x66, 0xc7, 0x06, 0, 0, a, b, c, d,             // mov dword [0], own
        0x66, 0xff, 0x06, 0x04, 0x10,                   // inc dword [0x1004]
        0x80, 0x3e, 0, 0x10, 0,                         // cmp byte [0x1000], 0
        0x75, 0x15,                                     // jne hlt
        0x66, 0xc7, 0x06, 0, 0, e, f, g, h,             // mov dword [0], other
        0x66, 0xff, 0x06, 0x08, 0x10,                   // inc dword [0x1008]
        0x80, 0x3e, 0, 0x10, 0,                         // cmp byte [0x1000], 0
        0x74, 0xd6,                                     // je the first move
        0xf4, 0xeb, 0xfd,                               // hlt; jmp hlt
    ];
    put64(LOW_LIST, own.into());
    (0..16).step_by(4).for_each(|offset| put(LOW_LIST + PAGE + offset, 0));
    for (at, byte) in (LOW_CODE..).zip(code) {
        unsafe { (at as *mut u8).write_volatile(byte) };
    }
    machine::x2apic();
    wrmsr(0x830, 1 << 32 | 0x4500);
    wrmsr(0x830, 1 << 32 | 0x4600 | LOW_CODE >> 12);
}

/// Returns how often there was another one.
fn stop_changing() -> u32 {
    put(LOW_LIST + PAGE, 1);
    machine::pause(10_000_000);
    get(LOW_LIST + PAGE + 8)
}
