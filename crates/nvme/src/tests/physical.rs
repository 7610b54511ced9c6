//! The hypervisor drives a physical disk.

use super::disk::{BUS, Disk, Kind, Region};
use super::{BLOCKS, SECRET, SERIAL};
use crate::command::{admin, io};
use crate::engine::{Engine, Failure};
use crate::identify::Facts;
use crate::{Command, DEPTH, Offer, PAGE, SLOTS, Shared, Status};
use proptest::prelude::*;
use sluice_disk::Slice;
use std::format;
use std::rc::Rc;
use std::vec::Vec;

/// Guests.
const GUESTS: usize = 3;
type Physical = Engine<Rc<Disk>, GUESTS>;

struct World {
    disk: Rc<Disk>,
    memory: Region,
    engine: Physical,
}

impl World {
    fn new(kind: Kind) -> Self {
        let memory = Region::new(Physical::MEMORY);
        let disk = Disk::new(kind, memory.clone());
        Self { engine: Engine::new(disk.clone()), disk, memory }
    }

    /// One that is on.
    fn on() -> (Self, Facts) {
        let mut world = Self::new(Kind::default());
        let facts = world.start().expect("it is a good disk");
        (world, facts)
    }

    fn start(&mut self) -> Result<Facts, Failure> {
        self.engine.start(&mut self.memory)
    }

    fn open(&mut self, guest: usize) -> Result<(), Failure> {
        self.engine.open(guest, guest as u16 + 1, &mut self.memory)
    }

    fn close(&mut self, guest: usize) -> Result<(), Failure> {
        self.engine.close(guest, &mut self.memory)
    }

    fn submit(&mut self, guest: usize, slot: u16) {
        let command = Command::new(io::READ, 1).with_id(slot).with(12, slot.into());
        assert!(self.engine.submit(guest, &command, &mut self.memory));
        self.engine.ring_for(guest);
    }

    fn take(&mut self, guest: usize) -> Option<(u16, Status)> {
        let taken = self.engine.take(guest, &self.memory);
        if taken.is_some() {
            self.engine.acknowledge(guest);
        }
        taken
    }
}

fn offer(facts: Facts) -> Offer {
    Offer::new(facts, Slice::new(0, 100, BLOCKS).expect("fits"), *SERIAL)
}

#[test]
fn a_disk_is_started_and_says_what_it_is() {
    let (world, facts) = World::on();
    assert!(world.engine.is_alive() && world.disk.is_on());
    assert_eq!(facts.blocks(), BLOCKS);
    let offer = offer(facts.clone());
    assert_eq!((offer.block_shift(), offer.most_bytes(), offer.has_cache()), (9, PAGE << 5, true));
    let mut page = [0; PAGE as usize];
    offer.health(&mut page);
    assert_eq!(page[..8], [0, 0x2c, 0x01, 99, 10, 1, 0, 0]);
    let secrets = [&b"ANOTHER"[..], SECRET].map(|secret| format!("{secret:?}").replace(['[', ']'], ""));
    assert!(
        secrets.iter().all(|secret| !format!("{facts:?}").contains(secret)),
        "the serial number is not kept"
    );
}

#[test]
fn a_disk_that_moves_less_is_asked_for_less() {
    for (most, pages) in [(0, 128), (1, 2), (2, 4), (7, 128), (8, 128), (255, 128)] {
        let facts = World::new(Kind { most, ..Kind::default() }).start().expect("it is a good disk");
        assert_eq!(offer(facts).most_bytes(), pages * PAGE, "{most}");
    }
}

#[test]
fn disks_of_other_kinds_are_refused_and_off() {
    let good = Kind::default();
    let capabilities =
        |clear: u64, set: u64| Kind { capabilities: good.capabilities & !clear | set, ..good.clone() };
    for (kind, failure) in [
        (capabilities(0xffff, u64::from(DEPTH) - 2), Failure::Kind),
        (capabilities(0, 1 << 48), Failure::Kind),
        (capabilities(0, 1 << 32), Failure::Kind),
        (capabilities(1 << 37, 0), Failure::Kind),
        (Kind { metadata: true, ..good.clone() }, Failure::Namespace),
        (Kind { shift: 13, ..good.clone() }, Failure::Namespace),
        (Kind { shift: 8, ..good.clone() }, Failure::Namespace),
        (Kind { queues: GUESTS as u16 - 1, ..good.clone() }, Failure::Queues),
        (Kind { refuses: Some(admin::IDENTIFY), ..good.clone() }, Failure::Refused(Status::OPCODE)),
        (Kind { refuses: Some(admin::LOG), ..good.clone() }, Failure::Refused(Status::OPCODE)),
        (Kind { refuses: Some(admin::SET_FEATURES), ..good.clone() }, Failure::Refused(Status::OPCODE)),
    ] {
        let mut world = World::new(kind);
        assert_eq!(world.start(), Err(failure));
        assert!(!world.disk.is_on() && !world.engine.is_alive());
    }
    for kind in [capabilities(0xffff, u64::from(DEPTH) - 1), Kind { queues: GUESTS as u16, ..good.clone() }] {
        assert!(World::new(kind).start().is_ok());
    }
}

#[test]
fn a_silent_disk_is_waited_for_as_long_as_it_says() {
    let mut world = World::new(Kind { sleeps: true, ..Kind::default() });
    assert_eq!(world.start(), Err(Failure::Silent));
    assert_eq!(world.disk.waited.get(), 2_500_000);
    for opcode in [admin::IDENTIFY, admin::LOG, admin::SET_FEATURES] {
        let mut world = World::new(Kind { ignores: Some(opcode), ..Kind::default() });
        assert_eq!(world.start(), Err(Failure::Silent));
        assert_eq!((world.disk.waited.get(), world.disk.is_on()), (5_000_000, false));
    }
    let (mut world, _) = World::on();
    world.disk.kind.borrow_mut().stays = true;
    assert!(!world.engine.stop());
    assert_eq!(world.start(), Err(Failure::Silent));
}

#[test]
fn a_disk_that_is_gone_is_not_waited_for() {
    let (mut world, _) = World::on();
    world.disk.kind.borrow_mut().gone = true;
    assert!(!world.engine.is_alive() && !world.engine.stop());
    assert_eq!(world.start(), Err(Failure::Kind));
    assert_eq!(world.disk.waited.get(), 0);
}

#[test]
fn a_disk_that_has_failed_is_not_alive() {
    let (mut world, _) = World::on();
    world.disk.fail();
    assert!(!world.engine.is_alive());
    assert!(world.start().is_ok() && world.engine.is_alive(), "until it is started anew");
}

#[test]
fn answers_to_what_was_given_up_are_passed_over() {
    let mut world = World::new(Kind { chats: true, ..Kind::default() });
    assert!(world.start().is_ok());
    for _ in 0..40 {
        assert_eq!((world.open(1), world.close(1)), (Ok(()), Ok(())), "the admin's queue goes round");
    }
}

#[test]
fn each_guest_has_queues_and_lists_of_its_own() {
    let (mut world, _) = World::on();
    for guest in 0..GUESTS {
        assert_eq!(world.open(guest), Ok(()));
        assert_eq!(world.disk.vector(guest as u16 + 1), guest as u16 + 1);
    }
    assert_eq!(world.disk.queues(), ([0, 1, 2, 3].to_vec(), [0, 1, 2, 3].to_vec()));
    let mut places: Vec<_> = (0..GUESTS).map(Physical::lists).collect();
    places.push((Physical::MEMORY, 0));
    for pair in places.windows(2) {
        assert_eq!(pair[0].1, (SLOTS + 1) * PAGE as usize);
        assert!(pair[0].0 % PAGE as usize == 0 && pair[0].0 + pair[0].1 <= pair[1].0);
    }
    for guest in 0..GUESTS {
        world.submit(guest, 7 + guest as u16);
    }
    for guest in (0..GUESTS).rev() {
        let (queue, slot) = (guest as u16 + 1, 7 + guest as u16);
        assert_eq!(world.disk.held(queue).iter().map(Command::id).collect::<Vec<_>>(), [slot]);
        world.disk.end(queue, slot, Status(0x281));
        assert_eq!(world.take((guest + 1) % GUESTS), None);
        assert_eq!((world.take(guest), world.take(guest)), (Some((slot, Status(0x281))), None));
    }
    // Queues do not lie on lists.
    for guest in 0..GUESTS {
        let (at, len) = Physical::lists(guest);
        let mut bytes = std::vec![0; len];
        world.memory.get(BUS + at as u64, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0xcc));
    }
}

#[test]
fn what_was_queued_is_told_by_one_ring() {
    let (mut world, _) = World::on();
    world.open(0).expect("it has queues");
    for slot in 0..SLOTS as u16 {
        let command = Command::new(io::WRITE, 1).with_id(slot);
        assert!(world.engine.submit(0, &command, &mut world.memory));
        assert_eq!(world.disk.held(1), []);
    }
    world.engine.ring_for(0);
    assert_eq!(world.disk.held(1).len(), SLOTS, "a full queue is one that all slots fit");
}

#[test]
fn who_has_no_queues_has_no_commands() {
    let (mut world, _) = World::on();
    for guest in [0, GUESTS, usize::MAX] {
        assert!(!world.engine.submit(guest, &Command::new(io::READ, 1), &mut world.memory));
        world.engine.ring_for(guest);
        world.engine.acknowledge(guest);
        assert_eq!((world.take(guest), world.close(guest)), (None, Ok(())));
    }
    world.disk.kind.borrow_mut().refuses = Some(admin::CREATE_SUBMISSIONS);
    assert_eq!(world.open(0), Err(Failure::Refused(Status::OPCODE)));
    assert!(!world.engine.submit(0, &Command::new(io::READ, 1), &mut world.memory));
    assert_eq!(world.disk.queues(), ([0].to_vec(), [0].to_vec()), "what was made of them is deleted");
}

#[test]
fn a_guest_that_takes_no_completions_is_told_from_a_disk_that_makes_none() {
    let (mut world, _) = World::on();
    world.open(0).expect("it has queues");
    let ended = |world: &World, guest| world.engine.has_ended(guest, &world.memory);
    world.submit(0, 1);
    world.submit(0, 2);
    assert!(!ended(&world, 0));
    world.disk.end(1, 2, Status::SUCCESS);
    assert!(ended(&world, 0) && !ended(&world, 1));
    assert_eq!(world.take(0), Some((2, Status::SUCCESS)));
    assert!(!ended(&world, 0), "the other one is the disk's");
}

#[test]
fn a_guest_that_leaves_has_nothing_at_the_disk_and_the_next_one_nothing_of_its() {
    let (mut world, _) = World::on();
    for guest in 0..2 {
        world.open(guest).expect("it has queues");
    }
    world.submit(0, 3);
    world.submit(0, 4);
    world.submit(1, 3);
    world.disk.end(1, 3, Status::SUCCESS);
    assert_eq!(world.close(0), Ok(()));
    assert_eq!((world.disk.held(1), world.disk.held(2).len()), ([].to_vec(), 1));
    assert_eq!(world.disk.queues(), ([0, 2].to_vec(), [0, 2].to_vec()));
    assert_eq!(world.take(0), None);
    world.open(0).expect("it has queues");
    assert_eq!(world.take(0), None, "no completion of before");
    world.submit(0, 9);
    world.disk.end(1, 9, Status::SUCCESS);
    assert_eq!(world.take(0), Some((9, Status::SUCCESS)));
}

#[test]
fn a_disk_that_keeps_a_queue_says_so_and_is_started_anew() {
    for opcode in [admin::DELETE_SUBMISSIONS, admin::DELETE_COMPLETIONS] {
        let (mut world, _) = World::on();
        world.open(0).expect("it has queues");
        world.disk.kind.borrow_mut().ignores = Some(opcode);
        assert_eq!(world.close(0), Err(Failure::Silent));
        assert!(!world.engine.submit(0, &Command::new(io::READ, 1), &mut world.memory));
        assert!(world.start().is_ok());
        assert_eq!(world.disk.queues(), ([0].to_vec(), [0].to_vec()));
        world.open(0).expect("it has queues");
    }
}

#[test]
fn a_disk_that_is_started_anew_has_no_queues_of_guests() {
    let (mut world, _) = World::on();
    world.open(0).expect("it has queues");
    world.submit(0, 1);
    assert!(world.start().is_ok());
    assert_eq!((world.disk.held(1), world.take(0)), ([].to_vec(), None));
    assert!(!world.engine.submit(0, &Command::new(io::READ, 1), &mut world.memory));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Commands end in any order, and queues go round many times.
    #[test]
    fn each_command_comes_back_once(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..600)) {
        let (mut world, _) = World::on();
        world.open(2).expect("it has queues");
        let (mut free, mut held): (Vec<u16>, Vec<u16>) = ((0..SLOTS as u16).collect(), Vec::new());
        for (submits, index) in steps {
            if submits && let Some(slot) = free.pop() {
                world.submit(2, slot);
                held.push(slot);
            } else if !held.is_empty() {
                let slot = held.swap_remove(index.index(held.len()));
                let status = Status(slot + 1);
                world.disk.end(3, slot, status);
                prop_assert_eq!(world.take(2), Some((slot, status)));
                free.insert(0, slot);
            }
            prop_assert_eq!(world.take(2), None);
        }
        prop_assert_eq!(world.disk.held(3).len(), held.len());
    }
}

/// Memory that a disk writes while it is read: what is copied is of two moments, what is read at once is not.
struct Torn(Region);

impl Shared for Torn {
    fn bus(&self) -> u64 {
        self.0.bus()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
        if let Some(first) = into.first_mut() {
            *first ^= 0xff;
        }
    }

    fn read_word(&self, offset: usize) -> u32 {
        self.0.read_word(offset)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}

#[test]
fn the_number_of_a_completion_is_of_the_moment_of_its_phase_tag() {
    let (mut world, _) = World::on();
    world.open(0).expect("it has queues");
    world.submit(0, 7);
    world.disk.end(1, 7, Status::FIELD);
    let torn = Torn(world.memory.clone());
    assert_eq!(world.engine.take(0, &torn), Some((7, Status::FIELD)));
}
