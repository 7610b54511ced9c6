//! The side that issues and revokes.

use super::{
    ABSENT, Attempts, BAD, BUSY, DAMAGE, EXISTS, MAGIC, NO_PEER, NO_SUCH_CALL, PATIENCE, SECRET, SIZE, call,
    command, hc, issue, number, query, read, revoke, word, write,
};
use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{sleep, wait_for};
use crate::random::Random;

/// How often a page is taken back from a processor that looks at it at that moment.
const WATCHES: u64 = 50;
/// Pages that are lent and must stay what they are but for what the taker may write.
pub const PAGES: u64 = 64;

pub struct Giver {
    pub space: u64,
    pub control: u64,
    /// First of [`PAGES`] pages.
    pages: u64,
    list: u64,
    number: u64,
    failed: u64,
    pub attempts: Attempts,
}

/// What a page of the giver holds.
pub fn secret(page: u64) -> u64 {
    SECRET ^ page << 8
}

impl Giver {
    /// One with pages, and no space yet.
    pub fn new(own: &mut Own) -> Self {
        let [control, pages, list] = [4096, PAGES * 4096, 0x1_0000].map(|bytes| own.take(bytes));
        Self { space: 0, control, pages, list, number: 0, failed: 0, attempts: Attempts::default() }
    }

    /// What the pages hold, and a control page that asks for nothing yet.
    pub fn fill(&mut self) {
        self.fill_pages();
        (0..512).for_each(|word| write(self.control + word * 8, 0));
        write(self.control + word::MAGIC, MAGIC);
        self.number = 0;
    }

    pub fn fill_pages(&self) {
        (0..PAGES).for_each(|index| self.fill_page(index));
    }

    pub fn fill_page(&self, index: u64) {
        (0..512).for_each(|word| write(self.page(index) + word * 8, secret(index)));
    }

    /// Says how it went.
    pub fn finish(&self) {
        let Attempts { tried, succeeded } = &self.attempts;
        println!("SLUICE-RESULT tried={tried} succeeded={succeeded} failed={}", self.failed);
        println!("SLUICE-RESULT done=ok");
    }

    pub fn page(&self, index: u64) -> u64 {
        self.pages + index * 4096
    }

    pub fn expect(&mut self, what: &str, found: i64, expected: i64) {
        if found != expected {
            self.failed += 1;
            println!("grants: {what} is answered with {found}, not {expected}");
        }
    }

    /// Makes a space and waits until it is accepted.
    pub fn open(&mut self) -> bool {
        self.space = call(hc::GRANT_CREATE, [0, SIZE, 0, 0]) as u64;
        if self.space >= 8 {
            println!("grants: there is no space: {}", self.space as i64);
            return false;
        }
        let waits = issue(self.space, 0, self.control, 1);
        if waits != NO_PEER && waits != 1 {
            self.expect("a grant that nobody has accepted", waits, NO_PEER);
        }
        let accepted = wait_for(PATIENCE, || {
            sleep(1_000_000);
            query(self.space, 0) & 1 == 1
        });
        self.fill();
        if query(self.space, 0) & 2 == 0 {
            let control = issue(self.space, 0, self.control, 1);
            self.expect("the control page", control, 1);
        }
        accepted
    }

    /// Asks the taker for something; what it answers.
    pub fn ask(&mut self, command: u64, reference: u64, value: u64) -> u64 {
        self.number += 1;
        write(self.control + word::COMMAND, command);
        write(self.control + word::REFERENCE, reference);
        write(self.control + word::VALUE, value);
        write(self.control + word::NUMBER, self.number);
        let answered = wait_for(PATIENCE, || {
            sleep(300_000);
            read(self.control + word::DONE) == self.number
        });
        if !answered {
            self.failed += 1;
            println!("grants: the taker does not answer command {command}");
        }
        read(self.control + word::RESULT)
    }

    /// Ends a command that goes on until then.
    pub fn stop(&self) {
        write(self.control + word::STOP, self.number);
    }

    /// A forced revoke, as the only entry of a list.
    pub fn revoke_by_list(&self, reference: u64) -> i64 {
        write(self.list, reference | hc::GRANT_LIST_REVOKE | hc::GRANT_FORCED);
        write(self.list + 8, 0);
        call(hc::GRANT_BATCH, [self.space, self.list, 1, 0])
    }

    pub fn untouched(&self, index: u64) -> bool {
        (0..512).all(|word| read(self.page(index) + word * 8) == secret(index))
    }

    /// Issue, read, write; read-only pages are not written.
    fn share(&mut self) {
        let (space, page) = (self.space, self.page(1));
        let answer = issue(space, 5, page, 1);
        self.expect("issue", answer, 1);
        let (found, expected) = (self.ask(command::READ, 5, 0), secret(1));
        self.expect("what the taker reads", found as i64, expected as i64);
        self.ask(command::WRITE, 5, 0x1234);
        self.expect("what the taker wrote", read(page + 8) as i64, 0x1234);
        write(page + 8, secret(1));
        let answer = issue(space, 6, self.page(2) | hc::GRANT_READ_ONLY, 1);
        self.expect("issue to read", answer, 1);
        let (found, expected) = (self.ask(command::READ, 6, 0), secret(2));
        self.expect("what the taker reads", found as i64, expected as i64);
        self.ask(command::WRITE, 6, DAMAGE);
        let held = self.untouched(2);
        self.attempts.count("a write of a page that is read-only", !held);
        println!("SLUICE-RESULT shared=ok read_only={}", if held { "held" } else { "written" });
        let again = issue(space, 5, self.page(3), 1);
        self.expect("a reference that is taken", again, EXISTS);
        self.expect("query", query(space, 5), 7);
        self.expect("query of what is read-only", query(space, 6), 3);
    }

    /// Busy, then not; and what the taker can do with what it had.
    fn take_back(&mut self) {
        let space = self.space;
        self.ask(command::BEGIN_USE, 5, 0);
        let answer = revoke(space, 5, 1, false);
        self.expect("revoke of a page in use", answer, BUSY);
        let (found, expected) = (self.ask(command::READ, 5, 0), secret(1));
        self.expect("a page in use", found as i64, expected as i64);
        self.ask(command::END_USE, 5, 0);
        let answer = revoke(space, 5, 1, false);
        self.expect("revoke", answer, 1);
        let answer = revoke(space, 5, 1, false);
        self.expect("revoke of nothing", answer, ABSENT);
        self.replay(1);
        // One that lies about its use: nobody but force helps.
        let answer = issue(space, 7, self.page(4), 1);
        self.expect("issue", answer, 1);
        self.ask(command::LIE, 7, 0);
        let answer = revoke(space, 7, 1, false);
        self.expect("revoke against a lie", answer, BUSY);
        let answer = revoke(space, 7, 1, true);
        self.expect("forced revoke", answer, 1);
        self.replay(4);
        println!("SLUICE-RESULT revoked=ok forced=ok");
    }

    /// Takes a page back while the taker's processor looks at it, has it hold something else, and hears what that processor sees.
    fn take_from_sight(&mut self) {
        let (space, page) = (self.space, self.page(5));
        let mut seen = 0;
        for round in 0..WATCHES {
            write(page, round);
            let answer = issue(space, 8, page, 1);
            self.expect("issue", answer, 1);
            write(self.control + word::SEEN, DAMAGE);
            self.ask(command::WATCH, 8, 0);
            let looks = || read(self.control + word::LOOKS);
            let watched = wait_for(PATIENCE, || read(self.control + word::SEEN) == round);
            let answer = revoke(space, 8, 1, true);
            write(page, secret(5));
            let before = looks();
            let went_on = wait_for(PATIENCE, || looks() > before + 2);
            seen += u64::from(read(self.control + word::SEEN) == secret(5));
            self.stop();
            self.expect("a page that is watched", i64::from(watched && went_on), 1);
            self.expect("forced revoke of what is watched", answer, 1);
        }
        self.attempts.count("a processor that goes on with what it knew of a page", seen != 0);
        println!("SLUICE-RESULT watched=ok");
    }

    /// The taker tries all references; a page that is taken back must not change, and must not be seen.
    pub fn replay(&mut self, index: u64) {
        let seen = self.ask(command::REPLAY, 1, secret(index));
        self.attempts.count("reading a page that was taken back", seen != 0);
        let held = self.untouched(index);
        self.attempts.count("writing a page that was taken back", !held);
    }

    /// A list of issues and revokes, in one call.
    fn batch(&mut self) {
        let (space, list) = (self.space, self.list);
        let entry = |index: u64, what: u64, page: u64| {
            write(list + index * 16, what);
            write(list + index * 16 + 8, page);
        };
        let scattered = |index: u64| 16 + index * 31;
        (0..60).for_each(|index| entry(index, scattered(index), self.page(index)));
        let answer = call(hc::GRANT_BATCH, [space, list, 60, 0]);
        self.expect("a list of issues", answer, 60);
        let (found, expected) = (self.ask(command::READ, scattered(59), 0), secret(59));
        self.expect("the last of a list", found as i64, expected as i64);
        (0..60).for_each(|index| entry(index, scattered(index) | hc::GRANT_LIST_REVOKE, 0));
        entry(50, scattered(1) | hc::GRANT_LIST_REVOKE, 0);
        let answer = call(hc::GRANT_BATCH, [space, list, 60, 0]);
        self.expect("a list with a mistake", answer, 50);
        let answer = revoke(space, scattered(50), 1, false);
        self.expect("what comes after the mistake", answer, 1);
        entry(0, 1 << 40, 0);
        let answer = call(hc::GRANT_BATCH, [space, list, 1, 0]);
        self.expect("an entry with unknown bits", answer, BAD);
        for index in 51..60 {
            let answer = revoke(space, scattered(index), 1, false);
            self.expect("the rest of the list", answer, 1);
        }
        self.replay(59);
        println!("SLUICE-RESULT batch=ok");
    }

    /// Calls that mean nothing. What counts as success is a page that is not the caller's.
    fn wild(&mut self, own: &Own, random: &mut Random) {
        for _ in 0..20_000u32 {
            let which = hc::GRANT_CREATE + random.below(10);
            let arguments = [random.below(9), number(random), number(random), number(random)];
            if which == hc::GRANT_CREATE && arguments[0] == 1 {
                // That would be a space for the other peer, which is to find none.
                continue;
            }
            if arguments[0] == self.space && matches!(which, hc::GRANT_DESTROY | hc::GRANT_REVOKE) {
                // The control page is needed.
                continue;
            }
            let answer = call(which, arguments);
            let foreign = arguments[2] & !1 >= own.end() && (arguments[2] | 1) != 1;
            let wrong = match which {
                hc::GRANT_ISSUE => answer > 0 && (arguments[1] >= SIZE || foreign),
                hc::GRANT_ACCEPT => answer >= 0,
                hc::GRANT_QUERY => answer >= 0 && arguments[1] >= SIZE,
                // It has no virtual device.
                hc::GRANT_OPEN => answer >= 0,
                number if number > hc::GRANT_OPEN => answer != NO_SUCH_CALL,
                _ => false,
            };
            self.attempts.count("a wild call", wrong);
        }
        // What it has granted of its own by chance, kernel included, and spaces that nobody will accept.
        for space in 0..8 {
            (0..SIZE).step_by(512).for_each(|first| {
                (first..first + 512)
                    .filter(|reference| *reference != 0 && query(space, *reference) & 2 == 2)
                    .for_each(|reference| _ = revoke(space, reference, 1, true));
            });
            if space != self.space {
                call(hc::GRANT_DESTROY, [space, 0, 0, 0]);
            }
        }
        println!("SLUICE-RESULT wild=ok");
    }
}

/// Runs the giver: all that is allowed, all that is not, and what follows the taker's end.
pub fn run(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let mut giver = Giver::new(&mut own);
    if !giver.open() {
        return println!("grants: nobody accepts");
    }
    giver.share();
    giver.take_back();
    giver.take_from_sight();
    giver.batch();
    let answer = call(hc::GRANT_DESTROY, [giver.space, 0, 0, 0]);
    giver.expect("the end of a space with grants", answer, BUSY);
    giver.wild(&own, &mut Random::new(7));
    // The taker dies while it has pages.
    let answer = issue(giver.space, 100, giver.pages, PAGES);
    giver.expect("a range", answer, PAGES as i64);
    println!("SLUICE-RESULT waiting=end");
    let gone = wait_for(PATIENCE, || {
        sleep(1_000_000);
        query(giver.space, 100) & 1 == 0
    });
    giver.expect("a grant to a dead peer", query(giver.space, 100), 0);
    let answer = issue(giver.space, 3, giver.pages, 1);
    giver.expect("issue to a dead peer", answer, NO_PEER);
    let answer = call(hc::GRANT_DESTROY, [giver.space, 0, 0, 0]);
    giver.expect("the end of the space", answer, 0);
    println!("SLUICE-RESULT peer_died={}", if gone { "seen" } else { "unseen" });
    // Its next life, and then this one's end, with pages lent.
    let back = giver.open();
    println!("SLUICE-RESULT again={}", if back { "ok" } else { "never" });
    let answer = issue(giver.space, 1, giver.pages, PAGES);
    giver.expect("a range", answer, PAGES as i64);
    let (found, expected) = (giver.ask(command::READ, 9, 0), secret(8));
    giver.expect("what the taker reads in its next life", found as i64, expected as i64);
    giver.finish();
}
