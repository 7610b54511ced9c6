use super::*;
use crate::models;
use crate::models::ne2000::{MODEL, id};
use crate::tables::Tables;
use alloc::boxed::Box;

const NOTHING: Situation = Situation { questions: Questions::empty(), uncontained: false };

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
    let situation = Situation { questions: Questions::SHADOW | Questions::ISOLATE, uncontained: false };
    let set = situation.hook_set(&MODEL, &[1, 1, 1]);
    for id in [id::DATA, id::TPSR, id::TBCR1, id::RCR, id::IMR, id::CURR, id::PSTOP, id::RESET] {
        let ports = MODEL.register(id).map_or(0, |register| register.units(MODEL.space));
        let less = HookSet { reads: set.reads & !ports, writes: set.writes & !ports };
        assert!(!sufficient(&MODEL, &[1, 1, 1], situation, less));
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

/// Pages whose reads and whose writes exit.
fn hooked(model: &'static Model, states: &Tracker, questions: Questions) -> (Vec<u32>, Vec<u32>) {
    units(model, hook_set(model, states.states(), questions))
}

fn units(model: &Model, set: HookSet) -> (Vec<u32>, Vec<u32>) {
    let all = model.space.all_units(model.ports);
    let list = |mask: u32| (0..32).filter(|unit| (mask & all) >> unit & 1 != 0).collect();
    (list(set.reads), list(set.writes))
}

#[test]
fn hook_sets_of_bus_masters_are_those_documented() {
    use crate::models::{e1000, rtl8139};
    use Questions as Q;
    let [none, page]: [Vec<u32>; 2] = [Vec::new(), [0].into()];
    let model = &rtl8139::MODEL;
    let (quiet, unseen) = (Tracker::new(), Tracker::unseen(model));
    assert_eq!(hooked(model, &quiet, Q::SHADOW), (none.clone(), none.clone()));
    assert_eq!(hooked(model, &quiet, Q::PRESERVE), (none.clone(), page.clone()));
    assert_eq!(hooked(model, &unseen, Q::SHADOW | Q::FOLLOW), (none.clone(), page.clone()));
    assert_eq!(units(model, vet_set(model)), (page.clone(), page.clone()));
    assert_eq!(hooked(model, &quiet, Q::MIRROR), (none.clone(), page.clone()));
    assert_eq!(hooked(model, &unseen, Q::MIRROR), (page.clone(), page.clone()));

    let model = &e1000::MODEL;
    let (quiet, unseen) = (Tracker::new(), Tracker::unseen(model));
    assert_eq!(hooked(model, &quiet, Q::SHADOW), (none.clone(), none.clone()));
    assert_eq!(hooked(model, &quiet, Q::SHADOW | Q::ISOLATE), ((16..32).collect(), (16..32).collect()));
    assert_eq!(hooked(model, &quiet, Q::PRESERVE), (none.clone(), [0, 5, 9].into()));
    assert_eq!(hooked(model, &quiet, Q::FOLLOW), (none.clone(), page.clone()));
    assert_eq!(hooked(model, &unseen, Q::FOLLOW), (none, [0, 3].into()));
    assert_eq!(units(model, vet_set(model)), ([0, 2, 3].into(), [0, 2, 3].into()));
    assert_eq!(hooked(model, &quiet, Q::MIRROR), ([4].into(), (0..32).collect()));
    assert_eq!(hooked(model, &unseen, Q::MIRROR), ([0, 4].into(), (0..32).collect()));
}

/// A model that differs from a sound one.
fn changed(model: &Model, registers: &[Register], machines: &[Machine]) -> &'static Model {
    let tables = Tables::new(model.space, model.ports, model.selector, registers, machines);
    Box::leak(Box::new(Model {
        name: "changed",
        ids: &[],
        space: model.space,
        ports: model.ports,
        selector: model.selector,
        registers: registers.to_vec().leak(),
        machines: machines.to_vec().leak(),
        tables: Box::leak(Box::new(tables)),
    }))
}

/// The machine without, or with other, edges.
fn with_edges(machine: &Machine, change: impl FnMut(&Edge) -> Option<Edge>) -> Machine {
    let edges: Vec<Edge> = machine.edges.iter().filter_map(change).collect();
    Machine { edges: edges.leak(), ..*machine }
}

#[test]
fn a_transfer_without_its_check_is_found() {
    for model in models::ALL {
        for at in 0..model.machines.len() {
            for (index, _) in
                model.machines[at].edges.iter().enumerate().filter(|(_, edge)| edge.start.is_some())
            {
                let mut number = 0;
                let mut machines = model.machines.to_vec();
                machines[at] = with_edges(&machines[at], |edge| {
                    let start = edge.start.map(|start| match number == index {
                        true => Start { check: None, vetting: None, ..start },
                        false => start,
                    });
                    number += 1;
                    Some(Edge { start, ..*edge })
                });
                let broken = changed(model, model.registers, &machines);
                assert_eq!(check(broken), Err(Fault::Unchecked(at, index)), "{}", model.name);
            }
        }
    }
}

#[test]
fn an_address_that_is_not_watched_is_found() {
    for model in [&models::rtl8139::MODEL, &models::e1000::MODEL] {
        let machines: Vec<Machine> = model
            .machines
            .iter()
            .map(|machine| {
                with_edges(machine, |edge| {
                    let start = edge.start.map(|start| Start { address: &start.address[1..], ..start });
                    Some(Edge { start, ..*edge })
                })
            })
            .collect();
        let broken = changed(model, model.registers, &machines);
        assert!(matches!(check(broken), Err(Fault::Unchecked(..))), "{}", model.name);
    }
}

#[test]
fn a_byte_in_no_register_or_in_two_is_found() {
    for model in models::ALL {
        for index in 0..model.registers.len() {
            let mut registers = model.registers.to_vec();
            let gone = registers[index];
            registers[index].pages = 0;
            let broken = changed(model, &registers, model.machines);
            assert!(matches!(check(broken), Err(Fault::NotOneRegister(..))), "without {}", gone.name);
            let twice = [model.registers, &[gone]].concat();
            let broken = changed(model, &twice, model.machines);
            assert!(matches!(check(broken), Err(Fault::NotOneRegister(..))), "{} twice", gone.name);
        }
    }
}

#[test]
fn a_machine_that_never_rests_is_found() {
    for model in models::ALL {
        for at in 0..model.machines.len() {
            let machine = model.machines[at];
            let rests = |edge: &Edge| machine.states[usize::from(edge.to)].rest;
            if !machine.works() {
                continue;
            }
            let mut machines = model.machines.to_vec();
            machines[at] = with_edges(&machine, |edge| (!rests(edge)).then_some(*edge));
            let broken = changed(model, model.registers, &machines);
            assert!(matches!(check(broken), Err(Fault::NoRest(_))), "{}: {}", model.name, machine.name);
        }
    }
}

/// Hook sets of a model that forgot something are not enough for one that did not; and the other way
/// round they are too much. Only effects and edges that stand alone on their page show by themselves.
#[test]
fn hooks_too_few_and_too_many_are_found() {
    let model = &models::e1000::MODEL;
    for gone in [Effects::CONSUMES, Effects::SHOWS_ADDRESS, Effects::LINGERS, Effects::REVEALS_MEMORY] {
        let forget = |register: &Register| Register {
            read: register.read.difference(gone),
            write: register.write.difference(gone),
            ..*register
        };
        let fewer: Vec<Register> = model.registers.iter().map(forget).collect();
        let forgetful = changed(model, &fewer, model.machines);
        assert!(matches!(check_hooks_of(forgetful, model), Err(Fault::Unhooked(..))), "{gone:?}");
        assert!(matches!(check_hooks_of(model, forgetful), Err(Fault::Needless(..))), "{gone:?}");
    }
    for model in [&models::rtl8139::MODEL, &models::e1000::MODEL] {
        let idle = |edge: &Edge| Some(Edge { start: None, ..*edge });
        let fewer: Vec<Machine> = model.machines.iter().map(|machine| with_edges(machine, idle)).collect();
        let found = check_hooks_of(changed(model, model.registers, &fewer), model);
        // The RTL8139's mode must be seen anyway, and all is in its page.
        let expected = model.name == "e1000";
        assert_eq!(matches!(found, Err(Fault::Unhooked(..))), expected, "{}", model.name);
        let silent: Vec<Machine> =
            model.machines.iter().map(|machine| with_edges(machine, |_| None)).collect();
        let found = check_hooks_of(changed(model, model.registers, &silent), model);
        assert!(matches!(found, Err(Fault::Unhooked(..))), "{}", model.name);
    }
}

/// A register that says what a hooked one means must be seen, even on a page of its own.
#[test]
fn what_selects_the_meaning_must_be_hooked() {
    let model = &models::rtl8139::MODEL;
    let mut registers = model.registers.to_vec();
    for id in [models::rtl8139::id::CPCR, models::rtl8139::id::CR, models::rtl8139::id::CR9346] {
        let register = &mut registers[usize::from(id.0)];
        (register.first, register.last) = (register.first + 0x1000, register.last + 0x1000);
    }
    let space = match model.space {
        Space::Memory { narrow, .. } => Space::Memory { bytes: 0x2000, narrow },
        Space::Ports => Space::Ports,
    };
    let apart = Model { space, ..*changed(model, &registers, model.machines) };
    let states = [0; MAX_MACHINES];
    let of = |writes| HookSet { reads: 0, writes };
    assert!(sufficient(&apart, &states, NOTHING, of(0)));
    assert!(!sufficient(&apart, &states, NOTHING, of(1)), "TSD hooked, CPCR not");
    assert!(sufficient(&apart, &states, NOTHING, of(3)));
}

#[test]
fn a_selector_that_cannot_be_read_is_found() {
    let mut registers = MODEL.registers.to_vec();
    registers[usize::from(id::CMD.0)].write |= Effects::LASTING;
    assert_eq!(check(changed(&MODEL, &registers, MODEL.machines)), Err(Fault::BlindSelector));
}
