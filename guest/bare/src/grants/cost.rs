//! What calls cost, in ticks of the time-stamp counter, at so many references that are granted already.

use super::table::one;
use super::{WINDOW, call, hc, issue, query, revoke, write};
use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{rdtsc, sleep, wait_for};
use sluice_hypercall::table as calls;

/// References of the space.
const SIZE: u64 = 1 << 20;
/// Calls of which an average is made.
const ROUNDS: u64 = 64;
/// Pages that are granted over and over.
const PAGES: u64 = 512;

/// Ticks of one of [`ROUNDS`] calls, made for references that do not touch.
fn average(free: u64, act: impl Fn(u64) -> i64, expected: i64) -> u64 {
    let before = rdtsc();
    let mut wrong = 0;
    for round in 0..ROUNDS {
        wrong += u64::from(act(free + round * 67) != expected);
    }
    let ticks = (rdtsc() - before) / ROUNDS;
    if wrong != 0 {
        println!("grants: {wrong} of {ROUNDS} calls have another answer");
    }
    ticks
}

/// Accepts the space, and sleeps until it is over.
pub fn idle(boot: &BootInfo) {
    let words = Own::new(boot).take(SIZE * 8);
    wait_for(60_000_000_000, || {
        sleep(1_000_000);
        call(hc::GRANT_ACCEPT, [0, 0, WINDOW, words]) == SIZE as i64
    });
    wait_for(400_000_000_000, || {
        sleep(100_000_000);
        call(hc::GRANT_ACCEPT, [0, 0, WINDOW, words]) == super::NO_PEER
    });
}

/// Measures and prints.
pub fn run(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let pages = own.take(PAGES * 4096);
    let list = own.take(ROUNDS * 16);
    let space = call(hc::GRANT_CREATE, [0, SIZE, 0, 0]) as u64;
    wait_for(60_000_000_000, || {
        sleep(1_000_000);
        query(space, 0) & 1 == 1
    });
    let mut live = 0;
    for (name, count) in [("1e3", 1_000), ("1e5", 100_000), ("1e6", 1_000_000)] {
        while live < count {
            let done = issue(space, live, pages, (count - live).min(PAGES));
            if done <= 0 {
                return println!("grants: {live} are granted, then {done}");
            }
            live += done as u64;
        }
        // The tables of what follows are there already, as after a while they are.
        let free = count + 1_000;
        average(free, |reference| issue(space, reference, pages, 1), 1);
        average(free, |reference| revoke(space, reference, 1, false), 1);
        let issued = average(free, |reference| issue(space, reference, pages, 1), 1);
        let revoked = average(free, |reference| revoke(space, reference, 1, false), 1);
        average(free, |reference| issue(space, reference, pages, 1), 1);
        let forced = average(free, |reference| revoke(space, reference, 1, true), 1);
        let batch = |flags: u64| {
            for index in 0..ROUNDS {
                write(list + index * 16, (free + index * 67) | flags);
                write(list + index * 16 + 8, if flags == 0 { pages } else { 0 });
            }
            let before = rdtsc();
            let done = call(hc::GRANT_BATCH, [space, list, ROUNDS, 0]);
            if done == ROUNDS as i64 { (rdtsc() - before) / ROUNDS } else { 0 }
        };
        let (batch_issued, batch_revoked) = (batch(0), batch(hc::GRANT_LIST_REVOKE));
        println!(
            "SLUICE-RESULT grants.issue.{name}={issued} grants.revoke.{name}={revoked} grants.forced.{name}={forced}"
        );
        println!(
            "SLUICE-RESULT grants.batch_issue.{name}={batch_issued} grants.batch_revoke.{name}={batch_revoked}"
        );
    }
    println!("SLUICE-RESULT done=ok");
}

/// Lends all references by a table, and sleeps until its peer has ended.
pub fn permit(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let [table, pages] = [SIZE * 8, PAGES * 4096].map(|bytes| own.take(bytes));
    for reference in 0..SIZE {
        write(table + reference * 8, (pages + reference % PAGES * 4096) | calls::TABLE_PERMIT);
    }
    let space = call(hc::GRANT_CREATE, [0, SIZE, 0, 0]) as u64;
    if call(calls::TABLE_LEND, [space, table, 0, 0]) != SIZE as i64 {
        return println!("grants: nothing can be lent by a table");
    }
    for accepted in [1, 0] {
        wait_for(400_000_000_000, || {
            sleep(10_000_000);
            query(space, 0) & 1 == accepted
        });
    }
}

/// Measures and prints what a peer's calls cost, of which each use needs two, or a copy.
pub fn uses(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let [buffer, list] = [4096, 4096].map(|bytes| own.take(bytes));
    wait_for(60_000_000_000, || {
        sleep(1_000_000);
        call(hc::GRANT_ACCEPT, [0, 0, WINDOW, hc::GRANT_NO_STATUS]) == SIZE as i64
    });
    let part = |bytes: u64| (bytes * calls::TABLE_COPY_BYTES) | calls::TABLE_COPY_OUT;
    let copied =
        |bytes| average(0, |reference| one(calls::TABLE_COPY, list, [reference | part(bytes), buffer]), 1);
    let mapped = || average(0, |reference| one(calls::TABLE_MAP, list, [reference, 0]), 1);
    let unmapped = || average(0, |reference| one(calls::TABLE_UNMAP, list, [reference, 0]), 1);
    let batch = |what: u64, words: u64, flags: u64| {
        for index in 0..ROUNDS {
            write(list + index * words * 8, (index * 67) | flags);
            write(list + index * words * 8 + (words - 1) * 8, if words == 2 { buffer } else { index * 67 });
        }
        let before = rdtsc();
        let done = call(what, [WINDOW, list, ROUNDS, 0]);
        if done == ROUNDS as i64 { (rdtsc() - before) / ROUNDS } else { 0 }
    };
    // The tables of the window are there already, as after a while they are.
    mapped();
    unmapped();
    let (map, unmap) = (mapped(), unmapped());
    let (batch_map, batch_unmap) = (batch(calls::TABLE_MAP, 1, 0), batch(calls::TABLE_UNMAP, 1, 0));
    let (copy, copy_64) = (copied(4096), copied(64));
    let [batch_copy, batch_copy_64] = [4096, 64].map(|bytes| batch(calls::TABLE_COPY, 2, part(bytes)));
    println!("SLUICE-RESULT map={map} unmap={unmap} batch_map={batch_map} batch_unmap={batch_unmap}");
    println!(
        "SLUICE-RESULT copy={copy} copy_64={copy_64} batch_copy={batch_copy} batch_copy_64={batch_copy_64}"
    );
    println!("SLUICE-RESULT done=ok");
}
