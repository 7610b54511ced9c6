//! A device of the guest's own: its registers, ports and interrupts, and those of others.

use super::{SELF, ask, poke, spare};
use crate::abi::{Error, PAGE, call};
use crate::guest::gpr;
use crate::memory::leaf;
use crate::model::{self, FIRST, FRAMES, LINE_OF_DEVICE, Machinery, REGISTERS};
use crate::{After, BIOS, Guest, Registers};
use sluice_hypercall::paravirtual::SEMI_SET;
use sluice_pagetypes::{Entry, Mfn};

type Owner = (Guest, Machinery, Registers);

fn physdev((guest, machine, registers): &mut Owner, cmd: u64, arguments: &[u64]) -> (u64, u64) {
    let (_, page) = spare(700);
    poke(guest, machine, page, arguments);
    let answer = ask(guest, machine, registers, call::PHYSDEV_OP, [cmd, page, 0, 0]);
    (answer, guest.words::<1>(machine, page).unwrap()[0])
}

/// Has the kernel map a frame at the address of a spare page.
fn map((guest, machine, registers): &mut Owner, frame: u64, flags: Entry) -> (u64, u64) {
    let (_, address) = spare(710);
    let entry = Entry::new(Mfn(frame), Entry::PRESENT | flags).bits();
    let answer = ask(guest, machine, registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]);
    model::check(guest, machine);
    (answer, address)
}

/// Executes an instruction that needs a privilege.
fn execute((guest, machine, registers): &mut Owner, code: &[u8]) -> After {
    let (_, address) = spare(701);
    guest.copy_out(machine, address, code).unwrap();
    registers.rip = address;
    guest.general_protection(machine, registers, 0)
}

#[test]
fn who_has_a_device_is_the_initial_domain() {
    let flags = |(guest, machine, registers): &Owner| {
        let at = registers.gpr[gpr::RSI];
        guest.words::<1>(machine, at + 48).unwrap()[0] & 3
    };
    assert_eq!((flags(&model::guest()), flags(&model::owner())), (0, 3));
    let (guest, machine, registers) = model::owner();
    let [screen] = guest.words::<1>(&machine, registers.gpr[gpr::RSI] + 72).unwrap();
    let mut kind = [0; 16];
    guest.copy_in(&machine, registers.gpr[gpr::RSI] + (screen & 0xffff_ffff), &mut kind).unwrap();
    assert_eq!((screen >> 32, kind[0]), (16, 3), "a screen without rows");
    assert_eq!(kind[1..], [0; 15]);
}

#[test]
fn registers_of_its_device_can_be_mapped_and_no_others() {
    let mut owner = model::owner();
    for flags in [Entry::WRITE | Entry::UNCACHED, Entry::empty()] {
        for frame in [REGISTERS.start, REGISTERS.end - 1] {
            assert_eq!(map(&mut owner, frame, flags).0, 0);
        }
        for frame in [REGISTERS.start - 1, REGISTERS.end, 0xf_ec00, 0xf_ee00, FIRST - 1, FIRST + FRAMES] {
            let before = owner.0.counters.refused;
            assert_eq!(map(&mut owner, frame, flags).0, Error::Invalid.code(), "{frame:#x}");
            assert_eq!(owner.0.counters.refused, before + 1);
        }
    }
    let mut other = model::guest();
    assert_eq!(map(&mut other, REGISTERS.start, Entry::WRITE).0, Error::Invalid.code());
}

#[test]
fn an_initial_domain_finds_the_frames_of_a_bios_and_numbers_for_the_pages_it_has_there() {
    let mut owner = model::owner();
    for frame in [BIOS.start, BIOS.end - 1] {
        assert_eq!(map(&mut owner, frame, Entry::empty()).0, 0);
        assert_eq!(map(&mut model::guest(), frame, Entry::empty()).0, Error::Invalid.code());
    }
    for frame in [BIOS.start - 1, BIOS.end] {
        assert_eq!(map(&mut owner, frame, Entry::empty()).0, Error::Invalid.code(), "{frame:#x}");
    }
    let bytes = |(guest, machine, registers): &mut Owner, operation: u64| {
        let (_, page) = spare(700);
        poke(guest, machine, page, &[8, page + 64]);
        assert_eq!(ask(guest, machine, registers, call::MEMORY_OP, [operation, page, 0, 0]), 0);
        guest.words::<2>(machine, page + 64).unwrap()
    };
    let [own, machines] = [9, 10].map(|operation| bytes(&mut owner, operation));
    assert_eq!(machines, [0, own[1] + (BIOS.end - BIOS.start) * PAGE]);
}

#[test]
fn the_address_of_a_page_fault_is_read_from_cr2() {
    let mut owner = model::owner();
    let (guest, machine, registers) = &mut owner;
    let (_, table) = spare(700);
    poke(guest, machine, table, &[14 | 4 << 8, 0xffff_ffff_8100_0000, 0, 0]);
    assert_eq!(ask(guest, machine, registers, call::SET_TRAP_TABLE, [table, 0, 0, 0]), 0);
    guest.page_fault(machine, registers, 6, 0x1234_5678);
    // mov %cr2, %rdi
    assert_eq!(execute(&mut owner, &[0x0f, 0x20, 0xd7]), After::Enter);
    assert_eq!(owner.2.gpr[gpr::RDI], 0x1234_5678);
}

/// Where the kernel wants to be called for a vector.
fn handler(vector: u8) -> u64 {
    0xffff_ffff_8100_0000 + u64::from(vector) * 16
}

/// Has the kernel be called for the vectors that its own instructions ask for.
fn take_traps(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) {
    const LEVEL: u64 = 1 << 8;
    let (_, table) = spare(702);
    let traps = [3, 4, 13, 0x80].map(|vector: u8| [u64::from(vector) | LEVEL, handler(vector)]);
    poke(guest, machine, table, &[traps.as_flattened(), &[0, 0]].concat());
    assert_eq!(ask(guest, machine, registers, call::SET_TRAP_TABLE, [table, 0, 0, 0]), 0);
}

#[test]
fn what_asks_for_a_vector_is_found_where_it_stands_and_what_came_in_its_place_is_executed() {
    let (mut guest, mut machine, mut registers) = model::owner();
    take_traps(&mut guest, &mut machine, &mut registers);
    let (_, address) = spare(701);
    for (code, vector) in
        [([0xcc].as_slice(), 3), (&[0xcd, 0x80], 0x80), (&[0xf3, 0xcd, 0x80], 0x80), (&[0xce], 4)]
    {
        let mut registers = Registers { rip: address, ..registers };
        guest.copy_out(&mut machine, address, code).unwrap();
        assert_eq!(guest.software_interrupt_at(&mut machine, &mut registers), After::Enter);
        assert_eq!(registers.rip, handler(vector), "{code:x?}");
        // RCX, R11, then RIP.
        let [_, _, rip] = guest.words::<3>(&machine, registers.gpr[gpr::RSP]).unwrap();
        assert_eq!(rip, address + code.len() as u64, "{code:x?}");
    }
    // NOP in the place of INT3, as by another processor.
    guest.copy_out(&mut machine, address, &[0x90]).unwrap();
    registers.rip = address;
    let before = registers;
    let frame = leaf(&machine, guest.active_root(), address).unwrap().entry.frame();
    machine.noted = Some((frame, (address % PAGE / 8) as usize, 0));
    assert_eq!(guest.software_interrupt_at(&mut machine, &mut registers), After::Enter);
    assert_eq!((registers, machine.noted), (before, None), "it was written once more");
}

#[test]
fn the_hypervisor_does_not_touch_registers_for_a_guest() {
    let mut owner = model::owner();
    let (answer, address) = map(&mut owner, REGISTERS.start, Entry::WRITE);
    assert_eq!(answer, 0);
    let (guest, machine, registers) = &mut owner;
    // As arguments of calls, as what is answered to, and as code.
    let fault = Error::Fault.code();
    for (number, arguments) in [
        (call::PHYSDEV_OP, [6, address, 0, 0]),
        (call::MMU_UPDATE, [address, 1, 0, SELF]),
        (call::MULTICALL, [address, 1, 0, 0]),
        (call::XEN_VERSION, [1, address, 0, 0]),
        (call::CONSOLE_IO, [0, 8, address, 0]),
        (call::MEMORY_OP, [11, address, 0, 0]),
    ] {
        assert_eq!(ask(guest, machine, registers, number, arguments), fault, "call {number}");
    }
    let rip = core::mem::replace(&mut registers.rip, address);
    take_traps(guest, machine, registers);
    assert_eq!(guest.software_interrupt_at(machine, registers), After::Enter);
    assert_eq!(registers.rip, handler(13), "nor as code");
    registers.rip = rip;
    // Nor are they a table, or a page number's frame, or semi-writable.
    let frame = REGISTERS.start;
    let (_, page) = spare(700);
    for (number, words, arguments) in [
        (call::MMUEXT_OP, [0, frame, 0], [page, 1, 0, SELF]),
        (call::MMU_UPDATE, [frame << 12, 7, 0], [page, 1, 0, SELF]),
        (call::MMU_UPDATE, [frame << 12 | 1, 7, 0], [page, 1, 0, SELF]),
        (call::SET_GDT, [frame, 0, 0], [page, 512, 0, 0]),
        (call::SEMI_WRITABLE, [frame, 0, 0], [page, 1, SEMI_SET, 0]),
        (call::UPDATE_DESCRIPTOR, [0; 3], [frame << 12, 0, 0, 0]),
    ] {
        poke(guest, machine, page, &words);
        let answer = ask(guest, machine, registers, number, arguments);
        assert_eq!(answer, Error::Invalid.code(), "call {number}");
    }
    model::check(guest, machine);
}

#[test]
fn a_line_is_told_of_where_it_is_bound_and_may_come_again_when_it_was_dealt_with() {
    let mut owner = model::owner();
    let line = u64::from(LINE_OF_DEVICE);
    assert_eq!(physdev(&mut owner, 10, &[line]), (0, line << 32 | line), "its vector");
    assert_eq!(physdev(&mut owner, 5, &[line]), (0, 1 << 32 | line), "it is to be ended");
    let (_, page) = spare(700);
    let bind = |(guest, machine, registers): &mut Owner, line: u64| {
        poke(guest, machine, page, &[line, 0]);
        let answer = ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [2, page, 0, 0]);
        (answer, guest.words::<2>(machine, page).unwrap()[1] as u32)
    };
    // Nobody listens yet.
    owner.0.raise_line(&mut owner.1, LINE_OF_DEVICE);
    assert!(!owner.0.is_pending(&owner.1));
    let (answer, port) = bind(&mut owner, line);
    assert_eq!(answer, 0);
    assert_eq!(bind(&mut owner, line).0, Error::Exists.code());
    owner.0.raise_line(&mut owner.1, LINE_OF_DEVICE + 1);
    assert!(!owner.0.is_pending(&owner.1), "another line");
    owner.0.raise_line(&mut owner.1, LINE_OF_DEVICE);
    assert!(owner.0.is_pending(&owner.1));
    assert_eq!(physdev(&mut owner, 12, &[line]).0, 0);
    assert_eq!(owner.1.ended, [LINE_OF_DEVICE]);
    let (guest, machine, registers) = &mut owner;
    poke(guest, machine, page, &[u64::from(port)]);
    let raised = ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [4, page, 0, 0]);
    assert_eq!(raised, Error::Invalid.code(), "it is not the guest who raises it");
    poke(guest, machine, page, &[u64::from(port) << 32 | SELF, 0]);
    assert_eq!(ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [5, page, 0, 0]), 0);
    assert_eq!(guest.words::<2>(machine, page).unwrap()[1] as u32, 3, "it is bound to a line");
}

#[test]
fn lines_of_others_are_refused() {
    let mut owner = model::owner();
    let (_, page) = spare(700);
    for line in [0, 1, 8, u64::from(LINE_OF_DEVICE) + 1, 15, 16, 33, 255, u64::from(u32::MAX)] {
        for cmd in [5, 10, 12] {
            assert_eq!(physdev(&mut owner, cmd, &[line]).0, Error::NotPermitted.code(), "{cmd} {line}");
        }
        let (guest, machine, registers) = &mut owner;
        poke(guest, machine, page, &[line, 0]);
        let bound = ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [2, page, 0, 0]);
        assert_eq!(bound, Error::NotPermitted.code());
    }
    assert!(owner.1.ended.is_empty());
    // Registers of the machine's interrupt controllers, messages, and what only a machine's owner may.
    for cmd in [8, 9, 13, 14, 24, 28, 30, 31, 99] {
        assert_eq!(physdev(&mut owner, cmd, &[0; 4]).0, Error::NoCall.code(), "{cmd}");
    }
    assert_eq!(physdev(&mut model::guest(), 25, &[0]).0, Error::NoCall.code());
}

#[test]
fn ports_are_the_hosts_matter_but_for_a_mask_that_is_read_again() {
    let mut owner = model::owner();
    owner.2.gpr[gpr::RDX] = 0xc008;
    owner.2.gpr[gpr::RAX] = u64::MAX;
    // out dx, ax; in al, dx; in eax, dx; out 0x21, al; in al, 0x21
    for code in [&[0x66, 0xef][..], &[0xec], &[0xed], &[0xe6, 0x21], &[0xe4, 0x21]] {
        let expected = match code {
            [0xec] => !0xff | 0x78,
            // What was read with more bits stays above the 8 that are read now.
            [0xed] | [0xe6 | 0xe4, _] => 0x1234_5678,
            _ => u64::MAX,
        };
        assert_eq!(execute(&mut owner, code), After::Enter);
        assert_eq!(owner.2.gpr[gpr::RAX], expected, "{code:x?}");
    }
    assert_eq!(owner.1.ports, [(0xc008, 2, Some(u32::MAX)), (0xc008, 1, None), (0xc008, 4, None)]);
    // Who has no device has no ports, and ones are read there, as ever.
    let mut guest = model::guest();
    guest.2.gpr[gpr::RDX] = 0xcf8;
    for code in [&[0xef][..], &[0xed], &[0xe6, 0x21], &[0xe4, 0x21]] {
        assert_eq!(execute(&mut guest, code), After::Enter);
    }
    assert_eq!(guest.2.gpr[gpr::RAX], 0xffff_ffff);
    assert!(guest.1.ports.is_empty());
}

#[test]
fn the_initial_domains_console_is_calls() {
    let (mut guest, mut machine, mut registers) = model::owner();
    let (_, page) = spare(700);
    guest.copy_out(&mut machine, page, b"hello").unwrap();
    let mut io = |guest: &mut Guest, machine: &mut Machinery, cmd, count| {
        ask(guest, machine, &mut registers, call::CONSOLE_IO, [cmd, count, page, 0])
    };
    assert_eq!(io(&mut guest, &mut machine, 0, 5), 5);
    assert_eq!(machine.output, b"hello");
    assert_eq!(io(&mut guest, &mut machine, 0, u64::MAX), 4096, "a page at most");
    machine.input.extend(b"typed");
    guest.serve_console(&mut machine);
    assert_eq!(io(&mut guest, &mut machine, 1, 3), 3);
    assert_eq!(io(&mut guest, &mut machine, 1, 300), 2);
    assert_eq!(io(&mut guest, &mut machine, 1, 300), 0);
    assert_eq!(io(&mut guest, &mut machine, 2, 1), Error::NoCall.code());
    let (mut guest, mut machine, mut registers) = model::guest();
    let refused = ask(&mut guest, &mut machine, &mut registers, call::CONSOLE_IO, [0, 5, page, 0]);
    assert_eq!(refused, Error::NoCall.code(), "another's is its ring");
}

#[test]
fn consecutive_frames_are_had_for_the_same_frames() {
    let (mut guest, mut machine, mut registers) = model::owner();
    let (_, page) = spare(700);
    let (list, answer) = (page + 256, page + 1024);
    let mut exchange = |frames: &[u64], (order, bits): (u64, u64), domain: u64| {
        let given = [list, frames.len() as u64, 0, domain];
        let wanted = [
            answer,
            (frames.len() as u64).checked_shr(order as u32).unwrap_or(0),
            order | bits << 32,
            domain,
        ];
        poke(&guest, &mut machine, page, &[&given[..], &wanted, &[0]].concat());
        poke(&guest, &mut machine, list, frames);
        poke(&guest, &mut machine, answer, &[77]);
        let result = ask(&mut guest, &mut machine, &mut registers, call::MEMORY_OP, [11, page, 0, 0]);
        let [first] = guest.words::<1>(&machine, answer).unwrap();
        let [done] = guest.words::<1>(&machine, page + 64).unwrap();
        model::check(&guest, &machine);
        (result, first, done)
    };
    let run: [u64; 4] = core::array::from_fn(|at| FIRST + 800 + at as u64);
    assert_eq!(exchange(&run, (2, 32), SELF), (0, FIRST + 800, 4));
    let no_memory = (Error::NoMemory.code(), 77, 0);
    assert_eq!(exchange(&run, (2, 20), SELF), no_memory, "they are not below so few bits");
    assert_eq!(exchange(&run, (2, 1), SELF), no_memory);
    let [a, b, c, d] = run;
    assert_eq!(exchange(&[b, a, c, d], (2, 32), SELF), no_memory, "they are not in order");
    assert_eq!(exchange(&[a, b, d, c], (1, 32), SELF), no_memory);
    assert_eq!(exchange(&[c, d, a, b], (1, 32), SELF), (0, c, 4));
    assert_eq!(exchange(&[a, b, c, FIRST + FRAMES - 1], (2, 0), SELF), (Error::Invalid.code(), 77, 0));
    assert_eq!(exchange(&run, (3, 32), SELF).0, Error::Invalid.code(), "not as many");
    assert_eq!(exchange(&run, (64, 32), SELF).0, Error::Invalid.code());
    assert_eq!(exchange(&run, (2, 32), 0), (Error::NotPermitted.code(), 77, 0), "another domain's");
    let changed = leaf(&machine, guest.cpu.root, spare(800).1).unwrap();
    assert_eq!(changed.entry.frame(), Mfn(FIRST + 800));
}

#[test]
fn a_clock_that_is_the_machines_is_not_set() {
    let (mut guest, mut machine, mut registers) = model::owner();
    let (_, page) = spare(700);
    for (cmd, answer) in [(17, 0), (62, 0), (31, Error::NoCall.code()), (0, Error::NoCall.code())] {
        poke(&guest, &mut machine, page, &[cmd]);
        assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::PLATFORM_OP, [page, 0, 0, 0]), answer);
    }
}
