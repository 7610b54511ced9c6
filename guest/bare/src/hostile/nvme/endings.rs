//! Resets, floods, silence, and any value anywhere.

use super::super::{Score, Tally};
use super::{Guest, HELD, MOST, PAGE, fill, holds};
use crate::console::println;
use crate::dma::memory::{get, put, put64};
use crate::machine::{self, rdtsc};
use crate::nvme::{self, Command, DATASET, DEPTH, FLUSH, READ, WRITE, ZEROES, admin};
use crate::pci;

/// Ticks without an end of doorbells.
const FLOOD: u64 = 2_000_000_000;

impl Guest<'_> {
    /// Resets while the disk reads into pages, which are used for something else as soon as the controller is off.
    pub fn resets(&mut self) {
        let mut score = Score::new("resets");
        for round in 0..24 {
            let mut queue = self.disk.io;
            // Nobody wrote these blocks: they are zeros.
            for slot in (0..32).chain(0..self.random.below(30)) {
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
    pub fn flood(&mut self) {
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
    pub fn silent(&mut self) {
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
    pub fn anything(&mut self) {
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
