//! Following one device through its model.
//!
//! [`Tracker`] is where a device is; [`Tracker::step`] moves it along, by a table that the compiler
//! computed from the machines, so that it costs a few instructions per machine concerned.
//! [`named`] says which registers an access to memory writes or reads.

use crate::language::{MAX_MACHINES, Narrow, Register, RegisterId, Seen, Selector, Space, Start};
use crate::model::Model;

/// Where each machine of a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracker {
    states: [u8; MAX_MACHINES],
}

impl Tracker {
    /// The device was just powered on: each machine is in its first state.
    pub const fn new() -> Self {
        Self { states: [0; MAX_MACHINES] }
    }

    /// Following begins without knowing the past.
    pub fn unseen(model: &Model) -> Self {
        let mut states = [0; MAX_MACHINES];
        for (state, machine) in states.iter_mut().zip(model.machines) {
            *state = machine.unseen;
        }
        Self { states }
    }

    /// Following begins, with what registers tell of the past. None is read that reading changes.
    pub fn told(model: &Model, read: &mut dyn FnMut(RegisterId) -> u32) -> Self {
        let mut tracker = Self::unseen(model);
        for (state, machine) in tracker.states.iter_mut().zip(model.machines) {
            let mut tells = machine.told.iter();
            if let Some(told) = tells.find(|told| read(told.register) & told.mask == told.bits) {
                *state = told.state;
            }
        }
        tracker
    }

    /// In given states. Proof-only, for exploring.
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

    /// The register page, if a machine of the model knows it.
    pub fn page(&self, model: &Model) -> Option<u8> {
        match model.selector {
            Selector::Machine(machine) => self.states.get(usize::from(machine)).copied(),
            _ => None,
        }
    }

    /// The transfers that this would start; each check must approve before the device sees it.
    pub fn starts(self, model: &'static Model, seen: Seen) -> impl Iterator<Item = &'static Start> {
        model.machines.iter().zip(self.states).filter_map(move |(machine, state)| {
            machine.edges.iter().find(|edge| edge.leaves(state) && edge.on.is(seen))?.start.as_ref()
        })
    }

    /// Moves along; true if any machine changed its state.
    pub fn step(&mut self, model: &Model, seen: Seen) -> bool {
        let Some(row) = model.tables.steps.row(seen) else { return false };
        row.apply(&mut self.states)
    }
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

/// The registers that an access to a device in memory reaches, each with its part of the value, lowest
/// first; what the device ignores is left out. A device takes an access that is not aligned for several
/// that are.
pub fn named(model: &Model, page: u8, offset: u32, width: u8, value: u32) -> Named {
    let mut all = Named { found: [(RegisterId(0), 0); 4], next: 0, count: 0 };
    let Space::Memory { narrow, .. } = model.space else { return all };
    let width = width.min(4);
    let mut done = 0;
    while done < width {
        let at = offset.wrapping_add(done.into());
        let left = width - done;
        let piece = match at & 3 {
            0 if left == 4 => 4,
            0 | 2 if left >= 2 => 2,
            _ => 1,
        };
        let part = value >> (8 * done) & (u32::MAX >> (32 - 8 * u32::from(piece)));
        done += piece;
        let Some(id) = model.find(at, page) else { continue };
        let whole = |register: &Register| {
            register.width == piece && (at - register.first).is_multiple_of(piece.into())
        };
        if narrow == Narrow::Whole || model.register(id).is_some_and(whole) {
            all.push(id, part);
            continue;
        }
        for byte in 0..u32::from(piece) {
            let single = model.find(at.wrapping_add(byte), page);
            let single = single.filter(|id| model.register(*id).is_some_and(|it| it.width == 1));
            if let Some(id) = single {
                all.push(id, part >> (8 * byte) & 0xff);
            }
        }
    }
    all
}

/// What [`named`] found.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    found: [(RegisterId, u32); 4],
    next: u8,
    count: u8,
}

impl Named {
    const fn push(&mut self, id: RegisterId, value: u32) {
        if (self.count as usize) < self.found.len() {
            self.found[self.count as usize] = (id, value);
            self.count += 1;
        }
    }
}

impl Iterator for Named {
    type Item = (RegisterId, u32);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        let found = self.found.get(usize::from(self.next)).copied();
        self.next += 1;
        found
    }
}
