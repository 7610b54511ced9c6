//! A guest's disk that is part of a shared one.

use crate::Input;
use sluice_ide::{Block, Disk, Failure, Front, Issue, Kind, Memory, PART, SECTOR, Slice};
use std::cell::RefCell;

/// A guest's megabyte, whose words are what the input has left, over and over.
struct Ram(RefCell<Vec<u8>>);

impl Ram {
    fn new(filling: &[u8]) -> Self {
        // Random descriptors would hardly ever be even, or in memory.
        let mask = [0xfe, 0xff, 0x0f, 0, 0xfe, 0xff, 0, 0xff];
        let byte = |at: usize| filling.get(at % filling.len().max(1)).map_or(0, |byte| byte & mask[at % 8]);
        Self(RefCell::new((0..1 << 20).map(byte).collect()))
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
}

/// Any accesses to a disk's registers, and any answers of the physical disk. Asserts that what the physical disk is asked for is within the
/// guest's slice and fits the buffer.
pub fn command(data: &[u8]) {
    let mut input = Input::new(data);
    let sectors = 1 + u64::from(input.u32());
    let slice = Slice::new(input.u64() >> 17, sectors, 1 << 48).expect("both are below 2^47");
    let disk = Disk { long: input.flag() };
    let mut front = Front::new(slice, disk, [0x5a5a; 256]);
    let plausible = input.flag();
    let steps: Vec<(u8, u8, u8, u32)> =
        (0..input.u8()).map(|_| (input.u8(), input.u8(), input.u8(), input.u32())).collect();
    let ram = Ram::new(input.rest());
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
        front.take_reset();
        let Some(issue) = front.take_wish() else { continue };
        check(&issue, &slice, disk);
        let bytes = issue.bytes() as usize;
        let out = if issue.kind == Kind::DmaOut { bytes } else { 0 };
        if front.supply(&ram, &mut buffer[..out]) {
            let moved = if issue.kind == Kind::DmaIn { bytes } else { 0 };
            let failure = Failure { status: value as u8, error: offset };
            let result = if what > 0xf0 { Err(failure) } else { Ok(&buffer[..moved]) };
            front.finish(&ram, result);
        }
    }
}

fn check(issue: &Issue, slice: &Slice, disk: Disk) {
    let end = issue.lba + u64::from(issue.count);
    assert!(issue.count == 0 || slice.first() <= issue.lba && end <= slice.first() + slice.sectors());
    assert!(disk.long || !issue.long && end <= 1 << 28);
    assert!(issue.bytes() <= u64::from(PART) * SECTOR);
    assert!(matches!(issue.kind, Kind::NoData | Kind::DmaIn | Kind::DmaOut), "data move by DMA only");
}
