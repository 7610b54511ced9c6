//! A driver's way through its registers, with the engine and a disk made of bytes behind them.

extern crate std;

use super::*;
use crate::bits::INTO_MEMORY;
use crate::channel::{Action, Channel};
use crate::identify::{capacity, filter};
use crate::tests::Ram;
use crate::{Engine, Ports};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const SECTORS: u64 = 1000;
const BYTES: usize = SECTOR as usize;

/// A disk, and the memory that its bus master reaches.
struct Bytes {
    media: Vec<u8>,
    buffer: Vec<u8>,
    file: TaskFile,
    status: u8,
    error: u8,
    pending: Option<u8>,
    master: (u8, u8),
    /// What is left of an identification.
    words: Vec<u16>,
    fails: bool,
}

impl Bytes {
    fn new() -> Self {
        let media = (0..SECTORS as usize * BYTES).map(|at| (at / BYTES) as u8).collect();
        let buffer = vec![0; PART as usize * BYTES];
        let (file, master) = (TaskFile::default(), (0, 0));
        Self {
            media,
            buffer,
            file,
            status: READY,
            error: 0,
            pending: None,
            master,
            words: Vec::new(),
            fails: false,
        }
    }

    /// The command that was written, if all that it needs is there.
    fn run(&mut self) {
        let Some(code) = self.pending else { return };
        let moves = matches!(code, 0xc8 | 0xca | 0x25 | 0x35);
        if moves && self.master.0 & START == 0 {
            return;
        }
        self.pending = None;
        (self.status, self.error) = if self.fails { (READY | ERR, 0x40) } else { (READY, 0) };
        self.master.1 |= INTERRUPT;
        if !moves || self.fails {
            return;
        }
        let (lba, count) = if matches!(code, 0x25 | 0x35) { self.file.long() } else { self.file.short() };
        let range = lba as usize * BYTES..(lba as usize + count as usize) * BYTES;
        let media = &mut self.media[range];
        let buffer = &mut self.buffer[..media.len()];
        let into_memory = matches!(code, 0xc8 | 0x25);
        assert_eq!(self.master.0 & INTO_MEMORY != 0, into_memory);
        if into_memory { buffer.copy_from_slice(media) } else { media.copy_from_slice(buffer) }
    }
}

impl Ports for Bytes {
    fn read(&mut self, block: Block, offset: u8, _: u8) -> u32 {
        match (block, offset) {
            (Block::Command, 0) => self.words.remove(0).into(),
            (Block::Command, 7) | (Block::Control, 2) => self.status.into(),
            (Block::Command, 1) => self.error.into(),
            (Block::BusMaster, 2) => self.master.1.into(),
            other => panic!("nobody reads {other:?}"),
        }
    }

    fn write(&mut self, block: Block, offset: u8, _: u8, value: u32) {
        let low = value as u8;
        match (block, offset) {
            (Block::Command, 7) if low == 0xec => {
                (self.words, self.status) = (vec![0; 256], READY | DRQ);
                (self.words[49], self.words[83]) = (0x0300, 1 << 10);
                (self.words[60], self.words[100]) = (SECTORS as u16, SECTORS as u16);
            }
            (Block::Command, 7) => self.pending = Some(low),
            (Block::Command, 6) => self.file.select(low),
            (Block::Command, 1..6) => self.file.write(parameter(offset).expect("one of them"), low),
            (Block::BusMaster, 0) => self.master.0 = low,
            (Block::BusMaster, 2) => self.master.1 &= !low,
            (Block::BusMaster, 4) | (Block::Control, 2) => {}
            other => panic!("nobody writes {other:?}"),
        }
        self.run();
    }

    fn delay_us(&mut self, _: u64) {}
}

/// Two guests with a slice each, and what the hypervisor does for them.
struct World {
    engine: Engine<Bytes>,
    channel: Channel<2>,
    fronts: [Front; 2],
    memories: [Ram; 2],
}

/// First sectors and lengths of the slices.
const SLICES: [(u64, u64); 2] = [(100, 400), (500, 300)];
const TABLE: u32 = 0x1000;
const DATA: u32 = 0x2_0000;

impl World {
    fn new() -> Self {
        let mut engine = Engine::new(Bytes::new());
        let words = engine.identify().expect("it is a disk");
        assert_eq!(capacity(&words), SECTORS);
        let fronts = SLICES.map(|(first, sectors)| {
            let slice = Slice::new(first, sectors, SECTORS).expect("fits");
            Front::new(slice, Disk { long: true }, filter(&words, &slice, b"SERIAL              "))
        });
        Self { engine, channel: Channel::new(100), fronts, memories: [Ram::new(1 << 20), Ram::new(1 << 20)] }
    }

    /// Asks for what a guest wants, and carries out what follows from it.
    fn ask(&mut self, who: usize) {
        if self.fronts[who].take_reset() {
            self.channel.withdraw(who);
        }
        let Some(issue) = self.fronts[who].take_wish() else { return };
        let mut next = self.channel.request(who, issue, 0).expect("it has no other");
        while let Some(Action::Start(client, issue)) = next.take() {
            let out = if issue.kind == Kind::DmaOut { issue.bytes() as usize } else { 0 };
            let (front, memory) = (&mut self.fronts[client], &self.memories[client]);
            if front.supply(memory, &mut self.engine.ports().buffer[..out]) {
                self.engine.start(&issue, 0);
            } else {
                self.channel.finished();
                next = self.channel.go_on(0);
            }
        }
    }

    /// The disk's interrupt.
    fn interrupt(&mut self, kind: Kind, bytes: usize) {
        let Some(result) = self.engine.take_result() else { return };
        if let Some(client) = self.channel.finished() {
            let bytes = if kind == Kind::DmaIn { bytes } else { 0 };
            let (front, memory) = (&mut self.fronts[client], &self.memories[client]);
            front.arrive(result.map(|()| bytes));
            let arrived = front.take_arrival().expect("it was not reset");
            front.finish(memory, arrived.map(|bytes| &self.engine.ports().buffer[..bytes]));
        }
    }

    fn out(&mut self, who: usize, block: Block, offset: u8, value: u32) {
        let width = if (block, offset) == (Block::BusMaster, 4) { 4 } else { 1 };
        self.fronts[who].write(block, offset, width, value);
    }

    fn status(&mut self, who: usize) -> u8 {
        self.fronts[who].read(Block::Control, 2, 1) as u8
    }

    /// Parameters and command, as a driver writes them.
    fn command(&mut self, who: usize, code: u8, lba: u32, count: u8) {
        let [low, mid, high, top] = lba.to_le_bytes();
        for (offset, value) in [(6, 0xe0 | top), (2, count), (3, low), (4, mid), (5, high), (7, code)] {
            self.out(who, Block::Command, offset, value.into());
        }
    }

    /// A table of one region of so many bytes.
    fn table(&mut self, who: usize, at: u32, bytes: usize) {
        let entry = u64::from(at) | (bytes as u64 & 0xffff) << 32 | 1 << 63;
        assert!(self.memories[who].write(TABLE.into(), &entry.to_le_bytes()));
        self.out(who, Block::BusMaster, 4, TABLE);
    }

    /// A DMA command from begin to end. Returns status and error.
    fn dma(&mut self, who: usize, code: u8, lba: u32, count: u8) -> (u8, u8) {
        let bytes = usize::from(count) * BYTES;
        let kind = if code == 0xc8 { Kind::DmaIn } else { Kind::DmaOut };
        self.table(who, DATA, bytes);
        self.command(who, code, lba, count);
        self.out(who, Block::BusMaster, 0, START.into());
        self.ask(who);
        self.interrupt(kind, bytes);
        assert!(self.fronts[who].line());
        assert_eq!(self.fronts[who].read(Block::BusMaster, 2, 1) as u8 & (ACTIVE | INTERRUPT), INTERRUPT);
        self.out(who, Block::BusMaster, 0, 0);
        self.out(who, Block::BusMaster, 2, INTERRUPT.into());
        let status = self.fronts[who].read(Block::Command, 7, 1) as u8;
        assert!(!self.fronts[who].line(), "reading the status acknowledges");
        (status, self.fronts[who].read(Block::Command, 1, 1) as u8)
    }

    fn memory(&self, who: usize, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        assert!(self.memories[who].read(DATA.into(), &mut data));
        data
    }
}

#[test]
fn each_reads_and_writes_its_own_sectors() {
    let mut world = World::new();
    for (who, (first, _)) in SLICES.into_iter().enumerate() {
        assert_eq!(world.dma(who, 0xc8, 7, 2), (READY, 0));
        let sector = (first + 7) as u8;
        assert_eq!(world.memory(who, 1024), [[sector; 512], [sector + 1; 512]].concat());
        assert!(world.memories[who].write(DATA.into(), &[0xa0 + who as u8; 512]));
        assert_eq!(world.dma(who, 0xca, 0, 1), (READY, 0));
        let counters = world.fronts[who].counters();
        assert_eq!((counters.commands, counters.refused, counters.read, counters.written), (2, 0, 2, 1));
    }
    for (sector, bytes) in world.engine.ports().media.chunks(BYTES).enumerate() {
        let wanted = SLICES
            .iter()
            .position(|(first, _)| *first == sector as u64)
            .map_or(sector as u8, |who| 0xa0 + who as u8);
        assert!(bytes.iter().all(|byte| *byte == wanted), "{sector}");
    }
}

#[test]
fn nothing_outside_a_slice_is_asked_for() {
    let mut world = World::new();
    for (lba, count) in [(399, 2), (400, 1), (0x0fff_ffff, 1)] {
        world.command(0, 0xc8, lba, count);
        world.out(0, Block::BusMaster, 0, START.into());
        assert_eq!(world.fronts[0].take_wish(), None);
        assert_eq!(world.status(0), READY | ERR);
        assert_eq!(world.fronts[0].read(Block::Command, 1, 1) as u8, ABRT | IDNF);
    }
    assert_eq!(world.fronts[0].counters().refused, 3);
}

#[test]
fn data_move_only_while_the_guests_bus_master_runs() {
    let mut world = World::new();
    world.table(0, DATA, 512);
    world.command(0, 0xc8, 0, 1);
    assert_eq!((world.fronts[0].take_wish(), world.status(0)), (None, BSY), "it is not started");
    world.out(0, Block::BusMaster, 0, START.into());
    world.ask(0);
    world.out(0, Block::BusMaster, 0, 0);
    world.interrupt(Kind::DmaIn, 512);
    assert_eq!(world.status(0), READY | ERR, "it was stopped");
    assert_eq!(world.memory(0, 512), [0; 512]);
}

#[test]
fn a_table_that_leads_nowhere_fails_its_command_and_nothing_else() {
    let mut world = World::new();
    for (code, at) in [(0xc8, 0x20_0000), (0xca, 0x20_0000), (0xca, 0x0f_0001)] {
        world.table(0, at, 512);
        world.command(0, code, 0, 1);
        world.out(0, Block::BusMaster, 0, START.into());
        world.ask(0);
        world.interrupt(Kind::DmaIn, 512);
        assert_eq!(world.status(0), READY | ERR);
        assert_ne!(world.fronts[0].read(Block::BusMaster, 2, 1) as u8 & ERROR, 0);
        world.out(0, Block::BusMaster, 0, 0);
    }
    assert_eq!(world.fronts[0].counters().refused, 3);
    assert_eq!(world.dma(1, 0xc8, 0, 1), (READY, 0));
}

#[test]
fn what_a_reset_guest_asked_for_reaches_it_no_more() {
    let mut world = World::new();
    world.table(0, DATA, 512);
    world.command(0, 0xc8, 0, 1);
    world.out(0, Block::BusMaster, 0, START.into());
    world.ask(0);
    world.out(0, Block::Control, 2, SRST.into());
    assert_eq!(world.status(0), BSY);
    world.out(0, Block::Control, 2, 0);
    world.ask(0);
    world.interrupt(Kind::DmaIn, 512);
    assert_eq!((world.memory(0, 512), world.fronts[0].line()), (vec![0; 512], false));
    let signature = [1, 2, 3, 4, 5, 7].map(|offset| world.fronts[0].read(Block::Command, offset, 1) as u8);
    assert_eq!(signature, [1, 1, 1, 0, 0, READY]);
    world.out(0, Block::BusMaster, 0, 0);
    assert_eq!(world.dma(0, 0xc8, 0, 1), (READY, 0));
}

#[test]
fn what_has_arrived_for_a_command_is_no_later_ones() {
    let mut world = World::new();
    world.table(0, DATA, 512);
    world.command(0, 0xc8, 0, 1);
    world.out(0, Block::BusMaster, 0, START.into());
    world.ask(0);
    assert_eq!((world.engine.take_result(), world.channel.finished()), (Some(Ok(())), Some(0)));
    world.fronts[0].arrive(Ok(512));
    world.out(0, Block::Control, 2, SRST.into());
    world.out(0, Block::Control, 2, 0);
    world.command(0, 0xc8, 7, 1);
    world.ask(0);
    assert_eq!((world.status(0), world.fronts[0].take_arrival()), (BSY, None));
}

#[test]
fn a_long_command_goes_in_parts_and_others_come_between() {
    let mut world = World::new();
    for (offset, value) in [(6, 0xe0), (2, 1), (3, 0), (2, 44), (3, 0), (4, 0), (5, 0)] {
        world.out(0, Block::Command, offset, value);
    }
    // 300 sectors, 150 KiB: a region cannot cross 64 KiB.
    for (index, at) in [0x3_0000u64, 0x4_0000, 0x5_0000].into_iter().enumerate() {
        let entry = at | u64::from(index == 2) << 63;
        assert!(world.memories[0].write(u64::from(TABLE) + 8 * index as u64, &entry.to_le_bytes()));
    }
    world.out(0, Block::BusMaster, 4, TABLE);
    world.out(0, Block::Command, 7, 0x25);
    world.out(0, Block::BusMaster, 0, START.into());
    for part in [128, 128, 44] {
        world.ask(0);
        assert_eq!((world.status(0), world.fronts[0].line()), (BSY, false));
        world.interrupt(Kind::DmaIn, part * BYTES);
        if part == 128 {
            assert_eq!(world.dma(1, 0xc8, 0, 1), (READY, 0));
        }
    }
    assert!(world.fronts[0].line());
    assert_eq!(world.fronts[0].read(Block::Command, 7, 1) as u8, READY);
    for sector in 0..300u64 {
        let mut bytes = [0; BYTES];
        assert!(world.memories[0].read(0x3_0000 + sector * SECTOR, &mut bytes));
        assert_eq!(bytes, [(100 + sector) as u8; BYTES], "{sector}");
    }
}

#[test]
fn data_pass_through_the_data_register_a_block_at_a_time() {
    let mut world = World::new();
    world.command(0, 0x20, 5, 2);
    let mut bytes = vec![0; 1024];
    for (index, block) in bytes.chunks_mut(BYTES).enumerate() {
        world.ask(0);
        world.interrupt(Kind::DmaIn, BYTES);
        assert_eq!(world.status(0), READY | DRQ, "block {index}");
        assert!(world.fronts[0].line());
        world.fronts[0].read(Block::Command, 7, 1);
        let (first, rest) = block.split_at_mut(2);
        first.copy_from_slice(&(world.fronts[0].read(Block::Command, 0, 2) as u16).to_le_bytes());
        world.fronts[0].read_data(rest);
    }
    assert_eq!(bytes, [[105; 512], [106; 512]].concat());
    assert_eq!((world.status(0), world.fronts[0].line()), (READY, false));
    world.command(0, 0x30, 9, 2);
    assert_eq!((world.status(0), world.fronts[0].line()), (READY | DRQ, false));
    for byte in [0x11, 0x22] {
        world.fronts[0].write_data(&[byte; 512]);
        world.ask(0);
        world.interrupt(Kind::DmaOut, 0);
        assert!(world.fronts[0].line());
        world.fronts[0].read(Block::Command, 7, 1);
    }
    assert_eq!(world.status(0), READY);
    assert_eq!(world.engine.ports().media[109 * BYTES..111 * BYTES], [[0x11; 512], [0x22; 512]].concat());
}

#[test]
fn what_the_disk_fails_fails_for_its_guest() {
    let mut world = World::new();
    world.engine.ports().fails = true;
    assert_eq!(world.dma(0, 0xc8, 0, 1), (READY | ERR, 0x40));
    assert_eq!(world.memory(0, 512), [0; 512]);
    world.engine.ports().fails = false;
    assert_eq!(world.dma(0, 0xc8, 0, 1), (READY, 0));
}

#[test]
fn nobody_answers_for_the_second_disk() {
    let mut world = World::new();
    world.out(0, Block::Command, 6, 0xf0);
    for offset in [2, 3] {
        world.out(0, Block::Command, offset, 0x55);
    }
    world.out(0, Block::Command, 7, 0xec);
    assert_eq!([2, 3, 7].map(|offset| world.fronts[0].read(Block::Command, offset, 1)), [0; 3]);
    assert!(!world.fronts[0].line());
}

#[test]
fn an_identification_is_the_guests_own_and_a_silent_disk_interrupts_nobody() {
    let mut world = World::new();
    world.out(1, Block::Control, 2, NIEN.into());
    world.command(1, 0xec, 0, 0);
    assert!(!world.fronts[1].line());
    assert_eq!(world.fronts[1].read(Block::BusMaster, 2, 1) as u8 & INTERRUPT, 0);
    let mut bytes = [0; BYTES];
    world.fronts[1].read_data(&mut bytes);
    let mut words = [0; 256];
    words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, pair)| *word = u16::from_le_bytes(*pair));
    assert_eq!(capacity(&words), SLICES[1].1);
    assert_eq!(world.status(1), READY);
}

proptest! {
    /// Whatever a guest writes, what is asked for is in its slice and fits the buffer.
    #[test]
    fn any_accesses_stay_within(steps in prop::collection::vec((0u8..3, 0u8..16, any::<u32>(), any::<bool>()), 1..200)) {
        let (first, sectors) = SLICES[0];
        let slice = Slice::new(first, sectors, SECTORS).expect("fits");
        let mut front = Front::new(slice, Disk { long: true }, [0; 256]);
        let ram = Ram::new(1 << 16);
        let mut buffer = vec![0; PART as usize * BYTES];
        for (block, offset, value, write) in steps {
            let block = [Block::Command, Block::Control, Block::BusMaster][usize::from(block)];
            if write { front.write(block, offset, 1, value) } else { front.read(block, offset, 1); }
            let Some(issue) = front.take_wish() else { continue };
            prop_assert!(issue.count == 0 || issue.lba >= first && issue.lba + u64::from(issue.count) <= first + sectors);
            prop_assert!(issue.bytes() as usize <= buffer.len());
            let out = if issue.kind == Kind::DmaOut { issue.bytes() as usize } else { 0 };
            if front.supply(&ram, &mut buffer[..out]) {
                let len = if issue.kind == Kind::DmaIn { issue.bytes() as usize } else { 0 };
                front.finish(&ram, Ok(&buffer[..len]));
            }
        }
    }
}
