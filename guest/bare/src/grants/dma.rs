//! A peer with a card that reaches all memory (`dma = "unprotected"`): it finds the machine addresses of what it is granted beside its status words,
//! and has the card read and write the granter's pages by them.

use super::give::{Giver, PAGES, secret};
use super::{
    Asked, Attempts, BAD, BUSY, MAGIC, NOT_PERMITTED, PATIENCE, SIZE, WINDOW, call, command, hc, issue,
    query, read, revoke, serve, take, word,
};
use crate::console::println;
use crate::dma::memory::{self, Own};
use crate::dma::{Engine, LEN, e1000::E1000};
use crate::entry::BootInfo;
use crate::machine::{pause, sleep, wait_for};
use core::sync::atomic::{AtomicU64, Ordering};

/// How often a page is taken back from a card that writes to it all the time.
const ROUNDS: u64 = 60;
/// What the card writes: four bytes, again and again.
const STAMP: u64 = 0x57a3_57a3;
/// What a frame is sent with that should be seen nowhere else.
const RINSE: u32 = 0xa5a5_a5a5;

/// What the table says of a reference: status word, machine address.
struct Table(u64);

impl Table {
    fn word(&self, index: u64) -> &AtomicU64 {
        unsafe { &*((self.0 + index * 8) as *const AtomicU64) }
    }

    fn status(&self, reference: u64) -> &AtomicU64 {
        self.word(reference * 2)
    }

    fn address(&self, reference: u64) -> u64 {
        self.word(reference * 2 + 1).load(Ordering::SeqCst)
    }

    /// Begins a use; whether the page may be used.
    fn begin(&self, reference: u64) -> bool {
        let granted = self.status(reference).fetch_add(1, Ordering::SeqCst) & hc::GRANT_STATUS_GRANTED != 0;
        if !granted {
            self.end(reference);
        }
        granted
    }

    fn end(&self, reference: u64) -> u64 {
        self.status(reference).fetch_sub(1, Ordering::SeqCst)
    }
}

/// The peer.
struct Taker {
    card: E1000,
    table: Table,
    /// Own memory of [`LEN`] bytes each: what is sent, what has come.
    source: u64,
    into: u64,
}

impl Taker {
    /// Has the card work at the address of a page, during a use; whether the page may be used.
    fn use_page(&mut self, reference: u64, work: impl FnOnce(&mut Self, u64)) -> bool {
        let granted = self.table.begin(reference);
        if granted {
            work(self, self.table.address(reference));
            self.table.end(reference);
        }
        granted
    }

    /// Waits until the card moves something in own memory: some take a second to get ready.
    fn is_ready(&mut self) -> bool {
        memory::fill(self.source, STAMP as u32);
        wait_for(PATIENCE, || {
            self.card.read(self.source, self.into);
            memory::get(self.into + LEN / 2) == STAMP as u32
        })
    }

    /// What the card reads of a page.
    fn send(&mut self, reference: u64) -> u64 {
        memory::fill(self.into, RINSE);
        self.use_page(reference, |this, address| this.card.read(address, this.into));
        read(self.into + LEN / 2)
    }

    /// The card writes to a page.
    fn receive(&mut self, reference: u64, value: u64) -> bool {
        memory::fill(self.source, value as u32);
        self.use_page(reference, |this, address| this.card.write(address, this.source))
    }

    /// The same as often as the page may be used, until the giver has had enough.
    fn keep_writing(&mut self, reference: u64, value: u64, number: u64) {
        while read(WINDOW + word::STOP) != number && read(WINDOW + word::MAGIC) == MAGIC {
            self.receive(reference, value);
            // A revoke is to find a moment between two uses.
            pause(20_000);
        }
    }

    /// Does what the giver asks for, until that one has ended.
    fn serve(&mut self) -> bool {
        let answer = |taker: &mut Self, asked: &Asked| match asked.what {
            command::BEGIN_USE => u64::from(taker.table.begin(asked.reference)),
            command::END_USE => taker.table.end(asked.reference),
            command::SEND => taker.send(asked.reference),
            command::RECEIVE => u64::from(taker.receive(asked.reference, asked.value)),
            command::ADDRESSES => {
                (0..SIZE).filter(|reference| taker.table.address(*reference) != 0).count() as u64
            }
            _ => 0,
        };
        serve(self, answer, |taker, asked| {
            if asked.what == command::KEEP_WRITING {
                taker.keep_writing(asked.reference, asked.value, asked.number);
            }
        })
    }
}

/// Runs the peer, until the giver has ended in the middle of a use.
pub fn take(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let [table, buffer, source, into] = [SIZE * 16, 8192, LEN, LEN].map(|bytes| own.take(bytes));
    let Some(card) = E1000::open(&mut own) else {
        return println!("SLUICE-RESULT control=no-device done=failed");
    };
    let mut taker = Taker { card, table: Table(table), source, into };
    if !taker.is_ready() {
        return println!("SLUICE-RESULT control=failed done=failed");
    }
    // Status words would fit, entries with addresses do not.
    let beyond = (own.end() - SIZE * 8) | hc::GRANT_STATUS_ADDRESSES;
    let mut short = 0;
    if !take::accept(table | hc::GRANT_STATUS_ADDRESSES, buffer, || {
        short = call(hc::GRANT_ACCEPT, [0, 0, WINDOW, beyond]);
    }) {
        return println!("grants: there is nothing to take");
    }
    let ended = taker.serve();
    // The use that the giver left is counted still, and there is no address by which it could go on.
    let granted = |reference: &u64| {
        let status = taker.table.status(*reference).load(Ordering::SeqCst);
        status & hc::GRANT_STATUS_GRANTED != 0 || taker.table.address(*reference) != 0
    };
    let left = (0..SIZE).filter(granted).count();
    let uses: u64 = (0..SIZE).map(|reference| taker.table.status(reference).load(Ordering::SeqCst)).sum();
    let window = call(hc::GRANT_LEAVE, [WINDOW, 0, 0, 0]);
    println!("SLUICE-RESULT ended={} left={left} uses={uses}", if ended { "seen" } else { "unseen" });
    println!("SLUICE-RESULT short={short} window={}", if window == 0 { "left" } else { "kept" });
    println!("SLUICE-RESULT done=ok");
}

/// A peer that has no such card, and a space: it may have that, but no addresses.
pub fn ask(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let table = own.take(SIZE * 16);
    let mut attempts = Attempts::default();
    let accept = |space: u64, status: u64| call(hc::GRANT_ACCEPT, [0, space, WINDOW, status]);
    for round in 0..2_000 {
        let answer = accept(round % 9, table | hc::GRANT_STATUS_ADDRESSES);
        attempts.count("asking for addresses", answer != NOT_PERMITTED);
    }
    let unknown = accept(1, table | 2);
    let mut answer = 0;
    wait_for(PATIENCE, || {
        sleep(1_000_000);
        answer = accept(1, table);
        answer == SIZE as i64
    });
    let again = accept(1, table | hc::GRANT_STATUS_ADDRESSES);
    attempts.count("asking for addresses later", again != NOT_PERMITTED);
    // Something is granted to it, and beside the word, where an address would be, is the next reference's.
    let granted = wait_for(PATIENCE, || {
        sleep(1_000_000);
        read(table) & hc::GRANT_STATUS_GRANTED != 0
    });
    attempts.count("seeing an address", (1..SIZE * 2).any(|index| read(table + index * 8) != 0));
    println!(
        "SLUICE-RESULT accepted={answer} unknown={unknown} granted={}",
        if granted { "ok" } else { "never" }
    );
    let Attempts { tried, succeeded } = attempts;
    println!("SLUICE-RESULT tried={tried} succeeded={succeeded} done=ok");
}

impl Giver {
    /// Bytes of a transfer in the middle of a page's beginning are the stamp, the rest of the page is what it was.
    fn is_stamped(&self, index: u64) -> bool {
        let stamp = STAMP | STAMP << 32;
        let word = |offset: u64| read(self.page(index) + offset);
        (0..LEN).step_by(8).all(|offset| word(offset) == stamp)
            && (LEN + 64..4096).step_by(8).all(|offset| word(offset) == secret(index))
    }

    /// The card reads and writes what is granted.
    fn transfer(&mut self) {
        let answer = issue(self.space, 5, self.page(1), 1);
        self.expect("issue", answer, 1);
        let found = self.ask(command::SEND, 5, 0);
        self.expect("what the card reads", found as i64, secret(1) as i64);
        let held = self.untouched(1);
        self.attempts.count("a read that changes the page", !held);
        let written = self.ask(command::RECEIVE, 5, STAMP);
        self.expect("a transfer to a page that is granted", written as i64, 1);
        let stamped = self.is_stamped(1);
        self.expect("what the card writes", stamped.into(), 1);
        let others = (2..PAGES).all(|index| self.untouched(index));
        self.attempts.count("a write to other pages", !others);
        println!("SLUICE-RESULT read=ok written={}", if stamped { "ok" } else { "no" });
    }

    /// A use holds up whoever takes the page back, also by force; then the reference gives another page.
    fn take_back_from_card(&mut self) {
        let space = self.space;
        self.ask(command::BEGIN_USE, 5, 0);
        for (what, forced) in [("revoke of a page in use", false), ("forced revoke of a page in use", true)] {
            let answer = revoke(space, 5, 1, forced);
            self.expect(what, answer, BUSY);
        }
        let answer = self.revoke_by_list(5);
        self.expect("a list with a forced revoke of a page in use", answer, BUSY);
        self.expect("query of a page in use", query(space, 5), 7);
        let found = self.ask(command::SEND, 5, 0);
        self.expect("what the card reads in a use", found as i64, (STAMP | STAMP << 32) as i64);
        self.ask(command::END_USE, 5, 0);
        let answer = revoke(space, 5, 1, false);
        self.expect("revoke", answer, 1);
        self.fill_pages();
        let written = self.ask(command::RECEIVE, 5, STAMP);
        self.expect("a transfer to a page that is not granted", written as i64, 0);
        let told = self.ask(command::ADDRESSES, 0, 0);
        self.expect("addresses, but for the control page's", told as i64, 1);
        let answer = issue(space, 5, self.page(2), 1);
        self.expect("issue of another page", answer, 1);
        let found = self.ask(command::SEND, 5, 0);
        self.expect("what the card reads of another page", found as i64, secret(2) as i64);
        self.ask(command::RECEIVE, 5, STAMP);
        let (stamped, held) = (self.is_stamped(2), self.untouched(1));
        self.expect("what the card writes to another page", stamped.into(), 1);
        self.attempts.count("a write to the page that the reference gave before", !held);
        let answer = revoke(space, 5, 1, true);
        self.expect("forced revoke of a page that is not in use", answer, 1);
        self.fill_pages();
        println!("SLUICE-RESULT busy=ok forced=busy");
    }

    /// Two pages in turn by a reference whose page the card writes to all the time: what was taken back stays as it is.
    fn take_back_in_between(&mut self) {
        let space = self.space;
        self.ask(command::KEEP_WRITING, 8, STAMP);
        let (mut busy, mut written) = (0u64, 0);
        for round in 0..ROUNDS {
            let index = 10 + round % 2;
            let answer = issue(space, 8, self.page(index), 1);
            self.expect("issue", answer, 1);
            let seen = wait_for(PATIENCE, || read(self.page(index) + LEN / 2) != secret(index));
            self.expect("a page that the card writes to", seen.into(), 1);
            let mut answer = 0;
            wait_for(PATIENCE, || {
                answer = revoke(space, 8, 1, round % 4 < 2);
                busy += u64::from(answer == BUSY);
                answer != BUSY
            });
            self.expect("revoke between two uses", answer, 1);
            self.fill_page(index);
            pause(1_000_000);
            written += u64::from(!self.untouched(10) || !self.untouched(11));
        }
        self.stop();
        self.attempts.count("writing by the address of a page that was taken back", written != 0);
        println!("SLUICE-RESULT between=ok busy_revokes={busy}");
    }
}

/// Runs the giver, which ends while a page of its is in use.
pub fn give(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let mut giver = Giver::new(&mut own);
    if !giver.open() {
        return println!("grants: nobody accepts");
    }
    giver.transfer();
    giver.take_back_from_card();
    giver.take_back_in_between();
    // For the one that may have no addresses.
    let other = call(hc::GRANT_CREATE, [1, SIZE, 0, 0]);
    giver.expect("a second space", other, 1);
    let accepted = wait_for(PATIENCE, || {
        sleep(1_000_000);
        query(1, 0) & 1 == 1
    });
    let answer = issue(1, 0, giver.page(20), 1);
    giver.expect("issue to the other peer", answer, i64::from(accepted));
    println!("SLUICE-RESULT other=ok");
    wait_for(PATIENCE, || {
        sleep(1_000_000);
        query(1, 0) & 1 == 0
    });
    let answer = issue(giver.space, 9, giver.page(1), 8);
    giver.expect("a range", answer, 8);
    let begun = giver.ask(command::BEGIN_USE, 12, 0);
    giver.expect("a use", begun as i64, 1);
    let busy = revoke(giver.space, 12, 1, true);
    giver.expect("forced revoke of a page in use", busy, BUSY);
    let outside = issue(giver.space, SIZE - 1, own.end(), 1);
    giver.expect("a page of nobody's", outside, BAD);
    giver.finish();
}
