//! The interface as a guest uses it, and as it abuses it.

use crate::abi::{self, CS64, Error, SS, call, shared_info, vcpu_info};
use crate::guest::gpr;
use crate::memory::{leaf, word};
use crate::model::{self, BASE, FIRST, FRAMES, LIST, Machinery};
use crate::{After, End, Guest, Host, Registers};
use alloc::vec::Vec;
use proptest::prelude::*;
use sluice_pagetypes::{Entry, Kind, Mfn};

mod gate;
mod hardware;
mod local;
mod processors;
mod quick;
mod reservation;

const SELF: u64 = 0x7ff0;

/// Makes a hypercall as the kernel does: by SYSCALL.
fn ask(
    guest: &mut Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    number: u64,
    arguments: [u64; 4],
) -> u64 {
    let (answer, pieces) = ask_in_pieces(guest, machine, registers, number, arguments);
    assert_eq!(pieces, 1);
    answer
}

/// The same, with how often others had a turn, and once more.
fn ask_in_pieces(
    guest: &mut Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    number: u64,
    arguments: [u64; 4],
) -> (u64, u32) {
    let [rdi, rsi, rdx, r10] = arguments;
    registers.gpr[gpr::RAX] = number;
    (registers.gpr[gpr::RDI], registers.gpr[gpr::RSI], registers.gpr[gpr::RDX], registers.gpr[10]) =
        (rdi, rsi, rdx, r10);
    let next = registers.rip;
    for pieces in 1.. {
        registers.gpr[gpr::RCX] = next;
        registers.gpr[gpr::R11] = registers.rflags;
        machine.lines.set(0);
        let after = guest.syscall(machine, registers, true);
        assert!(machine.lines.get() <= abi::MAX_LINES + 1024, "{} lines in one exit", machine.lines.get());
        if after == After::Enter {
            return (registers.gpr[gpr::RAX], pieces);
        }
        assert_eq!((after, registers.rip), (After::Yield, next - 2), "the instruction is executed again");
        assert_eq!(registers.gpr[gpr::RAX], number);
    }
    unreachable!()
}

/// A page of the guest's that nobody uses, its frame and its address.
fn spare(page: u64) -> (Mfn, u64) {
    (Mfn(FIRST + page), BASE + page * 4096)
}

/// Writes words where the kernel can.
fn poke(guest: &Guest, machine: &mut Machinery, address: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    guest.copy_out(machine, address, &bytes).expect("the kernel can write it");
}

#[test]
fn a_kernel_finds_memory_as_the_interface_says() {
    let (guest, machine, registers) = model::guest();
    model::check(&guest, &machine);
    assert_eq!(registers.rip, BASE + (1 << 20));
    let info = |at: u64| guest.words::<1>(&machine, registers.gpr[gpr::RSI] + at).unwrap()[0];
    let pages = info(32);
    assert!(pages < FRAMES);
    // Its code, its list of frames, the table of page numbers.
    let code = leaf(&machine, guest.cpu.root, registers.rip).unwrap();
    assert_eq!(code.entry.frame(), Mfn(FIRST + 256));
    assert_eq!(machine.word(code.entry.frame(), 1), 0x0f0e_0d0c_0b0a_0908);
    for page in [0, 1, 511, 512, pages - 1] {
        assert_eq!(guest.words::<1>(&machine, LIST + page * 8).unwrap(), [FIRST + page]);
    }
    assert_eq!(info(40), guest.layout.shared_info.0 * 4096);
    let ramdisk = Mfn(FIRST + info(112));
    assert_eq!((info(120), &word(&machine, ramdisk, 0).to_le_bytes()[..7]), (7, &b"ramdisk"[..]));
    // Its page tables are where it is told, and it can only read them.
    for table in 0..info(96) {
        let at = leaf(&machine, guest.cpu.root, info(88) + table * 4096).unwrap();
        assert!(at.entry.contains(Entry::PRESENT) && !at.entry.is_writable());
    }
    let stack = leaf(&machine, guest.cpu.root, registers.gpr[gpr::RSP] - 8).unwrap();
    assert!(stack.entry.is_writable());
}

/// What the processor does with an address in the hypervisor's part: the entry that it finds.
fn in_hole(guest: &Guest, machine: &Machinery, address: u64) -> Entry {
    let mut table = guest.cpu.root;
    let mut found = Entry::empty();
    let mut rights = Entry::USER | Entry::WRITE;
    for shift in [39, 30, 21, 12] {
        found = Entry::from_bits_retain(machine.word(table, (address >> shift & 511) as usize));
        if !found.contains(Entry::PRESENT) {
            return Entry::empty();
        }
        rights &= found;
        table = found.frame();
    }
    Entry::new(found.frame(), rights | Entry::PRESENT | found & Entry::from_bits_retain(1 << 63))
}

#[test]
fn the_hypervisors_part_of_addresses_can_be_read_where_the_interface_says_and_never_written() {
    let (guest, machine, _) = model::guest();
    for page in [0, 1, 700, guest.layout.pages - 1] {
        let address = abi::M2P + (FIRST + page) * 8;
        let entry = in_hole(&guest, &machine, address);
        assert!(entry.contains(Entry::PRESENT | Entry::USER) && !entry.contains(Entry::WRITE));
        assert_eq!(word(&machine, entry.frame(), (address % 4096) as usize), page);
    }
    let foreign = abi::M2P + (FIRST + FRAMES - 1) * 8;
    let entry = in_hole(&guest, &machine, foreign);
    assert_eq!(word(&machine, entry.frame(), (foreign % 4096) as usize), abi::INVALID_PFN);
    let gate = in_hole(&guest, &machine, abi::GATE);
    assert!(gate.contains(Entry::PRESENT) && !gate.intersects(Entry::USER | Entry::WRITE));
    let gdt = in_hole(&guest, &machine, abi::GDT + 14 * 4096);
    assert!(gdt.contains(Entry::PRESENT) && !gdt.intersects(Entry::USER | Entry::WRITE));
    assert_eq!(guest.descriptor(&machine, CS64), Some(0x00af_fb00_0000_ffff));
    assert_eq!(guest.descriptor(&machine, SS), Some(0x00cf_f300_0000_ffff));
    assert_eq!(
        guest.descriptor(&machine, sluice_gate::GATE_CODE | 3),
        None,
        "it is no segment of the guest's"
    );
    for address in [abi::M2P, abi::GDT, abi::GATE, 0x0000_8000_0000_0000] {
        assert!(
            leaf(&machine, guest.cpu.root, address).is_none(),
            "{address:#x} is no argument of a hypercall"
        );
    }
}

#[test]
fn an_exception_is_a_frame_on_the_kernels_stack_and_iret_takes_it_away() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (_, table) = spare(700);
    poke(&guest, &mut machine, table, &[14 | 4 << 8, BASE + 0x2000, 0, 0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::SET_TRAP_TABLE, [table, 0, 0, 0]), 0);
    guest.cpu.set_upcall_mask(&mut machine, false);
    let before = Registers { rflags: 0x10246, ..registers };
    registers = before;
    assert_eq!(guest.page_fault(&mut machine, &mut registers, 6, 0x1234), After::Enter);
    assert_eq!((registers.rip, registers.cs, registers.ss), (BASE + 0x2000, CS64, SS));
    assert!(guest.cpu.upcall_mask(&machine), "the trap was registered so");
    assert_eq!(word(&machine, guest.cpu.info.0, guest.cpu.info.1 + vcpu_info::CR2), 0x1234);
    let frame = guest.words::<8>(&machine, registers.gpr[gpr::RSP]).unwrap();
    let kernel_cs = u64::from(CS64 & !3);
    // Privilege level 3 is the user's to the hardware; to the kernel it is not.
    let expected =
        [before.gpr[1], before.gpr[11], 2, before.rip, kernel_cs, before.rflags, before.gpr[4], SS.into()];
    assert_eq!(frame, expected);
    // Linux puts RAX, R11, RCX and flags in place of RCX, R11 and the error code.
    let sp = registers.gpr[gpr::RSP] - 8;
    poke(&guest, &mut machine, sp, &[77, before.gpr[11], before.gpr[1], 0]);
    poke(&guest, &mut machine, sp + 40, &[kernel_cs | 1]);
    registers.gpr[gpr::RSP] = sp;
    ask(&mut guest, &mut machine, &mut registers, call::IRET, [0; 4]);
    assert_eq!((registers.rip, registers.gpr[gpr::RSP], registers.gpr[0]), (before.rip, before.gpr[4], 77));
    assert!(!guest.cpu.upcall_mask(&machine));
}

/// A guest whose kernel wants exceptions 13.
fn with_trap() -> (Guest, Machinery, Registers) {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (_, table) = spare(700);
    poke(&guest, &mut machine, table, &[13, BASE + 0x2000, 0, 0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::SET_TRAP_TABLE, [table, 0, 0, 0]), 0);
    (guest, machine, registers)
}

#[test]
fn a_kernel_is_entered_with_the_direction_flag_clear_and_finds_it_in_its_frame() {
    let (mut guest, mut machine, mut registers) = with_trap();
    let set = abi::rflags::DF | abi::rflags::NT;
    registers.rflags |= set;
    assert_eq!(guest.exception(&mut machine, &mut registers, 13, Some(0), 0), After::Enter);
    assert_eq!(registers.rflags & set, 0);
    let [.., flags] = guest.words::<6>(&machine, registers.gpr[gpr::RSP]).unwrap();
    assert_eq!(flags & set, set);
    assert_eq!(crate::bounce::sane(set) & set, set, "a program has its flags again");
}

#[test]
fn selectors_of_a_program_that_iret_does_not_take_are_its_kernels_matter() {
    for (cs, ss, error) in [(7, SS, 4), (SS, SS, SS & !3), (CS64, 0x17, 0x14), (CS64, CS64, CS64 & !3)] {
        let (mut guest, mut machine, mut registers) = with_trap();
        guest.cpu.kernel_sp = registers.gpr[gpr::RSP];
        guest.cpu.kernel = false;
        (registers.rip, registers.cs, registers.ss) = (0x40_0000, cs, ss);
        assert_eq!(guest.refuse_selectors(&mut machine, &mut registers), After::Enter);
        assert!(guest.in_kernel());
        assert_eq!((registers.rip, registers.cs, registers.ss), (BASE + 0x2000, CS64, SS));
        let [_, _, code, rip, program, ..] = guest.words::<8>(&machine, registers.gpr[gpr::RSP]).unwrap();
        assert_eq!((code, rip, program as u16), (error.into(), 0x40_0000, cs));
    }
}

#[test]
fn the_selector_of_gs_is_loaded_with_its_descriptor() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let mut load = |selector: u16| {
        registers.other_gs = 0x1234;
        let asked = [3, selector.into(), 0, 0];
        assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::SET_SEGMENT_BASE, asked), 0);
        (registers.gs, registers.other_gs)
    };
    assert_eq!(load(SS), (Some((SS, 0x00cf_f300_0000_ffff)), 0));
    assert_eq!(load(0x17), (Some((0, 0)), 0), "there is no such descriptor");
    assert_eq!(load(3), (Some((3, 0)), 0));
    assert_eq!(load(0), (Some((0, 0)), 0));
}

#[test]
fn an_event_is_told_once_and_not_while_it_is_masked() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (_, page) = spare(700);
    poke(&guest, &mut machine, page, &[0, BASE + 0x3000]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::CALLBACK_OP, [0, page, 0, 0]), 0);
    poke(&guest, &mut machine, page, &[0, 0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::EVENT_CHANNEL_OP, [1, page, 0, 0]), 0);
    let [port] = guest.words::<1>(&machine, page + 8).unwrap();
    assert!(port > 1);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::SET_TIMER_OP, [2000, 0, 0, 0]), 0);
    assert_eq!(guest.deadline(), Some(2000));
    guest.tick(&mut machine);
    assert!(!guest.is_pending(&machine));
    machine.now = 2000;
    guest.tick(&mut machine);
    assert!(guest.is_pending(&machine) && guest.deadline().is_none());
    assert_eq!(word(&machine, guest.layout.shared_info, shared_info::PENDING), 1 << port);
    // It starts with events masked.
    let rip = registers.rip;
    assert_eq!(guest.deliver(&mut machine, &mut registers), After::Enter);
    assert_eq!(registers.rip, rip);
    guest.cpu.set_upcall_mask(&mut machine, false);
    assert_eq!(guest.deliver(&mut machine, &mut registers), After::Enter);
    assert_eq!(registers.rip, BASE + 0x3000);
    assert!(guest.cpu.upcall_mask(&machine));
}

#[test]
fn a_page_table_is_never_writable_however_it_is_asked_for() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let root = guest.cpu.root;
    let (frame, address) = spare(700);
    let writable = |frame| Entry::new(frame, Entry::PRESENT | Entry::WRITE).bits();
    let invalid = Error::Invalid.code();
    // A mapping of a table, of a frame of the hypervisor's, of somebody else's.
    for target in [root, guest.layout.reserved_gdt, Mfn(FIRST - 1), Mfn(FIRST + FRAMES), Mfn(0)] {
        let answer = ask(
            &mut guest,
            &mut machine,
            &mut registers,
            call::UPDATE_VA_MAPPING,
            [address, writable(target), 0, 0],
        );
        assert_eq!(answer, invalid, "{target}");
        let readable = Entry::new(target, Entry::PRESENT).bits();
        let arguments = [spare(710).1, readable, 0, 0];
        let answer = ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, arguments);
        assert_eq!(answer == 0, target == root, "{target} can be read");
    }
    // A table of what is writable.
    poke(&guest, &mut machine, address + 4096, &[0, frame.0, 0]);
    let answer = ask(&mut guest, &mut machine, &mut registers, call::MMUEXT_OP, [address + 4096, 1, 0, SELF]);
    assert_eq!(answer, invalid);
    // Made read-only it can be one, and then no other mapping of it can be writable.
    let entry = Entry::new(frame, Entry::PRESENT).bits();
    assert_eq!(
        ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]),
        0
    );
    assert_eq!(
        ask(&mut guest, &mut machine, &mut registers, call::MMUEXT_OP, [address + 4096, 1, 0, SELF]),
        0
    );
    assert_eq!(guest.types.counts(frame).map(|counts| counts.kind), Some(Kind::L1));
    let alias = address + 2 * 4096;
    let answer = ask(
        &mut guest,
        &mut machine,
        &mut registers,
        call::UPDATE_VA_MAPPING,
        [alias, writable(frame), 0, 0],
    );
    assert_eq!(answer, invalid);
    // The hypervisor's entries, by an update of the root.
    poke(&guest, &mut machine, alias, &[root.0 * 4096 + 256 * 8, 0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::MMU_UPDATE, [alias, 1, 0, SELF]), invalid);
    assert!(guest.counters.refused >= 8);
    model::check(&guest, &machine);
}

#[test]
fn semi_writable_frames_change_between_tables_and_memory_unseen_by_devices() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (frame, address) = spare(700);
    let list = spare(720).1;
    let mut say = |guest: &mut Guest, machine: &mut Machinery, words: &[u64], what: u64| {
        poke(guest, machine, list, words);
        ask(guest, machine, &mut registers, call::SEMI_WRITABLE, [list, words.len() as u64, what, 0])
    };
    // Two hundred frames, each named twice: one change of the devices' for each piece of the list at most.
    let many: Vec<u64> = (0..400).map(|at| FIRST + 800 + at / 2).collect();
    let before = machine.hides;
    assert_eq!(say(&mut guest, &mut machine, &many, 1), 0);
    assert!(machine.hides - before <= 7, "a flush for each piece, and not for each frame");
    assert!(many.iter().all(|frame| !machine.shown.contains(&Mfn(*frame))));
    assert_eq!(say(&mut guest, &mut machine, &many, 0), 0);
    assert!(many.iter().all(|frame| machine.shown.contains(&Mfn(*frame))));
    assert_eq!(guest.counters.semi, 400);

    assert_eq!(say(&mut guest, &mut machine, &[frame.0], 1), 0);
    let (hides, shows) = (machine.hides, machine.shows);
    poke(&guest, &mut machine, address + 4096, &[0, frame.0, 0, 4, frame.0, 0]);
    let rights = |write: bool| {
        Entry::new(frame, if write { Entry::PRESENT | Entry::WRITE } else { Entry::PRESENT }).bits()
    };
    for _ in 0..3 {
        for (call, arguments) in [
            (call::UPDATE_VA_MAPPING, [address, rights(false), 2, 0]),
            (call::MMUEXT_OP, [address + 4096, 1, 0, SELF]),
            (call::MMUEXT_OP, [address + 4096 + 24, 1, 0, SELF]),
            (call::UPDATE_VA_MAPPING, [address, rights(true), 2, 0]),
        ] {
            assert_eq!(ask(&mut guest, &mut machine, &mut registers, call, arguments), 0);
            model::check(&guest, &machine);
        }
    }
    assert_eq!((machine.hides, machine.shows), (hides, shows), "devices know nothing of it");
}

#[test]
fn semi_writable_is_said_of_own_frames_only_and_of_not_too_many() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let list = spare(720).1;
    let hidden = guest.layout.reserved_gdt.0;
    for (words, count, what, error) in [
        ([FIRST - 1; 2], 2, 1, Error::Invalid),
        ([FIRST + FRAMES; 2], 2, 1, Error::Invalid),
        ([hidden; 2], 2, 0, Error::Invalid),
        ([FIRST + 800, hidden], 2, 1, Error::Invalid),
        ([FIRST + 800; 2], 513, 1, Error::TooBig),
        ([FIRST + 800; 2], u64::MAX, 1, Error::TooBig),
        ([FIRST + 800; 2], 2, 2, Error::Invalid),
    ] {
        poke(&guest, &mut machine, list, &words);
        let answer =
            ask(&mut guest, &mut machine, &mut registers, call::SEMI_WRITABLE, [list, count, what, 0]);
        assert_eq!(answer, error.code(), "{words:x?}, {count}, {what}");
        assert!(machine.shown.contains(&Mfn(FIRST + 800)), "nothing of the piece is done");
        model::check(&guest, &machine);
    }
    let arguments = [abi::GATE, 1, 1, 0];
    let answer = ask(&mut guest, &mut machine, &mut registers, call::SEMI_WRITABLE, arguments);
    assert_eq!(answer, Error::Fault.code(), "a list in the hypervisor's part");
}

#[test]
fn an_address_leads_where_the_page_tables_say_now() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (first, address) = spare(700);
    let (second, other) = spare(701);
    let (_, list) = spare(702);
    let word = |guest: &Guest, machine: &Machinery| guest.words::<1>(machine, address).map(|[word]| word);
    poke(&guest, &mut machine, address, &[1]);
    poke(&guest, &mut machine, other, &[2]);
    assert_eq!(word(&guest, &machine), Ok(1));
    // By an update of an entry.
    let entry = Entry::new(second, Entry::PRESENT).bits();
    assert_eq!(
        ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]),
        0
    );
    assert_eq!(word(&guest, &machine), Ok(2));
    assert!(guest.copy_out(&mut machine, address, &[0]).is_err(), "it is not writable any more");
    // Of one above it.
    let directory = [39, 30].iter().fold(guest.cpu.root, |table, shift| {
        crate::memory::entry(&machine, table, address as usize >> shift & 511).frame()
    });
    let index = address >> 21 & 511;
    let old = machine.word(directory, index as usize);
    poke(&guest, &mut machine, list, &[directory.0 * 4096 + index * 8, 0]);
    assert_eq!(word(&guest, &machine), Ok(2));
    // The list is below the same entry: it is not found for the next call.
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::MMU_UPDATE, [list, 1, 0, SELF]), 0);
    assert_eq!(guest.words::<1>(&machine, list), Err(Error::Fault), "what was found last");
    assert_eq!(word(&guest, &machine), Err(Error::Fault));
    assert_ne!(old, 0);
    assert_eq!(machine.word(first, 0), 1);
    model::check(&guest, &machine);
}

#[test]
fn another_root_is_another_place_for_the_same_address() {
    let (mut guest, mut machine, mut registers) = model::guest();
    // A root that has nothing but its list of frames in common with the first one.
    let (root, address) = spare(700);
    let (_, list) = spare(701);
    let entry = Entry::new(root, Entry::PRESENT).bits();
    assert_eq!(
        ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]),
        0
    );
    poke(&guest, &mut machine, list, &[5, root.0, 0]);
    assert!(guest.words::<1>(&machine, list).is_ok());
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::MMUEXT_OP, [list, 1, 0, SELF]), 0);
    assert_eq!(guest.words::<1>(&machine, list), Err(Error::Fault));
}

#[test]
fn who_keeps_segments_is_told_when_descriptors_may_be_others() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (frame, address) = spare(700);
    let (_, list) = spare(701);
    let before = guest.descriptor_changes();
    assert_ne!(before, 0);
    let entry = Entry::new(frame, Entry::PRESENT).bits();
    ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]);
    assert_eq!(guest.descriptor_changes(), before);
    poke(&guest, &mut machine, list, &[frame.0]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::SET_GDT, [list, 512, 0, 0]), 0);
    let table = guest.descriptor_changes();
    let at = frame.0 * 4096 + 8;
    let code = 0x00af_fb00_0000_ffff;
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::UPDATE_DESCRIPTOR, [at, code, 0, 0]), 0);
    assert_eq!(guest.descriptor(&machine, 8), Some(code));
    assert!(before < table && table < guest.descriptor_changes());
}

/// Tables that nobody can write: a tree with so many of the lowest level, from page 700 on. Returns its root.
fn tree(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers, leaves: u64) -> Mfn {
    let refer = |machine: &mut Machinery, table: u64, index: u64, to: u64| {
        let entry = Entry::new(Mfn(FIRST + to), Entry::PRESENT | Entry::WRITE | Entry::USER).bits();
        machine.set_word(Mfn(FIRST + table), index as usize, entry);
    };
    refer(machine, 700, 0, 701);
    refer(machine, 701, 0, 702);
    for leaf in 0..leaves {
        refer(machine, 702, leaf, 703 + leaf);
        refer(machine, 703 + leaf, 9, 703 + leaves);
    }
    for page in 700..703 + leaves {
        let (frame, address) = spare(page);
        let entry = Entry::new(frame, Entry::PRESENT).bits();
        assert_eq!(ask(guest, machine, registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0]), 0);
    }
    Mfn(FIRST + 700)
}

#[test]
fn a_large_tree_is_pinned_and_unpinned_in_turns_with_others() {
    const LEAVES: u64 = 200;
    let (mut guest, mut machine, mut registers) = model::guest();
    let root = tree(&mut guest, &mut machine, &mut registers, LEAVES);
    let (_, list) = spare(1000);
    let kind = |guest: &Guest, page: u64| {
        guest.types.counts(Mfn(FIRST + page)).map(|counts| (counts.kind, counts.uses))
    };
    // A pin, an unpin and a pin in one batch, and how many of them were done.
    poke(&guest, &mut machine, list, &[3, root.0, 0, 4, root.0, 0, 3, root.0, 0]);
    let arguments = [list, 3, list + 512, SELF];
    let (answer, pieces) =
        ask_in_pieces(&mut guest, &mut machine, &mut registers, call::MMUEXT_OP, arguments);
    assert_eq!(answer, 0);
    assert!((9..40).contains(&pieces), "{pieces} pieces");
    assert_eq!(guest.halves::<1>(&machine, list + 512).unwrap(), [3]);
    assert_eq!([kind(&guest, 700), kind(&guest, 702 + LEAVES)], [Some((Kind::L4, 1)), Some((Kind::L1, 1))]);
    model::check(&guest, &machine);
    // The same in a multicall, whose entry says what is left: an unpin, then a call that needs all of it to be over.
    let (frame, address) = spare(703);
    let entry = Entry::new(frame, Entry::PRESENT | Entry::WRITE).bits();
    poke(&guest, &mut machine, list, &[4, root.0, 0]);
    let calls = [
        [call::MMUEXT_OP, 9, list, 1, 0, SELF, 0, 0],
        [call::UPDATE_VA_MAPPING, 9, address, entry, 2, 0, 0, 0],
        [call::FPU_TASKSWITCH, 9, 1, 0, 0, 0, 0, 0],
    ];
    poke(&guest, &mut machine, list + 1024, calls.as_flattened());
    let arguments = [list + 1024, 3, 0, 0];
    let (answer, _) = ask_in_pieces(&mut guest, &mut machine, &mut registers, call::MULTICALL, arguments);
    let answers = [0, 1, 2].map(|call| guest.words::<1>(&machine, list + 1024 + call * 64 + 8).unwrap()[0]);
    assert_eq!((answer, answers), (0, [0; 3]));
    assert_eq!(kind(&guest, 703), Some((Kind::Writable, 1)), "the kernel can write it again");
    assert!(guest.cpu.task_switched);
    model::check(&guest, &machine);
    // In a batch of updates: the tree loses all below its root, and one of its tables is memory again.
    let read_only = Entry::new(frame, Entry::PRESENT).bits();
    assert_eq!(
        ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [address, read_only, 2, 0]),
        0
    );
    poke(&guest, &mut machine, list, &[3, root.0, 0]);
    ask_in_pieces(&mut guest, &mut machine, &mut registers, call::MMUEXT_OP, [list, 1, 0, SELF]);
    let place = leaf(&machine, guest.cpu.root, address).unwrap();
    let updates = [root.0 * 4096, 0, place.table.0 * 4096 + place.index as u64 * 8, entry];
    poke(&guest, &mut machine, list, &updates);
    let (answer, pieces) = ask_in_pieces(
        &mut guest,
        &mut machine,
        &mut registers,
        call::MMU_UPDATE,
        [list, 2, list + 512, SELF],
    );
    assert_eq!((answer, guest.halves::<1>(&machine, list + 512).unwrap()), (0, [2]));
    assert!(pieces > 2, "{pieces} pieces");
    model::check(&guest, &machine);
}

#[test]
fn a_write_of_the_kernels_to_a_page_table_is_an_update() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (frame, address) = spare(700);
    let place = leaf(&machine, guest.cpu.root, address).unwrap();
    let table = guest.layout.pages;
    assert!(table > 0);
    // The address of the entry: page tables are mapped behind the kernel, read-only.
    let page = place.table.0 - FIRST;
    let entry_at = BASE + page * 4096 + place.index as u64 * 8;
    // xchg rax, [rbx]
    let (_, code) = spare(701);
    guest.copy_out(&mut machine, code, &[0x48, 0x87, 0x03]).unwrap();
    registers.rip = code;
    registers.gpr[gpr::RBX] = entry_at;
    registers.gpr[gpr::RAX] = 0;
    assert_eq!(guest.page_fault(&mut machine, &mut registers, 7, entry_at), After::Enter);
    assert_eq!(registers.rip, code + 3);
    assert_eq!(Entry::from_bits_retain(registers.gpr[gpr::RAX]).frame(), frame);
    assert_eq!(machine.word(place.table, place.index), 0);
    assert_eq!(guest.types.counts(frame).map(|counts| counts.references), Some(0));
    // What an update would not take is a page fault of the kernel's, which has no handler here.
    registers.rip = code;
    registers.gpr[gpr::RAX] = Entry::new(guest.cpu.root, Entry::PRESENT | Entry::WRITE).bits();
    assert_eq!(guest.page_fault(&mut machine, &mut registers, 7, entry_at), After::End(End::Lost));
    model::check(&guest, &machine);
}

#[test]
fn the_consoles_ring_moves_bytes_both_ways_and_more_than_fits_is_nothing() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let ring = guest.layout.console;
    let (_, page) = spare(700);
    Host::write(&mut machine, ring, 1024, b"hello");
    Host::write(&mut machine, ring, 3084, &5u32.to_le_bytes());
    poke(&guest, &mut machine, page, &[1]);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::EVENT_CHANNEL_OP, [4, page, 0, 0]), 0);
    assert_eq!(machine.output, b"hello");
    Host::write(&mut machine, ring, 3084, &u32::MAX.to_le_bytes());
    guest.serve_console(&mut machine);
    assert_eq!(machine.output, b"hello");
    machine.input.extend(b"typed");
    guest.serve_console(&mut machine);
    let mut typed = [0; 5];
    machine.read(ring, 0, &mut typed);
    assert_eq!(&typed, b"typed");
    assert!(guest.is_pending(&machine));
}

#[test]
fn nobody_gets_privilege_by_a_return() {
    // To an address that is none, and to a program where there are no page tables for one.
    for (cs, rip) in [(0xe030u64, 0x8000_0000_0000), (0xe033, 0x8000_0000_0000), (0x33, BASE)] {
        let (mut guest, mut machine, mut registers) = model::guest();
        let sp = registers.gpr[gpr::RSP] - 128;
        poke(&guest, &mut machine, sp, &[0, 0, 0, 0, rip, cs, 0x3000, 0, 0]);
        registers.gpr[gpr::RSP] = sp;
        registers.gpr[gpr::RAX] = call::IRET;
        assert_eq!(
            guest.syscall(&mut machine, &mut registers, true),
            After::End(End::Lost),
            "{cs:#x} {rip:#x}"
        );
    }
    let (mut guest, mut machine, mut registers) = model::guest();
    let sp = registers.gpr[gpr::RSP] - 128;
    poke(&guest, &mut machine, sp, &[0, 0, 0, 0, BASE, 0xe031, 0x2_7002, 0, 1]);
    registers.gpr[gpr::RSP] = sp;
    registers.gpr[gpr::RAX] = call::IRET;
    assert_eq!(guest.syscall(&mut machine, &mut registers, true), After::Enter);
    assert_eq!((registers.cs & 3, registers.ss & 3), (3, 3));
    let forbidden = abi::rflags::IOPL | abi::rflags::VM;
    assert_eq!(registers.rflags & (forbidden | abi::rflags::IF), abi::rflags::IF, "{:#x}", registers.rflags);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is asked: nothing panics, and nothing that must not be can be written.
    #[test]
    fn nothing_comes_of_hostile_calls(
        calls in prop::collection::vec((0..48u64, prop::array::uniform4(argument()), prop::array::uniform8(argument())), 1..40),
        has_device: bool,
    ) {
        let (mut guest, mut machine, mut registers) = if has_device { model::owner() } else { model::guest() };
        let (_, page) = spare(700);
        for (number, arguments, words) in calls {
            let _ = guest.copy_out(&mut machine, page, words.map(u64::to_le_bytes).as_flattened());
            registers.gpr[gpr::RAX] = number;
            let [rdi, rsi, rdx, r10] = arguments;
            (registers.gpr[7], registers.gpr[6], registers.gpr[2], registers.gpr[10]) = (rdi, rsi, rdx, r10);
            if let After::End(_) = guest.syscall(&mut machine, &mut registers, true) {
                break;
            }
            guest.deliver(&mut machine, &mut registers);
            model::check(&guest, &machine);
        }
    }
}

/// An argument that may mean something.
fn argument() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..16u64,
        3 => Just(spare(700).1),
        1 => Just(SELF),
        3 => (FIRST..FIRST + FRAMES).prop_map(|frame| frame),
        3 => (FIRST..FIRST + FRAMES, 0..512u64).prop_map(|(frame, at)| frame * 4096 + at * 8),
        2 => (FIRST..FIRST + FRAMES, 0..8u64).prop_map(|(frame, flags)| frame << 12 | flags),
        2 => (0..FRAMES).prop_map(|page| BASE + page * 4096),
        1 => (model::REGISTERS, 0..8u64).prop_map(|(frame, flags)| frame << 12 | flags),
        1 => any::<u64>(),
    ]
}

#[test]
fn a_kernel_that_does_not_fit_is_refused_before_anything_is_written() {
    // Where its segment goes, and how long that is in memory.
    for (field, value) in [(24, FRAMES * 4096 - 0x1000), (24, 1 << 39), (40, FRAMES * 4096), (40, u64::MAX)] {
        let mut file = model::kernel();
        file[64 + field..64 + field + 8].copy_from_slice(&u64::to_le_bytes(value));
        let built = crate::Image::parse(&file).and_then(|image| model::build(&image));
        assert_eq!(built, Err(crate::build::BuildError::TooLarge), "{field} {value:#x}");
    }
    assert_eq!(model::build(&crate::Image::parse(&model::kernel()).unwrap()), Ok(()));
}
