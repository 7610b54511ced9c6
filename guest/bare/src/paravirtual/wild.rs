//! What is tried at random: hypercalls whose arguments often mean something. What the kernel itself stands on is left alone, so that it lives to
//! look at its page tables: whether one of them, or memory that is not its own, can be written.

use crate::Score;
use crate::attacks::spare;
use crate::interface::{SELF, call, hypercall, rest, writes};
use crate::memory::{BASE, LARGE, Machine, PRESENT, USER, WRITE};
use crate::processors::DOWN;
use crate::random::Random;

/// Pages that random calls are about.
const PAGES: u64 = 32;
/// Calls between two looks at all tables.
const EVERY: u64 = 1000;

/// Makes as many calls as `calls=` says.
pub fn run(machine: &Machine, score: &mut Score) {
    let mut random = Random::new(machine.number("seed").unwrap_or(1));
    let calls = machine.number("calls").unwrap_or(0);
    let first = spare(machine) + 4;
    for number in 0..calls {
        one(machine, &mut random, first);
        score.attempt("nothing", false);
        if number % EVERY == 0 {
            look(machine, score);
            rest();
        }
    }
    look(machine, score);
}

/// Looks at all that the processor would find from the root on.
fn look(machine: &Machine, score: &mut Score) {
    let mut walk = |table: u64, level: u32| {
        for index in 0..512 {
            let entry = machine.entry(table, index);
            if entry & PRESENT == 0 || level == 4 && (256..272).contains(&index) {
                continue;
            }
            let target = entry >> 12 & 0xff_ffff_ffff;
            let bad = match level {
                1 => {
                    let page = machine.page_of(target);
                    let shared = target == machine.frame(0) + machine.pages;
                    !machine.is_own(target) && !shared
                        || entry & WRITE != 0 && machine.is_table(target)
                        || page >= machine.pages && !shared
                }
                _ => entry & LARGE != 0 || !machine.is_own(target),
            };
            if bad {
                score.attempt("found", true);
            }
        }
    };
    walk(machine.root(), 4);
    for page in machine.tables + 1..machine.tables + machine.table_count {
        let level = match page - machine.tables {
            1 => 3,
            2 => 2,
            _ => 1,
        };
        walk(machine.frame(page), level);
    }
}

fn argument(machine: &Machine, random: &mut Random, first: u64) -> u64 {
    let page = first + random.below(PAGES);
    let table = machine.tables + random.below(machine.table_count);
    match random.below(12) {
        0 => random.below(32),
        1 => machine.address(page),
        2 => machine.frame(page),
        3 => machine.frame(table),
        4 => machine.frame(page) << 12 | random.below(8),
        5 => machine.frame(table) << 12 | PRESENT | random.next() & (WRITE | USER | LARGE),
        6 => machine.frame(page) << 12 | random.below(512) << 3 | random.below(4),
        7 => SELF,
        8 => machine.frame(0).wrapping_add(machine.pages + random.below(64)),
        9 => 0xffff_8000_0000_0000 | random.next() >> 24,
        _ => random.wild(),
    }
}

/// One call.
fn one(machine: &Machine, random: &mut Random, first: u64) {
    let mut words = [0u64; 16];
    for word in &mut words {
        *word = argument(machine, random, first);
    }
    let at = words.as_ptr() as u64;
    let page = machine.address(first + random.below(PAGES));
    let mut arguments = [0u64; 4].map(|_| argument(machine, random, first));
    let number = match random.below(10) {
        0 | 1 => {
            // Its own code, stack and tables stay: only entries of those pages, or of tables that it makes of them.
            let (leaf, _) = machine.leaf(page);
            let index = page >> 12 & 511;
            words[0] = match random.below(2) {
                0 => leaf << 12 | index << 3 | random.below(4) & 2,
                _ => machine.frame(first + random.below(PAGES)) << 12 | random.below(512) << 3,
            };
            arguments = [at, 1, 0, SELF];
            call::MMU_UPDATE
        }
        2 | 3 => {
            arguments[0] = page;
            arguments[2] &= 3;
            call::UPDATE_VA_MAPPING
        }
        4 | 5 => {
            // Roots are not changed: the kernel would not live on.
            words[0] = match words[0] & 15 {
                5 | 15 => 4,
                cmd => cmd,
            };
            words[1] = machine.frame(first + random.below(PAGES));
            arguments = [at, 1, 0, SELF];
            call::MMUEXT_OP
        }
        6 => {
            words[0] = machine.frame(first + random.below(PAGES));
            arguments = [at, random.below(8 * 512), 0, 0];
            call::SET_GDT
        }
        7 => {
            // A store into what may be a table by now, or a descriptor table; but for its own tables, of which it would be an update.
            let (leaf, index) = machine.leaf(page);
            let entry = machine.entry(leaf, index);
            if entry & PRESENT != 0 && machine.is_table(entry >> 12 & 0xff_ffff_ffff) {
                return;
            }
            writes(page + random.below(512) * 8, arguments[0]);
            return;
        }
        8 => {
            arguments =
                [machine.frame(first + random.below(PAGES)) << 12 | random.below(512) << 3, words[0], 0, 0];
            call::UPDATE_DESCRIPTOR
        }
        _ => {
            const SAFE: [u64; 7] = [
                call::MEMORY_OP,
                call::XEN_VERSION,
                call::EVENT_CHANNEL_OP,
                call::VCPU_OP,
                call::SET_GDT,
                call::UPDATE_DESCRIPTOR,
                call::SEMI_WRITABLE,
            ];
            let number = SAFE[random.below(7) as usize];
            // Who takes the processor down that it runs on stands still for good.
            if (number, arguments[0], arguments[1]) == (call::VCPU_OP, DOWN, 0) {
                return;
            }
            if number == call::SEMI_WRITABLE {
                arguments = [at, random.below(17), random.below(3), 0];
                core::hint::black_box(&words);
                hypercall(number, arguments);
                return;
            }
            // What it answers goes to pages that nobody needs, if anywhere.
            arguments = arguments.map(|argument| if argument >= BASE { page } else { argument });
            number
        }
    };
    // The hypervisor reads them.
    core::hint::black_box(&words);
    hypercall(number, arguments);
}
