//! Following one device through its model.

use crate::model::{DeviceEvent, Event, MAX_MACHINES, Model, RegisterId, Start};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// The client wrote this byte.
    Write(RegisterId, u8),
    /// The device reported.
    Device(DeviceEvent),
}

/// Where each machine of a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracker {
    states: [u8; MAX_MACHINES],
}

impl Tracker {
    /// Following begins without knowing the past.
    pub fn unseen(model: &Model) -> Self {
        let mut states = [0; MAX_MACHINES];
        for (state, machine) in states.iter_mut().zip(model.machines) {
            *state = machine.unseen;
        }
        Self { states }
    }

    /// In given states, for exploring.
    pub const fn at(states: [u8; MAX_MACHINES]) -> Self {
        Self { states }
    }

    /// The machines' states, in the model's order.
    pub const fn states(&self) -> &[u8; MAX_MACHINES] {
        &self.states
    }

    /// Every machine rests: the device may change hands.
    pub fn resting(&self, model: &Model) -> bool {
        model
            .machines
            .iter()
            .zip(self.states)
            .all(|(machine, state)| machine.states.get(usize::from(state)).is_some_and(|state| state.rest))
    }

    /// The transfers that this would start; each check must approve before the device sees it.
    pub fn starts(self, model: &'static Model, seen: Seen) -> impl Iterator<Item = &'static Start> {
        model.machines.iter().zip(self.states).filter_map(move |(machine, state)| {
            machine.edges.iter().find(|edge| edge.leaves(state) && fits(edge.on, seen))?.start.as_ref()
        })
    }

    /// Moves along; true if any machine changed its state.
    pub fn step(&mut self, model: &Model, seen: Seen) -> bool {
        let before = *self;
        for (machine, state) in model.machines.iter().zip(&mut self.states) {
            if let Some(edge) = machine.edges.iter().find(|edge| edge.leaves(*state) && fits(edge.on, seen)) {
                *state = edge.to;
            }
        }
        *self != before
    }
}

fn fits(event: Event, seen: Seen) -> bool {
    match (event, seen) {
        (Event::Write { register, mask, bits }, Seen::Write(at, value)) => {
            register == at && value & mask == bits
        }
        (Event::Device(expected), Seen::Device(happened)) => expected == happened,
        _ => false,
    }
}
