//! The physical disk, as the hypervisor drives it: an admin queue of its own, and a pair of queues for each guest.

use crate::command::admin;
use crate::identify::{BYTES, HEALTH};
use crate::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, ENABLE, ENTRIES, FATAL, READY};
use crate::{Command, DEPTH, Facts, PAGE, SLOTS, Shared, Status};
use core::sync::atomic::{Ordering, fence};

/// Microseconds between looks at a disk that is waited for.
const STEP: u64 = 10;
/// An admin command that has not ended after so many microseconds is lost.
const PATIENCE: u64 = 5_000_000;
/// CAP.TO counts so many microseconds.
const UNIT: u64 = 500_000;
/// Bytes of a completion.
const COMPLETION: usize = 16;
/// What is read of a disk that does not answer.
const GONE: u32 = u32::MAX;
/// Set Features: numbers of queues.
const QUEUES: u32 = 7;
/// The queues of the admin, and what is answered to it.
const ADMIN: usize = 3 * PAGE as usize;
/// What a guest has: two queues, a list for each slot, and a page for answers.
const GUEST: usize = (2 + SLOTS + 1) * PAGE as usize;

/// The registers of a physical disk.
pub trait Hardware {
    /// Reads a register of 4 bytes.
    fn read(&self, offset: u32) -> u32;

    /// Writes a register of 4 bytes.
    fn write(&self, offset: u32, value: u32);

    /// Waits.
    fn delay_us(&self, us: u64);
}

/// Why a disk cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its queues are too short, or its pages too large.
    Kind,
    /// It does not answer.
    Silent,
    /// It refused a command.
    Refused(Status),
    /// Its first namespace is of no kind that can be shared.
    Namespace,
    /// It has not as many queues as there are guests.
    Queues,
}

/// A submission queue and a completion queue of the physical disk's.
#[derive(Clone, Copy, Debug)]
struct Pair {
    number: u16,
    /// Where they are in the memory: two pages.
    at: usize,
    tail: u16,
    head: u16,
    phase: bool,
}

impl Pair {
    const fn new(number: u16, at: usize) -> Self {
        Self { number, at, tail: 0, head: 0, phase: true }
    }

    fn submit(&mut self, command: &Command, memory: &mut impl Shared) {
        memory.write(self.at + usize::from(self.tail) * Command::SIZE, &command.encode());
        self.tail = (self.tail + 1) % DEPTH;
    }

    /// Where the next completion is.
    fn next(&self) -> usize {
        self.at + PAGE as usize + usize::from(self.head) * COMPLETION
    }

    /// The last double word of the next completion, if there is one: its number, its phase tag and what became of it are of one moment.
    fn peek(&self, memory: &impl Shared) -> Option<u32> {
        Some(memory.read_word(self.next() + 12)).filter(|last| (last >> 16 & 1 != 0) == self.phase)
    }

    /// The next completion: result, number of the command, and what became of it.
    fn take(&mut self, memory: &impl Shared) -> Option<(u32, u16, Status)> {
        let last = self.peek(memory)?;
        // The phase tag says that the rest is there.
        fence(Ordering::Acquire);
        let result = memory.read_word(self.next());
        self.head += 1;
        if self.head == DEPTH {
            (self.head, self.phase) = (0, !self.phase);
        }
        Some((result, last as u16, Status((last >> 17) as u16)))
    }
}

/// A physical disk, and the queues of `GUESTS` guests.
#[derive(Debug)]
pub struct Engine<H, const GUESTS: usize> {
    hardware: H,
    admin: Pair,
    pairs: [Option<Pair>; GUESTS],
}

impl<H: Hardware, const GUESTS: usize> Engine<H, GUESTS> {
    /// Bytes of memory that it wants, of zeros.
    pub const MEMORY: usize = ADMIN + GUESTS * GUEST;

    /// A disk that is still to be started.
    pub const fn new(hardware: H) -> Self {
        Self { hardware, admin: Pair::new(0, 0), pairs: [None; GUESTS] }
    }

    /// Where a guest's lists are in the memory, and how many bytes they have.
    pub const fn lists(guest: usize) -> (usize, usize) {
        (ADMIN + guest * GUEST + 2 * PAGE as usize, (SLOTS + 1) * PAGE as usize)
    }

    /// Starts the disk, without any queues of guests, and asks what it is.
    ///
    /// # Errors
    /// See [`Failure`]; the disk is off.
    pub fn start(&mut self, memory: &mut impl Shared) -> Result<Facts, Failure> {
        let facts = self.enable(memory).and_then(|()| self.ask(memory));
        if facts.is_err() {
            self.stop();
        }
        facts
    }

    /// Switches the disk off: it ends what it does, and reaches no memory. False: it does not answer.
    pub fn stop(&mut self) -> bool {
        self.pairs = [None; GUESTS];
        self.hardware.write(CC, 0);
        self.wait_for(0).is_ok()
    }

    /// Whether the disk goes on by itself.
    pub fn is_alive(&self) -> bool {
        self.hardware.read(CSTS) & (READY | FATAL) == READY
    }

    fn wait_for(&self, ready: u32) -> Result<(), Failure> {
        let mut left = (u64::from(self.hardware.read(CAP) >> 24) + 1) * UNIT;
        loop {
            let status = self.hardware.read(CSTS);
            if status & READY == ready && status != GONE {
                return Ok(());
            }
            // Who is not there any more is not waited for.
            left = left.checked_sub(STEP).filter(|_| status != GONE).ok_or(Failure::Silent)?;
            self.hardware.delay_us(STEP);
        }
    }

    fn enable(&mut self, memory: &mut impl Shared) -> Result<(), Failure> {
        const PAGE_SIZES: u32 = 0xf << 16;
        const COMMAND_SET: u32 = 1 << 5;
        let (low, high) = (self.hardware.read(CAP), self.hardware.read(CAP + 4));
        if low & 0xffff < u32::from(DEPTH - 1)
            || high & PAGE_SIZES != 0
            || high & COMMAND_SET == 0
            || high & 0xf != 0
        {
            return Err(Failure::Kind);
        }
        if !self.stop() {
            return Err(Failure::Silent);
        }
        self.admin = Pair::new(0, 0);
        memory.write(0, &[0; ADMIN]);
        let (submissions, completions) = (memory.bus(), memory.bus() + PAGE);
        self.hardware.write(AQA, u32::from(DEPTH - 1) | u32::from(DEPTH - 1) << 16);
        for (at, bus) in [(ASQ, submissions), (ACQ, completions)] {
            self.hardware.write(at, bus as u32);
            self.hardware.write(at + 4, (bus >> 32) as u32);
        }
        self.hardware.write(CC, ENTRIES | ENABLE);
        self.wait_for(READY)
    }

    fn ask(&mut self, memory: &mut impl Shared) -> Result<Facts, Failure> {
        let page = memory.bus() + 2 * PAGE;
        let answer = |engine: &mut Self, command: Command, memory: &mut _| {
            engine.administer(command.with_prp(page, 0), memory)?;
            let mut bytes = [0; BYTES];
            Shared::read(memory, 2 * PAGE as usize, &mut bytes);
            Ok(bytes)
        };
        let controller = answer(self, Command::new(admin::IDENTIFY, 0).with(10, 1), memory)?;
        let namespace = answer(self, Command::new(admin::IDENTIFY, 1), memory)?;
        let facts = Facts::new(&controller, &namespace).ok_or(Failure::Namespace)?;
        let log = Command::new(admin::LOG, u32::MAX).with(10, 2 | (HEALTH as u32 / 4 - 1) << 16);
        let log = answer(self, log, memory)?;
        let queues = GUESTS as u32 - 1;
        let set = Command::new(admin::SET_FEATURES, 0).with(10, QUEUES).with(11, queues | queues << 16);
        let given = self.administer(set, memory)?;
        if given & 0xffff < queues || given >> 16 < queues {
            return Err(Failure::Queues);
        }
        Ok(log.first_chunk().map_or(facts.clone(), |log| facts.with_health(log)))
    }

    /// Carries out a command of the hypervisor's own. Returns its result.
    fn administer(&mut self, command: Command, memory: &mut impl Shared) -> Result<u32, Failure> {
        let id = self.admin.tail;
        self.admin.submit(&command.with_id(id), memory);
        self.ring(0, self.admin.tail);
        let mut left = PATIENCE;
        loop {
            if let Some((result, by, status)) = self.admin.take(memory) {
                self.ring(1, self.admin.head);
                if by == id {
                    return if status.is_success() { Ok(result) } else { Err(Failure::Refused(status)) };
                }
                continue;
            }
            left = left.checked_sub(STEP).ok_or(Failure::Silent)?;
            self.hardware.delay_us(STEP);
        }
    }

    fn ring(&self, doorbell: u16, value: u16) {
        fence(Ordering::Release);
        self.hardware.write(DOORBELLS + 4 * u32::from(doorbell), value.into());
    }

    /// Makes the queues of a guest, which tell of completions by a message.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn open(&mut self, guest: usize, vector: u16, memory: &mut impl Shared) -> Result<(), Failure> {
        let pair = Pair::new(guest as u16 + 1, ADMIN + guest * GUEST);
        let (number, bus) = (u32::from(pair.number), memory.bus() + pair.at as u64);
        memory.write(pair.at, &[0; 2 * PAGE as usize]);
        let size = number | u32::from(DEPTH - 1) << 16;
        let completions = Command::new(admin::CREATE_COMPLETIONS, 0).with_prp(bus + PAGE, 0);
        let submissions = Command::new(admin::CREATE_SUBMISSIONS, 0).with_prp(bus, 0);
        self.administer(completions.with(10, size).with(11, 0b11 | u32::from(vector) << 16), memory)?;
        if let Err(failure) = self.administer(submissions.with(10, size).with(11, 1 | number << 16), memory) {
            // Or the next guest at this place would find its number taken.
            let delete = Command::new(admin::DELETE_COMPLETIONS, 0).with(10, number);
            return self.administer(delete, memory).and(Err(failure));
        }
        if let Some(place) = self.pairs.get_mut(guest) {
            *place = Some(pair);
        }
        Ok(())
    }

    /// Takes the queues of a guest away: the disk has ended or given up what came by them, and reaches nothing of the guest's.
    ///
    /// # Errors
    /// The disk does not say so.
    pub fn close(&mut self, guest: usize, memory: &mut impl Shared) -> Result<(), Failure> {
        let Some(pair) = self.pairs.get_mut(guest).and_then(Option::take) else { return Ok(()) };
        let number = u32::from(pair.number);
        self.administer(Command::new(admin::DELETE_SUBMISSIONS, 0).with(10, number), memory)?;
        self.administer(Command::new(admin::DELETE_COMPLETIONS, 0).with(10, number), memory)?;
        Ok(())
    }

    /// Queues a command of a guest's; the disk learns of it by [`Self::ring_for`]. False: the guest has no queues.
    pub fn submit(&mut self, guest: usize, command: &Command, memory: &mut impl Shared) -> bool {
        let pair = self.pairs.get_mut(guest).and_then(Option::as_mut);
        pair.map(|pair| pair.submit(command, memory)).is_some()
    }

    /// Tells the disk what was queued.
    pub fn ring_for(&self, guest: usize) {
        if let Some(pair) = self.pairs.get(guest).and_then(Option::as_ref) {
            self.ring(2 * pair.number, pair.tail);
        }
    }

    /// Whether the disk has ended a command of a guest's that nobody has taken yet: it is not the disk that the guest waits for.
    pub fn has_ended(&self, guest: usize, memory: &impl Shared) -> bool {
        let pair = self.pairs.get(guest).and_then(Option::as_ref);
        pair.is_some_and(|pair| pair.peek(memory).is_some())
    }

    /// The next of a guest's commands that has ended: its number, and what became of it.
    pub fn take(&mut self, guest: usize, memory: &impl Shared) -> Option<(u16, Status)> {
        let (_, id, status) = self.pairs.get_mut(guest)?.as_mut()?.take(memory)?;
        Some((id, status))
    }

    /// Tells the disk how far completions were taken.
    pub fn acknowledge(&self, guest: usize) {
        if let Some(pair) = self.pairs.get(guest).and_then(Option::as_ref) {
            self.ring(2 * pair.number + 1, pair.head);
        }
    }
}
