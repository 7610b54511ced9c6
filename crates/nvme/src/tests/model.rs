//! Any interleaving of what a guest and a physical disk do, and what holds after each step.

use super::driver::{ADMIN, Driver, IO, LISTS, Ring};
use super::issued::{carry_out, check};
use super::{DATASET, FIRST, SECTORS, ZEROES, all, offer};
use crate::command::{admin, io};
use crate::front::Taken;
use crate::register::{CC, DOORBELLS, ENABLE, FATAL, READY, SHUT_DOWN};
use crate::{Command, Front, Lists, Offer, PAGE, SLOTS, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

/// Configuration: a shutdown is announced.
const ANNOUNCE: u32 = 1 << 14;

#[derive(Clone, Debug)]
enum Step {
    /// Writes the configuration.
    Configure(u32),
    /// Switches on, and creates queues of so many entries.
    Restart(u16, u16),
    /// A command for the controller: opcode, and what else it says.
    Admin(u8, u32, u32),
    /// Commands for the namespace.
    Submit(u8, u8, u64, u32),
    /// Writes any value to a doorbell.
    Ring(u16, u32),
    /// The hypervisor goes on with so many commands.
    Take(u8),
    /// The disk is done with one of its commands.
    Complete(usize),
    /// The driver takes so many completions: of the admin's, or others.
    Consume(bool, u8),
    /// The disk was started anew.
    GiveUp,
}

fn step() -> impl Strategy<Value = Step> {
    let configuration =
        prop_oneof![Just(0), Just(ENABLE), Just(ENABLE | ANNOUNCE), Just(ANNOUNCE), Just(ENABLE | 16)];
    let size = prop_oneof![2u16..6, Just(16u16), Just(64u16)];
    let opcode = prop_oneof![8 => 0u8..13, 4 => Just(admin::DELETE_SUBMISSIONS), 1 => any::<u8>()];
    let number = prop_oneof![8 => Just(1u32), 1 => 0u32..4];
    let options = prop_oneof![8 => Just(0x1_0003u32), 1 => any::<u32>()];
    prop_oneof![
        2 => configuration.prop_map(Step::Configure),
        2 => (size.clone(), size).prop_map(|(one, two)| Step::Restart(one, two)),
        4 => (opcode, number, options).prop_map(|(opcode, number, options)| Step::Admin(opcode, number, options)),
        12 => (1u8..20, 1u8..4, 0..SECTORS + 3, 0u32..8).prop_map(|(count, opcode, block, blocks)| {
            Step::Submit(count, opcode, block, blocks)
        }),
        1 => (0u16..5, prop_oneof![0u32..64, any::<u32>()]).prop_map(|(doorbell, value)| Step::Ring(doorbell, value)),
        16 => (1u8..40).prop_map(Step::Take),
        16 => any::<prop::sample::Index>().prop_map(|index| Step::Complete(index.index(SLOTS))),
        8 => (any::<bool>(), 1u8..20).prop_map(|(admin, count)| Step::Consume(admin, count)),
        1 => Just(Step::GiveUp),
    ]
}

/// What is known of a completion queue: entries, and where they are put and taken next.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: u64,
    size: u16,
    tail: u16,
    head: u16,
}

impl Seen {
    const fn new(at: u64, size: u16) -> Self {
        Self { at, size, tail: 0, head: 0 }
    }

    /// If this was the end of an entry: it is the next one, and there was room for it.
    fn see(&mut self, at: u64, len: usize) -> bool {
        let is_last = at.checked_sub(self.at).is_some_and(|at| at < PAGE && at % 16 == 12) && len == 4;
        if is_last {
            assert_eq!((at - self.at) / 16, u64::from(self.tail), "entries follow each other");
            self.tail = (self.tail + 1) % self.size;
            assert_ne!(self.tail, self.head, "there was no room");
        }
        is_last
    }

    fn ring(&mut self, value: u32) {
        if value < u32::from(self.size) {
            self.head = value as u16;
        }
    }
}

/// A command that the physical disk has: before how many resets it was the guest's, and whether it is the flush of a shutdown.
#[derive(Clone, Copy, Debug)]
struct Held {
    life: u32,
    is_own: bool,
}

struct World {
    driver: Driver,
    offer: Offer,
    held: BTreeMap<u16, Held>,
    /// Resets so far.
    life: u32,
    configuration: u32,
    /// The cache was flushed since the shutdown was announced.
    flushed: bool,
    admin: Seen,
    io: Option<Seen>,
    /// Opcodes of the admin's commands, and sizes that they ask for, by number.
    asked: BTreeMap<u16, (u8, u16)>,
}

impl World {
    fn new(offer: Offer) -> Self {
        let driver = Driver::new(offer.clone());
        let admin = Seen::new(ADMIN.1, 16);
        Self {
            driver,
            offer,
            held: BTreeMap::new(),
            life: 0,
            configuration: 0,
            flushed: false,
            admin,
            io: None,
            asked: BTreeMap::new(),
        }
    }

    /// The controller takes commands.
    fn is_on(&self) -> bool {
        self.configuration & ENABLE != 0
            && self.driver.status() & FATAL == 0
            && self.held.values().all(|held| held.life == self.life)
    }

    fn configure(&mut self, value: u32) {
        let was_on = self.is_on();
        let before = std::mem::replace(&mut self.configuration, value);
        if was_on && before & ANNOUNCE == 0 && value & ANNOUNCE != 0 {
            self.flushed = false;
        }
        if before & ENABLE != 0 && value & ENABLE == 0 {
            self.life += 1;
            (self.admin, self.io) = (Seen::new(ADMIN.1, 16), None);
        }
        self.driver.configure(value);
    }

    fn ring(&mut self, doorbell: u16, value: u32) {
        let is_on = self.is_on();
        match (doorbell, &mut self.io) {
            (1, _) if is_on => self.admin.ring(value),
            (3, Some(io)) => io.ring(value),
            _ => {}
        }
        self.driver.ring(doorbell, value);
    }

    fn ask(&mut self, command: Command) {
        let id = self.driver.ask(command);
        self.asked.insert(id, (command.opcode(), (command.0[10] >> 16) as u16 + 1));
    }

    /// What the controller has written: completions where there is room, and answers.
    fn look(&mut self) {
        for (at, len) in self.driver.ram.take_writes() {
            if let Some(io) = &mut self.io {
                io.see(at, len);
            }
            if !self.admin.see(at, len) {
                continue;
            }
            let last = u32::from_le_bytes(self.driver.ram.get(at));
            let Some((opcode, size)) = self.asked.get(&(last as u16)).copied() else { continue };
            match opcode {
                admin::DELETE_SUBMISSIONS => assert!(self.held.is_empty(), "{:?}", self.held),
                admin::CREATE_COMPLETIONS if last >> 17 == 0 => self.io = Some(Seen::new(IO.1, size)),
                admin::DELETE_COMPLETIONS if last >> 17 == 0 => self.io = None,
                _ => {}
            }
        }
    }

    fn take(&mut self) -> bool {
        let taken = self.driver.take();
        if let Taken::Issue(command) = taken {
            assert!(usize::from(command.id()) < SLOTS);
            let list = &self.driver.lists[usize::from(command.id()) * PAGE as usize..][..PAGE as usize];
            // Its list is where all lists are, but for the slot.
            let at = LISTS + u64::from(command.id()) * PAGE;
            let (first, second) = command.prp();
            let moved = |prp: u64| if (at..at + PAGE).contains(&prp) { prp - at + LISTS } else { prp };
            let local = command.with_prp(moved(first), moved(second));
            check(&carry_out(&local, 9, list, &self.driver.ram), &self.offer);
            // No guest asks for a flush here.
            let is_own = command.opcode() == io::FLUSH;
            let before = self.held.insert(command.id(), Held { life: self.life, is_own });
            assert!(before.is_none(), "a slot is used twice");
        }
        taken != Taken::Nothing
    }

    fn complete(&mut self, index: usize) {
        let Some((slot, held)) =
            self.held.iter().nth(index % self.held.len().max(1)).map(|(slot, held)| (*slot, *held))
        else {
            return;
        };
        if !self.driver.front.has_room(&self.driver.ram) {
            return;
        }
        self.look();
        self.held.remove(&slot);
        let signals = self.driver.front.take_signals();
        self.driver.complete(slot, Status::SUCCESS);
        if held.life != self.life {
            assert_eq!(self.driver.ram.take_writes(), [], "nobody waits for it");
            assert_eq!(self.driver.front.take_signals(), 0);
        } else if held.is_own {
            self.flushed = true;
        }
        assert!(signals < 4);
    }

    fn restart(&mut self, submissions: u16, completions: u16) {
        if self.configuration & ENABLE == 0 && self.driver.status() & READY != 0 {
            return;
        }
        self.configure(0);
        if self.driver.status() & READY != 0 {
            return;
        }
        self.configuration = ENABLE;
        self.driver.enable();
        self.driver.io = Ring::new(IO, (submissions, completions), &self.driver.ram);
        let create = |opcode, at, size: u16| {
            Command::new(opcode, 0).with_prp(at, 0).with(10, 1 | u32::from(size - 1) << 16)
        };
        self.ask(create(admin::CREATE_COMPLETIONS, IO.1, completions).with(11, 0x1_0003));
        self.ask(create(admin::CREATE_SUBMISSIONS, IO.0, submissions).with(11, 0x1_0001));
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Configure(value) => self.configure(value),
            Step::Restart(submissions, completions) => self.restart(submissions, completions),
            Step::Admin(opcode, number, options) if opcode != admin::DOORBELLS => {
                let at = if opcode == admin::CREATE_COMPLETIONS { IO.1 } else { IO.0 };
                let at = if matches!(opcode, 0 | 1 | 4 | 5) { at } else { 0xb000 };
                self.ask(
                    Command::new(opcode, 0).with_prp(at, 0).with(10, number | 15 << 16).with(11, options),
                );
            }
            Step::Admin(..) => {}
            Step::Submit(count, opcode, block, blocks) => {
                for _ in 0..count {
                    let command = Command::new(opcode, 1).with_prp(0x5000, 0x6000).with_wide(10, block);
                    self.driver.submit(command.with(12, blocks));
                }
            }
            Step::Ring(doorbell, value) => self.ring(doorbell, value),
            Step::Take(count) => {
                for _ in 0..count {
                    if !self.take() {
                        break;
                    }
                    self.look();
                }
            }
            Step::Complete(index) => self.complete(index),
            Step::Consume(admin, count) => {
                for _ in 0..count {
                    let Self { driver, .. } = self;
                    let ring = if admin { &mut driver.admin } else { &mut driver.io };
                    if ring.seen(&driver.ram).is_none() {
                        break;
                    }
                    let head = ring.head;
                    self.ring(if admin { 1 } else { 3 }, head.into());
                }
            }
            Step::GiveUp => {
                self.driver.front.give_up(&self.driver.ram);
                self.held.clear();
            }
        }
        self.look();
    }

    fn check(&self) {
        let status = self.driver.status();
        assert_eq!(self.driver.front.is_busy(), !self.held.is_empty());
        if self.configuration & ENABLE == 0 {
            assert_eq!(status & READY != 0, !self.held.is_empty(), "ready until the disk has nothing of it");
        } else if self.held.values().any(|held| held.life != self.life) {
            assert_eq!(status & READY, READY);
        }
        if status & 0b1100 == SHUT_DOWN && self.offer.has_cache() {
            assert!(self.flushed, "a shutdown is over before the cache is flushed");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_interleaving_keeps_the_promises(steps in prop::collection::vec(step(), 1..150), cache in any::<bool>()) {
        let mut world = World::new(offer(0, DATASET | ZEROES, cache, 9));
        world.restart(16, 16);
        for step in steps {
            world.run(step);
            world.check();
        }
        // In the end all is done that is left to do.
        world.configure(0);
        for index in 0..SLOTS {
            world.complete(index);
            world.check();
        }
        prop_assert!(!world.driver.front.is_busy());
    }

    /// Noise in registers and memory, with queues at any address.
    #[test]
    fn any_accesses_stay_within(
        words in prop::collection::vec(any::<u64>(), 1..64),
        steps in prop::collection::vec((0u8..8, 0u32..0x60, 0u8..10, any::<u64>()), 1..200),
    ) {
        let mut world = Driver::with_queues(all());
        let mut held: Vec<u16> = vec![];
        for (what, offset, width, value) in steps {
            match what {
                0 => drop(world.front.read(offset, width)),
                1 => world.front.write(offset, width, value),
                2 => world.front.write(DOORBELLS + offset % 20, 4, value % 20),
                3 => world.front.write(CC, 4, value & 0xc001 | 1),
                4 => world.ram.repeat(&words),
                5 => {
                    held.pop().into_iter().for_each(|slot| world.front.complete(slot, Status::SUCCESS, &world.ram));
                }
                _ => {
                    if let Taken::Issue(command) = world.take() {
                        prop_assert!(!held.contains(&command.id()));
                        held.push(command.id());
                    }
                }
            }
        }
    }
}

#[test]
fn without_its_pages_nothing_is_passed_on() {
    let mut driver = Driver::with_queues(all());
    driver.submit(Command::new(io::READ, 1).with_prp(0x5000, 0));
    let taken = driver.front.take(&driver.ram, &mut Lists { bytes: &mut [], bus: LISTS });
    assert_eq!((taken, driver.told().map(|told| told.status)), (Taken::Answered, Some(Status::TRANSFER)));
    let front = Front::new(all());
    assert_eq!((front.is_busy(), FIRST), (false, all().slice().first()));
}
