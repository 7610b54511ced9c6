//! Local descriptor tables.

use super::{SELF, ask, poke, spare};
use crate::abi::{Error, GDT, call};
use crate::guest::gpr;
use crate::model::{self, Machinery};
use crate::{Guest, Registers};
use sluice_pagetypes::{Entry, Kind};

/// MMUEXT_SET_LDT.
const SET_LDT: u64 = 13;
/// A page that the tests use as a table, and one for arguments.
const TABLE: u64 = 720;
const ARGUMENTS: u64 = 700;
/// Data of a program's, as Linux writes it.
const DATA: u64 = 0x00cf_f200_0000_ffff;

fn set(
    guest: &mut Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    address: u64,
    entries: u64,
) -> u64 {
    let (_, page) = spare(ARGUMENTS);
    poke(guest, machine, page, &[SET_LDT, address, entries]);
    let answer = ask(guest, machine, registers, call::MMUEXT_OP, [page, 1, 0, SELF]);
    model::check(guest, machine);
    answer
}

/// Maps the table's page, writable or not.
fn show(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers, rights: Entry) -> u64 {
    let (frame, address) = spare(TABLE);
    let entry = Entry::new(frame, Entry::PRESENT | rights).bits();
    ask(guest, machine, registers, call::UPDATE_VA_MAPPING, [address, entry, 2, 0])
}

#[test]
fn a_local_table_is_in_pages_that_nobody_can_write_as_long_as_it_is_one() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (frame, address) = spare(TABLE);
    poke(&guest, &mut machine, address, &[0, DATA, 0, DATA]);
    let refused = Error::Invalid.code();
    assert_eq!(set(&mut guest, &mut machine, &mut registers, address, 3), refused, "it can be written");
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::empty()), 0);
    assert_eq!(set(&mut guest, &mut machine, &mut registers, address, 3), 0);
    assert_eq!(guest.types.counts(frame).map(|counts| counts.kind), Some(Kind::Descriptors));
    assert_eq!(guest.take_ldt(), Some((guest.cpu.area().ldt(), 23)));
    assert_eq!(guest.take_ldt(), None, "it was told");
    // By their selectors: those that are there, at privilege level 3, and no others.
    let found = [0xfu16, 0x7, 0x1f, 0x17 | 1 << 12].map(|selector| guest.descriptor(&machine, selector));
    assert_eq!(found, [Some(DATA | 1 << 40), None, None, None]);
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::WRITE), refused);
    // Another one, and none.
    let changes = guest.descriptor_changes();
    assert_eq!(set(&mut guest, &mut machine, &mut registers, address, 4), 0);
    assert_ne!(guest.descriptor_changes(), changes);
    assert!(guest.descriptor(&machine, 0x1f).is_some());
    assert_eq!(set(&mut guest, &mut machine, &mut registers, 0, 0), 0);
    assert_eq!(guest.take_ldt(), Some((guest.cpu.area().ldt(), 0)));
    assert_eq!(guest.descriptor(&machine, 0xf), None);
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::WRITE), 0);
}

#[test]
fn nothing_else_is_a_local_table() {
    let (mut guest, mut machine, mut registers) = model::guest();
    let (_, address) = spare(TABLE);
    let (_, missing) = spare(721);
    assert_eq!(ask(&mut guest, &mut machine, &mut registers, call::UPDATE_VA_MAPPING, [missing, 0, 2, 0]), 0);
    let changes = guest.descriptor_changes();
    // A gate; then what is no table of so many.
    poke(&guest, &mut machine, address, &[1 << 47 | 0xe << 40]);
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::empty()), 0);
    for (at, entries, error) in [
        (address, 1, Error::Invalid),
        (address + 8, 1, Error::Invalid),
        (address, 16 * 512 + 1, Error::Invalid),
        (missing, 1, Error::Fault),
        (GDT, 1, Error::Fault),
        (1 << 47, 1, Error::Fault),
    ] {
        assert_eq!(set(&mut guest, &mut machine, &mut registers, at, entries), error.code(), "{at:#x}");
    }
    // The second page is missing: the first is none either.
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::WRITE), 0);
    poke(&guest, &mut machine, address, &[DATA]);
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::empty()), 0);
    assert_eq!(set(&mut guest, &mut machine, &mut registers, address, 513), Error::Fault.code());
    let too_many = set(&mut guest, &mut machine, &mut registers, address, 16 * 512 + 1);
    assert_eq!(too_many, Error::Invalid.code(), "before any page is looked at");
    assert_eq!(show(&mut guest, &mut machine, &mut registers, Entry::WRITE), 0);
    assert_eq!((guest.take_ldt(), guest.descriptor_changes()), (None, changes));
    assert_eq!(registers.gpr[gpr::RAX], 0);
}
