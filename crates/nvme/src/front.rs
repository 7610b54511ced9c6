//! What a guest's driver finds: a controller with one namespace, an admin queue, and one pair of queues for input and output.

use crate::command::{admin, io};
use crate::queue::{Completions, Doorbells, Submissions, is_page};
use crate::register::{
    ACQ, AQA, ASQ, CAP, CC, CHOICES, CSTS, DOORBELLS, ENABLE, FATAL, READY, SHUT_DOWN, SHUTDOWN,
    SHUTTING_DOWN, VS,
};
use crate::{Command, DEPTH, List, Memory, Offer, PAGE, SLOTS, Status, identify, vet};

/// CAP.TO, in units of 500 ms: how long a driver waits for a controller that ends; all that the physical disk has of it must end first.
const PATIENCE: u32 = 80;
/// The doorbells of the queues for input and output.
const TAIL: u16 = 2;
const HEAD: u16 = 3;

/// Whether the controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It is off.
    Off,
    /// It takes commands.
    On,
    /// It was switched off, and the physical disk still has commands.
    Ending,
}

/// Whose a command is that the physical disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// The guest's, by its number.
    Guest(u16),
    /// Of the shutdown.
    Own,
    /// Nobody waits for it any more.
    Nobody,
}

/// What [`Front::take`] came upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing to do now.
    Nothing,
    /// A command that was answered at once.
    Answered,
    /// A command for the physical disk; its number is the slot that [`Front::complete`] wants.
    Issue(Command),
}

/// What a guest did with its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands that were taken from its queues.
    pub commands: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Of these what no driver asks for that only looks what there is: commands for data, and values for doorbells.
    pub forbidden: u64,
    /// Blocks that it read.
    pub read: u64,
    /// Blocks that it wrote.
    pub written: u64,
    /// Writes to doorbells.
    pub doorbells: u64,
}

/// Pages of the hypervisor's for the commands of a guest: a list for each slot, and one for answers.
#[derive(Debug)]
pub struct Lists<'a> {
    /// [`SLOTS`] pages and one.
    pub bytes: &'a mut [u8],
    /// Where the physical disk finds the first.
    pub bus: u64,
}

impl Lists<'_> {
    fn page(&mut self, index: usize) -> Option<List<'_>> {
        let at = index * PAGE as usize;
        Some(List { bytes: self.bytes.get_mut(at..at + PAGE as usize)?, bus: self.bus + at as u64 })
    }
}

/// A guest's disk.
#[derive(Debug)]
pub struct Front {
    pub(crate) offer: Offer,
    configuration: u32,
    life: Life,
    /// Parts of the status register.
    fatal: bool,
    shutdown: u32,
    /// A cache is to be flushed before the shutdown is over.
    flushes: bool,
    /// Sizes and places of the admin queues.
    sizes: u32,
    places: [u64; 2],
    admin: Option<(Submissions, Completions)>,
    pub(crate) submissions: Option<Submissions>,
    pub(crate) completions: Option<Completions>,
    pub(crate) doorbells: Option<Doorbells>,
    /// By slot, of those that are taken.
    flights: [Flight; SLOTS],
    /// A bit for each slot that is taken.
    taken: u64,
    /// Requests for events, none of which happens.
    pub(crate) events: u8,
    /// A bit for each message that is due.
    signals: u8,
    counters: Counters,
}

impl Front {
    /// A disk that was just switched on.
    pub const fn new(offer: Offer) -> Self {
        Self {
            offer,
            configuration: 0,
            life: Life::Off,
            fatal: false,
            shutdown: 0,
            flushes: false,
            sizes: 0,
            places: [0; 2],
            admin: None,
            submissions: None,
            completions: None,
            doorbells: None,
            flights: [Flight::Nobody; SLOTS],
            taken: 0,
            events: 0,
            signals: 0,
            counters: Counters { commands: 0, refused: 0, forbidden: 0, read: 0, written: 0, doorbells: 0 },
        }
    }

    /// What the guest did so far.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Which messages are due: a bit each. They are told once.
    pub const fn take_signals(&mut self) -> u8 {
        core::mem::replace(&mut self.signals, 0)
    }

    /// Whether the physical disk has commands.
    pub const fn is_busy(&self) -> bool {
        self.taken != 0
    }

    // --- registers ----------------------------------------------------------------------------

    /// The guest reads `width` bytes (1, 2, 4 or 8) of its registers.
    pub fn read(&self, offset: u32, width: u8) -> u64 {
        let at = offset & !3;
        let both = u64::from(self.register(at)) | u64::from(self.register(at.wrapping_add(4))) << 32;
        let ones = u64::MAX >> (64 - 8 * u32::from(width.clamp(1, 8)));
        both >> (8 * (offset & 3)) & ones
    }

    fn register(&self, offset: u32) -> u32 {
        let [submissions, completions] = self.places;
        match offset {
            // Queues lie in one piece; one stride of doorbells, one page size, the command set of disks.
            CAP => u32::from(DEPTH - 1) | 1 << 16 | PATIENCE << 24,
            0x04 => 1 << 5,
            VS => identify::VERSION,
            CC => self.configuration,
            CSTS => {
                let ready = if self.life == Life::Off { 0 } else { READY };
                ready | if self.fatal { FATAL } else { 0 } | self.shutdown
            }
            AQA => self.sizes,
            ASQ => submissions as u32,
            0x2c => (submissions >> 32) as u32,
            ACQ => completions as u32,
            0x34 => (completions >> 32) as u32,
            _ => 0,
        }
    }

    /// The guest writes 4 or 8 bytes of its registers or doorbells; other widths have no effect.
    pub fn write(&mut self, offset: u32, width: u8, value: u64) {
        if offset & 3 != 0 || width < 4 {
            return;
        }
        self.write_register(offset, value as u32);
        if width == 8 {
            self.write_register(offset.wrapping_add(4), (value >> 32) as u32);
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let [submissions, completions] = &mut self.places;
        let halves = |place: &mut u64, low: bool| {
            *place = match low {
                true => *place & !0xffff_ffff | u64::from(value & !0xfff),
                false => *place & 0xffff_ffff | u64::from(value) << 32,
            };
        };
        match offset {
            CC => self.configure(value),
            AQA => self.sizes = value & 0x0fff_0fff,
            ASQ => halves(submissions, true),
            0x2c => halves(submissions, false),
            ACQ => halves(completions, true),
            0x34 => halves(completions, false),
            DOORBELLS.. => self.ring((offset - DOORBELLS) / 4, value),
            _ => {}
        }
    }

    fn ring(&mut self, doorbell: u32, value: u32) {
        self.counters.doorbells += 1;
        let taken = match (doorbell, &mut self.admin) {
            (0, Some((submissions, _))) => submissions.set_tail(value),
            (1, Some((_, completions))) => completions.set_head(value),
            (2, _) => self.submissions.as_mut().is_some_and(|queue| queue.set_tail(value)),
            (3, _) => self.completions.as_mut().is_some_and(|queue| queue.set_head(value)),
            _ => false,
        };
        self.counters.refused += u64::from(!taken);
        self.counters.forbidden += u64::from(!taken);
    }

    fn configure(&mut self, value: u32) {
        let before = core::mem::replace(&mut self.configuration, value);
        let (was_on, on) = (before & ENABLE != 0, value & ENABLE != 0);
        if before & SHUTDOWN == 0 && value & SHUTDOWN != 0 && self.life == Life::On {
            self.flushes = self.offer.has_cache();
            self.shutdown = if self.flushes { SHUTTING_DOWN } else { SHUT_DOWN };
        }
        if was_on && !on {
            self.end();
        }
        self.settle();
    }

    /// Forgets all queues, and what the physical disk does for them.
    fn end(&mut self) {
        (self.admin, self.submissions, self.completions, self.doorbells) = (None, None, None, None);
        (self.fatal, self.flushes, self.events, self.signals) = (false, false, 0, 0);
        self.flights.fill(Flight::Nobody);
        self.life = Life::Ending;
    }

    /// Is over what it was told to be, once the physical disk has nothing of it any more.
    fn settle(&mut self) {
        if self.life == Life::Ending && !self.is_busy() {
            (self.life, self.shutdown) = (Life::Off, 0);
        }
        if self.life == Life::Off && self.configuration & ENABLE != 0 && !self.fatal {
            self.start();
        }
    }

    fn start(&mut self) {
        let size = |field: u32| (field & 0xfff) as u16 + 1;
        let (submissions, completions) = (size(self.sizes), size(self.sizes >> 16));
        let [first, second] = self.places;
        let are_within =
            Submissions::is_within(first, submissions) && Completions::is_within(second, completions);
        if self.configuration & CHOICES != 0 || submissions < 2 || completions < 2 || !are_within {
            self.fatal = true;
            return;
        }
        self.admin =
            Some((Submissions::new(first, submissions), Completions::new(second, completions, Some(0))));
        self.life = Life::On;
    }

    // --- commands -----------------------------------------------------------------------------

    /// Goes on with the guest's next command.
    pub fn take(&mut self, memory: &impl Memory, lists: &mut Lists<'_>) -> Taken {
        if self.life != Life::On {
            return Taken::Nothing;
        }
        if self.flushes && !self.flights.contains(&Flight::Own) {
            return match self.free_slot() {
                Some(slot) => self.fly(slot, Flight::Own, Command::new(io::FLUSH, self.offer.namespace())),
                None => Taken::Nothing,
            };
        }
        if self.take_admin(memory, lists) {
            return Taken::Answered;
        }
        self.take_io(memory, lists)
    }

    fn free_slot(&self) -> Option<usize> {
        Some(self.taken.trailing_ones() as usize).filter(|slot| *slot < SLOTS)
    }

    fn fly(&mut self, slot: usize, flight: Flight, command: Command) -> Taken {
        if let Some(place) = self.flights.get_mut(slot) {
            *place = flight;
            self.taken |= 1 << slot;
        }
        Taken::Issue(command.with_id(slot as u16))
    }

    /// Whether a command of the admin queue was dealt with.
    fn take_admin(&mut self, memory: &impl Memory, lists: &mut Lists<'_>) -> bool {
        let Some((submissions, completions)) = &mut self.admin else { return false };
        if submissions.is_empty() || !completions.has_room() {
            return false;
        }
        // A queue is deleted when none of its commands is under way.
        let is_busy = self.taken != 0;
        let waits = |command: &Command| is_busy && command.opcode() == admin::DELETE_SUBMISSIONS;
        let Some(command) = submissions.take_unless(memory, waits) else { return false };
        let head = submissions.head();
        self.counters.commands += 1;
        let page = lists.page(SLOTS);
        let answer =
            page.map_or(Some((Status::TRANSFER, 0)), |page| self.administer(&command, memory, page.bytes));
        if let (Some((status, result)), Some((_, completions))) = (answer, &mut self.admin) {
            self.counters.refused += u64::from(!status.is_success());
            completions.put(command.id(), status, result, (0, head), memory);
            self.signals |= 1;
        }
        true
    }

    /// Whether the guest waits for its queue to be empty of commands.
    fn is_closing(&self, memory: &impl Memory) -> bool {
        self.is_busy()
            && self.admin.as_ref().is_some_and(|(submissions, _)| {
                submissions.peek(memory).is_some_and(|command| command.opcode() == admin::DELETE_SUBMISSIONS)
            })
    }

    fn take_io(&mut self, memory: &impl Memory, lists: &mut Lists<'_>) -> Taken {
        let Some(slot) = self.free_slot() else { return Taken::Nothing };
        if !self.has_room(memory) || self.is_closing(memory) {
            return Taken::Nothing;
        }
        let (Some(submissions), Some(completions)) = (&mut self.submissions, &mut self.completions) else {
            return Taken::Nothing;
        };
        if submissions.is_empty() && !self.doorbells.is_some_and(|page| submissions.look(&page, TAIL, memory))
        {
            return Taken::Nothing;
        }
        let Some(command) = submissions.take(memory) else { return Taken::Nothing };
        self.counters.commands += 1;
        let list = lists.page(slot);
        let verdict =
            list.ok_or(Status::TRANSFER).and_then(|mut list| vet(&command, &self.offer, memory, &mut list));
        match verdict {
            Ok(issue) => {
                let blocks = u64::from(command.0[12] & 0xffff) + 1;
                match command.opcode() {
                    io::READ => self.counters.read += blocks,
                    io::WRITE => self.counters.written += blocks,
                    _ => {}
                }
                self.fly(slot, Flight::Guest(command.id()), issue)
            }
            Err(status) => {
                self.counters.refused += 1;
                self.counters.forbidden += 1;
                completions.put(command.id(), status, 0, (1, submissions.head()), memory);
                let vector = completions.vector();
                self.signal(vector);
                Taken::Answered
            }
        }
    }

    fn signal(&mut self, vector: Option<u16>) {
        if let Some(vector) = vector {
            self.signals |= 1 << vector;
        }
    }

    /// Whether the guest can be told of a command now. If not, it rings when it can.
    pub fn has_room(&mut self, memory: &impl Memory) -> bool {
        let Some(completions) = &mut self.completions else { return true };
        completions.has_room() || self.doorbells.is_some_and(|page| completions.look(&page, HEAD, memory))
    }

    /// Frees a slot. Returns whose its command was; `None` if it was free.
    fn land(&mut self, slot: u16) -> Option<Flight> {
        let flight = self.flights.get_mut(usize::from(slot)).filter(|_| self.taken & 1 << slot != 0)?;
        self.taken &= !(1 << slot);
        Some(core::mem::replace(flight, Flight::Nobody))
    }

    /// The physical disk is done with the command in a slot. The caller has seen that there is [room](Self::has_room).
    pub fn complete(&mut self, slot: u16, status: Status, memory: &impl Memory) {
        match self.land(slot) {
            Some(Flight::Guest(id)) => {
                if let (Some(completions), Some(submissions)) = (&mut self.completions, &self.submissions) {
                    completions.put(id, status, 0, (1, submissions.head()), memory);
                    let vector = completions.vector();
                    self.signal(vector);
                }
            }
            Some(Flight::Own) => (self.flushes, self.shutdown) = (false, SHUT_DOWN),
            Some(Flight::Nobody) | None => {}
        }
        self.settle();
    }

    /// The physical disk has given up all that it had. The guest is told that it can repeat its commands, as far as there is room; a shutdown asks
    /// again for its flush.
    pub fn give_up(&mut self, memory: &impl Memory) {
        for slot in 0..SLOTS as u16 {
            if self.flights.get(usize::from(slot)) == Some(&Flight::Own) || !self.has_room(memory) {
                self.land(slot);
            } else {
                self.complete(slot, Status::ABORTED, memory);
            }
        }
        self.settle();
    }

    /// Whether a page of the guest's can hold a queue of so many entries.
    pub(crate) const fn can_hold(at: u64, size: u32) -> Result<u16, Status> {
        if !is_page(at) {
            return Err(Status::FIELD);
        }
        if size < 2 || size > DEPTH as u32 {
            return Err(Status::QUEUE_SIZE);
        }
        Ok(size as u16)
    }
}
