//! A driver's way through its registers, with the engine and a disk made of bytes behind them.

extern crate std;

use super::*;
use crate::bits::INTO_MEMORY;
use crate::channel::{Action, Channel};
use crate::identify::{capacity, filter};
use crate::prd::TABLE as TABLE_BYTES;
use crate::tests::Ram;
use crate::{Engine, Ports};
use proptest::prelude::*;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

const SECTORS: u64 = 1200;
const BYTES: usize = SECTOR as usize;

/// A disk, and the memory that its bus master reaches: a buffer, and that of guests, by tables at the addresses 1 and up.
struct Bytes {
    media: Vec<u8>,
    buffer: Vec<u8>,
    guests: Vec<Rc<Ram>>,
    tables: [Vec<u8>; 2],
    table: u32,
    /// What was started is not over.
    is_slow: bool,
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
            guests: Vec::new(),
            tables: [(); 2].map(|()| vec![0; TABLE_BYTES]),
            table: 0,
            is_slow: false,
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
        if moves && self.master.0 & START == 0 || self.is_slow {
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
        let into_memory = matches!(code, 0xc8 | 0x25);
        assert_eq!(self.master.0 & INTO_MEMORY != 0, into_memory);
        if let Some(who) = self.table.checked_sub(1) {
            return self.follow(who as usize, range, into_memory);
        }
        let media = &mut self.media[range];
        let buffer = &mut self.buffer[..media.len()];
        if into_memory { buffer.copy_from_slice(media) } else { media.copy_from_slice(buffer) }
    }

    /// Moves data as the table says that is a guest's part's: exactly so many.
    fn follow(&mut self, who: usize, range: core::ops::Range<usize>, into_memory: bool) {
        let mut media = &mut self.media[range];
        for entry in self.tables[who].as_chunks().0 {
            let entry = u64::from_le_bytes(*entry);
            let (bus, len) =
                (entry & 0xffff_ffff, if entry >> 32 & 0xffff == 0 { 1 << 16 } else { entry >> 32 & 0xffff });
            assert!(bus % (1 << 16) + len <= 1 << 16, "{entry:#x} crosses");
            let part = media.split_off_mut(..len as usize).expect("no more than was asked for");
            let at = bus - u64::from(OFFSET);
            let done =
                if into_memory { self.guests[who].write(at, part) } else { self.guests[who].read(at, part) };
            assert!(done, "it is the guest's");
            if entry >> 63 != 0 {
                break;
            }
        }
        assert!(media.is_empty(), "as much as was asked for");
    }

    /// The disk does now what it was told.
    fn finish(&mut self) {
        self.is_slow = false;
        self.run();
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
            (Block::BusMaster, 4) => self.table = value,
            (Block::Control, 2) if low == SRST => (self.pending, self.status) = (None, READY),
            (Block::Control, 2) => {}
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
    memories: [Rc<Ram>; 2],
    /// Whose part is in place.
    placed: [bool; 2],
}

/// First sectors and lengths of the slices.
const SLICES: [(u64, u64); 2] = [(100, 700), (800, 300)];
const TABLE: u32 = 0x1000;
const DATA: u32 = 0x2_0000;
/// How far behind its address a disk finds memory that was lent: regions cross boundaries there.
const OFFSET: u32 = 0x5_3000;

impl World {
    /// Guests whose data are copied.
    fn new() -> Self {
        Self::with([(); 2].map(|()| Rc::new(Ram::new(1 << 20))))
    }

    /// Guests whose data move in place.
    fn lent() -> Self {
        Self::with([(); 2].map(|()| Rc::new(Ram::lent(1 << 20, OFFSET))))
    }

    fn both() -> [Self; 2] {
        [Self::new(), Self::lent()]
    }

    fn with(memories: [Rc<Ram>; 2]) -> Self {
        let mut engine = Engine::new(Bytes::new());
        let words = engine.identify().expect("it is a disk");
        assert_eq!(capacity(&words), SECTORS);
        let fronts = SLICES.map(|(first, sectors)| {
            let slice = Slice::new(first, sectors, SECTORS).expect("fits");
            Front::new(slice, Disk { long: true }, filter(&words, &slice, b"SERIAL              "))
        });
        engine.ports().guests = memories.to_vec();
        Self { engine, channel: Channel::new(100), fronts, memories, placed: [false; 2] }
    }

    fn take_wish(&mut self, who: usize) -> Option<Wish> {
        let table = &mut self.engine.ports().tables[who];
        self.fronts[who].take_wish(&*self.memories[who], table)
    }

    /// Asks for what a guest wants, and carries out what follows from it.
    fn ask(&mut self, who: usize) {
        match self.fronts[who].take_given_up() {
            None => {}
            Some(GivenUp::Buffered) => self.channel.withdraw(who),
            Some(GivenUp::InPlace) => {
                if let Some(Action::Reset(nobody)) = self.channel.stop(who) {
                    assert_eq!(nobody, None);
                    self.engine.reset();
                    assert_eq!(self.channel.is_reset(0), None);
                }
            }
        }
        let Some(Wish { issue, in_place }) = self.take_wish(who) else { return };
        self.placed[who] = in_place;
        let mut next = self.channel.request(who, issue, 0).expect("it has no other");
        while let Some(Action::Start(client, issue)) = next.take() {
            let out = if issue.kind == Kind::DmaOut { issue.bytes() as usize } else { 0 };
            if self.placed[client] {
                self.engine.start(&issue, 1 + client as u32);
                continue;
            }
            let (front, memory) = (&mut self.fronts[client], &*self.memories[client]);
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
            let bytes = if kind == Kind::DmaIn && !self.placed[client] { bytes } else { 0 };
            let (front, memory) = (&mut self.fronts[client], &*self.memories[client]);
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
    for mut world in World::both() {
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
}

#[test]
fn nothing_outside_a_slice_is_asked_for() {
    for mut world in World::both() {
        for (lba, count) in [(699, 2), (700, 1), (0x0fff_ffff, 1)] {
            world.command(0, 0xc8, lba, count);
            world.out(0, Block::BusMaster, 0, START.into());
            assert_eq!(world.take_wish(0), None);
            assert_eq!(world.status(0), READY | ERR);
            assert_eq!(world.fronts[0].read(Block::Command, 1, 1) as u8, ABRT | IDNF);
        }
        assert_eq!(world.fronts[0].counters().refused, 3);
    }
}

#[test]
fn data_move_only_while_the_guests_bus_master_runs() {
    let stop = |world: &mut World| world.out(0, Block::BusMaster, 0, 0);
    let leave = |world: &mut World| world.fronts[0].leave_bus();
    for (mut world, end) in
        [(World::new(), stop as fn(&mut World)), (World::lent(), stop), (World::lent(), leave)]
    {
        world.table(0, DATA, 512);
        world.command(0, 0xc8, 0, 1);
        assert_eq!((world.take_wish(0), world.status(0)), (None, BSY), "it is not started");
        world.out(0, Block::BusMaster, 0, START.into());
        world.engine.ports().is_slow = true;
        world.ask(0);
        end(&mut world);
        world.ask(0);
        world.engine.ports().finish();
        world.interrupt(Kind::DmaIn, 512);
        assert_eq!(world.status(0), READY | ERR, "it was stopped");
        assert_eq!(world.memory(0, 512), [0; 512]);
        world.out(0, Block::BusMaster, 0, 0);
        assert_eq!(world.dma(0, 0xc8, 0, 1), (READY, 0));
    }
}

#[test]
fn a_table_that_leads_nowhere_fails_its_command_and_nothing_else() {
    for mut world in World::both() {
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
}

#[test]
fn what_a_reset_guest_asked_for_reaches_it_no_more() {
    for mut world in World::both() {
        world.table(0, DATA, 512);
        world.command(0, 0xc8, 0, 1);
        world.out(0, Block::BusMaster, 0, START.into());
        world.engine.ports().is_slow = true;
        world.ask(0);
        world.out(0, Block::Control, 2, SRST.into());
        assert_eq!(world.status(0), BSY);
        world.out(0, Block::Control, 2, 0);
        world.ask(0);
        world.engine.ports().finish();
        world.interrupt(Kind::DmaIn, 512);
        assert_eq!((world.memory(0, 512), world.fronts[0].line()), (vec![0; 512], false));
        let signature =
            [1, 2, 3, 4, 5, 7].map(|offset| world.fronts[0].read(Block::Command, offset, 1) as u8);
        assert_eq!(signature, [1, 1, 1, 0, 0, READY]);
        world.out(0, Block::BusMaster, 0, 0);
        assert_eq!(world.dma(0, 0xc8, 0, 1), (READY, 0));
    }
}

#[test]
fn of_all_that_one_access_gives_up_what_moves_in_place_counts() {
    let mut world = World::lent();
    world.table(0, DATA, 512);
    world.command(0, 0xc8, 0, 1);
    world.out(0, Block::BusMaster, 0, START.into());
    assert!(world.take_wish(0).is_some_and(|wish| wish.in_place));
    // An access writes several elements.
    for value in [SRST, 0, SRST] {
        world.fronts[0].write(Block::Control, 2, 1, value.into());
    }
    assert_eq!(world.fronts[0].take_given_up(), Some(GivenUp::InPlace));
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

/// A command of so many sectors, whose data are in regions of 64 KiB from here on.
const LONG: (u32, u64) = (600, 0x3_0000);

impl World {
    fn long_command(&mut self, code: u8) {
        let (sectors, data) = LONG;
        let [low, high, ..] = sectors.to_le_bytes();
        for (offset, value) in [(6, 0xe0), (2, high), (3, 0), (2, low), (3, 0), (4, 0), (5, 0)] {
            self.out(0, Block::Command, offset, value.into());
        }
        let regions = (u64::from(sectors) * SECTOR).div_ceil(1 << 16);
        for index in 0..regions {
            let entry = (data + (index << 16)) | u64::from(index + 1 == regions) << 63;
            assert!(self.memories[0].write(u64::from(TABLE) + 8 * index, &entry.to_le_bytes()));
        }
        self.out(0, Block::BusMaster, 4, TABLE);
        self.out(0, Block::Command, 7, code.into());
        self.out(0, Block::BusMaster, 0, START.into());
    }
}

#[test]
fn a_long_command_goes_in_parts_and_others_come_between() {
    for (mut world, parts) in [(World::new(), vec![128, 128, 128, 128, 88]), (World::lent(), vec![512, 88])] {
        world.long_command(0x25);
        for part in parts {
            world.ask(0);
            assert_eq!((world.status(0), world.fronts[0].line()), (BSY, false));
            world.interrupt(Kind::DmaIn, part * BYTES);
            if part != 88 {
                assert_eq!(world.dma(1, 0xc8, 0, 1), (READY, 0));
            }
        }
        assert!(world.fronts[0].line());
        assert_eq!(world.fronts[0].read(Block::Command, 7, 1) as u8, READY);
        assert_eq!(world.fronts[0].counters().read, 600);
        for sector in 0..u64::from(LONG.0) {
            let mut bytes = [0; BYTES];
            assert!(world.memories[0].read(LONG.1 + sector * SECTOR, &mut bytes));
            assert_eq!(bytes, [(100 + sector) as u8; BYTES], "{sector}");
        }
    }
}

#[test]
fn a_part_that_waits_is_not_begun_when_its_guest_has_given_it_up() {
    for mut world in World::both() {
        world.engine.ports().is_slow = true;
        for who in [0, 1] {
            world.table(who, DATA, 512);
            world.command(who, 0xca, 0, 1);
            world.out(who, Block::BusMaster, 0, START.into());
            world.ask(who);
        }
        // In one access: what is stronger of both counts.
        world.out(1, Block::BusMaster, 0, 0);
        world.out(1, Block::Control, 2, SRST.into());
        world.out(1, Block::Control, 2, 0);
        world.ask(1);
        world.engine.ports().finish();
        assert_eq!((world.engine.take_result(), world.channel.finished()), (Some(Ok(())), Some(0)));
        assert_eq!(world.channel.go_on(0), None);
    }
}

#[test]
fn what_a_disk_does_not_find_is_copied() {
    let mut world = World::lent();
    // More regions than a part in place may have, and as many as two parts may that are copied.
    let regions = 300;
    for index in 0..regions {
        let at = u64::from(DATA) + index * SECTOR;
        let entry = at | SECTOR << 32 | u64::from(index + 1 == regions) << 63;
        assert!(world.memories[0].write(u64::from(TABLE) + 8 * index, &entry.to_le_bytes()));
    }
    world.out(0, Block::BusMaster, 4, TABLE);
    for (offset, value) in [(6, 0xe0), (2, 1), (3, 0), (2, 44), (3, 0), (4, 0), (5, 0), (7, 0x25)] {
        world.out(0, Block::Command, offset, value);
    }
    world.out(0, Block::BusMaster, 0, START.into());
    for (part, in_place) in [(128, false), (172, true)] {
        world.ask(0);
        assert_eq!(world.placed[0], in_place);
        world.interrupt(Kind::DmaIn, part * BYTES);
    }
    assert_eq!(world.fronts[0].read(Block::Command, 7, 1) as u8, READY);
    let data = world.memory(0, 300 * BYTES);
    assert!(data.iter().enumerate().all(|(at, byte)| *byte == (100 + at / BYTES) as u8));
}

#[test]
fn data_pass_through_the_data_register_a_block_at_a_time() {
    for mut world in World::both() {
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
}

#[test]
fn what_the_disk_fails_fails_for_its_guest() {
    for mut world in World::both() {
        world.engine.ports().fails = true;
        assert_eq!(world.dma(0, 0xc8, 0, 1), (READY | ERR, 0x40));
        assert_eq!(world.memory(0, 512), [0; 512]);
        world.engine.ports().fails = false;
        assert_eq!(world.dma(0, 0xc8, 0, 1), (READY, 0));
    }
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
        let mut table = vec![0; TABLE_BYTES];
        for (block, offset, value, write) in steps {
            let block = [Block::Command, Block::Control, Block::BusMaster][usize::from(block)];
            if write { front.write(block, offset, 1, value) } else { front.read(block, offset, 1); }
            let Some(Wish { issue, in_place }) = front.take_wish(&ram, &mut table) else { continue };
            prop_assert!(!in_place);
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
