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

/// Pages whose reads and whose writes exit.
fn hooked(model: &'static Model, states: &Tracker, questions: Questions) -> (Vec<u32>, Vec<u32>) {
    let set = hook_set(model, states.states(), questions);
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
    assert_eq!(hooked(model, &quiet, Q::VET), (page.clone(), page.clone()));
    assert_eq!(hooked(model, &quiet, Q::MIRROR), (none.clone(), page.clone()));
    assert_eq!(hooked(model, &unseen, Q::MIRROR), (page.clone(), page.clone()));

    let model = &e1000::MODEL;
    let (quiet, unseen) = (Tracker::new(), Tracker::unseen(model));
    assert_eq!(hooked(model, &quiet, Q::SHADOW), (none.clone(), none.clone()));
    assert_eq!(hooked(model, &quiet, Q::SHADOW | Q::ISOLATE), ((16..32).collect(), (16..32).collect()));
    assert_eq!(hooked(model, &quiet, Q::PRESERVE), (none.clone(), [0, 5, 9].into()));
    assert_eq!(hooked(model, &quiet, Q::FOLLOW), (none.clone(), page.clone()));
    assert_eq!(hooked(model, &unseen, Q::FOLLOW), (none, [0, 3].into()));
    assert_eq!(hooked(model, &quiet, Q::VET), ([0, 2, 3].into(), [0, 2, 3].into()));
    assert_eq!(hooked(model, &quiet, Q::MIRROR), ([4].into(), (0..32).collect()));
    assert_eq!(hooked(model, &unseen, Q::MIRROR), ([0, 4].into(), (0..32).collect()));
}
