//! The short way of the hypercall that a kernel makes most often, beside the long one.

use super::*;

/// A processor's exit for SYSCALL of the kernel's: by the short way, or by the long one if that is none.
fn shortly(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) -> (After, bool) {
    let (after, was_short) = model::call(guest, machine, registers);
    // Nobody looks for events after the short way.
    let after = if was_short { after } else { told(guest, machine, registers, after) };
    guest.leave_host(machine);
    (after, was_short)
}

fn at_length(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) -> After {
    let after = guest.syscall(machine, registers, true);
    let after = told(guest, machine, registers, after);
    guest.leave_host(machine);
    after
}

fn told(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers, after: After) -> After {
    if after == After::Enter { guest.deliver(machine, registers) } else { after }
}

/// What is asked for: the call with its arguments but the list, and the words of that.
#[derive(Clone, Debug)]
struct Case {
    call: (u64, [u64; 3]),
    list: u64,
    request: [u64; 2],
    in_kernel: bool,
    /// Of `struct vcpu_info`: an event waits, and is not to be told of.
    events: (bool, bool),
}

/// An address that a kernel may have its list at: mostly where it has one.
fn list() -> impl Strategy<Value = u64> {
    let (_, page) = spare(730);
    prop_oneof![8 => Just(page), 1 => Just(page + 4088), 1 => Just(page + 4), 1 => Just(0), 1 => any::<u64>()]
}

/// Of the page tables that a small guest begins with, one of each kind, and memory: its place in the way from the root; the entry; what is to be done with it.
fn request() -> impl Strategy<Value = (usize, u64, u64)> {
    (
        prop_oneof![1 => 0..3usize, 8 => Just(3usize), 1 => Just(4usize)],
        0..512u64,
        prop_oneof![9 => Just(0u64), 3 => 1..8u64],
    )
}

fn value() -> impl Strategy<Value = u64> {
    const FLAGS: [u64; 8] = [0, 1, 2, 3, 7, 0x67, 0x87, 1 << 63 | 5];
    (FIRST - 1..FIRST + FRAMES + 1, prop::sample::select(&FLAGS[..]))
        .prop_map(|(frame, flags)| frame << 12 | flags)
}

fn case() -> impl Strategy<Value = Case> {
    let number = prop_oneof![12 => Just(call::MMU_UPDATE), 1 => Just(call::MMUEXT_OP), 1 => 0..48u64];
    let count = prop_oneof![12 => Just(1u64), 1 => 0..3u64, 1 => any::<u64>()];
    let done_at = prop_oneof![12 => Just(0u64), 1 => Just(spare(731).1), 1 => any::<u64>()];
    let whose = prop_oneof![12 => Just(SELF), 1 => Just(0u64)];
    let events = prop_oneof![8 => Just((false, false)), 1 => any::<(bool, bool)>()];
    let call = (number, (count, done_at, whose));
    let (guest, machine, _) = model::guest();
    let mut tables = [guest.cpu.root; 5];
    for (at, shift) in [39, 30, 21, 12].into_iter().enumerate() {
        let index = spare(732).1 as usize >> shift & 511;
        tables[at + 1] = crate::memory::entry(&machine, tables[at], index).frame();
    }
    (call, list(), request(), value(), prop::bool::weighted(0.95), events).prop_map(
        move |((number, (count, done_at, whose)), list, (step, index, kind), value, in_kernel, events)| {
            let request = [tables[step].0 * 4096 + index * 8 + kind, value];
            Case { call: (number, [count, done_at, whose]), list, request, in_kernel, events }
        },
    )
}

impl Case {
    fn prepare(&self, guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) {
        guest.cpu.kernel = true;
        let _ = guest.copy_out(machine, self.list, self.request.map(u64::to_le_bytes).as_flattened());
        let (number, [count, done_at, whose]) = self.call;
        registers.gpr = core::array::from_fn(|register| 0x1111 * register as u64);
        registers.gpr[gpr::RAX] = number;
        (registers.gpr[gpr::RDI], registers.gpr[gpr::RSI]) = (self.list, count);
        (registers.gpr[gpr::RDX], registers.gpr[10]) = (done_at, whose);
        (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]) = (BASE + 0x7000, u64::MAX);
        registers.gpr[gpr::RSP] = spare(740).1;
        guest.cpu.kernel = self.in_kernel;
        guest.cpu.kernel_sp = spare(741).1;
        guest.cpu.callbacks[0] = crate::processor::Callback { address: BASE + 0x5000, mask_events: true };
        let (info, offset) = guest.cpu.info;
        let (pending, mask) = self.events;
        Host::write(machine, info, offset, &[u8::from(pending), u8::from(mask)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// By the short way a guest has what it has by the long one, whatever it asks for.
    #[test]
    fn the_short_way_leads_where_the_long_one_does(cases in prop::collection::vec(case(), 1..12)) {
        let (mut guest, mut machine, mut registers) = model::guest();
        let (mut other, mut same, mut others) = model::guest();
        for case in cases {
            case.prepare(&mut guest, &mut machine, &mut registers);
            case.prepare(&mut other, &mut same, &mut others);
            let (after, _) = shortly(&mut guest, &mut machine, &mut registers);
            prop_assert_eq!(after, at_length(&mut other, &mut same, &mut others), "{:?}", case);
            prop_assert_eq!(registers, others, "{:?}", case);
            prop_assert!(machine.memory == same.memory, "{:?}", case);
            // How much may be looked at is said anew before anything is.
            [&mut guest, &mut other].into_iter().for_each(|guest| guest.types.allow(0));
            prop_assert!(guest.types == other.types, "{:?}", case);
            prop_assert_eq!((guest.counters, guest.last_refused), (other.counters, other.last_refused));
            prop_assert_eq!((machine.flushes, machine.hides, machine.shows), (same.flushes, same.hides, same.shows));
            model::check(&guest, &machine);
            if let After::End(_) = after {
                break;
            }
        }
    }
}

#[test]
fn one_entry_of_the_lowest_level_is_answered_shortly_and_nothing_else_is() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (frame, address) = spare(700);
    let place = leaf(&machine, guest.cpu.root, address).unwrap();
    let at = place.table.0 * 4096 + place.index as u64 * 8;
    let value = Entry::new(frame, Entry::PRESENT).bits();
    let plain = Case {
        call: (call::MMU_UPDATE, [1, 0, SELF]),
        list: spare(730).1,
        request: [at, value],
        in_kernel: true,
        events: (false, true),
    };
    let mut is_short = |guest: &mut Guest, machine: &mut Machinery, case: &Case| {
        case.prepare(guest, machine, &mut registers);
        shortly(guest, machine, &mut registers).1
    };
    assert!(is_short(&mut guest, &mut machine, &plain));
    let refused = Case { request: [at, 1 << 40 | 1], ..plain.clone() };
    assert!(is_short(&mut guest, &mut machine, &refused), "an error is an answer");
    // What is remembered of an address is not, when its own entry is another one.
    let list = leaf(&machine, guest.cpu.root, plain.list).unwrap();
    let request = [list.table.0 * 4096 + list.index as u64 * 8, 0];
    assert!(is_short(&mut guest, &mut machine, &Case { request, ..plain.clone() }));
    model::check(&guest, &machine);
    let root = guest.cpu.root.0 * 4096;
    let others = [
        Case { events: (true, true), ..plain.clone() },
        Case { in_kernel: false, ..plain.clone() },
        Case { list: 0, ..plain.clone() },
        Case { request: [root, 0], ..plain.clone() },
        Case { request: [at | 1, value], ..plain.clone() },
        Case { request: [at | 4, value], ..plain.clone() },
        Case { request: [frame.0 * 4096, value], ..plain.clone() },
        Case { call: (call::MMU_UPDATE, [2, 0, SELF]), ..plain.clone() },
        Case { call: (call::MMU_UPDATE, [1, address, SELF]), ..plain.clone() },
        Case { call: (call::MMU_UPDATE, [1, 0, 0]), ..plain.clone() },
    ];
    for case in others {
        let (mut guest, mut machine, mut registers) = model::guest();
        case.prepare(&mut guest, &mut machine, &mut registers);
        let [rdi, rsi, rdx, r10] = [7, 6, 2, 10].map(|register: usize| registers.gpr[register]);
        let (before, counters) = (machine.memory.clone(), guest.counters);
        let answer = guest.answer_quickly(&mut machine, [rdi, rsi, rdx, r10]);
        assert_eq!(answer, None, "{case:?}");
        assert!(machine.memory == before && guest.counters == counters, "{case:?}: nothing was done");
    }
}
