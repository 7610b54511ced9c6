//! What moves the machines of a model: every edge, by what is seen.

use crate::language::{DeviceEvent, Event, MAX_MACHINES, MAX_STATES, Machine, Seen};

/// Machines that are moved together.
const HALF: usize = MAX_MACHINES / 2;
/// The first of them.
const FIRST: u8 = (1 << HALF) - 1;

/// What one thing seen does to the machines: per machine and present state, the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The machines that it can change, bit per machine.
    machines: u8,
    next: [[u8; MAX_STATES]; MAX_MACHINES],
}

impl Row {
    /// It changes nothing.
    const NONE: Self = Self { machines: 0, next: [[0, 1, 2, 3, 4, 5, 6, 7]; MAX_MACHINES] };

    /// Moves the machines along; true if any changed its state.
    #[inline]
    pub(crate) fn apply(&self, states: &mut [u8; MAX_MACHINES]) -> bool {
        if self.machines == 0 {
            return false;
        }
        let before = *states;
        // Few things concern more than the first machines.
        for half in [0, HALF] {
            if self.machines >> half & FIRST != 0 {
                for (state, next) in states.iter_mut().zip(&self.next).skip(half).take(HALF) {
                    *state = next[usize::from(*state) % MAX_STATES];
                }
            }
        }
        *states != before
    }
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

    #[inline]
    pub(crate) fn row(&self, seen: Seen) -> Option<&Row> {
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
                if edge.leaves(state) && edge.on.is(seen) {
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
