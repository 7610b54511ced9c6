//! What each scheme of hooking costs, counted on real drivers' traces: the figures of docs/models/README.md.

use super::trace::{self, Access};
use sluice_model::check::vet_set;
use sluice_model::models::{e1000, rtl8139};
use sluice_model::{
    DeviceEvent, Effects, Event, Model, Questions, RegisterId, Seen, Selector, Tracker, hook_set, named,
};

/// Exits in the part of a trace from the first transmission on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exits {
    /// Everything, as with an emulated card or a page hooked for reads and writes.
    all: usize,
    /// What decides a transfer, if each register could be hooked by itself.
    registers: usize,
    /// The same by page.
    pages: usize,
    /// The read-only page: MIRROR.
    mirror: usize,
    /// SHADOW and PRESERVE, behind an IOMMU.
    preserve: usize,
    /// SHADOW alone.
    shadow: usize,
    /// FOLLOW, from the trace's own states.
    follow: usize,
}

/// `vet_set` would hook this register, were it alone.
fn decides(model: &Model, id: RegisterId, write: bool) -> bool {
    if !write {
        return model.register(id).is_some_and(|register| register.read.contains(Effects::SHOWS_ADDRESS));
    }
    let mut edges = model
        .machines
        .iter()
        .enumerate()
        .flat_map(|(machine, it)| it.edges.iter().map(move |edge| (machine, edge)));
    edges.any(|(machine, edge)| {
        let selects = model.selector == Selector::Machine(machine as u8);
        let looks = matches!(edge.on, Event::Write { register, .. } if register == id);
        looks && (selects || edge.start.is_some())
            || edge.start.is_some_and(|start| start.address.contains(&id) || start.length.contains(&id))
    })
}

/// Counts the longest stretch in which the receiver is not configured: before it is starting up, after it the end.
fn count(model: &'static Model, text: &str, configures: fn(u32) -> bool, cause: Option<u32>) -> Exits {
    let trace = trace::parse(text);
    let mut bounds: Vec<usize> =
        (0..trace.len()).filter(|&at| trace[at].write && configures(trace[at].offset)).collect();
    bounds.push(trace.len());
    let work =
        bounds.windows(2).map(|pair| pair[0] + 1..pair[1]).max_by_key(ExactSizeIterator::len).expect("two");
    let mut exits = Exits::default();
    let mut tracker = Tracker::new();
    for (index, Access { write, width, offset, value }) in trace.into_iter().enumerate() {
        let page = tracker.page(model).unwrap_or(0);
        if !write && Some(offset) == cause && value != 0 {
            tracker.step(model, Seen::Device(DeviceEvent::Caused));
        }
        if work.contains(&index) {
            let asks = |questions| {
                let set = hook_set(model, tracker.states(), questions);
                usize::from(set.catches_memory(offset, width, write))
            };
            let mut registers = named(model, page, offset, width, value);
            exits.all += 1;
            exits.registers += usize::from(registers.any(|(id, _)| decides(model, id, write)));
            let vetted = hook_set(model, tracker.states(), Questions::SHADOW).union(vet_set(model));
            exits.pages += usize::from(vetted.catches_memory(offset, width, write));
            exits.mirror += asks(Questions::MIRROR);
            exits.preserve += asks(Questions::SHADOW | Questions::PRESERVE);
            exits.follow += asks(Questions::SHADOW | Questions::FOLLOW);
            exits.shadow += asks(Questions::SHADOW);
        }
        for (id, value) in named(model, page, offset, width, value) {
            let seen = if write { Seen::WriteWord(id, value) } else { Seen::Read(id, value) };
            tracker.step(model, seen);
        }
        tracker.step(model, Seen::Device(DeviceEvent::Drained));
    }
    exits
}

/// Packets of each trace, sent and received, as the driver counted them.
const PACKETS: [(&str, usize); 3] = [("8139too", 107 + 127), ("8139cp", 91 + 126), ("e1000", 91 + 121)];

#[test]
fn exits_are_those_documented() {
    let counted = [
        count(&rtl8139::MODEL, trace::RTL8139_C, |offset| offset == 0x44, None),
        count(&rtl8139::MODEL, trace::RTL8139_CPLUS, |offset| offset == 0x44, None),
        count(
            &e1000::MODEL,
            trace::E1000,
            |offset| offset == 0x100 || (0x5200..0x5800).contains(&offset),
            Some(0xc0),
        ),
    ];
    let [too, cp, intel] = [
        Exits { all: 1641, registers: 107, pages: 1641, mirror: 617, preserve: 617, shadow: 0, follow: 617 },
        Exits { all: 783, registers: 88, pages: 783, mirror: 431, preserve: 431, shadow: 0, follow: 431 },
        Exits { all: 594, registers: 138, pages: 536, mirror: 436, preserve: 166, shadow: 0, follow: 249 },
    ];
    assert_eq!(counted, [too, cp, intel]);
    for ((name, packets), exits) in PACKETS.iter().zip(&counted) {
        let per = |count: usize| count as f64 / *packets as f64;
        println!(
            "| `{name}` | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            per(exits.all),
            per(exits.pages),
            per(exits.registers),
            per(exits.mirror),
            per(exits.preserve),
            per(exits.shadow)
        );
    }
}
