//! What the gate does beside what the hypervisor does in its place.

use super::{ask, poke, spare};
use crate::abi::{CS64, GATE_WIDE, GATE_WORDS, IN_SYSCALL, M2P, SS, call, rflags};
use crate::guest::gpr;
use crate::model::gate::{Left, page_fault, syscall};
use crate::model::{self, BASE, FIRST, Machinery};
use crate::processor::{Callback, Trap};
use crate::{After, Asked, Guest, Registers};
use alloc::vec::Vec;
use proptest::prelude::*;
use sluice_pagetypes::{Entry, Mfn};

/// Where the kernel wants system calls.
const ENTRY: u64 = BASE + 0x3000;
/// Of programs, as Linux has them.
const USER: (u16, u16) = (0x33, 0x2b);
/// More instructions than the gate has.
const ALL: usize = 200;

/// Where it wants page faults.
const FAULT_ENTRY: u64 = BASE + 0x4000;

/// A guest, and how it comes to the gate.
#[derive(Clone, Debug)]
struct Case {
    /// By a page fault: error code, address; else by SYSCALL.
    fault: Option<(u32, u64)>,
    trap: Trap,
    segments: (u16, u16),
    in_kernel: bool,
    number: u64,
    kernel_sp: u64,
    callback: Callback,
    mask: u8,
    pending: bool,
    has_programs: bool,
    selectors: (u16, u16),
    moved: bool,
    iopl: u8,
    registers: [u64; 4],
    /// What HYPERVISOR_iret takes, and where.
    frame: [u64; 9],
    sp: u64,
}

/// The guest of a case, each time the same.
fn set_up(case: &Case) -> (Guest, Machinery, Registers) {
    let (mut guest, mut machine, mut registers) = model::guest();
    let root = Mfn(FIRST + 720);
    if case.has_programs {
        let entry = Entry::new(root, Entry::PRESENT).bits();
        let address = BASE + 720 * 4096;
        assert_eq!(
            ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]),
            0
        );
        guest.types.pin(&mut machine, root, sluice_pagetypes::Kind::L4).unwrap();
        guest.types.hold_root(&mut machine, root).unwrap();
        guest.cpu.user_root = Some(root);
    }
    if case.moved {
        let (_, at) = spare(730);
        let (frame, _) = spare(731);
        poke(&guest, &mut machine, at, &[frame.0, 0x140]);
        assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::VCPU_OP, [10, 0, at, 0]), 0);
    }
    // An address of which the page after it is missing.
    let (_, last) = spare(741);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [last, 0, 2, 0]), 0);
    let bytes: Vec<u8> = case.frame.iter().flat_map(|word| word.to_le_bytes()).collect();
    let _ = guest.copy_out(&mut machine, case.sp, &bytes);
    guest.cpu.callbacks[2] = case.callback;
    guest.cpu.traps[14] = case.trap;
    (guest.cpu.kernel_sp, guest.cpu.iopl) = (case.kernel_sp, case.iopl);
    guest.allow_program(case.selectors.0, case.selectors.1);
    guest.cpu.kernel = case.in_kernel;
    guest.cpu.set_upcall_mask(&mut machine, false);
    let (info, offset) = guest.cpu.info;
    crate::Host::write(&mut machine, info, offset, &[u8::from(case.pending), case.mask]);
    guest.cpu.callbacks[0] = Callback { address: BASE + 0x5000, mask_events: true };
    guest.leave_host(&mut machine);
    let [rip, flags, other_gs, gs] = case.registers;
    registers = Registers { rip, rflags: crate::bounce::sane(flags), other_gs, gs_base: gs, ..registers };
    (registers.cs, registers.ss) = case.segments;
    registers.gpr = core::array::from_fn(|number| 0x1111 * number as u64);
    (registers.gpr[gpr::RAX], registers.gpr[gpr::RSP]) = (case.number, case.sp);
    (guest, machine, registers)
}

/// By the hypervisor.
fn slowly(case: &Case, guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) -> After {
    guest.enter_host(machine);
    finish(case, guest, machine, registers)
}

/// What follows an exit by what the case is.
fn finish(case: &Case, guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) -> After {
    let after = match case.fault {
        Some((error, address)) => guest.page_fault(machine, registers, error, address),
        None => guest.syscall(machine, registers, true),
    };
    let after = if after == After::Enter { guest.deliver(machine, registers) } else { after };
    guest.leave_host(machine);
    after
}

/// By the gate, of which so many instructions are executed before an interrupt; then by the hypervisor.
fn by_gate(
    case: &Case,
    guest: &mut Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    instructions: usize,
) -> (Left, After) {
    let before = *registers;
    let left = match case.fault {
        Some((error, address)) => {
            page_fault(guest, machine, registers, (error.into(), address), instructions)
        }
        None => syscall(guest, machine, registers, instructions),
    };
    guest.enter_host(machine);
    if left == Left::Passed {
        return (left, After::Enter);
    }
    let expected = match guest.leave_gate(machine, registers) {
        Asked::Fault { error, address } => {
            // After an interrupt the address may be that of the last one.
            let told = |address| if left == Left::Interrupted { 0 } else { address };
            let expected = case.fault.map(|(error, address)| (error, told(address)));
            assert_eq!(Some((error, told(address))), expected);
            before
        }
        // It happens again.
        Asked::Nothing if *registers == before => before,
        Asked::Nothing => {
            let after = guest.deliver(machine, registers);
            guest.leave_host(machine);
            return (left, after);
        }
        Asked::Call => {
            assert_eq!(case.fault, None);
            Registers { rip: registers.rip, cs: registers.cs, ss: registers.ss, ..with_call(before) }
        }
    };
    assert_eq!(*registers, expected, "the caller's registers, after {instructions} instructions");
    (left, finish(case, guest, machine, registers))
}

/// Registers as SYSCALL leaves them.
fn with_call(mut registers: Registers) -> Registers {
    (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]) = (registers.rip, registers.rflags);
    registers
}

/// Runs a case both ways, and compares. Returns how the gate was left.
fn compare(case: &Case, instructions: usize) -> Left {
    let (mut guest, mut machine, mut registers) = set_up(case);
    let mut expected = if case.fault.is_some() { registers } else { with_call(registers) };
    let after = slowly(case, &mut guest, &mut machine, &mut expected);
    let (mut other, mut memory, _) = set_up(case);
    let (left, met) = by_gate(case, &mut other, &mut memory, &mut registers, instructions);
    assert_eq!(met, after, "{left:?}");
    if let After::End(_) = after {
        assert_ne!(left, Left::Passed);
        return left;
    }
    if [ENTRY, FAULT_ENTRY].contains(&expected.rip) {
        // Its kernel finds these in its frame.
        for register in [gpr::RCX, gpr::R11] {
            registers.gpr[register] = expected.gpr[register];
        }
    }
    assert_eq!(registers, expected, "{left:?} after {instructions}");
    assert_eq!(other.cpu.kernel, guest.cpu.kernel);
    let words = (guest.cpu.gate_words.0 - FIRST) as usize * 4096;
    for memory in [&mut machine.memory, &mut memory.memory] {
        memory[words + 8..words + 4096].fill(0);
    }
    assert!(memory.memory == machine.memory, "what is in memory");
    left
}

fn call_of_a_program() -> Case {
    Case {
        fault: None,
        trap: Trap { address: FAULT_ENTRY, flags: 4 },
        segments: (CS64, SS),
        in_kernel: false,
        number: 39,
        kernel_sp: spare(705).1,
        callback: Callback { address: ENTRY, mask_events: true },
        mask: 0,
        pending: false,
        has_programs: true,
        selectors: USER,
        moved: false,
        iopl: 1,
        registers: [0x40_1000, 0x246, 0x7000_0000, 0x6000_0000],
        frame: [0; 9],
        sp: 0x7fff_1000,
    }
}

fn return_to_a_program() -> Case {
    let frame = [7, 0x11, 0xcc, 0, 0x40_1002, USER.0.into(), 0x246, 0x7fff_1000, USER.1.into()];
    Case { in_kernel: true, number: call::IRET, frame, sp: spare(706).1 + 64, mask: 1, ..call_of_a_program() }
}

fn fault_of_a_program() -> Case {
    Case { fault: Some((6, 0x1234_5678)), segments: (USER.0, USER.1), ..call_of_a_program() }
}

fn fault_of_the_kernel() -> Case {
    Case { in_kernel: true, sp: spare(707).1 + 1000, fault: Some((4, 0x1234_5678)), ..call_of_a_program() }
}

#[test]
fn what_is_asked_most_makes_no_exit() {
    let within = [7, 0x11, 0xcc, 0, BASE + 0x100, 0xe030, 0x246, spare(706).1 + 256, 0xe02b];
    let of_call = [7, 0x11, 0xcc, IN_SYSCALL, 0x40_1002, USER.0.into(), 0x246, 0x7fff_1000, USER.1.into()];
    for moved in [false, true] {
        for case in [
            call_of_a_program(),
            return_to_a_program(),
            Case { frame: within, ..return_to_a_program() },
            Case { frame: of_call, ..return_to_a_program() },
            fault_of_a_program(),
            fault_of_the_kernel(),
        ] {
            let case = Case { moved, ..case };
            assert_eq!(compare(&case, ALL), Left::Passed, "{case:?}");
        }
    }
}

#[test]
fn an_interrupt_at_any_instruction_of_the_gate_changes_nothing() {
    let within = [7, 0x11, 0xcc, 0, BASE + 0x100, 0xe030, 0x246, spare(706).1 + 256, 0xe02b];
    let hypercall = Case { number: call::STACK_SWITCH, ..return_to_a_program() };
    for case in [
        call_of_a_program(),
        return_to_a_program(),
        Case { frame: within, ..return_to_a_program() },
        Case { mask: 1, ..call_of_a_program() },
        Case { pending: true, ..return_to_a_program() },
        hypercall,
        fault_of_a_program(),
        fault_of_the_kernel(),
        Case { fault: Some((7, BASE)), ..fault_of_the_kernel() },
        // Faults of the gate's own.
        Case { kernel_sp: spare(742).1 + 16, ..call_of_a_program() },
        Case { kernel_sp: spare(742).1 + 16, ..fault_of_a_program() },
        Case { sp: spare(742).1 + 16, ..fault_of_the_kernel() },
        Case { sp: spare(740).1 + 4096 - 64, ..return_to_a_program() },
    ] {
        let mut instructions = 0;
        while compare(&case, instructions) == Left::Interrupted {
            instructions += 1;
        }
        assert!((2..ALL).contains(&instructions), "{instructions}");
    }
}

#[test]
fn the_hypervisor_is_asked_for_what_the_gate_must_not_do_alone() {
    let call = call_of_a_program();
    let of_return = return_to_a_program();
    let with = |at: usize, value: u64| {
        let mut case = return_to_a_program();
        case.frame[at] = value;
        case
    };
    for (case, left) in [
        // A stack in the hypervisor's part, in tables, nowhere, across a page that is missing; the words of the gate itself.
        (Case { kernel_sp: GATE_WORDS + 0x800, ..call.clone() }, Left::Called),
        (Case { kernel_sp: M2P + 0x8_0000, ..call.clone() }, Left::Called),
        (Case { kernel_sp: 0x9000_0000_0000_0000, ..call.clone() }, Left::Called),
        (Case { kernel_sp: 0xffff_8800_0000_0000 + 16, ..call.clone() }, Left::Called),
        (Case { kernel_sp: BASE + 720 * 4096 + 512, ..call.clone() }, Left::Called),
        (Case { kernel_sp: 0x5000, ..call.clone() }, Left::Called),
        (Case { kernel_sp: spare(742).1 + 16, ..call.clone() }, Left::Called),
        (Case { callback: Callback { address: 0, mask_events: true }, ..call.clone() }, Left::Called),
        (Case { callback: Callback { address: ENTRY, mask_events: false }, ..call.clone() }, Left::Called),
        (Case { mask: 0x80, ..call }, Left::Called),
        (Case { sp: GATE_WORDS + 0x800, ..of_return.clone() }, Left::Called),
        (Case { sp: GATE_WIDE, ..of_return.clone() }, Left::Called),
        (Case { sp: M2P, ..of_return.clone() }, Left::Called),
        (Case { sp: spare(740).1 + 4096 - 64, ..of_return.clone() }, Left::Called),
        (Case { sp: 0x5000_0000_0000_0000, ..of_return.clone() }, Left::Faulted),
        (Case { pending: true, ..of_return.clone() }, Left::Called),
        (Case { has_programs: false, ..of_return.clone() }, Left::Called),
        (Case { selectors: (0, 0), ..of_return }, Left::Called),
        (with(4, 0x8000_0000_0000), Left::Called),
        (with(5, 0xe033), Left::Called),
        (with(5, 0xe008), Left::Called),
        (with(6, 0x46), Left::Called),
        (with(8, 0x23), Left::Called),
        (Case { kernel_sp: GATE_WORDS + 0x800, ..fault_of_a_program() }, Left::Called),
        (Case { kernel_sp: spare(742).1 + 16, ..fault_of_a_program() }, Left::Called),
        (Case { mask: 1, ..fault_of_a_program() }, Left::Called),
        (Case { trap: Trap { address: FAULT_ENTRY, flags: 0 }, ..fault_of_a_program() }, Left::Called),
        (Case { trap: Trap::default(), ..fault_of_a_program() }, Left::Called),
        (Case { fault: Some((7, BASE + 720 * 4096)), ..fault_of_the_kernel() }, Left::Called),
        (Case { sp: GATE_WORDS + 0x800, ..fault_of_the_kernel() }, Left::Called),
        (Case { sp: 0xffff_8800_0000_0000 + 16, ..fault_of_the_kernel() }, Left::Called),
        (Case { sp: 0xffff_8000_0000_0000 + 16, ..fault_of_the_kernel() }, Left::Called),
        (Case { sp: 0x5000_0000_0000_0000, ..fault_of_the_kernel() }, Left::Faulted),
        (Case { sp: BASE + 720 * 4096 + 512, ..fault_of_the_kernel() }, Left::Called),
    ] {
        assert_eq!(compare(&case, ALL), left, "{case:?}");
    }
}

#[test]
fn nobody_gets_privilege_by_the_gate() {
    let mut case = return_to_a_program();
    // All flags, the interrupt flag among them.
    case.frame[6] = u64::MAX;
    case.iopl = 3;
    assert_eq!(compare(&case, ALL), Left::Passed);
    let case = Case { registers: [0x40_1000, !rflags::TF, 1, 2], iopl: 3, ..call_of_a_program() };
    assert_eq!(compare(&case, ALL), Left::Passed);
}

#[test]
fn a_programs_direction_flag_is_not_the_kernels() {
    let mut call = call_of_a_program();
    call.registers[1] = 0x246 | rflags::DF;
    let mut fault = fault_of_a_program();
    fault.registers[1] = call.registers[1];
    // Once by the gate, and once by the hypervisor, where events are masked.
    for case in [call, fault].into_iter().flat_map(|case| [case.clone(), Case { mask: 1, ..case }]) {
        let (mut guest, mut machine, mut registers) = set_up(&case);
        let (left, after) = by_gate(&case, &mut guest, &mut machine, &mut registers, ALL);
        assert_eq!((left == Left::Passed, after), (case.mask == 0, After::Enter), "{case:?}");
        assert_eq!(registers.rflags & rflags::DF, 0, "{case:?}");
        // Its own flags are in the frame: the third word from the end.
        let at = registers.gpr[gpr::RSP] + if case.fault.is_some() { 40 } else { 32 };
        assert_ne!(guest.words::<1>(&machine, at).unwrap()[0] & rflags::DF, 0, "it has it still");
    }
}

fn stacks() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (705..715u64, 0..512u64).prop_map(|(page, at)| spare(page).1 + at * 8),
        1 => (0..4096u64).prop_map(|at| GATE_WORDS + at),
        1 => (738..744u64, 0..512u64).prop_map(|(page, at)| spare(page).1 + at * 8),
        1 => (700..722u64, 0..4096u64).prop_map(|(page, at)| spare(page).1 + at),
        1 => Just(M2P),
        1 => Just(u64::MAX - 8),
        1 => any::<u64>(),
    ]
}

prop_compose! {
    fn cases()(
        (in_kernel, pending, has_programs, moved, mask_events) in prop::array::uniform5(prop::bool::weighted(0.5)).prop_map(|[a, b, c, d, e]| (a, b && d, c || e, d, e || a)),
        number in prop_oneof![4 => Just(call::IRET), 1 => 0..64u64],
        kernel_sp in stacks(),
        sp in stacks(),
        address in prop_oneof![6 => Just(ENTRY), 1 => Just(0)],
        mask in prop_oneof![4 => Just(0), 1 => any::<u8>()],
        iopl in 0..4u8,
        selectors in prop_oneof![6 => Just(USER), 1 => Just((0, 0))],
        registers in (prop_oneof![Just(0x40_1000u64), Just(BASE + 8)], any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c, d)| [a, b, c, d]),
        general in prop::array::uniform3(any::<u64>()),
        how in prop_oneof![Just(0), Just(IN_SYSCALL), any::<u64>()],
        rip in prop_oneof![4 => Just(0x40_1002u64), 4 => Just(BASE + 16), 1 => any::<u64>()],
        cs in prop_oneof![6 => Just(u64::from(USER.0)), 4 => Just(0xe030u64), 1 => Just(0xe033u64), 1 => any::<u64>()],
        ss in prop_oneof![6 => Just(u64::from(USER.1)), 4 => Just(0xe02bu64), 1 => any::<u64>()],
        flags in prop_oneof![Just(0x246u64), any::<u64>(), any::<u64>().prop_map(|flags| flags | rflags::IF)],
        to in any::<u64>(),
        fault in prop::option::of(((0..32u32).prop_map(|error| error | 4), prop_oneof![any::<u64>(), Just(BASE + 720 * 4096)])),
        trap in prop_oneof![6 => Just(Trap { address: FAULT_ENTRY, flags: 4 }), 1 => Just(Trap { address: FAULT_ENTRY, flags: 3 }), 1 => Just(Trap::default())],
    ) -> Case {
        let segments = if in_kernel || fault.is_none() { (CS64, SS) } else { USER };
        let frame = [general[0], general[1], general[2], how, rip, cs, flags, to, ss];
        Case {
            in_kernel, number, kernel_sp, callback: Callback { address, mask_events }, mask, pending, has_programs,
            selectors, fault, trap, segments, moved, iopl, registers, frame, sp,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What a guest asks for is done, and where it could not be left to the gate, it was not.
    #[test]
    fn the_gate_does_what_the_hypervisor_does(case in cases(), instructions in prop_oneof![Just(ALL), 0..80usize]) {
        // A hypercall is the hypervisor's both times, and some go on in turns.
        prop_assume!(case.fault.is_some() || !case.in_kernel || case.number == call::IRET || case.number == call::STACK_SWITCH);
        compare(&case, instructions);
    }
}
