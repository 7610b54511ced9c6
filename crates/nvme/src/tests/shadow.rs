//! Doorbells in memory, with a driver that rings as seldom as Linux does: no command is forgotten.

use super::driver::{Driver, LISTS};
use super::ram::Ram;
use super::{SECTORS, all};
use crate::command::{admin, io};
use crate::front::Taken;
use crate::{Command, Lists, Memory, Status};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::vec;
use std::vec::Vec;

/// The page of doorbells, and the page that says past which value to ring.
const VALUES: u64 = 0x6000;
const EVENTS: u64 = 0x7000;

/// Whether a driver rings: Linux's `nvme_dbbuf_need_event` (drivers/nvme/host/pci.c).
const fn has_to_ring(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A driver's half of the queues.
struct Half<'a> {
    ram: &'a Ram,
    io: super::driver::Ring,
    /// How far the controller has read, as completions tell.
    read: u16,
    /// Commands that are still to be submitted.
    left: u16,
    told: Vec<u16>,
    /// Doorbells that are in memory, and still to be compared: which one, old and new value. Of commands, and of completions.
    open: [Option<(u16, u16, u16)>; 2],
    /// Doorbells that are rung. Under its lock, a queue waits for that.
    rung: Vec<(u16, u16)>,
}

impl Half<'_> {
    /// Goes half a step: writes a doorbell to memory, or looks whether to ring it.
    fn act(&mut self, consumes: bool) -> bool {
        if let Some((doorbell, old, new)) = self.open[usize::from(consumes)].take() {
            let event = u32::from_le_bytes(self.ram.get(EVENTS + 4 * u64::from(doorbell))) as u16;
            if has_to_ring(event, new, old) {
                self.rung.push((doorbell, new));
            }
            return true;
        }
        if self.rung.iter().any(|(doorbell, _)| *doorbell == 2 + u16::from(consumes)) {
            return false;
        }
        if consumes {
            let Some(told) = self.io.seen(self.ram) else { return false };
            (self.read, _) = (told.head, self.told.push(told.id));
            self.write(3, self.io.head);
            return true;
        }
        if self.left == 0 || (self.io.tail + 1) % self.io.sizes.0 == self.read {
            return false;
        }
        self.left -= 1;
        // Half of them are refused at once: no completion of the disk's wakes anybody later.
        let block = u64::from(self.left % 2) * SECTORS;
        let command = Command::new(io::READ, 1).with_prp(0x5000, 0).with_wide(10, block).with_id(self.left);
        self.io.put(&command, self.ram);
        self.write(2, self.io.tail);
        true
    }

    fn write(&mut self, doorbell: u16, new: u16) {
        let at = VALUES + 4 * u64::from(doorbell);
        let old = u32::from_le_bytes(self.ram.get(at)) as u16;
        self.ram.put(at, &u32::from(new).to_le_bytes());
        self.open[usize::from(doorbell == 3)] = Some((doorbell, old, new));
    }
}

/// A guest's memory, whose driver goes on while the controller looks at the doorbells.
struct Racing<'a> {
    ram: &'a Ram,
    driver: &'a RefCell<Half<'a>>,
    chances: &'a [u8],
    next: Cell<usize>,
}

impl Racing<'_> {
    fn race(&self, at: u64) {
        if (VALUES..EVENTS + 0x1000).contains(&at) && !self.chances.is_empty() {
            let chance = self.chances[self.next.replace(self.next.get() + 1) % self.chances.len()];
            for _ in 0..chance / 2 {
                self.driver.borrow_mut().act(chance % 2 == 1);
            }
        }
    }
}

impl Memory for Racing<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.race(at);
        self.ram.read(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.race(at);
        self.ram.write(at, bytes)
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.read(at, &mut word).then_some(u32::from_le_bytes(word))
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.write(at, &value.to_le_bytes())
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        self.ram.bus(at, len)
    }
}

/// The hypervisor's part, which is woken by a doorbell or by the disk and by nothing else.
fn go_on(driver: &mut Driver, memory: &impl Memory, ended: &mut Vec<u16>, held: &mut Vec<u16>) {
    while !ended.is_empty() && driver.front.has_room(memory) {
        driver.front.complete(ended.remove(0), Status::SUCCESS, memory);
    }
    loop {
        match driver.front.take(memory, &mut Lists { bytes: &mut driver.lists, bus: LISTS }) {
            Taken::Nothing => break,
            Taken::Answered => {}
            Taken::Issue(command) => held.push(command.id()),
        }
    }
}

fn run(sizes: (u16, u16), commands: u16, steps: &[u8], chances: &[u8]) {
    let mut driver = Driver::new(all());
    driver.enable();
    let config = Command::new(admin::DOORBELLS, 0).with_prp(VALUES, EVENTS);
    assert_eq!(driver.administer(config).0, Status::SUCCESS);
    driver.create(sizes);
    let ram = std::mem::replace(&mut driver.ram, Ram::new());
    let (io, told, rung) = (driver.io, vec![], vec![]);
    let half = RefCell::new(Half { ram: &ram, io, read: 0, left: commands, told, open: [None; 2], rung });
    let memory = Racing { ram: &ram, driver: &half, chances, next: Cell::new(0) };
    let (mut held, mut ended) = (vec![], vec![]);
    let rings = |driver: &mut Driver, ended: &mut Vec<u16>, held: &mut Vec<u16>, memory: &Racing<'_>| {
        let mut has_rung = false;
        loop {
            let Some((doorbell, value)) = half.borrow_mut().rung.pop() else { return has_rung };
            has_rung = true;
            driver.ring(doorbell, value.into());
            go_on(driver, memory, ended, held);
        }
    };
    for step in steps {
        match step % 4 {
            0 | 1 => drop(half.borrow_mut().act(step % 4 == 1)),
            2 if !held.is_empty() => {
                ended.push(held.remove(usize::from(step / 4) % held.len()));
                go_on(&mut driver, &memory, &mut ended, &mut held);
            }
            _ => drop(rings(&mut driver, &mut ended, &mut held, &memory)),
        }
    }
    // The driver goes on until it has nothing to do; the hypervisor, only when it is woken.
    let calm = Racing { ram: &ram, driver: &half, chances: &[], next: Cell::new(0) };
    loop {
        let mut moves = (0..4).any(|_| half.borrow_mut().act(true));
        moves |= (0..4).any(|_| half.borrow_mut().act(false));
        moves |= rings(&mut driver, &mut ended, &mut held, &calm);
        if let Some(slot) = held.pop() {
            ended.push(slot);
            go_on(&mut driver, &calm, &mut ended, &mut held);
            moves = true;
        }
        if !moves {
            break;
        }
    }
    let mut told = half.borrow().told.clone();
    told.sort_unstable();
    assert_eq!(told, (0..commands).collect::<Vec<_>>(), "each command is told of once");
    assert!(!driver.front.is_busy());
}

#[test]
fn linux_rings_when_it_passes_the_value() {
    assert!(has_to_ring(0, 1, 0) && has_to_ring(63, 0, 63) && has_to_ring(5, 8, 3));
    assert!(!has_to_ring(0, 3, 2) && !has_to_ring(8, 8, 3));
}

#[test]
fn commands_are_found_without_a_ring_while_there_are_others() {
    let mut driver = Driver::with_queues(all());
    let config = Command::new(admin::DOORBELLS, 0).with_prp(VALUES, EVENTS);
    assert_eq!(driver.administer(config).0, Status::SUCCESS);
    let read = Command::new(io::READ, 1).with_prp(0x5000, 0);
    assert_eq!(driver.take(), Taken::Nothing);
    for count in 1..=3u32 {
        driver.io.put(&read, &driver.ram);
        driver.ram.put(VALUES + 8, &count.to_le_bytes());
    }
    let slots = [driver.issue().id(), driver.issue().id(), driver.issue().id()];
    assert_eq!(slots, [0, 1, 2]);
    assert_eq!(driver.take(), Taken::Nothing);
    assert_eq!(driver.ram.get::<4>(EVENTS + 8), [3, 0, 0, 0], "it rings for the next one");
    driver.ram.put(VALUES + 8, &16u32.to_le_bytes());
    assert_eq!(driver.take(), Taken::Nothing, "there is no such entry");
    driver.configure(0);
    assert!(driver.front.is_busy() && driver.front.has_room(&driver.ram));
}

#[test]
fn doorbells_that_are_not_memory_ring_by_register() {
    let mut driver = Driver::with_queues(all());
    let hole = super::ram::HOLE.start;
    let config = Command::new(admin::DOORBELLS, 0).with_prp(hole, hole + 0x1000);
    assert_eq!(driver.administer(config).0, Status::SUCCESS);
    assert_eq!(driver.take(), Taken::Nothing);
    driver.submit(Command::new(io::READ, 1).with_prp(0x5000, 0));
    let slot = driver.issue().id();
    driver.complete(slot, Status::SUCCESS);
    assert!(driver.told().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn no_command_is_forgotten(
        sizes in (2u16..10, 2u16..6),
        commands in 1u16..60,
        steps in prop::collection::vec(any::<u8>(), 0..300),
        chances in prop::collection::vec(prop_oneof![4 => Just(0u8), 3 => 2u8..10], 0..64),
    ) {
        run(sizes, commands, &steps, &chances);
    }
}
