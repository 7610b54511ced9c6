//! A guest's disk that is part of a shared one.

use crate::Input;
use sluice_ide::{Block, Disk, Failure, Front, Issue, Kind, Memory, PART, PLACED, SECTOR, Slice, Wish, prd};
use std::cell::RefCell;

/// Bytes of a guest's memory.
const RAM: usize = 1 << 20;

/// A guest's megabyte, whose words are what the input has left, over and over; and where a disk finds it, if it does.
struct Ram(RefCell<Vec<u8>>, Option<u32>);

impl Ram {
    fn new(filling: &[u8], offset: Option<u32>) -> Self {
        // Random descriptors would hardly ever be even, or in memory.
        let mask = [0xfe, 0xff, 0x0f, 0, 0xfe, 0xff, 0, 0xff];
        let byte = |at: usize| filling.get(at % filling.len().max(1)).map_or(0, |byte| byte & mask[at % 8]);
        Self(RefCell::new((0..RAM).map(byte).collect()), offset)
    }
}

impl Memory for Ram {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let ram = self.0.borrow();
        let part = ram.get(at as usize..at as usize + into.len());
        part.inspect(|part| into.copy_from_slice(part)).is_some()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let mut ram = self.0.borrow_mut();
        let part = ram.get_mut(at as usize..at as usize + bytes.len());
        part.map(|part| part.copy_from_slice(bytes)).is_some()
    }

    fn bus(&self, at: u64, bytes: u64) -> Option<u32> {
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= RAM as u64);
        self.1.filter(|_| is_inside).map(|offset| offset + at as u32)
    }
}

/// Any accesses to a disk's registers, and any answers of the physical disk. Asserts that what the physical disk is asked for is within the
/// guest's slice, and that it fits the buffer, or that the table for it leads to as much of the guest's memory.
pub fn command(data: &[u8]) {
    let mut input = Input::new(data);
    let sectors = 1 + u64::from(input.u32());
    let slice = Slice::new(input.u64() >> 17, sectors, 1 << 48).expect("both are below 2^47");
    let disk = Disk { long: input.flag() };
    let mut front = Front::new(slice, disk, [0x5a5a; 256]);
    let plausible = input.flag();
    let steps: Vec<(u8, u8, u8, u32)> =
        (0..input.u8()).map(|_| (input.u8(), input.u8(), input.u8(), input.u32())).collect();
    let behind = input.flag().then(|| 0x1000 * u32::from(input.u8()));
    let ram = Ram::new(input.rest(), behind);
    let mut table = vec![0; prd::TABLE];
    let mut buffer = vec![0; (u64::from(PART) * SECTOR) as usize];
    for (what, offset, width, value) in steps {
        let block = [Block::Command, Block::Control, Block::BusMaster][usize::from(what % 3)];
        let width = [1, 2, 4][usize::from(width % 3)];
        match what / 3 % 5 {
            0 => {
                front.read(block, offset % 16, width);
            }
            // Commands that move data, with a bus master that runs.
            1 if plausible => {
                front.write(Block::BusMaster, 4, 4, value & 0xf_fffc);
                front.write(Block::BusMaster, 0, 1, 1);
                front.write(Block::Command, 6, 1, 0x40);
                front.write(
                    Block::Command,
                    7,
                    1,
                    [0xc8, 0xca, 0x20, 0x30, 0x25, 0x35][usize::from(offset) % 6],
                );
            }
            1 | 2 => front.write(block, offset % 16, width, value),
            3 => front.read_data(&mut [0; 700][..usize::from(value as u16) % 700]),
            _ => front.write_data(&[0; 700][..usize::from(value as u16) % 700]),
        }
        front.take_given_up();
        let Some(Wish { issue, in_place }) = front.take_wish(&ram, &mut table) else { continue };
        check(&issue, &slice, disk);
        let bytes = issue.bytes() as usize;
        if in_place {
            assert!(issue.count <= PLACED && matches!(issue.kind, Kind::DmaIn | Kind::DmaOut));
            follow(&table, behind.expect("a disk finds it"), bytes as u64);
            // It may take longer than until the next access.
            if what & 1 == 0 {
                front.finish(&ram, Ok(&[]));
            }
            continue;
        }
        assert!(issue.count <= PART);
        let out = if issue.kind == Kind::DmaOut { bytes } else { 0 };
        if front.supply(&ram, &mut buffer[..out]) {
            let moved = if issue.kind == Kind::DmaIn { bytes } else { 0 };
            let failure = Failure { status: value as u8, error: offset };
            let result = if what > 0xf0 { Err(failure) } else { Ok(&buffer[..moved]) };
            front.finish(&ram, result);
        }
    }
}

/// The table leads to so many bytes of the guest's memory.
fn follow(table: &[u8], offset: u32, mut bytes: u64) {
    for entry in table.as_chunks().0 {
        let entry = u64::from_le_bytes(*entry);
        let (at, len) =
            (entry & 0xffff_ffff, if entry >> 32 & 0xffff == 0 { 1 << 16 } else { entry >> 32 & 0xffff });
        assert!(at >= offset.into() && at + len <= u64::from(offset) + RAM as u64, "{entry:#x} is outside");
        assert!(at % (1 << 16) + len <= 1 << 16, "{entry:#x} crosses a boundary");
        bytes = bytes.checked_sub(len).expect("no more than the command's");
        if entry >> 63 != 0 {
            return assert_eq!(bytes, 0);
        }
    }
    panic!("a table without an end");
}

fn check(issue: &Issue, slice: &Slice, disk: Disk) {
    let end = issue.lba + u64::from(issue.count);
    assert!(issue.count == 0 || slice.first() <= issue.lba && end <= slice.first() + slice.sectors());
    assert!(disk.long || !issue.long && end <= 1 << 28);
    assert!(matches!(issue.kind, Kind::NoData | Kind::DmaIn | Kind::DmaOut), "data move by DMA only");
}
