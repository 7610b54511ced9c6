//! Hook sets by question and by state, computed by the compiler: all that is left at an exit is to join them.

use crate::hooks::{HookSet, Questions};
use crate::language::{
    Effects, Event, MAX_MACHINES, MAX_STATES, Machine, Register, RegisterId, Selector, Space,
};

/// Reads that a copy cannot answer.
const UNCOPIED: Effects = Effects::CONSUMES.union(Effects::CHANGES);

/// Hook sets by question and by state.
#[derive(Debug)]
pub(crate) struct HookTable {
    /// What questions ask whatever the state, by their bits. Also for bits that are no question: then no index is out of
    /// range.
    asked: [HookSet; 256],
    /// What FOLLOW asks in addition, by machine and state.
    followed: [[HookSet; MAX_STATES]; MAX_MACHINES],
    /// What MIRROR asks in addition.
    mirrored: [[HookSet; MAX_STATES]; MAX_MACHINES],
}

impl HookTable {
    pub(crate) const fn new(
        space: Space,
        ports: u16,
        selector: Selector,
        registers: &[Register],
        machines: &[Machine],
    ) -> Self {
        let model = Parts { space, all: space.all_units(ports), selector, registers, machines };
        let mut table = Self {
            asked: [HookSet::NONE; 256],
            followed: [[HookSet::NONE; MAX_STATES]; MAX_MACHINES],
            mirrored: [[HookSet::NONE; MAX_STATES]; MAX_MACHINES],
        };
        // What several questions ask is what each of them asks.
        table.asked[0] = model.asked(Questions::empty());
        let mut bits: usize = 1;
        while bits < 256 {
            let rest = bits & (bits - 1);
            let lowest = Questions::from_bits_retain((bits - rest) as u8);
            let alone = if rest == 0 { model.asked(lowest) } else { table.asked[bits - rest] };
            table.asked[bits] = alone.union(table.asked[rest]);
            bits += 1;
        }
        let mut machine = 0;
        while machine < machines.len() {
            let mut state = 0;
            while state < machines[machine].states.len() {
                table.followed[machine][state] = model.followed(machine, state as u8);
                table.mirrored[machine][state] = model.mirrored(machine, state as u8);
                state += 1;
            }
            machine += 1;
        }
        table
    }
    /// What must exit for these questions in these states of so many machines.
    #[inline]
    pub(crate) fn set(&self, machines: usize, states: &[u8], questions: Questions) -> HookSet {
        let mut set = self.asked[usize::from(questions.bits())];
        if questions.contains(Questions::FOLLOW) {
            set = by_state(set, &self.followed, machines, states);
        }
        if questions.contains(Questions::MIRROR) {
            set = by_state(set, &self.mirrored, machines, states);
        }
        set
    }
}

#[inline]
fn by_state(
    set: HookSet,
    table: &[[HookSet; MAX_STATES]; MAX_MACHINES],
    machines: usize,
    states: &[u8],
) -> HookSet {
    table
        .iter()
        .take(machines)
        .zip(states)
        .fold(set, |set, (row, state)| set.union(row[usize::from(*state) % MAX_STATES]))
}

/// What a model consists of, for computing tables.
struct Parts<'a> {
    space: Space,
    all: u32,
    selector: Selector,
    registers: &'a [Register],
    machines: &'a [Machine],
}

impl Parts<'_> {
    const fn units(&self, id: RegisterId) -> u32 {
        self.registers[id.0 as usize].units(self.space)
    }

    const fn asked(&self, questions: Questions) -> HookSet {
        if questions.contains(Questions::ABSENT) {
            return HookSet::ALL;
        }
        let wanted = questions.effects();
        // What is not there is never direct.
        let mut set = HookSet { reads: !self.all, writes: !self.all };
        let mut index = 0;
        while index < self.registers.len() {
            let register = &self.registers[index];
            if register.read.intersects(wanted) {
                set.reads |= register.units(self.space);
            }
            if register.write.intersects(wanted) {
                set.writes |= register.units(self.space);
            }
            if questions.contains(Questions::MIRROR)
                && register.read.intersects(UNCOPIED)
                && !self.is_read_by_an_edge(index)
            {
                set.reads |= register.units(self.space);
            }
            index += 1;
        }
        if questions.contains(Questions::MIRROR) {
            set.writes = u32::MAX;
        }
        set
    }

    /// What must be hooked to see this.
    const fn looks_at(&self, event: Event) -> HookSet {
        match event {
            Event::Write { register, .. } => HookSet { reads: 0, writes: self.units(register) },
            Event::Read { register, .. } => HookSet { reads: self.units(register), writes: 0 },
            Event::Device(_) => HookSet::NONE,
        }
    }

    /// To follow a machine that matters - it can be at work, or says what registers mean - every register
    /// that an edge leaving the state looks at.
    const fn followed(&self, machine: usize, state: u8) -> HookSet {
        let selects = matches!(self.selector, Selector::Machine(selector) if selector as usize == machine);
        let mut set = HookSet::NONE;
        if !self.machines[machine].works() && !selects {
            return set;
        }
        let edges = self.machines[machine].edges;
        let mut index = 0;
        while index < edges.len() {
            if edges[index].leaves(state) {
                set = set.union(self.looks_at(edges[index].on));
            }
            index += 1;
        }
        set
    }

    /// Reads of this state that a copy cannot answer.
    const fn mirrored(&self, machine: usize, state: u8) -> HookSet {
        let edges = self.machines[machine].edges;
        let mut set = HookSet::NONE;
        let mut index = 0;
        while index < edges.len() {
            if let Event::Read { register, .. } = edges[index].on
                && edges[index].leaves(state)
                && self.registers[register.0 as usize].read.intersects(UNCOPIED)
            {
                set = set.union(self.looks_at(edges[index].on));
            }
            index += 1;
        }
        set
    }

    /// Then the state says when a copy cannot answer.
    const fn is_read_by_an_edge(&self, id: usize) -> bool {
        let mut machine = 0;
        while machine < self.machines.len() {
            let edges = self.machines[machine].edges;
            let mut index = 0;
            while index < edges.len() {
                if let Event::Read { register, .. } = edges[index].on
                    && register.0 as usize == id
                {
                    return true;
                }
                index += 1;
            }
            machine += 1;
        }
        false
    }
}
