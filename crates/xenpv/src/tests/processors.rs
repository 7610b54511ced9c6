//! Several processors of one guest.

use super::{ask, poke, spare};
use crate::abi::{Error, call, shared_info, vcpu_info};
use crate::guest::gpr;
use crate::memory::{byte, leaf, word};
use crate::model::{self, BASE, CONTEXT_WORDS, FIRST, Machinery, pair};
use crate::{After, Guest, Host, MAX_PROCESSORS, Registers};
use proptest::prelude::*;
use sluice_pagetypes::{Entry, Kind, Mfn};

/// Where the tests write arguments.
const ARGUMENTS: u64 = 700;
/// Where they write a `struct vcpu_guest_context`, of two pages.
const CONTEXT: u64 = 710;

/// Operations of HYPERVISOR_vcpu_op.
const INITIALISE: u64 = 0;
const UP: u64 = 1;
const DOWN: u64 = 2;
const IS_UP: u64 = 3;
const INFO: u64 = 10;

fn vcpu_op(
    guest: &mut Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    operation: [u64; 3],
) -> u64 {
    let [cmd, which, arg] = operation;
    ask(guest, machine, registers, call::VCPU_OP, [cmd, which, arg, 0])
}

/// A context as the model's, with some words of it changed, where the kernel can name it.
fn describe(guest: &Guest, machine: &mut Machinery, change: impl Fn(&mut [u64; CONTEXT_WORDS])) -> u64 {
    let mut words = model::context(guest);
    change(&mut words);
    let (_, address) = spare(CONTEXT);
    poke(guest, machine, address, &words);
    address
}

#[test]
fn a_processor_begins_as_another_one_says_ends_and_goes_on() {
    let (mut guest, mut machine, [mut first, mut second]) = pair();
    assert_eq!((second.rip, second.gpr[gpr::RSP]), (BASE + (1 << 20) + 0x40, spare(720).1));
    assert_eq!((second.gs_base, second.cs & 3, second.ss & 3), (spare(722).1, 3, 3));
    assert_eq!(second.rflags & crate::abi::rflags::IOPL, 0);
    model::check(&guest, &machine);
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [IS_UP, 1, 0]), 1);
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [DOWN, 1, 0]), Error::Invalid.code());
    // Its own wish; what comes after is after the call.
    guest.run(1);
    let next = second.rip;
    (second.gpr[gpr::RAX], second.gpr[gpr::RDI], second.gpr[gpr::RSI]) = (call::VCPU_OP, DOWN, 1);
    (second.gpr[gpr::RCX], second.gpr[gpr::R11]) = (next, second.rflags);
    assert_eq!(guest.syscall(&mut machine, &mut second, true), After::Down);
    assert_eq!((second.rip, second.gpr[gpr::RAX]), (next, 0));
    guest.run(0);
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [IS_UP, 1, 0]), 0);
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [UP, 1, 0]), 0);
    assert_eq!(machine.started, [1]);
    guest.run(1);
    assert!(guest.take_start().is_none(), "it goes on where it was");
}

#[test]
fn a_processor_is_not_given_what_no_kernel_may_have() {
    let (mut guest, mut machine, mut registers) = model::guest_with(2);
    let (writable, _) = spare(730);
    let hidden = guest.layout.reserved_gdt.0;
    let changes: [(usize, u64); 13] = [
        (512 / 8, 0),
        (520 / 8 + 16, 1 << 47),
        (720 / 8 + 14 * 2 + 1, 1 << 47),
        (4824 / 8, 1),
        (4832 / 8, writable.0),
        (4832 / 8, hidden),
        (4832 / 8, FIRST - 1),
        (4984 / 8 + 3, writable.0 << 12),
        (4984 / 8 + 3, hidden << 12),
        (4984 / 8 + 3, 0),
        (5112 / 8, 1 << 47),
        (5128 / 8, 1 << 47),
        (5152 / 8, 1 << 47),
    ];
    // The writable page's first word is no page table's entry and no descriptor.
    poke(&guest, &mut machine, spare(730).1, &[u64::MAX; 4]);
    for (index, value) in changes {
        let context = describe(&guest, &mut machine, |words| {
            words[index] = value;
            words[4960 / 8] = u64::from(index == 4832 / 8);
        });
        let answer = vcpu_op(&mut guest, &mut machine, &mut registers, [INITIALISE, 1, context]);
        assert_eq!(answer, Error::Invalid.code(), "word {index} is {value:#x}");
        assert_eq!(vcpu_op(&mut guest, &mut machine, &mut registers, [UP, 1, 0]), Error::Invalid.code());
        model::check(&guest, &machine);
    }
    for which in [2, 31, 32, 1 << 32, u64::MAX] {
        for cmd in [INITIALISE, UP, DOWN, IS_UP, INFO, 4, 5, 8] {
            let answer = vcpu_op(&mut guest, &mut machine, &mut registers, [cmd, which, spare(CONTEXT).1]);
            assert_eq!(answer, Error::NoEntry.code(), "{cmd} of {which}");
        }
    }
    let context = describe(&guest, &mut machine, |words| words[4960 / 8] = 14 * 512 + 1);
    assert_eq!(
        vcpu_op(&mut guest, &mut machine, &mut registers, [INITIALISE, 1, context]),
        Error::Invalid.code()
    );
    let context = describe(&guest, &mut machine, |_| ());
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut registers, [INITIALISE, 1, context]), 0);
    for which in [0, 1] {
        let again = vcpu_op(&mut guest, &mut machine, &mut registers, [INITIALISE, which, context]);
        assert_eq!(again, Error::Exists.code());
    }
    assert!(machine.started.is_empty());
}

#[test]
fn an_event_tells_the_processor_that_it_is_bound_to() {
    let (mut guest, mut machine, [mut first, mut second]) = pair();
    let (_, page) = spare(ARGUMENTS);
    let event =
        |guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers, cmd, words: &[u64]| {
            poke(guest, machine, page, words);
            ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [cmd, page, 0, 0])
        };
    // BIND_IPI and BIND_VIRQ for the second one; each has its own timer.
    assert_eq!(event(&mut guest, &mut machine, &mut first, 7, &[1]), 0);
    let [_, ipi] = guest.halves(&machine, page).unwrap();
    for (processor, answer) in [(0u64, 0), (1, 0), (1, Error::Exists.code()), (2, Error::NoEntry.code())] {
        assert_eq!(event(&mut guest, &mut machine, &mut first, 1, &[processor << 32, 0]), answer);
    }
    let pending = |guest: &mut Guest, machine: &Machinery, processor| {
        let (frame, offset) = guest.processor(processor).unwrap().info;
        byte(machine, frame, offset + vcpu_info::PENDING)
    };
    let infos = [0, 1].map(|id| guest.processor(id).unwrap().info);
    assert_ne!(infos[0], infos[1]);
    assert_eq!(event(&mut guest, &mut machine, &mut first, 4, &[u64::from(ipi)]), 0);
    assert_eq!([0, 1].map(|id| pending(&mut guest, &machine, id)), [0, 1]);
    assert_eq!(core::mem::take(&mut machine.woken), [1], "it has to look");
    // It sends to itself: it looks anyway.
    machine.set_word(guest.layout.shared_info, shared_info::PENDING / 8, 0);
    guest.run(1);
    assert_eq!(event(&mut guest, &mut machine, &mut second, 4, &[u64::from(ipi)]), 0);
    assert!(machine.woken.is_empty());
    assert_ne!(word(&machine, guest.layout.shared_info, shared_info::PENDING) & 1 << ipi, 0);
    // Timers: that of the one whose time has come.
    machine.set_word(guest.layout.shared_info, shared_info::PENDING / 8, 0);
    for (frame, offset) in infos {
        Host::write(&mut machine, frame, offset, &[0; 8]);
    }
    guest.cpu.deadline = Some(machine.now);
    guest.run(0);
    guest.tick(&mut machine);
    assert_eq!([0, 1].map(|id| pending(&mut guest, &machine, id)), [0, 0]);
    guest.run(1);
    guest.tick(&mut machine);
    assert_eq!([0, 1].map(|id| pending(&mut guest, &machine, id)), [0, 1]);
    // BIND_VCPU moves others than these.
    guest.run(0);
    assert_eq!(event(&mut guest, &mut machine, &mut first, 8, &[u64::from(ipi)]), Error::Invalid.code());
    assert_eq!(event(&mut guest, &mut machine, &mut first, 8, &[1 | 2 << 32]), Error::NoEntry.code());
    assert_eq!(event(&mut guest, &mut machine, &mut first, 8, &[1 | 1 << 32]), 0);
    Host::write(&mut machine, guest.layout.console, 1024, b"x");
    Host::write(&mut machine, guest.layout.console, 3084, &1u32.to_le_bytes());
    machine.woken.clear();
    guest.serve_console(&mut machine);
    assert_eq!(machine.woken, [1], "the console's port tells the second one now");
}

#[test]
fn who_polls_wakes_for_its_port_though_it_is_masked_and_for_no_other() {
    let (mut guest, mut machine, [mut first, mut second]) = pair();
    let (_, page) = spare(ARGUMENTS);
    let mut ports = [0; 2];
    for port in &mut ports {
        poke(&guest, &mut machine, page, &[1]);
        assert_eq!(ask(&mut guest, &mut machine, &mut first, call::EVENT_CHANNEL_OP, [7, page, 0, 0]), 0);
        [_, *port] = guest.halves(&machine, page).unwrap();
    }
    machine.set_word(guest.layout.shared_info, shared_info::MASK / 8, u64::MAX);
    let poll =
        |guest: &mut Guest, machine: &mut Machinery, second: &mut Registers, count: u64, until: u64| {
            guest.run(1);
            let list = page + 64;
            poke(guest, machine, list, &[u64::from(ports[0])]);
            poke(guest, machine, page, &[list, count, until]);
            (second.gpr[gpr::RAX], second.gpr[gpr::RDI], second.gpr[gpr::RSI]) = (call::SCHED_OP, 3, page);
            (second.gpr[gpr::RCX], second.gpr[gpr::R11]) = (second.rip, second.rflags);
            let after = guest.syscall(machine, second, true);
            (after, second.gpr[gpr::RAX])
        };
    assert_eq!(poll(&mut guest, &mut machine, &mut second, 1, 0), (After::Block, 0));
    let mut send = |guest: &mut Guest, machine: &mut Machinery, port: u32| {
        guest.run(0);
        poke(guest, machine, page, &[u64::from(port)]);
        assert_eq!(ask(guest, machine, &mut first, call::EVENT_CHANNEL_OP, [4, page, 0, 0]), 0);
    };
    send(&mut guest, &mut machine, ports[1]);
    assert!(machine.woken.is_empty(), "it waits for another one");
    send(&mut guest, &mut machine, ports[0]);
    assert_eq!(core::mem::take(&mut machine.woken), [1]);
    // The port is pending still: nothing is waited for.
    assert_eq!(poll(&mut guest, &mut machine, &mut second, 1, 0), (After::Enter, 0));
    machine.set_word(guest.layout.shared_info, shared_info::PENDING / 8, 0);
    let later = machine.now + 50;
    assert_eq!(poll(&mut guest, &mut machine, &mut second, 1, later), (After::Block, 0));
    assert_eq!(guest.deadline(), Some(later));
    guest.tick(&mut machine);
    assert_eq!(guest.deadline(), None);
    let past = machine.now;
    assert_eq!(poll(&mut guest, &mut machine, &mut second, 1, past), (After::Enter, 0));
    assert_eq!(poll(&mut guest, &mut machine, &mut second, 129, 0).1, Error::Invalid.code());
}

#[test]
fn what_one_processor_changes_another_does_not_find_where_it_was() {
    let (mut guest, mut machine, [mut first, _]) = pair();
    let (_, address) = spare(740);
    let (new, _) = spare(741);
    guest.run(1);
    let [before] = guest.words(&machine, address).unwrap();
    guest.run(0);
    let at = leaf(&machine, guest.cpu.root, address).unwrap();
    machine.set_word(new, 0, before + 1);
    let entry = Entry::new(new, Entry::PRESENT | Entry::WRITE).bits();
    let (_, page) = spare(ARGUMENTS);
    poke(&guest, &mut machine, page, &[at.table.0 << 12 | (at.index as u64) << 3, entry]);
    assert_eq!(ask(&mut guest, &mut machine, &mut first, call::MMU_UPDATE, [page, 1, 0, super::SELF]), 0);
    guest.run(1);
    assert_eq!(guest.words(&machine, address).unwrap(), [before + 1]);
}

#[test]
fn translations_are_forgotten_where_the_guest_wants_and_everywhere_before_a_frame_is_another_thing() {
    let (mut guest, mut machine, [mut first, _]) = pair();
    let (_, page) = spare(ARGUMENTS);
    let mut flush = |guest: &mut Guest, machine: &mut Machinery, cmd: u64, mask: u64| {
        machine.flushed_on.clear();
        poke(guest, machine, page, &[cmd, BASE, page + 64]);
        poke(guest, machine, page + 64, &[mask]);
        assert_eq!(ask(guest, machine, &mut first, call::MMUEXT_OP, [page, 1, 0, super::SELF]), 0);
        core::mem::take(&mut machine.flushed_on)
    };
    for local in [6, 7] {
        assert!(flush(&mut guest, &mut machine, local, 2).is_empty());
    }
    for multi in [8, 9] {
        assert_eq!(flush(&mut guest, &mut machine, multi, 2), [2]);
    }
    for all in [10, 11] {
        assert_eq!(flush(&mut guest, &mut machine, all, 0), [u64::MAX]);
    }
    let (frame, address) = spare(750);
    let at = leaf(&machine, guest.cpu.root, address).unwrap();
    let read_only = Entry::new(frame, Entry::PRESENT).bits();
    // UVMF_LOCAL and UVMF_ALL.
    for (flags, expected) in [(2u64, &[][..]), (2 | 1 << 2, &[u64::MAX][..])] {
        machine.flushed_on.clear();
        let arguments = [address, read_only, flags, 0];
        assert_eq!(ask(&mut guest, &mut machine, &mut first, call::UPDATE_VA_MAPPING, arguments), 0);
        assert_eq!(machine.flushed_on, expected);
    }
    assert!(!Entry::from_bits_retain(machine.word(at.table, at.index)).is_writable());
    let before = machine.flushes;
    poke(&guest, &mut machine, page, &[0, frame.0, 0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut first, call::MMUEXT_OP, [page, 1, 0, super::SELF]), 0);
    assert!(machine.flushes > before, "a processor may still write it by what it remembers");
    assert_eq!(guest.types.counts(frame).map(|counts| counts.kind), Some(Kind::L1));
}

#[test]
fn an_exchange_of_an_entry_gives_what_was_there_when_it_was_written() {
    let (mut guest, mut machine, [mut registers, _]) = pair();
    let (frame, address) = spare(760);
    let at = leaf(&machine, guest.cpu.root, address).unwrap();
    let entry_at = BASE + (at.table.0 - FIRST) * 4096 + at.index as u64 * 8;
    let (_, code) = spare(761);
    // xchg rax, [rbx]; lock cmpxchg [rbx], rcx
    for (bytes, is_exchange) in
        [(&[0x48u8, 0x87, 0x03][..], true), (&[0xf0, 0x48, 0x0f, 0xb1, 0x0b][..], false)]
    {
        guest.copy_out(&mut machine, code, bytes).unwrap();
        let old = Entry::new(frame, Entry::PRESENT | Entry::WRITE).bits();
        machine.set_word(at.table, at.index, old);
        // Another processor writes there while the instruction is executed: the hardware notes it.
        machine.noted = Some((at.table, at.index, 0x60));
        (registers.rip, registers.gpr[gpr::RBX]) = (code, entry_at);
        (registers.gpr[gpr::RAX], registers.gpr[gpr::RCX]) = if is_exchange { (0, 0) } else { (old, 0) };
        let after = guest.page_fault(&mut machine, &mut registers, 7, entry_at);
        if is_exchange {
            assert_eq!(after, After::Enter);
            assert_eq!(registers.gpr[gpr::RAX], old | 0x60, "with what was noted");
            guest.page_fault(&mut machine, &mut registers, 7, entry_at);
            machine.set_word(at.table, at.index, 0);
            poke(&guest, &mut machine, spare(ARGUMENTS).1, &[at.table.0 << 12 | (at.index as u64) << 3, old]);
            let arguments = [spare(ARGUMENTS).1, 1, 0, super::SELF];
            assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::MMU_UPDATE, arguments), 0);
        } else {
            assert_eq!(after, After::Yield, "it is executed again");
            assert_eq!((registers.rip, machine.word(at.table, at.index)), (code, old | 0x60));
        }
    }
    model::check(&guest, &machine);
}

#[test]
fn no_processor_sees_what_the_hypervisor_has_for_another_where_it_may_write() {
    let (guest, machine, _) = model::guest_with(MAX_PROCESSORS);
    let mut words = alloc::collections::BTreeSet::new();
    for processor in guest.processors() {
        let area = processor.area();
        let find = |address: u64| {
            let mut table = guest.cpu.root;
            for shift in [39, 30, 21] {
                let entry = crate::memory::entry(&machine, table, (address >> shift & 511) as usize);
                assert!(entry.contains(Entry::PRESENT));
                table = entry.frame();
            }
            crate::memory::entry(&machine, table, (address >> 12 & 511) as usize)
        };
        for address in [area.gate(), area.gate_words(), area.info()] {
            let entry = find(address);
            assert!(entry.contains(Entry::PRESENT) && !entry.contains(Entry::USER), "{address:#x}");
        }
        assert!(!find(area.gate()).contains(Entry::WRITE));
        assert!(words.insert(find(area.gate_words()).frame()), "each has words of its own");
        assert_eq!(
            guest.types.counts(processor.gate_words).map(|counts| counts.kind),
            Some(Kind::Hypervisor)
        );
    }
    model::check(&guest, &machine);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever several processors ask for in turn: nothing panics, and nothing that must not be can be written.
    #[test]
    fn nothing_comes_of_hostile_calls_of_several(
        calls in prop::collection::vec((0..2usize, 0..48u64, prop::array::uniform4(super::argument()), prop::array::uniform8(super::argument())), 1..40),
    ) {
        let (mut guest, mut machine, mut registers) = pair();
        let (_, page) = spare(700);
        for (processor, number, arguments, words) in calls {
            guest.run(processor as u32);
            let registers = &mut registers[processor];
            let _ = guest.copy_out(&mut machine, page, words.map(u64::to_le_bytes).as_flattened());
            registers.gpr[gpr::RAX] = number;
            let [rdi, rsi, rdx, r10] = arguments;
            (registers.gpr[7], registers.gpr[6], registers.gpr[2], registers.gpr[10]) = (rdi, rsi, rdx, r10);
            if let After::End(_) = guest.syscall(&mut machine, registers, true) {
                break;
            }
            guest.deliver(&mut machine, registers);
            model::check(&guest, &machine);
        }
    }
}

#[test]
fn a_second_processor_moves_its_page_once_and_is_told_there() {
    let (mut guest, mut machine, [mut first, _]) = pair();
    let (frame, _): (Mfn, u64) = spare(770);
    let (_, page) = spare(ARGUMENTS);
    poke(&guest, &mut machine, page, &[frame.0, 128]);
    machine.flushed_on.clear();
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [INFO, 1, page]), 0);
    assert_eq!(machine.flushed_on, [2], "its gate finds it elsewhere");
    assert_eq!(guest.processor(1).map(|processor| processor.info), Some((frame, 128)));
    assert_eq!(vcpu_op(&mut guest, &mut machine, &mut first, [INFO, 1, page]), Error::Invalid.code());
    assert_eq!(guest.processor(0).map(|processor| processor.info.0), Some(guest.layout.shared_info));
    model::check(&guest, &machine);
}
