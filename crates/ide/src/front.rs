//! What a guest's driver finds: one disk on the first channel of a controller, with its bus master.

use crate::bits::{
    ABRT, ACTIVE, BSY, DF, DRDY, DRQ, DSC, ERR, ERROR, HOB, IDNF, INTERRUPT, NIEN, SRST, START,
};
use crate::identify::Words;
use crate::prd::{Cursor, Move};
use crate::{
    Abort, Block, Disk, Failure, Issue, Kind, Local, Memory, Register, SECTOR, Slice, TaskFile, Verdict, vet,
};

/// Sectors that a guest has the disk move before another one's turn, where data are copied: as many as the buffer has room for.
pub const PART: u32 = 128;
/// Sectors where the disk moves data in the guest's memory.
pub const PLACED: u32 = 512;

/// Bits of the bus master's status that a driver keeps for itself: who can do DMA.
const KEPT: u8 = 0b11 << 5;
/// Ready, and nothing to complain of.
const READY: u8 = DRDY | DSC;

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Idle,
    /// The guest reads a block of data.
    Reading,
    /// The guest writes a block of data.
    Writing,
    /// A command waits for the guest to start its bus master.
    Armed,
    /// The disk is wanted.
    Disk,
}

/// A command that the disk takes part in.
#[derive(Debug)]
struct Job {
    issue: Issue,
    /// Sectors that were moved.
    done: u32,
    cursor: Cursor,
}

impl Job {
    fn left(&self) -> u32 {
        self.issue.count - self.done
    }

    /// What the disk is asked for next, of up to so many sectors. Data always move by its bus master, whichever way the guest wants them.
    fn part(&self, most: u32) -> Issue {
        let Issue { code, kind, lba, count, long } = self.issue;
        let (code, kind, count) = match kind {
            Kind::PioIn => (if long { 0x25 } else { 0xc8 }, Kind::DmaIn, 1),
            Kind::PioOut => (if long { 0x35 } else { 0xca }, Kind::DmaOut, 1),
            Kind::DmaIn | Kind::DmaOut => (code, kind, self.left().min(most)),
            Kind::NoData => (code, kind, count),
        };
        Issue { code, kind, lba: lba + u64::from(self.done), count, long }
    }
}

/// What the physical disk is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The command.
    pub issue: Issue,
    /// The bus master's table leads to the guest's memory; else there is a buffer to be filled ([`Front::supply`]).
    pub in_place: bool,
}

/// What a guest does not want any more of what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GivenUp {
    /// Its data are in a buffer: what runs may run to its end.
    Buffered,
    /// The disk may be moving its data in the guest's memory, which from now on must not change: it is to be stopped before the guest goes on.
    InPlace,
}

/// A part that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Sectors.
    count: u32,
    /// See [`Wish::in_place`].
    in_place: bool,
}

/// What a guest did with its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands that it wrote.
    pub commands: u64,
    /// Those that were refused: not allowed, outside its slice, or with a table that leads nowhere.
    pub refused: u64,
    /// Sectors that it read.
    pub read: u64,
    /// Sectors that it wrote.
    pub written: u64,
}

/// A guest's disk.
#[derive(Debug)]
pub struct Front {
    slice: Slice,
    disk: Disk,
    identity: Words,
    file: TaskFile,
    control: u8,
    status: u8,
    error: u8,
    /// The disk's interrupt is up.
    interrupt: bool,
    phase: Phase,
    job: Option<Job>,
    /// The part that was asked for.
    asked: Option<Part>,
    /// What became of it, until its data are moved.
    arrived: Option<Result<usize, Failure>>,
    given_up: Option<GivenUp>,
    block: [u8; SECTOR as usize],
    /// How much of the block has passed through the data register.
    at: usize,
    /// The bus master's registers.
    master: (u8, u8, u32),
    counters: Counters,
}

impl Front {
    /// A disk that was just switched on. `identity` is of [`crate::identify::filter`].
    pub fn new(slice: Slice, disk: Disk, identity: Words) -> Self {
        let mut front = Self {
            slice,
            disk,
            identity,
            file: TaskFile::default(),
            control: 0,
            status: READY,
            error: 1,
            interrupt: false,
            phase: Phase::Idle,
            job: None,
            asked: None,
            arrived: None,
            given_up: None,
            block: [0; SECTOR as usize],
            at: 0,
            master: (0, KEPT, 0),
            counters: Counters::default(),
        };
        front.reset();
        front.given_up = None;
        front
    }

    /// What the guest did so far.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Level of the interrupt line.
    pub const fn line(&self) -> bool {
        self.interrupt && self.control & NIEN == 0
    }

    /// What the guest has given up since the last call: to be looked at after each access, before anything else.
    pub const fn take_given_up(&mut self) -> Option<GivenUp> {
        self.given_up.take()
    }

    /// What the physical disk is to be asked for; it is told once. `table` becomes that of the bus master for it, if data are to move
    /// [in place](Wish::in_place); it is of [`prd::TABLE`](crate::prd::TABLE) bytes.
    pub fn take_wish(&mut self, memory: &impl Memory, table: &mut [u8]) -> Option<Wish> {
        let runs = self.master.0 & START != 0;
        let job = self.job.as_mut().filter(|_| self.phase == Phase::Disk && self.asked.is_none())?;
        let moves = runs && matches!(job.issue.kind, Kind::DmaIn | Kind::DmaOut);
        let long = job.part(PLACED);
        let in_place = moves && job.cursor.place(memory, long.bytes(), table);
        let issue = if in_place { long } else { job.part(PART) };
        self.asked = Some(Part { count: issue.count, in_place });
        Some(Wish { issue, in_place })
    }

    /// The guest's controller may not master the bus any more.
    pub fn leave_bus(&mut self) {
        self.stop_moving();
    }

    // --- registers ----------------------------------------------------------------------------

    /// The guest reads a register, of `width` bytes.
    pub fn read(&mut self, block: Block, offset: u8, width: u8) -> u32 {
        let value = match (block, offset) {
            (Block::BusMaster, 0) => self.master.0,
            (Block::BusMaster, 2) => self.master.1,
            (Block::BusMaster, 4..8) => return self.master.2 >> (8 * (offset - 4)) & ones(width),
            (Block::BusMaster, _) => 0,
            (Block::Command, 0) => {
                let mut bytes = [0xff; 4];
                self.read_data(&mut bytes[..usize::from(width.min(4))]);
                return u32::from_le_bytes(bytes) & ones(width);
            }
            // There is no second disk: nobody answers for it.
            (Block::Command, 1..6 | 7) | (Block::Control, 2) if self.file.selects_second() => 0,
            (Block::Control, 2) => self.status,
            (Block::Command, 7) => {
                self.interrupt = false;
                self.status
            }
            (Block::Command, 6) => self.file.device(),
            (Block::Command, _) if self.status & BSY != 0 => self.status,
            (Block::Command, 1) => self.error,
            (Block::Command, _) => {
                parameter(offset).map_or(0xff, |register| self.file.read(register, self.control & HOB != 0))
            }
            (Block::Control, _) => 0xff,
        };
        value.into()
    }

    /// The guest writes a register, of `width` bytes.
    pub fn write(&mut self, block: Block, offset: u8, width: u8, value: u32) {
        let bytes = value.to_le_bytes();
        let low = bytes[0];
        match (block, offset) {
            (Block::BusMaster, 0) => self.steer(low),
            (Block::BusMaster, 2) => {
                let (_, status, _) = &mut self.master;
                *status = *status & ACTIVE | *status & !low & (ERROR | INTERRUPT) | low & KEPT;
            }
            (Block::BusMaster, 4..8) => {
                let (shift, mask) = (8 * (offset - 4), ones(width));
                let table = &mut self.master.2;
                *table = *table & !(mask << shift) | (value & mask) << shift;
            }
            (Block::BusMaster, _) => {}
            (Block::Control, 2) => self.set_control(low),
            (Block::Control, _) => {}
            (Block::Command, 0) => self.write_data(&bytes[..usize::from(width.min(4))]),
            _ if self.status & BSY != 0 => {}
            (Block::Command, 6) => {
                self.control &= !HOB;
                self.file.select(low);
            }
            (Block::Command, 7) => {
                self.control &= !HOB;
                // Commands to nobody, and those that come before the last is over, are lost.
                if !self.file.selects_second() && self.phase == Phase::Idle {
                    self.command(low);
                }
            }
            (Block::Command, _) => {
                self.control &= !HOB;
                if let Some(register) = parameter(offset) {
                    self.file.write(register, low);
                }
            }
        }
    }

    /// The guest reads from the data register.
    pub fn read_data(&mut self, into: &mut [u8]) {
        for byte in into {
            *byte = match self.block.get(self.at).filter(|_| self.phase == Phase::Reading) {
                Some(byte) => *byte,
                None => 0xff,
            };
            self.pass_byte(Phase::Reading);
        }
    }

    /// The guest writes to the data register.
    pub fn write_data(&mut self, from: &[u8]) {
        for byte in from {
            if let Some(place) = self.block.get_mut(self.at).filter(|_| self.phase == Phase::Writing) {
                *place = *byte;
            }
            self.pass_byte(Phase::Writing);
        }
    }

    fn pass_byte(&mut self, phase: Phase) {
        if self.phase != phase {
            return;
        }
        self.at += 1;
        if self.at < self.block.len() {
            return;
        }
        (self.phase, self.status) = match self.job {
            Some(_) => (Phase::Disk, BSY),
            None => (Phase::Idle, READY),
        };
    }

    fn set_control(&mut self, value: u8) {
        let (before, now) = (self.control & SRST != 0, value & SRST != 0);
        self.control = value;
        if now {
            if !before {
                self.reset();
            }
            self.status = BSY;
        } else if before {
            self.status = READY;
        }
    }

    /// What is under way is given up; the registers say that this is a disk (ATA-6, 9.12).
    fn reset(&mut self) {
        let is_moving = self.asked.is_some_and(|part| part.in_place);
        self.give_up(if is_moving { GivenUp::InPlace } else { GivenUp::Buffered });
        (self.job, self.phase, self.at) = (None, Phase::Idle, 0);
        self.interrupt = false;
        self.master.1 &= !ACTIVE;
        self.file = TaskFile::default();
        self.file.write(Register::Count, 1);
        self.file.write(Register::Low, 1);
        (self.error, self.status) = (1, READY);
    }

    /// What was asked for is not wanted any more.
    fn give_up(&mut self, what: GivenUp) {
        self.given_up = self.given_up.max(Some(what));
        (self.asked, self.arrived) = (None, None);
    }

    /// The guest's memory is not for the disk any more. What moves by the buffer fails when it is there.
    fn stop_moving(&mut self) {
        if self.asked.is_some_and(|part| part.in_place) {
            self.give_up(GivenUp::InPlace);
            self.fail_to_move();
        }
    }

    /// The bus master's command register.
    fn steer(&mut self, value: u8) {
        let (command, status, table) = &mut self.master;
        let (before, now) = (*command & START != 0, value & START != 0);
        *command = value;
        if !now {
            *status &= !ACTIVE;
            self.stop_moving();
        } else if !before {
            *status |= ACTIVE;
            if let Some(job) = self.job.as_mut().filter(|_| self.phase == Phase::Armed) {
                job.cursor = Cursor::new(*table);
                self.phase = Phase::Disk;
            }
        }
    }

    // --- commands -----------------------------------------------------------------------------

    fn command(&mut self, code: u8) {
        self.counters.commands += 1;
        self.interrupt = false;
        self.error = 0;
        match vet(code, &self.file, &self.slice, self.disk) {
            Verdict::Local(Local::Identify) => {
                for (bytes, word) in self.block.chunks_exact_mut(2).zip(&self.identity) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                self.offer(Phase::Reading);
                self.raise();
            }
            Verdict::Local(Local::Active) => {
                self.file.write(Register::Count, 0xff);
                self.complete();
            }
            Verdict::Local(Local::Done) => self.complete(),
            Verdict::Abort(why) => {
                self.counters.refused += 1;
                self.fail(if why == Abort::OutOfSlice { ABRT | IDNF } else { ABRT }, 0);
            }
            Verdict::Issue(issue) => self.begin(issue),
        }
    }

    fn begin(&mut self, issue: Issue) {
        let (command, _, table) = self.master;
        self.job = Some(Job { issue, done: 0, cursor: Cursor::new(table) });
        self.asked = None;
        match issue.kind {
            // The disk wants the first block without an interrupt.
            Kind::PioOut => self.offer(Phase::Writing),
            Kind::DmaIn | Kind::DmaOut if command & START == 0 => {
                (self.phase, self.status) = (Phase::Armed, BSY);
            }
            _ => (self.phase, self.status) = (Phase::Disk, BSY),
        }
    }

    /// The guest may move a block.
    fn offer(&mut self, phase: Phase) {
        (self.phase, self.status, self.at) = (phase, READY | DRQ, 0);
    }

    /// The last command has succeeded.
    fn complete(&mut self) {
        (self.phase, self.status, self.job) = (Phase::Idle, READY, None);
        self.master.1 &= !ACTIVE;
        self.raise();
    }

    /// The last command has failed; `fault`: further bits of the status.
    fn fail(&mut self, error: u8, fault: u8) {
        (self.phase, self.status, self.job) = (Phase::Idle, READY | ERR | fault, None);
        self.error = error;
        self.master.1 &= !ACTIVE;
        self.raise();
    }

    /// Data cannot be moved as the guest's table says.
    fn fail_to_move(&mut self) {
        self.counters.refused += 1;
        self.master.1 |= ERROR;
        self.fail(ABRT, 0);
    }

    fn raise(&mut self) {
        self.interrupt = true;
        if self.control & NIEN == 0 {
            self.master.1 |= INTERRUPT;
        }
    }

    // --- the disk's side ----------------------------------------------------------------------

    /// Whether the guest's bus master runs, if the job needs it.
    fn may_move(&self, kind: Kind) -> bool {
        !matches!(kind, Kind::DmaIn | Kind::DmaOut) || self.master.0 & START != 0
    }

    /// The disk is about to take the part that was asked for, by a buffer: what it is to write is copied to `into`, all of which is to be
    /// filled. False if it is not to be started: the guest's command has failed.
    pub fn supply(&mut self, memory: &impl Memory, into: &mut [u8]) -> bool {
        let may = self.job.as_ref().is_some_and(|job| self.may_move(job.issue.kind));
        let Some(job) = self.job.as_mut().filter(|_| self.asked.is_some()) else { return false };
        let supplied = may
            && match job.issue.kind {
                Kind::PioOut => {
                    into.len() == self.block.len() && {
                        into.copy_from_slice(&self.block);
                        true
                    }
                }
                Kind::DmaOut => job.cursor.carry(memory, Move::Out(into)).is_ok(),
                Kind::PioIn | Kind::DmaIn | Kind::NoData => true,
            };
        if !supplied {
            self.asked = None;
            self.fail_to_move();
        }
        supplied
    }

    /// The disk has done the part that was asked for, and read so many bytes into the buffer; or has failed. This is kept until the guest has time.
    pub const fn arrive(&mut self, result: Result<usize, Failure>) {
        self.arrived = Some(result);
    }

    /// What has arrived, if the guest still waits for it; [`Self::finish`] is to be told.
    pub const fn take_arrival(&mut self) -> Option<Result<usize, Failure>> {
        self.arrived.take()
    }

    /// The disk has done the part that was asked for, and read `bytes` into the buffer; or has failed.
    pub fn finish(&mut self, memory: &impl Memory, result: Result<&[u8], Failure>) {
        let Some(Part { count, in_place }) = self.asked.take() else { return };
        let Some(mut job) = self.job.take_if(|_| self.phase == Phase::Disk) else { return };
        let kind = job.issue.kind;
        let bytes = match result {
            Ok(bytes) if self.may_move(kind) => bytes,
            Ok(_) => return self.fail_to_move(),
            Err(Failure { status, error }) => return self.fail(error, status & DF),
        };
        match kind {
            Kind::DmaIn | Kind::DmaOut if in_place => {}
            Kind::DmaIn if job.cursor.carry(memory, Move::In(bytes)).is_err() => return self.fail_to_move(),
            Kind::PioIn if bytes.len() == self.block.len() => self.block.copy_from_slice(bytes),
            Kind::PioIn => return self.fail(ABRT, DF),
            _ => {}
        }
        match kind {
            Kind::DmaIn | Kind::PioIn => self.counters.read += u64::from(count),
            Kind::DmaOut | Kind::PioOut => self.counters.written += u64::from(count),
            Kind::NoData => {}
        }
        job.done += count;
        let more = job.left() > 0;
        self.job = Some(job).filter(|_| more);
        match kind {
            Kind::PioIn => {
                self.offer(Phase::Reading);
                self.raise();
            }
            Kind::PioOut if more => {
                self.offer(Phase::Writing);
                self.raise();
            }
            Kind::DmaIn | Kind::DmaOut if more => {}
            _ => self.complete(),
        }
    }
}

const fn ones(width: u8) -> u32 {
    match width {
        1 => 0xff,
        2 => 0xffff,
        _ => u32::MAX,
    }
}

/// The register of the command block at an offset that carries a parameter.
const fn parameter(offset: u8) -> Option<Register> {
    Some(match offset {
        1 => Register::Features,
        2 => Register::Count,
        3 => Register::Low,
        4 => Register::Mid,
        5 => Register::High,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
