//! A device state model: registers and machines, with the tables computed from them.
//!
//! Key types: [`Model`]; [`hook_set`] says what must exit.

use crate::hooks::{HookSet, Questions};
use crate::language::{Check, Machine, Register, RegisterId, Selector, Space};
use crate::tables::Tables;

/// A device state model.
#[derive(Debug)]
pub struct Model {
    /// Name, such as `ne2000`.
    pub name: &'static str,
    /// PCI vendor and device ids it is for.
    pub ids: &'static [(u16, u16)],
    /// Where the registers are.
    pub space: Space,
    /// Ports the device has, at most 32; 0 if it is in memory.
    pub ports: u16,
    /// What tells the register page.
    pub selector: Selector,
    /// At most [`MAX_REGISTERS`](crate::MAX_REGISTERS). On each page every byte is in exactly one.
    pub registers: &'static [Register],
    /// At most [`MAX_MACHINES`](crate::MAX_MACHINES).
    pub machines: &'static [Machine],
    /// What is computed from these ahead of time.
    pub tables: &'static Tables,
}

impl Model {
    /// A register by its index.
    pub fn register(&self, id: RegisterId) -> Option<&Register> {
        self.registers.get(usize::from(id.0))
    }

    /// The register that the byte at an offset is in, on a register page.
    pub fn find(&self, offset: impl Into<u32>, page: u8) -> Option<RegisterId> {
        self.tables.names.find(self.registers, offset.into(), page)
    }

    /// The checks whose verdict depends on this register: writing it must be vetted.
    pub fn vetted_by(&self, id: RegisterId) -> impl Iterator<Item = Check> {
        let edges = self.machines.iter().flat_map(|machine| machine.edges);
        edges.filter_map(|edge| edge.start).filter_map(move |start| {
            let input = start.address.contains(&id) || start.length.contains(&id);
            start.check.filter(|_| input)
        })
    }
}

/// What must exit for these questions while the machines are in these states (in the model's order;
/// they count only for FOLLOW and MIRROR): every register with an effect that a question asks about; to
/// follow the device, every register that an edge leaving a present state looks at.
pub fn hook_set(model: &Model, states: &[u8], questions: Questions) -> HookSet {
    model.tables.hooks.set(model.machines.len(), states, questions)
}
