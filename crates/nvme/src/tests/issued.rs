//! What a physical disk makes of a command that it is given, and what any command of a guest's comes to.

use super::ram::{BUS, END, HOLE, Ram};
use super::{DATASET, FIRST, SECTORS, ZEROES, offer};
use crate::command::io;
use crate::{Command, List, Memory, Offer, PAGE, vet};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Where the physical disk finds the list.
pub const LIST: u64 = 0x7_0000_0000;

/// What a command has the physical disk do: blocks (first, how many), and pieces of memory (address, bytes).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub blocks: Vec<(u64, u64)>,
    pub data: Vec<(u64, u64)>,
}

/// A word that the physical disk reads: of the list, or of the guest's memory, where a list should never be.
fn fetch(at: u64, list: &[u8], ram: &Ram) -> u64 {
    if let Some(at) = at.checked_sub(LIST).filter(|at| *at < PAGE) {
        return u64::from_le_bytes(
            *list[at as usize..].first_chunk().expect("an entry lies within the list"),
        );
    }
    let mut word = [0; 8];
    assert!(at >= BUS && ram.read(at - BUS, &mut word), "a list at {at:#x}");
    u64::from_le_bytes(word)
}

/// What the physical disk does, by the specification and nothing else.
pub fn carry_out(command: &Command, shift: u8, list: &[u8], ram: &Ram) -> Effect {
    assert!(!command.is_fused_or_listed() && command.namespace() == 1);
    assert_eq!((command.0[2], command.0[3], command.wide(4)), (0, 0, 0), "nothing is reserved or metadata");
    assert_eq!((command.0[14], command.0[15]), (0, 0), "there are no tags");
    let blocks = u64::from(command.0[12] & 0xffff) + 1;
    let (first, second) = command.prp();
    let mut effect = Effect::default();
    match command.opcode() {
        io::FLUSH => {
            assert_eq!(*command, Command::new(io::FLUSH, 1).with_id(command.id()));
        }
        io::ZEROES => {
            assert_eq!(command.0[12] & 0x3dff_0000, 0, "no protection");
            effect.blocks.push((command.wide(10), blocks));
        }
        io::READ | io::WRITE => {
            assert_eq!(command.0[12] & 0x3fff_0000, 0, "no protection, no directives");
            effect.blocks.push((command.wide(10), blocks));
            effect.data = walk(first, second, blocks << shift, list, ram);
        }
        io::DATASET => {
            assert_eq!(command.0[11] & !4, 0);
            for index in 0..u64::from(command.0[10] & 0xff) + 1 {
                let head = fetch(first + 16 * index, list, ram);
                let lba = fetch(first + 16 * index + 8, list, ram);
                assert_eq!(head as u32, 0, "attributes of a range");
                effect.blocks.push((lba, head >> 32));
            }
        }
        other => panic!("a command of opcode {other:#x}"),
    }
    effect
}

fn walk(first: u64, second: u64, bytes: u64, list: &[u8], ram: &Ram) -> Vec<(u64, u64)> {
    assert_eq!(first % 4, 0);
    let here = bytes.min(PAGE - first % PAGE);
    let (mut data, mut left) = (vec![(first, here)], bytes - here);
    if left > 0 && left <= PAGE {
        data.push((second, left));
        left = 0;
    }
    let mut at = second;
    while left > 0 {
        let mut entry = fetch(at, list, ram);
        if at % PAGE == PAGE - 8 && left > PAGE {
            at = entry;
            entry = fetch(at, list, ram);
        }
        let here = left.min(PAGE);
        data.push((entry, here));
        (left, at) = (left - here, at + 8);
    }
    assert!(data[1..].iter().all(|(at, _)| at % PAGE == 0), "{data:x?}");
    data
}

/// The promise: blocks in the slice, data in the guest's memory, and no more of them than is offered.
pub fn check(effect: &Effect, offer: &Offer) {
    let slice = offer.slice();
    for (first, count) in &effect.blocks {
        let end = first.checked_add(*count).expect("a range ends");
        assert!(slice.first() <= *first && end <= slice.first() + slice.sectors(), "{first} + {count}");
    }
    assert!(effect.data.iter().all(|(at, len)| Ram::has_bus(*at, *len)), "{:x?}", effect.data);
    assert!(effect.data.iter().map(|(_, len)| len).sum::<u64>() <= offer.most_bytes());
}

/// Addresses as a driver has them, and some that it should not have.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        16 => (0..END / PAGE).prop_map(|page| page * PAGE),
        4 => (0..END / 4).prop_map(|word| word * 4),
        4 => (1..=END / PAGE, 1u64..5).prop_map(|(page, entries)| page * PAGE - 8 * entries),
        1 => HOLE,
        1 => any::<u64>(),
    ]
}

/// What memory is full of: nearly all can be an entry of a list.
fn words() -> impl Strategy<Value = Vec<u64>> {
    let good = (0..HOLE.start / PAGE).prop_map(|page| page * PAGE);
    let entry = prop_oneof![200 => good, 1 => address(), 1 => any::<u64>()];
    let range = (0..SECTORS + 8, 0u64..16, any::<u32>());
    let ranges = prop::collection::vec(range, 1..64);
    prop_oneof![
        4 => prop::collection::vec(entry, 1..700),
        2 => ranges.prop_map(|ranges| {
            ranges.into_iter().flat_map(|(lba, count, hints)| [u64::from(hints) | count << 32, lba]).collect()
        }),
        1 => prop::collection::vec(any::<u64>(), 1..64),
    ]
}

/// Commands that are nearly right.
fn command() -> impl Strategy<Value = Command> {
    let opcode = prop_oneof![8 => 0u8..3, 4 => 8u8..10, 1 => any::<u8>()];
    let flags = prop_oneof![12 => Just(0u8), 1 => any::<u8>()];
    let namespace = prop_oneof![12 => Just(1u32), 1 => Just(u32::MAX), 1 => any::<u32>()];
    let lba = prop_oneof![8 => 0..SECTORS, 4 => SECTORS - 20..SECTORS + 20, 1 => any::<u64>()];
    let count = prop_oneof![4 => 0u32..40, 2 => 0u32..1100, 1 => any::<u16>().prop_map(u32::from)];
    let options = prop_oneof![8 => Just(0u32), 1 => any::<u32>().prop_map(|word| word & 0xffff_0000)];
    let rest = any::<[u32; 16]>();
    (opcode, flags, namespace, address(), address(), lba, count, options, rest).prop_map(
        |(opcode, flags, namespace, first, second, lba, count, options, rest)| {
            let words = Command(rest).with(1, namespace).with_prp(first, second);
            let words = match opcode {
                io::DATASET => words.with(10, count),
                _ => words.with_wide(10, lba).with(12, count | options),
            };
            words.with(0, u32::from(opcode) | u32::from(flags) << 8 | rest[0] & 0xffff_0000)
        },
    )
}

fn is_kept(command: &Command, words: &[u64], offer: &Offer) {
    let ram = Ram::new();
    ram.repeat(words);
    let mut page = [0xdd; PAGE as usize];
    let verdict = vet(command, offer, &ram, &mut List { bytes: &mut page, bus: LIST });
    assert_eq!(ram.take_writes(), [], "nothing is written");
    let Ok(issue) = verdict else { return };
    assert_eq!(issue.opcode(), command.opcode());
    let effect = carry_out(&issue, offer.block_shift(), &page, &ram);
    check(&effect, offer);
    for byte in [0xff, 0] {
        ram.fill(byte);
        assert_eq!(carry_out(&issue, offer.block_shift(), &page, &ram), effect, "the guest has changed it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever a driver asks for, and whatever its memory says then and later.
    #[test]
    fn what_is_issued_stays_within(
        command in command(), words in words(), most in 0u8..9, shift in 9u8..13, optional in any::<bool>(),
    ) {
        let commands = if optional { DATASET | ZEROES } else { 0 };
        is_kept(&command, &words, &offer(most, commands, true, shift));
    }

    /// Noise.
    #[test]
    fn of_any_bytes_only_what_is_within_is_issued(raw in any::<[u32; 16]>(), words in words()) {
        is_kept(&Command(raw), &words, &offer(0, u16::MAX, true, 9));
    }

    /// Entries are the bytes that they were made of.
    #[test]
    fn an_entry_is_its_bytes(raw in any::<[u32; 16]>()) {
        let command = Command(raw);
        prop_assert_eq!(Command::decode(&command.encode()), command);
        prop_assert_eq!(command.encode()[..4].to_vec(), raw[0].to_le_bytes().to_vec());
    }
}

#[test]
fn most_nearly_right_commands_are_issued() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (offer, ram) = (offer(0, DATASET | ZEROES, true, 9), Ram::new());
    let mut issued = [0; 256];
    for _ in 0..3000 {
        let (command, words) =
            (command(), words()).new_tree(&mut runner).expect("there is no filter").current();
        ram.repeat(&words);
        let mut page = [0; PAGE as usize];
        let verdict = vet(&command, &offer, &ram, &mut List { bytes: &mut page, bus: LIST });
        issued[usize::from(command.opcode())] += u32::from(verdict.is_ok());
    }
    for opcode in [io::FLUSH, io::WRITE, io::READ, io::ZEROES, io::DATASET] {
        assert!(issued[usize::from(opcode)] > 30, "the tests above see few of {opcode:#x}");
    }
    assert_eq!(FIRST, offer.slice().first());
}
