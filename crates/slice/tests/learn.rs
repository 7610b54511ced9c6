//! What is proposed from having seen commands: beside drivers that are known, which follow a table over a program's memory.

use proptest::prelude::*;
use sluice_slice::{Copy, From, Lead, Sample, Slice, learn};
use std::collections::BTreeMap;

/// Of an ioctl with a structure of 48 bytes that goes both ways.
const NUMBER: u32 = 3 << 30 | 48 << 16 | 0x6442;

/// A program's memory, and what a driver does there.
#[derive(Default)]
struct Program {
    memory: BTreeMap<u64, Vec<u8>>,
    next: u64,
    copies: Vec<Copy>,
}

impl Program {
    fn new() -> Self {
        Self { next: 0x7f00_0000_1000, ..Self::default() }
    }

    /// Puts something somewhere, right behind what was put before.
    fn put(&mut self, bytes: Vec<u8>) -> u64 {
        let at = self.next;
        self.next += bytes.len() as u64;
        self.memory.insert(at, bytes);
        at
    }

    /// A driver reaches so much there.
    fn reach(&mut self, address: u64, bytes: u64, is_written: bool) {
        self.copies.push(Copy { address, bytes, is_written });
    }

    fn sample(mut self, structure: Vec<u8>) -> Sample {
        let argument = 0x7ffd_0000_2000;
        self.reach(argument, structure.len() as u64, false);
        self.reach(argument, structure.len() as u64, true);
        let memory = self.memory.into_iter().collect();
        Sample { number: NUMBER, argument, structure, copies: self.copies, memory, ..Sample::default() }
    }
}

/// A structure with these fields, by offset and bytes.
fn structure(bytes: usize, fields: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut structure = vec![0; bytes];
    for (at, width, value) in fields {
        structure[*at..at + width].copy_from_slice(&value.to_le_bytes()[..*width]);
    }
    structure
}

fn lead(at: i64, count: Option<(i64, u8)>, size: i64, is_written: bool) -> Lead {
    let from = From::Pointer(at);
    Lead { from, count, size, is_read: !is_written, is_written, kind: None, elements: Vec::new() }
}

/// A command as DRM_IOCTL_MODE_GETRESOURCES: as many numbers are written as there are, and not more than there is room for.
fn numbers(room: u32, there: u32) -> Sample {
    let mut program = Program::new();
    let list = program.put(vec![0; 4 * room as usize]);
    for nth in 0..room.min(there) {
        program.reach(list + u64::from(nth) * 4, 4, true);
    }
    program.sample(structure(48, &[(8, 8, list), (32, 4, room.into()), (36, 4, 7), (40, 8, 0xffff_ffff)]))
}

#[test]
fn a_count_is_what_is_never_less_than_what_was_reached() {
    let slice = learn(&[numbers(1, 9), numbers(4, 9), numbers(20, 9), numbers(0, 9)]);
    assert_eq!(slice.leads, [lead(8, Some((32, 4)), 4, true)]);
    assert_eq!(slice.reasons.len(), 0, "{:?}", slice.reasons);
    assert_eq!((slice.read, slice.written, slice.nested), (48, 48, true));
}

#[test]
fn of_what_was_seen_with_one_number_it_is_said() {
    let Slice { leads, reasons, .. } = learn(&[numbers(4, 9), numbers(4, 9)]);
    assert_eq!(leads, [lead(8, None, 16, true)]);
    let reasons: Vec<String> = reasons.into_iter().collect();
    assert_eq!(
        reasons,
        ["the pointer at 8: 16 bytes as seen 2 times, or 4 for each that the field at 32 counts"]
    );
}

#[test]
fn an_address_in_another_field_is_chance() {
    let mut samples = [numbers(2, 9), numbers(3, 9)];
    let list = samples[1].structure[8..16].to_owned();
    samples[1].structure[..8].copy_from_slice(&list);
    assert_eq!(learn(&samples).leads, [lead(8, Some((32, 4)), 4, true)]);
}

#[test]
fn of_two_fields_that_may_count_it_is_said() {
    let samples = [2, 3, 8].map(|count| {
        let mut sample = numbers(count, 9);
        sample.structure[40..44].copy_from_slice(&count.to_le_bytes());
        sample
    });
    let slice = learn(&samples);
    assert_eq!(slice.leads, [lead(8, Some((32, 4)), 4, true)]);
    assert!(slice.reasons.contains("the pointer at 8: the field at 32 counts, or that at 40"));
}

#[test]
fn a_length_that_no_field_says_is_said_to_be_a_guess() {
    let mut samples = [numbers(3, 9), numbers(5, 9)];
    for sample in &mut samples {
        sample.structure[32..].fill(0);
    }
    let slice = learn(&samples);
    assert_eq!(slice.leads, [lead(8, None, 20, true)]);
    assert!(slice.reasons.contains("the pointer at 8: 12 to 20 bytes, and no field says how many"));
}

#[test]
fn a_field_by_which_more_was_reached_once_is_no_count() {
    let samples = [(12, 3), (20, 5), (40, 4)].map(|(bytes, field)| {
        let mut program = Program::new();
        let list = program.put(vec![0; bytes]);
        program.reach(list, bytes as u64, true);
        program.sample(structure(48, &[(8, 8, list), (32, 4, field)]))
    });
    let slice = learn(&samples);
    assert_eq!(slice.leads, [lead(8, None, 40, true)]);
    assert!(slice.reasons.contains("the pointer at 8: 12 to 40 bytes, and no field says how many"));
}

#[test]
fn what_no_field_leads_to_is_said() {
    let mut sample = numbers(0, 0);
    sample.copies.push(Copy { address: 0x1234_5678, bytes: 24, is_written: false });
    sample.holds.insert("pin_user_pages_fast".to_owned());
    let Slice { leads, reasons, nested, .. } = learn(&[sample]);
    assert!(leads.is_empty() && nested);
    assert!(reasons.contains("it reads 24 bytes at an address that no field holds"));
    assert!(reasons.contains("pin_user_pages_fast holds the program's memory"));
}

#[test]
fn what_lies_behind_the_argument_follows_it() {
    let samples = [10, 20].map(|bytes| {
        let mut sample = numbers(0, 0);
        sample.copies.push(Copy { address: sample.argument + 48, bytes, is_written: true });
        sample
    });
    let slice = learn(&samples);
    let follows = Lead { from: From::Follows(48), ..lead(0, None, 20, true) };
    assert_eq!(slice.leads, [follows]);
    assert!(slice.reasons.contains("behind the argument are bytes of which no field says how many"));
}

#[test]
fn a_command_whose_number_says_no_size_has_its_argument_follow() {
    let sample = Sample {
        number: 0x5401,
        argument: 0x7000,
        copies: vec![Copy { address: 0x7000, bytes: 36, is_written: true }],
        ..Sample::default()
    };
    assert_eq!(learn(&[sample]).leads, [Lead { from: From::Follows(0), ..lead(0, None, 36, true) }]);
}

#[test]
fn a_number_for_an_argument_leads_nowhere() {
    let sample = Sample { number: 0x4004_6440, argument: 3, structure: Vec::new(), ..Sample::default() };
    assert_eq!(learn(&[sample]), Slice::default());
}

/// Commands in chunks, as RADEON_CS has them: addresses of chunks, each with a number of words and where they are.
fn chunks(words: &[u64]) -> Sample {
    let mut program = Program::new();
    let mut addresses = Vec::new();
    for count in words {
        let data = program.put(vec![0x5a; *count as usize * 4]);
        let chunk = program.put(structure(16, &[(0, 4, 1), (4, 4, *count), (8, 8, data)]));
        program.reach(chunk, 16, false);
        program.reach(data, count * 4, false);
        addresses.extend_from_slice(&chunk.to_le_bytes());
    }
    let list = program.put(addresses);
    program.reach(list, words.len() as u64 * 8, false);
    program.sample(structure(48, &[(0, 4, words.len() as u64), (8, 8, list)]))
}

#[test]
fn what_elements_lead_to_is_found_at_any_depth() {
    let slice = learn(&[chunks(&[5, 2]), chunks(&[7, 1, 9]), chunks(&[4])]);
    let data = lead(8, Some((4, 4)), 4, false);
    let chunk = Lead { elements: vec![data], ..lead(0, None, 16, false) };
    assert_eq!(slice.leads, [Lead { elements: vec![chunk], ..lead(8, Some((0, 4)), 8, false) }]);
    assert_eq!(slice.reasons.len(), 1, "how long a chunk is: {:?}", slice.reasons);
}

/// What a driver that has two arrays reaches, by how many elements there are, in pieces of some length.
fn two_arrays(counts: (u32, u32), sizes: (u64, u64), noise: u64, pieces: u64) -> Sample {
    let mut program = Program::new();
    let mut place = |count: u32, size: u64, is_written: bool| {
        let bytes = u64::from(count) * size;
        let at = program.put(vec![0xa5; bytes as usize]);
        for done in (0..bytes).step_by(pieces as usize) {
            program.reach(at + done, pieces.min(bytes - done), is_written);
        }
        at
    };
    let (first, second) = (place(counts.0, sizes.0, false), place(counts.1, sizes.1, true));
    let fields = [
        (0, 8, first),
        (8, 4, counts.0.into()),
        (16, 8, second),
        (24, 8, counts.1.into()),
        (32, 8, noise | 1 << 40),
    ];
    program.sample(structure(48, &fields))
}

proptest! {
    #[test]
    fn arrays_are_found_whatever_else_the_structure_holds(
        counts in proptest::collection::btree_set(1..200u32, 6..12),
        others in proptest::collection::vec(1..200u32, 12),
        noise in proptest::collection::vec(any::<u64>(), 12),
        sizes in (1..40u64, 1..40u64),
        pieces in 1..64u64,
    ) {
        let each = counts.iter().zip(&others).zip(&noise);
        let samples: Vec<Sample> =
            each.map(|((one, other), noise)| two_arrays((*one, *other), sizes, *noise, pieces)).collect();
        let slice = learn(&samples);
        let first = slice.leads.iter().find(|lead| lead.from == From::Pointer(0)).unwrap();
        prop_assert_eq!(first, &lead(0, Some((8, 4)), sizes.0 as i64, false));
        prop_assert_eq!(slice.leads.len(), 2);
    }

    /// What is proposed leads to all that was reached, or a reason is given.
    #[test]
    fn nothing_that_was_seen_is_forgotten(
        structures in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 48), 1..6),
        reached in proptest::collection::vec((0..6usize, 0..10usize, 0..64u64, any::<bool>()), 0..20),
    ) {
        let mut samples: Vec<Sample> =
            structures.iter().map(|bytes| Program::new().sample(bytes.clone())).collect();
        for (which, field, bytes, is_written) in reached {
            let at = which % samples.len();
            let sample = &mut samples[at];
            let address = u64::from_le_bytes(*sample.structure[field * 4..].first_chunk().unwrap());
            sample.copies.push(Copy { address, bytes, is_written });
        }
        let slice = learn(&samples);
        for sample in &samples {
            let own = sample.argument..sample.argument + 48;
            for copy in sample.copies.iter().filter(|copy| copy.bytes != 0 && !own.contains(&copy.address)) {
                let leads = slice.leads.iter().any(|lead| {
                    let From::Pointer(at) = lead.from else { return true };
                    let field = sample.structure[at as usize..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                    let way = if copy.is_written { lead.is_written } else { lead.is_read };
                    way && field.is_some_and(|address| address <= copy.address)
                });
                prop_assert!(leads || !slice.reasons.is_empty());
            }
        }
    }
}
