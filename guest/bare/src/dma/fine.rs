//! A device that reaches only what its guest issues to it (`dma = "fine"`): `job=dma:DEVICE:fine`.
//!
//! The device is told to read and write pages of its own guest's that were not issued, then the same once they are issued for reading, for
//! writing, and once they are revoked.

use super::memory::{self, Own};
use super::{Engine, LEN};
use crate::console::println;
use crate::machine;
use crate::machine::call;
use crate::random::Random;
use sluice_hypercall::grant as hc;

/// Bytes that are issued before anything else, for the device's rings and for transfers.
const RINGS: u64 = 4 << 20;
/// Pages that are tried.
const PAGES: u64 = 96;
/// What a page holds before the device is told to write.
const HELD: u32 = 0x4e1d_4e1d;
/// What transfers begin with.
const FILL: u32 = 0x5a5a_5a5a;

/// Opens the space of the only device that has one, and issues memory to it for its rings; the number of the space.
pub fn open(own: &Own) -> Option<u64> {
    let space = (0..32).map(|slot| hc::GRANT_DEVICE + slot).find(|space| {
        let size = call(hc::GRANT_OPEN, [*space, 0, 0, 0]);
        size > 0
    })?;
    let (start, _) = own.rest();
    let pages = (start >> 12)..((start + RINGS) >> 12);
    // A call takes 512 references at most, and says how many it took.
    let mut next = pages.start;
    while next < pages.end {
        let done = call(hc::GRANT_ISSUE, [space, next, next << 12, pages.end - next]);
        if done <= 0 {
            println!("fine: page {next:#x} is not issued: {done}");
            return None;
        }
        next += done as u64;
    }
    Some(space)
}

/// What came of it.
#[derive(Default)]
struct Verdict {
    tried: u64,
    succeeded: u64,
    failed: u64,
}

struct Fine<'a> {
    engine: &'a mut dyn Engine,
    source: u64,
    into: u64,
    verdict: Verdict,
}

impl Fine<'_> {
    /// Whether the device can read a page of [`HELD`].
    fn reads(&mut self, page: u64) -> bool {
        memory::fill(page, HELD);
        memory::fill(self.into, FILL);
        self.engine.read(page, self.into);
        memory::get(self.into + LEN / 2) == HELD
    }

    /// Whether the device can change a page.
    fn writes(&mut self, page: u64, stamp: u32) -> bool {
        memory::fill(page, HELD);
        memory::fill(self.source, stamp);
        self.engine.write(page, self.source);
        (0..LEN).step_by(4).any(|offset| memory::get(page + offset) != HELD)
    }

    /// The device must not reach a page, or only read it.
    fn refused(&mut self, page: u64, stamp: u32, may_read: bool) {
        let read = !may_read && self.reads(page);
        let written = self.writes(page, stamp);
        self.verdict.tried += if may_read { 1 } else { 2 };
        self.verdict.succeeded += u64::from(read) + u64::from(written);
    }

    /// Something that must be.
    fn expect(&mut self, holds: bool, what: &str, page: u64) {
        if !holds {
            self.verdict.failed += 1;
            println!("fine: {what} at {page:#x}");
        }
    }
}

/// Runs the job in a space that [`open`] has opened.
pub fn run(device: &str, space: u64, engine: &mut dyn Engine, mut own: Own) {
    let (source, into, ready) = (own.take(LEN), own.take(LEN), own.take(LEN));
    let mut fine = Fine { engine, source, into, verdict: Verdict::default() };
    // Some cards take a second to get ready.
    let works = (0..3_000).any(|_| {
        fine.reads(ready) || {
            machine::pause(1_000_000);
            false
        }
    });
    fine.expect(works, "the device reads nothing of what is issued", ready);
    let (start, end) = own.rest();
    let (start, mut random) = (start + RINGS, Random::new(1));
    for number in 0..PAGES {
        let page = start + ((random.next() % ((end - start) >> 12)) << 12);
        let (reference, stamp) = (page >> 12, 0x1000_0000 + number as u32);
        fine.refused(page, stamp, false);
        let issued = call(hc::GRANT_ISSUE, [space, reference, page | hc::GRANT_READ_ONLY, 1]);
        fine.expect(issued == 1, "a page is not issued", page);
        let read = fine.reads(page);
        fine.expect(read, "a page that is issued is not read", page);
        fine.refused(page, stamp, true);
        let revoked = call(hc::GRANT_REVOKE, [space, reference, 1, 0]);
        fine.expect(revoked == 1, "a page is not revoked", page);
        fine.refused(page, stamp, false);
        let issued = call(hc::GRANT_ISSUE, [space, reference, page, 1]);
        fine.expect(issued == 1, "a page is not issued again", page);
        let written = fine.writes(page, stamp);
        fine.expect(written, "a page that is issued is not written", page);
        let revoked = call(hc::GRANT_REVOKE, [space, reference, 1, 0]);
        fine.expect(revoked == 1, "a page is not revoked again", page);
        fine.refused(page, stamp, false);
    }
    // What is not the guest's cannot be issued.
    let foreign = call(hc::GRANT_ISSUE, [space, 7, 0xfee0_0000, 1]);
    fine.expect(foreign < 0, "registers are issued", 0xfee0_0000);
    let Verdict { tried, succeeded, failed } = fine.verdict;
    println!("SLUICE-RESULT fine.{device}.tried={tried} fine.{device}.succeeded={succeeded}");
    println!("SLUICE-RESULT done={}", if failed == 0 { "ok" } else { "failed" });
}
