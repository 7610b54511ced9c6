//! Frames that it gives back: those that it must not, and what it tries with those that are gone.

use crate::Score;
use crate::attacks::{PIN_L1, spare};
use crate::interface::{SELF, call, hypercall, reads, writes};
use crate::memory::{Machine, PRESENT, USER, WRITE, give_back, map, operate, take_again, take_of, update};

/// Tries all.
pub fn run(machine: &Machine, score: &mut Score) {
    must_stay(machine, score);
    gone(machine, score);
    mapped(machine, score);
    none_to_have(machine, score);
}

/// Its page tables, its descriptors, what the hypervisor writes to for it, what it keeps, what is not its own; alone, and after one of its own.
fn must_stay(machine: &Machine, score: &mut Score) {
    let page = spare(machine) + 5;
    let (frame, first) = (machine.frame(page), machine.frame(0));
    let descriptors = machine.frame(page + 1);
    map(machine.address(page + 1), descriptors << 12 | PRESENT, true);
    let set = hypercall(call::SET_GDT, [[descriptors].as_ptr() as u64, 512, 0, 0]) == 0;
    score.attempt("no_descriptors", !set);
    let tables = (machine.tables..machine.tables + machine.table_count).map(|table| machine.frame(table));
    // `struct shared_info`, and behind it the hypervisor's.
    let kept = (0..9).map(|after| first + machine.pages + after);
    let console = (!machine.is_initial).then_some(machine.console);
    let others = [0, 1, 0x100, first - 1, first + (1 << 18), 0xff_ffff_ffff, u64::MAX, descriptors];
    for other in tables.chain(kept).chain(console).chain(others) {
        score.attempt("given_back", give_back(&[other]) != 0);
        map(machine.address(page), 0, true);
        score.attempt("given_back_among_own", give_back(&[frame, other, machine.frame(page + 2)]) != 1);
        score.attempt("given_back_twice", give_back(&[frame]) != 0);
        score.attempt("not_again", take_again(page) != Some(frame));
        map(machine.address(page), frame << 12 | PRESENT | WRITE, true);
    }
    hypercall(call::SET_GDT, [0, 0, 0, 0]);
    map(machine.address(page + 1), descriptors << 12 | PRESENT | WRITE, true);
}

/// All by which a frame is named, of one that is gone.
fn gone(machine: &Machine, score: &mut Score) {
    let page = spare(machine) + 5;
    let (address, frame) = (machine.address(page), machine.frame(page));
    writes(address, 0x7777);
    map(address, 0, false);
    score.attempt("not_given_back", give_back(&[frame]) != 1);
    // The processor has just written there.
    score.attempt("gone_read", reads(address).is_some());
    score.attempt("gone_written", writes(address, 0x8888));
    score.attempt("gone_number", machine.page_of(frame) != u64::MAX);
    for rights in [PRESENT, PRESENT | WRITE, PRESENT | WRITE | USER] {
        score.attempt("gone_mapped", map(address, frame << 12 | rights, true) == 0);
        let (leaf, index) = machine.leaf(address);
        for kind in [0, 2, 3] {
            score.attempt("gone_update", update(leaf << 12 | index << 3 | kind, frame << 12 | rights) == 0);
        }
        let place = machine.address(machine.page_of(leaf)) + index * 8;
        score.attempt("gone_store", writes(place, frame << 12 | rights));
    }
    for level in 0..4 {
        score.attempt("gone_pinned", operate(PIN_L1 + level, frame, 0) == 0);
    }
    for root in [5, 15] {
        score.attempt("gone_root", operate(root, frame, 0) == 0);
    }
    score.attempt("gone_word", update(frame << 12, 7) == 0);
    score.attempt("gone_page", update(frame << 12 | 1, page) == 0);
    score.attempt("gone_descriptor", hypercall(call::UPDATE_DESCRIPTOR, [frame << 12, 0, 0, 0]) == 0);
    let list = [frame, 0];
    let at = list.as_ptr() as u64;
    score.attempt("gone_gdt", hypercall(call::SET_GDT, [at, 512, 0, 0]) == 0);
    score.attempt("gone_info", hypercall(call::VCPU_OP, [10, 0, at, 0]) == 0);
    for what in [0, 1] {
        score.attempt("gone_semi", hypercall(call::SEMI_WRITABLE, [at, 1, what, 0]) == 0);
    }
    let exchange = [at, 1, 0, SELF, at, 1, 0, SELF, 0];
    score.attempt("gone_exchanged", hypercall(call::MEMORY_OP, [11, exchange.as_ptr() as u64, 0, 0]) == 0);
    // It is had by nobody else's name, of one order, and not where there is none.
    for domain in [0, 1, 0x7ff1, 0x7ff2] {
        score.attempt("gone_for_others", take_of(page, 0, domain).is_some());
    }
    for order_and_bits in [1, 9, 64, 12 << 32, 13 << 32] {
        score.attempt("gone_order", take_of(page, order_and_bits, SELF).is_some());
    }
    score.attempt("gone_for_good", take_again(page) != Some(frame));
    map(address, frame << 12 | PRESENT | WRITE, true);
    score.attempt("not_zeros", reads(address) != Some(0));
    score.attempt("gone_still", machine.page_of(frame) != page || !writes(address, 0));
}

/// One that is mapped when it is given back: its mapping becomes no other one.
fn mapped(machine: &Machine, score: &mut Score) {
    let page = spare(machine) + 5;
    let (address, frame) = (machine.address(page), machine.frame(page));
    writes(address, 0x9999);
    score.attempt("mapped_not_given_back", give_back(&[frame]) != 1);
    for other in [page, page + 1] {
        for rights in [PRESENT, PRESENT | WRITE | USER] {
            let is_new = other != page || rights & WRITE == 0;
            let done = map(machine.address(other), frame << 12 | rights, true) == 0;
            score.attempt("mapped_again", is_new && done);
        }
    }
    map(address, 0, true);
    score.attempt("mapped_table", operate(PIN_L1, frame, 0) == 0);
    score.attempt("mapped_later", map(address, frame << 12 | PRESENT, true) == 0);
    score.attempt("mapped_for_good", take_again(page) != Some(frame));
    map(address, frame << 12 | PRESENT | WRITE, true);
    score.attempt("mapped_not_zeros", reads(address) != Some(0));
}

/// Frames where none were given back, and where it could not be told of them.
fn none_to_have(machine: &Machine, score: &mut Score) {
    let page = spare(machine) + 5;
    let frame = machine.frame(page);
    score.attempt("one_more", take_again(page).is_some());
    score.attempt("was_not_given_back", give_back(&[frame]) != 1);
    let table = machine.address(machine.tables);
    for list in [table, crate::memory::GDT, crate::memory::M2P, 0] {
        let reservation = [list, 1, 0, SELF];
        let answer = hypercall(call::MEMORY_OP, [6, reservation.as_ptr() as u64, 0, 0]);
        score.attempt("told_nowhere", answer > 0);
    }
    score.attempt("was_lost", take_again(page) != Some(frame));
}
