//! MSI-X of a function that is all software: what its driver programs is what is delivered.
//!
//! Source: PCI Local Bus 3.0, 6.8.2.

use crate::domain::{Domain, Transfer};
use sluice_platform::Message;
use sluice_platform::msix::{ENTRY_SIZE, MsixTable};
use sluice_platform::pci::MsixCapability;

/// The MSI-X table of a function, and whether it is in use.
pub struct Messages {
    table: MsixTable,
    enabled: bool,
    masked: bool,
}

impl Messages {
    /// So many messages, none of which is programmed.
    pub fn new(vectors: u16) -> Self {
        Self { table: MsixTable::new(vectors), enabled: false, masked: false }
    }

    /// Whether the driver uses messages instead of the line.
    pub fn are_enabled(&self) -> bool {
        self.enabled
    }

    /// The driver may have changed the capability.
    pub fn configure(&mut self, domain: &Domain, capability: Option<MsixCapability>) {
        let Some(capability) = capability else { return };
        (self.enabled, self.masked) = (capability.enabled, capability.masked);
        for vector in 0..self.table.len() {
            self.deliver_pending(domain, vector);
        }
    }

    /// Something happened that `vector` tells of: its message, unless it is masked.
    pub fn raise(&mut self, vector: u16) -> Option<Message> {
        self.enabled.then(|| self.table.raise(vector, self.masked)).flatten()
    }

    /// An access to the table, or to the pending bits, which are `pending` bytes after it.
    pub fn access(&mut self, domain: &Domain, offset: u32, pending: u32, transfer: Transfer<'_>) {
        let width = transfer.len() as u8;
        match transfer {
            Transfer::Read(buffer) => {
                let value = match offset.checked_sub(pending) {
                    Some(offset) => self.table.read_pending(offset, width),
                    None => self.table.read(offset, width),
                };
                buffer.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
            }
            Transfer::Write(bytes) if offset < u32::from(self.table.len()) * ENTRY_SIZE => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                if let Some(vector) = self.table.write(offset, width, u64::from_le_bytes(word)) {
                    self.deliver_pending(domain, vector);
                }
            }
            Transfer::Write(_) => {}
        }
    }

    /// Delivers a message that came while it was masked, if it is not any more.
    fn deliver_pending(&mut self, domain: &Domain, vector: u16) {
        if self.enabled
            && self.table.is_pending(vector)
            && let Some(message) = self.table.raise(vector, self.masked)
        {
            domain.deliver(&message);
        }
    }
}
