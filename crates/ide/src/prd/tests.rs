//! Tables at every edge, and random ones.

extern crate std;

use super::*;
use proptest::prelude::*;
use sluice_memory::Hpa;
use std::{cell::RefCell, vec, vec::Vec};

/// Host memory from 0 to 1 MiB. What lies behind reads as nothing.
struct Ram(RefCell<Vec<u8>>);

impl PhysicalMemory for Ram {
    fn read(&self, at: Hpa, buffer: &mut [u8]) {
        let from = at.as_u64() as usize;
        buffer.copy_from_slice(&self.0.borrow()[from..from + buffer.len()]);
    }
    fn write(&self, at: Hpa, bytes: &[u8]) {
        let from = at.as_u64() as usize;
        self.0.borrow_mut()[from..from + bytes.len()].copy_from_slice(bytes);
    }
    fn fill(&self, _: Hpa, _: u64, _: u8) {}
    fn read_u64(&self, _: Hpa) -> u64 {
        0
    }
    fn write_u64(&self, _: Hpa, _: u64) {}
}

/// A guest's 508 KiB at 0, its two parts apart in host memory, and 64 KiB at 2 MiB that lie above 4 GiB.
fn machine() -> (GuestMemory, Ram) {
    let mut guest = GuestMemory::new();
    guest.add(Gpa::new(0), Hpa::new(0x1_1000), 0x4_0000).expect("free");
    guest.add(Gpa::new(0x4_0000), Hpa::new(0x8_1000), 0x3_f000).expect("free");
    guest.add(Gpa::new(0x20_0000), Hpa::new(1 << 32), 0x1_0000).expect("free");
    (guest, Ram(RefCell::new(vec![0; 1 << 20])))
}

fn run(entries: &[(u32, u32)], at: u64, bytes: u64, room: usize) -> Result<Vec<Region>, Refusal> {
    let (guest, ram) = machine();
    for (index, (base, len)) in entries.iter().enumerate() {
        let place = Gpa::new(at + 8 * index as u64);
        guest.write(&ram, place, &(u64::from(*base) | u64::from(*len) << 32).to_le_bytes()).expect("there");
    }
    let mut shadow = vec![Region::default(); room];
    translate(&guest, &ram, Gpa::new(at), bytes, &mut shadow).map(<[_]>::to_vec)
}

const LAST: u32 = 1 << 31;

#[test]
fn regions_are_split_where_host_memory_is() {
    let got = run(&[(0xf000, 0x1000), (0x4_0000, LAST | 0x1000)], 0x1000, 0x1800, 8).expect("fine");
    let region = |base, len, last| Region { base, len, last };
    assert_eq!(got, [region(0x2_0000, 0x1000, false), region(0x8_1000, 0x800, true)]);
    // 64 KiB of the guest's cross a boundary of the host's.
    let got = run(&[(0, LAST)], 0x1000, 0x1_0000, 8).expect("fine");
    assert_eq!(got, [region(0x1_1000, 0xf000, false), region(0x2_0000, 0x1000, true)]);
    assert_eq!(region(0x2_0000, 0x1_0000, true).to_bytes(), [0, 0, 2, 0, 0, 0, 0, 0x80]);
}

#[test]
fn regions_of_others_are_refused() {
    assert_eq!(run(&[(0x8_0000, LAST | 0x200)], 0, 0x200, 8), Err(Refusal::Outside));
    assert_eq!(run(&[(0x7_ee00, LAST | 0x200)], 0, 0x200, 8).map(|table| table.len()), Ok(1));
    assert_eq!(run(&[(0x7_ee00, LAST | 0x400)], 0, 0x200, 8), Err(Refusal::Outside), "the rest counts too");
    assert_eq!(run(&[(0x20_0000, LAST | 0x200)], 0, 0x200, 8), Err(Refusal::High));
    assert_eq!(run(&[(0xffff_fffe, LAST | 2)], 0, 0x200, 8), Err(Refusal::Outside));
}

#[test]
fn a_table_is_not_shorter_than_its_command() {
    assert_eq!(run(&[(0, 0x200), (0x1000, LAST | 0x1fe)], 0x2000, 0x400, 8), Err(Refusal::Short));
    assert_eq!(run(&[(0, 0x200), (0x1000, LAST | 0x200)], 0x2000, 0x400, 8).map(|table| table.len()), Ok(2));
}

#[test]
fn odd_and_crossing_regions_are_refused() {
    assert_eq!(run(&[(1, LAST | 0x200)], 0x2000, 0x200, 8), Err(Refusal::Odd));
    assert_eq!(run(&[(0, LAST | 0x201)], 0x2000, 0x200, 8), Err(Refusal::Odd));
    assert_eq!(run(&[(0xff00, LAST | 0x200)], 0x2000, 0x200, 8), Err(Refusal::Crosses));
}

#[test]
fn a_table_ends_at_its_boundary_and_with_its_room() {
    let (guest, ram) = machine();
    let mut shadow = [Region::default(); 4];
    let mut at = |table| translate(&guest, &ram, Gpa::new(table), 0x200, &mut shadow).map(<[_]>::len);
    assert_eq!(at(2), Err(Refusal::Table));
    assert_eq!(at(0xfffc), Err(Refusal::Table));
    assert_eq!(at(0x8_0000), Err(Refusal::TableOutside));
    assert_eq!(at(u64::MAX - 3), Err(Refusal::Table));
    assert_eq!(run(&[(0, 2), (0, 2), (0, LAST | 2)], 0x2000, 6, 2), Err(Refusal::Long));
    // At the end of its 64 KiB, without a last entry.
    assert_eq!(run(&[(0, 2)], 0xfff8, 4, 8), Err(Refusal::Table));
}

#[test]
fn what_is_written_after_vetting_changes_nothing() {
    let (guest, ram) = machine();
    let entry = (u64::from(LAST | 0x200) << 32 | 0x3000).to_le_bytes();
    guest.write(&ram, Gpa::new(0), &entry).expect("there");
    let mut shadow = [Region::default(); 4];
    let table = translate(&guest, &ram, Gpa::new(0), 0x200, &mut shadow).expect("fine");
    let before = table.to_vec();
    guest.write(&ram, Gpa::new(0), &[0xff; 8]).expect("there");
    assert_eq!(table, before);
}

proptest! {
    #[test]
    fn whatever_is_translated_is_the_guests(
        entries in prop::collection::vec((0u32..0x9_0000, 0u32..0x1_0000), 1..20), sectors in 1u64..64,
    ) {
        // Mostly even, so that many pass.
        let mut entries: Vec<_> = entries.iter().map(|&(base, len)| (base & !1, len & !1)).collect();
        entries.last_mut().expect("one").1 |= LAST;
        if let Ok(table) = run(&entries, 0x3000, sectors * 512, 64) {
            let (end, others) = table.split_last().expect("one");
            prop_assert!(end.last && others.iter().all(|region| !region.last));
            prop_assert_eq!(table.iter().map(|region| u64::from(region.len)).sum::<u64>(), sectors * 512);
            for Region { base, len, .. } in table {
                let (base, end) = (u64::from(base), u64::from(base) + u64::from(len));
                prop_assert!(base % BOUNDARY + u64::from(len) <= BOUNDARY && len > 0 && len % 2 == 0);
                let within = |from: u64, to: u64| from <= base && end <= to;
                prop_assert!(within(0x1_1000, 0x5_1000) || within(0x8_1000, 0xc_0000));
            }
        }
    }
}
