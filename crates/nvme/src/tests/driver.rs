//! A guest's driver of its controller.

use super::ram::Ram;
use crate::command::admin;
use crate::front::Taken;
use crate::register::{ACQ, AQA, ASQ, CC, CSTS, DOORBELLS, ENABLE, ENTRIES, READY};
use crate::{Command, Front, Lists, Offer, PAGE, SLOTS, Status};
use std::vec;
use std::vec::Vec;

/// Where the physical disk finds the hypervisor's lists.
pub const LISTS: u64 = 0x7_0000_0000;
/// Where the driver has its queues, and a page for answers.
pub const ADMIN: (u64, u64) = (0x1000, 0x2000);
pub const IO: (u64, u64) = (0x3000, 0x4000);
pub const ANSWER: u64 = 0x8000;
/// Entries of each queue.
pub const SIZE: u16 = 16;

/// A completion, as the driver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub id: u16,
    pub status: Status,
    pub result: u32,
    pub queue: u16,
    pub head: u16,
}

/// A pair of queues.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub at: (u64, u64),
    pub sizes: (u16, u16),
    pub tail: u16,
    pub head: u16,
    pub phase: bool,
}

impl Ring {
    /// New queues, whose completions are cleared as a driver must.
    pub fn new(at: (u64, u64), sizes: (u16, u16), ram: &Ram) -> Self {
        ram.put(at.1, &vec![0; usize::from(sizes.1) * 16]);
        Self { at, sizes, tail: 0, head: 0, phase: true }
    }

    /// Writes a command, without a word to the controller.
    pub fn put(&mut self, command: &Command, ram: &Ram) {
        ram.put(self.at.0 + u64::from(self.tail) * Command::SIZE as u64, &command.encode());
        self.tail = (self.tail + 1) % self.sizes.0;
    }

    /// The next completion, by its phase tag.
    pub fn seen(&mut self, ram: &Ram) -> Option<Told> {
        let raw: [u8; 16] = ram.get(self.at.1 + u64::from(self.head) * 16);
        let words: Vec<_> = raw.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if (words[3] >> 16 & 1 != 0) != self.phase {
            return None;
        }
        self.head += 1;
        if self.head == self.sizes.1 {
            (self.head, self.phase) = (0, !self.phase);
        }
        assert_eq!(words[1], 0, "reserved");
        Some(Told {
            id: words[3] as u16,
            status: Status((words[3] >> 17) as u16),
            result: words[0],
            queue: (words[2] >> 16) as u16,
            head: words[2] as u16,
        })
    }
}

/// A driver, its controller, and the hypervisor's pages for it.
pub struct Driver {
    pub front: Front,
    pub ram: Ram,
    pub lists: Vec<u8>,
    pub admin: Ring,
    pub io: Ring,
    pub next: u16,
}

impl Driver {
    /// Of a controller that is off.
    pub fn new(offer: Offer) -> Self {
        let ram = Ram::new();
        let admin = Ring::new(ADMIN, (SIZE, SIZE), &ram);
        let io = Ring::new(IO, (SIZE, SIZE), &ram);
        let lists = vec![0xdd; (SLOTS + 1) * PAGE as usize];
        Self { front: Front::new(offer), ram, lists, admin, io, next: 0x100 }
    }

    /// Of a controller that is on and has all queues.
    pub fn with_queues(offer: Offer) -> Self {
        let mut driver = Self::new(offer);
        driver.enable();
        driver.create((SIZE, SIZE));
        driver
    }

    pub fn status(&self) -> u32 {
        self.front.read(CSTS, 4) as u32
    }

    pub fn configure(&mut self, value: u32) {
        self.front.write(CC, 4, (ENTRIES | value).into());
    }

    /// Switches the controller on, with new queues for the admin.
    pub fn enable(&mut self) {
        self.admin = Ring::new(ADMIN, (SIZE, SIZE), &self.ram);
        let size = u64::from(SIZE - 1);
        self.front.write(AQA, 4, size | size << 16);
        self.front.write(ASQ, 8, ADMIN.0);
        self.front.write(ACQ, 8, ADMIN.1);
        self.configure(ENABLE);
        assert_eq!(self.status(), READY);
    }

    /// Creates the queues for input and output, which tell by the second message.
    pub fn create(&mut self, (submissions, completions): (u16, u16)) {
        self.io = Ring::new(IO, (submissions, completions), &self.ram);
        let command = |opcode, at, size: u16, options| {
            Command::new(opcode, 0).with_prp(at, 0).with(10, 1 | u32::from(size - 1) << 16).with(11, options)
        };
        let create = command(admin::CREATE_COMPLETIONS, IO.1, completions, 1 << 16 | 0b11);
        assert_eq!(self.administer(create), (Status::SUCCESS, 0));
        let create = command(admin::CREATE_SUBMISSIONS, IO.0, submissions, 1 << 16 | 1);
        assert_eq!(self.administer(create), (Status::SUCCESS, 0));
    }

    pub fn ring(&mut self, doorbell: u16, value: u32) {
        self.front.write(DOORBELLS + 4 * u32::from(doorbell), 4, value.into());
    }

    pub fn take(&mut self) -> Taken {
        self.front.take(&self.ram, &mut Lists { bytes: &mut self.lists, bus: LISTS })
    }

    /// A command under a number of its own, of which the controller is told.
    pub fn ask(&mut self, command: Command) -> u16 {
        self.next += 1;
        self.admin.put(&command.with_id(self.next), &self.ram);
        self.ring(0, self.admin.tail.into());
        self.next
    }

    /// A command for the controller, from begin to end. Returns what became of it, and the result.
    pub fn administer(&mut self, command: Command) -> (Status, u32) {
        let id = self.ask(command);
        assert_eq!(self.take(), Taken::Answered);
        let told = self.told_admin().expect("it was answered");
        assert_eq!((told.id, told.queue, told.head), (id, 0, self.admin.tail));
        (told.status, told.result)
    }

    /// A completion of the admin's, which the driver takes.
    pub fn told_admin(&mut self) -> Option<Told> {
        let told = self.admin.seen(&self.ram)?;
        self.ring(1, self.admin.head.into());
        Some(told)
    }

    /// A command for the namespace, of which the controller is told.
    pub fn submit(&mut self, command: Command) -> u16 {
        self.next += 1;
        self.io.put(&command.with_id(self.next), &self.ram);
        self.ring(2, self.io.tail.into());
        self.next
    }

    /// A completion of the others, which the driver takes.
    pub fn told(&mut self) -> Option<Told> {
        let told = self.io.seen(&self.ram)?;
        self.ring(3, self.io.head.into());
        Some(told)
    }

    /// A command that is passed on. Returns what the disk gets.
    pub fn issue(&mut self) -> Command {
        match self.take() {
            Taken::Issue(command) => command,
            other => panic!("{other:?}"),
        }
    }

    /// The physical disk is done with a command.
    pub fn complete(&mut self, slot: u16, status: Status) {
        assert!(self.front.has_room(&self.ram));
        self.front.complete(slot, status, &self.ram);
    }
}
