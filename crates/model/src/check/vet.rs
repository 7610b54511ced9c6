//! What must exit where nothing contains the DMA of a card whose registers its client works: the paper's own scheme.
//!
//! Proof-only. No run asks this, since a bus master is in a guest's own hands only behind an IOMMU, and is shown as a mirror
//! otherwise. It is kept beside the proof that it would be enough, and for what it would cost (`docs/models/README.md`).

use crate::hooks::{HookSet, Questions};
use crate::language::{Effects, Event, RegisterId, Selector};
use crate::model::{Model, hook_set};

/// Everything that decides a transfer, whatever the state: what its edges look at, the registers that hold its address and
/// length, and what says which registers those are; and all reads that would show a translated address.
pub fn vet_set(model: &Model) -> HookSet {
    let units = |id: &RegisterId| model.register(*id).map_or(0, |register| register.units(model.space));
    let mut set = hook_set(model, &[], Questions::empty());
    for register in model.registers.iter().filter(|it| it.read.contains(Effects::SHOWS_ADDRESS)) {
        set.reads |= register.units(model.space);
    }
    for (index, machine) in model.machines.iter().enumerate() {
        let selects = matches!(model.selector, Selector::Machine(it) if usize::from(it) == index);
        for edge in machine.edges {
            for id in edge.start.iter().flat_map(|start| start.address.iter().chain(start.length)) {
                set.writes |= units(id);
            }
            if edge.start.is_some() || selects {
                match edge.on {
                    Event::Write { register, .. } => set.writes |= units(&register),
                    Event::Read { register, .. } => set.reads |= units(&register),
                    Event::Device(_) => {}
                }
            }
        }
    }
    set
}
