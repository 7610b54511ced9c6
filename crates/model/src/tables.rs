//! Tables that the compiler computes from the parts of a model, so that asking it costs little at an exit.

mod hooks;
mod names;
mod steps;

use crate::language::{MAX_MACHINES, MAX_REGISTERS, Machine, Register, Selector, Space};
use hooks::HookTable;
use names::Names;
use steps::StepTable;

/// Tables that make a model cheap to ask: [`Tables::new`] of the same parts as the model.
#[derive(Debug)]
pub struct Tables {
    pub(crate) names: Names,
    pub(crate) hooks: HookTable,
    pub(crate) steps: StepTable,
}

impl Tables {
    /// Computed by the compiler. Fails to compile if a model is larger than it may be.
    pub const fn new(
        space: Space,
        ports: u16,
        selector: Selector,
        registers: &[Register],
        machines: &[Machine],
    ) -> Self {
        assert!(registers.len() <= MAX_REGISTERS && machines.len() <= MAX_MACHINES);
        Self {
            names: Names::new(registers),
            hooks: HookTable::new(space, ports, selector, registers, machines),
            steps: StepTable::new(machines),
        }
    }
}
