//! What a driver finds: registers and admin commands.

use super::driver::{ADMIN, ANSWER, Driver, IO};
use super::ram::HOLE;
use super::{DATASET, FIRST, SECRET, SECTORS, SERIAL, ZEROES, all, answers, offer};
use crate::command::admin;
use crate::front::Taken;
use crate::identify::{BYTES, Facts, HEALTH};
use crate::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, ENABLE, ENTRIES, FATAL, READY, VS};
use crate::{Command, DEPTH, Offer, PAGE, Status};
use sluice_disk::Slice;
use std::vec::Vec;

fn command(opcode: u8) -> Command {
    Command::new(opcode, 0).with_prp(ANSWER, 0)
}

fn identify(driver: &mut Driver, what: u32, namespace: u32) -> Result<[u8; BYTES], Status> {
    let (status, _) = driver.administer(command(admin::IDENTIFY).with(1, namespace).with(10, what));
    if status == Status::SUCCESS { Ok(driver.ram.get(ANSWER)) } else { Err(status) }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

// --- registers --------------------------------------------------------------------------------

#[test]
fn capabilities_are_what_is_offered() {
    let driver = Driver::new(all());
    let capabilities = driver.front.read(CAP, 8);
    assert_eq!(capabilities & 0xffff, u64::from(DEPTH - 1), "most entries of a queue");
    assert_eq!(capabilities >> 16 & 1, 1, "queues in one piece");
    assert_eq!(capabilities >> 32 & 0xf, 0, "doorbells of 4 bytes");
    assert_eq!(capabilities >> 37 & 0xff, 1, "the command set of disks");
    assert_eq!(capabilities >> 48, 0, "pages of 4 KiB and no other");
    assert_eq!(driver.front.read(VS, 4), 0x0001_0200);
    for at in 0..8 {
        assert_eq!(driver.front.read(CAP + at, 1), capabilities >> (8 * at) & 0xff);
    }
    assert_eq!(driver.front.read(CAP + 2, 2), capabilities >> 16 & 0xffff);
    for (offset, width) in [(0x38, 8), (0x1000, 4), (0x1ffc, 8), (u32::MAX - 3, 4)] {
        assert_eq!(driver.front.read(offset, width), 0);
    }
}

#[test]
fn registers_keep_what_is_written_in_either_width() {
    let mut driver = Driver::new(all());
    driver.front.write(ASQ, 8, 0x1234_5678_9abc_dfff);
    driver.front.write(ACQ, 4, 0x8765_4fff);
    driver.front.write(ACQ + 4, 4, 0x21);
    driver.front.write(AQA, 4, 0xffff_ffff);
    assert_eq!(driver.front.read(ASQ, 8), 0x1234_5678_9abc_d000);
    assert_eq!(driver.front.read(ACQ, 8), 0x21_8765_4000);
    assert_eq!(driver.front.read(AQA, 4), 0x0fff_0fff);
    for (offset, width) in [(ASQ, 1), (ASQ, 2), (ASQ + 2, 4), (CAP, 4), (CAP, 8), (CSTS, 4), (VS, 4)] {
        let before = [CAP, VS, ASQ, CSTS].map(|at| driver.front.read(at, 4));
        driver.front.write(offset, width, 0x5555_5555_5555_5555);
        assert_eq!(before, [CAP, VS, ASQ, CSTS].map(|at| driver.front.read(at, 4)), "{offset:#x}, {width}");
    }
    driver.front.write(u32::MAX - 3, 8, u64::MAX);
}

#[test]
fn a_controller_that_cannot_start_says_so() {
    for (sizes, choices) in [
        (0, 0),
        (0x000f, 0),
        (0x000f_0000, 0),
        (0x000f_000f, 1 << 4),
        (0x000f_000f, 1 << 7),
        (0x000f_000f, 1 << 11),
    ] {
        let mut driver = Driver::new(all());
        driver.front.write(AQA, 4, sizes);
        driver.configure(ENABLE | choices);
        assert_eq!(driver.status(), FATAL, "{sizes:#x}, {choices:#x}");
        assert_eq!(driver.take(), Taken::Nothing);
        driver.configure(0);
        assert_eq!(driver.status(), 0);
        driver.enable();
    }
}

#[test]
fn queues_of_the_admin_lie_within_addresses() {
    let (most, top) = (0x0fff_0fff_u64, 0xffff_ffff_ffff_f000_u64);
    for (submissions, completions) in [(top, ADMIN.1), (ADMIN.0, top), (ADMIN.0, top - 0xe000)] {
        let mut driver = Driver::new(all());
        driver.front.write(AQA, 4, most);
        driver.front.write(ASQ, 8, submissions);
        driver.front.write(ACQ, 8, completions);
        driver.configure(ENABLE);
        assert_eq!(driver.status(), FATAL, "{submissions:#x}, {completions:#x}");
    }
    let mut driver = Driver::new(all());
    driver.front.write(AQA, 4, most);
    driver.front.write(ASQ, 8, 0x2_0000);
    driver.front.write(ACQ, 8, top - 0x1_0000);
    driver.configure(ENABLE);
    assert_eq!(driver.status(), READY);
    for index in 0..3 * 4096 {
        driver.ram.put(0x2_0000 + index % 4096 * 64, &command(admin::ABORT).encode());
        driver.ring(0, ((index + 1) % 4096) as u32);
        driver.ring(1, (index % 4096) as u32);
        assert_eq!(driver.take(), Taken::Answered, "{index}");
    }
}

// --- admin commands ---------------------------------------------------------------------------

#[test]
fn identification_tells_what_is_offered_and_nothing_else() {
    for (commands, cache) in [(DATASET | ZEROES, true), (u16::MAX, true), (0, false), (!DATASET, true)] {
        let mut driver = Driver::with_queues(offer(0, commands, cache, 9));
        let controller = identify(&mut driver, 1, 0).expect("there is one");
        assert!(!contains(&controller, SECRET) && !contains(&controller, &SECRET[..8]));
        assert!(!contains(&controller, &[0xee; 2]), "what is not named is not told");
        assert_eq!(&controller[4..24], SERIAL);
        assert_eq!(&controller[24..41], b"A DISK OF A MODEL");
        assert_eq!(controller[77], 7);
        let offered = u16::from_le_bytes([controller[520], controller[521]]);
        assert_eq!(offered, commands & (DATASET | ZEROES));
        assert_eq!(controller[525], u8::from(cache));
        assert_eq!(controller[256..258], [0, 1], "doorbells in memory, and nothing else that is optional");
        assert_eq!(controller[512..516], [0x66, 0x44, 0, 0]);
        assert_eq!(controller[516..520], [1, 0, 0, 0], "one namespace");
        let namespace = identify(&mut driver, 0, 1).expect("there is one");
        assert!(!contains(&namespace, &[0xee; 2]));
        for at in [0, 8, 16] {
            assert_eq!(namespace[at..at + 8], SECTORS.to_le_bytes());
        }
        let told: Vec<_> = (24..BYTES).filter(|at| namespace[*at] != 0).collect();
        assert_eq!(told, [33, 130], "and what is read of blocks that nobody wrote, and their size");
    }
}

#[test]
fn identification_of_what_there_is_not_fails() {
    let mut driver = Driver::with_queues(all());
    for namespace in [0, 2, u32::MAX - 1, u32::MAX] {
        assert_eq!(identify(&mut driver, 0, namespace), Err(Status::NAMESPACE));
    }
    for what in [3, 4, 0x10, 0x11, 0x12, 0xff] {
        assert_eq!(identify(&mut driver, what, 1), Err(Status::FIELD));
    }
    for (beyond, first) in [(0, 1), (1, 0), (u32::MAX - 2, 0)] {
        let list = identify(&mut driver, 2, beyond).expect("a list, even of none");
        assert_eq!((list[0], list[1..].iter().all(|byte| *byte == 0)), (first, true));
    }
    for beyond in [u32::MAX - 1, u32::MAX] {
        assert_eq!(identify(&mut driver, 2, beyond), Err(Status::NAMESPACE));
    }
}

#[test]
fn an_answer_goes_to_memory_of_the_guests_or_nowhere() {
    let mut driver = Driver::with_queues(all());
    driver.ram.take_writes();
    for (prp, status) in [
        ((HOLE.start, 0), Status::TRANSFER),
        ((ANSWER + 4, HOLE.start), Status::TRANSFER),
        ((ANSWER + 1, 0), Status::OFFSET),
        ((ANSWER + 4, 0x9004), Status::OFFSET),
        ((u64::MAX - 0xfff, 0), Status::TRANSFER),
    ] {
        let identify = Command::new(admin::IDENTIFY, 0).with_prp(prp.0, prp.1).with(10, 1);
        assert_eq!(driver.administer(identify).0, status, "{prp:x?}");
    }
    let split = Command::new(admin::IDENTIFY, 0).with_prp(ANSWER + 0x800, 0xb000).with(10, 1);
    assert_eq!(driver.administer(split).0, Status::SUCCESS);
    assert_eq!(driver.ram.get::<20>(ANSWER + 0x804), *SERIAL);
    assert_eq!(driver.ram.get::<4>(0xb000 - 0x800 + 512), [0; 4], "the second half is in the second page");
}

#[test]
fn logs_are_of_when_the_disk_was_taken() {
    let (controller, namespace) = answers(0, 0, true, 9);
    let mut health = [0xee; HEALTH];
    health[..6].copy_from_slice(&[0, 0x36, 0x01, 100, 10, 3]);
    let facts = Facts::new(&controller, &namespace).expect("it can be shared").with_health(&health);
    let slice = Slice::new(FIRST, SECTORS, 10_000).expect("fits");
    let mut driver = Driver::with_queues(Offer::new(facts, slice, *SERIAL));
    let mut log = |page: u32, words: u32| {
        driver.ram.put(ANSWER, &[0x77; PAGE as usize]);
        let log = command(admin::LOG).with(10, page | (words - 1) << 16);
        driver.administer(log).0.is_success().then(|| driver.ram.get::<4096>(ANSWER))
    };
    let told = log(2, 128).expect("there is one");
    assert_eq!(told[..6], [0, 0x36, 0x01, 100, 10, 3]);
    assert!(told[6..512].iter().all(|byte| *byte == 0), "what others did with the disk is not told");
    assert!(told[512..].iter().all(|byte| *byte == 0x77), "no more than was asked for");
    let firmware = log(3, 128).expect("there is one");
    assert_eq!((firmware[0], &firmware[8..16]), (1, &b"1.0     "[..]));
    assert!(log(1, 1024).expect("there is one").iter().all(|byte| *byte == 0));
    assert_eq!(log(2, 1025), None, "more than a page");
    for page in [0, 4, 5, 0x80, 0xff] {
        assert_eq!(log(page, 1), None);
    }
    let endless = command(admin::LOG).with(10, 0xffff_0002).with(11, 0xffff_ffff);
    assert_eq!(driver.administer(endless).0, Status::FIELD);
}

#[test]
fn features_are_few_and_fixed() {
    let mut driver = Driver::with_queues(all());
    let mut set = |feature: u32, value| {
        driver.administer(command(admin::SET_FEATURES).with(10, feature).with(11, value))
    };
    assert_eq!(set(7, 0x0007_0007), (Status::SUCCESS, 0), "one queue of each kind");
    assert_eq!(set(0x0b, u32::MAX), (Status::SUCCESS, 0));
    assert_eq!(set(6, 1), (Status::SUCCESS, 0));
    for feature in [1, 2, 4, 5, 8, 9, 0x0a] {
        assert_eq!(set(feature, 1), (Status::NOT_CHANGEABLE, 0), "{feature:#x}");
    }
    assert_eq!(set(6, 0), (Status::NOT_CHANGEABLE, 0), "the cache is everybody's");
    for feature in [0, 3, 0x0c, 0x0d, 0x10, 0x80, 0xff] {
        assert_eq!(set(feature, 1), (Status::FIELD, 0), "{feature:#x}");
    }
    let mut get = |feature: u32| driver.administer(command(admin::GET_FEATURES).with(10, feature));
    assert_eq!((get(6), get(7), get(3)), ((Status::SUCCESS, 1), (Status::SUCCESS, 0), (Status::FIELD, 0)));
}

#[test]
fn every_other_command_of_the_admin_is_refused() {
    let mut driver = Driver::with_queues(all());
    for opcode in 0..=u8::MAX {
        if matches!(opcode, 0..=2 | 4..=6 | 8..=10 | admin::EVENT | admin::DOORBELLS) {
            continue;
        }
        assert_eq!(driver.administer(command(opcode)), (Status::OPCODE, 0), "{opcode:#x}");
    }
    for bit in [8, 9, 14, 15] {
        let fused = command(admin::ABORT);
        assert_eq!(driver.administer(fused.with(0, fused.0[0] | 1 << bit)), (Status::FIELD, 0));
    }
    assert_eq!(driver.administer(command(admin::ABORT)), (Status::SUCCESS, 1));
}

#[test]
fn requests_for_events_wait_and_are_counted() {
    let mut driver = Driver::with_queues(all());
    for _ in 0..4 {
        driver.ask(command(admin::EVENT));
        assert_eq!((driver.take(), driver.told_admin()), (Taken::Answered, None));
    }
    assert_eq!(driver.administer(command(admin::EVENT)), (Status::EVENTS, 0));
    driver.configure(0);
    driver.enable();
    driver.ask(command(admin::EVENT));
    assert_eq!((driver.take(), driver.told_admin()), (Taken::Answered, None));
}

#[test]
fn queues_are_one_pair_of_a_page_each() {
    let mut driver = Driver::new(all());
    driver.enable();
    let queue = |opcode, number: u32, size: u32, options: u32, at| {
        Command::new(opcode, 0).with_prp(at, 0).with(10, number | (size - 1) << 16).with(11, options)
    };
    let mut run = |command| driver.administer(command).0;
    for opcode in [admin::CREATE_SUBMISSIONS, admin::CREATE_COMPLETIONS] {
        for number in [0, 2, 0xffff] {
            assert_eq!(run(queue(opcode, number, 16, 0x1_0001, IO.0)), Status::QUEUE);
        }
        for size in [1, 65, 0x1_0000] {
            assert_eq!(run(queue(opcode, 1, size, 0x1_0001, IO.0)), Status::QUEUE_SIZE, "{size}");
        }
        assert_eq!(run(queue(opcode, 1, 16, 0x1_0001, IO.0 + 64)), Status::FIELD, "not a page");
        assert_eq!(run(queue(opcode, 1, 16, 0x1_0000, IO.0)), Status::FIELD, "in pieces");
    }
    let (submissions, completions) = (admin::CREATE_SUBMISSIONS, admin::CREATE_COMPLETIONS);
    assert_eq!(run(queue(submissions, 1, 16, 0x1_0001, IO.0)), Status::NO_COMPLETIONS);
    assert_eq!(run(queue(completions, 1, 16, 0x2_0003, IO.1)), Status::VECTOR);
    assert_eq!(run(queue(completions, 1, 64, 0x1_0003, IO.1)), Status::SUCCESS);
    assert_eq!(run(queue(completions, 1, 64, 0x1_0003, IO.1)), Status::QUEUE, "there is one already");
    assert_eq!(run(queue(submissions, 1, 64, 0x2_0001, IO.0)), Status::NO_COMPLETIONS);
    assert_eq!(run(queue(submissions, 1, 64, 0x1_0001, IO.0)), Status::SUCCESS);
    assert_eq!(run(queue(submissions, 1, 64, 0x1_0001, IO.0)), Status::QUEUE);
    let delete = |opcode, number| Command::new(opcode, 0).with(10, number);
    assert_eq!(run(delete(admin::DELETE_COMPLETIONS, 1)), Status::DELETION);
    assert_eq!(run(delete(admin::DELETE_SUBMISSIONS, 2)), Status::QUEUE);
    assert_eq!(run(delete(admin::DELETE_SUBMISSIONS, 1)), Status::SUCCESS);
    assert_eq!(run(delete(admin::DELETE_SUBMISSIONS, 1)), Status::QUEUE);
    assert_eq!(run(delete(admin::DELETE_COMPLETIONS, 0)), Status::QUEUE);
    assert_eq!(run(delete(admin::DELETE_COMPLETIONS, 1)), Status::SUCCESS);
    assert_eq!(run(delete(admin::DELETE_COMPLETIONS, 1)), Status::QUEUE);
}

#[test]
fn doorbells_in_memory_are_pages() {
    let mut driver = Driver::with_queues(all());
    let mut run = |one, two| driver.administer(Command::new(admin::DOORBELLS, 0).with_prp(one, two)).0;
    assert_eq!((run(0x6000, 0x7004), run(0x6008, 0x7000)), (Status::FIELD, Status::FIELD));
    assert_eq!(run(0x6000, 0x7000), Status::SUCCESS);
}

#[test]
fn disks_that_cannot_be_shared_are_known() {
    let facts = |change: fn(&mut [u8; BYTES])| {
        let (controller, mut namespace) = answers(0, 0, true, 9);
        change(&mut namespace);
        Facts::new(&controller, &namespace)
    };
    assert!(facts(|_| ()).is_some());
    assert_eq!(facts(|namespace| namespace[..8].fill(0)), None, "no blocks");
    assert_eq!(facts(|namespace| namespace[128] = 8), None, "metadata");
    assert_eq!(facts(|namespace| namespace[130] = 8), None, "blocks of 256 bytes");
    assert_eq!(facts(|namespace| namespace[130] = 13), None, "blocks of two pages");
    assert_eq!(facts(|namespace| namespace[26] = 15), None, "another format");
    let other = facts(|namespace| {
        namespace[26] = 0xf2;
        namespace[136..140].copy_from_slice(&[0, 0, 12, 0]);
    });
    assert!(other.is_some_and(|facts| facts.blocks() == 10_000));
    assert_eq!(
        (offer(1, 0, true, 9).most_bytes(), offer(0, 0, true, 9).most_bytes()),
        (2 * PAGE, 128 * PAGE)
    );
    assert_eq!((CC, ENTRIES), (0x14, 0x0046_0000));
}
