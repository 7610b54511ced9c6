//! What the disk reaches: nothing that was taken back, before or while it writes, and nothing to write that it may only read; and calls that issue and
//! revoke pages (`GRANT_ISSUE`) while the IOMMU does the same.

use super::super::Score;
use super::driver::Request;
use super::{BUFFERS, DOMAIN, Guest, HELD, PAGE, PAGES, QUEUE, fill, holds, resets};
use crate::console::println;
use crate::dma::memory::get;
use crate::machine;
use crate::machine::call;
use sluice_hypercall::grant as hc;

impl Guest<'_> {
    /// The area is mapped, and no more, in five ways. The disk must not write to it.
    pub fn stale(&mut self) {
        let mut score = Score::new("stale");
        let (io, area) = (self.io, self.area);
        let disk = self.endpoints[0];
        for round in 0..20u32 {
            self.map_area();
            fill(area, PAGES, HELD);
            let written = self.transfer(io, PAGES) && holds(area, PAGES, 0);
            self.check("the disk", written);
            match round % 5 {
                0 => self.must("UNMAP", Request::unmap_pages(DOMAIN, io, PAGES)),
                1 => {
                    self.must("DETACH", Request::detach(DOMAIN, disk));
                    self.must("ATTACH", Request::attach(DOMAIN, disk));
                    self.map_queue(DOMAIN);
                }
                2 => {
                    self.must("ATTACH elsewhere", Request::attach(7, disk));
                    self.map_queue(7);
                }
                3 => {
                    self.start();
                    self.map_queue(DOMAIN);
                }
                // Nobody is attached: the queue is issued by a call.
                _ => {
                    let reset = self.iommu.reset();
                    self.check("the reset", reset);
                    self.issue_queue();
                }
            }
            fill(area, PAGES, HELD);
            // It writes to the sink, or says that it cannot.
            let done = self.begin_transfer(io, PAGES) && self.end_transfer().is_some();
            self.check("the disk without the area", done);
            score.add(!holds(area, PAGES, HELD));
            self.revoke_queue();
            // Other memory in the same place.
            self.start();
            self.map_queue(DOMAIN);
            self.must("MAP of other memory", Request::map_pages(DOMAIN, io, PAGES, self.second));
            fill(self.second, PAGES, HELD);
            let written = self.transfer(io, PAGES) && holds(self.second, PAGES, 0);
            self.check("the disk with other memory", written);
            score.add(!holds(area, PAGES, HELD));
        }
    }

    fn issue_queue(&self) {
        let space = self.disk.space.unwrap_or(0);
        call(hc::GRANT_ISSUE, [space, self.disk.at / PAGE, self.disk.at, QUEUE / PAGE]);
    }

    /// Takes back what [`Self::issue_queue`] issued.
    fn revoke_queue(&self) {
        let space = self.disk.space.unwrap_or(0);
        call(hc::GRANT_REVOKE, [space, self.disk.at / PAGE, QUEUE / PAGE, hc::GRANT_FORCED]);
    }

    /// The area is taken back while the disk writes to it: once that is answered, nothing in it changes.
    pub fn flight(&mut self) {
        let mut score = Score::new("flight");
        let (io, area) = (self.io, self.area);
        let (mut before, mut after) = (0, 0);
        self.map_area();
        let begun = machine::rdtsc();
        let written = self.transfer(io, PAGES);
        self.check("the disk", written);
        let took = machine::rdtsc() - begun;
        for round in 0..60u32 {
            self.map_area();
            fill(area, PAGES, HELD);
            let begun = self.begin_transfer(io, PAGES);
            machine::pause(self.random.below(2 * took));
            match round % 3 {
                0 => self.must("UNMAP", Request::unmap_pages(DOMAIN, io, PAGES)),
                1 => self.must("UNMAP page by page", Request::unmap_pages(DOMAIN, io, 1)),
                _ => self.must("UNMAP of everything above", Request::unmap(DOMAIN, io, u64::MAX)),
            }
            if round % 3 == 1 {
                (1..PAGES).for_each(|page| {
                    self.must("UNMAP page by page", Request::unmap_pages(DOMAIN, io + page * PAGE, 1));
                });
            }
            if holds(area, PAGES, HELD) {
                before += 1
            } else {
                after += 1
            }
            fill(area, PAGES, HELD);
            let ended = begun && self.end_transfer().is_some();
            self.check("the disk that lost the area", ended);
            score.add(!holds(area, PAGES, HELD));
        }
        drop(score);
        let both = if before > 0 && after > 0 { "ok" } else { "bad" };
        println!("SLUICE-RESULT flight_before={before} flight_after={after} flight_both={both}");
    }

    /// The disk's verdict is where it may only read.
    pub fn read_only(&mut self) {
        let mut score = Score::new("read_only");
        let verdict = self.disk.at + BUFFERS + 0x2000;
        for _ in 0..4 {
            self.map_area();
            self.must("UNMAP", Request::unmap_pages(DOMAIN, verdict, 1));
            self.must("MAP to read", Request::map(DOMAIN, verdict, verdict + PAGE - 1, verdict, 1));
            self.begin_transfer(self.io, PAGES);
            self.end_transfer();
            score.add(get(verdict) & 0xff != 0xff);
        }
    }

    /// Any calls between and during requests, which the second processor has carried out.
    pub fn calls(&mut self) {
        let mut score = Score::new("calls");
        let space = self.disk.space.unwrap_or(0);
        for kicked in [false, true] {
            self.map_area();
            if kicked {
                resets::start_kicking(self.iommu.device.doorbell);
            }
            for round in 0..100u32 {
                let request = match round % 4 {
                    0 => self.everything(),
                    1 => Request::unmap(DOMAIN, 0, u64::MAX),
                    2 => Request::map_pages(DOMAIN, self.io, PAGES, self.area),
                    _ => Request::unmap_pages(DOMAIN, self.io, PAGES),
                };
                self.iommu.offer_request(&request);
                for _ in 0..50 {
                    score.add(self.disk.wild_call(space, self.random));
                }
                self.iommu.ring();
                let outcome = self.iommu.outcome();
                self.mend(outcome);
                score.add(self.gets(Request::map_pages(DOMAIN, self.io, PAGES, self.own.end())));
            }
            if kicked {
                resets::stop_kicking();
            }
            self.start();
            score.add(self.is_any_issued(1));
        }
    }
}
