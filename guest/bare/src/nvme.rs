//! An NVM Express controller, driven without interrupts by an admin queue and one pair of queues for input and output.
//!
//! Source: NVM Express Base Specification 1.4, 3.1 (registers), 4.1 to 4.3 (queues, commands, PRP lists), 5.3 and 5.4
//! (creation of queues).

use crate::dma::memory::{Own, get, put, put64};
use crate::machine::wait_for;
use crate::pci::{self, Function};

/// Registers.
pub const CONFIGURATION: u64 = 0x14;
/// See [`CONFIGURATION`].
pub const STATUS: u64 = 0x1c;
const ADMIN_SIZES: u64 = 0x24;
/// See [`CONFIGURATION`].
pub const ADMIN_SUBMISSION: u64 = 0x28;
const ADMIN_COMPLETION: u64 = 0x30;
/// The first doorbell.
pub const DOORBELLS: u64 = 0x1000;

/// Enabled, entries of 64 and 16 bytes, pages of 4 KiB.
const ON: u32 = 1 | 6 << 16 | 4 << 20;
const READY: u32 = 1;
const FATAL: u32 = 2;
/// Entries of each queue.
pub const DEPTH: u32 = 64;

/// Commands of the admin queue.
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SUBMISSION: u32 = 0;
    /// Create I/O Submission Queue.
    pub const CREATE_SUBMISSION: u32 = 1;
    /// Get Log Page.
    pub const LOG: u32 = 2;
    /// Delete I/O Completion Queue.
    pub const DELETE_COMPLETION: u32 = 4;
    /// Create I/O Completion Queue.
    pub const CREATE_COMPLETION: u32 = 5;
    /// Identify.
    pub const IDENTIFY: u32 = 6;
    /// Abort.
    pub const ABORT: u32 = 8;
    /// Set Features.
    pub const SET_FEATURES: u32 = 9;
    /// Get Features.
    pub const GET_FEATURES: u32 = 10;
    /// Asynchronous Event Request.
    pub const EVENT: u32 = 12;
    /// Doorbell Buffer Config.
    pub const DOORBELLS: u32 = 0x7c;
}

/// Flush.
pub const FLUSH: u32 = 0;
/// Write.
pub const WRITE: u32 = 1;
/// Read.
pub const READ: u32 = 2;
/// Write Zeroes.
pub const ZEROES: u32 = 8;
/// Dataset Management.
pub const DATASET: u32 = 9;

/// Ticks for a command: seconds.
pub const PATIENCE: u64 = 5_000_000_000;

/// A submission queue and its completion queue.
#[derive(Clone, Copy, Default)]
pub struct Queue {
    /// Where the commands are.
    pub submission: u64,
    /// Where the completions are.
    pub completion: u64,
    /// Its number.
    pub number: u32,
    /// Where the next command goes.
    pub tail: u32,
    /// Where the next completion comes.
    pub head: u32,
    /// Phase tag of an old entry.
    old: u32,
}

/// A command's own words.
#[derive(Clone, Copy, Default)]
pub struct Command {
    /// Opcode and flags.
    pub operation: u32,
    /// The namespace.
    pub namespace: u32,
    /// Both entries of physical region pages.
    pub pages: [u64; 2],
    /// The double words 10 to 15.
    pub words: [u32; 6],
}

impl Command {
    /// A read, write or write of zeroes, of `blocks` blocks from `first` on.
    pub fn blocks(operation: u32, first: u64, blocks: u32, pages: [u64; 2]) -> Self {
        let words = [first as u32, (first >> 32) as u32, blocks.wrapping_sub(1) & 0xffff, 0, 0, 0];
        Self { operation, namespace: 1, pages, words }
    }
}

/// The controller.
#[derive(Clone, Copy)]
pub struct Controller {
    /// It, on the bus.
    pub function: Function,
    /// Where its registers are.
    pub registers: u64,
    stride: u64,
    /// The admin queue.
    pub admin: Queue,
    /// The other one.
    pub io: Queue,
}

impl Controller {
    /// The first one there is, ready for commands.
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
        let mut controller = Self { function, registers, stride, admin, io };
        controller.restart().then_some(controller)
    }

    /// Switches it on or off. Whether it is.
    pub fn enable(&self, on: bool) -> bool {
        put(self.registers + CONFIGURATION, if on { ON } else { 0 });
        let mut status = 0;
        // It may fail for good.
        let settled = wait_for(PATIENCE, || {
            status = get(self.registers + STATUS);
            (status & READY != 0) == on || on && status & FATAL != 0
        });
        settled && (status & READY != 0) == on
    }

    /// Has admin queues there from the next start on; all queues are empty.
    pub fn place_admin(&mut self, submission: u64, completion: u64) {
        put(self.registers + ADMIN_SIZES, (DEPTH - 1) << 16 | (DEPTH - 1));
        put64(self.registers + ADMIN_SUBMISSION, submission);
        put64(self.registers + ADMIN_COMPLETION, completion);
        for queue in [&mut self.admin, &mut self.io] {
            (queue.tail, queue.head, queue.old) = (0, 0, 0);
            (queue.completion..queue.completion + 4096).step_by(4).for_each(|at| put(at, 0));
        }
    }

    /// Begins anew, with an admin queue in own memory and no other.
    pub fn begin(&mut self) -> bool {
        self.enable(false);
        self.place_admin(self.admin.submission, self.admin.completion);
        self.enable(true)
    }

    /// Begins anew, with queues in own memory.
    pub fn restart(&mut self) -> bool {
        self.begin() && self.create(1, self.io.completion, self.io.submission)
    }

    /// Creates a pair of queues. Whether there is one.
    pub fn create(&mut self, number: u32, completion: u64, submission: u64) -> bool {
        let size = (DEPTH - 1) << 16 | number;
        let first = Command {
            operation: admin::CREATE_COMPLETION,
            pages: [completion, 0],
            words: [size, 1, 0, 0, 0, 0],
            ..Command::default()
        };
        let second = Command {
            operation: admin::CREATE_SUBMISSION,
            pages: [submission, 0],
            words: [size, number << 16 | 1, 0, 0, 0, 0],
            ..Command::default()
        };
        self.admin_command(first) == Some(0) && self.admin_command(second) == Some(0)
    }

    /// Has an admin command carried out. Its status; `None`: it does not answer.
    pub fn admin_command(&mut self, command: Command) -> Option<u32> {
        let mut queue = self.admin;
        self.submit(&mut queue, command);
        let status = self.complete(&mut queue, PATIENCE);
        self.admin = queue;
        status
    }

    /// As [`Self::admin_command`], by the other queue.
    pub fn command(&mut self, command: Command) -> Option<u32> {
        let mut queue = self.io;
        self.submit(&mut queue, command);
        let status = self.complete(&mut queue, PATIENCE);
        self.io = queue;
        status
    }

    /// Writes a doorbell.
    pub fn doorbell(&self, queue: &Queue, completion: bool, value: u32) {
        let index = u64::from(queue.number * 2 + u32::from(completion));
        put(self.registers + DOORBELLS + index * self.stride, value);
    }

    /// Gives it a command.
    pub fn submit(&self, queue: &mut Queue, command: Command) {
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
    }

    /// The status of a command that is complete.
    pub fn completed(&self, queue: &mut Queue) -> Option<u32> {
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

    /// Waits for a command. `None`: it is not complete after so many ticks.
    pub fn complete(&self, queue: &mut Queue, patience: u64) -> Option<u32> {
        let mut status = None;
        // Between looks, time for the controller: a register is slower than memory.
        wait_for(patience, || {
            status = self.completed(queue);
            status.is_some() || get(self.registers + STATUS) & FATAL != 0
        });
        status
    }

    /// Gives it time where nothing says when it is done.
    pub fn linger(&self) {
        for _ in 0..2_000 {
            get(self.registers + STATUS);
        }
    }
}
