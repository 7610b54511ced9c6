//! The side that sees the pages.

use super::{
    ABSENT, Asked, Attempts, DAMAGE, MAGIC, NO_PEER, PATIENCE, SECRET, SIZE, WINDOW, call, command, hc,
    number, read, serve, table, word, write,
};
use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{sleep, wait_for};
use crate::random::Random;
use core::sync::atomic::{AtomicU64, Ordering};

fn page(reference: u64) -> u64 {
    WINDOW + reference * 4096
}

/// A status word.
fn status(words: u64, reference: u64) -> &'static AtomicU64 {
    unsafe { &*((words + reference * 8) as *const AtomicU64) }
}

/// Begins a use as [`sluice_hypercall::grant::GRANT_STATUS_GRANTED`] wants it; whether the page may be used.
fn begin(words: u64, reference: u64) -> bool {
    let word = status(words, reference);
    if word.fetch_add(1, Ordering::SeqCst) & hc::GRANT_STATUS_GRANTED != 0 {
        return true;
    }
    word.fetch_sub(1, Ordering::SeqCst);
    false
}

/// How many references show this, after damage was tried on all that show what they should not.
fn replay(first: u64, wanted: u64) -> u64 {
    let mut found = 0;
    for reference in first..SIZE {
        if read(page(reference)) == wanted {
            found += 1;
            println!("grants: reference {reference} shows what was taken back");
            write(page(reference), DAMAGE);
        }
        write(page(reference) + 4088, read(page(reference) + 4088));
    }
    found
}

/// Tells of a page, as this processor sees it, until that is enough or the giver is gone.
fn watch(reference: u64, number: u64) {
    let mut looks = 0;
    while read(WINDOW + word::STOP) != number && read(WINDOW + word::MAGIC) == MAGIC {
        looks += 1;
        write(WINDOW + word::SEEN, read(page(reference)));
        write(WINDOW + word::LOOKS, looks);
    }
}

/// Accepts the space of its only peer, after it tried something else, and waits for the giver to begin.
pub fn accept(words: u64, buffer: u64, mut attempt: impl FnMut()) -> bool {
    let mut answer = 0;
    wait_for(PATIENCE, || {
        sleep(1_000_000);
        attempt();
        answer = call(hc::GRANT_ACCEPT, [0, 0, WINDOW, words]);
        answer == SIZE as i64
    });
    println!("SLUICE-RESULT accepted={answer}");
    answer == SIZE as i64
        && wait_for(PATIENCE, || {
            sleep(1_000_000);
            read(WINDOW + word::MAGIC) == MAGIC || table::begin(buffer)
        })
}

/// Calls of one that has no space of its own, and of one that wants another's window.
fn wild(random: &mut Random, attempts: &mut Attempts) {
    for _ in 0..5_000u32 {
        let which = hc::GRANT_DESTROY + random.below(7);
        let mut arguments = [number(random), number(random), number(random), number(random)];
        if which == hc::GRANT_LEAVE && arguments[0] == WINDOW {
            arguments[0] += 4096;
        }
        let answer = call(which, arguments);
        attempts.count("a wild call", answer >= 0);
    }
}

/// A peer of the giver's that no space is for: whatever it asks for, there is none.
pub fn steal(boot: &BootInfo) {
    let words = Own::new(boot).take(SIZE * 8);
    let mut attempts = Attempts::default();
    for round in 0..2_000u64 {
        sleep(1_000_000);
        let answer = call(hc::GRANT_ACCEPT, [0, round % 9, WINDOW, words]);
        attempts.count("accepting what is for another", !matches!(answer, ABSENT | NO_PEER));
    }
    println!("SLUICE-RESULT tried={} succeeded={} done=ok", attempts.tried, attempts.succeeded);
}

/// Runs the taker, until the giver has ended.
pub fn run(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let [words, buffer] = [SIZE * 8, 8192].map(|bytes| own.take(bytes));
    let mut attempts = Attempts::default();
    if !accept(words, buffer, || ()) {
        return println!("grants: there is nothing to take");
    }
    wild(&mut Random::new(9), &mut attempts);
    let answer = |_: &mut (), &Asked { what, reference, value, .. }: &Asked| match what {
        command::READ => read(page(reference)),
        command::WRITE => {
            write(page(reference) + 8, value);
            0
        }
        command::BEGIN_USE => u64::from(begin(words, reference)),
        command::END_USE => status(words, reference).fetch_sub(1, Ordering::SeqCst),
        command::REPLAY => replay(reference, value),
        command::LIE => {
            status(words, reference).store(!0 >> 1 | hc::GRANT_STATUS_GRANTED, Ordering::SeqCst);
            0
        }
        _ => table::serve(what, reference, value, buffer).unwrap_or(0),
    };
    let ended = serve(&mut (), answer, |(), asked| {
        if asked.what == command::WATCH {
            watch(asked.reference, asked.number);
        }
    });
    // The giver is gone: nothing of it is left in the window, and the window still answers.
    let left = (0..SIZE).filter(|reference| read(page(*reference)) & !0xff00 == SECRET & !0xff00).count();
    (0..SIZE).for_each(|reference| write(page(reference), DAMAGE));
    attempts.count("seeing memory of a guest that has ended", left != 0);
    println!("SLUICE-RESULT ended={} left={left}", if ended { "seen" } else { "unseen" });
    let answers = [call(hc::GRANT_LEAVE, [WINDOW, 0, 0, 0]), call(hc::GRANT_LEAVE, [WINDOW, 0, 0, 0])];
    println!("SLUICE-RESULT window={}", if answers == [0, -2] { "left" } else { "kept" });
    attempts.count("seeing anything in a window that was given up", read(WINDOW) != u64::MAX);
    println!("SLUICE-RESULT tried={} succeeded={} done=ok", attempts.tried, attempts.succeeded);
}
