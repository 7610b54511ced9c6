//! The command buffer (48882, 2.4), with a wait after every batch.
//!
//! A unit that does not answer is a unit that may still let a device reach what was taken from it: nothing can go on.

use super::MEMORY;
use super::registers::{Registers, wait};
use sluice_iommu::amdvi::command::{self, Command};
use sluice_iommu::amdvi::register::{COMMAND_HEAD, COMMAND_TAIL, COMMANDS, STATUS, ring};
use sluice_memory::{Hpa, PhysicalMemory};

/// Binary logarithm of the number of entries: the least there can be.
const ORDER: u8 = 8;
const ENTRIES: u64 = 1 << ORDER;

/// A ring of commands. Between calls it is empty.
pub struct Queue {
    ring: Hpa,
    /// Where the unit stores that it is done.
    done: Hpa,
    /// Index of the next entry.
    tail: u64,
    /// What was stored last.
    turn: u64,
}

impl Queue {
    /// Bytes of the ring.
    pub const BYTES: u64 = ENTRIES * command::BYTES;

    /// A queue in memory for a ring and for the word that tells the end of a batch.
    pub fn new(ring: Hpa, done: Hpa) -> Self {
        Self { ring, done, tail: 0, turn: 0 }
    }

    /// Tells the unit of the ring, which must not read commands at the moment.
    pub fn set_up(&mut self, registers: &Registers) {
        registers.write(COMMANDS, ring(self.ring, ORDER));
        registers.write(COMMAND_HEAD, 0);
        registers.write(COMMAND_TAIL, 0);
        self.tail = 0;
    }

    /// Has commands done, and waits for it.
    ///
    /// # Panics
    /// If the unit does not answer.
    pub fn run(&mut self, registers: &Registers, commands: &[Command]) {
        // A full ring would look empty; and there must be room for the wait.
        for batch in commands.chunks(ENTRIES as usize - 2) {
            batch.iter().for_each(|command| self.push(*command));
            self.turn = self.turn.wrapping_add(1);
            self.push(Command::CompletionWait { at: self.done, value: self.turn });
            registers.write(COMMAND_TAIL, self.tail * command::BYTES);
            if !wait(|| MEMORY.read_u64(self.done) == self.turn) {
                let (head, status) = (registers.read(COMMAND_HEAD), registers.read(STATUS));
                log::error!("AMD-Vi: no answer to {batch:x?}: head {head:#x}, status {status:#x}");
                panic!("an IOMMU hangs");
            }
        }
    }

    fn push(&mut self, command: Command) {
        let at = self.ring.as_u64() + self.tail * command::BYTES;
        let [first, second] = command.encode();
        MEMORY.write_u64(Hpa::new(at), first);
        MEMORY.write_u64(Hpa::new(at + 8), second);
        self.tail = (self.tail + 1) % ENTRIES;
    }
}
