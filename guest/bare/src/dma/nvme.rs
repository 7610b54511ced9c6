//! NVM Express: blocks go from anywhere to the disk and from the disk to anywhere.
//!
//! Source: NVM Express Base Specification 1.4, 3.1 (registers), 4.1 to 4.3 (queues, commands, PRP lists), 5.3, 5.4
//! and 5.15 (admin commands), 6.9 and 6.15 (read, write).

use super::memory::{Own, fill, get, put, put64};
use super::{Engine, LEN};
use crate::machine::wait_for;
use crate::pci;

const CONFIGURATION: u64 = 0x14;
const STATUS: u64 = 0x1c;
const ADMIN_SIZES: u64 = 0x24;
const ADMIN_SUBMISSION: u64 = 0x28;
const ADMIN_COMPLETION: u64 = 0x30;
const DOORBELLS: u64 = 0x1000;

/// Enabled, entries of 64 and 16 bytes, pages of 4 KiB.
const ON: u32 = 1 | 6 << 16 | 4 << 20;
const READY: u32 = 1;
const FATAL: u32 = 2;
/// Entries of each queue.
const DEPTH: u32 = 64;

const CREATE_SUBMISSION: u32 = 1;
const CREATE_COMPLETION: u32 = 5;
const IDENTIFY: u32 = 6;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Ticks for a command: seconds.
const PATIENCE: u64 = 5_000_000_000;

#[derive(Clone, Copy, Default)]
struct Queue {
    submission: u64,
    completion: u64,
    number: u32,
    tail: u32,
    head: u32,
    /// Phase tag of an old entry.
    old: u32,
}

/// A command's own words.
#[derive(Clone, Copy, Default)]
struct Command {
    operation: u32,
    namespace: u32,
    pages: [u64; 2],
    words: [u32; 3],
}

/// The controller.
pub struct Nvme {
    registers: u64,
    stride: u64,
    admin: Queue,
    io: Queue,
    /// Own memory: a page.
    page: u64,
    busy: bool,
    at: u64,
}

impl Nvme {
    /// The first one there is.
    pub fn open(own: &mut Own) -> Option<Self> {
        let function = pci::find(|function| function.class() == 0x01_0802)?;
        function.enable();
        let registers = function.memory(0);
        let mut queue = |number| Queue {
            submission: own.take(4096),
            completion: own.take(4096),
            number,
            ..Queue::default()
        };
        let (admin, io) = (queue(0), queue(1));
        let stride = 4 << (get(registers + 4) & 0xf);
        let mut controller = Self { registers, stride, admin, io, page: own.take(4096), busy: false, at: 0 };
        controller.restart().then_some(controller)
    }

    fn enable(&self, on: bool) -> bool {
        put(self.registers + CONFIGURATION, if on { ON } else { 0 });
        let mut status = 0;
        // It may fail for good.
        let settled = wait_for(PATIENCE, || {
            status = get(self.registers + STATUS);
            (status & READY != 0) == on || on && status & FATAL != 0
        });
        settled && (status & READY != 0) == on
    }

    fn place_admin(&mut self, submission: u64, completion: u64) {
        put(self.registers + ADMIN_SIZES, (DEPTH - 1) << 16 | (DEPTH - 1));
        put64(self.registers + ADMIN_SUBMISSION, submission);
        put64(self.registers + ADMIN_COMPLETION, completion);
        for queue in [&mut self.admin, &mut self.io] {
            (queue.tail, queue.head, queue.old) = (0, 0, 0);
            (queue.completion..queue.completion + 4096).step_by(4).for_each(|at| put(at, 0));
        }
    }

    /// Begins anew, with queues in own memory.
    fn restart(&mut self) -> bool {
        self.enable(false);
        self.place_admin(self.admin.submission, self.admin.completion);
        self.enable(true) && self.create(1, self.io.completion, self.io.submission)
    }

    fn create(&mut self, number: u32, completion: u64, submission: u64) -> bool {
        let size = (DEPTH - 1) << 16 | number;
        let first = Command {
            operation: CREATE_COMPLETION,
            pages: [completion, 0],
            words: [size, 1, 0],
            ..Command::default()
        };
        let second = Command {
            operation: CREATE_SUBMISSION,
            pages: [submission, 0],
            words: [size, number << 16 | 1, 0],
            ..Command::default()
        };
        self.admin_command(first) && self.admin_command(second)
    }

    fn admin_command(&mut self, command: Command) -> bool {
        let mut queue = self.admin;
        let done = self.submit(&mut queue, command) && self.complete(&mut queue) == Some(0);
        self.admin = queue;
        done
    }

    fn doorbell(&self, queue: &Queue, completion: bool, value: u32) {
        let index = u64::from(queue.number * 2 + u32::from(completion));
        put(self.registers + DOORBELLS + index * self.stride, value);
    }

    fn submit(&self, queue: &mut Queue, command: Command) -> bool {
        let at = queue.submission + u64::from(queue.tail) * 64;
        (0..64).step_by(4).for_each(|offset| put(at + offset, 0));
        put(at, command.operation | queue.tail << 16);
        put(at + 4, command.namespace);
        put64(at + 24, command.pages[0]);
        put64(at + 32, command.pages[1]);
        for (index, word) in command.words.into_iter().enumerate() {
            put(at + 40 + 4 * index as u64, word);
        }
        queue.tail = (queue.tail + 1) % DEPTH;
        self.doorbell(queue, false, queue.tail);
        true
    }

    /// The status of a command that is complete.
    fn completed(&self, queue: &mut Queue) -> Option<u32> {
        let word = get(queue.completion + u64::from(queue.head) * 16 + 12);
        if word >> 16 & 1 == queue.old {
            return None;
        }
        queue.head = (queue.head + 1) % DEPTH;
        if queue.head == 0 {
            queue.old ^= 1;
        }
        self.doorbell(queue, true, queue.head);
        Some(word >> 17)
    }

    fn complete(&self, queue: &mut Queue) -> Option<u32> {
        let mut status = None;
        // Between looks, time for the controller: a register is slower than memory.
        wait_for(PATIENCE, || {
            status = self.completed(queue);
            status.is_some() || get(self.registers + STATUS) & FATAL != 0
        });
        status
    }

    /// Gives the controller time where nothing says when it is done.
    fn linger(&self) {
        for _ in 0..2_000 {
            get(self.registers + STATUS);
        }
    }

    /// Moves block `block` to or from `at`, which may run over the end of a page. True if it did.
    fn block(&mut self, operation: u32, block: u32, at: u64) -> bool {
        let next = (at | 0xfff).wrapping_add(1);
        let command = Command { operation, namespace: 1, pages: [at, next], words: [block, 0, 0] };
        let mut queue = self.io;
        self.submit(&mut queue, command);
        let status = self.complete(&mut queue);
        self.io = queue;
        if status.is_none() {
            self.restart();
        }
        status == Some(0)
    }
}

impl Engine for Nvme {
    fn read(&mut self, from: u64, into: u64) {
        if self.block(WRITE, 0, from) {
            self.block(READ, 0, into);
        }
    }

    fn write(&mut self, to: u64, from: u64) {
        if self.block(WRITE, 1, from) {
            self.block(READ, 1, to);
        }
    }

    fn structures(&self) -> &'static [&'static str] {
        &["identify", "page-list", "submission-queue", "completion-queue", "admin-queues"]
    }

    fn misplace(&mut self, which: usize, at: u64) {
        let at = at & !0xfff;
        match which {
            0 => {
                let command =
                    Command { operation: IDENTIFY, pages: [at, 0], words: [1, 0, 0], ..Command::default() };
                self.admin_command(command);
            }
            1 => {
                // Sixteen pages: the first is named in the command, the others in the list.
                let blocks = (16 * 4096 / LEN) as u32 - 1;
                for operation in [READ, WRITE] {
                    let command =
                        Command { operation, namespace: 1, pages: [self.page, at], words: [8, 0, blocks] };
                    let mut queue = self.io;
                    self.submit(&mut queue, command);
                    self.complete(&mut queue);
                    self.io = queue;
                }
                self.restart();
            }
            2 | 3 => {
                let (completion, submission) = if which == 2 { (self.page, at) } else { (at, self.page) };
                (self.page..self.page + 4096).step_by(4).for_each(|at| put(at, 0));
                self.create(2, completion, submission);
                let queue = Queue { number: 2, ..self.io };
                self.doorbell(&queue, false, 8);
                self.linger();
                self.restart();
            }
            _ => {
                self.enable(false);
                self.place_admin(at, at + 4096);
                self.enable(true);
                let queue = self.admin;
                self.doorbell(&queue, false, 8);
                self.linger();
                self.restart();
            }
        }
    }

    fn keep_busy(&mut self, area: (u64, u64)) {
        if !self.busy {
            fill(self.page, u32::MAX);
            for block in 0..16 {
                self.block(WRITE, block, self.page);
            }
        }
        let mut queue = self.io;
        let long =
            |at: u64| Command { operation: READ, namespace: 1, pages: [at, at + 4096], words: [0, 0, 15] };
        let next = |at: u64| if (area.0..area.1 - 0x4000).contains(&at) { at } else { area.0 };
        if !self.busy {
            self.busy = true;
            for _ in 0..DEPTH - 2 {
                self.at = next(self.at + 0x2000);
                self.submit(&mut queue, long(self.at));
            }
        }
        while self.completed(&mut queue).is_some() {
            self.at = next(self.at + 0x2000);
            self.submit(&mut queue, long(self.at));
        }
        self.io = queue;
    }
}
