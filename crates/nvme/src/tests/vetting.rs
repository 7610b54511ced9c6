//! Each refusal of a command, and each change to one that is passed on.

use super::issued::LIST;
use super::ram::{BUS, END, HOLE, Ram};
use super::{DATASET, FIRST, SECTORS, ZEROES, all, offer};
use crate::command::io;
use crate::{Command, List, Offer, PAGE, Status, vet};
use std::vec::Vec;

/// What becomes of a command, and the list that goes with it.
fn decide(command: &Command, offer: &Offer, ram: &Ram) -> (Result<Command, Status>, [u8; PAGE as usize]) {
    let mut page = [0xdd; PAGE as usize];
    let verdict = vet(command, offer, ram, &mut List { bytes: &mut page, bus: LIST });
    (verdict, page)
}

fn verdict(command: &Command) -> Result<Command, Status> {
    decide(command, &all(), &Ram::new()).0
}

/// A command of one block at the beginning.
fn simple(opcode: u8) -> Command {
    Command::new(opcode, 1).with_prp(0x5000, 0)
}

/// A range of Dataset Management: attributes, blocks, first.
fn range(attributes: u32, blocks: u32, first: u64) -> [u64; 2] {
    [u64::from(attributes) | u64::from(blocks) << 32, first]
}

#[test]
fn every_opcode_that_is_not_listed_is_refused() {
    for opcode in 0..=u8::MAX {
        let verdict = verdict(&simple(opcode));
        let is_known = matches!(opcode, io::FLUSH | io::READ | io::WRITE | io::ZEROES | io::DATASET);
        assert_eq!(verdict.err(), (!is_known).then_some(Status::OPCODE), "{opcode:#x}");
    }
}

#[test]
fn what_the_disk_does_not_have_is_refused() {
    for (commands, opcode) in [(DATASET, io::ZEROES), (ZEROES, io::DATASET)] {
        let offer = offer(0, commands, true, 9);
        assert_eq!(decide(&simple(opcode), &offer, &Ram::new()).0, Err(Status::OPCODE));
    }
    let none = offer(0, !(DATASET | ZEROES), true, 9);
    for opcode in 3..=u8::MAX {
        assert_eq!(decide(&simple(opcode), &none, &Ram::new()).0, Err(Status::OPCODE), "{opcode:#x}");
    }
}

#[test]
fn nothing_is_fused_or_a_list_of_another_kind() {
    for bit in 8..16 {
        let command = simple(io::READ);
        let command = command.with(0, command.0[0] | 1 << bit);
        let is_refused = matches!(bit, 8 | 9 | 14 | 15);
        assert_eq!(verdict(&command).err(), is_refused.then_some(Status::FIELD), "{bit}");
    }
}

#[test]
fn the_only_namespace_is_the_first_one() {
    for opcode in [io::FLUSH, io::READ, io::WRITE, io::ZEROES, io::DATASET] {
        for namespace in [0, 2, 0x100, u32::MAX - 1] {
            let command = simple(opcode).with(1, namespace);
            assert_eq!(verdict(&command), Err(Status::NAMESPACE), "{opcode:#x}, {namespace:#x}");
        }
        let everywhere = verdict(&simple(opcode).with(1, u32::MAX));
        if opcode == io::FLUSH {
            assert_eq!(everywhere, Ok(Command::new(io::FLUSH, 1)), "other namespaces are not the guest's");
        } else {
            assert_eq!(everywhere, Err(Status::NAMESPACE));
        }
    }
}

#[test]
fn a_flush_has_no_parameters() {
    let command = Command([u32::MAX; 16]).with(0, 0x1234_0000 | u32::from(io::FLUSH)).with(1, 1);
    assert_eq!(verdict(&command), Ok(Command::new(io::FLUSH, 1)));
}

#[test]
fn blocks_are_the_guests_and_become_the_disks() {
    for opcode in [io::READ, io::WRITE, io::ZEROES] {
        let run = |first, blocks: u32| verdict(&simple(opcode).with_wide(10, first).with(12, blocks - 1));
        for (first, blocks) in [(0, 1), (SECTORS - 1, 1), (SECTORS - 8, 8), (17, 3)] {
            let issue = run(first, blocks).expect("they are the guest's");
            assert_eq!((issue.wide(10), issue.0[12]), (FIRST + first, blocks - 1));
        }
        for (first, blocks) in [
            (SECTORS, 1),
            (SECTORS - 1, 2),
            (SECTORS - 7, 8),
            (u64::MAX, 1),
            (u64::MAX - 7, 8),
            (u64::MAX - FIRST + 1, 1),
            (1 << 32, 1),
        ] {
            assert_eq!(run(first, blocks), Err(Status::RANGE), "{first} + {blocks}");
        }
    }
    let zeroes = simple(io::ZEROES).with(12, SECTORS as u32 - 1);
    assert_eq!(verdict(&zeroes).map(|issue| issue.0[12]), Ok(SECTORS as u32 - 1));
    assert_eq!(verdict(&zeroes.with_wide(10, 1)), Err(Status::RANGE));
}

#[test]
fn of_the_options_only_those_that_harm_nobody_are_passed_on() {
    for (opcode, passed) in [(io::READ, 0xc000_0000u32), (io::WRITE, 0xc000_0000), (io::ZEROES, 0xc200_0000)]
    {
        for bit in 16..32 {
            let verdict = verdict(&simple(opcode).with(12, 1 << bit));
            if (26..30).contains(&bit) {
                assert_eq!(verdict, Err(Status::FIELD), "protection without metadata: {bit}");
            } else {
                assert_eq!(verdict.map(|issue| issue.0[12]), Ok(passed & 1 << bit), "{opcode:#x}, {bit}");
            }
        }
        // Metadata, hints, tags, and what is reserved.
        let mut full = Command([u32::MAX; 16]).with(0, opcode.into()).with(1, 1).with_prp(0x5000, 0);
        full = full.with_wide(10, 5).with(12, 0xc000_0000);
        let issue = verdict(&full).expect("what has no meaning is not looked at");
        let data = if opcode == io::ZEROES { (0, 0) } else { (BUS + 0x5000, 0) };
        let wanted = Command::new(opcode, 1).with_prp(data.0, data.1).with_wide(10, FIRST + 5);
        assert_eq!(issue, wanted.with(12, 0xc000_0000));
    }
}

#[test]
fn data_are_named_by_the_address_that_the_disk_knows() {
    let ram = Ram::new();
    let (issue, _) = decide(&simple(io::WRITE).with_prp(0x5010, 0), &all(), &ram);
    assert_eq!(issue.map(|issue| issue.prp()), Ok((BUS + 0x5010, 0)));
    let two = simple(io::WRITE).with_prp(0x5010, 0x7000).with(12, 7);
    assert_eq!(decide(&two, &all(), &ram).0.map(|issue| issue.prp()), Ok((BUS + 0x5010, BUS + 0x7000)));
    ram.put_list(0x9000, [0x2_0000, 0x3_0000]);
    let (issue, page) = decide(&simple(io::READ).with_prp(0x5000, 0x9000).with(12, 23), &all(), &ram);
    assert_eq!(issue.map(|issue| issue.prp()), Ok((BUS + 0x5000, LIST)));
    let entries: Vec<_> = page.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)).collect();
    assert_eq!(entries[..2], [BUS + 0x2_0000, BUS + 0x3_0000]);
    assert_eq!(decide(&simple(io::READ).with_prp(HOLE.start, 0), &all(), &ram).0, Err(Status::TRANSFER));
}

#[test]
fn ranges_are_copied_and_translated_and_their_attributes_dropped() {
    let ram = Ram::new();
    let last = SECTORS - 1;
    ram.put_list(0x5000, [range(u32::MAX, 8, 0), range(7, 1, last), range(0, SECTORS as u32, 0)].concat());
    let command = simple(io::DATASET).with(10, 0xffff_ff02).with(11, u32::MAX);
    let (issue, page) = decide(&command, &all(), &ram);
    assert_eq!(issue, Ok(Command::new(io::DATASET, 1).with_prp(LIST, 0).with(10, 2).with(11, 4)));
    let words: Vec<_> = page.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let wanted = [range(0, 8, FIRST), range(0, 1, FIRST + last), range(0, SECTORS as u32, FIRST)].concat();
    assert_eq!(words[..6], wanted);
    let advice = decide(&command.with(11, 3), &all(), &ram).0;
    assert_eq!(advice.map(|issue| issue.0[11]), Ok(0), "nothing is given back unasked");
}

#[test]
fn one_bad_range_is_enough() {
    let ram = Ram::new();
    for (blocks, first) in [
        (1, SECTORS),
        (2, SECTORS - 1),
        (SECTORS as u32 + 1, 0),
        (u32::MAX, 0),
        (1, u64::MAX),
        (u32::MAX, u64::MAX),
        (1, u64::MAX - FIRST + 1),
    ] {
        ram.put_list(0x5000, [range(0, 8, 0), range(0, blocks, first), range(0, 8, 8)].concat());
        let command = simple(io::DATASET).with(10, 2).with(11, 4);
        assert_eq!(decide(&command, &all(), &ram).0, Err(Status::RANGE), "{first} + {blocks}");
        assert!(decide(&command.with(10, 0), &all(), &ram).0.is_ok());
    }
}

#[test]
fn ranges_fill_a_page_and_come_from_the_guests_memory() {
    let ram = Ram::new();
    ram.put_list(0x5010, (0..255).flat_map(|index| range(0, 1, index)));
    ram.put_list(0x8000, range(0, 1, 255));
    let most = simple(io::DATASET).with(10, 255).with_prp(0x5010, 0x8000);
    let (issue, page) = decide(&most, &all(), &ram);
    assert_eq!(issue.map(|issue| issue.0[10]), Ok(255));
    let lba = |index: usize| u64::from_le_bytes(*page[16 * index + 8..].first_chunk().expect("inside"));
    assert!((0..256).all(|index| lba(index) == FIRST + index as u64));
    for (prp, status) in [
        ((HOLE.start, 0), Status::TRANSFER),
        ((0x5001, 0x8000), Status::OFFSET),
        ((0x5010, 0x8004), Status::OFFSET),
        ((0x5010, END), Status::TRANSFER),
        ((u64::MAX - 0xfff, 0), Status::TRANSFER),
    ] {
        let command = most.with_prp(prp.0, prp.1);
        assert_eq!(decide(&command, &all(), &ram).0, Err(status), "{prp:x?}");
    }
}

#[test]
fn without_a_page_for_its_list_a_command_is_refused() {
    let ram = Ram::new();
    ram.put_list(0x9000, [0x2_0000, 0x3_0000]);
    for command in [simple(io::READ).with_prp(0x5000, 0x9000).with(12, 23), simple(io::DATASET)] {
        let verdict = vet(&command, &all(), &ram, &mut List { bytes: &mut [0; 8], bus: LIST });
        assert_eq!(verdict, Err(Status::FIELD));
    }
}
