//! Every code, and addresses at every edge.

use super::*;
use crate::Register;
use proptest::prelude::*;

const LONG: Disk = Disk { long: true };

fn slice() -> Slice {
    Slice::new(2048, 1000, 4096).expect("fits")
}

/// A task file with `lba` and `count` in the form that `long` says.
fn file(lba: u64, count: u32, long: bool) -> TaskFile {
    let issue = Issue { code: 0, kind: Kind::NoData, lba, count, long };
    let ([low, high], device) = issue.registers();
    let mut file = TaskFile::default();
    for set in [high, low] {
        for (register, value) in
            [Register::Count, Register::Low, Register::Mid, Register::High].into_iter().zip(set)
        {
            file.write(register, value);
        }
    }
    file.select(device);
    file
}

#[test]
fn every_code_that_is_not_listed_is_aborted() {
    const ALLOWED: [u8; 18] = [
        0x20, 0x24, 0x25, 0x30, 0x34, 0x35, 0x40, 0x42, 0xc8, 0xca, 0xe0, 0xe1, 0xe2, 0xe3, 0xe5, 0xe7, 0xea,
        0xec,
    ];
    let file = file(0, 1, true);
    for code in 0..=0xff {
        let aborted = matches!(vet(code, &file, &slice(), LONG), Verdict::Abort(_));
        assert_eq!(aborted, !ALLOWED.contains(&code), "{code:#x}");
    }
}

#[test]
fn only_the_transfer_mode_is_a_feature_of_the_guests_own() {
    for feature in 0..=0xff {
        let mut file = file(0, 1, false);
        file.write(Register::Features, feature);
        let expected =
            if feature == 3 { Verdict::Local(Local::Done) } else { Verdict::Abort(Abort::Feature) };
        assert_eq!(vet(0xef, &file, &slice(), LONG), expected, "{feature:#x}");
    }
}

#[test]
fn cylinders_are_no_address() {
    let mut file = file(0, 1, false);
    file.select(0xa0);
    assert_eq!(vet(0xc8, &file, &slice(), LONG), Verdict::Abort(Abort::NotLba));
    assert_eq!(vet(0x25, &file, &slice(), LONG), Verdict::Abort(Abort::NotLba));
}

#[test]
fn there_is_no_second_device() {
    let mut file = file(0, 1, false);
    file.select(0xf0);
    for code in 0..=0xff {
        assert_eq!(vet(code, &file, &slice(), LONG), Verdict::Abort(Abort::NoDevice));
    }
}

#[test]
fn the_last_sector_is_the_guests_and_the_next_is_not() {
    let last = vet(0x35, &file(999, 1, true), &slice(), LONG);
    assert_eq!(
        last,
        Verdict::Issue(Issue { code: 0x35, kind: Kind::DmaOut, lba: 3047, count: 1, long: true })
    );
    assert_eq!(vet(0x35, &file(999, 2, true), &slice(), LONG), Verdict::Abort(Abort::OutOfSlice));
    assert_eq!(vet(0xca, &file(1000, 1, false), &slice(), LONG), Verdict::Abort(Abort::OutOfSlice));
    // A count of 0 is not none.
    assert_eq!(vet(0xca, &file(800, 0, false), &slice(), LONG), Verdict::Abort(Abort::OutOfSlice));
}

#[test]
fn a_short_command_is_lengthened_where_the_disk_needs_it() {
    let slice = Slice::new(SHORT - 1, 100, 1 << 30).expect("fits");
    let Verdict::Issue(first) = vet(0xc8, &file(0, 1, false), &slice, LONG) else { panic!("refused") };
    assert_eq!((first.code, first.lba, first.long), (0xc8, SHORT - 1, false));
    let Verdict::Issue(next) = vet(0xc8, &file(1, 1, false), &slice, LONG) else { panic!("refused") };
    assert_eq!((next.code, next.lba, next.long), (0x25, SHORT, true));
    let old = Disk { long: false };
    assert_eq!(vet(0xc8, &file(1, 1, false), &slice, old), Verdict::Abort(Abort::NotLong));
    assert_eq!(vet(0x25, &file(0, 1, true), &slice, old), Verdict::Abort(Abort::NotLong));
    assert_eq!(vet(0xea, &file(0, 1, true), &slice, old), Verdict::Abort(Abort::NotLong));
}

proptest! {
    /// What the disk reads back from the registers written for a command lies in the slice.
    #[test]
    fn whatever_is_issued_is_within_the_slice(
        code: u8, writes in prop::collection::vec((0usize..5, any::<u8>()), 0..16), device: u8,
        first in 0u64..1 << 40, sectors in 1u64..1 << 30, long: bool,
    ) {
        use Register::{Count, Features, High, Low, Mid};
        let slice = Slice::new(first, sectors, 1 << 48).expect("fits");
        let mut given = TaskFile::default();
        for (register, value) in writes {
            given.write([Features, Count, Low, Mid, High][register], value);
        }
        given.select(device);
        if let Verdict::Issue(issue) = vet(code, &given, &slice, Disk { long }) {
            prop_assert!(long || !issue.long);
            if issue.count > 0 {
                let written = file(issue.lba, issue.count, issue.long);
                let (lba, count) = if issue.long { written.long() } else { written.short() };
                prop_assert_eq!((lba, count), (issue.lba, issue.count));
                prop_assert!(lba >= first && lba + u64::from(count) <= first + sectors);
                prop_assert_eq!(transfer(issue.code), Some((issue.kind, issue.long)));
            }
        }
    }
}
