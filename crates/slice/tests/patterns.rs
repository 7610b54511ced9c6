//! Each way in which drivers copy what a structure leads to, from `patterns.c`.

use sluice_slice::{From, Lead, Program, Slice, Walk, module, slice};

fn program() -> Program {
    Program::new(vec![module(include_str!("patterns.ll")).unwrap()])
}

fn handler(name: &str) -> Slice {
    let program = program();
    let mut walk = Walk::new(&program);
    let (operations, _) = walk.handler(&program.find(name).unwrap());
    slice(&mut walk, &operations)
}

fn lead(pointer: i64, count: Option<(i64, u8)>, size: i64) -> Lead {
    Lead { count, ..Lead::read(From::Pointer(pointer), size) }
}

#[test]
fn an_argument_that_leads_nowhere_needs_no_slice() {
    assert_eq!(handler("plain"), Slice::default());
}

#[test]
fn a_counted_array_is_a_lead() {
    let found = handler("counted");
    assert_eq!(found.leads, [lead(0, Some((8, 4)), 8)]);
    assert!(found.nested && found.reasons.is_empty());
}

#[test]
fn elements_of_an_array_lead_on_through_a_callee() {
    let inner = lead(8, Some((4, 4)), 4);
    let found = handler("nested");
    assert_eq!(found.leads, [Lead { elements: vec![inner], ..lead(0, Some((8, 4)), 16) }]);
    assert!(found.reasons.is_empty());
}

#[test]
fn elements_put_in_some_rounds_of_a_loop_are_an_array() {
    let found = handler("put");
    assert_eq!(found.leads, [Lead { is_read: false, is_written: true, ..lead(0, Some((8, 4)), 4) }]);
}

#[test]
fn a_field_decides_whether_a_pointer_is_followed() {
    let found = handler("by_kind");
    assert_eq!(found.leads, [Lead { kind: Some((12, vec![9, 10])), ..lead(0, Some((8, 4)), 64) }]);
}

#[test]
fn a_field_of_an_element_decides_whether_its_pointer_is_followed() {
    let named = Lead { kind: Some((0, vec![4])), ..lead(8, None, 64) };
    let found = handler("by_kind_of_element");
    assert_eq!(found.leads, [Lead { elements: vec![named], ..lead(0, Some((8, 4)), 16) }]);
    assert!(found.reasons.is_empty());
}

#[test]
fn what_cannot_be_sliced_is_said_with_its_reason() {
    for (name, reason) in [
        ("chain", "chain: the address: it changes from round to round of a loop"),
        ("unknown_length", "unknown_length: the length: what length_of_device gives"),
        ("escapes", "escapes: an address of the program's is given to outside"),
    ] {
        let found = handler(name);
        assert!(found.reasons.contains(reason), "{name}: {:?}", found.reasons);
    }
}

#[test]
fn a_switch_is_followed_for_the_number_that_is_asked_for() {
    let program = program();
    let entry = program.find("switched").unwrap();
    for (number, read, written) in [(0x8004_4501, 0, 4), (0x4008_4502, 8, 0), (1, 0, 0)] {
        let mut walk = Walk::new(&program);
        let (operations, _) = walk.command(&entry, number);
        let found = slice(&mut walk, &operations);
        assert_eq!((found.read, found.written), (read, written), "{number:x}");
    }
}

#[test]
fn what_is_no_intermediate_code_is_one_error() {
    assert!(module("define i32 @f(").is_err());
    assert!(module("@x = global [").is_err());
    assert!(module("\u{1}").unwrap_err().to_string().starts_with("line 1 has"));
    let deep = format!("@x = global {} i8", "[1 x ".repeat(100_000));
    assert!(module(&deep).is_err());
}

#[test]
fn a_part_that_copies_and_is_never_come_to_is_named() {
    let found = handler("unreached");
    assert_eq!(found.reasons, ["unreached: a part that copies is never come to".to_owned()].into());
}
