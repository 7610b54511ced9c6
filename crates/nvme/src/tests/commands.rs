//! Commands for the namespace, and how they end: deletion of the queue, reset, shutdown, loss.

use super::driver::{ADMIN, Driver, IO, LISTS, Ring, SIZE, Told};
use super::ram::{BUS, HOLE, Ram};
use super::{FIRST, SECTORS, all, offer};
use crate::command::{admin, io};
use crate::front::Taken;
use crate::queue::Completions;
use crate::register::{ASQ, ENABLE, READY, SHUT_DOWN, SHUTTING_DOWN};
use crate::{Command, DEPTH, Memory, PAGE, SLOTS, Status};
use std::cell::{Cell, RefCell};
use std::vec;
use std::vec::Vec;

/// Configuration: a shutdown is announced.
const ANNOUNCE: u32 = 1 << 14;

fn read(block: u64) -> Command {
    Command::new(io::READ, 1).with_prp(0x5000, 0).with_wide(10, block)
}

fn abort() -> Command {
    Command::new(admin::ABORT, 0)
}

#[test]
fn a_command_goes_to_the_disk_and_comes_back_by_its_own_number() {
    let mut driver = Driver::with_queues(all());
    driver.front.take_signals();
    let ids = [0, 1, 2].map(|block| driver.submit(read(block)));
    let slots = [0, 1, 2].map(|block| {
        let issue = driver.issue();
        assert_eq!((issue.wide(10), issue.prp()), (FIRST + block, (BUS + 0x5000, 0)));
        issue.id()
    });
    assert_eq!(driver.take(), Taken::Nothing);
    assert_eq!((driver.told(), driver.front.take_signals()), (None, 0));
    for index in [2, 0, 1] {
        driver.complete(slots[index], Status(0x281));
        assert_eq!(driver.front.take_signals(), 0b10);
        let wanted = Told { id: ids[index], status: Status(0x281), result: 0, queue: 1, head: 3 };
        assert_eq!(driver.told(), Some(wanted));
    }
    assert!(!driver.front.is_busy());
    driver.front.complete(slots[0], Status::SUCCESS, &driver.ram);
    driver.front.complete(SLOTS as u16, Status::SUCCESS, &driver.ram);
    driver.front.complete(u16::MAX, Status::SUCCESS, &driver.ram);
    assert_eq!(driver.told(), None, "what nobody asked for is nobody's");
    let counters = driver.front.counters();
    assert_eq!((counters.commands, counters.refused, counters.read, counters.written), (5, 0, 3, 0));
}

#[test]
fn a_refused_command_is_answered_at_once_and_the_next_one_goes_on() {
    let mut driver = Driver::with_queues(all());
    let (bad, good) = (driver.submit(read(SECTORS)), driver.submit(read(0)));
    assert_eq!(driver.take(), Taken::Answered);
    let told = driver.told().expect("it was answered");
    assert_eq!((told.id, told.status, told.head), (bad, Status::RANGE, 1));
    let slot = driver.issue().id();
    driver.complete(slot, Status::SUCCESS);
    assert_eq!(driver.told().map(|told| (told.id, told.status)), Some((good, Status::SUCCESS)));
    assert_eq!(driver.front.counters().refused, 1);
}

#[test]
fn each_command_under_way_has_a_slot_and_a_list_of_its_own() {
    let mut driver = Driver::new(all());
    driver.enable();
    driver.create((DEPTH, DEPTH));
    let mut lists = vec![];
    for index in 0..SLOTS as u64 {
        driver.ram.put_list(0x9000, [0x1_0000 + index * PAGE, 0x1_0000]);
        driver.submit(read(0).with_prp(0x5000, 0x9000).with(12, 23));
        let issue = driver.issue();
        assert_eq!((u64::from(issue.id()), issue.prp().1), (index, LISTS + index * PAGE));
        lists.push(issue.prp().1);
    }
    for (index, list) in lists.into_iter().enumerate() {
        let at = (list - LISTS) as usize;
        let entry = u64::from_le_bytes(*driver.lists[at..].first_chunk().expect("inside"));
        assert_eq!(entry, BUS + 0x1_0000 + index as u64 * PAGE, "it stays as it was vetted");
    }
    driver.submit(read(1));
    assert_eq!(driver.take(), Taken::Nothing, "the disk has as many as it can have");
    driver.complete(17, Status::SUCCESS);
    assert_eq!(driver.issue().id(), 17);
}

#[test]
fn nothing_is_taken_while_there_is_no_room_to_answer() {
    let mut driver = Driver::new(all());
    driver.enable();
    driver.create((SIZE, 2));
    let ids = [0, 1, SECTORS].map(|block| driver.submit(read(block)));
    let slots = [driver.issue().id(), driver.issue().id()];
    driver.complete(slots[0], Status::SUCCESS);
    assert!(!driver.front.has_room(&driver.ram));
    assert_eq!(driver.take(), Taken::Nothing, "a refusal would have no room");
    assert_eq!(driver.told().map(|told| told.id), Some(ids[0]));
    assert_eq!(driver.take(), Taken::Answered);
    assert!(!driver.front.has_room(&driver.ram));
    assert_eq!(driver.told().map(|told| (told.id, told.status)), Some((ids[2], Status::RANGE)));
    driver.complete(slots[1], Status::SUCCESS);
    assert_eq!(driver.told().map(|told| told.id), Some(ids[1]));
}

#[test]
fn the_admin_is_answered_only_where_there_is_room() {
    let mut driver = Driver::new(all());
    driver.enable();
    for _ in 0..SIZE - 1 {
        driver.ask(abort());
        assert_eq!(driver.take(), Taken::Answered);
    }
    driver.ask(abort());
    assert_eq!(driver.take(), Taken::Nothing);
    assert!(driver.told_admin().is_some());
    assert_eq!(driver.take(), Taken::Answered);
}

#[test]
fn doorbells_have_only_values_of_their_queues() {
    let mut driver = Driver::with_queues(all());
    let refused = driver.front.counters().refused;
    for (doorbell, value) in [(0, 16), (1, 16), (2, 16), (3, u32::MAX), (4, 0), (0x3ff, 1), (2, 0x1_0001)] {
        driver.ring(doorbell, value);
    }
    assert_eq!(driver.front.counters().refused - refused, 7);
    assert_eq!(driver.take(), Taken::Nothing);
    driver.configure(0);
    driver.ring(2, 1);
    assert_eq!(driver.front.counters().refused - refused, 8, "there is no such queue any more");
}

#[test]
fn a_queue_that_is_not_the_guests_memory_holds_nothing() {
    let mut driver = Driver::new(all());
    driver.enable();
    let create =
        |opcode, at, options| Command::new(opcode, 0).with_prp(at, 0).with(10, 0xf_0001).with(11, options);
    driver.administer(create(admin::CREATE_COMPLETIONS, IO.1, 3));
    driver.administer(create(admin::CREATE_SUBMISSIONS, HOLE.start, 0x1_0001));
    driver.ring(2, 5);
    assert_eq!(driver.take(), Taken::Nothing);
    driver.configure(0);
    driver.front.write(ASQ, 8, HOLE.start);
    driver.configure(ENABLE);
    driver.ring(0, 5);
    assert_eq!(driver.take(), Taken::Nothing);
}

#[test]
fn a_queue_is_deleted_when_none_of_its_commands_is_under_way() {
    let mut driver = Driver::with_queues(all());
    let ids = [0, 1, 2].map(|block| driver.submit(read(block)));
    let slots = [driver.issue().id(), driver.issue().id()];
    let delete = driver.ask(Command::new(admin::DELETE_SUBMISSIONS, 0).with(10, 1));
    for (slot, id) in slots.into_iter().zip(ids) {
        assert_eq!(
            (driver.take(), driver.told_admin()),
            (Taken::Nothing, None),
            "the third one stays where it is"
        );
        driver.complete(slot, Status::SUCCESS);
        assert_eq!(driver.told().map(|told| told.id), Some(id));
    }
    assert_eq!(driver.take(), Taken::Answered);
    assert_eq!(driver.told_admin().map(|told| (told.id, told.status)), Some((delete, Status::SUCCESS)));
    assert_eq!(driver.take(), Taken::Nothing);
    assert_eq!(driver.administer(Command::new(admin::DELETE_COMPLETIONS, 0).with(10, 1)).0, Status::SUCCESS);
    driver.create((SIZE, SIZE));
    driver.submit(read(0));
    assert_eq!(driver.issue().id(), 0);
}

/// Memory of a guest that changes a command whenever it was read.
struct Fickle<'a>(&'a Ram, Cell<bool>);

impl Memory for Fickle<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let is_read = self.0.read(at, into);
        if let Some(opcode) = into.first_mut().filter(|_| at & !0xfff == ADMIN.0) {
            *opcode = if self.1.replace(!self.1.get()) { admin::DELETE_SUBMISSIONS } else { admin::ABORT };
        }
        is_read
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.0.write(at, bytes)
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        self.0.read_word(at)
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.0.write_word(at, value)
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        self.0.bus(at, len)
    }
}

#[test]
fn a_command_that_changes_while_it_is_looked_at_deletes_no_queue_either() {
    for first in [false, true] {
        let mut driver = Driver::with_queues(all());
        driver.submit(read(0));
        driver.issue();
        driver.ask(abort().with(10, 1));
        let memory = Fickle(&driver.ram, Cell::new(first));
        let lists = &mut crate::Lists { bytes: &mut driver.lists, bus: LISTS };
        for _ in 0..3 {
            driver.front.take(&memory, lists);
        }
        let told = driver.told_admin();
        assert!(first || told.is_some());
        // An Abort, which tells that it was too late, and nothing else.
        assert!(told.is_none_or(|told| (told.status, told.result) == (Status::SUCCESS, 1)));
        assert!(driver.front.is_busy());
    }
}

#[test]
fn a_reset_is_over_when_the_disk_has_nothing_of_the_guests() {
    let mut driver = Driver::with_queues(all());
    driver.submit(read(0));
    driver.submit(read(1));
    let slots = [driver.issue().id(), driver.issue().id()];
    driver.front.take_signals();
    driver.configure(0);
    driver.ram.take_writes();
    for slot in slots {
        assert_eq!((driver.status(), driver.take()), (READY, Taken::Nothing));
        driver.complete(slot, Status::SUCCESS);
    }
    assert_eq!(driver.status(), 0);
    assert_eq!((driver.ram.take_writes(), driver.front.take_signals()), (vec![], 0), "nobody is told");
    driver.enable();
    driver.create((SIZE, SIZE));
    driver.submit(read(0));
    driver.issue();
}

#[test]
fn a_driver_that_does_not_wait_for_its_reset_gets_a_controller_when_it_is_over() {
    let mut driver = Driver::with_queues(all());
    driver.submit(read(0));
    let slot = driver.issue().id();
    driver.configure(0);
    driver.configure(ENABLE);
    driver.ring(0, 1);
    assert_eq!(driver.take(), Taken::Nothing, "it does not run yet");
    driver.configure(0);
    driver.configure(ENABLE);
    driver.ram.take_writes();
    driver.complete(slot, Status::SUCCESS);
    assert_eq!((driver.status(), driver.ram.take_writes()), (READY, vec![]));
    driver.admin = Ring::new(ADMIN, (SIZE, SIZE), &driver.ram);
    assert_eq!(driver.administer(abort()).0, Status::SUCCESS);
}

#[test]
fn a_shutdown_is_over_when_the_cache_is_flushed() {
    let mut driver = Driver::with_queues(all());
    driver.configure(ENABLE | ANNOUNCE);
    assert_eq!(driver.status(), READY | SHUTTING_DOWN);
    let flush = driver.issue();
    assert_eq!(flush, Command::new(io::FLUSH, 1).with_id(flush.id()));
    assert_eq!((driver.take(), driver.status()), (Taken::Nothing, READY | SHUTTING_DOWN));
    driver.ram.take_writes();
    driver.complete(flush.id(), Status::SUCCESS);
    assert_eq!((driver.status(), driver.ram.take_writes()), (READY | SHUT_DOWN, vec![]));
    driver.configure(ANNOUNCE);
    assert_eq!(driver.status(), 0);
    driver.enable();
}

#[test]
fn a_shutdown_without_a_cache_is_over_at_once_and_one_that_is_reset_for_good() {
    let mut driver = Driver::with_queues(offer(0, 0, false, 9));
    driver.configure(ENABLE | ANNOUNCE << 1);
    assert_eq!((driver.status(), driver.take()), (READY | SHUT_DOWN, Taken::Nothing));
    let mut driver = Driver::with_queues(all());
    driver.configure(ENABLE | ANNOUNCE);
    let slot = driver.issue().id();
    driver.configure(0);
    assert_eq!(driver.status() & READY, READY);
    driver.complete(slot, Status::SUCCESS);
    assert_eq!(driver.status(), 0);
    driver.configure(ANNOUNCE);
    assert_eq!((driver.status(), driver.take()), (0, Taken::Nothing), "it is off");
}

#[test]
fn what_the_disk_has_lost_can_be_repeated() {
    let mut driver = Driver::with_queues(all());
    let ids = [driver.submit(read(0)), driver.submit(read(1))];
    driver.issue();
    driver.issue();
    driver.configure(ENABLE | ANNOUNCE);
    driver.issue();
    driver.front.give_up(&driver.ram);
    assert!(!driver.front.is_busy());
    for id in ids {
        let told = driver.told().expect("it is told");
        assert_eq!((told.id, told.status), (id, Status::ABORTED));
        assert_eq!(told.status.0 & 1 << 14, 0, "it can be repeated");
    }
    assert_eq!(driver.status(), READY | SHUTTING_DOWN);
    assert_eq!(driver.issue().opcode(), io::FLUSH, "the shutdown has its flush after all");
    driver.configure(0);
    driver.front.give_up(&driver.ram);
    assert_eq!(driver.status(), 0);
}

#[test]
fn of_what_the_disk_has_lost_no_more_is_told_than_there_is_room_for() {
    let mut driver = Driver::new(all());
    driver.enable();
    driver.create((SIZE, 3));
    let ids = [0, 1, 2, 3].map(|block| driver.submit(read(block)));
    (0..4).for_each(|_| assert!(matches!(driver.take(), Taken::Issue(_))));
    driver.front.give_up(&driver.ram);
    assert!(!driver.front.is_busy());
    assert_eq!(
        [driver.told(), driver.told()].map(|told| told.map(|told| told.id)),
        [Some(ids[0]), Some(ids[1])]
    );
    assert_eq!(driver.told(), None);
}

/// Memory that a driver reads while it is written: notes what was written at once.
struct Watched<'a>(&'a Ram, RefCell<Vec<(u64, u32)>>);

impl Memory for Watched<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.0.read(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.0.write(at, bytes)
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        self.0.read_word(at)
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.1.borrow_mut().push((at, value));
        self.0.write_word(at, value)
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        self.0.bus(at, len)
    }
}

#[test]
fn a_driver_finds_a_phase_tag_and_what_became_of_the_command_at_once() {
    let ram = Ram::new();
    let watched = Watched(&ram, RefCell::default());
    let mut queue = Completions::new(0x3000, 2, None);
    queue.put(9, Status::RANGE, 0, (1, 0), &watched);
    let last = 9 | 1 << 16 | u32::from(Status::RANGE.0) << 17;
    assert_eq!(watched.1.into_inner(), [(0x300c, last)]);
}
