//! Hook sets, computed from a model, a state and what must be known now.
//!
//! [`hook_set`] is asked at exits, so all it does is join entries of a [`HookTable`] that the
//! compiler computed from the model.

use crate::model::{
    Effects, Event, MAX_MACHINES, MAX_STATES, Machine, Model, Register, RegisterId, Selector, Space,
};

bitflags::bitflags! {
    /// What must be known or prevented now. The hook set answers exactly these.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Questions: u8 {
        /// Keep what the device will not give back: values that cannot be read, and its identity.
        const SHADOW = 1;
        /// Several clients use the device: received data and device memory must stay apart.
        const ISOLATE = 2;
        /// Somebody waits: when is the device reusable?
        const FOLLOW = 4;
        /// This client stopped reception for others before: see the commands that can.
        const GUARD = 8;
        /// The client does not hold the device: see everything.
        const ABSENT = 16;
        /// The client reads a copy of its registers: which reads cannot be answered so? And all writes.
        const MIRROR = 32;
        /// Nothing contains the device's DMA, yet the client works its registers: see what starts a
        /// transfer and what holds an address or length of one.
        const VET = 64;
        /// Nobody will put right what the client does to PHY, power, wake-up, EEPROM: see it.
        const PRESERVE = 128;
    }
}

/// The accesses that must exit, reads and writes apart, by unit of hooking: ports, or pages of 4 KiB
/// of a device in memory. AMD's I/O permission map has one bit per port: use [`Self::ports`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    pub(crate) reads: u32,
    pub(crate) writes: u32,
}

impl HookSet {
    /// Everything exits.
    pub const ALL: Self = Self { reads: u32::MAX, writes: u32::MAX };
    /// Nothing exits.
    pub const NONE: Self = Self { reads: 0, writes: 0 };

    /// Reads of this port or page must exit. What the device does not have always exits.
    pub const fn reads(self, unit: u32) -> bool {
        unit >= 32 || self.reads & (1 << unit) != 0
    }

    /// Writes of this port or page must exit. What the device does not have always exits.
    pub const fn writes(self, unit: u32) -> bool {
        unit >= 32 || self.writes & (1 << unit) != 0
    }

    /// Bit `n` set: port offset `n` must exit.
    pub const fn ports(self) -> u32 {
        self.reads | self.writes
    }

    /// An access of `width` bytes at port `offset` exits.
    pub const fn catches(self, offset: u16, width: u8) -> bool {
        let mut byte = 0;
        while byte < width as u16 {
            let port = offset.wrapping_add(byte);
            if port >= 32 || self.ports() & (1 << port) != 0 {
                return true;
            }
            byte += 1;
        }
        false
    }

    /// An access of `width` bytes at `offset` of a device in memory exits.
    pub const fn catches_memory(self, offset: u32, width: u8, write: bool) -> bool {
        let mut page = offset >> 12;
        while page <= offset.saturating_add((width as u32).saturating_sub(1)) >> 12 {
            if if write { self.writes(page) } else { self.reads(page) } {
                return true;
            }
            page += 1;
        }
        false
    }

    const fn and(self, other: Self) -> Self {
        Self { reads: self.reads | other.reads, writes: self.writes | other.writes }
    }
}

impl Questions {
    /// The effects that must be seen to answer these questions.
    const fn effects(self) -> Effects {
        let mut wanted = Effects::empty();
        if self.contains(Self::SHADOW) {
            wanted = wanted.union(Effects::LASTING).union(Effects::RESETS).union(Effects::UNLOCKS);
        }
        if self.contains(Self::ISOLATE) {
            wanted = wanted
                .union(Effects::REVEALS_MEMORY)
                .union(Effects::REVEALS_RECEIVE)
                .union(Effects::WRITES_MEMORY)
                .union(Effects::MOVES_RECEIVE)
                .union(Effects::MOVES_SEND)
                .union(Effects::RESETS)
                .union(Effects::UNLOCKS);
        }
        if self.contains(Self::FOLLOW) {
            wanted = wanted.union(Effects::TRANSIENT);
        }
        if self.contains(Self::GUARD) {
            wanted = wanted.union(Effects::COMMANDS);
        }
        if self.contains(Self::VET) {
            wanted = wanted.union(Effects::SHOWS_ADDRESS);
        }
        if self.contains(Self::PRESERVE) {
            wanted = wanted.union(Effects::UNLOCKS).union(Effects::LINGERS).union(Effects::BURNS);
        }
        wanted
    }
}

/// Reads that a copy cannot answer.
const UNCOPIED: Effects = Effects::CONSUMES.union(Effects::CHANGES);

/// Hook sets by question and by state.
#[derive(Debug)]
pub(crate) struct HookTable {
    /// What questions ask whatever the state, by their bits.
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
            table.asked[bits] = alone.and(table.asked[rest]);
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
        if questions.contains(Questions::VET) {
            set = set.and(self.vetted());
        }
        set
    }

    /// Everything that decides a transfer: its edges, its address, its length, and which registers those are.
    const fn vetted(&self) -> HookSet {
        let mut set = HookSet::NONE;
        let mut machine = 0;
        while machine < self.machines.len() {
            let edges = self.machines[machine].edges;
            let selects =
                matches!(self.selector, Selector::Machine(selector) if selector as usize == machine);
            let mut index = 0;
            while index < edges.len() {
                if let Some(start) = edges[index].start {
                    set.writes |= self.all_of(start.address) | self.all_of(start.length);
                }
                if edges[index].start.is_some() || selects {
                    set = set.and(self.looks_at(edges[index].on));
                }
                index += 1;
            }
            machine += 1;
        }
        set
    }

    const fn all_of(&self, ids: &[RegisterId]) -> u32 {
        let mut units = 0;
        let mut index = 0;
        while index < ids.len() {
            units |= self.units(ids[index]);
            index += 1;
        }
        units
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
                set = set.and(self.looks_at(edges[index].on));
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
                set = set.and(self.looks_at(edges[index].on));
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

/// What must exit for these questions while the machines are in these states (in the model's order;
/// they count only for FOLLOW and MIRROR): every register with an effect that a question asks about; to
/// vet, all that decides a transfer; to follow the device, every register that an edge leaving a present
/// state looks at.
pub fn hook_set(model: &Model, states: &[u8], questions: Questions) -> HookSet {
    let table = &model.tables.hooks;
    let mut set = table.asked[usize::from(questions.bits())];
    if questions.contains(Questions::FOLLOW) {
        set = by_state(set, &table.followed, model.machines.len(), states);
    }
    if questions.contains(Questions::MIRROR) {
        set = by_state(set, &table.mirrored, model.machines.len(), states);
    }
    set
}

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
        .fold(set, |set, (row, state)| set.and(row[usize::from(*state) % MAX_STATES]))
}
