//! The event log (48882, 2.5), which tells of faults.

use super::MEMORY;
use super::registers::Registers;
use sluice_iommu::amdvi::event;
use sluice_iommu::amdvi::register::{CONTROL, Control, EVENT_HEAD, EVENT_TAIL, EVENTS, STATUS, Status, ring};
use sluice_iommu::{Fault, FaultKind, RequesterId};
use sluice_memory::{Hpa, PhysicalMemory};

/// Binary logarithm of the number of entries.
const ORDER: u8 = 9;
/// How often an entry is looked at that the unit announced but did not write yet.
const LOOKS: u32 = 1000;

/// A ring of events.
pub struct EventLog {
    ring: Hpa,
    /// Whose events it has.
    function: RequesterId,
    /// Index of the next entry to read.
    head: u64,
}

impl EventLog {
    /// Entries of the ring.
    pub const ENTRIES: u64 = 1 << ORDER;
    /// Bytes of the ring.
    pub const BYTES: u64 = Self::ENTRIES * event::BYTES;

    /// A log in cleared memory, of the unit that is that function.
    pub fn new(ring: Hpa, function: RequesterId) -> Self {
        Self { ring, function, head: 0 }
    }

    /// Tells the unit of the ring, which must not log at the moment.
    pub fn set_up(&mut self, registers: &Registers) {
        registers.write(EVENTS, ring(self.ring, ORDER));
        registers.write(EVENT_HEAD, 0);
        registers.write(EVENT_TAIL, 0);
        registers.write(STATUS, (Status::EVENT_OVERFLOW | Status::EVENT_INTERRUPT).bits());
        self.head = 0;
    }

    /// Before entries are read: what is logged afterwards raises the interrupt again.
    pub fn acknowledge(&self, registers: &Registers) {
        registers.write(STATUS, Status::EVENT_INTERRUPT.bits());
    }

    /// Takes the oldest event.
    pub fn next(&mut self, registers: &Registers) -> Option<Fault> {
        let tail = registers.read(EVENT_TAIL) / event::BYTES % Self::ENTRIES;
        while self.head != tail {
            let at = Hpa::new(self.ring.as_u64() + self.head * event::BYTES);
            let second = Hpa::new(at.as_u64() + 8);
            let read = || {
                // The word with the code is written last or together with the other.
                let first = MEMORY.read_u64(at);
                event::decode([first, MEMORY.read_u64(second)])
            };
            let fault = (0..LOOKS).find_map(|_| {
                let fault = read();
                if fault.is_none() {
                    core::hint::spin_loop();
                }
                fault
            });
            MEMORY.write_u64(at, 0);
            MEMORY.write_u64(second, 0);
            self.head = (self.head + 1) % Self::ENTRIES;
            registers.write(EVENT_HEAD, self.head * event::BYTES);
            if fault.is_some() {
                return fault;
            }
        }
        None
    }

    /// Goes on logging after the log was full. Returns the fault that stands for those that were lost.
    pub fn restart(&mut self, registers: &Registers, control: Control) -> Option<Fault> {
        let status = Status::from_bits_retain(registers.read(STATUS));
        if !status.contains(Status::EVENT_OVERFLOW) {
            return None;
        }
        registers.write(CONTROL, (control - Control::EVENTS).bits());
        registers.wait_stopped(Status::EVENTS_RUN);
        registers.write(STATUS, Status::EVENT_OVERFLOW.bits());
        registers.write(CONTROL, control.bits());
        let kind = FaultKind::Other;
        Some(Fault { requester: self.function, address: 0, write: false, kind, code: 0 })
    }
}
