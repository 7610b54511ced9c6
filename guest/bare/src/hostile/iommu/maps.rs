//! Mappings of what is not the guest's, in ranges that are none, for endpoints that are not there, over others; and what stays of mappings that were taken back.

use super::super::Score;
use super::driver::Request;
use super::places::foreign;
use super::{DOMAIN, FIRST, Guest, PAGE, PAGES};

/// Bytes of a request to MAP.
const MAP_BYTES: usize = 36;

impl Guest<'_> {
    /// Memory that is not its own, whole or in part.
    pub fn memory(&mut self) {
        let mut score = Score::new("memory");
        self.start();
        let (io, own, machine) = (self.io, self.own, self.machine);
        let functions = [self.iommu.device.function, self.disk.function];
        let mut number = 0;
        foreign(&own, machine, functions, 8, |gpa| {
            let pages = [1, 2, 512, 1024][number % 4];
            let last = io + pages * PAGE - 1;
            score.add(self.gets(Request::map(DOMAIN, io, last, gpa, 1 + number as u32 % 3)));
            if number % 16 == 0 {
                score.add(self.issued(io, last, 1) != 0);
            }
            number += 1;
        });
        // Over the end of its memory: what was mapped before that is found is taken back.
        let end = self.own.end();
        for pages in [1, 2, 15, 511, 512, 513, 1024, (end - FIRST) / PAGE - 1] {
            for more in [1, 2, 512] {
                let gpa = end - pages * PAGE;
                let all = (pages + more).min((end - FIRST) / PAGE);
                if all > pages {
                    score.add(self.gets(Request::map_pages(DOMAIN, FIRST, all, gpa)));
                    score.add(self.is_any_issued(7));
                }
            }
        }
        score.add(self.is_any_issued(1));
    }

    /// Ranges that are none, or that devices have no addresses for, of memory of its own.
    pub fn ranges(&mut self) {
        let mut score = Score::new("ranges");
        self.start();
        let (io, gpa, end) = (self.io, self.area, self.own.end());
        let last = io + PAGE - 1;
        let largest = !(PAGE - 1);
        let lists = [
            // Neither begins nor ends with a page.
            (io + 1, last, gpa),
            (io + 8, last + 8, gpa),
            (io + 0x800, last, gpa),
            (io, last - 1, gpa),
            (io, last + 1, gpa),
            (io, io, gpa),
            (io, last, gpa + 1),
            (io, last, gpa + 0x800),
            // Ends before it begins, or where it does.
            (io, io - 1, gpa),
            (io, io - PAGE - 1, gpa),
            (end - PAGE, FIRST + PAGE - 1, gpa),
            (u64::MAX, 0, gpa),
            (largest, PAGE - 1, gpa),
            (0, u64::MAX, gpa),
            // Too low, too high, and both.
            (0, PAGE - 1, gpa),
            (FIRST - PAGE, FIRST - 1, gpa),
            (FIRST - PAGE, FIRST + PAGE - 1, gpa),
            (end - PAGE, end + PAGE - 1, gpa),
            (end, end + PAGE - 1, gpa),
            (0xfee0_0000, 0xfee0_0fff, gpa),
            (1 << 32, (1 << 32) + PAGE - 1, gpa),
            (FIRST, (1 << 44) + FIRST - 1, gpa),
            (io, io + (1 << 52) - 1, gpa),
            (FIRST, u64::MAX, FIRST),
            (largest, u64::MAX, gpa),
            // The memory goes over the end of numbers.
            (io, last, largest),
            (io, last + PAGE, largest),
            (FIRST, end - 1, largest - 16 * PAGE),
            (FIRST, end - 1, (1 << 63) - PAGE),
        ];
        for (first, last, gpa) in lists {
            for flags in 1..4 {
                score.add(self.gets(Request::map(DOMAIN, first, last, gpa, flags)));
            }
        }
        let whole = Request::map(DOMAIN, io, last, gpa, 3);
        for flags in [0, 4, 5, 6, 7, 8, 16, 1 << 31, u32::MAX] {
            score.add(self.gets(whole.word(32, flags)));
        }
        for len in 0..MAP_BYTES {
            score.add(self.gets(Request { len, ..whole }));
        }
        for _ in 0..2_000u32 {
            let [first, last, gpa] = [self.near(io), self.near(last), self.near(gpa)];
            let flags = if self.random.below(4) == 0 { self.random.wild() as u32 } else { 3 };
            let request = Request::map(DOMAIN, first, last, gpa, flags);
            if self.may_map(first, last, gpa, flags) {
                self.must("MAP of a range that is one", request);
                self.must("UNMAP of it", Request::unmap(DOMAIN, first, last));
            } else {
                score.add(self.gets(request));
            }
        }
        score.add(self.is_any_issued(1));
    }

    /// The number, one near it, or any.
    fn near(&mut self, number: u64) -> u64 {
        match self.random.below(8) {
            0 => self.random.wild(),
            1 => number.wrapping_add(self.random.below(64) * PAGE),
            2 => number.wrapping_sub(self.random.below(64) * PAGE),
            3 => number ^ 1 << self.random.below(64),
            _ => number,
        }
    }

    /// Endpoints that are not there or are not behind it, address spaces that nobody has, and those of others.
    pub fn endpoints(&mut self) {
        let mut score = Score::new("endpoints");
        let [disk, other] = self.endpoints;
        let page = |domain, at| Request::map_pages(domain, at, 1, at);
        self.start();
        for number in (0..0x200).chain([0x1_0000, 1 << 31, u32::MAX, u32::MAX - 7]) {
            if number != disk && number != other {
                score.add(self.gets(Request::probe(number)));
                score.add(self.gets(Request::attach(2, number)));
                score.add(self.gets(Request::attach(DOMAIN, number)));
                score.add(self.gets(page(2, self.area)));
                score.add(self.gets(Request::detach(DOMAIN, number)));
            }
        }
        // What was not offered: a device that passes by.
        for flags in [1, 2, 1 << 31, u32::MAX] {
            score.add(self.gets(Request::attach(3, other).word(12, flags)));
        }
        for round in 0..100u32 {
            self.start();
            let any = if round % 4 == 0 { self.random.wild() as u32 } else { self.random.below(64) as u32 };
            let second = if any == DOMAIN { 0 } else { any };
            for domain in [second, DOMAIN + 1, 0, u32::MAX] {
                score.add(self.gets(page(domain, self.area)));
            }
            self.shared(second, &mut score);
            self.left(second, &mut score);
        }
    }

    /// Two endpoints for one address space, each in turn.
    fn shared(&mut self, second: u32, score: &mut Score) {
        let [disk, other] = self.endpoints;
        let (io, area) = (self.io, self.area);
        let all = io + PAGES * PAGE;
        self.must("MAP", Request::map_pages(DOMAIN, io, PAGES, area));
        score.add(self.gets(Request::attach(DOMAIN, other)));
        score.add(self.gets(Request::detach(DOMAIN, other)));
        score.add(self.gets(Request::detach(second, disk)));
        self.check("a mapping of the first", self.issued(io, all, 1) == PAGES);
        self.must("ATTACH of the other", Request::attach(second, other));
        score.add(self.gets(Request::attach(second, disk)));
        score.add(self.gets(Request::attach(DOMAIN, other)));
        self.check("a mapping of the first", self.issued(io, all, 1) == PAGES);
        self.must("MAP for the other", Request::map_pages(second, io, PAGES, area));
        self.must("DETACH of the other", Request::detach(second, other));
        score.add(self.gets(Request::map_pages(second, area, 1, area)));
    }

    /// Address spaces that the disk has left: for another, for none, and by a reset.
    fn left(&mut self, second: u32, score: &mut Score) {
        let disk = self.endpoints[0];
        let (io, area) = (self.io, self.area);
        let all = io + PAGES * PAGE;
        let page = |domain| Request::map_pages(domain, area, 1, area);
        self.must("ATTACH elsewhere", Request::attach(second, disk));
        score.add(self.issued(io, all, 1) != 0);
        score.add(self.gets(page(DOMAIN)));
        score.add(self.gets(Request::unmap_pages(DOMAIN, io, 1)));
        score.add(self.gets(Request::detach(DOMAIN, disk)));
        self.must("MAP elsewhere", Request::map_pages(second, io, PAGES, area));
        self.must("DETACH", Request::detach(second, disk));
        score.add(self.issued(io, all, 1) != 0);
        score.add(self.gets(page(second)));
        score.add(self.gets(page(DOMAIN)));
        score.add(self.gets(Request::detach(second, disk)));
        self.must("ATTACH", Request::attach(DOMAIN, disk));
        self.must("MAP", Request::map_pages(DOMAIN, io, PAGES, area));
        let started = self.iommu.start();
        self.check("the start", started);
        score.add(self.issued(io, all, 1) != 0);
        score.add(self.gets(page(DOMAIN)));
        score.add(self.gets(Request::unmap_pages(DOMAIN, io, PAGES)));
    }

    /// Mappings over others: with other memory, with the same, wholly and in part.
    pub fn twice(&mut self) {
        let mut score = Score::new("twice");
        let (io, all) = (self.io, 4 * PAGES);
        for round in 0..400u64 {
            if round % 50 == 0 {
                self.start();
            }
            let base = io + PAGES * PAGE;
            self.must("MAP", Request::map_pages(DOMAIN, base, PAGES, self.area));
            // Some of it lies over the mapping.
            let from = self.random.below(2 * PAGES);
            let len = PAGES.saturating_sub(from) + 1 + self.random.below(PAGES);
            let (first, last) = (io + from * PAGE, io + (from + len) * PAGE - 1);
            let gpa = if round % 4 == 0 { self.area } else { self.second };
            let flags = if round % 2 == 0 { 3 } else { 1 };
            score.add(self.gets(Request::map(DOMAIN, first, last, gpa, flags)));
            let after = base + PAGES * PAGE;
            score.add(self.issued(io, base, 1) + self.issued(after, io + all * PAGE, 1) != 0);
            self.check("what is mapped already", self.issued(base, after, 1) == PAGES);
            self.must("UNMAP", Request::unmap_pages(DOMAIN, base, PAGES));
        }
        score.add(self.is_any_issued(1));
    }

    /// A mapping to read, and then one of the same memory over it, to write, too (5.13.6.5.2): it is refused, and leaves the other as it was.
    pub fn widened(&mut self) {
        let mut score = Score::new("widened");
        self.start();
        let (io, area) = (self.io, self.area);
        for pages in 1..=PAGES {
            self.must("MAP to read", Request::map(DOMAIN, io, io + pages * PAGE - 1, area, 1));
            // What comes behind it is mapped, too.
            let next = io + pages * PAGE;
            self.must("MAP of what comes next", Request::map_pages(DOMAIN, next, 1, self.second));
            score.add(self.gets(Request::map_pages(DOMAIN, io, pages + 1, area)));
            self.check("what is mapped to read", self.issued(io, next + PAGE, 1) == pages + 1);
            for flags in [1, 2, 3] {
                score.add(self.gets(Request::map(DOMAIN, io, io + pages * PAGE - 1, area, flags)));
                score.add(self.gets(Request::map(DOMAIN, io, io + PAGE - 1, area, flags)));
            }
            self.must("UNMAP", Request::unmap_pages(DOMAIN, io, PAGES + 1));
        }
    }

    /// Halves and other parts of mappings, all of them and nothing: what is taken back is not issued, what is not is, and can be mapped again.
    pub fn parts(&mut self) {
        let mut score = Score::new("parts");
        self.start();
        let (io, area) = (self.io, self.area);
        let all = io + PAGES * PAGE;
        for round in 0..200u64 {
            self.must("MAP", Request::map_pages(DOMAIN, io, PAGES, area));
            let nothing = 1 + self.random.below(64);
            self.must("UNMAP of nothing", Request::unmap_pages(DOMAIN, all, nothing));
            let from = if round % 4 == 0 { 0 } else { self.random.below(PAGES) };
            let len = 1 + self.random.below(PAGES - from);
            let (first, end) = (io + from * PAGE, io + (from + len) * PAGE);
            self.must("UNMAP of a part", Request::unmap(DOMAIN, first, end - 1));
            score.add(self.issued(first, end, 1) != 0);
            let rest = self.issued(io, first, 1) + self.issued(end, all, 1);
            self.check("the rest of a mapping", rest == PAGES - len);
            self.must("MAP of a part", Request::map(DOMAIN, first, end - 1, area, 3));
            self.check("all of a mapping", self.issued(io, all, 1) == PAGES);
            for (first, last) in
                [(io + 1, all - 1), (io, all), (all, io - 1), (all - 1, io), (1, u64::MAX), (0, u64::MAX - 1)]
            {
                score.add(self.gets(Request::unmap(DOMAIN, first, last)));
            }
            self.check("all of a mapping", self.issued(io, all, 1) == PAGES);
            let (first, last) = if round % 2 == 0 { (0, u64::MAX) } else { (0, !(PAGE - 1) - 1) };
            self.must("UNMAP of everything", Request::unmap(DOMAIN, first, last));
            score.add(self.issued(io, all, 1) != 0);
        }
        self.must("MAP of everything", self.everything());
        self.must("UNMAP of everything", Request::unmap(DOMAIN, 0, u64::MAX));
        score.add(self.is_any_issued(1));
        self.must("MAP of everything", self.everything());
        self.check("all of its memory", self.issued(FIRST, self.own.end(), 1) == self.all_pages());
        self.must("UNMAP of the first half", Request::unmap_pages(DOMAIN, FIRST, self.all_pages() / 2));
        self.must("UNMAP of all", Request::unmap_pages(DOMAIN, FIRST, self.all_pages()));
        score.add(self.is_any_issued(1));
        self.must("MAP of everything", self.everything());
    }

    pub fn all_pages(&self) -> u64 {
        (self.own.end() - FIRST) / PAGE
    }

    /// A request to map all memory above the first MiB, at its own addresses.
    pub fn everything(&self) -> Request {
        Request::map_pages(DOMAIN, FIRST, self.all_pages(), FIRST)
    }
}
