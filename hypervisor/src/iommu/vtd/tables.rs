//! The tables that a unit reads: root, contexts, interrupts (D51397, 9.1, 9.3, 9.9).
//!
//! Entries have two halves, and the unit reads both at once; the low one says whether the entry is present. It is cleared
//! before, and written after, the high one changes, and the caller has the unit forget the entry in between.

use crate::mm::TableFrames;
use sluice_iommu::RequesterId;
use sluice_iommu::vtd::context::{self, ContextEntry};
use sluice_iommu::vtd::interrupt;
use sluice_iommu::vtd::registers::Capabilities;
use sluice_memory::{Hpa, PhysicalMemory};

/// The tables of one unit.
pub struct Tables {
    frames: TableFrames,
    root: Hpa,
    interrupts: Hpa,
}

fn offset(table: Hpa, bytes: u64) -> Hpa {
    Hpa::new(table.as_u64() + bytes)
}

impl Tables {
    /// Nobody reaches anything, nobody interrupts.
    pub fn new(capabilities: Capabilities) -> Self {
        let frames = TableFrames { write_back: !capabilities.is_coherent() };
        let table = |bytes| frames.allocate(bytes).expect("memory for an IOMMU's tables");
        Self { frames, root: table(context::TABLE_BYTES), interrupts: table(interrupt::TABLE_BYTES) }
    }

    /// The root table.
    pub fn root(&self) -> Hpa {
        self.root
    }

    /// The interrupt remapping table.
    pub fn interrupts(&self) -> Hpa {
        self.interrupts
    }

    fn read(&self, at: Hpa) -> [u64; 2] {
        [self.frames.read_u64(at), self.frames.read_u64(offset(at, 8))]
    }

    /// Writes an entry whose low half is zero, and which the unit has forgotten.
    fn write(&self, at: Hpa, [low, high]: [u64; 2]) {
        self.frames.write_u64(offset(at, 8), high);
        self.frames.write_u64(at, low);
    }

    fn context(&self, requester: RequesterId) -> Option<Hpa> {
        let bus = offset(self.root, context::root_offset(requester));
        let table = context::context_table(self.frames.read_u64(bus))?;
        Some(offset(table, context::context_offset(requester)))
    }

    /// Blocks a requester. Returns what was in effect.
    pub fn clear_context(&self, requester: RequesterId) -> Option<ContextEntry> {
        let at = self.context(requester)?;
        let old = ContextEntry::decode(self.read(at))?;
        self.frames.write_u64(at, 0);
        Some(old)
    }

    /// Lets a requester that is blocked reach a space. Makes its bus's table if there is none yet.
    pub fn set_context(&self, requester: RequesterId, entry: ContextEntry) {
        if self.context(requester).is_none() {
            let table = self.frames.allocate(context::TABLE_BYTES).expect("memory for an IOMMU's tables");
            let bus = offset(self.root, context::root_offset(requester));
            self.frames.write_u64(bus, context::root_entry(table));
        }
        if let Some(at) = self.context(requester) {
            self.write(at, entry.encode());
        }
    }

    fn interrupt(&self, vector: u8) -> Hpa {
        offset(self.interrupts, interrupt::offset(vector))
    }

    /// Who may raise a vector.
    pub fn interrupt_of(&self, vector: u8) -> Option<RequesterId> {
        let [low, high] = self.read(self.interrupt(vector));
        interrupt::is_present(low).then_some(RequesterId(high as u16))
    }

    /// Lets nobody raise a vector. Returns whether somebody could.
    pub fn clear_interrupt(&self, vector: u8) -> bool {
        let was = self.interrupt_of(vector).is_some();
        if was {
            self.frames.write_u64(self.interrupt(vector), 0);
        }
        was
    }

    /// Lets a vector that nobody could raise be raised as the entry says.
    pub fn set_interrupt(&self, vector: u8, entry: [u64; 2]) {
        self.write(self.interrupt(vector), entry);
    }
}
