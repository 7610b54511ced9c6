//! A guest's namespace that is part of a shared disk.

use crate::Input;
use sluice_disk::Slice;
use sluice_nvme::{Command, Facts, Front, Lists, Memory, Offer, PAGE, SLOTS, Status, Taken};
use std::cell::RefCell;

/// The guest's memory, but for a hole.
const END: u64 = 1 << 18;
const HOLE: std::ops::Range<u64> = 0x2_8000..0x3_0000;
/// How far behind its address the physical disk finds a byte, and where it finds the lists.
const BUS: u64 = 0x40_0000_0000;
const LISTS: u64 = 0x7_0000_0000;
/// Where a driver that means well has its queues.
const QUEUES: [u64; 4] = [0x1000, 0x2000, 0x3000, 0x4000];

/// A guest's memory, whose words are what the input has left, over and over.
struct Ram(RefCell<Vec<u8>>);

impl Ram {
    fn new(filling: &[u8]) -> Self {
        // Random entries would hardly ever be addresses of pages, or in memory.
        let mask = [0, 0xf0, 0x03, 0, 0, 0, 0, 0];
        let is_raw = filling.first().is_none_or(|first| first % 4 == 0);
        let bytes = filling.iter().cycle().take(8 * filling.len().max(1));
        let mut pattern: Vec<u8> = bytes
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| if is_raw { *byte } else { byte & mask })
            .collect();
        pattern.resize(pattern.len().max(8), 0);
        let mut ram = vec![0; END as usize];
        ram.chunks_mut(pattern.len()).for_each(|part| part.copy_from_slice(&pattern[..part.len()]));
        Self(RefCell::new(ram))
    }

    fn has(at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= END && (end <= HOLE.start || HOLE.end <= at))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.0.borrow_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
}

impl Memory for Ram {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let is_ours = Self::has(at, into.len() as u64);
        if is_ours {
            into.copy_from_slice(&self.0.borrow()[at as usize..at as usize + into.len()]);
        }
        is_ours
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let is_ours = Self::has(at, bytes.len() as u64);
        if is_ours {
            self.put(at, bytes);
        }
        is_ours
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.read(at, &mut word).then_some(u32::from_le_bytes(word))
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.write(at, &value.to_le_bytes())
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        assert!(len > 0 && at % PAGE + len <= PAGE, "what is looked up is within a page");
        Self::has(at, len).then(|| BUS + at)
    }
}

/// What a physical disk says of itself.
fn facts(input: &mut Input<'_>) -> Facts {
    let (mut controller, mut namespace) = ([0; 4096], [0; 4096]);
    controller[77] = input.u8();
    controller[520..522].copy_from_slice(&[input.u8(), 0xff]);
    controller[525] = input.u8();
    namespace[..8].copy_from_slice(&(1u64 << 48).to_le_bytes());
    namespace[130] = 9 + input.u8() % 4;
    Facts::new(&controller, &namespace).expect("it can be shared")
}

/// Any accesses to a controller's registers, any queues and lists, and any completions of the physical disk, with a driver that half of the
/// time means well. Asserts that what the physical disk is asked for names blocks of the guest's range, the guest's memory and at most as
/// many bytes as were offered, by lists that the guest does not reach; that no slot is used twice; and that a controller that is switched off
/// is ready until the physical disk has nothing of it.
pub fn command(data: &[u8]) {
    let mut input = Input::new(data);
    let facts = facts(&mut input);
    let slice =
        Slice::new(input.u64() >> 17, 1 + u64::from(input.u32() >> 8), 1 << 48).expect("both are below 2^47");
    let offer = Offer::new(facts, slice, [b'S'; 20]);
    let mut front = Front::new(offer.clone());
    let means_well = input.flag();
    let steps: Vec<(u8, u8, u32, u32)> =
        (0..input.u8()).map(|_| (input.u8(), input.u8(), input.u32(), input.u32())).collect();
    let ram = Ram::new(input.rest());
    let mut lists = vec![0; (SLOTS + 1) * PAGE as usize];
    let mut held: Vec<u16> = Vec::new();
    let mut tails = [0u16; 2];
    if means_well {
        start(&mut front, &ram, &mut lists);
        tails = [2, 0];
    }
    for (what, small, one, two) in steps {
        match what % 12 {
            0 => {
                front.read(one % 0x2000, [1, 2, 4, 8][usize::from(small) % 4]);
            }
            1 => front.write(one % 0x60, [4, 8][usize::from(small) % 2], two.into()),
            2 => front.write(0x1000 + u32::from(small) % 5 * 4, 4, (one % 70).into()),
            3 if small % 64 < 16 => {
                let on = small % 2 == 1;
                front.write(0x14, 4, u64::from(on) | u64::from(small & 0xc0) << 8);
                let is_ready = front.read(0x1c, 4) & 1 != 0;
                assert!(on || is_ready == front.is_busy(), "it is ready until the disk has nothing of it");
            }
            // A command for the controller.
            4 if means_well => {
                let command = Command::new(small % 14, one % 3).with_prp(0x8000, (two & 0xff000).into());
                submit(&mut front, &ram, 0, &mut tails, command.with(10, one >> 8).with(11, two));
            }
            // A command that moves data, or ranges; one that is nearly right.
            5..=8 if means_well => {
                let block = u64::from(two) % (slice.sectors() + 4);
                let command = Command::new([0, 1, 2, 8, 9][usize::from(small) % 5], 1)
                    .with_prp((one & 0x3_fffc).into(), (one >> 8 & 0x3_fff8).into())
                    .with_wide(10, block)
                    .with(12, two >> 20 | if small > 200 { one & 0xffff_0000 } else { 0 });
                submit(&mut front, &ram, 1, &mut tails, command);
            }
            9 if front.has_room(&ram) => {
                let slot =
                    if held.is_empty() { one as u16 } else { held.swap_remove(one as usize % held.len()) };
                front.complete(slot, Status(two as u16 & 0x7fff), &ram);
            }
            10 if small < 16 => {
                front.give_up(&ram);
                held.clear();
            }
            10 => front.write(0x100c, 4, (one % 64).into()),
            _ => {}
        }
        for _ in 0..=small % 8 {
            match front.take(&ram, &mut Lists { bytes: &mut lists, bus: LISTS }) {
                Taken::Nothing => break,
                Taken::Answered => {}
                Taken::Issue(command) => {
                    check(&command, &offer, &lists);
                    assert!(!held.contains(&command.id()), "a slot is used twice");
                    held.push(command.id());
                }
            }
        }
        front.take_signals();
    }
}

/// Switches the controller on, with queues of 64 entries.
fn start(front: &mut Front, ram: &Ram, lists: &mut [u8]) {
    for (offset, width, value) in
        [(0x24, 4, 0x3f_003f), (0x28, 8, QUEUES[0]), (0x30, 8, QUEUES[1]), (0x14, 4, 1)]
    {
        front.write(offset, width, value);
    }
    let create = |opcode, at| Command::new(opcode, 0).with_prp(at, 0).with(10, 0x3f_0001).with(11, 0x1_0001);
    let commands = [create(5, QUEUES[3]), create(1, QUEUES[2])];
    for (index, command) in commands.into_iter().enumerate() {
        ram.put(QUEUES[0] + 64 * index as u64, &command.encode());
    }
    front.write(0x1000, 4, 2);
    while front.take(ram, &mut Lists { bytes: lists, bus: LISTS }) != Taken::Nothing {}
}

/// Puts a command into a queue and rings.
fn submit(front: &mut Front, ram: &Ram, queue: usize, tails: &mut [u16; 2], command: Command) {
    ram.put(QUEUES[2 * queue] + 64 * u64::from(tails[queue]), &command.encode());
    tails[queue] = (tails[queue] + 1) % 64;
    front.write(0x1000 + 8 * queue as u32, 4, tails[queue].into());
}

/// Decodes a command as the physical disk does.
fn check(command: &Command, offer: &Offer, lists: &[u8]) {
    let list = usize::from(command.id()) * PAGE as usize;
    let bus = LISTS + list as u64;
    let entry =
        |at: usize| u64::from_le_bytes(*lists[list + at..].first_chunk().expect("it is within the list"));
    let has_blocks = |first: u64, count: u64| {
        let slice = offer.slice();
        let end = first.checked_add(count).expect("a range ends");
        assert!(slice.first() <= first && end <= slice.first() + slice.sectors(), "blocks of the guest's");
    };
    let has_bytes = |at: u64, len: u64| {
        assert!(at.checked_sub(BUS).is_some_and(|at| Ram::has(at, len)), "memory of the guest's: {at:#x}");
    };
    assert_eq!((command.0[0] & 0xff00, command.namespace()), (0, 1));
    let blocks = u64::from(command.0[12] & 0xffff) + 1;
    match command.opcode() {
        0 => assert_eq!(*command, Command::new(0, 1).with_id(command.id())),
        8 => has_blocks(command.wide(10), blocks),
        9 => {
            assert_eq!((command.prp(), command.0[11] & !4), ((bus, 0), 0));
            for range in 0..=command.0[10] as usize {
                has_blocks(entry(16 * range + 8), entry(16 * range) >> 32);
            }
        }
        1 | 2 => {
            has_blocks(command.wide(10), blocks);
            let (first, second) = command.prp();
            let bytes = blocks << offer.block_shift();
            assert!(bytes <= offer.most_bytes() && command.0[12] & 0x3fff_0000 == 0);
            let here = bytes.min(PAGE - first % PAGE);
            has_bytes(first, here);
            let rest = (bytes - here).div_ceil(PAGE) as usize;
            assert!(rest < 2 || second == bus, "the list is the hypervisor's");
            for index in 0..rest {
                let at = if rest == 1 { second } else { entry(8 * index) };
                assert_eq!(at % PAGE, 0);
                has_bytes(at, PAGE.min(bytes - here - PAGE * index as u64));
            }
        }
        other => panic!("a command of opcode {other:#x}"),
    }
}
