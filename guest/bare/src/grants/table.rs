//! Grants by a table: the giver writes entries, the taker has pages mapped and copied.

use super::give::Giver;
use super::{
    ABSENT, BAD, BUSY, DAMAGE, EXISTS, MAGIC, NOT_PERMITTED, PATIENCE, SIZE, WINDOW, call, command, hc,
    issue, word, write,
};
use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{sleep, wait_for};
use crate::random::Random;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_hypercall::table as calls;

/// Calls that mean nothing.
const WILD: u32 = 10_000;

/// The giver and its table.
struct Lender {
    giver: Giver,
    table: u64,
    /// First address that is not the giver's.
    end: u64,
}

impl Lender {
    fn entry(&self, reference: u64) -> &AtomicU64 {
        unsafe { &*((self.table + reference * 8) as *const AtomicU64) }
    }

    fn permit(&self, reference: u64, page: u64, flags: u64) {
        self.entry(reference).store(page | calls::TABLE_PERMIT | flags, Ordering::SeqCst);
    }

    /// Ends a grant, as a granter must. Returns whether it could be.
    fn withdraw(&self, reference: u64) -> bool {
        let entry = self.entry(reference);
        let old = entry.load(Ordering::SeqCst);
        let free = old & calls::TABLE_USED == 0;
        free && entry.compare_exchange(old, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn used(&self, reference: u64) -> bool {
        self.entry(reference).load(Ordering::SeqCst) & calls::TABLE_USED != 0
    }

    fn ask(&mut self, what: u64, reference: u64, value: u64) -> i64 {
        self.giver.ask(what, reference, value) as i64
    }

    fn expect(&mut self, what: &str, found: i64, expected: i64) {
        self.giver.expect(what, found, expected);
    }

    /// Makes a space, says where the table is, and waits until the taker has mapped the control page.
    fn open(&mut self) -> bool {
        self.giver.space = call(hc::GRANT_CREATE, [0, SIZE, 0, 0]) as u64;
        let beyond = call(calls::TABLE_LEND, [self.giver.space, self.end - 4096, 0, 0]);
        self.expect("a table that leaves memory", beyond, BAD);
        let lent = call(calls::TABLE_LEND, [self.giver.space, self.table, 0, 0]);
        self.expect("a table", lent, SIZE as i64);
        self.begin()
    }

    fn begin(&mut self) -> bool {
        self.giver.fill();
        self.permit(0, self.giver.control, 0);
        let mapped = wait_for(PATIENCE, || {
            sleep(1_000_000);
            self.used(0)
        });
        let issued = issue(self.giver.space, 1, self.giver.page(1), 1);
        self.expect("an issue beside the table", issued, NOT_PERMITTED);
        mapped
    }

    /// Map, use, unmap; read-only pages are not written.
    fn map(&mut self) {
        let page = self.giver.page(1);
        let none = self.ask(command::MAP, 5, 0);
        self.expect("a map of what is not permitted", none, ABSENT);
        self.permit(5, page, 0);
        let mapped = self.ask(command::MAP, 5, 0);
        self.expect("a map", mapped, 1);
        let found = self.ask(command::READ, 5, 0);
        self.expect("what the taker reads", found, super::give::secret(1) as i64);
        self.ask(command::WRITE, 5, 0x1234);
        self.expect("what the taker wrote", super::read(page + 8) as i64, 0x1234);
        write(page + 8, super::give::secret(1));
        let again = self.ask(command::MAP, 5, 0);
        self.expect("a second map", again, EXISTS);
        let early = self.withdraw(5);
        self.expect("the end of a grant in use", early.into(), 0);
        let unmapped = self.ask(command::UNMAP, 5, 0);
        self.expect("an unmap", unmapped, 1);
        let unmapped = self.ask(command::UNMAP, 5, 0);
        self.expect("an unmap of nothing", unmapped, ABSENT);
        self.giver.replay(1);
        let ended = self.withdraw(5);
        self.expect("the end of a grant", ended.into(), 1);
        self.permit(6, self.giver.page(2), calls::TABLE_READ_ONLY);
        let mapped = self.ask(command::MAP, 6, 0);
        self.expect("a map to write what is to be read", mapped, NOT_PERMITTED);
        let mapped = self.ask(command::MAP, 6, calls::TABLE_MAP_READ);
        self.expect("a map to read", mapped, 1);
        self.ask(command::WRITE, 6, DAMAGE);
        let held = self.giver.untouched(2);
        self.giver.attempts.count("a write of a page that is read-only", !held);
        self.ask(command::UNMAP, 6, 0);
        for (what, page) in
            [("a page of nobody's", self.end), ("no address", 1 << 51), ("an unknown bit", page | 8)]
        {
            self.permit(7, page, 0);
            let mapped = self.ask(command::MAP, 7, 0);
            self.expect(what, mapped, BAD);
            let used = self.used(7);
            self.expect("the entry of what was not mapped", used.into(), 0);
        }
        println!("SLUICE-RESULT mapped=ok");
    }

    /// Copies both ways, of what is mapped and of what is not.
    fn copy(&mut self) {
        let page = self.giver.page(3);
        let part =
            |offset: u64, bytes: u64| offset * calls::TABLE_COPY_OFFSET + bytes * calls::TABLE_COPY_BYTES;
        self.permit(8, page, 0);
        self.permit(9, self.giver.page(4), calls::TABLE_READ_ONLY);
        self.ask(command::FILL, 0, 0x5a5a);
        let copied = self.ask(command::COPY, 8, part(16, 8) | calls::TABLE_COPY_OUT);
        self.expect("a copy to the giver", copied, 1);
        let (before, written, after) =
            (super::read(page + 8), super::read(page + 16), super::read(page + 24));
        let secret = super::give::secret(3);
        let only = written == 0x5a5a && (before, after) == (secret, secret);
        self.expect("what was copied to the giver", only.into(), 1);
        write(page + 16, secret);
        let copied = self.ask(command::COPY, 9, part(0, 4096));
        self.expect("a copy of what is to be read", copied, 1);
        let found = self.ask(command::LOOK, 511, 0);
        self.expect("what was copied from the giver", found, super::give::secret(4) as i64);
        let used = self.used(8) || self.used(9);
        self.expect("entries after a copy", used.into(), 0);
        self.ask(command::FILL, 0, DAMAGE);
        let out = calls::TABLE_COPY_OUT;
        for (what, way, reference, how, expected) in [
            ("a copy to what is to be read", command::COPY, 9, part(0, 8) | out, NOT_PERMITTED),
            ("a copy past the page", command::COPY, 8, part(4095, 2) | out, BAD),
            ("a copy of nothing", command::COPY, 8, part(0, 0), BAD),
            ("a copy of what is not permitted", command::COPY, 10, part(0, 8), ABSENT),
            ("a copy from memory that is nobody's", command::COPY_WILD, 8, part(0, 8) | out, BAD),
        ] {
            let copied = self.ask(way, reference, how);
            self.expect(what, copied, expected);
        }
        let held = self.giver.untouched(3) && self.giver.untouched(4);
        self.giver.attempts.count("a copy that was refused", !held);
        // What is mapped stays in use whatever is copied.
        self.ask(command::MAP, 8, 0);
        self.ask(command::COPY, 8, part(0, 8));
        let used = self.used(8);
        self.expect("the entry of a page that is mapped and copied", used.into(), 1);
        println!("SLUICE-RESULT copied=ok");
    }

    /// The giver breaks its own rules: entries change while pages are mapped, and all the time.
    fn change(&mut self) {
        // It is the page that was mapped that is shown, and that is unmapped.
        self.permit(8, self.giver.page(5), 0);
        let found = self.ask(command::READ, 8, 0);
        self.expect("a page whose entry has changed", found, super::give::secret(3) as i64);
        let unmapped = self.ask(command::UNMAP, 8, 0);
        self.expect("an unmap of it", unmapped, 1);
        self.giver.replay(3);
        self.giver.replay(5);
        for reference in 16..64 {
            self.permit(reference, self.giver.page(reference - 8), 0);
        }
        self.ask(command::WILD, 0, 0);
        // Whatever it has mapped, these are gone, and all others were never there.
        for reference in 5..SIZE {
            self.ask_if_used(reference);
        }
        for page in (1..8).chain(56..super::give::PAGES) {
            let held = self.giver.untouched(page);
            self.giver.attempts.count("a wild call", !held);
        }
        self.giver.fill_pages();
        println!("SLUICE-RESULT changed=ok");
    }

    fn ask_if_used(&mut self, reference: u64) {
        if self.used(reference) {
            self.ask(command::UNMAP, reference, 0);
            let used = self.used(reference);
            self.expect("an entry after an unmap", used.into(), 0);
        }
    }
}

/// Runs the giver, until the taker has died, come back, and had all there is.
pub fn lend(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let giver = Giver::new(&mut own);
    let table = own.take(SIZE * 8);
    let mut lender = Lender { giver, table, end: own.end() };
    if !lender.open() {
        return println!("grants: nobody maps the control page");
    }
    lender.map();
    lender.copy();
    lender.change();
    // The taker dies while it has pages: their entries are the giver's again.
    lender.permit(5, lender.giver.page(1), 0);
    lender.ask(command::MAP, 5, 0);
    let busy = call(calls::TABLE_LEND, [lender.giver.space, table, 0, 0]);
    lender.expect("another table while pages are mapped", busy, BUSY);
    println!("SLUICE-RESULT waiting=end");
    let gone = wait_for(PATIENCE, || {
        sleep(1_000_000);
        !lender.used(5) && !lender.used(0)
    });
    println!("SLUICE-RESULT peer_died={}", if gone && lender.withdraw(5) { "seen" } else { "unseen" });
    let back = lender.begin();
    println!("SLUICE-RESULT again={}", if back { "ok" } else { "never" });
    lender.permit(9, lender.giver.page(8), 0);
    let mapped = lender.ask(command::MAP, 9, 0);
    lender.expect("a map in its next life", mapped, 1);
    lender.giver.finish();
}

/// One call for one reference, or for whatever a list holds, in the taker's window.
pub fn one(what: u64, list: u64, entry: [u64; 2]) -> i64 {
    write(list, entry[0]);
    write(list + 8, entry[1]);
    call(what, [WINDOW, list, 1, 0])
}

/// What the taker does of these commands; `buffer` is a page, and a list behind it.
pub fn serve(what: u64, reference: u64, value: u64, buffer: u64) -> Option<u64> {
    let list = buffer + 4096;
    Some(match what {
        command::MAP => one(calls::TABLE_MAP, list, [reference | value, 0]) as u64,
        command::UNMAP => one(calls::TABLE_UNMAP, list, [reference, 0]) as u64,
        command::COPY => one(calls::TABLE_COPY, list, [reference | value, buffer]) as u64,
        command::COPY_WILD => one(calls::TABLE_COPY, list, [reference | value, 1 << 40]) as u64,
        command::FILL => {
            (0..512).for_each(|word| write(buffer + word * 8, value));
            0
        }
        command::LOOK => super::read(buffer + reference % 512 * 8),
        command::WILD => {
            wild(list);
            0
        }
        _ => return None,
    })
}

/// Lists of anything, for windows of anybody.
fn wild(list: u64) {
    let mut random = Random::new(11);
    for _ in 0..WILD {
        for at in 0..16 {
            let word = match random.below(4) {
                0 => super::number(&mut random),
                1 => random.below(SIZE) | random.below(0x1_0000) << 32 | 0x10 << 48,
                _ => 16 + random.below(48),
            };
            // The control page is needed.
            write(list + at * 8, if word as u32 == 0 { word | 16 } else { word });
        }
        let which = calls::TABLE_LEND + random.below(5);
        let window = if random.below(3) == 0 { super::number(&mut random) } else { WINDOW };
        call(which, [window, list, 1 + random.below(9), 0]);
    }
}

/// Waits until the taker can map the giver's control page, which begins with [`MAGIC`].
pub fn begin(buffer: u64) -> bool {
    one(calls::TABLE_MAP, buffer + 4096, [0, 0]) == 1 && super::read(WINDOW + word::MAGIC) == MAGIC
}
