//! The invalidation queue of a unit (D51397, 6.5.2): filled, and always waited for.

use super::registers::Registers;
use crate::mm::Direct;
use crate::mm::TableFrames;
use sluice_iommu::vtd::queue::{DESCRIPTOR_BYTES, Descriptor, QUEUE_BYTES};
use sluice_iommu::vtd::registers::{CAP, Capabilities, ECAP, FSTS, FaultStatus, Global, IQA, IQH, IQT};
use sluice_memory::{Hpa, PhysicalMemory};

/// Descriptors that are handed over at once, a wait descriptor on top. Less than the queue holds, because a full one
/// would look like an empty one.
const BATCH: usize = (QUEUE_BYTES / DESCRIPTOR_BYTES) as usize - 2;

/// A queue and the word that tells how far it is. The unit reads and writes both by way of the processors' caches,
/// whatever it does for tables.
pub struct Queue {
    memory: Hpa,
    /// Byte offset of the next descriptor.
    tail: u64,
    /// What the last wait descriptor wrote.
    done: u32,
    flushes_writes: bool,
}

impl Queue {
    /// A queue that no unit reads yet.
    pub fn new() -> Self {
        // The status word is behind it.
        let memory = TableFrames::COHERENT.allocate(2 * QUEUE_BYTES).expect("memory for an IOMMU's queue");
        Self { memory, tail: 0, done: 0, flushes_writes: false }
    }

    fn status(&self) -> Hpa {
        Hpa::new(self.memory.as_u64() + QUEUE_BYTES)
    }

    /// Has the unit read it from now on. It reads no other.
    pub fn enable(&mut self, registers: &Registers) {
        let capabilities = Capabilities { cap: registers.read64(CAP), ecap: registers.read64(ECAP) };
        self.flushes_writes = capabilities.buffers_writes();
        registers.write64(IQT, 0);
        // Size 0, descriptors of 128 bits.
        registers.write64(IQA, self.memory.as_u64());
        registers.command(Global::QUEUE, true);
    }

    /// Has the unit carry out descriptors, in any order, and returns when it has.
    pub fn run(&mut self, registers: &Registers, descriptors: impl IntoIterator<Item = Descriptor>) {
        let mut descriptors = descriptors.into_iter().peekable();
        if descriptors.peek().is_some() && self.flushes_writes {
            registers.command(Global::FLUSH_WRITES, true);
        }
        while descriptors.peek().is_some() {
            for descriptor in descriptors.by_ref().take(BATCH) {
                self.push(descriptor);
            }
            self.finish(registers);
        }
    }

    fn push(&mut self, descriptor: Descriptor) {
        let [low, high] = descriptor.encode();
        let at = self.memory.as_u64() + self.tail;
        Direct.write_u64(Hpa::new(at), low);
        Direct.write_u64(Hpa::new(at + 8), high);
        self.tail = (self.tail + DESCRIPTOR_BYTES) % QUEUE_BYTES;
    }

    fn finish(&mut self, registers: &Registers) {
        self.done = self.done.wrapping_add(1);
        self.push(Descriptor::Wait { status: self.status(), data: self.done });
        registers.write64(IQT, self.tail);
        let status = self.status();
        registers.wait("invalidation", || {
            if Direct.read_u64(status) as u32 == self.done {
                return true;
            }
            let fault = FaultStatus::from_bits_retain(registers.read32(FSTS));
            assert!(
                !fault.intersects(FaultStatus::QUEUE_ERROR | FaultStatus::TIME_OUT),
                "VT-d: {fault:?} at {:#x} of its queue",
                registers.read64(IQH)
            );
            false
        });
    }
}
