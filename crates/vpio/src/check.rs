//! Proving a model on the host: every state, every question, every event.
//!
//! [`check`] explores a model exhaustively and shows that
//! 1. each edge that starts a transfer names a check;
//! 2. from every combination of states a combination of rest can be reached;
//! 3. under isolation no transfer can start unvetted: the edge's own register is hooked, or every
//!    register its check depends on is (so that the verdict cannot change unseen), or all data
//!    passes a hooked window;
//! 4. no unhooked access has an effect that a question asks about, and no unhooked write moves a
//!    machine that is being followed;
//! 5. the register that selects what other ports mean can be read back at each exit;
//! 6. no hook is needless: with any one port taken out of a hook set, 3 or 4 fails.
//!
//! The hook sets it judges come from [`hook_set`]; the conditions are stated here anew.

use crate::hooks::{HookSet, Questions, hook_set};
use crate::model::{DeviceEvent, Effects, Event, MAX_MACHINES, Model, Register, RegisterId, Transfer};
use crate::track::{Seen, Tracker};

/// What is wrong with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The tables are larger than the code allows, or name what does not exist.
    Malformed,
    /// This edge (machine, index) starts a transfer without a check.
    Unchecked(usize, usize),
    /// From these states no rest can be reached.
    NoRest([u8; MAX_MACHINES]),
    /// The register that selects register pages cannot be read.
    BlindSelector,
    /// With these states and questions an access that matters is not hooked.
    Unhooked([u8; MAX_MACHINES], Questions),
    /// With these states and questions this port is hooked for nothing.
    Needless([u8; MAX_MACHINES], Questions, u8),
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

/// The questions a holder can be under.
pub fn situations() -> impl Iterator<Item = Questions> {
    let options = [Questions::ISOLATE, Questions::FOLLOW, Questions::GUARD];
    (0u8..8).map(move |bits| {
        let chosen = options.iter().enumerate().filter(|(index, _)| bits & 1 << index != 0);
        chosen.fold(Questions::SHADOW, |all, (_, question)| all | *question)
    })
}

/// Explores the model; the first fault found, or how much was explored.
pub fn check(model: &'static Model) -> Result<Extent, Fault> {
    well_formed(model)?;
    for (machine, edges) in model.machines.iter().map(|machine| machine.edges).enumerate() {
        for (index, edge) in edges.iter().enumerate() {
            if edge.start.is_some_and(|start| start.check.is_none()) {
                return Err(Fault::Unchecked(machine, index));
            }
        }
    }
    let selector = model.register(model.selector).ok_or(Fault::Malformed)?;
    if selector.write.intersects(Effects::LASTING.union(Effects::TRANSIENT)) || !selector.read.is_empty() {
        return Err(Fault::BlindSelector);
    }
    let mut extent = Extent { events: events(model).count(), ..Extent::default() };
    for states in combinations(model) {
        extent.states += 1;
        reach_rest(model, states)?;
        for questions in situations() {
            extent.hook_sets += 1;
            let set = hook_set(model, &states, questions);
            if !sufficient(model, &states, questions, set) {
                return Err(Fault::Unhooked(states, questions));
            }
            for port in 0..32u8 {
                let less = HookSet { reads: set.reads & !(1 << port), writes: set.writes & !(1 << port) };
                if less != set && sufficient(model, &states, questions, less) {
                    return Err(Fault::Needless(states, questions, port));
                }
            }
        }
    }
    Ok(extent)
}

fn well_formed(model: &Model) -> Result<(), Fault> {
    let known = |id: &RegisterId| model.register(*id).is_some();
    let sound = model.registers.len() <= 64
        && model.machines.len() <= MAX_MACHINES
        && model.ports <= 32
        && model.registers.iter().all(|register| u16::from(register.last) < model.ports)
        && model.machines.iter().all(|machine| {
            let count = machine.states.len();
            count <= 8
                && usize::from(machine.unseen) < count
                && machine.edges.iter().all(|edge| {
                    let on = match edge.on {
                        Event::Write { register, .. } => known(&register),
                        Event::Device(_) => true,
                    };
                    on && usize::from(edge.to) < count
                        && edge.start.is_none_or(|start| {
                            start.address.iter().chain(start.length).all(known)
                                && !matches!(start.transfer, Transfer::Window(port) if !known(&port))
                        })
                })
        });
    if sound { Ok(()) } else { Err(Fault::Malformed) }
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

/// Every event that could matter: each value of each register that any edge looks at.
fn events(model: &Model) -> impl Iterator<Item = Seen> {
    let looked_at = move |id: RegisterId| {
        model
            .machines
            .iter()
            .flat_map(|machine| machine.edges)
            .any(move |edge| matches!(edge.on, Event::Write { register, .. } if register == id))
    };
    let writes = (0..model.registers.len() as u8).map(RegisterId).filter(move |id| looked_at(*id));
    let writes = writes.flat_map(|id| (0..=u8::MAX).map(move |value| Seen::Write(id, value)));
    writes.chain([Seen::Device(DeviceEvent::Sent)])
}

/// Breadth-first over combinations, which are few: at most 8 to the fourth.
fn reach_rest(model: &Model, from: [u8; MAX_MACHINES]) -> Result<(), Fault> {
    let mut seen = alloc::vec![from];
    let mut next = 0;
    while let Some(states) = seen.get(next).copied() {
        next += 1;
        let here = Tracker::at(states);
        if here.resting(model) {
            return Ok(());
        }
        for event in events(model) {
            let mut there = here;
            there.step(model, event);
            if !seen.contains(there.states()) {
                seen.push(*there.states());
            }
        }
    }
    Err(Fault::NoRest(from))
}

/// Conditions 3 and 4.
fn sufficient(model: &Model, states: &[u8], questions: Questions, set: HookSet) -> bool {
    let read = |register: &Register| set.reads & register.ports() == register.ports();
    let written = |register: &Register| set.writes & register.ports() == register.ports();
    let by_id = |id: &RegisterId, hooked: &dyn Fn(&Register) -> bool| model.register(*id).is_some_and(hooked);
    let isolated = questions.contains(Questions::ISOLATE);

    let registers = model.registers.iter().all(|register| {
        let (r, w) = (register.read, register.write);
        let must_read = r.contains(Effects::RESETS)
            || isolated && r.intersects(Effects::REVEALS_MEMORY | Effects::REVEALS_RECEIVE);
        let must_write = w.intersects(Effects::LASTING | Effects::RESETS | Effects::UNLOCKS)
            || isolated
                && w.intersects(Effects::WRITES_MEMORY | Effects::MOVES_RECEIVE | Effects::MOVES_SEND)
            || questions.contains(Questions::FOLLOW) && w.contains(Effects::TRANSIENT)
            || questions.contains(Questions::GUARD) && w.contains(Effects::COMMANDS);
        (!must_read || read(register)) && (!must_write || written(register))
    });
    let edges = model.machines.iter().zip(states).all(|(machine, &state)| {
        machine.edges.iter().all(|edge| {
            let seen = match edge.on {
                Event::Write { register, .. } => by_id(&register, &written),
                Event::Device(_) => true,
            };
            let follow = questions.contains(Questions::FOLLOW) && edge.leaves(state);
            // Transfers start from any state: what is not followed may be anywhere.
            let vetted = edge.start.is_none_or(|start| match start.transfer {
                Transfer::Window(port) => by_id(&port, &written) && by_id(&port, &read),
                Transfer::Send | Transfer::Receive => {
                    seen || start.address.iter().chain(start.length).all(|id| by_id(id, &written))
                }
            });
            (!follow || seen) && (!isolated || vetted)
        })
    });
    registers && edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models;
    use crate::models::ne2000::{MODEL, id};

    #[test]
    fn every_model_is_sound() {
        for model in models::ALL {
            let extent = check(model);
            assert!(extent.is_ok(), "{}: {extent:?}", model.name);
        }
        assert_eq!(check(&MODEL).map(|extent| extent.states), Ok(5 * 4 * 2));
    }

    #[test]
    fn the_checker_sees_what_is_missing() {
        let set = hook_set(&MODEL, &[1, 1, 1], Questions::SHADOW | Questions::ISOLATE);
        for id in [id::DATA, id::TPSR, id::TBCR1, id::RCR, id::IMR, id::CURR, id::PSTOP, id::RESET] {
            let ports = MODEL.register(id).map_or(0, Register::ports);
            let less = HookSet { reads: set.reads & !ports, writes: set.writes & !ports };
            assert!(!sufficient(&MODEL, &[1, 1, 1], Questions::SHADOW | Questions::ISOLATE, less));
        }
    }

    /// The hook sets a reader of docs/vpio.md is told.
    #[test]
    fn hook_sets_are_those_documented() {
        let sole = hook_set(&MODEL, &[], Questions::SHADOW).ports();
        assert_eq!(sole, 0xff00_f002);
        let shared = hook_set(&MODEL, &[], Questions::SHADOW | Questions::ISOLATE).ports();
        assert_eq!(shared, 0xffff_f0fe);
        let unseen: [u8; 3] = core::array::from_fn(|machine| MODEL.machines[machine].unseen);
        let followed = hook_set(&MODEL, &unseen, Questions::SHADOW | Questions::FOLLOW).ports();
        assert_eq!(followed, 0xff00_ff73);
        assert_eq!(hook_set(&MODEL, &[], Questions::ABSENT), HookSet::ALL);
    }
}
