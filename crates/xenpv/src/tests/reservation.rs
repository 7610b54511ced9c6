//! Frames that a guest gives back and gets again, and what it tries with those that it does not have.

use super::{SELF, ask, ask_in_pieces, in_hole, poke, spare};
use crate::abi::{self, Error, INVALID_PFN, call};
use crate::memory::{leaf, word};
use crate::model::{self, BASE, FIRST, FRAMES, Machinery};
use crate::reservation::MAX_EXTENTS;
use crate::{Guest, Registers};
use alloc::vec::Vec;
use sluice_pagetypes::{Entry, Mfn};

const DECREASE: u64 = 1;
const CURRENT: u64 = 3;
const MAXIMUM: u64 = 4;
const POPULATE: u64 = 6;
/// Pages for arguments, and for lists: those after it, too.
const ARGUMENTS: u64 = 700;
const LISTS: u64 = 710;
/// The first of many pages that are not mapped.
const UNMAPPED: u64 = 1200;

struct World {
    guest: Guest,
    machine: Machinery,
    registers: Registers,
}

impl World {
    fn new() -> Self {
        let (guest, machine, registers) = model::owner();
        Self { guest, machine, registers }
    }

    fn ask(&mut self, number: u64, arguments: [u64; 4]) -> u64 {
        let answer = ask(&mut self.guest, &mut self.machine, &mut self.registers, number, arguments);
        model::check(&self.guest, &self.machine);
        answer
    }

    /// Writes a list and what says where it is; returns where that is.
    fn say(&mut self, words: &[u64], extents: u64, order_and_bits: u64, domain: u64) -> u64 {
        let (arguments, list) = (spare(ARGUMENTS).1, spare(LISTS).1);
        poke(&self.guest, &mut self.machine, list, words);
        poke(&self.guest, &mut self.machine, arguments, &[list, extents, order_and_bits, domain]);
        arguments
    }

    fn reserve(&mut self, operation: u64, words: &[u64]) -> u64 {
        let at = self.say(words, words.len() as u64, 0, SELF);
        self.ask(call::MEMORY_OP, [operation, at, 0, 0])
    }

    fn list(&self, count: u64) -> Vec<u64> {
        let at = |place: u64| spare(LISTS).1 + place * 8;
        (0..count).map(|place| self.guest.words::<1>(&self.machine, at(place)).unwrap()[0]).collect()
    }

    /// The page number that the guest reads of a frame.
    fn page_of(&self, frame: Mfn) -> u64 {
        let address = abi::M2P + frame.0 * 8;
        let entry = in_hole(&self.guest, &self.machine, address);
        word(&self.machine, entry.frame(), (address % 4096) as usize)
    }

    fn map(&mut self, page: u64, frame: Mfn, flags: Entry) -> u64 {
        let entry = Entry::new(frame, Entry::PRESENT | flags).bits();
        self.ask(call::UPDATE_VA_MAPPING, [spare(page).1, entry, 2, 0])
    }

    fn refused(&self) -> u64 {
        self.guest.counters.refused
    }
}

#[test]
fn what_is_given_back_is_nobodys_until_it_is_had_again() {
    let mut world = World::new();
    let pages = [800, 801, UNMAPPED];
    let frames = pages.map(|page| FIRST + page);
    let all = world.ask(call::MEMORY_OP, [MAXIMUM, 0, 0, 0]);
    for page in [800, 801] {
        poke(&world.guest, &mut world.machine, spare(page).1, &[page]);
        assert_eq!(world.ask(call::UPDATE_VA_MAPPING, [spare(page).1, 0, 2, 0]), 0);
    }
    let (hides, shows) = (world.machine.hides, world.machine.shows);
    assert_eq!(world.reserve(DECREASE, &frames), 3);
    assert_eq!((world.machine.hides - hides, world.guest.counters.given_back), (1, 3), "at one stroke");
    assert_eq!(world.ask(call::MEMORY_OP, [CURRENT, 0, 0, 0]), all - 3);
    assert_eq!(world.ask(call::MEMORY_OP, [MAXIMUM, 0, 0, 0]), all);
    for frame in frames.map(Mfn) {
        assert_eq!(world.page_of(frame), INVALID_PFN);
        assert!(!world.machine.shown.contains(&frame));
    }
    let before = world.refused();
    nothing_is_made_of(&mut world, Mfn(FIRST + 801));
    assert!(world.refused() - before >= 17);

    // In any order of pages; a fourth there is not.
    assert_eq!(world.reserve(POPULATE, &[801, 800, UNMAPPED, 900]), 3);
    assert_eq!(world.list(4), [frames[0], frames[1], frames[2], 900]);
    assert_eq!(world.machine.shows - shows, 1);
    assert_eq!((world.guest.counters.given_back, world.reserve(POPULATE, &[900])), (0, 0));
    for (frame, page) in frames.into_iter().zip([801, 800, UNMAPPED]) {
        assert_eq!((world.page_of(Mfn(frame)), word(&world.machine, Mfn(frame), 0)), (page, 0));
        assert!(world.machine.shown.contains(&Mfn(frame)));
    }
    assert_eq!(world.map(800, Mfn(frames[0]), Entry::WRITE), 0);
    assert_eq!(world.ask(call::MEMORY_OP, [CURRENT, 0, 0, 0]), all);
}

/// Everything by which a guest names a frame.
fn nothing_is_made_of(world: &mut World, frame: Mfn) {
    let invalid = Error::Invalid.code();
    for flags in [Entry::empty(), Entry::WRITE] {
        assert_eq!(world.map(801, frame, flags), invalid);
        let at = leaf(&world.machine, world.guest.cpu.root, spare(801).1).unwrap();
        let entry = Entry::new(frame, Entry::PRESENT | flags).bits();
        assert_eq!(update(world, at.table.0 << 12 | (at.index as u64) << 3, entry), invalid);
    }
    // Four pins, both roots.
    for cmd in [0, 1, 2, 3, 5, 15] {
        let at = world.say(&[], 0, 0, SELF);
        poke(&world.guest, &mut world.machine, at, &[cmd, frame.0, 0]);
        assert_eq!(world.ask(call::MMUEXT_OP, [at, 1, 0, SELF]), invalid, "{cmd}");
    }
    assert_eq!(update(world, frame.0 << 12, 7), invalid, "a word of it");
    assert_eq!(update(world, frame.0 << 12 | 1, 801), invalid, "its page number");
    assert_eq!(world.page_of(frame), INVALID_PFN);
    assert_eq!(world.ask(call::UPDATE_DESCRIPTOR, [frame.0 << 12, 0, 0, 0]), invalid);
    let list = world.say(&[frame.0], 0, 0, SELF);
    assert_eq!(world.ask(call::SET_GDT, [spare(LISTS).1, 512, 0, 0]), invalid);
    for what in [0, 1] {
        assert_eq!(world.ask(call::SEMI_WRITABLE, [spare(LISTS).1, 1, what, 0]), invalid);
    }
    // VCPUOP_register_vcpu_info.
    poke(&world.guest, &mut world.machine, list, &[frame.0, 0]);
    assert_eq!(world.ask(call::VCPU_OP, [10, 0, list, 0]), invalid);
    let one = [spare(LISTS).1, 1, 0, SELF];
    poke(&world.guest, &mut world.machine, list, &[&one[..], &one, &[0]].concat());
    assert_eq!(world.ask(call::MEMORY_OP, [11, list, 0, 0]), invalid, "an exchange");
    assert_eq!(world.reserve(DECREASE, &[frame.0]), 0);
}

fn update(world: &mut World, at: u64, value: u64) -> u64 {
    let request = world.say(&[], 0, 0, SELF);
    poke(&world.guest, &mut world.machine, request, &[at, value]);
    world.ask(call::MMU_UPDATE, [request, 1, 0, SELF])
}

#[test]
fn only_memory_of_its_own_is_taken_and_only_once() {
    let mut world = World::new();
    let (table, descriptors, moved, semi) = (FIRST + 720, FIRST + 721, FIRST + 722, FIRST + 723);
    for page in [720, 721] {
        assert_eq!(world.map(page, spare(page).0, Entry::empty()), 0);
    }
    let at = world.say(&[descriptors], 0, 0, SELF);
    assert_eq!(world.ask(call::SET_GDT, [spare(LISTS).1, 512, 0, 0]), 0);
    poke(&world.guest, &mut world.machine, at, &[0, table, 0]);
    assert_eq!(world.ask(call::MMUEXT_OP, [at, 1, 0, SELF]), 0);
    poke(&world.guest, &mut world.machine, at, &[moved, 0]);
    assert_eq!(world.ask(call::VCPU_OP, [10, 0, at, 0]), 0);
    poke(&world.guest, &mut world.machine, at, &[semi]);
    assert_eq!(world.ask(call::SEMI_WRITABLE, [at, 1, 1, 0]), 0);
    let layout = &world.guest.layout;
    let shared_info = layout.shared_info.0;
    let hidden = shared_info + 1..FIRST + FRAMES;
    let others = [table, descriptors, moved, semi, shared_info, world.guest.cpu.root.0];
    let foreign = [0, FIRST - 1, FIRST + FRAMES, model::REGISTERS.start, u64::MAX >> 12, u64::MAX];
    for (count, frame) in others.into_iter().chain(hidden).chain(foreign).enumerate() {
        let before = world.refused();
        let own = FIRST + UNMAPPED + count as u64;
        // What is before it goes; what is after it does not.
        assert_eq!(world.reserve(DECREASE, &[own, frame, FIRST + 2000]), 1, "{frame:#x}");
        assert_eq!((world.refused() - before, world.guest.types.given_back()), (1, count as u64 + 1));
    }
    let (before, gone) = (world.refused(), world.guest.types.given_back());
    assert_eq!(world.reserve(DECREASE, &[FIRST + 2000, FIRST + 2001, FIRST + 2000]), 2);
    assert_eq!((world.refused() - before, world.guest.types.given_back()), (1, gone + 2));
}

#[test]
fn a_page_that_is_mapped_goes_and_its_mapping_becomes_no_other() {
    let mut world = World::new();
    let (frame, address) = spare(730);
    assert_eq!(world.reserve(DECREASE, &[frame.0]), 1);
    assert!(!world.machine.shown.contains(&frame));
    for flags in [Entry::empty(), Entry::WRITE] {
        assert_eq!(world.map(731, frame, flags), Error::Invalid.code());
    }
    assert_eq!(world.map(730, frame, Entry::empty()), Error::Invalid.code(), "it was writable");
    assert!(leaf(&world.machine, world.guest.cpu.root, address).unwrap().entry.is_writable());
    assert_eq!(world.ask(call::UPDATE_VA_MAPPING, [address, 0, 2, 0]), 0);
    assert_eq!(world.guest.types.counts(frame).map(|counts| counts.references), Some(0));
    assert_eq!(world.reserve(POPULATE, &[730]), 1);
    assert_eq!(world.map(730, frame, Entry::WRITE), 0);
}

#[test]
fn long_lists_are_gone_through_in_turns() {
    const MANY: u64 = 2 * MAX_EXTENTS + 70;
    let mut world = World::new();
    let frames: Vec<u64> = (0..MANY).map(|at| FIRST + UNMAPPED + at).collect();
    for (operation, given) in [(DECREASE, MANY), (POPULATE, 0)] {
        let at = world.say(&frames, MANY, 0, SELF);
        let World { guest, machine, registers } = &mut world;
        let asked = ask_in_pieces(guest, machine, registers, call::MEMORY_OP, [operation, at, 0, 0]);
        assert_eq!(asked, (MANY, 3));
        model::check(guest, machine);
        assert_eq!(guest.types.given_back(), given);
    }
    assert_eq!(world.list(MANY), frames, "the lowest come first");

    // In a batch, whose entry says how far it is.
    let at = world.say(&frames, MANY, 0, SELF);
    let batch = at + 256;
    poke(&world.guest, &mut world.machine, batch, &[call::MEMORY_OP, 0, DECREASE, at, 0, 0, 0, 0]);
    let World { guest, machine, registers } = &mut world;
    assert_eq!(ask_in_pieces(guest, machine, registers, call::MULTICALL, [batch, 1, 0, 0]), (0, 3));
    assert_eq!(guest.words::<1>(machine, batch + 8).unwrap(), [MANY]);
    // From the middle on, as a guest may say, too.
    poke(guest, machine, at, &[spare(LISTS).1, 8, 0, SELF]);
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE | 6 << 6, at, 0, 0]), 8);
    assert_eq!(world.guest.types.given_back(), MANY - 2);
    assert_eq!(world.list(8)[5..], [FIRST + UNMAPPED + 5, FIRST + UNMAPPED, FIRST + UNMAPPED + 1]);
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE | 9 << 6, at, 0, 0]), Error::Invalid.code());
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE | u64::MAX << 6, at, 0, 0]), Error::Invalid.code());
}

#[test]
fn what_cannot_be_had_is_not_and_nothing_is_lost() {
    let mut world = World::new();
    assert_eq!(world.reserve(DECREASE, &[FIRST + UNMAPPED]), 1);
    let mut say = |list: &[u64], order_and_bits: u64, domain: u64| {
        let at = world.say(list, list.len() as u64, order_and_bits, domain);
        let answer = world.ask(call::MEMORY_OP, [POPULATE, at, 0, 0]);
        (answer, world.guest.types.given_back())
    };
    assert_eq!(say(&[800], 0, 0), (Error::NotPermitted.code(), 1), "another domain's");
    for order in [1, 9, 63, 64, u64::from(u32::MAX)] {
        assert_eq!(say(&[800], order, SELF), (Error::Invalid.code(), 1));
    }
    // Its frames are below 30 bits of addresses, and not below 29.
    for bits in [1, 12, 20, 29] {
        assert_eq!(say(&[800], bits << 32, SELF), (0, 1));
    }
    assert_eq!(say(&[800], 30 << 32, SELF), (1, 0));

    // A list that it can only read, of which a part is not there, that is too long.
    assert_eq!(world.reserve(DECREASE, &[FIRST + UNMAPPED]), 1);
    let at = world.say(&[800, 801], 2, 0, SELF);
    assert_eq!(world.map(LISTS, spare(LISTS).0, Entry::empty()), 0);
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE, at, 0, 0]), 0);
    assert_eq!(world.map(LISTS, spare(LISTS).0, Entry::WRITE), 0);
    let end = spare(LISTS + 1).1;
    assert_eq!(world.ask(call::UPDATE_VA_MAPPING, [end, 0, 2, 0]), 0);
    poke(&world.guest, &mut world.machine, at, &[end, 1, 0, SELF]);
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE, at, 0, 0]), 0);
    assert_eq!(world.guest.types.given_back(), 1);
    poke(&world.guest, &mut world.machine, end - 8, &[800]);
    poke(&world.guest, &mut world.machine, at, &[end - 8, 2, 0, SELF]);
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE, at, 0, 0]), 1);
    for count in [4097, u64::MAX] {
        let at = world.say(&[], count, 0, SELF);
        for operation in [DECREASE, POPULATE] {
            let answer = world.ask(call::MEMORY_OP, [operation, at, 0, 0]);
            assert_eq!(answer, Error::TooBig.code());
        }
    }
    assert_eq!(world.ask(call::MEMORY_OP, [POPULATE, BASE - 4096, 0, 0]), Error::Fault.code());
}

#[test]
fn the_page_of_the_consoles_ring_goes_only_where_there_is_no_ring() {
    // EVTCHNOP_send, to the port that is there from the start.
    const SEND: u64 = 4;
    for (has_device, (guest, machine, registers)) in [(false, model::guest()), (true, model::owner())] {
        let mut world = World { guest, machine, registers };
        let console = world.guest.layout.console;
        assert_eq!(world.reserve(DECREASE, &[console.0]), u64::from(has_device));
        if !has_device {
            continue;
        }
        // It is Linux's to use: as zeros again, and then with what would be a ring that is not empty.
        assert_eq!(world.reserve(POPULATE, &[900]), 1);
        world.machine.set_word(console, 3080 / 8, 5 << 32);
        let before = world.machine.memory.clone();
        let at = world.say(&[], 0, 0, SELF);
        for port in 1..4 {
            poke(&world.guest, &mut world.machine, at, &[port]);
            let World { guest, machine, registers } = &mut world;
            ask(guest, machine, registers, call::EVENT_CHANNEL_OP, [SEND, at, 0, 0]);
        }
        let page = (console.0 - FIRST) as usize * 4096;
        assert_eq!(world.machine.memory[page..page + 4096], before[page..page + 4096]);
        assert!(world.machine.output.is_empty());
    }
}
