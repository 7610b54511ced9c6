//! What calls cost, in ticks of the time-stamp counter, at so many references that are granted already.

use super::{WINDOW, call, hc, issue, query, revoke, write};
use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{rdtsc, sleep, wait_for};

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
