//! Proving a model on the host: every state, every question, every event.
//!
//! No run uses this module, nor what it alone understands of a model: where the transfers of bus masters go ([`Memory`]) and
//! what would have to exit where nothing contains them ([`vet_set`]).
//!
//! [`check`] explores a model exhaustively and shows that
//! 1. each edge that starts a transfer names a check, of the kind that its transfer needs;
//! 2. from every combination of states a combination of rest can be reached;
//! 3. no transfer can start unvetted. Device memory, under isolation: the edge's own register is hooked,
//!    or every register its check depends on is (so that the verdict cannot change unseen), or all data
//!    passes a hooked window. Bus masters, where nothing contains them: the edge's own register is
//!    hooked *and* every register that holds an address or length, for a card reads those when it likes.
//!    Contained or mirrored, they need no check: an IOMMU or the monitor stands between;
//! 4. no unhooked access has an effect that a question asks about, no unhooked access moves a machine that
//!    is being followed, no read of a copy is unhooked that a copy cannot answer, and nothing is unhooked
//!    that the device does not have;
//! 5. what a hooked register means is known: the register that selects pages can be read back at each
//!    exit, or all that moves the machine that selects them is hooked;
//! 6. no hook is needless: with any one unit (port or page) taken out of a hook set, for reads or for
//!    writes, 3, 4 or 5 fails;
//! 7. on each page every byte is in exactly one register.
//!
//! The hook sets it judges come from [`hook_set`] and [`vet_set`]; the conditions are stated here anew.

mod memory;
mod vet;

pub use memory::Memory;
pub use vet::vet_set;

use crate::hooks::{HookSet, Questions};
use crate::language::{
    DeviceEvent, Edge, Effects, Event, MAX_MACHINES, MAX_REGISTERS, MAX_STATES, Machine, Register,
    RegisterId, Seen, Selector, Space, Start, Transfer,
};
use crate::model::{Model, hook_set};
use crate::track::Tracker;
use alloc::vec::Vec;

/// What is wrong with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The tables are larger than the code allows, or name what does not exist.
    Malformed,
    /// This byte of this register page is in no register, or in several.
    NotOneRegister(u8, u32),
    /// This edge (machine, index) starts a transfer without a check, or with one of the wrong kind.
    Unchecked(usize, usize),
    /// From these states no rest can be reached.
    NoRest([u8; MAX_MACHINES]),
    /// The register that selects register pages cannot be read.
    BlindSelector,
    /// In these states and this situation an access that matters is not hooked.
    Unhooked([u8; MAX_MACHINES], Situation),
    /// In these states and this situation this port or page is hooked for nothing.
    Needless([u8; MAX_MACHINES], Situation, u8),
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Combinations of states.
    pub states: usize,
    /// Events tried in each.
    pub events: usize,
    /// Hook sets judged.
    pub hook_sets: usize,
}

/// What a client of a device can be in, as far as it decides what must exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// What is asked.
    pub questions: Questions,
    /// Nothing contains the device's DMA, yet the client works its registers.
    pub uncontained: bool,
}

impl Situation {
    fn hook_set(self, model: &Model, states: &[u8]) -> HookSet {
        let set = hook_set(model, states, self.questions);
        if self.uncontained { set.union(vet_set(model)) } else { set }
    }
}

/// The situations that a client can be in, other than that it does not hold the device. A bus master is contained, or
/// vetted, or its client reads a mirror.
fn situations(model: &Model) -> impl Iterator<Item = Situation> {
    use Questions as Q;
    const ALONE: Situation = Situation { questions: Questions::SHADOW, uncontained: false };
    const VETTED: Situation = Situation { uncontained: true, ..ALONE };
    const MIRROR: Situation = Situation { questions: Questions::MIRROR, uncontained: false };
    let (basic, options) = match model.space {
        Space::Ports => ([ALONE].as_slice(), [Q::ISOLATE, Q::FOLLOW, Q::GUARD]),
        Space::Memory { .. } => ([ALONE, VETTED, MIRROR].as_slice(), [Q::ISOLATE, Q::FOLLOW, Q::PRESERVE]),
    };
    basic.iter().flat_map(move |situation| {
        (0u8..8).map(move |bits| {
            let chosen = options.into_iter().enumerate().filter(|(index, _)| bits & 1 << index != 0);
            let questions = chosen.fold(situation.questions, |all, (_, question)| all | question);
            Situation { questions, ..*situation }
        })
    })
}

/// Explores the model; the first fault found, or how much was explored.
pub fn check(model: &'static Model) -> Result<Extent, Fault> {
    check_hooks_of(model, model)
}

/// As [`check`], of the hook sets of a model that may be another one.
fn check_hooks_of(hooks_of: &Model, model: &'static Model) -> Result<Extent, Fault> {
    well_formed(model)?;
    one_register_each(model)?;
    for (machine, edges) in model.machines.iter().map(|machine| machine.edges).enumerate() {
        for (index, edge) in edges.iter().enumerate() {
            if edge.start.is_some_and(|start| !names_its_check(&start)) {
                return Err(Fault::Unchecked(machine, index));
            }
        }
    }
    if let Selector::Register(selector) = model.selector {
        let selector = model.register(selector).ok_or(Fault::Malformed)?;
        let blind = Effects::LASTING | Effects::TRANSIENT;
        if selector.write.intersects(blind) || !selector.read.is_empty() {
            return Err(Fault::BlindSelector);
        }
    }
    let events: Vec<Seen> = events(model).collect();
    reach_rest(model, &events)?;
    let mut extent = Extent { events: events.len(), ..Extent::default() };
    for states in combinations(model) {
        extent.states += 1;
        for situation in situations(model) {
            extent.hook_sets += 1;
            judge(model, states, situation, situation.hook_set(hooks_of, &states))?;
        }
    }
    Ok(extent)
}

fn judge(model: &Model, states: [u8; MAX_MACHINES], situation: Situation, set: HookSet) -> Result<(), Fault> {
    let beyond = !model.space.all_units(model.ports);
    if (set.reads & set.writes & beyond) != beyond || !sufficient(model, &states, situation, set) {
        return Err(Fault::Unhooked(states, situation));
    }
    // The permission map of ports knows no difference between reads and writes.
    let apart = model.space != Space::Ports;
    for unit in (0..32u8).filter(|unit| beyond >> unit & 1 == 0) {
        let without = 1 << unit;
        let fewer = [
            HookSet { reads: set.reads & !without, writes: set.writes & !without },
            HookSet { reads: set.reads & !without, writes: set.writes },
            HookSet { reads: set.reads, writes: set.writes & !without },
        ];
        for less in fewer.into_iter().take(if apart { 3 } else { 1 }) {
            if less != set && sufficient(model, &states, situation, less) {
                return Err(Fault::Needless(states, situation, unit));
            }
        }
    }
    Ok(())
}

fn well_formed(model: &Model) -> Result<(), Fault> {
    let known = |id: RegisterId| model.register(id).is_some();
    let bytes = bytes(model);
    let edge_is_sound = |machine: &Machine, edge: &Edge| {
        let on = match edge.on {
            Event::Write { register, .. } | Event::Read { register, .. } => known(register),
            Event::Device(_) => true,
        };
        on && usize::from(edge.to) < machine.states.len()
            && edge.start.is_none_or(|start| {
                start.address.iter().chain(start.length).all(|id| known(*id))
                    && !matches!(start.transfer, Transfer::Window(port) if !known(port))
            })
    };
    let machine_is_sound = |machine: &Machine| {
        let count = machine.states.len();
        count <= MAX_STATES
            && usize::from(machine.unseen) < count
            && machine.told.iter().all(|told| {
                // Looking must change nothing.
                let harmless = |register: &Register| !register.read.contains(Effects::CONSUMES);
                usize::from(told.state) < count && model.register(told.register).is_some_and(harmless)
            })
            && machine.edges.iter().all(|edge| edge_is_sound(machine, edge))
    };
    let selects = match model.selector {
        Selector::Machine(machine) => usize::from(machine) < model.machines.len(),
        Selector::Register(register) => known(register),
        Selector::None => true,
    };
    let sound = model.registers.len() <= MAX_REGISTERS
        && model.machines.len() <= MAX_MACHINES
        && selects
        && bytes <= if model.space == Space::Ports { 32 } else { 32 << 12 }
        && model.registers.iter().all(|register| register.first <= register.last && register.last < bytes)
        && model.machines.iter().all(machine_is_sound);
    if sound { Ok(()) } else { Err(Fault::Malformed) }
}

const fn bytes(model: &Model) -> u32 {
    match model.space {
        Space::Ports => model.ports as u32,
        Space::Memory { bytes, .. } => bytes,
    }
}

/// The register pages that there are.
fn pages(model: &Model) -> u8 {
    match model.selector {
        Selector::None => 1,
        Selector::Register(_) => 4,
        Selector::Machine(machine) => {
            model.machines.get(usize::from(machine)).map_or(1, |it| it.states.len() as u8)
        }
    }
}

fn one_register_each(model: &Model) -> Result<(), Fault> {
    for page in 0..pages(model) {
        let mut here: Vec<&Register> =
            model.registers.iter().filter(|it| it.pages & 1 << page != 0).collect();
        here.sort_by_key(|register| register.first);
        let mut next = 0;
        for register in here {
            if register.first != next {
                return Err(Fault::NotOneRegister(page, next.min(register.first)));
            }
            next = register.last + 1;
        }
        if next != bytes(model) {
            return Err(Fault::NotOneRegister(page, next));
        }
    }
    Ok(())
}

/// Transfers of device memory name a check; those of a bus master a vetting, and what they reach depends on no register that
/// is not among the address and length.
fn names_its_check(start: &Start) -> bool {
    let known = |id: RegisterId, among: &[RegisterId]| among.contains(&id);
    let target = start.target.address_registers().into_iter().flatten().all(|id| known(id, start.address))
        && start.target.length_register().is_none_or(|id| known(id, start.length));
    match start.transfer.masters() {
        false => start.check.is_some() && start.vetting.is_none(),
        true => start.check.is_none() && start.vetting.is_some() && target && !start.address.is_empty(),
    }
}

/// Every combination of states.
fn combinations(model: &Model) -> impl Iterator<Item = [u8; MAX_MACHINES]> {
    let total: usize = model.machines.iter().map(|machine| machine.states.len()).product();
    (0..total).map(|mut number| {
        let mut states = [0; MAX_MACHINES];
        for (state, machine) in states.iter_mut().zip(model.machines) {
            let count = machine.states.len().max(1);
            *state = (number % count) as u8;
            number /= count;
        }
        states
    })
}

/// Its number in that order.
fn number(model: &Model, states: &[u8; MAX_MACHINES]) -> usize {
    let digits = model.machines.iter().zip(states).rev();
    digits.fold(0, |number, (machine, state)| number * machine.states.len().max(1) + usize::from(*state))
}

/// Every event that could matter: of each register that an edge looks at, each value of the bits that
/// any edge looks at, and all that the device can report.
fn events(model: &Model) -> impl Iterator<Item = Seen> {
    let looked_at = move |id: RegisterId, write: bool| {
        let edges = model.machines.iter().flat_map(|machine| machine.edges);
        let masks = edges.filter_map(move |edge| match edge.on {
            Event::Write { register, mask, .. } if write && register == id => Some(mask),
            Event::Read { register, mask, .. } if !write && register == id => Some(mask),
            _ => None,
        });
        masks.reduce(|all, mask| all | mask)
    };
    let all = (0..model.registers.len() as u8).map(RegisterId);
    let accesses = all.flat_map(move |id| {
        [true, false].into_iter().filter_map(move |write| Some((id, write, looked_at(id, write)?)))
    });
    let accesses = accesses.flat_map(|(id, write, mask)| {
        values(mask).map(move |value| if write { Seen::WriteWord(id, value) } else { Seen::Read(id, value) })
    });
    accesses.chain(DeviceEvent::ALL.map(Seen::Device))
}

/// Each value that has no bits but these.
fn values(mask: u32) -> impl Iterator<Item = u32> {
    let mut next = Some(0u32);
    core::iter::from_fn(move || {
        let value = next?;
        // The next larger value within the mask; 0 again at the end.
        let after = (value | !mask).wrapping_add(1) & mask;
        next = (after != 0).then_some(after);
        Some(value)
    })
}

/// Which combinations can reach one of rest: those of rest, then all from which an event leads to
/// one that can, until there are no more.
fn reach_rest(model: &Model, events: &[Seen]) -> Result<(), Fault> {
    let all: Vec<[u8; MAX_MACHINES]> = combinations(model).collect();
    let mut before: Vec<Vec<usize>> = all.iter().map(|_| Vec::new()).collect();
    let mut reaches: Vec<bool> = all.iter().map(|states| Tracker::at(*states).resting(model)).collect();
    for (from, states) in all.iter().enumerate() {
        for event in events {
            let mut there = Tracker::at(*states);
            if there.step(model, *event) {
                before[number(model, there.states())].push(from);
            }
        }
    }
    let mut open: Vec<usize> = (0..all.len()).filter(|index| reaches[*index]).collect();
    while let Some(index) = open.pop() {
        for from in core::mem::take(&mut before[index]) {
            if !reaches[from] {
                reaches[from] = true;
                open.push(from);
            }
        }
    }
    match all.iter().zip(reaches).find(|(_, reaches)| !reaches) {
        Some((states, _)) => Err(Fault::NoRest(*states)),
        None => Ok(()),
    }
}

/// Conditions 3 to 5.
fn sufficient(model: &Model, states: &[u8], situation: Situation, set: HookSet) -> bool {
    let judged = Judged { model, states, situation, set };
    model.registers.iter().enumerate().all(|(index, register)| judged.effects(index, register))
        && model.machines.iter().zip(states).enumerate().all(|(index, (machine, &state))| {
            let says = matches!(model.selector, Selector::Machine(it) if usize::from(it) == index);
            judged.machine(machine, state, says)
        })
}

/// A hook set and what it is to be sufficient for.
struct Judged<'a> {
    model: &'a Model,
    states: &'a [u8],
    situation: Situation,
    set: HookSet,
}

impl Judged<'_> {
    fn asks(&self, question: Questions) -> bool {
        self.situation.questions.contains(question)
    }

    fn reads(&self, register: &Register) -> bool {
        let units = register.units(self.model.space);
        self.set.reads & units == units
    }

    fn writes(&self, register: &Register) -> bool {
        let units = register.units(self.model.space);
        self.set.writes & units == units
    }

    fn writes_id(&self, id: &RegisterId) -> bool {
        self.model.register(*id).is_some_and(|register| self.writes(register))
    }

    fn sees(&self, event: Event) -> bool {
        match event {
            Event::Write { register, .. } => self.writes_id(&register),
            Event::Read { register, .. } => self.model.register(register).is_some_and(|it| self.reads(it)),
            Event::Device(_) => true,
        }
    }

    /// Condition 4 for one register.
    fn effects(&self, index: usize, register: &Register) -> bool {
        let (r, w) = (register.read, register.write);
        let isolated = self.asks(Questions::ISOLATE);
        let must_read = r.contains(Effects::RESETS) && (self.asks(Questions::SHADOW) || isolated)
            || isolated && r.intersects(Effects::REVEALS_MEMORY | Effects::REVEALS_RECEIVE)
            || self.situation.uncontained && r.contains(Effects::SHOWS_ADDRESS)
            || self.asks(Questions::MIRROR)
                && r.intersects(Effects::CONSUMES | Effects::CHANGES)
                && self.can_not_be_copied(index);
        let must_write = self.asks(Questions::MIRROR)
            || self.asks(Questions::SHADOW)
                && w.intersects(Effects::LASTING | Effects::RESETS | Effects::UNLOCKS)
            || isolated
                && w.intersects(
                    Effects::WRITES_MEMORY
                        | Effects::MOVES_RECEIVE
                        | Effects::MOVES_SEND
                        | Effects::RESETS
                        | Effects::UNLOCKS,
                )
            || self.asks(Questions::FOLLOW) && w.contains(Effects::TRANSIENT)
            || self.asks(Questions::GUARD) && w.contains(Effects::COMMANDS)
            || self.asks(Questions::PRESERVE)
                && w.intersects(Effects::UNLOCKS | Effects::LINGERS | Effects::BURNS);
        (!must_read || self.reads(register)) && (!must_write || self.writes(register))
    }

    /// Now. Always, unless a machine knows: then in the states from which a read is an edge.
    fn can_not_be_copied(&self, index: usize) -> bool {
        let looks = |edge: &&Edge| matches!(edge.on, Event::Read { register, .. } if usize::from(register.0) == index);
        let mut known = self.model.machines.iter().zip(self.states).filter_map(|(machine, state)| {
            let mut edges = machine.edges.iter().filter(looks).peekable();
            edges.peek()?;
            Some(edges.any(|edge| edge.leaves(*state)))
        });
        match known.next() {
            Some(first) => first || known.any(|leaves| leaves),
            None => true,
        }
    }

    /// Conditions 3 to 5 for one machine; `says`: it says what registers mean.
    fn machine(&self, machine: &Machine, state: u8, says: bool) -> bool {
        machine.edges.iter().all(|edge| {
            let seen = self.sees(edge.on);
            let works = machine.states.iter().any(|state| !state.rest);
            let follow = self.asks(Questions::FOLLOW) && works && edge.leaves(state);
            let means = says && edge.leaves(state) && self.hooks_a_page();
            // Transfers start from any state: what is not followed may be anywhere.
            let vetted = edge.start.is_none_or(|start| self.vetted(&start, seen));
            vetted && (seen || !follow && !means)
        })
    }

    /// A register is hooked that another page does not have.
    fn hooks_a_page(&self) -> bool {
        let all = (1u16 << pages(self.model)) - 1;
        let single = |register: &&Register| u16::from(register.pages) & all != all;
        self.model.registers.iter().filter(single).any(|register| {
            let units = register.units(self.model.space);
            (self.set.reads | self.set.writes) & units != 0
        })
    }

    /// Condition 3.
    fn vetted(&self, start: &Start, seen: bool) -> bool {
        let mut inputs = start.address.iter().chain(start.length);
        match start.transfer {
            Transfer::Window(port) => {
                let window = self.model.register(port);
                !self.asks(Questions::ISOLATE)
                    || window.is_some_and(|window| self.reads(window) && self.writes(window))
            }
            Transfer::Send | Transfer::Receive => {
                !self.asks(Questions::ISOLATE) || seen || inputs.all(|id| self.writes_id(id))
            }
            Transfer::Fetch | Transfer::Fill | Transfer::Dump => {
                !self.situation.uncontained || seen && inputs.all(|id| self.writes_id(id))
            }
        }
    }
}

#[cfg(test)]
mod tests;
