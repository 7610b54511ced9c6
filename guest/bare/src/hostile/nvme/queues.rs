//! Queues and doorbells that there cannot be.

use super::super::Score;
use super::{Guest, HELD, PAGE, fill};
use crate::dma::memory::put;
use crate::dma::targets;
use crate::nvme::{self, Command, DEPTH, FLUSH, READ, admin};

impl Guest<'_> {
    /// Queues that nobody can have.
    pub fn queues(&mut self) {
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
    pub fn nowhere(&mut self) {
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
    pub fn doorbells(&mut self) {
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
    pub fn shadows(&mut self) {
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
}
