//! Where data are in memory: one page, two pages, lists.

use super::issued::{LIST, carry_out, check};
use super::ram::{BUS, END, HOLE, Ram};
use super::{all, offer};
use crate::command::io;
use crate::{Command, List, PAGE, Status, prp, vet};
use std::vec;
use std::vec::Vec;

/// A read of so many blocks of 512 bytes, and what it comes to: pieces of the guest's memory.
fn read(prp: (u64, u64), blocks: u32, ram: &Ram) -> Result<Vec<(u64, u64)>, Status> {
    let mut page = [0; PAGE as usize];
    let command = Command::new(io::READ, 1).with_prp(prp.0, prp.1).with(12, blocks - 1);
    let issue = vet(&command, &all(), ram, &mut List { bytes: &mut page, bus: LIST })?;
    let effect = carry_out(&issue, 9, &page, ram);
    check(&effect, &all());
    Ok(effect.data.into_iter().map(|(at, len)| (at - BUS, len)).collect())
}

#[test]
fn data_within_a_page_are_where_the_first_entry_says() {
    let ram = Ram::new();
    assert_eq!(read((0x5000, u64::MAX), 8, &ram), Ok(vec![(0x5000, 4096)]), "the second has no meaning");
    assert_eq!(read((0x5004, 0), 1, &ram), Ok(vec![(0x5004, 512)]));
    assert_eq!(read((0x5e00, 0), 1, &ram), Ok(vec![(0x5e00, 512)]));
    for odd in 1..4 {
        assert_eq!(read((0x5000 + odd, 0), 1, &ram), Err(Status::OFFSET));
    }
    assert_eq!(read((HOLE.start, 0), 1, &ram), Err(Status::TRANSFER));
    assert_eq!(read((END, 0), 1, &ram), Err(Status::TRANSFER));
    assert_eq!(read((u64::MAX - 3, 0), 1, &ram), Err(Status::TRANSFER));
    assert_eq!(read((0xffff_ffff_ffff_f000, 0), 8, &ram), Err(Status::TRANSFER));
}

#[test]
fn data_of_two_pages_are_where_both_entries_say() {
    let ram = Ram::new();
    assert_eq!(read((0x5000, 0x9000), 16, &ram), Ok(vec![(0x5000, 4096), (0x9000, 4096)]));
    assert_eq!(read((0x5ffc, 0x9000), 8, &ram), Ok(vec![(0x5ffc, 4), (0x9000, 4092)]));
    assert_eq!(read((0x5000, 0x9004), 16, &ram), Err(Status::OFFSET));
    assert_eq!(read((0x5000, HOLE.start), 16, &ram), Err(Status::TRANSFER));
    assert_eq!(read((HOLE.start, 0x9000), 16, &ram), Err(Status::TRANSFER));
}

#[test]
fn data_of_more_pages_are_where_a_list_says() {
    let ram = Ram::new();
    for pages in [3u64, 4, 33, 34, 65, 128] {
        let named: Vec<u64> = (1..pages).map(|index| 0x1_0000 + index * 2 * PAGE % 0x8_0000).collect();
        ram.put_list(0x9010, named.iter().copied());
        let wanted: Vec<_> = [0x5000].into_iter().chain(named).map(|at| (at, PAGE)).collect();
        assert_eq!(read((0x5000, 0x9010), 8 * pages as u32, &ram), Ok(wanted), "{pages}");
    }
}

#[test]
fn the_first_page_may_be_a_part_of_one_and_so_may_the_last() {
    let ram = Ram::new();
    ram.put_list(0x9000, (0..128).map(|index| 0x1_0000 + index * PAGE));
    let data = read((0x5e00, 0x9000), 1024, &ram).expect("it is a good list");
    assert_eq!(data.len(), 129, "129 pages with 128 entries of a list");
    assert_eq!((data[0], data[1], data[128]), ((0x5e00, 512), (0x1_0000, 4096), (0x8_f000, 3584)));
}

#[test]
fn a_list_that_begins_near_the_end_of_its_page_goes_on_in_another() {
    let ram = Ram::new();
    for room in 1..20 {
        // Of `room` entries one less than all lead to data.
        let first: Vec<u64> = (0..room - 1).map(|index| 0x1_0000 + index * PAGE).collect();
        let rest: Vec<u64> = (0..40 - first.len() as u64).map(|index| 0x4_0000 + index * PAGE).collect();
        ram.put_list(0xa000 - 8 * room, first.iter().copied().chain([0xc000]));
        ram.put_list(0xc000, rest.iter().copied());
        let wanted: Vec<_> = [0x5000].into_iter().chain(first).chain(rest).map(|at| (at, PAGE)).collect();
        assert_eq!(wanted.len(), 41);
        assert_eq!(read((0x5000, 0xa000 - 8 * room), 8 * 41, &ram), Ok(wanted), "{room}");
    }
    // Just as many entries as there is room for: the last one is data, too.
    ram.put_list(0xa000 - 24, [0x1_0000, 0x1_1000, 0x1_2000]);
    let wanted = vec![(0x5000, PAGE), (0x1_0000, PAGE), (0x1_1000, PAGE), (0x1_2000, PAGE)];
    assert_eq!(read((0x5000, 0xa000 - 24), 32, &ram), Ok(wanted));
    // The next list begins with its page.
    ram.put_list(0xa000 - 16, [0x1_0000, 0xc008]);
    assert_eq!(read((0x5000, 0xa000 - 16), 32, &ram), Err(Status::OFFSET));
    ram.put_list(0xa000 - 16, [0x1_0000, HOLE.start]);
    assert_eq!(read((0x5000, 0xa000 - 16), 32, &ram), Err(Status::TRANSFER));
}

#[test]
fn a_bad_list_moves_nothing() {
    let ram = Ram::new();
    let good = [0x1_0000, 0x1_1000, 0x1_2000];
    for (place, bad, status) in [
        (0, 0x1_0004, Status::OFFSET),
        (2, 0x1_2fff, Status::OFFSET),
        (0, HOLE.end - PAGE, Status::TRANSFER),
        (2, END, Status::TRANSFER),
        (1, 0xffff_ffff_ffff_f000, Status::TRANSFER),
    ] {
        let mut list = good;
        list[place] = bad;
        ram.put_list(0x9000, list);
        assert_eq!(read((0x5000, 0x9000), 32, &ram), Err(status), "{bad:#x}");
    }
    ram.put_list(0x9000, good);
    assert!(read((0x5000, 0x9000), 32, &ram).is_ok());
    for (list, status) in [
        (0x9001, Status::OFFSET),
        (0x9004, Status::OFFSET),
        (HOLE.start, Status::TRANSFER),
        (END, Status::TRANSFER),
        (u64::MAX - 7, Status::TRANSFER),
    ] {
        assert_eq!(read((0x5000, list), 32, &ram), Err(status), "{list:#x}");
    }
}

#[test]
fn a_list_that_leaves_memory_is_no_list() {
    let ram = Ram::new();
    // It begins in the guest's memory, and its page ends there. What it leads to is elsewhere.
    ram.put_list(HOLE.start - 8, [HOLE.start]);
    assert_eq!(read((0x5000, HOLE.start - 8), 32, &ram), Err(Status::TRANSFER));
    ram.put_list(HOLE.start - 8, [0xffff_ffff_ffff_f000]);
    assert_eq!(read((0x5000, HOLE.start - 8), 32, &ram), Err(Status::TRANSFER));
}

#[test]
fn lists_are_chained_only_so_often() {
    let ram = Ram::new();
    // Each list is one page, whose last entry leads to the same page again.
    ram.put_list(0x9000, (0..511).map(|index| 0x1_0000 + index % 64 * PAGE).chain([0x9000]));
    let walk = |second: u64, pages: u64| {
        let mut count = 0;
        let result = prp::each((0x5000, second), pages * PAGE, &ram, |_, _| {
            count += 1;
            Ok(())
        });
        (result, count)
    };
    assert_eq!(walk(0x9000, 1 + 512), (Ok(()), 513), "the last entry of a full list is data");
    assert_eq!(walk(0x9000, 1 + 511 + 511 + 512), (Ok(()), 1535));
    assert_eq!(walk(0x9000, 1 + 511 + 511 + 513), (Err(Status::TRANSFER), 1534));
    // A list of one entry, which leads to itself at once.
    assert_eq!(walk(0x9ff8, 1 + 511 + 512), (Ok(()), 1024));
    assert_eq!(walk(0x9ff8, 1 + 511 + 513), (Err(Status::TRANSFER), 1023));
}

#[test]
fn what_an_act_refuses_is_refused() {
    let ram = Ram::new();
    let mut seen = vec![];
    let result = prp::each((0x5000, 0x6000), 2 * PAGE, &ram, |at, len| {
        seen.push((at, len));
        Err(Status::ABORTED)
    });
    assert_eq!((result, seen), (Err(Status::ABORTED), vec![(0x5000, PAGE)]));
}

#[test]
fn bytes_are_copied_to_and_from_the_pages() {
    let ram = Ram::new();
    ram.put_list(0x9000, [0x2_0000, 0x3_0000]);
    let bytes: Vec<u8> = (0..3 * PAGE - 100).map(|at| (at % 251) as u8).collect();
    assert_eq!(prp::scatter((0x5f9c, 0x9000), &bytes[..2 * PAGE as usize + 100], &ram), Ok(()));
    assert_eq!(ram.get::<100>(0x5f9c), bytes[..100]);
    assert_eq!(ram.get::<4096>(0x2_0000), bytes[100..4196]);
    assert_eq!(ram.get::<4096>(0x3_0000), bytes[4196..8292]);
    let mut back = vec![0; 2 * PAGE as usize + 100];
    assert_eq!(prp::gather((0x5f9c, 0x9000), &mut back, &ram), Ok(()));
    assert_eq!(back, bytes[..back.len()]);
    assert_eq!(prp::scatter((HOLE.start, 0), &[1], &ram), Err(Status::TRANSFER));
    assert_eq!(prp::gather((HOLE.start, 0), &mut [0], &ram), Err(Status::TRANSFER));
}

#[test]
fn a_command_moves_no_more_than_was_offered() {
    let ram = Ram::new();
    ram.put_list(0x9000, (0..200).map(|index| 0x1_0000 + index % 64 * PAGE));
    for (most, shift, blocks) in [(0, 9, 1024), (1, 9, 16), (3, 9, 64), (7, 12, 128), (200, 12, 128)] {
        let offer = offer(most, 0, true, shift);
        let mut page = [0; PAGE as usize];
        let mut run = |blocks: u32| {
            let command = Command::new(io::WRITE, 1).with_prp(0x5000, 0x9000).with(12, blocks - 1);
            vet(&command, &offer, &ram, &mut List { bytes: &mut page, bus: LIST }).map(|_| ())
        };
        assert_eq!((run(blocks), run(blocks + 1)), (Ok(()), Err(Status::FIELD)), "{most}, {shift}");
    }
}
