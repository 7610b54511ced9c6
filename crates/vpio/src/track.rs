//! Following one device through its model.
//!
//! [`Tracker`] is where a device is; [`Tracker::step`] moves it along, by a [`StepTable`] that the
//! compiler computed from the machines, so that it costs a few instructions per machine concerned.
//! [`named`] says which registers an access to memory writes or reads.

use crate::model::{
    DeviceEvent, Event, MAX_MACHINES, MAX_STATES, Machine, Model, Narrow, Register, RegisterId, Space, Start,
};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// The client wrote this byte.
    Write(RegisterId, u8),
    /// The client wrote a register of any width.
    WriteWord(RegisterId, u32),
    /// The client read this value.
    Read(RegisterId, u32),
    /// The device reported.
    Device(DeviceEvent),
}

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

    /// The register page, if a machine of the model knows it.
    pub fn page(&self, model: &Model) -> Option<u8> {
        match model.selector {
            crate::model::Selector::Machine(machine) => self.states.get(usize::from(machine)).copied(),
            _ => None,
        }
    }

    /// The transfers that this would start; each check must approve before the device sees it.
    pub fn starts(self, model: &'static Model, seen: Seen) -> impl Iterator<Item = &'static Start> {
        model.machines.iter().zip(self.states).filter_map(move |(machine, state)| {
            machine.edges.iter().find(|edge| edge.leaves(state) && fits(edge.on, seen))?.start.as_ref()
        })
    }

    /// Moves along; true if any machine changed its state.
    pub fn step(&mut self, model: &Model, seen: Seen) -> bool {
        let Some(row) = model.tables.steps.row(seen) else { return false };
        if row.machines == 0 {
            return false;
        }
        let (mut changed, before) = (false, self.states);
        // Few things concern more than the first machines.
        for half in [0, HALF] {
            if row.machines >> half & FIRST != 0 {
                for (state, next) in self.states.iter_mut().zip(&row.next).skip(half).take(HALF) {
                    *state = next[usize::from(*state) % MAX_STATES];
                }
                changed |= self.states[half..half + HALF] != before[half..half + HALF];
            }
        }
        changed
    }
}

/// Machines that are moved together.
const HALF: usize = MAX_MACHINES / 2;
/// The first of them.
const FIRST: u8 = (1 << HALF) - 1;

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

const fn fits(event: Event, seen: Seen) -> bool {
    match (event, seen) {
        (Event::Write { register, mask, bits }, Seen::Write(at, value)) => {
            register.0 == at.0 && value as u32 & mask == bits
        }
        (Event::Write { register, mask, bits }, Seen::WriteWord(at, value))
        | (Event::Read { register, mask, bits }, Seen::Read(at, value)) => {
            register.0 == at.0 && value & mask == bits
        }
        (Event::Device(expected), Seen::Device(happened)) => expected as u8 == happened as u8,
        _ => false,
    }
}

/// What one thing seen does to the machines: per machine and present state, the next.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The machines that it can change, bit per machine.
    machines: u8,
    next: [[u8; MAX_STATES]; MAX_MACHINES],
}

impl Row {
    /// It changes nothing.
    const NONE: Self = Self { machines: 0, next: [[0, 1, 2, 3, 4, 5, 6, 7]; MAX_MACHINES] };
}

/// Where the rows of a register begin, one for each value of the bits that any edge looks at.
#[derive(Clone, Copy, Debug)]
struct Rows {
    mask: u32,
    shift: u8,
    first: u8,
}

impl Rows {
    const NONE: Self = Self { mask: 0, shift: 0, first: 0 };
}

/// Rows that a model has at most.
const ROWS: usize = 128;
/// What a register's index may be, existent or not.
const REGISTERS: usize = 256;

/// Every edge of every machine, by what is seen.
#[derive(Debug)]
pub(crate) struct StepTable {
    /// Writes, then reads, by register; then what the device reports.
    seen: [Rows; 2 * REGISTERS + DeviceEvent::ALL.len()],
    /// The first is for what concerns no machine.
    rows: [Row; ROWS],
}

impl StepTable {
    pub(crate) const fn new(machines: &[Machine]) -> Self {
        let mut table =
            Self { seen: [Rows::NONE; 2 * REGISTERS + DeviceEvent::ALL.len()], rows: [Row::NONE; ROWS] };
        let mut used = 1;
        let mut machine = 0;
        while machine < machines.len() {
            let mut index = 0;
            while index < machines[machine].edges.len() {
                // All edges of a register are entered when the first is met.
                let on = machines[machine].edges[index].on;
                let at = place(on);
                if table.seen[at].first == 0 {
                    let rows = span(machines, at, used);
                    table.seen[at] = rows;
                    used = table.enter(machines, rows, on, used);
                }
                index += 1;
            }
            machine += 1;
        }
        table
    }

    /// Enters the rows for all values that `on` looks at; returns how many are in use then.
    const fn enter(&mut self, machines: &[Machine], rows: Rows, on: Event, first: usize) -> usize {
        let last = rows.mask >> rows.shift;
        let mut class = 0;
        while class <= last {
            let value = class << rows.shift;
            let seen = match on {
                Event::Write { register, .. } => Seen::WriteWord(register, value),
                Event::Read { register, .. } => Seen::Read(register, value),
                Event::Device(event) => Seen::Device(event),
            };
            self.rows[first + class as usize] = row(machines, seen);
            class += 1;
        }
        first + last as usize + 1
    }

    fn row(&self, seen: Seen) -> Option<&Row> {
        let (at, value) = match seen {
            Seen::Write(id, value) => (usize::from(id.0), value.into()),
            Seen::WriteWord(id, value) => (usize::from(id.0), value),
            Seen::Read(id, value) => (REGISTERS + usize::from(id.0), value),
            Seen::Device(event) => (2 * REGISTERS + event as usize, 0),
        };
        let rows = self.seen.get(at)?;
        self.rows.get(usize::from(rows.first) + ((value & rows.mask) >> rows.shift) as usize)
    }
}

/// Where in [`StepTable::seen`] an event is.
const fn place(on: Event) -> usize {
    match on {
        Event::Write { register, .. } => register.0 as usize,
        Event::Read { register, .. } => REGISTERS + register.0 as usize,
        Event::Device(event) => 2 * REGISTERS + event as usize,
    }
}

/// The bits that edges look at there. Where they lie apart, what is between counts, too.
const fn span(machines: &[Machine], at: usize, first: usize) -> Rows {
    let mut mask = 0;
    let mut machine = 0;
    while machine < machines.len() {
        let mut index = 0;
        while index < machines[machine].edges.len() {
            let on = machines[machine].edges[index].on;
            if let Event::Write { mask: bits, .. } | Event::Read { mask: bits, .. } = on
                && place(on) == at
            {
                mask |= bits;
            }
            index += 1;
        }
        machine += 1;
    }
    if mask == 0 {
        return Rows { mask: 0, shift: 0, first: first as u8 };
    }
    let (lowest, highest) = (mask.trailing_zeros(), 31 - mask.leading_zeros());
    assert!(highest - lowest < 6, "edges look at bits too far apart");
    Rows { mask: ((2u64 << highest) - (1u64 << lowest)) as u32, shift: lowest as u8, first: first as u8 }
}

/// What this does to each machine in each state.
const fn row(machines: &[Machine], seen: Seen) -> Row {
    let mut row = Row::NONE;
    let mut machine = 0;
    while machine < machines.len() {
        assert!(machines[machine].states.len() <= MAX_STATES);
        let mut state = 0;
        while state < MAX_STATES as u8 {
            let mut next = state;
            let mut index = 0;
            while index < machines[machine].edges.len() {
                let edge = &machines[machine].edges[index];
                if edge.leaves(state) && fits(edge.on, seen) {
                    next = edge.to;
                    break;
                }
                index += 1;
            }
            row.next[machine][state as usize] = next;
            if next != state {
                row.machines |= 1 << machine;
            }
            state += 1;
        }
        machine += 1;
    }
    row
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
